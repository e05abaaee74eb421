//! `kill -9` of a pod's shim, of its first processes, of containerd with it, at any moment of a pod's life: the pod can be
//! removed as kubelets do it, another of its name runs, no exec's code is lost or wrong, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::client::{Refusal, text};
use super::node::{Node, container_config};
use super::of_each_release;
use crate::shim::census;
use crate::shim::daemon::{Release, SOON, Shim};
use crate::soak::random::Random;
use crate::soak::rounds;
use crate::support::env::unique;
use crate::support::{Cmd, wait_until};

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    /// The pod's shim, and what is just starting it.
    Shim,
    /// One process of those.
    OneOfShim,
    /// containerd with it; it is started again.
    Both,
    /// The shim while containerd is away.
    ShimAlone,
    /// The shim while containerd is stopped (SIGSTOP).
    ShimUnseen,
    /// Only containerd.
    Containerd,
    /// The runtime, whatever it does: it creates, starts, deletes, has execs supervised.
    Runtimes,
    /// The shim, with the runtime's processes.
    Tree,
    /// The pod's own first process.
    Pause,
    /// A container's.
    First,
}

const VICTIMS: [Victim; 10] = [
    Victim::Shim,
    Victim::OneOfShim,
    Victim::Both,
    Victim::ShimAlone,
    Victim::ShimUnseen,
    Victim::Containerd,
    Victim::Runtimes,
    Victim::Tree,
    Victim::Pause,
    Victim::First,
];

/// How far a pod's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    MakingPod = 1,
    Creating,
    Starting,
    Execs,
    Stopping,
    Removing,
    StoppingPod,
    RemovingPod,
    Over,
}

const STAGES: [Stage; 8] = [
    Stage::MakingPod,
    Stage::Creating,
    Stage::Starting,
    Stage::Execs,
    Stage::Stopping,
    Stage::Removing,
    Stage::StoppingPod,
    Stage::RemovingPod,
];

/// What pods differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// One pid namespace for all containers.
    SharedPids,
    /// A user namespace.
    Users,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::SharedPids, Kind::Users];

/// gRPC's codes for a deadline that is over and for a server that is gone.
const DEADLINE_EXCEEDED: i32 = 4;
const UNAVAILABLE: i32 = 14;
/// How many execs run at once.
const EXECS: i64 = 10;
/// How long a kubelet may have to try again until a pod is removed: after an error containerd itself waits for up to some
/// seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// What may be there for so long: a shim waits half a minute for a container that it was promised.
const GONE: Duration = Duration::from_secs(45);
/// What a pod's removal may take that waits for nothing but our side.
const REMOVAL: Duration = Duration::from_secs(15);

/// A node and what it is asked for.
struct Lab<'a> {
    node: &'a Node,
    kind: Kind,
    /// What the next pod is called.
    name: String,
}

/// Each exec's command: the code that it ends with, and what the client was told.
type Told = BTreeMap<String, (i64, Result<i64, String>)>;

