//! What stays in memory while an exec runs.
//!
//! In the foreground every runtime has one process that waits. Under an engine (`--detach`) runc and crun have none: the
//! engine's shim waits, which this runtime needs besides its supervisor.

use std::fs;

use anyhow::Context;

use super::Bench;
use super::exec::running;
use crate::bench::lab::{Container, wait_for};
use crate::bench::measure::{Contestant, Samples, alternate};
use crate::bench::report::{Row, Unit};

/// Members of /proc/PID/smaps_rollup.
const KINDS: [(&str, &str); 3] = [("RSS", "Rss:"), ("anonymous", "Anonymous:"), ("PSS", "Pss:")];

/// Of the process that waits for an exec.
pub fn supervisor() -> Bench {
    let what = "KiB of the process that waits for an exec of `sleep`, in the foreground, and detached";
    let bench = Bench::new("memory", what, |lab| {
        let containers = running(lab)?;
        let found = std::cell::RefCell::new(std::collections::BTreeMap::<String, [Vec<f64>; 3]>::new());
        let mut who: Vec<_> = containers.iter().map(|c| (c, false)).collect();
        who.insert(1, (&containers[0], true));
        let contestants: Vec<_> = who
            .into_iter()
            .map(|(container, detached)| {
                let who = container.runtime.name.clone() + if detached { ", detached" } else { "" };
                let (name, found) = (who.clone(), &found);
                let once = move |round| {
                    let sizes = sizes(container, detached)?;
                    if round > 0 {
                        let mut found = found.borrow_mut();
                        let lists = found.entry(name.clone()).or_default();
                        for (list, size) in lists.iter_mut().zip(sizes) {
                            list.push(size);
                        }
                    }
                    Ok(sizes[0])
                };
                if detached { Contestant::new(who, once) } else { Contestant::of(&container.runtime, once) }
            })
            .collect();
        let order: Vec<String> = contestants.iter().map(|c| c.who.clone()).collect();
        let first = alternate(lab.runs.min(10), contestants)?;
        let mut rows = Vec::new();
        let found = found.into_inner();
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            for name in &order {
                let failed = first.iter().find(|s| s.who == *name).and_then(|s| s.failed.clone());
                let values = found.get(name).map(|lists| lists[at].clone()).unwrap_or_default();
                let samples = Samples { who: format!("{name}: {kind}"), values, failed };
                rows.push(Row { comparable: at == 0, ..Row::of(&samples, Unit::KiB) });
            }
        }
        Ok(rows)
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
    let rollup = fs::read_to_string(format!("/proc/{waiting}/smaps_rollup"))?;
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
    let size = |name: &str| -> anyhow::Result<f64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).context("a member of smaps_rollup")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok([size(KINDS[0].1)?, size(KINDS[1].1)?, size(KINDS[2].1)?])
}

/// All processes below one.
fn descendants(pid: u32) -> Vec<u32> {
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
