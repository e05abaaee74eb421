//! `gc`.

use super::render::visible;
use super::{Global, print};
use crate::ops::gc;
use crate::store::gc::{Garbage, GcPlan};

/// Delete what nothing refers to any more from the store
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be deleted, delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let collected = gc::collect(&global.context()?, args.dry_run)?;
    let plan = match &collected {
        gc::Collected::Planned(plan) | gc::Collected::Done(plan, _) => plan,
    };
    let mut text = String::new();
    for garbage in &plan.delete {
        text.push_str(&format!("{}: {}\n", name(garbage), garbage.reason()));
    }
    text.push_str(&notes(plan));
    let mut code = 0;
    match &collected {
        gc::Collected::Planned(plan) => {
            text.push_str(&format!("{} to delete, {} layers kept\n", plan.delete.len(), plan.kept));
        }
        gc::Collected::Done(plan, report) => {
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
