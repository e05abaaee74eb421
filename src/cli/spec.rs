//! `spec`: a configuration to start from, with the same content as runc's.

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{Global, features};
use crate::spec::CONFIG;

/// Create a new specification file
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path to the root of the bundle directory
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    pub bundle: PathBuf,
    /// Generate a configuration for a rootless container
    #[arg(long)]
    pub rootless: bool,
}

pub fn run(_: &Global, args: Args) -> anyhow::Result<u8> {
    let path = args.bundle.join(CONFIG);
    if path.exists() {
        bail!("File {CONFIG} exists. Remove it first");
    }
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let document = if args.rootless { rootless(default(), ids) } else { default() };
    let mut text = Vec::new();
    let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    serde::Serialize::serialize(&document, &mut serde_json::Serializer::with_formatter(&mut text, tabs))?;
    crate::spec::write_new(&path, &text).with_context(|| format!("write {}", path.display()))?;
    Ok(0)
}

fn mount(destination: &str, kind: &str, source: &str, options: &str) -> Value {
    let mut mount = json!({"destination": destination, "type": kind, "source": source});
    if !options.is_empty() {
        mount["options"] = options.split(' ').collect();
    }
    mount
}

fn default() -> Value {
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    // With v1 hierarchies each container sees its own subtree by bind mounts instead.
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let kinds = ["pid", "network", "ipc", "uts", "mount", "cgroup"];
    let kinds = if unified { &kinds[..] } else { &kinds[..5] };
    let namespaces: Vec<Value> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    json!({
        "ociVersion": features::SPEC_VERSION,
        "process": {
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"],
            "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": crate::runtime::NAME,
        "mounts": [
            mount("/proc", "proc", "proc", ""),
            mount("/dev", "tmpfs", "tmpfs", "nosuid strictatime mode=755 size=65536k"),
            mount("/dev/pts", "devpts", "devpts", "nosuid noexec newinstance ptmxmode=0666 mode=0620 gid=5"),
            mount("/dev/shm", "tmpfs", "shm", "nosuid noexec nodev mode=1777 size=65536k"),
            mount("/dev/mqueue", "mqueue", "mqueue", "nosuid noexec nodev"),
            mount("/sys", "sysfs", "sysfs", "nosuid noexec nodev ro"),
            mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid noexec nodev relatime ro")
        ],
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": namespaces,
            "maskedPaths": ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
        }
    })
}

/// For a user without root: a user namespace with just the one id, no network namespace, the host's /sys, no limits.
fn rootless(mut document: Value, (uid, gid): (u32, u32)) -> Value {
    if let Some(mounts) = document["mounts"].as_array_mut() {
        for entry in mounts.iter_mut() {
            if entry["destination"] == "/sys" {
                *entry = mount("/sys", "none", "/sys", "rbind nosuid noexec nodev ro");
            } else if let Some(options) = entry.get_mut("options").and_then(Value::as_array_mut) {
                // Ids other than the one are not mapped.
                options.retain(|o| !o.as_str().is_some_and(|o| o.starts_with("gid=") || o.starts_with("uid=")));
            }
        }
    }
    if let Some(linux) = document["linux"].as_object_mut() {
        linux.shift_remove("resources");
        linux.insert("uidMappings".into(), json!([{"containerID": 0, "hostID": uid, "size": 1}]));
        linux.insert("gidMappings".into(), json!([{"containerID": 0, "hostID": gid, "size": 1}]));
        if let Some(namespaces) = linux.get_mut("namespaces").and_then(Value::as_array_mut) {
            namespaces.retain(|ns| ns["type"] != "network");
            namespaces.push(json!({"type": "user"}));
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_valid_specifications() {
        for document in [default(), rootless(default(), (1000, 1000))] {
            serde_json::from_value::<oci_spec::runtime::Spec>(document).unwrap();
        }
        let text = rootless(default(), (1000, 1000)).to_string();
        assert!(!text.contains("gid=5") && !text.contains("network") && text.contains("\"user\""), "{text}");
    }

    #[test]
    fn a_configuration_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let global = Global {
            root_given: true,
            root: dir.path().into(),
            log: None,
            log_format: super::super::LogFormat::Text,
            debug: false,
            systemd_cgroup: false,
            rootless: None,
            store: None,
        };
        let args = || Args { bundle: dir.path().into(), rootless: false };
        run(&global, args()).unwrap();
        let err = run(&global, args()).unwrap_err();
        assert_eq!(err.to_string(), "File config.json exists. Remove it first");
    }
}
