//! Collecting what nothing refers to: plan, then execute.

use super::{Context, OpsError};
use crate::store::gc::{GcPlan, GcReport};

/// What would be, or was, collected.
#[derive(Debug)]
pub enum Collected {
    /// `--dry-run`: the plan.
    Planned(GcPlan),
    /// The plan and what came of it.
    Done(GcPlan, GcReport),
}

/// Plans, and executes unless `dry_run`.
pub fn collect(context: &Context, dry_run: bool) -> Result<Collected, OpsError> {
    let store = context.store_to_free()?;
    // Rows that can't be read, or are missing from an index, would make garbage of what is needed.
    store.require_sound()?;
    let plan = store.plan_gc()?;
    if dry_run {
        return Ok(Collected::Planned(plan));
    }
    let report = store.execute_gc(&plan)?;
    Ok(Collected::Done(plan, report))
}
