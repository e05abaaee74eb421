//! `create`: from a bundle to a first process that waits for `start`. Whatever fails, nothing is left behind.
//!
//! Order: state directory (made atomically: it is the claim on the id), record with the creator's identity, normalised
//! configuration, root filesystem, cgroups, libcontainer, repairs, record with the first process, pid file.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::syscall::syscall::SyscallType;
use rustix::fs::{MemfdFlags, Mode, OFlags};

use super::cgroup::{self, CgroupDir, Hierarchy};
use super::cgroup_mount::Parts;
use super::claim::{BundleLock, Claim};
use super::cow::{self, CowSource, MakeLayer};
use super::devices;
use super::error::{On, RuntimeError};
use super::facts::{Facts, Judged};
use super::fixup::{self, Fixups};
use super::idmaps::StandIn;
use super::joined::{self, Joined};
use super::launch::{self, Identity};
use super::leaf;
use super::members;
use super::payload::{Given, Payload};
use super::place;
use super::prepare;
use super::seccomp;
use super::start;
use super::state::{LIBCONTAINER, NamespaceRef, ProcessId, Record, VERSION};
use super::systemd::{self, Scope};
use super::volumes::{self, Volume};
use crate::durable;
use crate::id::ContainerId;
use crate::policy::seccomp::{Program, Strictness};
use crate::policy::{self, Confinement, Decision, Hardened, Policy};
use crate::rootfs::view;
use crate::spec::idmap::IdMaps;
use crate::spec::{self, Config, SpecError, inroot, normalise};
use crate::sys::process::HiddenCommandLine;
use crate::sys::{attributes, loopback, proc, socket};
use crate::telemetry::ErrorCapture;
use crate::terms::Profile;

/// Longest text of a failed hook that is told, in bytes.
const HOOK_TEXT_MAX: u64 = 4096;

/// What `create` is asked for. Paths may be relative to the current directory.
#[derive(Debug, Default)]
pub struct CreateRequest {
    /// Directory of the state directories.
    pub root: PathBuf,
    /// The new container's id; must be set.
    pub id: Option<ContainerId>,
    /// The bundle.
    pub bundle: PathBuf,
    /// Socket that gets the terminal's master side.
    pub console_socket: Option<PathBuf>,
    /// File that gets the first process's pid, decimal, no newline.
    pub pid_file: Option<PathBuf>,
    /// Socket that gets a pidfd of the first process.
    pub pidfd_socket: Option<PathBuf>,
    /// Move the root instead of pivoting (for a root on a ramdisk).
    pub no_pivot: bool,
    /// Keep the caller's session keyring.
    pub no_new_keyring: bool,
    /// Descriptors to pass on besides stdio.
    pub preserve_fds: i32,
    /// Sockets passed by socket activation, from descriptor 3 on.
    pub listen_fds: Option<u32>,
    /// Use the systemd cgroup driver.
    pub systemd_cgroup: bool,
    /// Row of the layer store, for the record.
    pub store_key: Option<i64>,
    /// Where the libraries' debug events go.
    pub debug_log: Option<fs::File>,
}

/// Creates the container, hardened by `policy`; `make_layer` is for its copy-on-write mounts. The calling process must be
/// single-threaded: it forks.
pub fn create(request: &CreateRequest, policy: &Policy, make_layer: &MakeLayer<'_>) -> Result<Record, RuntimeError> {
    let Some(id) = &request.id else {
        return Err(RuntimeError::Invalid { what: "container id", why: "none given".into() });
    };
    let _early = cgroup::EarlyWait::begin();
    let bundle = fs::canonicalize(&request.bundle).on("resolve bundle", &request.bundle)?;
    // One create at a time in one bundle: each replaces its configuration.
    let lock = BundleLock::lock(&bundle)?;
    // What a create or delete that was killed left of ours in the bundle.
    spec::restore(&bundle)?;
    let mut engine = Config::load(&bundle)?;
    let rootfs = validate(&engine, &bundle, request.systemd_cgroup)?;
    joined::learn_ids(&mut engine)?;
    let root = absolute(&request.root)?;
    let all = cgroup::hierarchies()?;
    let facts = Facts::gather(&engine, &bundle, &rootfs, &root, policy, &all)?;
    let Hardened { spec: engine, decisions, confinement } = policy::harden(&engine, policy, &facts.host)?;
    match (engine.terminal(), request.console_socket.is_some()) {
        (true, false) => return Err(RuntimeError::ConsoleSocketMissing),
        (false, true) => return Err(RuntimeError::ConsoleSocketUnused),
        _ => {}
    }
    let paths = Outputs::resolve(request)?;

    fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).on("make directory", &root)?;
    let mut place = Place::take(&root, id)?;
    let strictness = (policy.profile == Profile::Strict).then(|| Strictness::of(policy, &confinement));
    let carried = facts.carried();
    let judged = facts.judged;
    let bundle =
        Bundle { path: bundle, rootfs, engine, decisions, confinement, strictness, judged, carried, all, lock };
    let made = build(request, &mut place, &bundle, &paths, make_layer);
    if made.is_err() {
        // The failure is what is told. What cannot be removed now, `delete --force` finds by its directory.
        let _ = place.give_back();
        let _ = spec::restore(&bundle.path);
    }
    made
}

