//! `gc`.

use super::render::{self, visible};
use super::{Global, print};
use crate::error::chain;
use crate::id::Generation;
use crate::ops::gc;
use crate::store::gc::{Garbage, GcPlan};
use crate::store::{Container, Dropped, RetentionPlan};
use crate::terms::{Bound, count, noun};

/// Delete what nothing refers to any more from the store, and what of histories is over the bounds of [retention]
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print what would be deleted, delete nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (text, code) = text(&gc::collect(&global.context()?, args.dry_run)?);
    print(&text)?;
    Ok(code)
}

/// What people read, and the exit code.
fn text(collected: &gc::Collected) -> (String, u8) {
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
                let with = if planned == 1 { "its layer" } else { "their layers" };
                text.push_str(&format!("{} to drop, with {with}\n", count(planned, "generation")));
            }
            let leftovers = count(plan.delete.len(), "leftover");
            text.push_str(&format!("{leftovers} to delete, {} in use now\n", count(plan.kept, "layer")));
        }
        Some(gc::Done { gone, busy, over, report, kept }) => {
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
                let (generations, layers) = (count(gone.generations, "generation"), count(gone.layers, "layer"));
                let with = if gone.generations == 1 { "it" } else { "them" };
                text.push_str(&format!("{generations} dropped, {layers} deleted with {with}\n"));
            }
            for (garbage, err) in &report.failed {
                text.push_str(&format!("{}: not deleted: {err}\n", name(garbage)));
                code = 1;
            }
            if kept.retired > 0 {
                let layers = count(kept.retired, "layer");
                let on = if kept.retired == 1 { "it" } else { "them" };
                text.push_str(&format!("to be deleted when the execs that run on {on} have ended: {layers}\n"));
            }
            let leftovers = count(report.deleted.len(), "leftover");
            text.push_str(&format!("{leftovers} deleted, {} in use\n", count(kept.layers, "layer")));
        }
    }
    (text, code)
}

/// What goes of a container's history, and why: a line for each generation that others are merged into.
fn history(container: &Container, plan: &RetentionPlan) -> String {
    let line = |((into, why), dropped): ((Option<Generation>, Bound), Vec<&Dropped>)| {
        let bytes = dropped.iter().filter_map(|dropped| dropped.row.bytes).sum();
        let mut numbers: Vec<u64> = dropped.iter().map(|dropped| dropped.row.number.0).collect();
        numbers.sort_unstable();
        let place = into.map_or("left by a rollback".to_owned(), |into| format!("merged into {into}"));
        format!(
            "container {}: {} {}: over retention.{why} ({}; {place})\n",
            visible(container.id.as_str()),
            noun(numbers.len(), "generation"),
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::id::{ExecId, LayerId};
    use crate::ops::retain::Gone;
    use crate::store::gc::{GcReport, Kept};
    use crate::store::{ContainerKey, GenerationRow};

    fn dropped(number: u64, into: Option<u64>) -> Dropped {
        let row = GenerationRow {
            number: Generation(number),
            parent: Generation(number - 1),
            layer: LayerId::new(),
            exec: ExecId::new(),
            digest: None,
            bytes: Some(512),
            committed_ns: 0,
            steps: 1,
        };
        Dropped { row, why: Bound::Generations, into: into.map(Generation) }
    }

    fn collected(dropped: Vec<Dropped>, trash: &[&str], done: Option<gc::Done>) -> gc::Collected {
        let delete: Vec<Garbage> = trash.iter().map(|name| Garbage::Trash(OsString::from(name))).collect();
        let plan = RetentionPlan { dropped, ..RetentionPlan::default() };
        let histories = if plan.dropped.is_empty() { Vec::new() } else { vec![(container(), plan)] };
        gc::Collected { histories, plan: GcPlan { delete, kept: 1, ..GcPlan::default() }, done }
    }

    fn container() -> Container {
        Container {
            key: ContainerKey(1),
            id: "c".parse().unwrap(),
            root: "/r".into(),
            bundle: "/b".into(),
            rootfs: "/b/rootfs".into(),
            head: Generation(9),
            last_generation: Generation(9),
            settled: Generation(0),
            dropped: 0,
            created_ns: 0,
            removed_ns: None,
        }
    }

    #[test]
    fn a_plan() {
        assert_eq!(text(&collected(Vec::new(), &[], None)), ("0 leftovers to delete, 1 layer in use now\n".into(), 0));
        let some = vec![dropped(1, Some(4)), dropped(2, Some(4)), dropped(3, Some(4)), dropped(6, None)];
        let want = "container c: generation 6: over retention.generations (512 B; left by a rollback)\n\
                    container c: generations 1-3: over retention.generations (1.5 KiB; merged into 4)\n\
                    trash x: its deletion was begun\n\
                    4 generations to drop, with their layers\n\
                    1 leftover to delete, 1 layer in use now\n";
        assert_eq!(text(&collected(some, &["x"], None)), (want.into(), 0));
    }

    /// Layers of generations are no leftovers, and are counted all the same.
    #[test]
    fn what_was_done() {
        let done = gc::Done {
            gone: Gone { generations: 1, layers: 2 },
            report: GcReport { deleted: Vec::new(), ..GcReport::default() },
            kept: Kept { layers: 3, retired: 1 },
            ..gc::Done::default()
        };
        let want = "container c: generation 1: over retention.generations (512 B; merged into 4)\n\
                    1 generation dropped, 2 layers deleted with it\n\
                    to be deleted when the execs that run on it have ended: 1 layer\n\
                    0 leftovers deleted, 3 layers in use\n";
        assert_eq!(text(&collected(vec![dropped(1, Some(4))], &[], Some(done))), (want.into(), 0));
    }
}
