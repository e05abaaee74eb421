//! `recover`.

use super::{Global, Told, print};
use crate::ops::recover;
use crate::terms::count;

/// Repair what killed processes left, in all containers, and drop the history of containers that are gone
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(global: &Global, Args {}: Args) -> anyhow::Result<u8> {
    let recovered = recover::all(&global.context_or_least(Told::Person))?;
    for one in &recovered.execs {
        let layer = if one.held { "its layer is held" } else { "it had changed nothing" };
        let killed = count(one.killed, "process");
        print(&format!("{} {}: aborted, {killed} killed, {layer}\n", one.container, one.exec))?;
    }
    for id in &recovered.containers {
        print(&format!("{id}: gone, its history dropped\n"))?;
    }
    let more = recovered.failed.len().saturating_sub(1);
    if let Some(first) = recovered.failed.into_iter().next() {
        let more = if more == 0 { String::new() } else { format!(" (and {})", count(more, "more failure")) };
        anyhow::bail!("{}{more}", crate::error::chain(&first));
    }
    if recovered.dropped > 0 {
        let generations = count(recovered.dropped, "generation");
        print(&format!("{generations} dropped to keep histories within bounds\n"))?;
    }
    if recovered.collected > 0 {
        print(&format!("{} deleted\n", count(recovered.collected, "leftover")))?;
    }
    if recovered.execs.is_empty() && recovered.containers.is_empty() && recovered.dropped + recovered.collected == 0 {
        print("nothing to recover\n")?;
    }
    Ok(0)
}
