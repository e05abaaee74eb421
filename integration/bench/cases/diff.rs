//! What it takes to say what changed.
//!
//! `seal`: all of an exec but its command: the time of the whole process less that of the command by its own clock
//! (`usage.wallNs` of its result). So it has in it what comes before the command (overlay, namespaces) and after it (the
//! comparison, the commit, the result). To take off the time of the same exec without a layer would say less: making
//! 100,000 files takes seconds, and not twice the same.
//! `diff`: the verb, which compares the layer with what is below again.
//! Both beside `find` over the layer's upper directory, which looks at each file once and compares nothing.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::exec::files;
use super::{Bench, fewer};
use crate::bench::lab::Lab;
use crate::bench::measure::{Contestant, alternate};
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

/// What an exec costs besides its command, by files that it makes.
pub fn seal(count: usize) -> Bench {
    let what = format!("exec that makes {count} files, less its command's own time; find -printf over its layer");
    let bench = Bench::new(&format!("seal-{count}"), &what, move |lab| {
        let container = lab.container(lab.subject(), &["sleep", "100000"])?;
        let newest = RefCell::new(PathBuf::new());
        let known = RefCell::new(lab.layers()?);
        let contestants = vec![
            Contestant::new("agentsbx", |round| {
                let took = files(lab, &container, &["--timeout", "0"], round, count)?;
                let wall = container.show()?["usage"]["wallNs"].as_f64().context("a result without wallNs")?;
                let layers = lab.layers()?;
                // A merged layer may have been made too: that has the older directories besides.
                let is_it = |layer: &&PathBuf| {
                    let alone = || fs::read_dir(layer.join("upper")).is_ok_and(|entries| entries.count() == 1);
                    !known.borrow().contains(layer) && alone()
                };
                let new = layers.iter().find(is_it);
                *newest.borrow_mut() = new.context("the exec left no layer")?.join("upper");
                *known.borrow_mut() = layers;
                Ok(took - wall)
            }),
            Contestant::new("find", |_| lab.timed(find(&newest.borrow()), 0)),
        ];
        Ok(Row::times(&alternate(fewer(lab), contestants)?))
    });
    bench.alone(&["agentsbx", "find"])
}

/// The same words about each file that a diff has.
fn find(upper: &Path) -> Command {
    let mut command = Command::new("find");
    command.arg(upper).args(["-printf", "%p %s %m %U %G %T@\\n"]);
    command
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
    let upper = layer.join("upper");
    let lines = lab.output(find(&upper))?.lines().count();
    ensure!(lines > count, "find sees {lines} files of {count}");
    let contestants = vec![
        Contestant::new("agentsbx", |_| lab.timed(diff(), 0)),
        Contestant::new("find", |_| lab.timed(find(&upper), 0)),
    ];
    Ok(Row::times(&alternate(fewer(lab), contestants)?))
}
