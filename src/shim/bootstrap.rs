//! `start`: finds the process that serves a group of containers, or starts it, and tells containerd where it listens.
//!
//! The socket listens before its server exists: a connection waits in its queue. The server is this program again, with the
//! socket as its standard input; it says on its standard output that it runs, or why it does not, and ends that. containerd
//! reads our output to its end, so nothing that lives on may hold it. The server's output is a socket: when containerd has been
//! answered the server is told by it, and where this process is killed before, the server ends. containerd, which gives up a
//! start with its client, has nobody look for what a killed one has left.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, LogLevel};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use super::args::Args;
use super::options::Options;
use super::socket::{self, Found, Place};
use super::{ShimError, confine, record};
use crate::durable;

/// The most that containerd may write to standard input, in bytes.
const INPUT_MAX: usize = 10 << 20;
/// How long containerd may be silent before its input counts as ended. It closes it at once; a person may not.
const SILENCE: Duration = Duration::from_secs(10);
/// How long the server may take until it runs.
const READY: Duration = Duration::from_secs(15);
/// What the server says when it runs.
pub const RUNNING: &str = "running";
/// What it is told when containerd has been answered; any byte does.
const ANSWERED: &[u8] = b"answered";
/// The version of the task service in an answer that has one. Both are served, and are alike. But 3 also says that the shim
/// makes sandboxes: containerd then has only a pod's sandbox deleted after the shim's death, and what is in its containers
/// would run on.
const TASK_VERSION: i32 = 2;
/// The file in the bundle that has the address, from which containerd 1.6 finds the shim again.
pub const ADDRESS: &str = "address";
/// The type of the options that are looked into when they come as JSON.
const OPTIONS: &str = "containerd.runc.v1.Options";

/// What containerd gives in the environment.
#[derive(Debug, Clone, Default)]
pub struct Env {
    /// `TTRPC_ADDRESS`: where it takes events.
    pub ttrpc_address: Option<String>,
    /// `GRPC_ADDRESS`.
    pub grpc_address: Option<String>,
}

/// How containerd wants to be answered: as it asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Up to 2.2: the address and nothing else. It stands for version 2 of the task service, which all of them have.
    Address,
    /// From 2.3 on: a `BootstrapResult`.
    Message,
    /// The same as JSON, as the protocol's definition has it.
    Json,
}

/// What containerd asks for, whatever form it came in.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    form: Form,
    address: String,
    ttrpc_address: String,
    socket_dir: PathBuf,
    debug: bool,
    options: Options,
}

/// The same as JSON: only what is used of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Json {
    #[serde(alias = "instance_id")]
    instance_id: String,
    namespace: String,
    #[serde(alias = "log_level")]
    log_level: serde_json::Value,
    #[serde(alias = "containerd_ttrpc_address")]
    containerd_ttrpc_address: String,
    #[serde(alias = "containerd_grpc_address")]
    containerd_grpc_address: String,
    extensions: Vec<JsonExtension>,
    #[serde(alias = "socket_dir")]
    socket_dir: Option<String>,
}

#[derive(Debug, Deserialize)]
struct JsonExtension {
    value: JsonOptions,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonOptions {
    #[serde(rename = "@type")]
    type_url: String,
    #[serde(default, alias = "shim_cgroup")]
    shim_cgroup: PathBuf,
}

/// A start that has been done, but for the answer.
#[must_use = "a server that is not told ends"]
#[derive(Debug)]
pub struct Started {
    /// What containerd is to read from standard output.
    pub answer: Vec<u8>,
    /// The server, where one was started.
    server: Option<UnixStream>,
}

impl Started {
    /// Where nothing is to be started.
    pub fn of(answer: Vec<u8>) -> Started {
        Started { answer, server: None }
    }

