//! `apply`.

use std::path::PathBuf;

use serde_json::json;

use super::render::{self, visible};
use super::{Global, hints, print};
use crate::diff::apply::{Action, Plan, Step};
use crate::ops::apply::{self, Request};
use crate::terms::count;

/// Copy committed changes of copy-on-write mounts to the host
///
/// The directories of the host that a container has copy on write (annotation dev.agentsbx.mounts, or mounts.default of the
/// configuration) are never written but by
/// this. They are made equal to HEAD where its generations changed something. What was changed on the host since is a
/// conflict, and nothing is done. Devices and sockets are left out, so are set-user-ID bits and file capabilities that the
/// host's file does not have. Done twice, it does nothing the second time. A rollback does not undo it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// A copy-on-write mount, or a path on one (all mounts without it)
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Print what would be done, do nothing; ends with 0, conflicts or not
    #[arg(long)]
    dry_run: bool,
    /// Let the container's changes win where the host was changed too
    #[arg(long)]
    force: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let request = Request {
        container: args.container,
        path: args.path.as_deref().map(apply::path_of).transpose()?,
        dry_run: args.dry_run,
        force: args.force,
    };
    let applied = apply::apply(&global.context()?, &request).map_err(|err| hints::told(err, &request.container))?;
    let stopped = !applied.done && !request.dry_run;
    if args.json {
        let mut document = serde_json::to_value(&applied.plan)?;
        document["container"] = json!(applied.container.id);
        document["generation"] = json!(applied.generation);
        document["applied"] = json!(applied.done);
        print(&format!("{document}\n"))?;
    } else {
        print(&text(&applied.plan, applied.done, request.force))?;
    }
    Ok(u8::from(stopped))
}

fn text(plan: &Plan, done: bool, force: bool) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for step in &plan.steps {
        let word = match step.action {
            Action::Create => "create",
            Action::Replace => "replace",
            Action::Delete => "delete",
            Action::Metadata => "metadata",
        };
        rows.push(vec![word.to_owned(), told(step), visible(&step.host.to_string_lossy())]);
    }
    for skipped in &plan.skipped {
        rows.push(vec!["skip".to_owned(), skipped.reason.to_owned(), visible(&skipped.path.to_string_lossy())]);
    }
    for clash in &plan.conflicts {
        // Where something that is no directory is in the way there is no step, forced or not.
        let over = plan.steps.iter().any(|step| step.path == clash.path);
        let fate = match (over, done, force) {
            (true, true, _) => ": overwritten",
            (true, false, true) => ": to be overwritten",
            (false, true, _) | (false, _, true) => ": left as it is",
            _ => "",
        };
        let host = visible(&clash.host.to_string_lossy());
        rows.push(vec!["conflict".to_owned(), format!("{}{fate}", clash.reason), host]);
    }
    let mut text = render::table(&rows);
    let steps = plan.steps.len();
    let conflicts = count(plan.conflicts.len(), "conflict");
    text.push_str(&match (done, plan.conflicts.len()) {
        (true, 0) => format!("{steps} applied\n"),
        (true, _) => format!("{steps} applied, over {conflicts} (--force)\n"),
        (false, 0) => format!("{steps} to apply\n"),
        (false, _) if force => format!("{steps} to apply, over {conflicts}\n"),
        (false, _) => format!("{conflicts}: nothing is applied unless with --force\n"),
    });
    text
}

/// What becomes of it, in a few words.
fn told(step: &Step) -> String {
    let kind = format!("{:?}", step.file_type).to_lowercase();
    if step.action == Action::Delete {
        return kind;
    }
    let size = step.size.map(|size| format!(", {}", count(size, "byte"))).unwrap_or_default();
    let dropped =
        if step.dropped.is_empty() { String::new() } else { format!(", without {}", step.dropped.join(", ")) };
    let target = step.target.as_ref().map(|to| format!(" -> {}", visible(&to.to_string_lossy()))).unwrap_or_default();
    format!("{kind} {} {}:{}{size}{dropped}{target}", step.mode, step.uid, step.gid)
}
