//! The supervisor: from the layer to the result.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use super::{Done, Prepared, sys};
use crate::diff::{self, Diff, Touched};
use crate::durable;
use crate::id::{ExecId, Generation, LayerId};
use crate::ops::commit::{Conflict, onto_head, remember_base, remember_touched};
use crate::ops::presence::Presence;
use crate::ops::{Context, OpsError, ProcessSource, owners, publish, recover, retain, row_of, squash, stack};
use crate::report::{End, Generations, ResultDocument, Schema, Usage, UserIds, rfc3339};
use crate::rootfs::view::{self, Submount};
use crate::rootfs::{cow, layered_root, open_dir};
use crate::runtime::exec::budget::{Budget, Limit};
use crate::runtime::exec::cgroup::ExecCgroup;
use crate::runtime::exec::process::{Described, describe};
use crate::runtime::exec::quota::Quota;
use crate::runtime::exec::roster::Listed;
use crate::runtime::exec::strays::Strays;
use crate::runtime::exec::supervise::{Ended, Limits, supervise};
use crate::runtime::exec::{Birth, ExecError, Plan, Running, Stdio, abandon, spawn};
use crate::runtime::state::{Gone, Record};
use crate::runtime::{RuntimeError, callers_size, seccomp};
use crate::store::{
    Begun, CommitInfo, Container, Ending, ExecLock, Finished, NewExec, Outcome, Store, StoreError, now_ns,
};
use crate::sys::proc::PidFd;
use crate::sys::{ns, socket};
use crate::terms::{EndKind, LayerMode, Retention};

/// An exec that has its row, its lock and (unless shared) its layer.
struct Exec<'a> {
    store: &'a Store,
    container: &'a Container,
    id: ExecId,
    lock: ExecLock,
    layer: Option<LayerId>,
    begun: Begun,
    mode: LayerMode,
    started_ns: i64,
    /// The container's mount points, which are no changes.
    mounts: Vec<Submount>,
    /// It has copy-on-write mounts.
    cow: bool,
}

