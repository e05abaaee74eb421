//! `start`.

use super::Global;
use crate::runtime;

/// Execute the user defined process in a created container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let started = runtime::start(&global.root, &super::id(&args.id)?)?;
    if let Some(warning) = started.warning {
        super::warn(global, &warning.to_string());
    }
    Ok(0)
}
