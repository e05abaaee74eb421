//! `ps`.

use std::process::Command;

use anyhow::{Context, bail};

use super::Global;
use crate::runtime::{self, Record, exec::roster};

/// Display the processes running inside a container
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Select one of: table or json
    #[arg(long, short, default_value = "table", value_parser = ["table", "json"])]
    pub format: String,
    /// With --format json: objects with "pid" and, for a process of an exec, "exec": the engine's id for it, or ours
    #[arg(long)]
    pub execs: bool,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
    /// Options for the host's ps (default: -ef)
    #[arg(value_name = "PS-OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<String>,
}

#[derive(serde::Serialize)]
struct Process {
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    exec: Option<String>,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let (root, id) = global.place(&args.id)?;
    let record = Record::load(&root, &id)?;
    if args.execs {
        if args.format != "json" {
            bail!("--execs: only with --format json");
        }
        let processes: Vec<Process> =
            roster::processes(&record)?.into_iter().map(|(pid, exec)| Process { pid, exec }).collect();
        super::print(&format!("{}\n", serde_json::to_string(&processes)?))?;
        return Ok(0);
    }
    let pids = runtime::pids(&record)?;
    if args.format == "json" {
        super::print(&format!("{}\n", serde_json::to_string(&pids)?))?;
        return Ok(0);
    }
    let options = if args.options.is_empty() { vec!["-ef".to_owned()] } else { args.options };
    let output = Command::new("ps").args(&options).output().context("run the host's ps")?;
    if !output.status.success() {
        bail!("ps {}: {}", options.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    super::print(&select(&String::from_utf8_lossy(&output.stdout), &pids)?)?;
    Ok(0)
}

/// The heading and the rows of `pids`.
fn select(output: &str, pids: &[i32]) -> anyhow::Result<String> {
    let mut lines = output.lines();
    let heading = lines.next().unwrap_or_default();
    let column = heading.split_whitespace().position(|h| h == "PID").context("couldn't find PID field in ps output")?;
    let mut out = format!("{heading}\n");
    for line in lines {
        let pid = line.split_whitespace().nth(column).and_then(|p| p.parse().ok());
        if pid.is_some_and(|pid| pids.contains(&pid)) {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_the_pid_column() {
        let output = "UID   PID  PPID CMD\nroot   1    10 init\nroot  10     1 sh 1\n";
        assert_eq!(select(output, &[10]).unwrap(), "UID   PID  PPID CMD\nroot  10     1 sh 1\n");
        assert!(select("A B\n1 2\n", &[1]).is_err());
    }
}