/// Runs one exec from begin to end; `started` is called once the command runs. The command's code, which nothing that
/// fails after the command's end can change: what it leaves is repaired later.
pub(super) fn run(context: &Context, prepared: Prepared, started: impl FnOnce()) -> Result<Done, OpsError> {
    let mut described = describe(&prepared.process)?;
    if let ProcessSource::Flags(flags) = &prepared.request.process {
        // JSON has no arguments that are not UTF-8; the command line does.
        described.argv = exact_arguments(&flags.args)?;
    }
    let record = &prepared.record;
    let _presence = Presence::announce(record).map_err(|err| or_stopped(record, err))?;
    let store = context.store()?;
    let container = row(&store, record).map_err(|err| or_stopped(record, err))?;
    recover::container(&store, container.key).map_err(|err| or_stopped(record, err))?;

    let pidfd = record.init()?.ok_or(OpsError::ExecStopped)?;
    let cows = &record.confinement.copy_on_write;
    let mounts = view::submounts(record.pid, cows).map_err(|err| or_stopped(record, err.into()))?;
    // A read-only root has nothing to layer.
    let mode = if record.readonly_root && cows.is_empty() { LayerMode::Shared } else { prepared.settings.layer };
    let id = ExecId::new();
    let cgroup = ExecCgroup::plan(&record.cgroups, prepared.request.cgroup.as_deref(), &format!("agentsbx-{id}"))?;
    // From before its row is there until its result is written: who finds the row and not this, finds an exec that has ended.
    let listed = Listed::enter(record, id, prepared.engine_exec.clone(), cgroup.paths());
    let mut listed = listed.map_err(|err| or_stopped(record, err.into()))?;
    let exec = begin(&store, &container, &prepared, &described, Setup { id, mode, mounts }, &cgroup);
    let exec = exec.map_err(|err| or_stopped(record, err))?;
    let launched = exec.limit_disk(record.confinement.layer_bytes).and_then(|disk| {
        let (running, terminal) = launch(&exec, &prepared, described, pidfd, cgroup)?;
        match listed.runs(running.pid) {
            Ok(()) => Ok((running, terminal, disk)),
            Err(err) => {
                abandon(running)?;
                Err(err.into())
            }
        }
    });
    let (running, terminal, (quota, budget)) = match launched {
        Ok(launched) => launched,
        Err(err) => {
            let err = or_stopped(record, err);
            let message = crate::error::chain(&err);
            // The first error is the one to tell; a row that stays is repaired by the next command.
            let _ = exec.never_ran(&prepared, &message);
            return Err(err);
        }
    };
    if let Err(err) = announce(&prepared, started) {
        // Without its pid file no engine can know of it.
        abandon(running)?;
        let _ = exec.never_ran(&prepared, &crate::error::chain(&err));
        return Err(err);
    }
    let watched = terminal.is_some();
    release_streams(prepared.request.detach, watched);
    // A container that can write to its cgroups can move a process out of the exec's.
    let strays = exec.layer.filter(|_| record.manages_cgroups).map(|layer| Strays::new(&record.cgroups, &layer));
    let limits = Limits { timeout: prepared.settings.timeout, orphans: prepared.settings.orphans, budget, strays };
    let command = running.pid;
    let ended = supervise(running, limits, terminal, || {
        // A log that stays is only longer to read.
        let _ = store.maintain();
        crate::sys::image::release();
    })?;
    // The layer changes no more.
    drop(quota);
    let code = ended.code;
    let bounds = &context.config.retention;
    let (due, warning) = match exec.end(&prepared, &ended, bounds) {
        Ok(due) => (due, None),
        Err(err) => (false, Some(err)),
    };
    if !prepared.request.detach {
        // In the foreground nobody may be there to do it, and no engine waits for our order of events.
        sys("reap the command", crate::sys::process::wait(command, true))?;
    }
    if due {
        retain::in_background(context, store, container.key);
    } else {
        store.leave();
    }
    Ok(Done { code, warning })
}

/// How long who makes a container may take from its record to its row.
const REGISTERED_WITHIN: Duration = Duration::from_secs(2);
/// How long the first process may outlive an exec's that was killed with it.
const KILLED_WITHIN: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// The container's row, which is there a moment after its record.
fn row(store: &Store, record: &Record) -> Result<Container, OpsError> {
    let until = Instant::now() + REGISTERED_WITHIN;
    let mut now = record.clone();
    loop {
        if let Some(row) = row_of(store, &now)? {
            return Ok(row);
        }
        if now.store_key.is_some() || Instant::now() > until {
            return Err(OpsError::NotInStore(record.id.to_string(), store.root().to_owned()));
        }
        std::thread::sleep(PAUSE);
        now = Record::load(record.root(), &record.id)?;
    }
}

/// What went wrong, unless that was because the container ended or was deleted meanwhile: engines know that by runc's words.
pub(super) fn or_stopped(record: &Record, err: OpsError) -> OpsError {
    let until = Instant::now() + KILLED_WITHIN;
    let was_killed = matches!(err, OpsError::Exec(ExecError::Killed));
    let mut gone = record.gone();
    while was_killed && matches!(gone, Ok(None)) && Instant::now() < until {
        std::thread::sleep(PAUSE);
        gone = record.gone();
    }
    match gone {
        Ok(Some(Gone::Deleted)) => RuntimeError::NotFound.into(),
        Ok(Some(Gone::Ended)) => OpsError::ExecStopped,
        // The first failure is the one to tell.
        Ok(None) | Err(_) => err,
    }
}

fn exact_arguments(args: &[OsString]) -> Result<Vec<CString>, OpsError> {
    let exact = args.iter().map(|a| CString::new(a.as_bytes()).map_err(|_| ExecError::NulByte("arguments")));
    Ok(exact.collect::<Result<_, _>>()?)
}

