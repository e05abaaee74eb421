//! One container: what containerd asks for, in the order in which it may happen.
//!
//! Three rules hold for whatever interleaving of requests and ends. Events of a process come in the order of its life. The
//! first process's end is told last: once it has ended no exec begins, and those that run are waited for. And what is
//! told has happened: an exec's end comes after its result was written, the container's after its code was recorded.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use containerd_shim_protos::api::{CreateTaskRequest, ExecProcessRequest, Mount};
use containerd_shim_protos::events::task as event;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::topics;
use containerd_shim_protos::types::task::Status;
use rustix::process::Signal;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::ShimError;
use super::cgroup::CgroupPaths;
use super::events::Events;
use super::io::{Identity, Owner, Stdio, Streams};
use super::kills::Kills;
use super::metrics;
use super::mounts;
use super::moves::Moves;
use super::newcomers::Newcomers;
use super::oom;
use super::options::Options;
use super::process::{Phase, Process, with_field};
use super::reaper::{Exit, ExitReceiver, Nursery, Reaper};
use super::record;
use super::runtime::{Memory, Runtime};
use super::signals::Signals;
use super::thread::blocking;
use crate::report::{self, ExecResult};
use crate::terms::EndKind;

/// How long execs may take to end, with their results, once the first process has: then their supervisors are killed. A
/// result takes milliseconds, seconds for a layer of a million files.
const LAST_WORDS: Duration = Duration::from_secs(60);
/// How long output may take to be delivered when a process is deleted.
const DRAIN: Duration = Duration::from_secs(10);
/// How long a first process that was killed may take to be reaped.
const DEATH: Duration = Duration::from_secs(10);
/// How long is looked for the supervisor of an exec whose starter was killed.
const LOST: Duration = Duration::from_secs(2);
/// How often is looked for an exec that is being started, at first and at last.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_LAST: Duration = Duration::from_millis(500);
/// A result of so many bytes is read at once.
const SHORT: u64 = 64 << 10;
/// SIGKILL.
const KILL: u32 = Signal::KILL.as_raw().unsigned_abs();
/// Where a container's files of the shim are, below its bundle.
const DIR: &str = "shim";

/// What all containers of a shim share.
#[derive(Debug, Clone)]
pub struct Shared {
    /// containerd's namespace.
    pub namespace: String,
    /// Where events go.
    pub events: Events,
    /// Who reaps.
    pub reaper: Reaper,
    /// What is going to be moved between cgroups.
    pub moves: Moves,
    /// Which containers are to come.
    pub newcomers: Newcomers,
    /// The runtime is to log everything.
    pub debug: bool,
}

/// A container.
#[derive(Debug)]
pub struct Container {
    id: String,
    bundle: PathBuf,
    /// The bundle's directory itself: by its path there may be another one by now.
    place: OwnedFd,
    shared: Shared,
    runtime: Runtime,
    owner: Owner,
    /// The first process.
    pub init: Process,
    execs: Mutex<HashMap<String, Arc<Process>>>,
    state: Mutex<State>,
    /// An exec has ended.
    exec_ended: Notify,
    /// Those to the first process.
    signals: Signals,
    /// `start` is under way.
    starting: tokio::sync::Mutex<()>,
    /// `pause`, `resume`, `delete` are under way.
    steps: tokio::sync::Mutex<()>,
    /// Whether the kernel ends the container's processes with the first one.
    own_pid_namespace: bool,
    mounted: bool,
    cgroups: OnceLock<CgroupPaths>,
    kills: OnceLock<Kills>,
}

#[derive(Debug)]
struct State {
    paused: Status,
    /// The first process has ended: no exec begins.
    closed: bool,
    /// The first process's end is told, or about to be: no exec is added.
    told: bool,
    /// Execs that are being started or run.
    busy: usize,
    /// It has been told that the container is deleted.
    deleted: bool,
    /// The first process was killed.
    doomed: bool,
}

