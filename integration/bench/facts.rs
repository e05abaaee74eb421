//! The machine, so that figures can be told apart from those of another one.

use std::fs;
use std::process::Command;

use super::lab::Lab;

/// A load above which figures are not to be relied on.
const QUIET: f64 = 0.5;

/// Names and values, in the order in which they are shown.
pub fn gather(lab: &Lab) -> Vec<(String, String)> {
    let mut facts = vec![
        ("date".to_owned(), chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)),
        ("kernel".to_owned(), read("/proc/sys/kernel/osrelease")),
        ("processor".to_owned(), processor()),
        ("cgroups".to_owned(), cgroups()),
        ("filesystem".to_owned(), filesystem(lab)),
        ("load".to_owned(), load()),
    ];
    for runtime in &lab.runtimes {
        let version = lab.output(runtime.command(["--version"])).unwrap_or_else(|err| format!("{err:#}"));
        let lines: Vec<&str> = version.lines().take(2).collect();
        facts.push((runtime.name.clone(), lines.join(", ")));
    }
    facts.push(("containerd".to_owned(), containerd(lab)));
    for (name, reason) in &lab.left_out {
        facts.push((format!("without {name}"), reason.clone()));
    }
    facts
}

fn read(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|err| err.to_string(), |text| text.trim().to_owned())
}

fn processor() -> String {
    let text = read("/proc/cpuinfo");
    let model = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{count} × {}", model.unwrap_or(std::env::consts::ARCH))
}

fn cgroups() -> String {
    let mounts = read("/proc/self/mounts");
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => "v1 and v2 (hybrid)".into(),
        (true, false) => "v1".into(),
        (false, true) => "v2".into(),
        (false, false) => "none".into(),
    }
}

fn filesystem(lab: &Lab) -> String {
    let output = Command::new("findmnt").args(["-n", "-o", "FSTYPE,SOURCE,OPTIONS", "-T"]).arg(&lab.dir).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).split_whitespace().collect::<Vec<_>>().join(" "));
    text.unwrap_or_else(|err| err.to_string())
}

fn containerd(lab: &Lab) -> String {
    let output = Command::new(lab.containerd.join("containerd")).arg("--version").output();
    output.map_or_else(|err| err.to_string(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn load() -> String {
    let text = read("/proc/loadavg");
    let one: Option<f64> = text.split(' ').next().and_then(|n| n.parse().ok());
    match one {
        Some(one) if one <= QUIET => format!("{one}"),
        Some(one) => format!("{one}: WARNING, the machine is not quiet (above {QUIET}): do not rely on these figures"),
        None => text,
    }
}