/// What is decided of an exec before it begins.
struct Setup {
    id: ExecId,
    mode: LayerMode,
    mounts: Vec<Submount>,
}

fn begin<'a>(
    store: &'a Store,
    container: &'a Container,
    prepared: &Prepared,
    described: &Described,
    setup: Setup,
    cgroup: &ExecCgroup,
) -> Result<Exec<'a>, OpsError> {
    let Setup { id, mode, mounts } = setup;
    let started_ns = now_ns();
    let lock = ExecLock::create(store, &id)?;
    let staged = if mode == LayerMode::Shared { None } else { Some(store.create_layer()?) };
    let begun = store.begin_exec(
        container.key,
        &NewExec {
            id,
            engine_exec: prepared.engine_exec.clone(),
            args: prepared.process.args().clone().unwrap_or_default(),
            cwd: prepared.process.cwd().clone(),
            uid: described.user.uid,
            gid: described.user.gid,
            mode,
            layer: staged.as_ref().map(|s| s.id()),
            supervisor_pid: rustix::process::getpid().as_raw_pid(),
            cgroups: cgroup.paths(),
            started_ns,
        },
    )?;
    let layer = staged.map(|s| s.keep());
    let cow = !prepared.record.confinement.copy_on_write.is_empty();
    Ok(Exec { store, container, id, lock, layer, begun, mode, started_ns, mounts, cow })
}

/// Mounts the layer and starts the command in it; with the master of its terminal, where this process passes it on.
fn launch(
    exec: &Exec<'_>,
    prepared: &Prepared,
    described: Described,
    pidfd: PidFd,
    cgroup: ExecCgroup,
) -> Result<(Running, Option<OwnedFd>), OpsError> {
    let record = &prepared.record;
    let (root, layered) = match &exec.layer {
        Some(layer) => {
            let stack::Lowers { root, cows } = exec.lowers()?;
            let upper = exec.store.upper(layer);
            let works = |n| exec.store.make_work_of(layer, n).map_err(OpsError::from);
            let layered = cow::layered(&cows, &root, &upper, works)?;
            (Some(layered_root(root, &upper, &exec.store.work(layer), false)?), layered)
        }
        None => (None, Vec::new()),
    };
    let (stdio, terminal) = streams(prepared, &described)?;
    let differing = sys("compare namespaces", ns::differing(record.pid))?;
    let process = &prepared.process;
    let apparmor = process.apparmor_profile().clone().filter(|p| !p.is_empty());
    let selinux = process.selinux_label().clone().filter(|l| !l.is_empty());
    // A process that is confined by label does not trace one that is not.
    let labelled = selinux.is_some() || apparmor.as_deref().is_some_and(|profile| profile != "unconfined");
    let birth = match differing & libc::CLONE_NEWPID != 0 {
        true if record.may_trace() && !labelled => Birth::Unseen,
        true => Birth::Inside,
        false => Birth::Here,
    };
    let plan = Plan {
        pidfd: pidfd.into(),
        namespaces: differing & !libc::CLONE_NEWPID,
        root,
        root_flags: record.confinement.root_flags,
        submounts: exec.mounts.clone(),
        layered,
        read_only_root: record.readonly_root,
        argv: described.argv,
        env: described.env,
        cwd: process.cwd().clone(),
        user: described.user,
        capabilities: described.capabilities,
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        seccomp: seccomp::load(record)?,
        fence: record.confinement.fence.clone(),
        rlimits: described.rlimits,
        oom_score_adj: process.oom_score_adj(),
        io_priority: described.io_priority,
        scheduler: described.scheduler,
        personality: record.personality,
        apparmor: apparmor.filter(|_| labelled),
        selinux,
        keyring: record.keyring.then(|| CString::new(format!("_ses.{}", record.id)).unwrap_or_default()),
        stdio,
        preserve_fds: prepared.request.preserve_fds,
    };
    // Not before the exec's row, by which `recover` finds them.
    cgroup.create()?;
    let running = spawn(plan, birth, cgroup, || exec.store.expect_end(exec.container.key, &exec.id))?;
    let terminal =
        terminal.map(|socket| sys("receive the terminal", socket::receive_fd(socket.as_fd()))).transpose()?;
    Ok((running, terminal))
}