    /// Tells the server that containerd has been answered.
    pub fn answered(self) {
        if let Some(mut server) = self.server {
            // One that has been killed meanwhile is missed by containerd.
            let _ = server.write_all(ANSWERED);
        }
    }
}

/// Does `start`. `program` is this one, `bundle` absolute.
///
/// # Errors
/// Where the input is not understood, the bundle can't be read, or the server does not run. Nothing is left behind then.
pub fn start(program: &Path, args: &Args, env: &Env, bundle: &Path, input: &[u8]) -> Result<Started, ShimError> {
    let request = understand(input, args, env)?;
    let config = record::Config::read(bundle)?;
    let group = config.group().unwrap_or(&args.id);
    let path = socket::path(&request.socket_dir, &request.address, &args.namespace, group);
    let address = socket::address(&path);
    let place = match socket::look(&path)? {
        Found::Served => {
            write_address(bundle, &address)?;
            return answer(request.form, &address).map(Started::of);
        }
        Found::Free(place) => place,
    };
    // Before there is a socket: where all this is killed, `delete` finds it.
    let started = write_address(bundle, &address).and_then(|()| launch(program, &place, args, &request, bundle));
    let server = match started {
        Ok(server) => server,
        Err(err) => {
            // The first error is told. What is left are files that the next start replaces.
            let _ = place.clear();
            let _ = durable::remove_file(&bundle.join(ADDRESS));
            return Err(err);
        }
    };
    place.release()?;
    Ok(Started { answer: answer(request.form, &address)?, server: Some(server) })
}

/// Reads what containerd writes to standard input: nothing, or a message.
pub fn read_input(stdin: impl AsFd) -> Result<Vec<u8>, ShimError> {
    let mut input = Vec::new();
    if rustix::termios::isatty(&stdin) {
        return Ok(input);
    }
    let failed = |errno: rustix::io::Errno| ShimError::io("read", "standard input")(errno.into());
    let mut chunk = vec![0; 64 << 10];
    while readable(stdin.as_fd(), Instant::now() + SILENCE).map_err(failed)? {
        match rustix::io::read(&stdin, &mut chunk) {
            Ok(0) => break,
            Ok(n) => input.extend_from_slice(&chunk[..n]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(errno) => return Err(failed(errno)),
        }
        if input.len() > INPUT_MAX {
            return Err(ShimError::Invalid(format!("standard input: more than {INPUT_MAX} bytes")));
        }
    }
    Ok(input)
}

/// Whether there is something to read, or the end, before `deadline`.
fn readable(fd: impl AsFd, deadline: Instant) -> Result<bool, rustix::io::Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.map(|n| n > 0),
        }
    }
}

