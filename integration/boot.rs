//! The shim's program by itself, as containerd calls it, with nobody else there: `start`, the process that serves, its end,
//! `delete`.
//!
//! Needs root. No engine and no container.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use containerd_shim_protos::api::{ConnectRequest, ConnectResponse, DeleteResponse, ShutdownRequest};
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult};
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::{self, Client, Request};
use containerd_shim_protos::types::introspection::RuntimeInfo;

/// A bundle whose socket is in a directory of its own.
pub struct Lab {
    dir: tempfile::TempDir,
    namespace: String,
}

impl Lab {
    pub fn new(config: &str) -> Lab {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("bundle/rootfs")).expect("mkdir");
        fs::write(dir.path().join("bundle/config.json"), config).expect("write");
        // The socket's name is made of it, and nothing of this process's own.
        let namespace = crate::support::env::unique(&format!("boot-{}", std::process::id()));
        Lab { dir, namespace }
    }

    pub fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle")
    }

    fn sockets(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn command(&self, id: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_containerd-shim-agentsbx-v1"));
        command.args(["-namespace", &self.namespace, "-id", id, "-address", "/no/containerd.sock"]);
        command.args(["-publish-binary", "/no/containerd"]).current_dir(self.bundle());
        command
    }

    /// `start` as containerd 2.3 calls it.
    fn start_command(&self, id: &str) -> Command {
        let params = BootstrapParams {
            instance_id: id.into(),
            namespace: self.namespace.clone(),
            containerd_ttrpc_address: "/no/containerd.sock.ttrpc".into(),
            socket_dir: Some(self.sockets().display().to_string()),
            ..BootstrapParams::default()
        };
        let input = self.dir.path().join(format!("input-{id}-{:?}", std::thread::current().id()));
        fs::write(&input, params.write_to_bytes().expect("encode")).expect("write");
        let mut command = self.command(id);
        command.arg("start").stdin(fs::File::open(input).expect("open"));
        command
    }

    /// The same, to its end; the address.
    pub fn start(&self, id: &str) -> String {
        let mut command = self.start_command(id);
        // Both are read to their end, as containerd does: a server that held one would be waited for.
        let output = command.output().expect("run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
        let result = BootstrapResult::parse_from_bytes(&output.stdout).expect("a result");
        assert_eq!((result.version, result.protocol.as_str()), (2, "ttrpc"));
        result.address
    }

    /// The processes that serve.
    pub fn servers(&self) -> Vec<i32> {
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|b| *b == 0).collect();
            words.contains(&self.namespace.as_bytes()) && words.contains(&b"-socket".as_slice())
        };
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(serves).collect()
    }

    fn server(&self) -> i32 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers[0]
    }

    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.sockets()).expect("readdir").map(|entry| entry.expect("entry").path()).collect()
    }

    /// Waits, without a pause, until there is a socket.
    fn wait_bound(&self) {
        let begun = Instant::now();
        while !self.sockets().is_dir() || self.left().iter().all(|path| path.extension().is_some()) {
            assert!(begun.elapsed() < Duration::from_secs(15), "no socket");
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for pid in self.servers() {
            signal(pid, rustix::process::Signal::KILL);
        }
    }
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("kill");
}

#[track_caller]
pub fn within(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A request, by the name of the service.
pub fn ask(client: &Client, service: &str, method: &str, payload: Vec<u8>) -> ttrpc::Result<Vec<u8>> {
    let request = Request {
        service: service.into(),
        method: method.into(),
        timeout_nano: 20_000_000_000,
        payload,
        ..Request::default()
    };
    client.request(request).map(|response| response.payload)
}

/// Of sixteen that start a group at once one starts a server; each is told the same address; the server serves both names
/// of the service, and ends when it is asked to. Nothing is left.
#[test]
fn one_group_one_server() {
    let lab = Lab::new(r#"{"annotations": {"io.containerd.runc.v2.group": "pod"}}"#);
    let ids: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
    let addresses: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = ids.iter().map(|id| scope.spawn(|| lab.start(id))).collect();
        all.into_iter().map(|one| one.join().expect("start")).collect()
    });
    assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:?}");
    assert_eq!(fs::read_to_string(lab.bundle().join("address")).expect("address"), addresses[0]);
    let pid = lab.server();
    let client = Client::connect(&addresses[0]).expect("connect");
    for service in ["containerd.task.v2.Task", "containerd.task.v3.Task"] {
        let request = ConnectRequest { id: "c0".into(), ..ConnectRequest::default() };
        let answer = ask(&client, service, "Connect", request.write_to_bytes().expect("encode")).expect(service);
        let answer = ConnectResponse::parse_from_bytes(&answer).expect("decode");
        assert_eq!(answer.shim_pid, pid.unsigned_abs());
    }
    // Of sixteen that it was asked to wait for, each is given up.
    for id in ids {
        assert_eq!(lab.servers(), [pid], "it waits for {id}");
        let request = ShutdownRequest { id, ..ShutdownRequest::default() };
        ask(&client, "containerd.task.v2.Task", "Shutdown", request.write_to_bytes().expect("encode"))
            .expect("an answer");
    }
    within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());
    assert!(lab.left().is_empty(), "{:?}", lab.left());
}

