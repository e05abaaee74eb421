//! `hack/bench.sh`: the benchmarks as a program of their own, beside the integration tests, which only try whether they
//! run.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

#[path = "mod.rs"]
mod bench;

use bench::{Args, cases};

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("bench: {err:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what was asked for and prints it.
fn measure(args: &Args) -> anyhow::Result<()> {
    if args.list {
        for bench in cases::all(args) {
            println!("{:<32} {}", bench.name, bench.what);
        }
        return Ok(());
    }
    let json = args.json.as_ref().map(|path| Ok::<_, std::io::Error>((path, File::create(path)?))).transpose();
    let json = json.context("--json")?;
    let report = bench::run(args, &mut |text| print!("{text}"))?;
    if let Some((path, mut file)) = json {
        let text = serde_json::to_string_pretty(&report.json())?;
        writeln!(file, "{text}").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
