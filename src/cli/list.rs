//! `list`.

use std::fs::File;

use super::{Global, state};
use crate::ops::OpsError;
use crate::runtime::{Record, RuntimeError};
use crate::spec::passwd;

/// List containers started with the given root ("log" lists those with a history, whatever root they have)
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Select one of: table or json
    #[arg(long, short, default_value = "table", value_parser = ["table", "json"])]
    pub format: String,
    /// Display only container IDs
    #[arg(long, short)]
    pub quiet: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let mut records = Vec::new();
    for id in Record::list(&global.root)? {
        match Record::load(&global.root, &id) {
            Ok(record) => records.push(record),
            // Deleted while we were looking.
            Err(RuntimeError::NotFound) => {}
            Err(err) => return Err(err.into()),
        }
    }
    if args.quiet {
        super::print(&records.iter().map(|r| format!("{}\n", r.id)).collect::<String>())?;
        return Ok(0);
    }
    if args.format == "json" {
        let list = records.iter().map(|r| state::document(r, r.status()?, &owner(r.owner)));
        let list = list.collect::<Result<Vec<_>, OpsError>>()?;
        let text = if list.is_empty() { "null".to_owned() } else { serde_json::to_string(&list)? };
        super::print(&format!("{text}\n"))?;
        return Ok(0);
    }
    let mut rows = vec![["ID", "PID", "STATUS", "BUNDLE", "CREATED", "OWNER"].map(str::to_owned)];
    for r in &records {
        let status = r.status()?;
        let bundle = r.bundle.display().to_string();
        let pid = r.shown_pid(status).to_string();
        rows.push([r.id.to_string(), pid, status.to_string(), bundle, r.created.clone(), owner(r.owner)]);
    }
    super::print(&table(&rows))?;
    Ok(0)
}

/// The owner's name, or `#UID` where it has none.
fn owner(uid: u32) -> String {
    let name = File::open("/etc/passwd").and_then(|file| passwd::name(file, uid));
    name.ok().flatten().unwrap_or_else(|| format!("#{uid}"))
}

/// Columns of at least 12, with 3 between; the last is not padded.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let longest = rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
        (longest + 3).max(12)
    };
    let mut out = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let pad = if column + 1 == N { 0 } else { width(column) };
            out.push_str(&format!("{cell:<pad$}"));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_as_runc_does() {
        let rows = [["ID", "X"].map(str::to_owned), ["a-long-container", "y"].map(str::to_owned)];
        assert_eq!(table(&rows), "ID                 X\na-long-container   y\n");
        assert_eq!(table(&[["ID", "X"].map(str::to_owned)]), "ID          X\n");
    }
}