/// The answer to the request that ends the server comes before its end, each time.
#[test]
fn the_last_answer_is_given() {
    let lab = Lab::new("{}");
    for round in 0..20 {
        let client = Client::connect(&lab.start("c")).expect("connect");
        let request = ShutdownRequest { id: "c".into(), ..ShutdownRequest::default() };
        let answer = ask(&client, "containerd.task.v3.Task", "Shutdown", request.write_to_bytes().expect("encode"));
        answer.unwrap_or_else(|err| panic!("round {round}: {err}"));
        within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());
    }
}

/// Asks the server to end, and looks whether its socket is served before it can remove that, as `start` and `delete` do:
/// under the lock beside it. The connection on which it was asked.
fn look_at_the_end(address: &str, look: impl FnOnce(&Path)) -> Client {
    let path = Path::new(address.strip_prefix("unix://").expect("an address"));
    let client = Client::connect(address).expect("connect");
    let lock = fs::File::create(path.with_extension("lock")).expect("create");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("flock");
    let request = ShutdownRequest { id: "c".into(), ..ShutdownRequest::default() };
    ask(&client, "containerd.task.v3.Task", "Shutdown", request.write_to_bytes().expect("encode")).expect("an answer");
    std::thread::sleep(Duration::from_millis(200));
    look(path);
    fs::remove_file(path.with_extension("lock")).expect("unlink");
    client
}

/// A start that finds the socket served while the server is about to end has told containerd of it: the server stays, for
/// the container that is to come.
#[test]
fn a_start_at_the_last_moment() {
    let lab = Lab::new("{}");
    let address = lab.start("c");
    let _asked =
        look_at_the_end(&address, |path| drop(std::os::unix::net::UnixStream::connect(path).expect("connect")));
    std::thread::sleep(Duration::from_secs(3));
    let request = ConnectRequest { id: "c".into(), ..ConnectRequest::default() };
    let client = Client::connect(&address).expect("connect");
    ask(&client, "containerd.task.v3.Task", "Connect", request.write_to_bytes().expect("encode")).expect("it serves");
    assert_eq!(lab.left().len(), 1, "{:?}", lab.left());
}

/// `delete`, which containerd calls when the last connection is closed, only looks whether the socket is served; its end
/// has a name. The server took that for the next container, and stayed for half a minute.
#[test]
fn who_only_looks_at_the_end_is_not_waited_for() {
    let lab = Lab::new("{}");
    let address = lab.start("c");
    let _asked = look_at_the_end(&address, |path| {
        let (unix, stream) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let socket = rustix::net::socket(unix, stream, None).expect("socket");
        rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new_unnamed()).expect("bind");
        rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path).expect("a path")).expect("connect");
    });
    within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());
    assert!(lab.left().is_empty(), "{:?}", lab.left());
}

