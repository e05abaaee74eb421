//! The benchmarks, in the order in which they run.

mod depth;
mod diff;
mod exec;
mod life;
mod memory;
mod parallel;
mod rollback;
mod shim;
mod strict;

use super::Args;
use super::lab::{Lab, SUBJECT};
use super::report::Row;

/// Runs one benchmark.
pub type Run = Box<dyn Fn(&Lab) -> anyhow::Result<Vec<Row>>>;

/// One benchmark.
pub struct Bench {
    /// What it is called.
    pub name: String,
    /// What is measured, in a line.
    pub what: String,
    /// The rows of its table that are the subject's own.
    pub subjects: Vec<String>,
    /// Whether each peer has a row too.
    pub peers: bool,
    /// Measures.
    pub run: Run,
}

impl Bench {
    fn new(name: &str, what: &str, run: impl Fn(&Lab) -> anyhow::Result<Vec<Row>> + 'static) -> Bench {
        let subjects = vec![SUBJECT.to_owned()];
        Bench { name: name.to_owned(), what: what.to_owned(), subjects, peers: true, run: Box::new(run) }
    }

    fn alone(self, subjects: &[&str]) -> Bench {
        let subjects = subjects.iter().map(|&who| who.to_owned()).collect();
        Bench { subjects, peers: false, ..self }
    }
}

/// All of them.
pub fn all(args: &Args) -> Vec<Bench> {
    let files: &[usize] = if args.quick { &[10] } else { &[1_000, 10_000, 100_000] };
    let generations: [usize; 3] = if args.quick { [1, 2, 3] } else { [1, 100, 1_000] };
    let together: &[usize] = if args.quick { &[1, 3] } else { &[1, 10, 100] };
    let many = if args.quick { 10 } else { 1_000 };
    let mut all =
        vec![life::version(), exec::nothing(), exec::touch(), exec::many(many), life::run(), life::by_steps()];
    all.extend(files.iter().map(|&n| diff::seal(n)));
    all.extend(files.iter().flat_map(|&n| diff::compare(n)));
    all.push(rollback::one_step());
    all.push(depth::generations(generations));
    all.extend(together.iter().map(|&n| parallel::execs(n)));
    all.push(memory::supervisor());
    let (calls, tree, processes) = if args.quick { (1_000, 10, 10) } else { (500_000, 3_000, 300) };
    all.extend([strict::exec(), strict::run(), strict::calls(calls), strict::tree(tree), strict::processes(processes)]);
    let some = if args.quick { 2 } else { 20 };
    let at_once = if args.quick { 2 } else { 10 };
    all.extend([shim::run(), shim::execs(1), shim::execs(at_once)]);
    all.extend([shim::memory(1), shim::memory(some), shim::pod(some), shim::busy(at_once)]);
    all
}

/// Rounds of a benchmark whose single run takes long.
fn fewer(lab: &Lab) -> usize {
    (lab.runs / 4).max(5).min(lab.runs)
}
