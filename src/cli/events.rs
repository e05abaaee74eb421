//! `events`.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::json;

use super::Global;
use crate::runtime::events::{Event, Events};
use crate::runtime::{Record, RuntimeError, Status, stats};

/// Display container events such as OOM notifications, cpu, memory, and IO usage statistics
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Set the stats collection interval, such as 500ms, 5s or 1m30s
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub interval: String,
    /// Display the container's stats then exit
    #[arg(long)]
    pub stats: bool,
    /// The container
    #[arg(value_name = "CONTAINER-ID")]
    pub id: String,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let interval = duration(&args.interval).with_context(|| format!("invalid interval {:?}", args.interval))?;
    if interval.is_zero() {
        bail!("duration interval must be greater than 0");
    }
    let (root, id) = global.place(&args.id)?;
    let record = Record::load(&root, &id)?;
    if record.status()? == Status::Stopped {
        return Err(RuntimeError::IsNotRunning(record.id.to_string()).into());
    }
    if args.stats {
        show_stats(&record)?;
        return Ok(0);
    }
    let mut events = Events::watch(&record, interval)?;
    loop {
        match events.wait()? {
            Event::Tick => show_stats(&record)?,
            Event::Oom => super::print(&format!("{}\n", json!({"type": "oom", "id": record.id})))?,
            Event::Ended => return Ok(0),
        }
    }
}

fn show_stats(record: &Record) -> anyhow::Result<()> {
    let event = json!({"type": "stats", "id": record.id, "data": stats::stats(record)?});
    super::print(&format!("{event}\n"))?;
    Ok(())
}

/// A duration as Go writes it: numbers, each with its unit (`ns us ms s m h`).
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |i| digits + i);
        let unit = match &rest[digits..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations() {
        for (text, want) in [
            ("5s", Some(Duration::from_secs(5))),
            ("500ms", Some(Duration::from_millis(500))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("1.5h", Some(Duration::from_secs(5400))),
            ("5", None),
            ("s", None),
            ("", None),
            ("-1s", None),
        ] {
            assert_eq!(duration(text), want, "{text:?}");
        }
    }
}
