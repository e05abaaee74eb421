//! Collecting what nothing refers to: plan, then execute.

use super::retain::{self, Gone, Rigour};
use super::{Context, OpsError};
use crate::store::gc::{GcPlan, GcReport, Kept};
use crate::store::{Container, RetentionPlan};

/// What would be, or was, collected.
#[derive(Debug)]
pub struct Collected {
    /// Histories that were over their bounds, each with what was to go.
    pub histories: Vec<(Container, RetentionPlan)>,
    /// What nothing referred to.
    pub plan: GcPlan,
    /// What came of it; none with `--dry-run`.
    pub done: Option<Done>,
}

/// What came of a plan.
#[derive(Debug, Default)]
pub struct Done {
    /// What went of histories.
    pub gone: Gone,
    /// Histories that are still over their bounds: they are being read or changed just now.
    pub busy: Vec<Container>,
    /// Histories that could not be brought within their bounds, and why.
    pub over: Vec<(Container, OpsError)>,
    /// What was deleted of what nothing referred to.
    pub report: GcReport,
    /// The layers that are there now.
    pub kept: Kept,
}

/// Plans, and executes unless `dry_run`.
pub fn collect(context: &Context, dry_run: bool) -> Result<Collected, OpsError> {
    let store = context.store_to_free()?;
    // Rows that can't be read, or are missing from an index, would make garbage of what is needed.
    store.require_sound()?;
    let bounds = &context.config.retention;
    let histories = retain::plans(&store, bounds)?;
    if dry_run {
        return Ok(Collected { histories, plan: store.plan_gc()?, done: None });
    }
    // Their data is found as garbage.
    let _rows = store.release_retired(None)?;
    let plan = store.plan_gc()?;
    // First: merging takes some space.
    let mut done = Done { report: store.execute_gc(&plan)?, ..Done::default() };
    for (container, _) in &histories {
        match retain::apply(&store, container, bounds, Rigour::Exact) {
            Ok(gone) => {
                done.gone.generations += gone.generations;
                done.gone.layers += gone.layers;
            }
            Err(err) => done.over.push((container.clone(), err)),
        }
    }
    done.busy = retain::plans(&store, bounds)?.into_iter().map(|(container, _)| container).collect();
    done.busy.retain(|container| done.over.iter().all(|(over, _)| over.key != container.key));
    done.kept = store.kept()?;
    Ok(Collected { histories, plan, done: Some(done) })
}
