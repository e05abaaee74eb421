//! `show`.

use super::decisions;
use super::render::{self, Paint};
use super::{Global, hints, print};
use crate::ops::history;

/// Show what one exec did: how it ended, what it changed, what became of that, what it cost
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the result document, or with --policy the policy, as JSON
    #[arg(long)]
    json: bool,
    /// Show the container's policy instead: its profile, and what that changed of the engine's configuration, and why
    #[arg(long, conflicts_with_all = ["wait", "exec"])]
    policy: bool,
    /// Wait until the exec has ended
    #[arg(long)]
    wait: bool,
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it
    #[arg(value_name = "CONTAINER")]
    container: String,
    /// The exec: its id, the engine's id for it, or a unique prefix of either; by default the last one
    #[arg(value_name = "EXEC")]
    exec: Option<String>,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    if args.policy {
        let told = history::policy(&global.context()?, &args.container)?;
        let text = match args.json {
            true => format!("{}\n", serde_json::to_string_pretty(&told)?),
            false => decisions::policy(Paint::stdout(), &told),
        };
        return Ok(print(&text).map(|()| 0)?);
    }
    let document = history::show(&global.context()?, &args.container, args.exec.as_deref(), args.wait);
    let document = document.map_err(|err| hints::told(err, &args.container))?;
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
    } else {
        print(&render::result(Paint::stdout(), &document))?;
    }
    Ok(0)
}