impl Container {
    /// Makes a container as the request says: its root file system is mounted, its first process waits for `start`.
    ///
    /// # Errors
    /// What the runtime says, with nothing left behind.
    pub async fn create(shared: &Shared, request: &CreateTaskRequest) -> Result<Arc<Container>, ShimError> {
        // The runtime is going to move the container's first process.
        shared.moves.expect();
        let bundle = PathBuf::from(&request.bundle);
        if !request.checkpoint.is_empty() {
            return Err(ShimError::Unimplemented("restore from a checkpoint".into()));
        }
        let options = Options::of(request.options.as_ref())?;
        let place = record::open(&bundle)?;
        let config = record::Config::read(&bundle)?;
        let saved = options.saved(&shared.namespace, config.cgroups_path());
        saved.save(&bundle)?;
        record::forget_deleted(&bundle)?;
        let rootfs = bundle.join("rootfs");
        let mounted = !request.rootfs.is_empty();
        if mounted {
            mount(request.rootfs.clone(), rootfs.clone()).await?;
        }
        let container = Container {
            id: request.id.clone(),
            runtime: Runtime::new(saved, &request.id, shared.debug, shared.reaper.clone()),
            bundle,
            place,
            shared: shared.clone(),
            owner: Owner { uid: options.io_uid, gid: options.io_gid },
            init: Process::new("", stdio(&request.stdin, &request.stdout, &request.stderr, request.terminal)),
            execs: Mutex::default(),
            state: Mutex::new(State {
                paused: Status::RUNNING,
                closed: false,
                told: false,
                busy: 0,
                deleted: false,
                doomed: false,
            }),
            exec_ended: Notify::new(),
            signals: Signals::default(),
            starting: tokio::sync::Mutex::default(),
            steps: tokio::sync::Mutex::default(),
            own_pid_namespace: config.has_own_pid_namespace(),
            mounted,
            cgroups: OnceLock::new(),
            kills: OnceLock::new(),
        };
        match container.make(&options).await {
            Ok((pid, end)) => {
                let container = Arc::new(container);
                container.tell(
                    topics::TASK_CREATE_EVENT_TOPIC,
                    &event::TaskCreate {
                        container_id: request.id.clone(),
                        bundle: request.bundle.clone(),
                        rootfs: request.rootfs.clone(),
                        io: Some(event::TaskIO {
                            stdin: request.stdin.clone(),
                            stdout: request.stdout.clone(),
                            stderr: request.stderr.clone(),
                            terminal: request.terminal,
                            ..Default::default()
                        })
                        .into(),
                        pid,
                        ..Default::default()
                    },
                );
                container.watch_memory();
                tokio::spawn(container.clone().until_end(end));
                Ok(container)
            }
            Err(err) => {
                if mounted && let Err(left) = unmount(rootfs).await {
                    tracing::error!(container = request.id, err = %left, "a root file system stays mounted");
                }
                Err(err)
            }
        }
    }

    /// Runs the runtime's `create`.
    async fn make(&self, options: &Options) -> Result<(u32, ExitReceiver), ShimError> {
        let dir = self.bundle.join(DIR);
        crate::durable::make_dir(&dir, 0o700).or_else(record::there).map_err(ShimError::io("mkdir", &dir))?;
        let mut streams = self.open(&self.init).await?;
        let nursery = self.shared.reaper.nursery();
        let pid_file = self.bundle.join("init.pid");
        let created = self.runtime.create(&self.bundle, &pid_file, options, streams.child()?).await;
        if let Err(err) = created {
            if matches!(err, ShimError::Silent { .. }) {
                // Killed half-way: what it has made is nobody's. The first error is the one to tell.
                let _ = self.runtime.delete().await;
            }
            return Err(err);
        }
        match self.born(&self.init, &pid_file, streams, &nursery).await {
            Ok(born) => Ok(born),
            Err(err) => {
                // The first error is the one to tell.
                if let Err(left) = self.runtime.delete().await {
                    tracing::error!(container = self.id, err = %left, "a container that was given up could not be deleted");
                }
                Err(err)
            }
        }
    }

    /// What the runtime has started is known from now on: its pid, its end to come, and its streams, which are copied.
    async fn born(
        &self,
        process: &Process,
        pid_file: &Path,
        mut streams: Streams,
        nursery: &Nursery,
    ) -> Result<(u32, ExitReceiver), ShimError> {
        let pid = record::read_pid(pid_file)?;
        streams.started().await?;
        process.born(pid, streams);
        Ok((pid, nursery.adopt(pid)))
    }

    async fn open(&self, process: &Process) -> Result<Streams, ShimError> {
        // As containerd's own shim does it: an exec's logger is told the exec's id.
        let id = if process.id.is_empty() { &self.id } else { &process.id };
        let identity = Identity { namespace: &self.shared.namespace, id };
        Streams::open(&process.stdio, self.owner, identity, &self.shared.reaper).await
    }