/// The state directory of a container that is being made.
struct Place {
    id: ContainerId,
    dir: PathBuf,
    /// When the container was created, RFC 3339 with nanoseconds: by this its record is known.
    created: String,
    /// Held until its record says that this process is at work: a delete takes a directory without one for litter.
    claim: Option<Claim>,
}

impl Place {
    /// Makes the directory: the claim on the id.
    fn take(root: &Path, id: &ContainerId) -> Result<Place, RuntimeError> {
        let dir = Record::dir_of(root, id);
        let claim = Some(Claim::make(&dir)?);
        let created = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Nanos, true);
        Ok(Place { id: id.clone(), dir, created, claim })
    }

    /// Removes it, unless a delete has, and the name may be another container's by now.
    fn give_back(self) -> Result<(), RuntimeError> {
        let Place { id, dir, created, claim } = self;
        let recorded = claim.is_none();
        let Some(claim) = claim.map_or_else(|| Claim::lock(&dir), |claim| Ok(Some(claim)))? else { return Ok(()) };
        let root = dir.parent().unwrap_or(Path::new("/"));
        if !recorded || Record::load(root, &id).is_ok_and(|record| record.created == created) {
            fs::remove_dir_all(claim.path()).on("remove", claim.path())?;
        }
        Ok(())
    }
}

/// A bundle that was looked at and found good, and is ours until the first process waits.
struct Bundle {
    path: PathBuf,
    rootfs: PathBuf,
    /// The configuration as the engine wrote it, hardened.
    engine: Config,
    decisions: Vec<Decision>,
    confinement: Confinement,
    /// What of the list of system calls is changed; none: the profile has no list.
    strictness: Option<Strictness>,
    /// The sources of its bind mounts, as the policy has judged them.
    judged: Vec<Judged>,
    /// What is mounted below the root filesystem's directory, by its place in the container.
    carried: Vec<PathBuf>,
    /// The host's cgroup hierarchies.
    all: Vec<Hierarchy>,
    lock: BundleLock,
}

/// The files and sockets that `create` writes to, made absolute before the current directory changes.
struct Outputs {
    console_socket: Option<PathBuf>,
    pid_file: Option<PathBuf>,
    pidfd_socket: Option<PathBuf>,
}

