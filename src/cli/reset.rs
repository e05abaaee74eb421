//! `reset`.

use super::{Global, done, print};
use crate::ops::rollback;
use crate::terms::count;

/// Kill every exec of a container and go back to generation 0
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (killed, moved) = done(global, rollback::reset(&global.context()?, &args.container)?);
    print(&format!("{} killed, HEAD {} -> {}\n", count(killed, "exec"), moved.from, moved.to))?;
    Ok(0)
}
