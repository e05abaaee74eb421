//! Containers of an attacker: a root filesystem with the attacking program and hostile files, a configuration that asks
//! for more than it should get, and the places in which an attack is played.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::images::repository;
use crate::support::{Cmd, Env, Output, env, wait_for};

/// The attacking program, built once.
pub fn attacker() -> &'static Path {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    ONCE.get_or_init(|| {
        let program = env::process().data.join("attack");
        let dir = repository().join("integration/security/attack");
        let parts = ["main.c", "tables.c", "others.c", "races.c", "bombs.c"].map(|name| dir.join(name));
        let flags = ["-static", "-no-pie", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
        Cmd::new("gcc").args(flags).arg(&program).args(parts).ok();
        program
    })
}

/// What the engine asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Docker's default capabilities, masks and cgroup mount; no seccomp profile, new privileges allowed.
    Usual,
    /// What `--privileged` asks for: every capability and device, nothing masked or read-only.
    Everything,
}

/// Both.
pub const ASKS: [Asks; 2] = [Asks::Usual, Asks::Everything];

/// Where an attack is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The container's first process.
    First,
    /// An exec on a layer of its own.
    Exec,
    /// An exec without a layer.
    Shared,
    /// An exec as user 1000.
    User,
    /// An exec for which all capabilities are asked by flags.
    Capable,
    /// An exec described by an engine, with every capability in every set and new privileges.
    Described,
}

/// All of them.
pub const PLACES: [Place; 6] =
    [Place::First, Place::Exec, Place::Shared, Place::User, Place::Capable, Place::Described];

impl Place {
    /// Asking for so much may be refused as a whole.
    pub fn may_be_refused(self) -> bool {
        matches!(self, Place::Capable | Place::Described)
    }
}

/// Every capability that this process could hand on: the names of bits 0 to 40 of `<linux/capability.h>`.
pub fn all_capabilities() -> &'static [String] {
    const NAMES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
        NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
        SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE \
        AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF \
        CHECKPOINT_RESTORE";
    static ONCE: OnceLock<Vec<String>> = OnceLock::new();
    ONCE.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").expect("read");
        let held = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("CapPrm").trim();
        let held = u64::from_str_radix(held, 16).expect("a mask");
        let names = NAMES.split_whitespace().enumerate();
        names.filter(|(bit, _)| held & 1 << bit != 0).map(|(_, name)| format!("CAP_{name}")).collect()
    })
}

/// An environment with the default configuration: profile `strict`.
pub fn strict() -> Env {
    Env::with_config("")
}

/// An attacker's container, not yet made: its image has the attacking program, also setuid and with file capabilities,
/// and device nodes that everybody may open.
pub fn hostile<'e, const N: usize>(env: &'e Env, asks: Asks, args: [&str; N]) -> Bundle<'e> {
    let mut bundle = Bundle::new(env, args);
    let root = &bundle.rootfs;
    for (name, mode) in [("attack", 0o755), ("attack-setuid", 0o6755), ("attack-capable", 0o755)] {
        fs::copy(attacker(), root.join(name)).expect("copy");
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    Cmd::new("setcap").arg("cap_sys_admin,cap_net_admin,cap_sys_ptrace+ep").arg(root.join("attack-capable")).ok();
    for (name, kind, major, minor) in [
        ("loop", "b", "7", "0"),
        ("disk", "b", "254", "0"),
        ("scsi", "b", "8", "0"),
        ("kmsg", "c", "1", "11"),
        ("mem", "c", "1", "1"),
    ] {
        let node = root.join(format!("image-{name}"));
        Cmd::new("mknod").args(["-m", "666"]).arg(node).args([kind, major, minor]).ok();
    }
    bundle.config["process"]["noNewPrivileges"] = false.into();
    let mut cgroup = json!({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
        "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]});
    if asks == Asks::Everything {
        cgroup["options"] = json!(["nosuid", "noexec", "nodev", "relatime", "rw"]);
        let config = &mut bundle.config;
        for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
            config["process"]["capabilities"][set] = json!(all_capabilities());
        }
        config["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
        config["linux"]["maskedPaths"] = Value::Null;
        config["linux"]["readonlyPaths"] = Value::Null;
        for mount in config["mounts"].as_array_mut().expect("mounts") {
            if mount["destination"] == "/sys" {
                mount["options"] = json!(["nosuid", "noexec", "nodev", "rw"]);
            }
        }
    }
    bundle.config["mounts"].as_array_mut().expect("mounts").push(cgroup);
    bundle
}

/// An attacker's container, whose first process waits for orders ([`order`]).
#[track_caller]
pub fn serving(env: &Env, asks: Asks) -> Bundle<'_> {
    let bundle = hostile(env, asks, ["/attack", "serve"]);
    bundle.start();
    bundle
}

/// Has the first process of a [`serving`] container run the attacking program with these words; what it printed.
#[track_caller]
pub fn order(bundle: &Bundle<'_>, words: &str) -> String {
    let out = bundle.dir.join("out");
    let before = fs::read_to_string(&out).expect("read the output").len();
    // In place at once: the server must not read half of it.
    fs::write(bundle.rootfs.join("order.new"), words).expect("write the order");
    fs::rename(bundle.rootfs.join("order.new"), bundle.rootfs.join("order")).expect("rename");
    wait_for(words, Duration::from_secs(60), || {
        let text = fs::read_to_string(&out).ok()?;
        text[before..].strip_suffix("done\n").map(str::to_owned)
    })
}

/// Plays `/attack WORDS…` in a place; `bundle` is [`serving`].
pub fn at(place: Place, bundle: &Bundle<'_>, words: &[&str]) -> Output {
    let mut cmd = bundle.env.cmd(["exec"]);
    match place {
        Place::First => {
            let stdout = order(bundle, &words.join(" "));
            let line = format!("first process: {words:?}");
            return Output { line, code: 0, stdout, stderr: String::new(), took: Duration::ZERO };
        }
        Place::Exec | Place::Described => {}
        Place::Shared => cmd = cmd.args(["--layer", "shared"]),
        Place::User => cmd = cmd.args(["--user", "1000:1000"]),
        Place::Capable => cmd = all_capabilities().iter().fold(cmd, |cmd, cap| cmd.args(["--cap", cap])),
    }
    if place == Place::Described {
        let file = bundle.dir.join("process.json");
        let sets = ["bounding", "effective", "permitted", "inheritable", "ambient"];
        let capabilities: serde_json::Map<String, Value> =
            sets.iter().map(|set| ((*set).to_owned(), json!(all_capabilities()))).collect();
        let args: Vec<&str> = std::iter::once("/attack").chain(words.iter().copied()).collect();
        let process = json!({"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": args, "env": ["PATH=/bin"],
            "noNewPrivileges": false, "capabilities": capabilities});
        fs::write(&file, process.to_string()).expect("write process.json");
        return cmd.arg("--process").arg(file).arg(&bundle.id).run();
    }
    cmd.args([bundle.id.as_str(), "/attack"]).args(words).run()
}

/// The lines `NAME OUTCOME` that an attack printed.
pub fn outcomes(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once(' ')).map(|(name, outcome)| (name.into(), outcome.into())).collect()
}
