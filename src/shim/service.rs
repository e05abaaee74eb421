//! containerd's Task service, versions 2 and 3: each request is handed to its container.
//!
//! A request that changes something runs in a task of its own: when containerd's patience ends, its answer is dropped, and
//! the work is still done as a whole.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use containerd_shim_protos::api;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::protobuf::{EnumOrUnknown, Message, MessageField};
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::shim_async::Task;
use containerd_shim_protos::ttrpc;
use containerd_shim_protos::ttrpc::r#async::TtrpcContext;
use containerd_shim_protos::types::task::ProcessInfo;
use tokio::sync::watch;

use super::ShimError;
use super::container::{Container, Shared};
use super::daemon::Host;
use super::reaper::Exit;

/// The containers of one shim. Clones are the same.
#[derive(Debug, Clone)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Shared,
    containers: Mutex<HashMap<String, Entry>>,
    ended: watch::Sender<bool>,
    /// No container is made any more.
    closed: AtomicBool,
}

#[derive(Debug)]
enum Entry {
    /// Its id is taken.
    BeingMade {
        /// It was deleted meanwhile: who asked for it has given up.
        unwanted: bool,
    },
    There(Arc<Container>),
}

impl Service {
    /// A service without containers.
    pub fn new(shared: Shared) -> Service {
        Service(Arc::new(Inner {
            shared,
            containers: Mutex::default(),
            ended: watch::Sender::new(false),
            closed: AtomicBool::new(false),
        }))
    }

    async fn asked_to_end(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        // Each change is one call.
        self.0.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that are still anybody's.
    fn lock_live(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        let mut containers = self.lock();
        containers.retain(|id, entry| {
            let abandoned = matches!(entry, Entry::There(container) if container.abandoned());
            if abandoned {
                tracing::warn!(container = id, "containerd has deleted it without this shim: forgotten");
            }
            !abandoned
        });
        containers
    }

    fn container(&self, id: &str) -> Result<Arc<Container>, ShimError> {
        match self.lock().get(id) {
            Some(Entry::There(container)) => Ok(container.clone()),
            _ => Err(ShimError::NotFound(format!("container {id}"))),
        }
    }

    fn reserve<'a>(&'a self, id: &'a str) -> Result<Reserved<'a>, ShimError> {
        let mut containers = self.lock_live();
        if self.0.closed.load(Ordering::Relaxed) {
            return Err(ShimError::State("the shim is ending".into()));
        }
        if containers.contains_key(id) {
            return Err(ShimError::AlreadyExists(id.to_owned()));
        }
        containers.insert(id.to_owned(), Entry::BeingMade { unwanted: false });
        Ok(Reserved { service: self, id })
    }

    async fn make(&self, request: &api::CreateTaskRequest) -> Result<u32, ShimError> {
        let reserved = self.reserve(&request.id);
        // Not before: until then it is one that is to come.
        self.0.shared.newcomers.came(&request.id);
        let reserved = reserved?;
        let container = Container::create(&self.0.shared, request).await?;
        if reserved.take(container.clone()) {
            // Who asked for it is gone: only the log tells.
            container.delete().await.inspect_err(|err| tracing::error!(container = request.id, %err, "it stays"))?;
            self.forget_unwanted(&request.id);
            return Err(ShimError::State(format!("container {} was deleted while it was made", request.id)));
        }
        Ok(container.init.now().pid)
    }

    /// Takes away one that nobody wanted any more. With the last one this ends: containerd has asked for that already, when
    /// there still was one, or was itself ended before it could.
    fn forget_unwanted(&self, id: &str) {
        let mut containers = self.lock_live();
        containers.remove(id);
        if containers.is_empty() {
            self.0.ended.send_replace(true);
        }
    }

    /// Notes that a container that is being made is not wanted any more. containerd deletes it when its client goes away
    /// meanwhile, and does not ask again.
    fn give_up(&self, id: &str) {
        if let Some(Entry::BeingMade { unwanted }) = self.lock().get_mut(id) {
            tracing::warn!(container = id, "deleted while it was made");
            *unwanted = true;
        }
    }
}

/// How many processes of these containers have not ended.
fn running(containers: &HashMap<String, Entry>) -> usize {
    let running = |entry: &Entry| match entry {
        Entry::BeingMade { .. } => 1,
        Entry::There(container) => container.running(),
    };
    containers.values().map(running).sum()
}

/// An id that is taken by [`Entry::BeingMade`], until it is dropped or there is a container.
struct Reserved<'a> {
    service: &'a Service,
    id: &'a str,
}