/// What containerd asks for: what it wrote, else its flags, else its environment.
///
/// `BootstrapParams` begins with two strings, and so does the `Any` of the options that containerd wrote before: only one
/// that names this container is the former.
fn understand(input: &[u8], args: &Args, env: &Env) -> Result<Request, ShimError> {
    let mut request = Request {
        form: Form::Address,
        address: args.address.clone(),
        ttrpc_address: String::new(),
        socket_dir: socket::DIR.into(),
        debug: args.debug,
        options: Options::default(),
    };
    let own = |id: &str, namespace: &str| id == args.id && namespace == args.namespace;
    let stranger = |id: &str, namespace: &str| {
        ShimError::Invalid(format!(
            "standard input is for {namespace}/{id}, the flags for {}/{}",
            args.namespace, args.id
        ))
    };
    let given = |text: String, other: &mut String| {
        if !text.is_empty() {
            *other = text;
        }
    };
    if input.first() == Some(&b'{') {
        let json: Json = serde_json::from_slice(input)
            .map_err(|err| ShimError::Invalid(format!("standard input begins as JSON: {err}")))?;
        if !own(&json.instance_id, &json.namespace) {
            return Err(stranger(&json.instance_id, &json.namespace));
        }
        request.form = Form::Json;
        request.debug |= json.log_level.as_i64().is_some_and(is_verbose)
            || json.log_level.as_str().is_some_and(|name| ["LOG_LEVEL_DEBUG", "LOG_LEVEL_TRACE"].contains(&name));
        given(json.containerd_ttrpc_address, &mut request.ttrpc_address);
        given(json.containerd_grpc_address, &mut request.address);
        request.socket_dir = json.socket_dir.filter(|dir| !dir.is_empty()).map_or(request.socket_dir, PathBuf::from);
        let ours = |value: &JsonOptions| is_options(&value.type_url);
        let options = json.extensions.into_iter().map(|extension| extension.value).find(ours);
        request.options.shim_cgroup =
            options.map(|options| options.shim_cgroup).filter(|path| !path.as_os_str().is_empty());
    } else {
        let params = BootstrapParams::parse_from_bytes(input).ok().filter(|_| !input.is_empty());
        match params {
            Some(params) if own(&params.instance_id, &params.namespace) => {
                request.form = Form::Message;
                request.debug |= is_verbose(params.log_level.value().into());
                given(params.containerd_ttrpc_address, &mut request.ttrpc_address);
                given(params.containerd_grpc_address, &mut request.address);
                let dir = params.socket_dir.filter(|dir| !dir.is_empty());
                request.socket_dir = dir.map_or(request.socket_dir, PathBuf::from);
                let mut all = params.extensions.iter().filter_map(|extension| extension.value.as_ref());
                request.options = Options::of(all.find(|any| is_options(&any.type_url)))?;
            }
            Some(params) if !params.containerd_ttrpc_address.is_empty() => {
                return Err(stranger(&params.instance_id, &params.namespace));
            }
            _ => {
                let any = Any::parse_from_bytes(input).map_err(|err| {
                    ShimError::Invalid(format!("standard input is no message of containerd's: {err}"))
                })?;
                request.options = Options::of(Some(&any))?;
            }
        }
    }
    if request.address.is_empty() {
        request.address = env.grpc_address.clone().unwrap_or_default();
    }
    if request.ttrpc_address.is_empty() {
        request.ttrpc_address = match env.ttrpc_address.clone().filter(|address| !address.is_empty()) {
            Some(address) => address,
            None if request.address.is_empty() => {
                return Err(ShimError::Invalid("where containerd listens: neither -address nor TTRPC_ADDRESS".into()));
            }
            None => format!("{}.ttrpc", request.address),
        };
    }
    Ok(request)
}

fn is_options(type_url: &str) -> bool {
    type_url.rsplit('/').next() == Some(OPTIONS)
}

fn is_verbose(level: i64) -> bool {
    level <= i64::from(LogLevel::LOG_LEVEL_DEBUG as i32)
}

/// The socket's path of the group that the bundle's container is in, as `start` would choose it, and the address that it
/// wrote, which tells of a directory that containerd chose.
pub fn socket_of(bundle: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(bundle.join(ADDRESS)).ok()?;
    let path = socket::of_address(text.trim());
    (path.is_absolute() && path.file_name().is_some_and(|name| name.len() == 64)).then(|| path.to_owned())
}

/// Binds the socket and starts the server on it; returns when it runs, with the socket that is its output.
fn launch(
    program: &Path,
    place: &Place,
    args: &Args,
    request: &Request,
    bundle: &Path,
) -> Result<UnixStream, ShimError> {
    let (ours, output) = UnixStream::pair().map_err(ShimError::io("socketpair", program))?;
    let listener = place.listen()?;
    let mut command = Command::new(program);
    command.args(["-namespace", &args.namespace, "-id", &args.id, "-address", &request.address]);
    command.arg("-socket").arg(place.path()).args(request.debug.then_some("-debug"));
    command.env("TTRPC_ADDRESS", &request.ttrpc_address).current_dir(bundle);
    command.stdin(OwnedFd::from(UnixListener::from(listener))).stdout(OwnedFd::from(output)).stderr(Stdio::null());
    let server = command.spawn().map_err(ShimError::io("run", program))?;
    // The command holds both sockets, which must be closed here: else a server that has died would seem to listen, and to
    // be about to speak.
    drop(command);
    let placed = confine(server.id(), &request.options).and_then(|()| wait_until_it_runs(&ours));
    match placed {
        Ok(()) => Ok(ours),
        Err(err) => {
            end(server);
            Err(err)
        }
    }
}

