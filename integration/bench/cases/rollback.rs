//! Going back, as a command.

use anyhow::ensure;

use super::Bench;
use crate::bench::measure::{Contestant, alternate};
use crate::bench::report::Row;

/// One small step back, and forward again.
pub fn one_step() -> Bench {
    let what = "rollback over one generation with one new file, and back to it";
    let bench = Bench::new("rollback", what, |lab| {
        let container = lab.container(lab.subject(), &["sleep", "100000"])?;
        for name in ["/one", "/two"] {
            lab.timed(container.exec(&["touch", name]), 0)?;
        }
        // Both in one round, so that each finds HEAD where it needs it; the turns do not matter here.
        let seen = |there: bool| {
            let code = i32::from(!there);
            let flags = ["--layer", "discard"];
            lab.timed(container.command("exec", &flags, &["test", "-e", "/two"]), code).map(|_| ())
        };
        let back = std::cell::RefCell::new(Vec::new());
        let both = Contestant::new("agentsbx", |round| {
            let took = lab.timed(container.command("rollback", &[], &["@-1"]), 0)?;
            seen(false)?;
            let again = lab.timed(container.command("rollback", &[], &["2"]), 0)?;
            seen(true)?;
            if round > 0 {
                back.borrow_mut().push(again);
            }
            Ok(took)
        });
        let mut samples = alternate(lab.runs, vec![both])?;
        let forward =
            crate::bench::measure::Samples { who: "agentsbx, forward".into(), values: back.into_inner(), failed: None };
        ensure!(forward.values.len() == samples[0].values.len(), "a round was lost");
        samples.push(forward);
        Ok(Row::times(&samples))
    });
    bench.alone(&["agentsbx", "agentsbx, forward"])
}