    /// Starts the first process.
    pub async fn start(&self) -> Result<u32, ShimError> {
        let _starting = self.starting.lock().await;
        let now = self.init.now();
        if self.lock().closed || now.phase == Phase::Stopped {
            return Err(ShimError::State("cannot start a container that has stopped".into()));
        }
        if !self.init.advance(Phase::Created, Phase::Starting) {
            return Err(ShimError::State("cannot start an already running container".into()));
        }
        if let Err(err) = self.runtime.start().await {
            self.init.advance(Phase::Starting, Phase::Created);
            return Err(err);
        }
        // Where it has ended, and this took too long to be waited for, its end has been told.
        if self.init.advance(Phase::Starting, Phase::Running) {
            let (container_id, pid) = (self.id.clone(), now.pid);
            self.tell(topics::TASK_START_EVENT_TOPIC, &event::TaskStart { container_id, pid, ..Default::default() });
        }
        Ok(now.pid)
    }

    /// Waits for the first process's end, then for all else that has to be told before.
    async fn until_end(self: Arc<Self>, end: ExitReceiver) {
        let Ok(exit) = end.await else { return };
        // Its start is told first, if that comes at all: a runtime that hangs must not keep the end from being told.
        if timeout(LAST_WORDS, self.starting.lock()).await.is_err() {
            self.runtime.give_up_starts();
        }
        {
            let mut state = self.lock();
            state.closed = true;
            state.paused = Status::RUNNING;
        }
        if !self.own_pid_namespace {
            let runtime = self.runtime.clone();
            // Nothing to kill is no failure. In a task of its own: it is done as a whole, however long it takes.
            let kill = async move { drop(runtime.kill(KILL, true).await) };
            if timeout(LAST_WORDS, tokio::spawn(kill)).await.is_err() {
                tracing::error!(container = self.id, "the runtime does not come back from killing what is left");
            }
        }
        self.until_idle().await;
        if !self.signals.sent(DEATH).await {
            tracing::warn!(container = self.id, "the runtime does not come back from sending a signal");
        }
        self.look_at_memory(None).await;
        let pid = self.init.now().pid;
        if let Err(err) = record::write_exit(&self.bundle, pid, exit) {
            tracing::error!(container = self.id, %err, "the exit code could not be recorded");
        }
        {
            // While no exec is being added: what is told of it comes before.
            let _execs = self.execs();
            self.lock().told = true;
        }
        self.tell_end(&self.id, pid, exit);
        self.init.ended(exit);
    }

    /// Begins to tell when a process of the container is killed for want of memory.
    fn watch_memory(&self) {
        // Now the pid is sure to be the first process's.
        let found = CgroupPaths::of(self.init.now().pid).map(|found| self.cgroups.get_or_init(|| found));
        match found.and_then(oom::Watch::new) {
            Ok(watch) => {
                // Only this sets it.
                let _ = self.kills.set(Kills::tell(self.id.clone(), self.shared.events.clone(), watch));
            }
            Err(err) => tracing::warn!(container = self.id, %err, "whether memory runs out can't be told"),
        }
    }

    /// Has a kill for want of memory told that was not noticed yet; `known` is when an exec began that is known to have been
    /// killed so. To be called before an end is told.
    async fn look_at_memory(&self, known: Option<Instant>) {
        if let Some(kills) = self.kills.get() {
            kills.look(known).await;
        }
    }

    /// What it uses: the metrics of the host's version of cgroups.
    pub async fn stats(&self) -> Result<Any, ShimError> {
        let unknown = || ShimError::NotFound(format!("cgroups of container {}", self.id));
        let cgroups = self.cgroups.get().ok_or_else(unknown)?.clone();
        blocking(move || metrics::collect(&cgroups)).await
    }

    /// Waits until no exec runs; those that do not end are ended.
    async fn until_idle(&self) {
        let idle = async {
            loop {
                let ended = self.exec_ended.notified();
                if self.lock().busy == 0 {
                    return;
                }
                ended.await;
            }
        };
        tokio::pin!(idle);
        if timeout(LAST_WORDS, &mut idle).await.is_ok() {
            return;
        }
        self.kill_supervisors();
        self.runtime.give_up_starts();
        if timeout(DEATH, idle).await.is_err() {
            tracing::error!(container = self.id, "an exec cannot be ended");
        }
    }