fn confine(pid: u32, options: &Options) -> Result<(), ShimError> {
    if let Some(group) = &options.shim_cgroup {
        confine::enter_cgroup(pid, group)?;
    }
    confine::adjust_oom_score(pid, std::os::unix::process::parent_id())
}

/// Reads what the server says of itself.
fn wait_until_it_runs(mut server: &UnixStream) -> Result<(), ShimError> {
    let deadline = Instant::now() + READY;
    let mut said = Vec::new();
    let failed = |err: std::io::Error| ShimError::io("read", "what the server says")(err);
    let mut chunk = [0; 4096];
    loop {
        if !readable(server, deadline).map_err(|errno| failed(errno.into()))? {
            return Err(ShimError::State(format!("the server did not run within {} s", READY.as_secs())));
        }
        match server.read(&mut chunk).map_err(failed)? {
            0 => break,
            n => said.extend_from_slice(&chunk[..n]),
        }
    }
    match String::from_utf8_lossy(&said).trim() {
        RUNNING => Ok(()),
        "" => Err(ShimError::State("the server ended without a word".into())),
        text => Err(ShimError::State(format!("the server did not start: {text}"))),
    }
}

/// Ends a server that must not stay.
fn end(mut server: Child) {
    // It has ended by itself already, or is ended now; there is nobody else to reap it.
    let _ = server.kill();
    let _ = server.wait();
}

fn write_address(bundle: &Path, address: &str) -> Result<(), ShimError> {
    let path = bundle.join(ADDRESS);
    durable::replace_unsynced(&path, address.as_bytes(), 0o600).map_err(ShimError::io("write", path))
}

