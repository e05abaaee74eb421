//! What the profile `strict` costs: the same command in a container of each profile, taking turns.

use anyhow::ensure;

use super::Bench;
use crate::bench::lab::{Container, Lab};
use crate::bench::measure::{Contestant, Samples, alternate};
use crate::bench::report::Row;

/// The profiles, in the order of their rows: the ratio of the second's is what strict takes for one of its own.
const PROFILES: [&str; 2] = ["strict", "oci"];

/// An exec that changes nothing.
pub fn exec() -> Bench {
    bench("exec-true", "exec of `true`", |lab| execs(lab, lab.runs, "", &["true"]))
}

/// A container's whole life.
pub fn run() -> Bench {
    bench("run-true", "run of `true` in the foreground", |lab| {
        let bundles = [lab.bundle(&["true"])?, lab.bundle_of(&["true"], PROFILES[1])?];
        let subject = lab.subject();
        let contestants = PROFILES.iter().zip(&bundles).map(|(profile, bundle)| {
            Contestant::new(*profile, move |round| {
                let id = format!("{profile}-{round}");
                let run = ["run".as_ref(), "--bundle".as_ref(), bundle.as_os_str(), id.as_ref()];
                lab.timed(subject.command(run), 0)
            })
        });
        alternate(lab.runs, contestants.collect())
    })
}

/// Calls that do next to nothing, which the filter costs most: two for each byte that is copied.
pub fn calls(bytes: usize) -> Bench {
    let what = format!("exec of `dd bs=1`: {} calls that do next to nothing", 2 * bytes);
    bench("calls", &what, move |lab| {
        let count = format!("count={bytes}");
        execs(lab, super::fewer(lab), "", &["dd", "if=/dev/zero", "of=/dev/null", "bs=1", &count])
    })
}

/// Files, each opened, read and looked at.
pub fn tree(files: usize) -> Bench {
    let what = format!("exec of `tar` of a tree of {files} files");
    bench("tree", &what, move |lab| {
        let make = format!("mkdir /tree; i=0; while [ $i -lt {files} ]; do echo $i >/tree/$i; i=$((i+1)); done");
        execs(lab, super::fewer(lab), &make, &["tar", "-cf", "/dev/null", "/tree"])
    })
}

/// Processes, one after the other.
pub fn processes(count: usize) -> Bench {
    let what = format!("exec of a shell that runs {count} processes, one after the other");
    bench("processes", &what, move |lab| {
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/uname >/dev/null; i=$((i+1)); done");
        execs(lab, super::fewer(lab), "", &["sh", "-c", &script])
    })
}

fn bench(name: &str, what: &str, run: impl Fn(&Lab) -> anyhow::Result<Vec<Samples>> + 'static) -> Bench {
    let rows = move |lab: &Lab| Ok(Row::times(&run(lab)?));
    Bench::new(&format!("strict-{name}"), &format!("{what}, with profile strict, and with oci"), rows).alone(&PROFILES)
}

/// An exec of `args` in a container of each profile, in which the shell has done `before`. Sees to it that the containers
/// differ as they should.
fn execs(lab: &Lab, runs: usize, before: &str, args: &[&str]) -> anyhow::Result<Vec<Samples>> {
    let idle = ["sleep", "100000"];
    let strict = lab.container(lab.subject(), &idle)?;
    let oci = lab.container_of(lab.subject(), lab.bundle_of(&idle, PROFILES[1])?)?;
    let containers = [strict, oci];
    for (container, profile) in containers.iter().zip(PROFILES) {
        let status = format!("grep -q '^NoNewPrivs:.{}' /proc/self/status", i32::from(profile == "strict"));
        lab.timed(container.exec(&["sh", "-c", &format!("{before}\n{status}")]), 0)?;
    }
    let contestants = PROFILES
        .iter()
        .zip(&containers)
        .map(|(profile, container)| Contestant::new(*profile, move |_| lab.timed(container.exec(args), 0)));
    let samples = alternate(runs, contestants.collect())?;
    for container in &containers {
        ended_well(container)?;
    }
    Ok(samples)
}

/// The last exec did its work and changed nothing.
fn ended_well(container: &Container<'_>) -> anyhow::Result<()> {
    let shown = container.show()?;
    ensure!(shown["disposition"] == "empty" && shown["end"]["code"] == 0, "{}: {shown}", container.id);
    Ok(())
}