/// The command's streams, and the socket over which its terminal comes back where nobody else is to have it.
fn streams(prepared: &Prepared, described: &Described) -> Result<(Stdio, Option<OwnedFd>), OpsError> {
    if !prepared.process.terminal().unwrap_or(false) {
        return Ok((Stdio::Inherit, None));
    }
    let size = described.console_size;
    if let Some(path) = &prepared.request.console_socket {
        let console = sys("connect to the console socket", socket::connect(path))?;
        return Ok((Stdio::Terminal { console, size }, None));
    }
    let (ours, console) = sys("make a socket for the terminal", socket::pair())?;
    // From its beginning: a command may ask at once, and look no more.
    let size = callers_size().or(size);
    Ok((Stdio::Terminal { console, size }, Some(ours)))
}

/// Tells the engine that the command runs.
fn announce(prepared: &Prepared, started: impl FnOnce()) -> Result<(), OpsError> {
    let pid = rustix::process::getpid().as_raw_pid();
    if let Some(path) = &prepared.request.pidfd_socket {
        let socket = sys("connect to the pidfd socket", socket::connect(path))?;
        let pidfd = sys("open the supervisor", PidFd::of(pid))?;
        sys("send the pidfd", socket::send_fd(socket.as_fd(), pidfd.as_fd(), b"pidfd"))?;
    }
    if let Some(path) = &prepared.request.pid_file {
        let write = durable::deliver(path, pid.to_string().as_bytes(), 0o644, false);
        write.map_err(|source| OpsError::File { doing: "write", path: path.clone(), source })?;
    }
    started();
    Ok(())
}

