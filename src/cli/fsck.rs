//! `fsck`.

use super::render::{Colour, Paint, visible};
use super::{Global, print};
use crate::ops::fsck::{self, Area, Repair, Report};
use crate::terms::count;

/// Check the store, and repair it with --repair; exits 0 if it is clean (now), 1 if problems are left, 2 if it can't be
/// checked
///
/// Looks at the files and their modes, at the database and every invariant of it, at the event log's hashes, at each path
/// that the layers should have, and at what was left behind. Nothing is changed and nothing need be writable without
/// --repair, and execs may run meanwhile. The contents of files are not read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document
    #[arg(long)]
    json: bool,
    /// Do what is safe: end what killed supervisors left, delete what nothing needs
    #[arg(long)]
    repair: bool,
    /// With --repair: say what would be done, do nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let context = global.context()?;
    let report = if args.repair && !args.dry_run { fsck::repair(&context)? } else { fsck::look(&context)? };
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&report)?)),
        false => print(&text(&report, args.dry_run, Paint::stdout())),
    }?;
    Ok(u8::from(!report.clean))
}

fn text(report: &Report, dry_run: bool, paint: Paint) -> String {
    let mut text = String::new();
    for done in &report.repaired {
        text.push_str(&format!("{} {}\n", paint.text(Colour::Good, "repaired"), visible(done)));
    }
    for problem in &report.problems {
        text.push_str(&format!("{} {}\n", paint.text(Colour::Bad, "problem"), visible(&problem.what)));
        let todo = match problem.repair {
            Repair::Recover if problem.area == Area::Leftovers => "would be deleted",
            Repair::Recover => "would be ended and its layer kept",
            Repair::Forget => "would be dropped, with all its generations and held layers",
            Repair::Collect => "would be deleted",
            Repair::Cgroup => "would be emptied and removed",
            Repair::Hand => "would be left alone",
        };
        if dry_run {
            text.push_str(&format!("        {todo}\n"));
        } else if let Some(advice) = &problem.advice {
            text.push_str(&format!("        {}\n", paint.text(Colour::Dim, advice)));
        }
    }
    for note in &report.notes {
        text.push_str(&format!("{} {}\n", paint.text(Colour::Dim, "note"), visible(note)));
    }
    let looked = &report.looked;
    text.push_str(&format!(
        "{}: {}, {}, {}, {}, {}\n",
        report.store.display(),
        count(looked.containers, "container"),
        count(looked.generations, "generation"),
        count(looked.execs, "exec"),
        count(looked.paths, "path"),
        count(looked.events, "event")
    ));
    let left = report.problems.len();
    let repairable = report.problems.iter().filter(|p| p.repair != Repair::Hand).count();
    text.push_str(&match (left, repairable) {
        (0, _) => format!("{}\n", paint.text(Colour::Good, "clean")),
        (1, 0) => "1 problem, which --repair can't repair\n".to_owned(),
        (1, _) => "1 problem, which `agentsbx fsck --repair` repairs\n".to_owned(),
        (n, 0) => format!("{n} problems, none of which can be repaired by --repair\n"),
        (n, _) => format!("{n} problems, {repairable} of which `agentsbx fsck --repair` repairs\n"),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::fsck::{Area, Looked, Problem};

    #[test]
    fn problems_advice_and_the_count() {
        let problem = |what: &str, repair, advice: Option<&str>| Problem {
            area: Area::Layers,
            what: what.into(),
            repair,
            advice: advice.map(str::to_owned),
        };
        let mut report = Report {
            store: "/s".into(),
            clean: false,
            problems: vec![
                problem("layer A\x1b[2J", Repair::Hand, Some("restore it")),
                problem("layer B", Repair::Collect, None),
            ],
            repaired: vec!["layer C: deleted".into()],
            notes: vec!["x".into()],
            looked: Looked { containers: 1, generations: 2, execs: 3, paths: 4, events: 5 },
        };
        assert_eq!(
            text(&report, false, Paint::plain()),
            "repaired layer C: deleted\n\
             problem layer A\\u{1b}[2J\n\
             \u{20}       restore it\n\
             problem layer B\n\
             note x\n\
             /s: 1 container, 2 generations, 3 execs, 4 paths, 5 events\n\
             2 problems, 1 of which `agentsbx fsck --repair` repairs\n"
        );
        assert!(text(&report, true, Paint::plain()).contains("layer B\n        would be deleted\n"));
        report.problems.clear();
        assert!(text(&report, false, Paint::plain()).ends_with("\nclean\n"));
    }
}
