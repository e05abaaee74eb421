//! `pause`.

use super::Global;
use crate::runtime;

/// Pause all processes inside the container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (root, id) = global.place(&args.id)?;
    runtime::pause(&root, &id)?;
    Ok(0)
}
