//! The benchmarks: whole processes, from spawn to exit, of this runtime and of others, taking turns.
//!
//! The contestants of one benchmark run in rounds (A B C, B C A, …), so that what else the machine does meets all of them
//! alike. Every run is checked for having done its work; a run that has not ends the benchmark with an error.

pub mod cases;
pub mod config;
mod engine;
mod facts;
mod lab;
mod measure;
mod report;

use std::path::PathBuf;

use anyhow::Context;

use lab::Lab;
use report::Report;

/// Measure agentsbx beside other runtimes
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "bench")]
pub struct Args {
    /// The agentsbx to measure
    #[arg(long, value_name = "FILE")]
    pub subject: PathBuf,
    /// A tar of the root filesystem, with busybox; beside NAME.tar is NAME.image.tar, the image of it for containerd
    #[arg(long, value_name = "FILE")]
    pub rootfs: PathBuf,
    /// Directory for stores, roots and bundles: on the filesystem to measure on
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Another runtime to compare with (NAME=FILE); runc and crun are looked for by themselves
    #[arg(long = "peer", value_name = "NAME=FILE")]
    pub peers: Vec<String>,
    /// Directory with the containerd, ctr and containerd-shim-runc-v2 that shims are measured with
    #[arg(long, value_name = "DIR", default_value = "/usr/bin")]
    pub containerd: PathBuf,
    /// Small sizes: whether it works, not how fast
    #[arg(long)]
    pub quick: bool,
    /// Measured rounds of each benchmark, after one to warm up (diffs and deep histories: a quarter of them, at least 5)
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub runs: usize,
    /// Only benchmarks whose name begins so; may be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// Print the benchmarks' names
    #[arg(long)]
    pub list: bool,
    /// Write the result as JSON too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs what was asked for. `tell` is given the table piece by piece, as soon as each is known.
pub fn run(args: &Args, tell: &mut dyn FnMut(&str)) -> anyhow::Result<Report> {
    anyhow::ensure!(args.runs > 0, "--runs 0 measures nothing");
    anyhow::ensure!(rustix::process::geteuid().is_root(), "the benchmarks make containers: they need root");
    let benches: Vec<_> = cases::all(args)
        .into_iter()
        .filter(|bench| args.only.is_empty() || args.only.iter().any(|name| bench.name.starts_with(name)))
        .collect();
    anyhow::ensure!(!benches.is_empty(), "no benchmark has such a name; --list prints them");
    let lab = Lab::new(args)?;
    let mut report = Report::new(facts::gather(&lab));
    tell(&report.head());
    for bench in benches {
        let rows = (bench.run)(&lab).with_context(|| bench.name.clone())?;
        let mut promised = bench.subjects;
        promised.extend(lab.runtimes.iter().skip(1).filter(|_| bench.peers).map(|peer| peer.name.clone()));
        for who in promised {
            anyhow::ensure!(rows.iter().any(|row| row.who == who), "{}: no row of {who}", bench.name);
        }
        let table = report.add(bench.name, bench.what, rows);
        tell(&table);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmarks run through, with a row for each contestant, and what they say is written down. No times are
    /// asserted.
    #[test]
    fn they_run_through() {
        let dir = tempfile::tempdir_in(crate::support::env::process().data.as_path()).expect("make a directory");
        let args = Args {
            subject: crate::support::env::binary(),
            rootfs: crate::support::images::busybox_tar(),
            dir: dir.path().to_owned(),
            peers: Vec::new(),
            containerd: "/usr/bin".into(),
            quick: true,
            runs: 1,
            only: Vec::new(),
            list: false,
            json: None,
        };
        let mut text = String::new();
        let report = run(&args, &mut |piece| text.push_str(piece)).expect("the benchmarks");
        let json = report.json();
        let rows = json["rows"].as_array().expect("rows");
        for bench in cases::all(&args) {
            let of = |who: &str| rows.iter().any(|r| r["benchmark"] == bench.name.as_str() && r["who"] == who);
            for who in &bench.subjects {
                assert!(of(who), "no row of {who} in {}: {text}", bench.name);
            }
            if bench.peers {
                assert!(of("runc"), "no row of runc in {}: {text}", bench.name);
            }
            assert!(text.contains(&bench.name));
        }
        assert!(rows.iter().all(|r| r["runs"] == 1 && r["median"].as_f64().is_some_and(f64::is_finite)), "{json}");
        assert!(std::fs::read_dir(dir.path()).expect("list").next().is_none(), "something was left behind");
    }
}
