//! The Task service of a running shim, called without containerd: for what no client of containerd's asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_shim_protos::api::{
    ConnectRequest, ConnectResponse, CreateTaskRequest, CreateTaskResponse, DeleteRequest, DeleteResponse,
    ExecProcessRequest, KillRequest, Mount, PauseRequest, ResizePtyRequest, ResumeRequest, StartRequest, StartResponse,
    StateRequest, StateResponse, StatsRequest, StatsResponse, WaitRequest, WaitResponse,
};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::ttrpc::{self, context};
use serde_json::{Value, json};

use super::daemon::{Containerd, Task};

const V2: &str = "containerd.task.v2.Task";
const V3: &str = "containerd.task.v3.Task";

/// What a call gave: the answer, or the status' code and text.
pub type Answer<T> = Result<T, (ttrpc::Code, String)>;

/// A connection to a task's shim. Calls block; clones share the connection, and calls from several threads may be out at
/// once.
#[derive(Clone)]
pub struct Shim {
    client: Arc<ttrpc::Client>,
    namespace: String,
    service: &'static str,
    id: String,
    bundle: PathBuf,
}

impl Shim {
    /// The shim of a task.
    #[track_caller]
    pub fn of(task: &Task<'_>) -> Shim {
        Shim::at(task.containerd, &task.id)
    }

    /// The shim of a container.
    #[track_caller]
    pub fn at(containerd: &Containerd, id: &str) -> Shim {
        let address = format!("unix://{}", containerd.socket(id).display());
        let client = ttrpc::Client::connect(&address).unwrap_or_else(|e| panic!("{address}: {e}"));
        Shim {
            client: Arc::new(client),
            namespace: containerd.namespace.clone(),
            service: if containerd.task_version(id) == 3 { V3 } else { V2 },
            id: id.to_owned(),
            bundle: containerd.bundle(id),
        }
    }

    /// The same by both names that the service has: until containerd 1.7, and since 2.0.
    pub fn by_each_name(&self) -> [Shim; 2] {
        [V2, V3].map(|service| Shim { service, ..self.clone() })
    }

    fn call<Q: Message, A: Message>(&self, method: &str, request: &Q) -> Answer<A> {
        let mut ctx = context::with_duration(Duration::from_secs(60));
        ctx.add("containerd-namespace-ttrpc".to_owned(), self.namespace.clone());
        let request = ttrpc::Request {
            service: self.service.to_owned(),
            method: method.to_owned(),
            timeout_nano: ctx.timeout_nano,
            metadata: context::to_pb(ctx.metadata),
            payload: request.write_to_bytes().expect("encode"),
            ..ttrpc::Request::default()
        };
        match self.client.request(request) {
            Ok(response) => Ok(A::parse_from_bytes(&response.payload).expect("decode")),
            Err(ttrpc::Error::RpcStatus(status)) => Err((status.code(), status.message)),
            Err(err) => panic!("{method}: {err}"),
        }
    }

    /// `Connect`
    pub fn connect(&self) -> Answer<ConnectResponse> {
        self.call("Connect", &ConnectRequest { id: self.id.clone(), ..ConnectRequest::default() })
    }

    /// `Exec` of a command without streams.
    pub fn exec(&self, exec: &str, args: &[&str]) -> Answer<()> {
        self.exec_with(exec, args, "", "")
    }

    /// `Exec` of a command, with the FIFOs (or addresses) that its output goes to.
    pub fn exec_with(&self, exec: &str, args: &[&str], stdout: &str, stderr: &str) -> Answer<()> {
        let request = ExecProcessRequest { stderr: stderr.to_owned(), ..self.exec_request(exec, args, stdout) };
        self.call::<_, containerd_shim_protos::api::Empty>("Exec", &request).map(drop)
    }

    /// `Exec` of a command on a terminal, of which only the request tells, not the process.
    pub fn exec_on_terminal(&self, exec: &str, args: &[&str], stdout: &str) -> Answer<()> {
        let request = ExecProcessRequest { terminal: true, ..self.exec_request(exec, args, stdout) };
        self.call::<_, containerd_shim_protos::api::Empty>("Exec", &request).map(drop)
    }

    /// `Exec` for a container of this bundle.
    pub fn exec_of(&self, bundle: &Path, exec: &str, args: &[&str]) -> Answer<()> {
        Shim { bundle: bundle.to_owned(), ..self.clone() }.exec(exec, args)
    }

