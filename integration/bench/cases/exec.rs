//! One exec at a time, in the foreground, from spawn to exit.

use std::fs;

use anyhow::ensure;

use super::{Bench, fewer};
use crate::bench::lab::{Container, Lab};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// A command that changes nothing.
pub fn nothing() -> Bench {
    Bench::new("exec-true", "exec of `true`; agentsbx: layer made, compared, found empty", |lab| {
        let containers = running(lab)?;
        let contestants = containers.iter().map(|container| {
            let once = move |_| lab.timed(container.exec(&["true"]), 0);
            Contestant::of(&container.runtime, once)
        });
        let rows = Row::times(&alternate(lab.runs, contestants.collect())?);
        let shown = containers[0].show()?;
        ensure!(shown["disposition"] == "empty", "{shown}");
        Ok(rows)
    })
}

/// A command that makes a file.
pub fn touch() -> Bench {
    Bench::new("exec-touch", "exec of `touch FILE`, a new one; agentsbx: layer made, compared, committed", |lab| {
        let containers = running(lab)?;
        let contestants = containers.iter().map(|container| {
            Contestant::of(&container.runtime, move |round| {
                let name = format!("touched{round}");
                let took = lab.timed(container.exec(&["touch", &format!("/{name}")]), 0)?;
                made(container, &name, 1)?;
                Ok(took)
            })
        });
        Ok(Row::times(&alternate(lab.runs, contestants.collect())?))
    })
}

/// A command that makes many files.
pub fn many(count: usize) -> Bench {
    let name = format!("exec-{count}-files");
    let what = format!("exec that makes {count} empty files; agentsbx: committed, and without a layer (shared)");
    Bench::new(&name, &what, move |lab| {
        let containers = running(lab)?;
        let shared = lab.container(lab.subject(), &["sleep", "100000"])?;
        let mut contestants: Vec<_> = containers
            .iter()
            .map(|container| {
                let once = move |round| files(lab, container, &[], round, count);
                Contestant::of(&container.runtime, once)
            })
            .collect();
        let without = |round| files(lab, &shared, &["--layer", "shared"], round, count);
        contestants.push(Contestant::new("agentsbx, shared", without));
        Ok(Row::times(&alternate(fewer(lab), contestants)?))
    })
}

/// One such exec: a directory of its own with that many files, checked. They stay: to delete them between two runs would
/// keep the filesystem busy during the next.
pub fn files(lab: &Lab, container: &Container<'_>, flags: &[&str], round: usize, count: usize) -> anyhow::Result<f64> {
    let name = format!("many{round}");
    let script = format!("mkdir /{name} && cd /{name} && i=0 && while [ $i -lt {count} ]; do : >f$i; i=$((i+1)); done");
    let took = lab.timed(container.command("exec", flags, &["sh", "-c", &script]), 0)?;
    if flags.contains(&"shared") || !container.runtime.is_subject() {
        let list = fs::read_dir(container.path(&name))?.count();
        ensure!(list == count, "{list} files and not {count}");
    } else {
        made(container, &name, count + 1)?;
    }
    Ok(took)
}

/// Checks that what the exec made is where it belongs: in a committed layer, or else in the root filesystem.
fn made(container: &Container<'_>, name: &str, added: usize) -> anyhow::Result<()> {
    if !container.runtime.is_subject() {
        ensure!(container.path(name).exists(), "{name} was not made");
        return Ok(());
    }
    let shown = container.show()?;
    ensure!(shown["disposition"] == "committed", "not committed: {shown}");
    ensure!(shown["summary"]["added"] == added, "not {added} added: {}", shown["summary"]);
    ensure!(shown["changes"][0]["path"] == format!("/{name}"), "not {name}: {}", shown["changes"]);
    Ok(())
}

/// A container of each runtime.
pub fn running(lab: &Lab) -> anyhow::Result<Vec<Container<'_>>> {
    lab.runtimes.iter().map(|runtime| lab.container(runtime, &["sleep", "100000"])).collect()
}
