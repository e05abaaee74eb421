//! `gc`.

use super::render::{self, visible};
use super::{Global, print};
use crate::error::chain;
use crate::id::Generation;
use crate::ops::gc;
use crate::store::gc::{Garbage, GcPlan};
use crate::store::{Container, Dropped, RetentionPlan};
use crate::terms::Bound;

/// Delete what nothing refers to any more from the store, and what of histories is over the bounds of [retention]
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be deleted, delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let collected = gc::collect(&global.context()?, args.dry_run)?;
    let plan = &collected.plan;
    let mut text = String::new();
    for (container, plan) in &collected.histories {
        text.push_str(&history(container, plan));
    }
    for garbage in &plan.delete {
        text.push_str(&format!("{}: {}\n", name(garbage), garbage.reason()));
    }
    text.push_str(&notes(plan));
    let mut code = 0;
    match &collected.done {
        None => {
            if !collected.histories.is_empty() {
                let planned: usize = collected.histories.iter().map(|(_, plan)| plan.dropped.len()).sum();
                text.push_str(&format!("{} to drop\n", render::count(planned as u64, "generation")));
            }
            text.push_str(&format!("{} to delete, {} layers kept\n", plan.delete.len(), plan.kept));
        }
        Some(gc::Done { dropped, busy, over, report }) => {
            for container in busy {
                let id = visible(container.id.as_str());
                text.push_str(&format!("container {id}: its history is being read or changed just now: try again\n"));
            }
            for (container, err) in over {
                text.push_str(&format!(
                    "container {}: its history is left as it is: {}\n",
                    visible(container.id.as_str()),
                    chain(err)
                ));
                code = 1;
            }
            if !collected.histories.is_empty() {
                text.push_str(&format!("{} dropped\n", render::count(*dropped as u64, "generation")));
            }
            for (garbage, err) in &report.failed {
                text.push_str(&format!("{}: not deleted: {err}\n", name(garbage)));
                code = 1;
            }
            text.push_str(&format!("{} deleted, {} layers kept\n", report.deleted.len(), plan.kept));
        }
    }
    print(&text)?;
    Ok(code)
}

/// What goes of a container's history, and why: a line for each generation that others are merged into.
fn history(container: &Container, plan: &RetentionPlan) -> String {
    let line = |((into, why), dropped): ((Option<Generation>, Bound), Vec<&Dropped>)| {
        let bytes = dropped.iter().filter_map(|dropped| dropped.row.bytes).sum();
        let mut numbers: Vec<u64> = dropped.iter().map(|dropped| dropped.row.number.0).collect();
        numbers.sort_unstable();
        let place = into.map_or("left by a rollback".to_owned(), |into| format!("merged into {into}"));
        format!(
            "container {}: generations {}: over retention.{why} ({}; {place})\n",
            visible(container.id.as_str()),
            render::ranges(&numbers),
            render::bytes(bytes)
        )
    };
    plan.places().into_iter().map(line).collect()
}

fn notes(plan: &GcPlan) -> String {
    let mut text = String::new();
    for name in &plan.foreign {
        text.push_str(&format!("{}: not ours, left alone\n", visible(&name.to_string_lossy())));
    }
    for layer in &plan.unknown {
        text.push_str(&format!("layer {layer}: the database has lost its row, left alone: see `agentsbx fsck`\n"));
    }
    for layer in &plan.missing {
        text.push_str(&format!("layer {layer}: its directory is missing\n"));
    }
    text
}

fn name(garbage: &Garbage) -> String {
    visible(&garbage.to_string())
}
