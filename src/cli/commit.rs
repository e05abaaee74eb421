//! `commit`.

use super::{Global, done, hints, print};
use crate::ops::commit;

/// Commit a held layer: it becomes the next generation
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Commit even if somebody else's commit changed the same paths; this layer then wins
    #[arg(long)]
    force: bool,
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// The exec: its id, the engine's id for it, or a unique prefix of either
    #[arg(value_name = "EXEC")]
    exec: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let committed = commit::held(&global.context()?, &args.container, &args.exec, args.force);
    let committed = committed.map_err(|err| hints::told(err, &args.container))?;
    let (record, generation) = done(global, committed);
    print(&format!("{} committed as generation {generation}\n", record.id))?;
    Ok(0)
}