impl Lab<'_> {
    fn more(&self) -> Value {
        let options = match self.kind {
            Kind::Plain => json!({}),
            Kind::SharedPids => json!({ "pid": "POD" }),
            Kind::Users => super::userns::namespace_options(),
        };
        json!({ "linux": { "security_context": { "namespace_options": options } } })
    }

    fn pod_config(&self, attempt: u32) -> Value {
        let mut config = self.node.pod_config(&self.name, &self.more()).0;
        config["metadata"]["attempt"] = json!(attempt);
        config["annotations"] = json!({ "dev.agentsbx.layer": "hold" });
        config
    }

    fn run_pod(&self, config: &Value) -> Result<String, Refusal> {
        let class = if self.kind == Kind::Users { "users" } else { "agentsbx" };
        let request = json!({ "config": config, "runtime_handler": class });
        Ok(self.node.try_call("RunPodSandbox", &request)?["pod_sandbox_id"].as_str().expect("an id").to_owned())
    }

    fn create(&self, pod: &str, config: &Value, args: &[&str]) -> Result<String, Refusal> {
        let container = container_config(args, &self.more());
        let request = json!({ "pod_sandbox_id": pod, "config": container, "sandbox_config": config });
        Ok(self.node.try_call("CreateContainer", &request)?["container_id"].as_str().expect("an id").to_owned())
    }

    fn verb(&self, method: &str, container: &str) -> Result<(), Refusal> {
        let mut request = json!({ "container_id": container });
        if method == "StopContainer" {
            request["timeout"] = json!(1);
        }
        self.node.try_call(method, &request).map(drop)
    }

    /// A pod's whole life, as far as it gets; each stage is told as it begins. A stop may be left to the removal.
    fn live(&self, begins: impl Fn(Stage) -> bool, told: &Mutex<Told>) -> Result<(), Refusal> {
        begins(Stage::MakingPod);
        let config = self.pod_config(0);
        let pod = self.run_pod(&config)?;
        begins(Stage::Creating);
        let deaf = "trap '' TERM; sleep 100000 & while :; do wait; sleep 0.1; done";
        let a = self.create(&pod, &config, &["sh", "-c", deaf])?;
        let b = self.create(&pod, &config, &["sh", "-c", "trap 'exit 5' TERM; sleep 100000 & wait"])?;
        begins(Stage::Starting);
        self.verb("StartContainer", &a)?;
        self.verb("StartContainer", &b)?;
        begins(Stage::Execs);
        let mark = unique("exec");
        thread::scope(|scope| {
            for n in 0..EXECS {
                let (container, mark) = (if n % 3 == 0 { &b } else { &a }, &mark);
                scope.spawn(move || {
                    let code = 40 + n;
                    let script = format!(": {mark}-{n}; echo {n} >/root/n; sleep 0.{n}; echo {n}; exit {code}");
                    let request = json!({ "container_id": container, "cmd": ["sh", "-c", script], "timeout": 20 });
                    let answer = self.node.try_call("ExecSync", &request);
                    let answer = answer.map_err(|err| err.to_string()).map(|answer| {
                        let ended = answer["exit_code"].as_i64().expect("a number");
                        if ended == code {
                            assert_eq!(text(&answer["stdout"]), format!("{n}\n"), "{script}");
                        }
                        ended
                    });
                    told.lock().expect("no panic").insert(format!("{mark}-{n};"), (code, answer));
                });
            }
        });
        if begins(Stage::Stopping) {
            self.verb("StopContainer", &a)?;
        }
        begins(Stage::Removing);
        self.verb("RemoveContainer", &a)?;
        let request = json!({ "pod_sandbox_id": pod });
        if begins(Stage::StoppingPod) {
            self.node.try_call("StopPodSandbox", &request)?;
        }
        begins(Stage::RemovingPod);
        self.node.try_call("RemovePodSandbox", &request)?;
        Ok(())
    }

    /// The pods that there are of this name.
    fn pods(&self) -> Vec<String> {
        let list = self.node.call("ListPodSandbox", &json!({}));
        let items = list["items"].as_array().expect("a list").iter();
        let ours = items.filter(|item| item["metadata"]["name"] == self.name.as_str());
        ours.map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// Removes all pods, trying again as kubelets do.
    fn remove_all(&self, when: &str) {
        let (begun, mut errors) = (Instant::now(), Vec::new());
        loop {
            let pods = self.pods();
            if pods.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{when}: not removed {pods:?}: {errors:#?}");
            for pod in pods {
                for method in ["StopPodSandbox", "RemovePodSandbox"] {
                    let asked = Instant::now();
                    let done = self.node.try_call(method, &json!({ "pod_sandbox_id": pod }));
                    let took = asked.elapsed();
                    assert!(took < REMOVAL, "{when}: {method} took {took:?}: {done:?}");
                    if let Err(err) = done {
                        errors.push(format!("{:?} {method}: {err}", begun.elapsed()));
                        break;
                    }
                }
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// A container that runs a command.
    fn run(&self, pod: &str, config: &Value) -> Result<(), Refusal> {
        let container = self.create(pod, config, &["sleep", "100000"])?;
        self.verb("StartContainer", &container)?;
        let request = json!({ "container_id": container, "cmd": ["sh", "-c", "exit 9"], "timeout": 20 });
        let ran = self.node.try_call("ExecSync", &request)?;
        assert_eq!(ran["exit_code"], 9, "{ran}");
        Ok(())
    }

    /// Another container in a pod that may be dead, and another pod of its name.
    fn again(&self, when: &str) {
        let config = self.pod_config(0);
        for pod in self.pods() {
            if let Err(err) = self.run(&pod, &config) {
                // Of whatever containerd misses, but at once, and said by it.
                assert!(![DEADLINE_EXCEEDED, UNAVAILABLE].contains(&err.code), "{when}: {err}");
            }
        }
        let config = self.pod_config(1);
        let pod = self.run_pod(&config).unwrap_or_else(|err| panic!("{when}: another pod of the name: {err}"));
        self.run(&pod, &config).unwrap_or_else(|err| panic!("{when}: a container of another pod: {err}"));
    }

    /// Everything that may be left of pods.
    fn census(&self, ids: &BTreeSet<String>) -> BTreeSet<String> {
        let containerd = &self.node.containerd;
        let mut found = census::census(containerd);
        // Other nodes of this machine have the same namespace.
        let run = containerd.run.display().to_string();
        let ours = |line: &str| line.contains(&run) || ids.iter().any(|id| line.contains(id));
        found.retain(|line| {
            let shared = line.starts_with("state: ") || line.starts_with("process: ") && line.contains("shim");
            !shared || ours(line)
        });
        // Of which kubelets know how many there are.
        for list in
            [["containers", "list", "-q"], ["snapshots", "list", ""], ["tasks", "list", "-q"], ["leases", "list", "-q"]]
        {
            let ctr = containerd.ctr(list.into_iter().filter(|word| !word.is_empty())).ok();
            found.extend(ctr.lines().map(|line| format!("{}: {line}", list[0])));
        }
        let network = containerd.network().expect("a network");
        let links = Cmd::new("nsenter").arg(format!("--net={}", network.display())).args(["ip", "-o", "link"]).ok();
        let links = links.lines().filter_map(|line| line.split_whitespace().nth(1));
        found.extend(links.map(|link| format!("link: {link}")));
        for socket in ids.iter().map(|id| census::socket_file(containerd, id)) {
            for path in [socket.with_extension("lock"), socket] {
                if path.exists() {
                    found.insert(format!("socket: {}", path.display()));
                }
            }
        }
        found
    }

    /// Removes the pods' cgroups, as a kubelet does; they must be empty.
    fn remove_cgroups(&self, when: &str) {
        let below = format!("{}/kubepods/burstable/{}", self.node.containerd.cgroup, self.name);
        let begun = Instant::now();
        for dir in fs::read_dir("/sys/fs/cgroup").expect("list").flatten() {
            let dir = dir.path().join(below.trim_start_matches('/'));
            while dir.is_dir() {
                if let Err(err) = fs::remove_dir(&dir) {
                    let inside = Cmd::new("find").arg(&dir).run().stdout;
                    assert!(begun.elapsed() < Duration::from_secs(15), "{when}: {}: {err}: {inside}", dir.display());
                    thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// The ids of all pods and containers that have a bundle.
    fn bundles(&self) -> BTreeSet<String> {
        let all = fs::read_dir(self.node.containerd.bundle("")).into_iter().flatten().flatten();
        all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn first_pid(&self, id: &str) -> Option<i32> {
        fs::read_to_string(self.node.containerd.bundle(id).join("init.pid")).ok()?.trim().parse().ok()
    }

    /// The first processes: the pod's own, and those of containers.
    fn first_processes(&self, pods: bool) -> Vec<i32> {
        let is_pod = |id: &String| {
            let config = fs::read(self.node.containerd.bundle(id).join("config.json")).unwrap_or_default();
            let config: Value = serde_json::from_slice(&config).unwrap_or_default();
            config["annotations"]["io.kubernetes.cri.container-type"] == "sandbox"
        };
        let bundles = self.bundles();
        bundles.iter().filter(|id| is_pod(id) == pods).filter_map(|id| self.first_pid(id)).collect()
    }

    /// The runtime's processes for this node.
    fn runtimes(&self) -> Vec<i32> {
        let run = self.node.containerd.run.display().to_string();
        let ids = self.bundles();
        let all = crate::shim::daemon::processes().into_iter();
        let ours = all.filter(|(_, line)| {
            let line = String::from_utf8_lossy(line);
            let runtime = line.contains("--root\0/run/containerd/agentsbx/k8s.io\0");
            runtime && (line.contains(&run) || ids.iter().any(|id| line.contains(id.as_str())))
        });
        ours.map(|process| process.0).collect()
    }

    /// Kills, and sees to it that containerd serves afterwards.
    fn kill(&self, victim: Victim, random: &mut Random) {
        let containerd = &self.node.containerd;
        // It may end by itself at the same time.
        let kill = |pid: i32, signal| kill_process(Pid::from_raw(pid).expect("a pid"), signal).unwrap_or_default();
        let all = |pids: Vec<i32>| pids.into_iter().for_each(|pid| kill(pid, Signal::KILL));
        let shims = || all(containerd.shims(None));
        let back = || {
            containerd.launch();
            self.node.wait_ready();
        };
        match victim {
            Victim::Shim => shims(),
            Victim::OneOfShim => {
                let shims: Vec<i32> = containerd.shims(None).into_iter().filter(|pid| !is_go_between(*pid)).collect();
                if !shims.is_empty() {
                    all(vec![*random.of(&shims)]);
                }
            }
            Victim::Both => {
                if random.below(2) == 0 {
                    containerd.kill(Signal::KILL);
                    shims();
                } else {
                    shims();
                    containerd.kill(Signal::KILL);
                }
                back();
            }
            Victim::ShimAlone => {
                containerd.kill(Signal::KILL);
                pause(random);
                shims();
                pause(random);
                back();
            }
            Victim::ShimUnseen => {
                let pid = fs::read_to_string(containerd.run.join("containerd.pid")).expect("a pid");
                let pid = pid.trim().parse().expect("a number");
                kill(pid, Signal::STOP);
                pause(random);
                shims();
                pause(random);
                kill(pid, Signal::CONT);
            }
            Victim::Containerd => {
                containerd.kill(Signal::KILL);
                pause(random);
                back();
            }
            Victim::Runtimes => all(self.runtimes()),
            Victim::Tree => all([containerd.shims(None), self.runtimes()].concat()),
            Victim::Pause => all(self.first_processes(true)),
            Victim::First => all(self.first_processes(false)),
        }
    }

    /// What the store has of execs, also of containers that are gone.
    fn events(&self) -> Vec<Value> {
        let file = self.node.containerd.store.join("db.sqlite");
        let db = rusqlite::Connection::open(file).expect("open the database");
        let mut query = db.prepare("SELECT payload FROM events WHERE kind = 'exec'").expect("prepare");
        let all = query.query_map([], |row| row.get::<_, String>(0)).expect("query");
        all.map(|row| serde_json::from_str(&row.expect("a row")).expect("JSON")).collect()
    }

    /// No code is lost or wrong: what a client was told is what the store has.
    fn assert_codes(&self, told: &Told, when: &str, spared: bool) {
        let events = self.events();
        for (mark, (code, answer)) in told {
            let known: Vec<&Value> = events.iter().filter(|event| event["args"].to_string().contains(mark)).collect();
            let what = format!("{when}: {mark} exits with {code}, {answer:?} was told, and the store has {known:#?}");
            assert!(known.len() <= 1, "{what}");
            let own = known.first().is_some_and(|event| event["end"]["code"] == *code);
            match answer {
                Ok(told) if told == code => assert!(own, "{what}"),
                // containerd does not know how it ended, or what the runtime made of it.
                Ok(told) => assert!(!spared && [137, 255].contains(told), "{what}"),
                Err(_) => assert!(!spared, "{what}"),
            }
        }
    }
}

/// What a node's pods live through before something is killed.
struct Plan {
    victim: Victim,
    stage: Stage,
    /// After the first of the pods has come so far.
    delay: Duration,
}

/// Whether a process is what has the shim started in the form of 2.3; containerd itself would have to be killed there.
fn is_go_between(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"/usr/bin/python3")
}

fn pause(random: &mut Random) {
    thread::sleep(Duration::from_millis(random.below(400)));
}

/// A pod's life with nothing killed: how long each stage takes.
fn calm(lab: &Lab<'_>) -> BTreeMap<Stage, Duration> {
    let times = Mutex::new(Vec::new());
    let told = Mutex::new(Told::new());
    let begins = |stage| {
        times.lock().expect("no panic").push((stage, Instant::now()));
        true
    };
    let lived = lab.live(begins, &told);
    lived.unwrap_or_else(|err| panic!("{:?}: {err}", lab.kind));
    let mut times = times.into_inner().expect("no panic");
    times.push((Stage::Over, Instant::now()));
    lab.assert_codes(&told.into_inner().expect("no panic"), "nothing killed", true);
    lab.remove_cgroups("nothing killed");
    times.windows(2).map(|pair| (pair[0].0, pair[1].1 - pair[0].1)).collect()
}

fn kill_amid(labs: &[Lab<'_>], plan: &Plan, random: &mut Random) {
    let (lab, Plan { victim, stage, delay }) = (&labs[0], plan);
    let containerd = &lab.node.containerd;
    let version = containerd.release.version();
    let when = format!("{version}, {} pods, {:?}: {victim:?} killed {delay:?} after {stage:?}", labs.len(), lab.kind);
    println!("{when}");
    let before = lab.census(&BTreeSet::new());
    let now = AtomicUsize::new(0);
    let mut ids = BTreeSet::new();
    let live = |lab: &Lab<'_>, leads: bool| {
        let told = Mutex::new(Told::new());
        let begins = |begun: Stage| {
            if leads {
                now.store(begun as usize, Ordering::Relaxed);
            }
            // Who removes what runs has it stopped.
            begun as usize + 1 != *stage as usize
        };
        // Errors are what it is about.
        let _ = lab.live(begins, &told);
        begins(Stage::Over);
        told.into_inner().expect("no panic")
    };
    let told: Vec<Told> = thread::scope(|scope| {
        let live = &live;
        let lives: Vec<_> = labs.iter().enumerate().map(|(n, lab)| scope.spawn(move || live(lab, n == 0))).collect();
        wait_until(&when, SOON * 6, || now.load(Ordering::Relaxed) >= *stage as usize);
        thread::sleep(*delay);
        ids.extend(lab.bundles());
        lab.kill(*victim, random);
        lives.into_iter().map(|life| life.join().expect("a life")).collect()
    });
    told.iter().for_each(|told| lab.assert_codes(told, &when, false));
    for lab in labs {
        if random.below(2) == 0 {
            lab.again(&when);
        }
    }
    ids.extend(labs.iter().flat_map(Lab::pods));
    ids.extend(lab.bundles());
    labs.iter().for_each(|lab| lab.remove_all(&when));
    // What a runtime leaves that is killed while it deletes.
    containerd.agentsbx(["recover"]).ok();
    labs.iter().for_each(|lab| lab.remove_cgroups(&when));
    let begun = Instant::now();
    loop {
        let mut left = lab.census(&ids);
        left.retain(|line| !before.contains(line) && !is_containerds(line, plan, labs.len()));
        if left.is_empty() {
            break;
        }
        assert!(begun.elapsed() < GONE, "{when}: left behind: {left:#?}");
        thread::sleep(Duration::from_millis(100));
    }
    let output = containerd.agentsbx(["fsck"]).run();
    assert_eq!(output.code, 0, "{when}: {}", output.both());
}

/// What is not the shim's: containerd leaves leases, which end after a day, snapshots, a pod's network, and bundles that it
/// has begun to remove, when it is killed; and it has nobody look for the socket when `start` and the server are killed at once, or a
/// server that ends after its last container.
fn is_containerds(line: &str, plan: &Plan, pods: usize) -> bool {
    let killed = [Victim::Containerd, Victim::Both, Victim::ShimAlone].contains(&plan.victim);
    let kinds = ["leases: ", "snapshots: ", "link: "];
    let files = ["/k8s.io/.", "/netns/cni-", "/addresses/"];
    let left = kinds.iter().any(|kind| line.starts_with(kind)) || files.iter().any(|file| line.contains(file));
    // Zombies that this machine's first process has not reaped yet have no arguments.
    let zombie = line.starts_with("process: ") && line.split_whitespace().count() < 3;
    let shim = ![Victim::Containerd, Victim::Runtimes, Victim::Pause, Victim::First].contains(&plan.victim);
    let is_up = pods == 1 && (Stage::Creating..=Stage::Execs).contains(&plan.stage);
    zombie || killed && left || shim && !is_up && line.starts_with("socket: ")
}

/// `pods` at a time, `rounds` of as many victims as are given.
fn kills(release: Release, pods: usize, rounds: u64, victims: usize) {
    if Shim::under_test() != Shim::Ours {
        return;
    }
    let node = Node::start(release);
    let mut random = Random::new("pods");
    let lab = |kind, what| Lab { node: &node, kind, name: unique(what) };
    let kinds = if release == Release::C2 { &KINDS[..] } else { &KINDS[..2] };
    let kinds = if rounds > 1 { kinds.to_vec() } else { vec![*random.of(kinds)] };
    let times: Vec<_> = kinds.iter().map(|kind| (*kind, calm(&lab(*kind, "calm")))).collect();
    for _ in 0..rounds {
        let first = usize::try_from(random.below(VICTIMS.len() as u64)).expect("small");
        for n in 0..victims {
            let (kind, times) = random.of(&times);
            let stage = *random.of(&STAGES);
            let limit = u64::try_from(times[&stage].as_micros()).expect("short") * 11 / 10 + 1;
            let delay = Duration::from_micros(random.below(limit));
            let plan = Plan { victim: VICTIMS[(first + n) % VICTIMS.len()], stage, delay };
            let labs: Vec<_> = (0..pods).map(|_| lab(*kind, "pod")).collect();
            kill_amid(&labs, &plan, &mut random);
        }
    }
}

of_each_release!(kills_amid_a_life);

/// A few.
fn kills_amid_a_life(release: Release) {
    kills(release, 1, 1, 3);
}

/// Many.
#[test]
#[ignore = "half an hour"]
fn kills_amid_a_life_long() {
    Release::ALL.into_iter().for_each(|release| kills(release, 1, rounds(10), VICTIMS.len()));
}

/// Many, of several pods at a time.
#[test]
#[ignore = "half an hour"]
fn kills_amid_lives_long() {
    Release::ALL.into_iter().for_each(|release| kills(release, 4, rounds(5), VICTIMS.len()));
}
