//! `restore`: known, refused.

use anyhow::bail;

use super::Global;

/// Restore a container from a checkpoint (not supported)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Any options: the answer is the same
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub rest: Vec<std::ffi::OsString>,
}

pub fn run(_: &Global, _: Args) -> anyhow::Result<u8> {
    bail!("restore is not supported: this runtime does not drive CRIU")
}