    fn exec_request(&self, exec: &str, args: &[&str], stdout: &str) -> ExecProcessRequest {
        let config = fs::read(self.bundle.join("config.json")).expect("read config.json");
        let config: Value = serde_json::from_slice(&config).expect("config.json is JSON");
        let mut process = config["process"].clone();
        process["args"] = json!(args);
        process["terminal"] = json!(false);
        let spec = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned(),
            value: process.to_string().into_bytes(),
            ..Any::default()
        };
        ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            stdout: stdout.to_owned(),
            spec: Some(spec).into(),
            ..ExecProcessRequest::default()
        }
    }

    /// `Start`; the pid.
    pub fn start(&self, exec: &str) -> Answer<u32> {
        let request = StartRequest { id: self.id.clone(), exec_id: exec.to_owned(), ..StartRequest::default() };
        self.call::<_, StartResponse>("Start", &request).map(|answer| answer.pid)
    }

    /// `Wait`; the exit status.
    pub fn wait(&self, exec: &str) -> Answer<u32> {
        let request = WaitRequest { id: self.id.clone(), exec_id: exec.to_owned(), ..WaitRequest::default() };
        self.call::<_, WaitResponse>("Wait", &request).map(|answer| answer.exit_status)
    }

    /// `State`
    pub fn state(&self, exec: &str) -> Answer<StateResponse> {
        let request = StateRequest { id: self.id.clone(), exec_id: exec.to_owned(), ..StateRequest::default() };
        self.call("State", &request)
    }

    /// `Delete`; the exit status.
    pub fn delete(&self, exec: &str) -> Answer<u32> {
        let request = DeleteRequest { id: self.id.clone(), exec_id: exec.to_owned(), ..DeleteRequest::default() };
        self.call::<_, DeleteResponse>("Delete", &request).map(|answer| answer.exit_status)
    }

    /// `Kill`
    pub fn kill(&self, exec: &str, signal: u32, all: bool) -> Answer<()> {
        let request =
            KillRequest { id: self.id.clone(), exec_id: exec.to_owned(), signal, all, ..KillRequest::default() };
        self.call::<_, containerd_shim_protos::api::Empty>("Kill", &request).map(drop)
    }

    /// `Create` in this shim, of a bundle whose root file system is another directory; `runtime` is the program that is run,
    /// empty for the usual one. The pid.
    pub fn create(&self, bundle: &Path, rootfs: &Path, runtime: &str) -> Answer<u32> {
        let mount = Mount {
            type_: "bind".to_owned(),
            source: rootfs.display().to_string(),
            options: vec!["rbind".to_owned()],
            ..Mount::default()
        };
        let options = Options { binary_name: runtime.to_owned(), ..Options::default() };
        let options = Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: options.write_to_bytes().expect("encode"),
            ..Any::default()
        };
        let request = CreateTaskRequest {
            id: self.id.clone(),
            bundle: bundle.display().to_string(),
            rootfs: vec![mount],
            options: Some(options).into(),
            ..CreateTaskRequest::default()
        };
        self.call::<_, CreateTaskResponse>("Create", &request).map(|answer| answer.pid)
    }

    /// `ResizePty`, in characters.
    pub fn resize(&self, exec: &str, width: u32, height: u32) -> Answer<()> {
        let request = ResizePtyRequest {
            id: self.id.clone(),
            exec_id: exec.to_owned(),
            width,
            height,
            ..ResizePtyRequest::default()
        };
        self.call::<_, containerd_shim_protos::api::Empty>("ResizePty", &request).map(drop)
    }

    /// `Pause`
    pub fn pause(&self) -> Answer<()> {
        let request = PauseRequest { id: self.id.clone(), ..PauseRequest::default() };
        self.call::<_, containerd_shim_protos::api::Empty>("Pause", &request).map(drop)
    }

    /// `Resume`
    pub fn resume(&self) -> Answer<()> {
        let request = ResumeRequest { id: self.id.clone(), ..ResumeRequest::default() };
        self.call::<_, containerd_shim_protos::api::Empty>("Resume", &request).map(drop)
    }

    /// `Stats`
    pub fn stats(&self) -> Answer<StatsResponse> {
        self.call("Stats", &StatsRequest { id: self.id.clone(), ..StatsRequest::default() })
    }

    /// The same for another container's id.
    pub fn for_container(&self, id: &str) -> Shim {
        Shim { id: id.to_owned(), ..self.clone() }
    }
}
