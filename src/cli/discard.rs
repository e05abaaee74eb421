//! `discard`.

use super::{Global, done, hints, print};
use crate::ops::discard;

/// Drop a held layer
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// The exec: its id, the engine's id for it, or a unique prefix of either
    #[arg(value_name = "EXEC")]
    exec: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let dropped = discard::held(&global.context()?, &args.container, &args.exec);
    let record = done(global, dropped.map_err(|err| hints::told(err, &args.container))?);
    print(&format!("{} discarded\n", record.id))?;
    Ok(0)
}