/// What the server is to its host: a session of its own, nothing of the caller's open, a little more likely to be killed
/// than containerd, and who gets the orphans.
#[test]
fn how_the_server_stands() {
    let lab = Lab::new("{}");
    // A descriptor that the caller did not close.
    let (pipe, writer) = std::io::pipe().expect("pipe");
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).expect("fcntl");
    lab.start("c");
    drop(writer);
    let mut text = String::new();
    within(Duration::from_secs(10), "the pipe ends", || {
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(&pipe, rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }),
        )
        .is_ok_and(|ready| ready == 1)
    });
    std::io::Read::read_to_string(&mut &pipe, &mut text).expect("read");
    let pid = lab.server();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    assert_eq!((fields[2], fields[3]), (pid.to_string().as_str(), pid.to_string().as_str()), "group and session");
    let score = |pid: u32| -> i32 {
        let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("oom_score_adj");
        text.trim().parse().expect("a number")
    };
    assert_eq!(score(pid.unsigned_abs()), (score(std::process::id()) + 1).min(1000));
    for n in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{n}")).expect("readlink"), Path::new("/dev/null"));
    }
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).expect("readlink"), lab.bundle());
    // Another has the kernel wait for the first container, and ends.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).expect("tasks").count();
    within(Duration::from_secs(5), "one thread", || threads() == 1);
    signal(pid, rustix::process::Signal::TERM);
    within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());
    assert!(lab.left().is_empty(), "{:?}", lab.left());
}

/// A server that was killed leaves its socket: the next start replaces it, and `delete` removes it.
#[test]
fn after_a_server_was_killed() {
    let lab = Lab::new("{}");
    let first = lab.start("c");
    let socket = Path::new(first.strip_prefix("unix://").expect("an address"));
    // Its socket is open until its last thread has ended, which may be at work in the kernel.
    let refused = || std::os::unix::net::UnixStream::connect(socket).is_err();
    let kill = || {
        signal(lab.server(), rustix::process::Signal::KILL);
        within(Duration::from_secs(5), "it is gone", || lab.servers().is_empty() && refused());
    };
    let before = lab.server();
    kill();
    assert_eq!(lab.left().len(), 1);
    assert_eq!(lab.start("c"), first);
    assert_ne!(lab.server(), before);
    kill();
    let begun = Instant::now();
    let output = lab.command("c").arg("delete").stdin(Stdio::null()).output().expect("run");
    assert!(output.status.success() && begun.elapsed() < Duration::from_secs(5), "{output:?}");
    let answer = DeleteResponse::parse_from_bytes(&output.stdout).expect("decode");
    assert_eq!((answer.pid, answer.exit_status), (0, 137));
    assert!(lab.left().is_empty(), "{:?}", lab.left());
}

