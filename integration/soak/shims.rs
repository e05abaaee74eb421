//! `kill -9` of an engine's shim, with execs running: the runtime is called by nobody any more, and nothing is left all the
//! same.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::random::Random;
use crate::support::engines::{Engines, engines};
use crate::support::env::{process, unique};
use crate::support::images::BUSYBOX;
use crate::support::{Cmd, wait_until};

fn ctr_run(engines: &Engines, id: &str) {
    let wrapper = engines.with_ctr_image().wrapper.display().to_string();
    let cgroup = format!("{}/ctr/{id}", process().cgroup);
    let options = ["--runtime", "io.containerd.runc.v2", "--runc-binary", &wrapper, "--cgroup", &cgroup];
    engines.ctr(["run", "--detach"]).args(options).args([BUSYBOX, id, "sleep", "100000"]).ok();
}

/// The shim of a container: by its arguments.
fn shim(id: &str) -> Option<Pid> {
    for entry in fs::read_dir("/proc").expect("list /proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        if words[0].ends_with(b"containerd-shim-runc-v2") && words.contains(&id.as_bytes()) {
            return Pid::from_raw(pid);
        }
    }
    None
}

fn killed_shims(rounds: u64) {
    let engines = engines();
    let mut random = Random::new("shims");
    for round in 0..rounds {
        let id = unique("shim");
        let when = format!("round {round}");
        ctr_run(engines, &id);
        let script = "echo 1 >/x; sleep 0.05; echo 2 >/y";
        let execs: Vec<_> = (0..3)
            .map(|_| {
                let exec = unique("exec");
                engines.ctr(["tasks", "exec", "--exec-id", &exec, &id, "sh", "-c", script]).spawn()
            })
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(200_000)));
        kill_process(shim(&id).expect("the shim"), Signal::KILL).expect("kill the shim");
        execs.into_iter().for_each(|exec| drop(exec.wait()));
        engines.ctr(["tasks", "kill", "--signal", "KILL", &id]).run();
        engines.ctr(["tasks", "delete", "--force", &id]).run();
        engines.ctr(["containers", "delete", &id]).run();
        // containerd calls `delete` when it finds its shim gone; where it does not, somebody else must.
        wait_until("the end of the container", Duration::from_secs(20), || {
            engines.agentsbx(["recover"]).run();
            !engines.agentsbx(["log"]).ok().contains(&id)
        });
        let output = engines.agentsbx(["fsck"]).run();
        let mine = output.stdout.lines().filter(|line| line.contains(&id)).count();
        assert!(output.code != 2 && mine == 0, "{when}: {}", output.both());
        let group = format!("*/ctr/{id}*");
        let groups = Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", &group]).run().stdout;
        assert_eq!(groups, "", "{when}");
    }
}

/// A few.
#[test]
fn a_killed_shim() {
    killed_shims(3);
}

/// Many.
#[test]
#[ignore = "five minutes"]
fn killed_shims_long() {
    killed_shims(super::rounds(1000) / 10);
}