impl Reserved<'_> {
    /// It is the container's from now on. Whether that is not wanted any more.
    fn take(self, container: Arc<Container>) -> bool {
        let before = self.service.lock().insert(self.id.to_owned(), Entry::There(container));
        matches!(before, Some(Entry::BeingMade { unwanted: true }))
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut containers = self.service.lock();
        match containers.get(self.id) {
            Some(Entry::BeingMade { unwanted: false }) => drop(containers.remove(self.id)),
            Some(Entry::BeingMade { unwanted: true }) => {
                drop(containers);
                self.service.forget_unwanted(self.id);
            }
            _ => {}
        }
    }
}

/// Runs `work` to its end, whatever becomes of the request.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, ShimError>> + Send + 'static,
) -> Result<T, ShimError> {
    ShimError::of_task(tokio::spawn(work).await)
}

fn empty(done: Result<(), ShimError>) -> ttrpc::Result<api::Empty> {
    done?;
    Ok(api::Empty::default())
}

fn timestamp(exit: Exit) -> MessageField<Timestamp> {
    MessageField::some(Timestamp::from(exit.at))
}

#[async_trait]
impl Task for Service {
    async fn state(&self, _: &TtrpcContext, request: api::StateRequest) -> ttrpc::Result<api::StateResponse> {
        let container = self.container(&request.id)?;
        let bundle = container.bundle().display().to_string();
        let paused = container.paused();
        let state = container.with_process(&request.exec_id, |process| {
            let now = process.now();
            api::StateResponse {
                id: request.id.clone(),
                bundle,
                pid: now.pid,
                status: EnumOrUnknown::new(process.status(paused)),
                stdin: process.stdio.stdin.clone(),
                stdout: process.stdio.stdout.clone(),
                stderr: process.stdio.stderr.clone(),
                terminal: process.stdio.terminal,
                exit_status: now.exit.map_or(0, |exit| exit.code),
                exited_at: now.exit.map_or_else(MessageField::none, timestamp),
                exec_id: request.exec_id.clone(),
                ..Default::default()
            }
        })?;
        Ok(state)
    }

    async fn create(
        &self,
        _: &TtrpcContext,
        request: api::CreateTaskRequest,
    ) -> ttrpc::Result<api::CreateTaskResponse> {
        let this = self.clone();
        let pid = whole(async move { this.make(&request).await }).await?;
        Ok(api::CreateTaskResponse { pid, ..Default::default() })
    }

    async fn start(&self, _: &TtrpcContext, request: api::StartRequest) -> ttrpc::Result<api::StartResponse> {
        let container = self.container(&request.id)?;
        let pid = whole(async move {
            if request.exec_id.is_empty() {
                return container.start().await;
            }
            let exec = container.exec(&request.exec_id)?;
            container.start_exec(&exec).await
        });
        Ok(api::StartResponse { pid: pid.await?, ..Default::default() })
    }

    async fn delete(&self, _: &TtrpcContext, request: api::DeleteRequest) -> ttrpc::Result<api::DeleteResponse> {
        if request.exec_id.is_empty() {
            self.give_up(&request.id);
        }
        let container = self.container(&request.id)?;
        let this = self.clone();
        let (pid, exit) = whole(async move {
            if !request.exec_id.is_empty() {
                return container.delete_exec(&request.exec_id).await;
            }
            let deleted = container.delete().await?;
            this.lock().remove(&request.id);
            Ok(deleted)
        })
        .await?;
        Ok(api::DeleteResponse { pid, exit_status: exit.code, exited_at: timestamp(exit), ..Default::default() })
    }

    async fn pids(&self, _: &TtrpcContext, request: api::PidsRequest) -> ttrpc::Result<api::PidsResponse> {
        let container = self.container(&request.id)?;
        let mut processes = Vec::new();
        for process in whole(async move { container.pids().await }).await? {
            let mut info = ProcessInfo { pid: process.pid, ..Default::default() };
            if let Some(exec_id) = process.exec {
                let details = ProcessDetails { exec_id, ..Default::default() };
                let value = details.write_to_bytes().map_err(|err| ShimError::Invalid(err.to_string()))?;
                let type_url = "containerd.runc.v1.ProcessDetails".to_owned();
                info.info = MessageField::some(Any { type_url, value, ..Default::default() });
            }
            processes.push(info);
        }
        Ok(api::PidsResponse { processes, ..Default::default() })
    }