impl Outputs {
    fn resolve(request: &CreateRequest) -> Result<Outputs, RuntimeError> {
        let resolve = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        Ok(Outputs {
            console_socket: resolve(&request.console_socket)?,
            pid_file: resolve(&request.pid_file)?,
            pidfd_socket: resolve(&request.pidfd_socket)?,
        })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, RuntimeError> {
    std::path::absolute(path).on("resolve", path)
}

/// What must hold of a configuration before anything is made for it. The canonical root filesystem.
fn validate(config: &Config, bundle: &Path, systemd_cgroup: bool) -> Result<PathBuf, RuntimeError> {
    let field = |field, why: &str| RuntimeError::from(SpecError::Field { field, why: why.to_owned() });
    if !config.version().starts_with("1.") {
        return Err(field("ociVersion", &format!("{:?} is not a version 1", config.version())));
    }
    let value = config.value();
    if !value["linux"].is_object() {
        return Err(field("linux", "missing"));
    }
    if !value["process"].is_object() {
        return Err(field("process", "missing"));
    }
    if config.args().first().is_none_or(String::is_empty) {
        return Err(field("process.args", "args must not be empty"));
    }
    config.check_user_ids()?;
    config.check_types()?;
    IdMaps::check_own(config)?;
    config.mounts().iter().try_for_each(|mount| mount.ids(config).map(drop))?;
    if let Some(kind) = config.twice_a_namespace() {
        return Err(field("linux.namespaces", &format!("duplicated ns {kind:?}")));
    }
    if !Path::new(config.cwd()).is_absolute() {
        return Err(field("process.cwd", "Cwd must be an absolute path"));
    }
    if config.env().iter().chain(&config.args()).any(|s| s.contains('\0')) {
        return Err(field("process", "NUL byte in an argument or environment variable"));
    }
    if value["process"]["selinuxLabel"].as_str().is_some_and(|l| !l.is_empty()) {
        return Err(SpecError::Unsupported("selinux label is specified in config, but selinux is not supported").into());
    }
    if value["process"]["apparmorProfile"].as_str().is_some_and(|p| !p.is_empty() && p != "unconfined")
        && !Path::new("/sys/kernel/security/apparmor").exists()
    {
        return Err(RuntimeError::Start(
            "apparmor failed to apply profile: apparmor is not enabled on this host".to_owned(),
        ));
    }
    if systemd_cgroup && !Path::new("/run/systemd/system").is_dir() {
        return Err(
            SpecError::Unsupported("systemd not running on this host, cannot use systemd cgroups manager").into()
        );
    }
    let root = config.root_path().ok_or_else(|| field("root.path", "missing"))?;
    let root = bundle.join(root);
    fs::canonicalize(&root).on("invalid rootfs: stat", &root)
}

fn build(
    request: &CreateRequest,
    place: &mut Place,
    bundle: &Bundle,
    paths: &Outputs,
    make_layer: &MakeLayer<'_>,
) -> Result<Record, RuntimeError> {
    let Bundle { rootfs, engine, .. } = bundle;
    let root = inroot::open_root(rootfs).on("open root filesystem", rootfs)?;
    let mut config = engine.clone();
    let context = normalise::Context {
        id: place.id.as_str(),
        root: &root,
        bundle: &bundle.path,
        systemd_cgroup: request.systemd_cgroup,
        copy_on_write: &bundle.confinement.copy_on_write,
    };
    let changed = !normalise::normalise(&mut config, &context)?.is_empty() || !bundle.decisions.is_empty();
    let cows = cow::sources(engine, &config, &bundle.path, &bundle.confinement.copy_on_write, &bundle.judged)?;
    let volumes = volumes::prepare(engine, &config, &bundle.path, &cows, &bundle.judged)?;
    let all = bundle.all.clone();
    let v1 = all.iter().any(|h| !h.controllers.is_empty());
    if v1 && request.systemd_cgroup {
        // libcontainer would take the systemd form for a directory's name.
        return Err(
            SpecError::Unsupported("the systemd cgroup driver needs cgroup v2; use cgroupfs on this host").into()
        );
    }
    if v1 && !rustix::process::geteuid().is_root() {
        return Err(SpecError::Unsupported("containers without root need cgroup v2; this host has cgroup v1").into());
    }
    if request.systemd_cgroup && systemd::is_for_us() {
        let given = config.cgroups_path().unwrap_or_default();
        let mount_point = all.first().map_or(Path::new("/sys/fs/cgroup"), |h| &h.mount_point);
        let scope = systemd::Scope::start(given, place.id.as_str(), mount_point)?;
        // libcontainer is given the scope's cgroup as any other: it would tell systemd less, and leave failed units.
        config.value_mut()["linux"]["cgroupsPath"] = scope.path.to_string_lossy().into();
        let dirs = cgroup::without_roots(cgroup::of_path(&scope.path, &all), &all);
        let made = Made { root, config, changed: true, all, cows, volumes, scope: Some(scope) };
        let made = build_in(request, place, bundle, paths, made, make_layer);
        if made.is_err() {
            // The failure is what is told. All processes have ended, and a scope without any ends by itself.
            let _ = dirs.iter().try_for_each(|dir| systemd::stop(&dir.path));
        }
        return made;
    }
    let made = Made { root, config, changed, all, cows, volumes, scope: None };
    build_in(request, place, bundle, paths, made, make_layer)
}

/// What is ready before the container's record is.
struct Made {
    root: OwnedFd,
    config: Config,
    /// The configuration is not the engine's any more.
    changed: bool,
    all: Vec<Hierarchy>,
    cows: Vec<CowSource>,
    volumes: Vec<Volume>,
    scope: Option<Scope>,
}

fn build_in(
    request: &CreateRequest,
    place: &mut Place,
    bundle: &Bundle,
    paths: &Outputs,
    made: Made,
    make_layer: &MakeLayer<'_>,
) -> Result<Record, RuntimeError> {
    let Bundle { rootfs, engine, .. } = bundle;
    let Made { root, config, changed, all, cows, volumes, scope } = made;
    let cgroup_path = PathBuf::from(config.cgroups_path().unwrap_or_default());
    let dirs = match cgroup_path.is_absolute() {
        true => cgroup::without_roots(cgroup::of_path(&cgroup_path, &all), &all),
        false => Vec::new(),
    };
    if scope.is_none() {
        cgroup::require_empty(&dirs)?;
    }

    let (filter, program) = seccomp::prepare(engine, bundle.strictness.as_ref(), &place.dir)?;
    let (pid, start_time) = proc::this().during("read /proc/self/stat")?;
    let mut confinement = bundle.confinement.clone();
    // By now where they are in the root filesystem.
    confinement.copy_on_write = cows.iter().map(|cow| cow.at.clone()).collect();
    let mut record = Record {
        version: VERSION,
        id: place.id.clone(),
        oci_version: config.version().to_owned(),
        bundle: bundle.path.clone(),
        rootfs: rootfs.clone(),
        created: place.created.clone(),
        owner: rustix::process::geteuid().as_raw(),
        pid: 0,
        start_time: 0,
        creator: Some(ProcessId { pid, start_time }),
        cgroups: dirs.clone(),
        cgroup_path,
        manages_cgroups: leaf::is_manager(engine),
        systemd_cgroup: request.systemd_cgroup,
        readonly_root: config.readonly_root(),
        annotations: config.annotations(),
        store_key: request.store_key,
        namespaces: config.namespaces().into_iter().map(|(kind, path)| NamespaceRef { kind, path }).collect(),
        seccomp: filter,
        personality: personality(engine)?,
        keyring: !request.no_new_keyring,
        inherited: engine.inherited()?,
        hooks: engine.hooks(),
        id_maps: IdMaps::of(engine),
        confinement,
        decisions: bundle.decisions.clone(),
        cows: cows.clone(),
        dir: place.dir.clone(),
    };
    record.save()?;
    // From here on who deletes it ends this process first.
    place.claim = None;
    if changed {
        config.replace(&bundle.path)?;
    }
    prepare::prepare(&config, rootfs, &root)?;

    let ready = Ready { config: &config, root: &root, all: &all, program, cows: &cows, volumes: &volumes, make_layer };
    let started = launch(request, &record, bundle, &ready, paths).and_then(|started| {
        let (Some(scope), Some(dir)) = (scope, started.1.first()) else { return Ok(started) };
        scope.hand_over(&dir.path)?;
        Ok(started)
    });
    match started {
        Ok((pid, cgroups)) => {
            record.pid = pid;
            record.cgroups = cgroups;
        }
        Err(err) => {
            discard(&dirs);
            return Err(err);
        }
    }
    match publish(&mut record, paths) {
        Ok(()) => Ok(record),
        Err(err) => {
            // By now it may have been deleted like any other.
            if let Ok(Some(_claim)) = Claim::of(&record) {
                discard(&record.cgroups);
            }
            Err(err)
        }
    }
}

/// `linux.personality` as the number that personality(2) takes.
fn personality(config: &Config) -> Result<Option<u64>, RuntimeError> {
    match config.value()["linux"]["personality"]["domain"].as_str() {
        None => Ok(None),
        Some("LINUX") => Ok(Some(0)),
        Some("LINUX32") => Ok(Some(8)),
        Some(other) => {
            Err(SpecError::Field { field: "linux.personality.domain", why: format!("{other:?} is not known") }.into())
        }
    }
}

/// Ends what was started and removes its cgroups. They were empty before, so all in them is the container's.
fn discard(dirs: &[CgroupDir]) {
    // Best effort after a failure that is told already.
    let _ = cgroup::kill_all(dirs);
    let _ = members::remove(dirs);
}

/// What a first process is made from.
struct Ready<'a> {
    config: &'a Config,
    root: &'a OwnedFd,
    all: &'a [Hierarchy],
    program: Option<Program>,
    cows: &'a [CowSource],
    volumes: &'a [Volume],
    make_layer: &'a MakeLayer<'a>,
}

/// Has libcontainer set up the first process, then repairs what it leaves otherwise. The pid and the cgroups it is in.
fn launch(
    request: &CreateRequest,
    record: &Record,
    bundle: &Bundle,
    ready: &Ready<'_>,
    paths: &Outputs,
) -> Result<(i32, Vec<CgroupDir>), RuntimeError> {
    let Ready { config, root, all, program, cows, volumes, make_layer } = ready;
    let v1 = all.iter().any(|h| !h.controllers.is_empty());
    let shown = Parts::prepare(config, &record.cgroup_path, all);
    let placed: Vec<&Path> = cows.iter().map(|cow| &*cow.at).chain(volumes.iter().map(|volume| &*volume.at)).collect();
    let mut fixups = Fixups::plan(&bundle.engine, config, root, &bundle.path, shown.as_ref(), &placed)?;
    if bundle.confinement.profile == Profile::Strict {
        fixups.confine(&bundle.engine, config, &bundle.judged, &bundle.carried, &record.confinement)?;
    }
    if !request.no_new_keyring {
        let name = CString::new(format!("_ses.{}", record.id)).unwrap_or_default();
        attributes::join_session_keyring(&name).during("join a new session keyring")?;
        // Execs join it by name.
        attributes::open_session_keyring().during("open the new session keyring")?;
    }
    // Not close-on-exec: what runs in the place of hooks writes to it.
    let report: fs::File = rustix::fs::memfd_create("hooks", MemfdFlags::empty()).during("make a memory file")?.into();
    let (mut places, locks) = cow::plan(cows, config, *make_layer)?;
    places.extend(volumes::places(volumes, config));
    place::order(&mut places);
    let _gate = start::make_gate(&record.dir)?;
    let parents = [bundle.lock.as_raw_fd(), report.as_raw_fd()].into_iter().chain(locks).collect();
    let given = Given { record, filter: program.clone(), listen_fds: request.listen_fds, parents };
    let payload = Payload::new(&bundle.engine, given)?;
    let namespaces = Joined::open(config)?;
    let identity = Identity::of(&record.seccomp);
    let source = launch::write(record, config, shown.as_ref(), &namespaces, identity, report.as_raw_fd(), places)?;
    let _maps = StandIn::of(record, config, report.as_raw_fd())?;
    let capture = ErrorCapture::new().during("make a memory file")?;
    let joined = match record.cgroup_path.is_absolute() {
        true => Some(cgroup::join_extra(&record.cgroup_path, all)?),
        false => None,
    };
    // Hooks run in the bundle, and libcontainer gives them its own current directory.
    let here = rustix::fs::open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let result = rustix::process::chdir(&record.bundle).on("change directory to", &record.bundle).and_then(|()| {
        capture
            .during(request.debug_log.as_ref(), || first_process(request, record, &source, payload, paths))
            .during("capture library errors")
    });
    if let Ok(here) = here {
        // A current directory that is gone is nothing to return to.
        let _ = rustix::process::fchdir(here);
    }
    let left = joined.map_or(Ok(()), cgroup::Joined::leave);
    let pid = result?.map_err(|err| {
        if let Some(told) = told_by_hooks(report) {
            return RuntimeError::Start(told);
        }
        let captured = capture.lines().unwrap_or_default();
        RuntimeError::Start(super::create_text::explain(&err.to_string(), &captured, &bundle.engine))
    })?;
    let complete = || {
        let placed = left.and_then(|()| cgroup::of_process(pid, all));
        let cgroups = cgroup::without_roots(placed?, all);
        if let Some(dir) = cgroups.iter().find(|dir| dir.controllers.split(',').any(|name| name == "devices")) {
            devices::without_tun(&dir.path, &config.value()["linux"]["resources"]["devices"])?;
        }
        if !v1 && rustix::process::geteuid().is_root() {
            // libcontainer as it is built here leaves devices alone on v2. Without root there is no right to do it, nor to
            // make device nodes.
            let rules = &config.value()["linux"]["resources"]["devices"];
            cgroups.iter().try_for_each(|dir| devices::confine(&dir.path, rules))?;
        }
        let memory = &config.value()["linux"]["resources"]["memory"];
        if !v1 && memory["limit"].as_i64().is_some_and(|limit| limit > 0 && memory["swap"].as_i64() == Some(limit)) {
            // libcgroups takes the difference, 0, for a value that is not given: there would be any amount of swap.
            let swap = cgroups.iter().map(|dir| dir.path.join("memory.swap.max")).filter(|file| file.exists());
            swap.into_iter().try_for_each(|file| members::write(&file, "0").on("write", &file))?;
        }
        own_loopback(pid, config)?;
        // Before anything is repaired: repairs would be made on what the first process does not see.
        if view::root_is_covered(pid)? {
            return Err(RuntimeError::CoveredRoot);
        }
        fixups.apply(pid)?;
        fixup::own_stdio(pid, config);
        Ok((pid, cgroups))
    };
    // What is asked of it fails one way or another once it is ending.
    complete().map_err(|err| if is_ending(pid) { ended_early() } else { err })
}

/// Whether a first process that was set up is on its way out, or gone.
fn is_ending(pid: i32) -> bool {
    proc::stat(pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.is_dead() || stat.exiting))
}

