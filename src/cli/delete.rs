//! `delete`.

use super::{Global, Told};
use crate::ops;
use crate::runtime::DeleteRequest;

/// Delete any resources held by the container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Delete the container even if it is still running (uses SIGKILL)
    #[arg(long, short)]
    pub force: bool,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let request = DeleteRequest { root: global.root.clone(), id: super::id(&args.id)?, force: args.force };
    // Engines must get rid of a container whatever the configuration has come to.
    let context = global.context_or_least(Told::Engine);
    if let Some(warning) = ops::delete::delete(&context, &request)? {
        super::warn(global, &warning.to_string());
    }
    Ok(0)
}