    async fn pause(&self, _: &TtrpcContext, request: api::PauseRequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        empty(whole(async move { container.pause().await }).await)
    }

    async fn resume(&self, _: &TtrpcContext, request: api::ResumeRequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        empty(whole(async move { container.resume().await }).await)
    }

    async fn checkpoint(&self, _: &TtrpcContext, _: api::CheckpointTaskRequest) -> ttrpc::Result<api::Empty> {
        Err(ShimError::Unimplemented("checkpoint: the runtime does not drive CRIU".into()).into())
    }

    async fn kill(&self, _: &TtrpcContext, request: api::KillRequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        empty(whole(async move { container.kill(&request.exec_id, request.signal, request.all).await }).await)
    }

    async fn exec(&self, _: &TtrpcContext, request: api::ExecProcessRequest) -> ttrpc::Result<api::Empty> {
        empty(self.container(&request.id)?.add_exec(&request))
    }

    async fn resize_pty(&self, _: &TtrpcContext, request: api::ResizePtyRequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        let [width, height] = [request.width, request.height].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
        empty(container.with_process(&request.exec_id, |process| process.resize(width, height)).flatten())
    }

    async fn close_io(&self, _: &TtrpcContext, request: api::CloseIORequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        container.with_process(&request.exec_id, |process| {
            if request.stdin {
                process.close_stdin();
            }
        })?;
        Ok(api::Empty::default())
    }

    async fn update(&self, _: &TtrpcContext, request: api::UpdateTaskRequest) -> ttrpc::Result<api::Empty> {
        let container = self.container(&request.id)?;
        let Some(resources) = request.resources.into_option() else {
            return Err(ShimError::Invalid("update without resources".into()).into());
        };
        empty(whole(async move { container.update(&resources.value).await }).await)
    }

    async fn wait(&self, _: &TtrpcContext, request: api::WaitRequest) -> ttrpc::Result<api::WaitResponse> {
        let exit = self.container(&request.id)?.wait(&request.exec_id).await?;
        Ok(api::WaitResponse { exit_status: exit.code, exited_at: timestamp(exit), ..Default::default() })
    }

    async fn stats(&self, _: &TtrpcContext, request: api::StatsRequest) -> ttrpc::Result<api::StatsResponse> {
        let stats = self.container(&request.id)?.stats().await?;
        Ok(api::StatsResponse { stats: MessageField::some(stats), ..Default::default() })
    }

    async fn connect(&self, _: &TtrpcContext, request: api::ConnectRequest) -> ttrpc::Result<api::ConnectResponse> {
        let task_pid = self.container(&request.id).map_or(0, |container| container.init.now().pid);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(api::ConnectResponse { shim_pid: std::process::id(), task_pid, version, ..Default::default() })
    }

    async fn shutdown(&self, _: &TtrpcContext, request: api::ShutdownRequest) -> ttrpc::Result<api::Empty> {
        self.0.shared.newcomers.done(&request.id);
        let containers = self.lock_live();
        // The other containers of the pod go on.
        if containers.is_empty() {
            self.0.ended.send_replace(true);
        }
        drop(containers);
        Ok(api::Empty::default())
    }
}

impl Host for Service {
    fn ended(&self) -> impl Future<Output = ()> + Send {
        self.asked_to_end()
    }

    fn containers(&self) -> usize {
        let before = self.lock().len();
        let live = self.lock_live().len();
        if live == 0 && before > 0 {
            // The last was deleted without this shim, which nobody asks to end then, though containerd may stay connected.
            self.0.ended.send_replace(true);
        }
        live
    }

    fn running(&self) -> usize {
        running(&self.lock())
    }

    fn close(&self) -> bool {
        // While it is locked nothing begins to be made.
        let containers = self.lock();
        let idle = running(&containers) == 0;
        if idle {
            self.0.closed.store(true, Ordering::Relaxed);
        }
        idle
    }
}
