//! What stays in memory while an exec runs.
//!
//! In the foreground every runtime has one process that waits. Under an engine (`--detach`) runc and crun have none: the
//! engine's shim waits, which this runtime needs besides its supervisor.

use std::fs;

use anyhow::Context;

use super::Bench;
use super::exec::running;
use crate::bench::lab::{Container, wait_for};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// Members of /proc/PID/smaps_rollup.
pub const KINDS: [(&str, &str); 3] = [("RSS", "Rss:"), ("anonymous", "Anonymous:"), ("PSS", "Pss:")];

/// Of the process that waits for an exec.
pub fn supervisor() -> Bench {
    let what = "KiB of the process that waits for an exec of `sleep`, in the foreground, and detached";
    let bench = Bench::new("memory", what, |lab| {
        let containers = running(lab)?;
        let mut who: Vec<_> = containers.iter().map(|c| (c, false)).collect();
        who.insert(1, (&containers[0], true));
        let contestants = who.into_iter().map(|(container, detached)| {
            let once = move |_| sizes(container, detached);
            match detached {
                true => Contestant::new(format!("{}, detached", container.runtime.name), once),
                false => Contestant::of(&container.runtime, once),
            }
        });
        Ok(Row::sizes(KINDS.map(|(kind, _)| kind), &alternate(lab.runs.min(10), contestants.collect())?))
    });
    bench.alone(&["agentsbx: RSS", "agentsbx, detached: RSS", "agentsbx: anonymous", "agentsbx: PSS"])
}

/// One exec of `sleep`: the sizes of the process that waits for it, in the order of [`KINDS`].
fn sizes(container: &Container<'_>, detached: bool) -> anyhow::Result<[f64; 3]> {
    let lab = container.lab;
    let (waiting, child) = if detached {
        let file = lab.dir.join("exec.pid");
        let path = file.to_str().context("a path that is text")?;
        lab.timed(container.command("exec", &["--detach", "--pid-file", path], &["sleep", "1000"]), 0)?;
        (fs::read_to_string(&file)?.parse()?, None)
    } else {
        let child = lab.started(container.exec(&["sleep", "1000"]))?;
        (child.id(), Some(child))
    };
    let command = wait_for("the sleep", || descendants(waiting).into_iter().find(|&pid| sleeps(pid)))?;
    // What it takes while it waits, not while it starts.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let sizes = of_process(waiting)?;
    let pid = rustix::process::Pid::from_raw(command as i32).context("a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    match child {
        Some(mut child) => {
            child.wait()?;
        }
        // Not our child: it is gone, or waits to be reaped.
        None => wait_for("the end of the supervisor", || {
            let stat = fs::read_to_string(format!("/proc/{waiting}/stat"));
            stat.map_or(Some(()), |stat| stat.contains(") Z ").then_some(()))
        })?,
    }
    Ok(sizes)
}

/// What a process takes, KiB, in the order of [`KINDS`].
pub fn of_process(pid: u32) -> anyhow::Result<[f64; 3]> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).with_context(|| path.clone())?;
    let size = |name: &str| -> anyhow::Result<f64> {
        let line =
            rollup.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("{name} in {path}"))?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok([size(KINDS[0].1)?, size(KINDS[1].1)?, size(KINDS[2].1)?])
}

/// All processes below one.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

fn sleeps(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\0"))
}