/// containerd kills a `start` whose client has given up, and has nobody look for what it has left: the server stayed for
/// five minutes, and a lock for good.
#[test]
fn a_start_that_is_killed_before_its_answer() {
    let lab = Lab::new("{}");
    // Nobody reads the answer, and there is no room for it.
    let (_reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("fcntl");
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).expect("fcntl");
    while std::io::Write::write(&mut writer, &[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).expect("fcntl");
    let mut start = lab.start_command("c").stdout(writer).spawn().expect("run");
    let address = lab.bundle().join("address");
    within(Duration::from_secs(15), "it is served", || {
        let text = fs::read_to_string(&address).unwrap_or_default();
        let socket = Path::new(text.strip_prefix("unix://").unwrap_or("/no"));
        socket.exists() && !socket.with_extension("lock").exists()
    });
    std::thread::sleep(Duration::from_millis(300));
    lab.server();
    start.kill().expect("kill");
    start.wait().expect("wait");
    within(Duration::from_secs(10), "the server has ended", || lab.servers().is_empty());
    assert!(lab.left().is_empty(), "{:?}", lab.left());
}

/// `start` and its server are killed as soon as there is a socket: what a containerd that starts then calls for the bundle
/// did not know where it was.
#[test]
fn a_start_that_is_killed_with_its_server() {
    for _ in 0..5 {
        let lab = Lab::new("{}");
        let mut start = lab.start_command("c").stdout(Stdio::null()).process_group(0).spawn().expect("run");
        lab.wait_bound();
        // The server is in the group until it serves.
        let group = rustix::process::Pid::from_child(&start);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("kill");
        start.wait().expect("wait");
        lab.servers().into_iter().for_each(|pid| signal(pid, rustix::process::Signal::KILL));
        within(Duration::from_secs(5), "they are gone", || lab.servers().is_empty());
        let output = lab.command("c").arg("delete").stdin(Stdio::null()).output().expect("run");
        assert!(output.status.success(), "{output:?}");
        assert!(lab.left().is_empty(), "{:?}", lab.left());
    }
}

/// A bundle that is removed while `delete` is in it, or before.
#[test]
fn delete_without_a_bundle() {
    let lab = Lab::new("{}");
    let mut command = lab.command("c");
    command.arg("delete").stdin(Stdio::null());
    let gone = format!("cd {0:?} && rm -rf {0:?} && exec \"$@\"", lab.bundle());
    let mut shell = Command::new("sh");
    shell.args(["-c", &gone, "sh"]).arg(command.get_program()).args(command.get_args());
    let output = shell.output().expect("run");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(DeleteResponse::parse_from_bytes(&output.stdout).expect("decode").exit_status, 137);
}

/// What older versions of containerd get, from a terminal's point of view too: the address alone, and errors in one line.
#[test]
fn flags_and_answers() {
    let lab = Lab::new("{}");
    let run = |args: &[&str]| {
        let output = lab.command("c").args(args).stdin(Stdio::null()).output().expect("run");
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).expect("UTF-8"))
    };
    let (code, out, err) = run(&["start"]);
    let address = String::from_utf8(out).expect("UTF-8");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let path = Path::new(address.strip_prefix("unix:///run/containerd/s/").expect("an address"));
    assert_eq!(path.as_os_str().len(), 64);
    signal(lab.server(), rustix::process::Signal::TERM);
    within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());

    let (code, out, err) = run(&["-bogus", "start"]);
    assert_eq!((code, out.len()), (Some(2), 0));
    assert_eq!(err, "containerd-shim-agentsbx-v1: flag provided but not defined: -bogus: invalid argument\n");
    let (code, _, err) = run(&["-bundle", "/no/such/bundle", "start"]);
    assert_eq!(code, Some(1));
    assert!(err.ends_with("/no/such/bundle/config.json: no such file or directory\n"), "{err}");
    let (code, out, _) = run(&["-v"]);
    let text = String::from_utf8(out).expect("UTF-8");
    assert_eq!(code, Some(0));
    assert!(
        text.contains(&format!("Version:  {}", env!("CARGO_PKG_VERSION"))) && text.contains("Revision: "),
        "{text}"
    );
    let (_, out, _) = run(&["-info"]);
    let info = RuntimeInfo::parse_from_bytes(&out).expect("decode");
    assert_eq!(info.name, "io.containerd.agentsbx.v1");
    let features: serde_json::Value = serde_json::from_slice(&info.features.value).expect("JSON");
    assert_eq!(features["linux"]["cgroup"]["v1"], true);
}

/// The cgroup that the options name is the server's; one that is not there is an error, and nothing is left running.
#[test]
fn a_cgroup_for_the_shim() {
    use containerd_shim_protos::protobuf::well_known_types::any::Any;
    let lab = Lab::new("{}");
    let start = |group: &str| {
        let options = containerd_shim_protos::shim::oci::Options { shim_cgroup: group.into(), ..Default::default() };
        let value = options.write_to_bytes().expect("encode");
        let any = Any { type_url: "containerd.runc.v1.Options".into(), value, ..Any::default() };
        let input = lab.dir.path().join("input");
        fs::write(&input, any.write_to_bytes().expect("encode")).expect("write");
        lab.command("c").arg("start").stdin(fs::File::open(&input).expect("open")).output().expect("run")
    };
    let output = start("/no-such-group-of-ours");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-group-of-ours"), "{output:?}");
    assert!(lab.servers().is_empty() && !lab.bundle().join("address").exists());
    // A group in one hierarchy is enough.
    let name = format!("agentsbx-test-{}-{}", std::process::id(), lab.namespace);
    let unified = Path::new("/sys/fs/cgroup/cgroup.procs").exists();
    let group = Path::new(if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/pids" }).join(&name);
    fs::create_dir(&group).expect("mkdir");
    let output = start(&name);
    let listed = fs::read_to_string(group.join("cgroup.procs")).expect("cgroup.procs");
    let server = lab.server();
    signal(server, rustix::process::Signal::TERM);
    within(Duration::from_secs(5), "the server ends", || lab.servers().is_empty());
    within(Duration::from_secs(5), "the group is empty", || fs::remove_dir(&group).is_ok());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(listed.trim(), server.to_string());
}