    fn kill_supervisors(&self) {
        let execs: Vec<_> = self.execs().values().cloned().collect();
        for exec in execs {
            let now = exec.now();
            if now.phase == Phase::Running {
                tracing::error!(container = self.id, exec = exec.id, "an exec did not end with its container: killed");
                self.shared.reaper.kill(now.pid);
            }
        }
    }

    /// Sees to it that a first process that was killed ends. It can't before all in its pid namespace are reaped, and an
    /// exec's command is reaped by its supervisor, which may hang.
    async fn until_dead(self: Arc<Self>) {
        if timeout(LAST_WORDS, self.init.wait()).await.is_err() {
            self.kill_supervisors();
        }
    }

    /// Adds an exec, which is not started yet. It may be added for as long as the first process's end has not been told, and
    /// is not started once that process has ended: until then containerd is told that the container runs.
    pub fn add_exec(&self, request: &ExecProcessRequest) -> Result<(), ShimError> {
        let id = record::check_exec_id(&request.exec_id)?;
        // Clients leave the word out of the process.
        let spec = request.spec.as_ref().map_or(&[][..], |any| &any.value);
        let spec = with_field(spec, "terminal", request.terminal.into());
        let mut execs = self.execs();
        {
            let state = self.lock();
            if state.told {
                return Err(ShimError::State("cannot exec in a stopped state".into()));
            }
            if state.paused != Status::RUNNING {
                return Err(ShimError::State("cannot exec in a paused state".into()));
            }
        }
        let stdio = stdio(&request.stdin, &request.stdout, &request.stderr, request.terminal);
        let exec = Process::new(id, stdio).with_spec(spec);
        if execs.contains_key(id) {
            return Err(ShimError::AlreadyExists(id.to_owned()));
        }
        execs.insert(id.to_owned(), Arc::new(exec));
        // While the map is locked, so that its start and the first process's end are told later.
        let (container_id, exec_id) = (self.id.clone(), id.to_owned());
        let added = event::TaskExecAdded { container_id, exec_id, ..Default::default() };
        self.tell(topics::TASK_EXEC_ADDED_EVENT_TOPIC, &added);
        Ok(())
    }

    /// Starts an exec; the pid is its supervisor's.
    pub async fn start_exec(self: &Arc<Self>, exec: &Arc<Process>) -> Result<u32, ShimError> {
        let busy = self.admit(exec)?;
        let begun = Instant::now();
        let nursery = self.shared.reaper.nursery();
        let (pid, end) = self.run_exec(exec, &nursery).await?;
        exec.advance(Phase::Starting, Phase::Running);
        let (container_id, exec_id) = (self.id.clone(), exec.id.clone());
        let started = event::TaskExecStarted { container_id, exec_id, pid, ..Default::default() };
        self.tell(topics::TASK_EXEC_STARTED_EVENT_TOPIC, &started);
        tokio::spawn(self.clone().until_exec_end(busy, end, begun));
        Ok(pid)
    }

    fn admit(self: &Arc<Self>, exec: &Arc<Process>) -> Result<Busy, ShimError> {
        let mut state = self.lock();
        if state.closed || matches!(self.init.now().phase, Phase::Stopped) {
            return Err(ShimError::State(format!("container {} init process is not running", self.id)));
        }
        if state.paused != Status::RUNNING {
            return Err(ShimError::State("cannot exec in a paused state".into()));
        }
        if !exec.advance(Phase::Created, Phase::Starting) {
            return Err(ShimError::State(format!("cannot start exec {}: it was started before", exec.id)));
        }
        state.busy += 1;
        Ok(Busy { container: self.clone(), exec: exec.clone() })
    }

    async fn run_exec(&self, exec: &Process, nursery: &Nursery) -> Result<(u32, ExitReceiver), ShimError> {
        let (pid_file, result) = self.exec_files(&exec.id);
        let spec = Memory::new(&exec.spec())?;
        let mut streams = self.open(exec).await?;
        let started = self.runtime.exec(&spec, &pid_file, &result, streams.child()?).await;
        if let Err(err) = started {
            if matches!(err, ShimError::Silent { .. }) {
                self.end_lost(&exec.id).await;
            }
            return Err(err);
        }
        match self.born(exec, &pid_file, streams, nursery).await {
            Ok(born) => Ok(born),
            Err(err) => {
                // It runs, and nobody could talk to it.
                let _ = self.runtime.kill_exec(&exec.id, KILL).await;
                Err(err)
            }
        }
    }

