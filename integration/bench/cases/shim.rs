//! containerd's shims, driven by `ctr` under one containerd: how long its commands take, and what stays in memory.

use anyhow::ensure;

use super::memory::{descendants, of_process};
use super::{Bench, fewer};
use crate::bench::engine::{Engine, Shim};
use crate::bench::lab::{Lab, wait_for};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// The rows of a benchmark of times.
const WHO: [&str; 3] = ["agentsbx", "runc", "agentsbx, runc's shim"];
/// What is told of memory, and the rows that there must be.
const KINDS: [&str; 4] = ["RSS", "anonymous", "PSS", "files"];
const SIZES: [&str; 4] = ["agentsbx: RSS", "runc: RSS", "agentsbx: PSS", "agentsbx: files"];
/// Puts a container into a pod, whose containers one shim serves.
const POD: &str = "io.kubernetes.cri.sandbox-id=pod";

/// A container's whole life.
pub fn run() -> Bench {
    let what = "`ctr run --rm` of `true`: shim started, container made, run, deleted, shim gone";
    Bench::new("shim-run-true", what, |lab| {
        let (engine, shims) = (Engine::start(lab)?, Shim::all(lab)?);
        let contestants = shims.iter().map(|shim| {
            Contestant::new(shim.name, |round| {
                let id = format!("run-{round}");
                let took = lab.timed(engine.run(shim, &["--rm"], &id, &["true"]), 0)?;
                ensure!(engine.containers()?.trim().is_empty(), "{id} is still there");
                wait_for("the end of a shim", || engine.serving(shim).is_empty().then_some(()))?;
                Ok(took)
            })
        });
        Ok(Row::times(&alternate(lab.runs, contestants.collect())?))
    })
    .alone(&WHO)
}

/// Execs at once in one container, each with an exit code of its own; from the first `ctr` to the last.
pub fn execs(count: usize) -> Bench {
    let (name, what) = match count {
        1 => ("shim-exec-true".to_owned(), "`ctr tasks exec` of `true`".to_owned()),
        count => (
            format!("shim-exec-{count}"),
            format!("{count} `ctr tasks exec` at once, each with an exit code of its own; from first to last"),
        ),
    };
    Bench::new(&name, &what, move |lab| {
        let (engine, shims) = (Engine::start(lab)?, Shim::all(lab)?);
        let ids: Vec<_> = (0..shims.len()).map(|n| format!("box-{n}")).collect();
        for (shim, id) in shims.iter().zip(&ids) {
            engine.container(shim, &[], id)?;
        }
        let contestants = shims.iter().zip(&ids).map(|(shim, id)| {
            let engine = &engine;
            Contestant::new(shim.name, move |_| {
                if count == 1 {
                    return lab.timed(engine.exec(&[], id, &["true"]), 0);
                }
                let exec = |n: usize| {
                    let code = (n % 100) as i32;
                    (engine.exec(&[], id, &["sh", "-c", &format!("exit {code}")]), code)
                };
                lab.timed_together((0..count).map(exec).collect())
            })
        });
        let rows = Row::times(&alternate(if count == 1 { lab.runs } else { fewer(lab) }, contestants.collect())?);
        ids.iter().try_for_each(|id| engine.remove(id))?;
        Ok(rows)
    })
    .alone(&WHO)
}

/// What stays in memory.
#[derive(Debug, Clone, Copy)]
struct Load {
    containers: usize,
    /// All containers are one pod's.
    pod: bool,
    /// Execs that run in the first container.
    execs: usize,
}

/// Containers, each with a shim of its own.
pub fn memory(containers: usize) -> Bench {
    let what = format!("KiB that stay for {containers} containers with a shim each: shims, runtime, files of both");
    measured(&format!("shim-memory-{containers}"), &what, Load { containers, pod: false, execs: 0 })
}

/// Containers of one pod, which share a shim.
pub fn pod(containers: usize) -> Bench {
    let what = format!("KiB that stay for one pod of {containers} containers with one shim");
    measured(&format!("shim-memory-pod-{containers}"), &what, Load { containers, pod: true, execs: 0 })
}

/// Execs of one container.
pub fn busy(execs: usize) -> Bench {
    let what = format!("KiB that stay for one container while {execs} execs run: shim, and supervisors of execs");
    measured(&format!("shim-memory-execs-{execs}"), &what, Load { containers: 1, pod: false, execs })
}

fn measured(name: &str, what: &str, load: Load) -> Bench {
    let bench = Bench::new(name, what, move |lab| {
        let (engine, shims) = (Engine::start(lab)?, Shim::all(lab)?);
        let engine = &engine;
        let contestants =
            shims.iter().map(|shim| Contestant::new(shim.name, move |round| sizes(engine, shim, load, round)));
        Ok(Row::sizes(KINDS, &alternate(lab.runs.min(5), contestants.collect())?))
    });
    bench.alone(&SIZES)
}

/// Makes them, looks, takes them away.
fn sizes(engine: &Engine<'_>, shim: &Shim, load: Load, round: usize) -> anyhow::Result<[f64; 4]> {
    let lab: &Lab = engine.lab;
    let ids: Vec<_> = (0..load.containers).map(|n| format!("box-{round}-{n}")).collect();
    let options: &[&str] = if load.pod { &["--annotation", POD] } else { &[] };
    for id in &ids {
        engine.container(shim, options, id)?;
    }
    for _ in 0..load.execs {
        lab.timed(engine.exec(&["--detach"], &ids[0], &["sleep", "100000"]), 0)?;
    }
    // What they take while they wait, not while they start.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let serving = engine.serving(shim);
    let expected = if load.pod { 1 } else { load.containers };
    ensure!(serving.len() == expected, "{} shims and not {expected}", serving.len());
    let below: Vec<_> = serving.iter().flat_map(|&pid| descendants(pid)).collect();
    let sleeping = below.iter().filter(|&&pid| !shim.owns(pid)).count();
    let wanted = load.containers + load.execs;
    ensure!(sleeping == wanted, "{sleeping} processes of containers and not {wanted}");
    let mut all = [0.0; 4];
    for pid in serving.iter().chain(below.iter().filter(|&&pid| shim.owns(pid))) {
        for (sum, size) in all.iter_mut().zip(of_process(*pid)?) {
            *sum += size;
        }
    }
    all[3] = engine.kept(shim)?;
    ids.iter().try_for_each(|id| engine.remove(id))?;
    wait_for("the end of the shims", || engine.serving(shim).is_empty().then_some(()))?;
    Ok(all)
}
