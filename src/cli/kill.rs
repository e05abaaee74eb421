//! `kill`.

use anyhow::Context;

use super::Global;
use crate::runtime::{self, KillRequest};
use crate::sys::signal;

/// Send a signal (default: SIGTERM) to the container's init process
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Send the signal to all processes inside the container
    #[arg(long, short)]
    pub all: bool,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
    /// Number 0 to 64, or a name with or without SIG, RTMIN+n included
    #[arg(value_name = "SIGNAL", default_value = "SIGTERM")]
    pub signal: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let id = super::id(&args.id)?;
    let signal = signal::parse(&args.signal).with_context(|| format!("unknown signal {:?}", args.signal))?;
    runtime::kill(&KillRequest { root: global.root.clone(), id, signal, all: args.all })?;
    Ok(0)
}