    /// Ends an exec whose starter was killed: its supervisor may be on its way, and would run a command that nobody knows
    /// of.
    async fn end_lost(&self, exec: &str) {
        tracing::warn!(container = self.id, exec, "the runtime died while it started an exec");
        let looking = async {
            while !matches!(self.runtime.kill_exec(exec, KILL).await, Err(ShimError::Finished)) {
                sleep(LOOK).await;
            }
        };
        // Mostly there is none.
        let _ = timeout(LOST, looking).await;
    }

    async fn until_exec_end(self: Arc<Self>, busy: Busy, end: ExitReceiver, begun: Instant) {
        let Ok(exit) = end.await else { return };
        let exec = &busy.exec;
        let (_, result) = self.exec_files(&exec.id);
        match File::open(&result) {
            Ok(document) => match self.read_result(document, &result).await {
                Ok(result) => {
                    if result.end.kind == EndKind::Oom {
                        self.look_at_memory(Some(begun)).await;
                    }
                    let (topic, kind) = (report::EXEC_RESULT_TOPIC, report::EXEC_RESULT_TYPE);
                    self.shared.events.add_any(topic, kind, result.to_json());
                }
                Err(err) => {
                    tracing::error!(container = self.id, exec = exec.id, %err, "an exec's result can't be told");
                }
            },
            // Its supervisor was killed: the next command seals what it left.
            Err(err) => tracing::warn!(container = self.id, exec = exec.id, %err, "an exec ended without a result"),
        }
        self.tell_end(&exec.id, exec.now().pid, exit);
        exec.ended(exit);
    }

    /// The result that a document at `path` has. One of a million paths takes a second to read, in which nobody would be served.
    async fn read_result(&self, document: File, path: &Path) -> Result<ExecResult, ShimError> {
        let is_short = document.metadata().is_ok_and(|meta| meta.len() <= SHORT);
        let (bundle, path) = (self.bundle.clone(), path.to_owned());
        let read = move || {
            let result = report::exec_result(document, &bundle);
            result.map_err(|err| ShimError::io("read", path)(io::Error::other(err)))
        };
        if is_short { read() } else { blocking(read).await }
    }

    /// Where the runtime writes an exec's pid and its result. The pid file's name is the exec's alias in the runtime.
    fn exec_files(&self, exec: &str) -> (PathBuf, PathBuf) {
        let dir = self.bundle.join(DIR);
        (dir.join(format!("{exec}.pid")), dir.join(format!("{exec}.json")))
    }

    /// The process that a request names: an exec, or with an empty id the first one.
    pub fn with_process<T>(&self, exec: &str, f: impl FnOnce(&Process) -> T) -> Result<T, ShimError> {
        if exec.is_empty() { Ok(f(&self.init)) } else { self.exec(exec).map(|exec| f(&exec)) }
    }

    /// An exec.
    pub fn exec(&self, exec: &str) -> Result<Arc<Process>, ShimError> {
        let found = self.execs().get(exec).cloned();
        found.ok_or_else(|| ShimError::NotFound(format!("process {exec} does not exist")))
    }

    /// Waits for a process's end.
    pub async fn wait(&self, exec: &str) -> Result<Exit, ShimError> {
        if exec.is_empty() { self.init.wait().await } else { self.exec(exec)?.wait().await }
    }

    /// Sends a signal to the first process, to all, or to an exec.
    pub async fn kill(self: &Arc<Self>, exec: &str, signal: u32, all: bool) -> Result<(), ShimError> {
        if exec.is_empty() {
            if self.init.now().phase == Phase::Stopped {
                return Err(ShimError::Finished);
            }
            let sending = self.signals.sending();
            self.runtime.kill(signal, all).await?;
            drop(sending);
            if signal == KILL && !std::mem::replace(&mut self.lock().doomed, true) {
                tokio::spawn(self.clone().until_dead());
            }
            return Ok(());
        }
        let process = self.exec(exec)?;
        match process.now().phase {
            Phase::Created => Err(not_created()),
            Phase::Stopped => Err(ShimError::Finished),
            Phase::Starting | Phase::Running => self.kill_exec(&process, signal).await,
        }
    }

