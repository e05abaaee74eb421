//! What it takes to say what changed.
//!
//! `seal`: at an exec's end, as the difference, round by round, between the same exec with a layer and without. So it
//! has in it all that a layer costs: the overlay, copying nothing, the comparison, the commit, the result; less what
//! writing into an overlay costs more than into the directory itself is not taken off.
//! `diff`: the verb, which compares the layer with what is below again, beside `find` over the same upper directory.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use super::exec::files;
use super::{Bench, fewer};
use crate::bench::lab::{Container, Lab};
use crate::bench::measure::{Contestant, alternate, difference};
use crate::bench::report::Row;

/// The four kinds of change: name, script for one directory `$d` of files, and the summary's member that counts it.
const KINDS: [(&str, &str, &str); 4] = [
    ("added", "for f in $d/*; do echo new >$f.new; done", "added"),
    ("modified-other-size", "for f in $d/*; do echo more >>$f; done", "modified"),
    ("modified-same-size", "for f in $d/*; do echo 9876543210 >$f; done", "modified"),
    ("deleted", "cd $d; rm -f *", "deleted"),
];

/// Files in a directory.
const PER_DIRECTORY: usize = 100;

/// The cost of a layer at an exec's end, by files.
pub fn seal(count: usize) -> Bench {
    let what = format!("exec that makes {count} files: with a layer (made, compared, committed), without (shared)");
    let bench = Bench::new(&format!("seal-{count}"), &what, move |lab| {
        let layered = lab.container(lab.subject(), &["sleep", "100000"])?;
        let shared = lab.container(lab.subject(), &["sleep", "100000"])?;
        let contestants = vec![
            Contestant::new("agentsbx", |round| files(lab, &layered, &["--timeout", "0"], round, count)),
            Contestant::new("agentsbx, shared", |round| {
                files(lab, &shared, &["--timeout", "0", "--layer", "shared"], round, count)
            }),
        ];
        let samples = alternate(fewer(lab), contestants)?;
        let mut rows = Row::times(&samples);
        rows.push(Row::apart(&difference("what the layer costs", &samples[0], &samples[1])));
        Ok(rows)
    });
    bench.alone(&["agentsbx", "agentsbx, shared", "what the layer costs"])
}

/// The verb, by files and kind of change.
pub fn compare(count: usize) -> Vec<Bench> {
    let bench = |(at, (kind, _, _)): (usize, &(&str, &str, &str))| {
        let what =
            format!("`diff C 0..1 --json` of {count} files {kind}, beside find -printf over the upper directory");
        let run = move |lab: &Lab| one(lab, count, at);
        Bench::new(&format!("diff-{count}-{kind}"), &what, run).alone(&["agentsbx", "find"])
    };
    KINDS.iter().enumerate().map(bench).collect()
}

fn one(lab: &Lab, count: usize, kind: usize) -> anyhow::Result<Vec<Row>> {
    let (_, script, counted) = KINDS[kind];
    let bundle = lab.bundle(&["sleep", "100000"])?;
    for n in 0..count {
        let dir = bundle.join(format!("rootfs/data/{}", n / PER_DIRECTORY));
        if n % PER_DIRECTORY == 0 {
            fs::create_dir_all(&dir)?;
        }
        let mut file = fs::File::create(dir.join(format!("f{n}")))?;
        std::io::Write::write_all(&mut file, b"0123456789\n")?;
    }
    let container = lab.container_of(lab.subject(), bundle)?;
    let before = lab.layers()?;
    let script = format!("for d in /data/*; do ({script}); done");
    lab.timed(container.command("exec", &["--timeout", "0"], &["sh", "-c", &script]), 0)?;
    let layer = lab.layers()?.into_iter().find(|layer| !before.contains(layer)).context("the exec left no layer")?;
    let diff = || container.command("diff", &["--json"], &["0..1"]);
    let summary = lab.json(diff())?["summary"].clone();
    ensure!(summary[counted] == count, "not {count} {counted}: {summary}");
    let find = || {
        let mut command = Command::new("find");
        command.arg(layer.join("upper")).args(["-printf", "%p %s %m %U %G %T@\\n"]);
        command
    };
    let lines = lab.output(find())?.lines().count();
    ensure!(lines > count, "find sees {lines} files of {count}");
    let contestants =
        vec![Contestant::new("agentsbx", |_| lab.timed(diff(), 0)), Contestant::new("find", |_| lab.timed(find(), 0))];
    let rows = Row::times(&alternate(fewer(lab), contestants)?);
    drop::<Container<'_>>(container);
    Ok(rows)
}