fn ended_early() -> RuntimeError {
    RuntimeError::Start("the first process ended before it was started".to_owned())
}

/// Brings the loopback interface up where the network namespace is the container's own, as other runtimes do.
fn own_loopback(pid: i32, config: &Config) -> Result<(), RuntimeError> {
    let own = config.namespaces().iter().any(|(kind, path)| kind == "network" && path.is_none());
    if own { loopback::bring_up_of(pid).during("bring up the container's loopback interface") } else { Ok(()) }
}

/// What a failed hook of this create said, at most [`HOOK_TEXT_MAX`] bytes of it.
fn told_by_hooks(mut report: fs::File) -> Option<String> {
    let mut bytes = Vec::new();
    report.rewind().and_then(|()| report.take(HOOK_TEXT_MAX).read_to_end(&mut bytes)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned()).filter(|text| !text.is_empty())
}

fn first_process(
    request: &CreateRequest,
    record: &Record,
    source: &Path,
    payload: Payload,
    paths: &Outputs,
) -> Result<i32, LibcontainerError> {
    let _hidden = HiddenCommandLine::hide();
    let container = ContainerBuilder::new(record.id.to_string(), SyscallType::default())
        .with_executor(payload)
        .with_root_path(record.dir.join(LIBCONTAINER))?
        .with_console_socket(paths.console_socket.clone())
        .with_preserved_fds(request.preserve_fds)
        .as_init(source)
        .with_systemd(!record.cgroup_path.is_absolute())
        .with_detach(true)
        .with_no_pivot(request.no_pivot)
        .build()?;
    let pid = container.pid().map(|pid| pid.as_raw());
    pid.ok_or_else(|| LibcontainerError::Other("no pid of the first process".to_owned()))
}

/// Makes the container known: record, pidfd, pid file.
fn publish(record: &mut Record, paths: &Outputs) -> Result<(), RuntimeError> {
    let stat = proc::stat(record.pid).during("read /proc")?.filter(|s| !s.is_dead()).ok_or_else(ended_early)?;
    record.start_time = stat.start_time;
    record.creator = None;
    record.save()?;
    if let Some(path) = &paths.pidfd_socket {
        let pidfd = record.init()?.ok_or_else(ended_early)?;
        socket::connect(path)
            .and_then(|s| socket::send_fd(s.as_fd(), pidfd.as_fd(), record.pid.to_string().as_bytes()))
            .on("send pidfd to", path)?;
    }
    if let Some(path) = &paths.pid_file {
        durable::deliver(path, record.pid.to_string().as_bytes(), 0o644, false).on("write pid file", path)?;
    }
    Ok(())
}