fn answer(form: Form, address: &str) -> Result<Vec<u8>, ShimError> {
    match form {
        Form::Address => Ok(address.as_bytes().to_vec()),
        Form::Json => {
            let answer = serde_json::json!({"version": TASK_VERSION, "address": address, "protocol": "ttrpc"});
            Ok(answer.to_string().into_bytes())
        }
        Form::Message => {
            let result = BootstrapResult {
                version: TASK_VERSION,
                address: address.to_owned(),
                protocol: "ttrpc".into(),
                ..BootstrapResult::default()
            };
            result.write_to_bytes().map_err(|err| ShimError::Invalid(format!("the answer: {err}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::args::Action;
    use containerd_shim_protos::bootstrap_api::Extension;
    use containerd_shim_protos::shim::oci;

    fn args() -> Args {
        Args {
            action: Action::Start,
            namespace: "default".into(),
            id: "c1".into(),
            address: "/run/c.sock".into(),
            publish_binary: String::new(),
            bundle: None,
            socket: None,
            debug: false,
        }
    }

    fn env() -> Env {
        Env { ttrpc_address: Some("/run/c.sock.ttrpc".into()), grpc_address: None }
    }

    fn any(type_url: &str) -> Any {
        let options = oci::Options { shim_cgroup: "/shims".into(), ..oci::Options::default() };
        Any { type_url: type_url.into(), value: options.write_to_bytes().unwrap(), ..Any::default() }
    }

    fn params(id: &str) -> BootstrapParams {
        BootstrapParams {
            instance_id: id.into(),
            namespace: "default".into(),
            log_level: LogLevel::LOG_LEVEL_TRACE.into(),
            containerd_ttrpc_address: "/other.ttrpc".into(),
            containerd_grpc_address: "/other".into(),
            socket_dir: Some("/run/s".into()),
            extensions: vec![Extension { value: Some(any(OPTIONS)).into(), ..Extension::default() }],
            ..BootstrapParams::default()
        }
    }

    #[test]
    fn what_containerd_before_2_3_writes() {
        for (input, cgroup) in [
            (vec![], None),
            (any(OPTIONS).write_to_bytes().unwrap(), Some("/shims")),
            (any("type.googleapis.com/containerd.runc.v1.Options").write_to_bytes().unwrap(), Some("/shims")),
            (any("x.v1.Options").write_to_bytes().unwrap(), None),
        ] {
            let request = understand(&input, &args(), &env()).unwrap();
            assert_eq!((request.form, request.options.shim_cgroup.as_deref()), (Form::Address, cgroup.map(Path::new)));
            assert_eq!(
                (request.address.as_str(), request.ttrpc_address.as_str()),
                ("/run/c.sock", "/run/c.sock.ttrpc")
            );
            assert_eq!((request.socket_dir.as_path(), request.debug), (Path::new(socket::DIR), false));
        }
    }

    #[test]
    fn what_containerd_from_2_3_on_writes() {
        let json =
            br#"{"instanceId": "c1", "namespace": "default", "logLevel": "LOG_LEVEL_DEBUG", "socketDir": "/run/s",
            "containerdTtrpcAddress": "/other.ttrpc", "containerdGrpcAddress": "/other", "unknown": [1],
            "extensions": [{"value": {"@type": "x/other"}}, {"value": {"@type": "containerd.runc.v1.Options",
                "shimCgroup": "/shims", "binaryName": "x"}}]}"#;
        let message = params("c1").write_to_bytes().unwrap();
        for (input, form) in [(&message[..], Form::Message), (&json[..], Form::Json)] {
            let request = understand(input, &args(), &env()).unwrap();
            assert_eq!((request.form, request.options.shim_cgroup.as_deref()), (form, Some(Path::new("/shims"))));
            assert_eq!((request.address.as_str(), request.ttrpc_address.as_str()), ("/other", "/other.ttrpc"));
            assert_eq!((request.socket_dir.as_path(), request.debug), (Path::new("/run/s"), true));
        }
    }

    #[test]
    fn what_is_not_for_this_container_is_refused() {
        for input in [
            params("c2").write_to_bytes().unwrap(),
            br#"{"instanceId": "c2", "namespace": "default"}"#.to_vec(),
            b"{".to_vec(),
            vec![0xff; 9],
        ] {
            assert!(matches!(understand(&input, &args(), &env()), Err(ShimError::Invalid(_))), "{input:?}");
        }
    }

    #[test]
    fn where_events_go_without_a_word_of_it() {
        let nothing = Env::default();
        assert_eq!(understand(&[], &args(), &nothing).unwrap().ttrpc_address, "/run/c.sock.ttrpc");
        let unknown = Args { address: String::new(), ..args() };
        assert!(understand(&[], &unknown, &nothing).is_err());
    }

    #[test]
    fn groups() {
        let dir = tempfile::tempdir().unwrap();
        for (config, want) in [
            ("{}", None),
            (r#"{"annotations": null}"#, None),
            (r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod"}}"#, Some("pod")),
            (
                r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "pod", "io.containerd.runc.v2.group": "g"}}"#,
                Some("g"),
            ),
            (r#"{"annotations": {"io.kubernetes.cri.sandbox-id": "", "io.containerd.runc.v2.group": ""}}"#, None),
        ] {
            durable::replace_unsynced(&dir.path().join("config.json"), config.as_bytes(), 0o600).unwrap();
            assert_eq!(record::Config::read(dir.path()).unwrap().group(), want, "{config}");
        }
        let missing = record::Config::read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.ends_with("none/config.json: no such file or directory"), "{missing}");
        let sandbox = dir.path().join("io.containerd.sandbox.controller.v1.shim/k8s.io/pod");
        let refused = record::Config::read(&sandbox).unwrap_err();
        assert!(matches!(refused, ShimError::Unimplemented(_)), "{refused}");
    }

    #[test]
    fn answers() {
        assert_eq!(answer(Form::Address, "unix:///s").unwrap(), b"unix:///s");
        let json: serde_json::Value = serde_json::from_slice(&answer(Form::Json, "unix:///s").unwrap()).unwrap();
        assert_eq!(json, serde_json::json!({"version": 2, "address": "unix:///s", "protocol": "ttrpc"}));
        let message = BootstrapResult::parse_from_bytes(&answer(Form::Message, "unix:///s").unwrap()).unwrap();
        assert_eq!((message.version, message.address.as_str(), message.protocol.as_str()), (2, "unix:///s", "ttrpc"));
    }

    #[test]
    fn input_is_read_to_its_end_and_bounded() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let writing = std::thread::spawn(move || {
            let _ = std::io::Write::write_all(&mut writer, &vec![7; INPUT_MAX + 1]);
        });
        assert!(matches!(read_input(&reader), Err(ShimError::Invalid(_))));
        drop(reader);
        writing.join().unwrap();
        assert_eq!(read_input(std::fs::File::open("/dev/null").unwrap()).unwrap(), b"");
    }

    /// A server that notes that it was started, answers, and stays until it is told to go.
    const SERVER: &str = "#!/bin/sh\necho $$ >>started\nprintf running\nexec sleep 60 >/dev/null\n";

    struct Bundle(tempfile::TempDir);

    impl Bundle {
        fn with(server: &str) -> (Bundle, PathBuf) {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("server");
            durable::replace_unsynced(&program, server.as_bytes(), 0o755).unwrap();
            durable::replace_unsynced(&dir.path().join("config.json"), b"{}", 0o600).unwrap();
            (Bundle(dir), program)
        }

        fn start(&self, program: &Path) -> Result<String, ShimError> {
            let params = BootstrapParams {
                socket_dir: Some(self.0.path().join("s").display().to_string()),
                extensions: Vec::new(),
                ..params("c1")
            };
            let started = start(program, &args(), &env(), self.0.path(), &params.write_to_bytes().unwrap())?;
            let address = BootstrapResult::parse_from_bytes(&started.answer).unwrap().address;
            started.answered();
            Ok(address)
        }

        fn servers(&self) -> Vec<i32> {
            let text = std::fs::read_to_string(self.0.path().join("started")).unwrap_or_default();
            text.lines().map(|line| line.parse().unwrap()).collect()
        }

        fn end_servers(&self) {
            for pid in self.servers() {
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
            }
        }
    }

    /// Of many that start the server of a group at once, one does, and all answer the same; a server that has died is
    /// replaced, again by one.
    #[test]
    fn one_server_for_all_who_start_at_once() {
        let (bundle, program) = Bundle::with(SERVER);
        for round in 1..=2 {
            let answers: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..16).map(|_| scope.spawn(|| bundle.start(&program).unwrap())).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
            assert_eq!(bundle.servers().len(), 1, "round {round}");
            let sockets = std::fs::read_dir(bundle.0.path().join("s")).unwrap().count();
            assert_eq!(sockets, 1, "no lock is left");
            assert_eq!(socket_of(bundle.0.path()).unwrap(), socket::of_address(&answers[0]));
            bundle.end_servers();
            std::fs::remove_file(bundle.0.path().join("started")).unwrap();
        }
    }

    /// A server that does not come up is told with its reason, and nothing stays of it.
    #[test]
    fn a_server_that_does_not_run() {
        for (server, want) in [
            ("#!/bin/sh\nprintf 'prctl x: no'\n", "the server did not start: prctl x: no"),
            ("#!/bin/sh\n", "the server ended without a word"),
            ("#!/no/such/program\n", "no such file or directory"),
        ] {
            let (bundle, program) = Bundle::with(server);
            let err = bundle.start(&program).unwrap_err().to_string();
            assert!(err.ends_with(want), "{err}");
            assert_eq!(std::fs::read_dir(bundle.0.path().join("s")).unwrap().count(), 0);
            assert!(!bundle.0.path().join(ADDRESS).exists());
        }
    }
}
