//! Start-up, and a container's whole life.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;

use super::Bench;
use crate::bench::lab::{Lab, Runtime};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// How long a runtime takes to be there.
pub fn version() -> Bench {
    Bench::new("version", "--version: the runtime's own start; a static busybox true is the machine's floor", |lab| {
        let mut contestants = Vec::new();
        for runtime in &lab.runtimes {
            contestants.push(Contestant::of(runtime, move |_| lab.timed(runtime.command(["--version"]), 0)));
        }
        let floor = lab.bundle(&["true"])?.join("rootfs/bin/true");
        contestants.push(Contestant::new("true", move |_| lab.timed(Command::new(&floor), 0)));
        Ok(Row::times(&alternate(lab.runs, contestants)?))
    })
}

/// `run` in the foreground.
pub fn run() -> Bench {
    Bench::new("run-true", "run of `true` in the foreground: container made, run, deleted", |lab| {
        each(lab, |runtime, bundle, id| {
            let run = ["run".as_ref(), "--bundle".as_ref(), bundle.as_os_str(), id.as_ref()];
            lab.timed(runtime.command(run), 0)
        })
    })
}

/// The three calls that an engine makes.
pub fn by_steps() -> Bench {
    Bench::new(
        "create-start-delete",
        "create, start, delete --force of `true`: the three commands' times added",
        |lab| {
            each(lab, |runtime, bundle, id| {
                let create = ["create".as_ref(), "--bundle".as_ref(), bundle.as_os_str(), id.as_ref()];
                let created = lab.timed(runtime.command(create), 0)?;
                let started = lab.timed(runtime.command(["start", id]), 0)?;
                Ok(created + started + lab.timed(runtime.command(["delete", "--force", id]), 0)?)
            })
        },
    )
}

/// Each runtime with a bundle of its own whose process is `true`; checks that no container stays.
fn each(lab: &Lab, life: impl Fn(&Runtime, &PathBuf, &str) -> anyhow::Result<f64>) -> anyhow::Result<Vec<Row>> {
    let life = RefCell::new(life);
    let mut contestants = Vec::new();
    for runtime in &lab.runtimes {
        let bundle = lab.bundle(&["true"])?;
        let name = bundle.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let life = &life;
        contestants.push(Contestant::of(runtime, move |round| {
            // As unique as the bundle: what a peer has left behind is in nobody's way.
            let id = format!("{name}-{round}");
            let took = life.borrow()(runtime, &bundle, &id)?;
            let left = lab.output(runtime.command(["list", "--quiet"]))?;
            ensure!(!left.lines().any(|line| line == id), "{id} is still there");
            Ok(took)
        }));
    }
    Ok(Row::times(&alternate(lab.runs, contestants)?))
}
