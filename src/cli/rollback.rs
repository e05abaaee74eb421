//! `rollback`.

use super::{Global, done, hints, print};
use crate::ops::rollback;

/// Go back to a generation: the next exec sees it
///
/// What HEAD leaves stays, and a later rollback can return to it: for certain until the next rollback, then as far as the
/// configuration's [retention] keeps it. Execs that run go on with what they see.
/// "rollback C @-1" undoes the last commit, "rollback C 0" all of them.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// A generation's number, or @-N for HEAD's Nth parent
    #[arg(value_name = "GENERATION")]
    generation: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let moved = rollback::to(&global.context()?, &args.container, args.generation.parse()?);
    let moved = done(global, moved.map_err(|err| hints::told(err, &args.container))?);
    print(&format!("HEAD {} -> {}\n", moved.from, moved.to))?;
    Ok(0)
}
