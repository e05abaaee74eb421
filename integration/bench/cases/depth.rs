//! Whether an exec costs more where there is much history.

use anyhow::ensure;

use super::{Bench, fewer};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// The same exec at three generations; the deepest is the first row, so that the ratios say how many times the others it
/// takes.
pub fn generations(of: [usize; 3]) -> Bench {
    let mut deepest_first = of;
    deepest_first.reverse();
    let names = deepest_first.map(|n| format!("generation {n}"));
    let what = "exec of `touch FILE`, discarded, so that the generation stays";
    let bench = Bench::new("depth", what, move |lab| {
        let mut containers = Vec::new();
        for n in deepest_first {
            let container = lab.container(lab.subject(), &["sleep", "100000"])?;
            for step in 0..n {
                lab.timed(container.exec(&["touch", &format!("/step{step}")]), 0)?;
            }
            containers.push((n, container));
        }
        let contestants = containers.iter().map(|(n, container)| {
            Contestant::new(format!("generation {n}"), move |_| {
                lab.timed(container.command("exec", &["--layer", "discard"], &["touch", "/more"]), 0)
            })
        });
        let rows = Row::times(&alternate(fewer(lab).max(lab.runs / 2), contestants.collect())?);
        for (n, container) in &containers {
            let shown = container.show()?;
            let fine = shown["disposition"] == "discarded" && shown["generation"]["base"] == *n;
            ensure!(fine && shown["summary"]["added"] == 1, "not at generation {n}: {shown}");
        }
        Ok(rows)
    });
    bench.alone(&names.each_ref().map(String::as_str))
}