    /// An exec that is being started may not be known to the runtime yet: told that it is not there, containerd would take
    /// it for ended, and it would run on.
    async fn kill_exec(&self, exec: &Process, signal: u32) -> Result<(), ShimError> {
        let (begun, mut pause) = (Instant::now(), LOOK);
        loop {
            // Before the runtime looks, so that a start that ends meanwhile is not missed.
            let phase = exec.now().phase;
            match (self.runtime.kill_exec(&exec.id, signal).await, phase) {
                (Err(ShimError::NotFound(_)), Phase::Starting) if begun.elapsed() < LAST_WORDS => {
                    sleep(pause).await;
                    pause = (pause * 2).min(LOOK_LAST);
                }
                (Err(ShimError::NotFound(_)), Phase::Starting) => return Err(not_created()),
                (Err(ShimError::NotFound(_) | ShimError::Finished), Phase::Created) => return Err(not_created()),
                (told, _) => return told,
            }
        }
    }

    /// Freezes all processes.
    pub async fn pause(&self) -> Result<(), ShimError> {
        let _step = self.step().await?;
        let before = std::mem::replace(&mut self.lock().paused, Status::PAUSING);
        let paused = self.runtime.pause().await;
        let mut state = self.lock();
        // One that is paused stays so when that is refused.
        state.paused = if paused.is_ok() { Status::PAUSED } else { before };
        if state.closed {
            // Its end is told, or about to be: nothing comes after that.
            state.paused = Status::RUNNING;
            return Err(paused.err().unwrap_or(ShimError::Finished));
        }
        drop(state);
        paused?;
        let container_id = self.id.clone();
        self.tell(topics::TASK_PAUSED_EVENT_TOPIC, &event::TaskPaused { container_id, ..Default::default() });
        Ok(())
    }

    /// Lets them go on.
    pub async fn resume(&self) -> Result<(), ShimError> {
        let _step = self.step().await?;
        self.runtime.resume().await?;
        self.lock().paused = Status::RUNNING;
        let container_id = self.id.clone();
        self.tell(topics::TASK_RESUMED_EVENT_TOPIC, &event::TaskResumed { container_id, ..Default::default() });
        Ok(())
    }

    /// Changes its limits; `resources` is JSON.
    pub async fn update(&self, resources: &[u8]) -> Result<(), ShimError> {
        self.runtime.update(resources).await
    }

    /// Its processes. Of one whose first process has ended and that has none any more, that process: a containerd that
    /// starts deletes every task that has no process, and nobody would learn how it ended.
    pub async fn pids(&self) -> Result<Vec<super::runtime::Process>, ShimError> {
        let mut processes = self.runtime.ps().await?;
        let first = self.init.now();
        if processes.is_empty() && first.phase == Phase::Stopped && first.pid != 0 {
            processes.push(super::runtime::Process { pid: first.pid, exec: None });
        }
        Ok(processes)
    }

    /// RUNNING, PAUSING or PAUSED: what a process of it that runs is.
    pub fn paused(&self) -> Status {
        self.lock().paused
    }

    /// How many of its processes have not ended.
    pub fn running(&self) -> usize {
        let first = usize::from(self.init.now().phase != Phase::Stopped);
        first + self.lock().busy
    }

    /// Whether all has ended and the bundle is gone. A containerd that could not reach this shim in time has had the
    /// container deleted without it, and will not ask for that here.
    pub fn abandoned(&self) -> bool {
        self.running() == 0 && record::is_gone(&self.place)
    }

    /// The bundle.
    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// Deletes an exec that has ended, or was never started.
    pub async fn delete_exec(&self, id: &str) -> Result<(u32, Exit), ShimError> {
        let exec = self.exec(id)?;
        // Who comes second finds none, or another of the same id, which is not its to delete.
        let _deleting = exec.deleting.lock().await;
        if !self.exec(id).is_ok_and(|there| Arc::ptr_eq(&there, &exec)) {
            return Err(ShimError::NotFound(format!("process {id} does not exist")));
        }
        let now = exec.now();
        let exit = match (now.phase, now.exit) {
            (Phase::Created, _) => never_ran(&exec),
            (Phase::Stopped, Some(exit)) => exit,
            _ => return Err(ShimError::State("cannot delete a running process".into())),
        };
        if let Some(streams) = exec.take_streams()
            && !streams.drain(DRAIN).await
        {
            tracing::warn!(container = self.id, exec = id, "something holds an exec's output open: it is closed");
        }
        let (pid_file, result) = self.exec_files(id);
        for file in [pid_file, result] {
            // Its bundle goes with the container.
            let _ = crate::durable::remove_file(&file);
        }
        self.execs().remove(id);
        Ok((now.pid, exit))
    }

