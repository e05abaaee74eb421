//! `kill`.

use anyhow::Context;

use super::{Global, Told};
use crate::ops;
use crate::runtime::{self, KillRequest, Record};
use crate::sys::signal;

/// Send a signal (default: SIGTERM) to the container's init process, or to an exec's command
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Send the signal to all processes inside the container
    #[arg(long, short)]
    pub all: bool,
    /// Send it to the command of this exec (its id, or the engine's id for it); SIGKILL to all that it has started
    #[arg(long, value_name = "EXEC", conflicts_with = "all")]
    pub exec: Option<String>,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
    /// Number 0 to 64, or a name with or without SIG, RTMIN+n included
    #[arg(value_name = "SIGNAL", default_value = "SIGTERM")]
    pub signal: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (root, id) = global.place(&args.id)?;
    let signal = signal::parse(&args.signal).with_context(|| format!("unknown signal {:?}", args.signal))?;
    if let Some(exec) = &args.exec {
        let record = Record::load(&root, &id)?;
        let context = global.context_or_least(Told::Engine);
        ops::kill::exec(&context, &record, exec, signal)?;
        return Ok(0);
    }
    runtime::kill(&KillRequest { root, id, signal, all: args.all })?;
    Ok(0)
}
