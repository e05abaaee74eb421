//! Many execs of one container at a time.

use anyhow::ensure;

use super::exec::running;
use super::{Bench, fewer};
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// `count` execs at once, each with a file and an exit code of its own, from the first spawn to the last exit.
pub fn execs(count: usize) -> Bench {
    let what = format!("{count} execs at once, each makes a file and exits with a code of its own; from first to last");
    Bench::new(&format!("parallel-{count}"), &what, move |lab| {
        let containers = running(lab)?;
        let contestants = containers.iter().map(|container| {
            Contestant::of(&container.runtime, move |round| {
                let command = |n: usize| {
                    let code = (n % 100) as i32;
                    let script = format!(": >/p{round}-{n}; exit {code}");
                    (container.exec(&["sh", "-c", &script]), code)
                };
                let took = lab.timed_together((0..count).map(command).collect())?;
                let list = format!("ls -d /p{round}-* | wc -l");
                let seen = lab.output(container.exec(&["sh", "-c", &list]))?;
                ensure!(seen.trim() == count.to_string(), "{} files of {count} are seen", seen.trim());
                Ok(took)
            })
        });
        let runs = if count > 10 { fewer(lab) } else { lab.runs };
        Ok(Row::times(&alternate(runs, contestants.collect())?))
    })
}