    /// Deletes the container, whose first process has ended, or was never started.
    pub async fn delete(&self) -> Result<(u32, Exit), ShimError> {
        let _step = self.step().await?;
        let now = self.init.now();
        let exit = match (now.phase, now.exit) {
            (Phase::Stopped, Some(exit)) => {
                self.runtime.delete().await?;
                exit
            }
            (Phase::Created, _) => {
                self.runtime.delete().await?;
                timeout(DEATH, self.init.wait())
                    .await
                    .map_err(|_| ShimError::State("the first process was killed and does not end".into()))??
            }
            _ => return Err(ShimError::State("cannot delete a running process".into())),
        };
        // Without it the runtime is asked once more.
        let _ = record::write_deleted(&self.bundle);
        let left: Vec<_> = self.execs().drain().map(|(_, exec)| exec).collect();
        for exec in left.iter().filter(|exec| exec.now().phase == Phase::Created) {
            never_ran(exec);
        }
        let all = left.iter().filter_map(|exec| exec.take_streams()).chain(self.init.take_streams());
        // All at once, so that many do not add up.
        let drains: Vec<_> = all.map(|streams| tokio::spawn(async move { streams.drain(DRAIN).await })).collect();
        for drain in drains {
            if !drain.await.unwrap_or(false) {
                tracing::warn!(container = self.id, "something holds output open: it is closed");
            }
        }
        if self.mounted {
            unmount(self.bundle.join("rootfs")).await?;
        }
        self.lock().deleted = true;
        let deleted = event::TaskDelete {
            container_id: self.id.clone(),
            pid: now.pid,
            exit_status: exit.code,
            exited_at: Some(Timestamp::from(exit.at)).into(),
            ..Default::default()
        };
        self.tell(topics::TASK_DELETE_EVENT_TOPIC, &deleted);
        Ok((now.pid, exit))
    }

    /// Waits until no other of `pause`, `resume`, `delete` is under way. What has waited for the container's deletion is not
    /// done: by its id the runtime may know another one by now.
    async fn step(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, ShimError> {
        let step = self.steps.lock().await;
        if self.lock().deleted {
            return Err(ShimError::NotFound(format!("container {}", self.id)));
        }
        Ok(step)
    }

    fn tell_end(&self, id: &str, pid: u32, exit: Exit) {
        let ended = event::TaskExit {
            container_id: self.id.clone(),
            id: id.to_owned(),
            pid,
            exit_status: exit.code,
            exited_at: Some(Timestamp::from(exit.at)).into(),
            ..Default::default()
        };
        self.tell(topics::TASK_EXIT_EVENT_TOPIC, &ended);
    }

    fn tell<M: containerd_shim_protos::protobuf::Message>(&self, topic: &'static str, event: &M) {
        self.shared.events.add(topic, event);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn execs(&self) -> MutexGuard<'_, HashMap<String, Arc<Process>>> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An exec that is being started, or runs: the first process's end waits for it. However its start fails, it can be started
/// again.
#[derive(Debug)]
struct Busy {
    container: Arc<Container>,
    exec: Arc<Process>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.exec.advance(Phase::Starting, Phase::Created);
        self.container.lock().busy -= 1;
        self.container.exec_ended.notify_waiters();
    }
}

fn not_created() -> ShimError {
    ShimError::State("process not created: failed precondition".into())
}

/// Ends an exec that was added and not started: somebody may wait for it, and must not take it for a success. Who deletes it
/// is answered 0, as by containerd's own shim.
fn never_ran(exec: &Process) -> Exit {
    let at = SystemTime::now();
    exec.ended(Exit { code: 255, at });
    Exit { code: 0, at }
}

async fn mount(mounts: Vec<Mount>, target: PathBuf) -> Result<(), ShimError> {
    blocking(move || {
        crate::durable::make_dir(&target, 0o711).or_else(record::there).map_err(ShimError::io("mkdir", &target))?;
        mounts::mount_all(&mounts, &target)
    })
    .await
}

async fn unmount(target: PathBuf) -> Result<(), ShimError> {
    blocking(move || mounts::unmount_all(&target)).await
}

fn stdio(stdin: &str, stdout: &str, stderr: &str, terminal: bool) -> Stdio {
    Stdio { stdin: stdin.to_owned(), stdout: stdout.to_owned(), stderr: stderr.to_owned(), terminal }
}