/// Lets go of the command's streams: while we hold them, a client waits for their end.
fn release_streams(detached: bool, passing_on: bool) {
    if passing_on {
        return;
    }
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let Ok(null) = null else { return };
    // Whether this works or not, the command runs; at worst its end is seen late.
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    if detached {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// What is known of an exec at its end.
struct Told<'a> {
    prepared: &'a Prepared,
    end: End,
    usage: Usage,
    survivors: Option<u64>,
    diff: Diff,
    conflict: Option<Conflict>,
    finished_ns: i64,
}

impl Exec<'_> {
    /// Bounds what the layer takes on disk: by a quota of its filesystem, and by looking at it where that has none or does
    /// not hold (whoever owns a file may take it out of its project).
    fn limit_disk(&self, bytes: Option<u64>) -> Result<(Option<Quota>, Option<Budget>), OpsError> {
        let (Some(layer), Some(bytes)) = (&self.layer, bytes) else { return Ok((None, None)) };
        let (dir, limit) = (self.store.layer_dir(layer), Limit::of_bytes(bytes));
        let quota = Quota::set(&dir, limit);
        let looked = match &quota {
            // The quota is what a command meets first.
            Some(_) => Limit { bytes: limit.bytes + limit.bytes / 16, files: limit.files + limit.files / 16 },
            None => limit,
        };
        let budget = sys("look at the layer's filesystem", Budget::new(&dir, looked))?;
        Ok((quota, Some(budget)))
    }

    fn lowers(&self) -> Result<stack::Lowers, OpsError> {
        // One look-up that others need not make.
        let cows = if self.cow { stack::cows(self.store, self.container.key)? } else { Vec::new() };
        stack::Lowers::open(self.store, self.container, &self.begun.chain, cows)
    }

    /// The command could not be started: no layer, no generation, but a result.
    fn never_ran(self, prepared: &Prepared, message: &str) -> Result<(), OpsError> {
        let told = Told {
            prepared,
            end: End { kind: EndKind::Error, code: Some(255), signal: None, message: Some(message.to_owned()) },
            usage: Usage::default(),
            survivors: Some(0),
            diff: Diff::default(),
            conflict: None,
            finished_ns: now_ns(),
        };
        let ending = if self.layer.is_some() { Ending::Empty } else { Ending::Shared };
        let finished = self.finish(&told, ending)?;
        self.conclude(told, finished)
    }

    /// Seals the layer, decides what becomes of it, and writes that down. Where that fails the layer is held. Whether the
    /// history may have outgrown its bounds.
    fn end(self, prepared: &Prepared, ended: &Ended, bounds: &Retention) -> Result<bool, OpsError> {
        // The command itself may have filled the store.
        self.store.make_room();
        let over = ended.over.map(|over| format!("{over}; its changes are discarded"));
        let timeout = prepared.settings.timeout.filter(|_| ended.kind == EndKind::Timeout);
        let late = timeout.map(|time| format!("it ran longer than {time:?}"));
        let mut told = Told {
            prepared,
            end: End { kind: ended.kind, code: Some(ended.code), signal: ended.signal, message: over.clone().or(late) },
            usage: Usage {
                wall_ns: Some(ended.wall.as_nanos() as u64),
                user_ns: ended.usage.user_ns,
                system_ns: ended.usage.system_ns,
                peak_memory_bytes: ended.usage.peak_memory,
                max_pids: ended.usage.max_pids,
                written_bytes: ended.usage.written,
            },
            survivors: Some(u64::from(ended.survivors)),
            diff: Diff::default(),
            conflict: None,
            finished_ns: now_ns(),
        };
        let disposed = self.seal().and_then(|diff| {
            told.diff = diff;
            self.dispose(&mut told, ended)
        });
        // Whatever it has in it: nobody is to keep it.
        let disposed = match disposed {
            Err(_) if over.is_some() && ended.all_gone => self.finish(&told, Ending::Discard),
            disposed => disposed,
        };
        let (finished, failure) = match disposed {
            Ok(finished) => (finished, None),
            Err(err) => {
                told.end.message = Some(format!("its changes could not be settled: {}", crate::error::chain(&err)));
                let ending = if self.layer.is_some() { Ending::Abort } else { Ending::Shared };
                // If not even this can be written, the next command repairs it.
                match self.finish(&told, ending) {
                    Ok(finished) => (finished, Some(err)),
                    Err(_) => return Err(err),
                }
            }
        };
        let (store, key, committed) = (self.store, self.container.key, finished.generation.is_some());
        self.conclude(told, finished)?;
        failure.map_or_else(|| Ok(committed && retain::is_due(store, key, bounds)), Err)
    }

    fn seal(&self) -> Result<Diff, OpsError> {
        let Some(layer) = &self.layer else { return Ok(Diff::default()) };
        let upper = open_dir(&self.store.upper(layer))?;
        Ok(diff::seal(upper.as_fd(), self.lowers()?.view(), &stack::options(&self.mounts))?)
    }

    fn dispose(&self, told: &mut Told<'_>, ended: &Ended) -> Result<Finished, OpsError> {
        let Some(layer) = &self.layer else { return self.finish(told, Ending::Shared) };
        if !ended.all_gone {
            // Something still may write to it.
            return self.finish(told, Ending::Abort);
        }
        if ended.over.is_some() {
            return self.finish(told, Ending::Discard);
        }
        if told.diff.summary.is_empty() {
            return self.finish(told, Ending::Empty);
        }
        let keep = match self.mode {
            LayerMode::Commit | LayerMode::Hold => true,
            LayerMode::CommitOnSuccess => told.end.kind == EndKind::Exited && told.end.code == Some(0),
            LayerMode::Discard | LayerMode::Shared => false,
        };
        if !keep {
            return self.finish(told, Ending::Discard);
        }
        let touched = diff::touched(&told.diff);
        if self.cow {
            remember_base(self.store, layer, &self.lowers()?, &told.diff, self.started_ns);
        }
        remember_touched(self.store, layer, &touched);
        if self.mode == LayerMode::Hold {
            return self.finish(told, Ending::Hold);
        }
        match self.commit(told, layer, &touched) {
            Ok(Ok(finished)) => Ok(finished),
            Ok(Err(conflict)) => {
                told.conflict = Some(conflict);
                self.finish(told, Ending::Conflict)
            }
            // The container was removed while its command ended: there is no HEAD to commit onto.
            Err(OpsError::Store(StoreError::ContainerRemoved { .. })) => self.finish(told, Ending::Discard),
            Err(err) => Err(err),
        }
    }

    fn commit(
        &self,
        told: &Told<'_>,
        layer: &LayerId,
        touched: &[Touched],
    ) -> Result<Result<Finished, Conflict>, OpsError> {
        let upper = open_dir(&self.store.upper(layer))?;
        let info = CommitInfo {
            digest: Some(diff::digest(&told.diff)),
            bytes: Some(diff::size_of(upper.as_fd(), &told.diff.changes)),
        };
        onto_head(self.store, self.container, layer, self.begun.base, touched, false, |expected_head: Generation| {
            let ending = Ending::Commit { expected_head, info: info.clone() };
            self.store.finish_exec(self.container.key, &self.id, &self.outcome(told, ending))
        })
    }

    fn finish(&self, told: &Told<'_>, ending: Ending) -> Result<Finished, OpsError> {
        Ok(self.store.finish_exec(self.container.key, &self.id, &self.outcome(told, ending))?)
    }

    fn outcome(&self, told: &Told<'_>, ending: Ending) -> Outcome {
        Outcome {
            ending,
            end: serde_json::to_value(&told.end).ok(),
            usage: serde_json::to_value(told.usage).ok(),
            summary: serde_json::to_value(told.diff.summary).ok(),
            result: publish::details(&told.diff.changes, told.conflict.as_ref(), &told.prepared.decisions),
            survivors: told.survivors,
            finished_ns: told.finished_ns,
        }
    }

    /// Everything after the transaction: files for engines and people, and what the layer leaves.
    fn conclude(self, told: Told<'_>, finished: Finished) -> Result<(), OpsError> {
        let squashed = finished.generation.map_or(Ok(()), |g| squash::if_deep(self.store, self.container, g));
        let prepared = told.prepared;
        let (paths, reason) = told.conflict.map(|c| (c.paths, Some(c.reason))).unwrap_or_default();
        let document = ResultDocument {
            schema: Schema::V1,
            container: self.container.id.to_string(),
            exec: self.id.to_string(),
            engine_exec: prepared.engine_exec.clone(),
            args: prepared.process.args().clone().unwrap_or_default(),
            cwd: prepared.process.cwd().clone(),
            user: UserIds { uid: prepared.process.user().uid(), gid: prepared.process.user().gid() },
            generation: Generations { base: self.begun.base, head: finished.head },
            disposition: Some(finished.disposition),
            dropped: None,
            end: Some(told.end),
            started_at: rfc3339(self.started_ns),
            finished_at: Some(rfc3339(told.finished_ns)),
            usage: told.usage,
            summary: told.diff.summary,
            changes: owners::as_inside(told.diff.changes, prepared.record.id_maps.as_ref()),
            conflicts: paths,
            conflict_reason: reason,
            policy: publish::decisions(&prepared.decisions),
            survivors_killed: told.survivors,
            truncated: false,
        };
        let published = publish::ended(self.store, self.container, &document, prepared.request.result.as_deref());
        // Whatever could not be told, what is needed no more goes.
        let deleted: Result<Vec<()>, _> = finished.released.into_iter().map(|l| self.store.delete_layer(l)).collect();
        self.lock.release()?;
        deleted?;
        published.and(squashed)
    }
}
