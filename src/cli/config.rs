//! `config`.

use clap::Subcommand;

use super::render::{self, Colour, Paint};
use super::{Global, print};
use crate::config::{self, Entry, Origin};

/// Show the configuration
#[derive(Debug, clap::Args)]
pub struct Args {
    // Not required by clap, which would give the help's first line as the error.
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what is in force, and where each value comes from
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Print a file of all keys with their defaults instead, to start from
    #[arg(long, conflicts_with = "json")]
    defaults: bool,
    /// One JSON object a key
    #[arg(long)]
    json: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let Some(Verb::Show(args)) = args.verb else {
        anyhow::bail!(
            "config wants a verb of its own: `agentsbx config show` shows what is in force, and where it comes from"
        );
    };
    if args.defaults {
        return Ok(print(&config::defaults()).map(|()| 0)?);
    }
    let sources = global.sources();
    let entries = config::explain(&sources)?;
    if args.json {
        let lines: Result<String, _> = entries.iter().map(|e| Ok(format!("{}\n", serde_json::to_string(e)?))).collect();
        return Ok(print(&lines.map_err(|err: serde_json::Error| err)?).map(|()| 0)?);
    }
    let file = sources.path().display().to_string();
    let paint = Paint::stdout();
    let mut rows = vec![["KEY", "VALUE", "FROM"].map(|h| paint.text(Colour::Dim, h)).to_vec()];
    rows.extend(entries.iter().map(|entry| row(paint, entry, &file)));
    print(&render::table(&rows))?;
    Ok(0)
}

fn row(paint: Paint, entry: &Entry, file: &str) -> Vec<String> {
    let from = match entry.source {
        Origin::Default => paint.text(Colour::Dim, "default"),
        Origin::File => render::visible(file),
        Origin::Environment => "the environment".to_owned(),
        Origin::Flag => "a flag".to_owned(),
    };
    vec![entry.key.to_owned(), render::visible(&entry.value.to_string()), from]
}
