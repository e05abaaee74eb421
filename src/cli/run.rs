//! `run`.

use super::{Global, create};
use crate::ops::create as create_ops;
use crate::runtime::RunRequest;

/// Create and run a container
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: create::CommonArgs,
    /// Detach from the container's process
    #[arg(long, short)]
    pub detach: bool,
    /// Do not delete the container after it exits
    #[arg(long)]
    pub keep: bool,
    /// Disable the use of the subreaper used to reap reparented processes
    #[arg(long)]
    pub no_subreaper: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let create = args.common.request(global, "run")?;
    let request = RunRequest { create, detach: args.detach, keep: args.keep, no_subreaper: args.no_subreaper };
    let ran = create_ops::run(&global.context()?, request).map_err(|err| create::failed("run", err))?;
    for warning in &ran.warnings {
        super::warn(global, &warning.to_string());
    }
    Ok(ran.ended.map_or(0, |ended| ended.exit_code()))
}
