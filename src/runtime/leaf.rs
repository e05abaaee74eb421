//! On cgroup v2, a group of its own for the first process, below the container's.
//!
//! The kernel gives the children of a group controllers only while the group itself has no process. So that execs can be
//! counted and limited each for itself, the first process moves one down when it is started: engines have looked up the
//! container's group by its pid by then, and count everything in that. The container's group stays the root of its cgroup
//! namespace, and keeps the limits. What reads its limits inside (a JVM, say) reads those of the group that it is in: they
//! are written there as well.
//!
//! Where the container may manage its groups itself (systemd in a container, say, with a writable cgroup mount) all stays as
//! the engine made it.

use std::io;
use std::path::Path;

use super::cgroup::CgroupDir;
use super::members::write;
use crate::spec::{Config, Mount};
use crate::sys::proc;
use crate::terms::FIRST_GROUP;

/// How our groups' names begin.
const OURS: &str = "agentsbx-";
/// What execs are counted by, and limited.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Limits that processes look for in their own group.
const MIRRORED: [&str; 5] = ["cpu.max", "memory.max", "memory.high", "memory.swap.max", "pids.max"];
const GROUPS: &str = "/sys/fs/cgroup";

/// Whether a container can change its own groups: it has them mounted writable, or can mount them.
pub fn is_manager(config: &Config) -> bool {
    let caps = &config.value()["process"]["capabilities"]["bounding"];
    let may_mount = caps.as_array().is_some_and(|caps| caps.iter().any(|cap| cap == "CAP_SYS_ADMIN"));
    may_mount || config.mounts().iter().any(gives_groups)
}

fn gives_groups(mount: &Mount) -> bool {
    let read_only = mount.options.iter().rev().find(|o| ["ro", "rw", "rro"].contains(&o.as_str()));
    let read_only = read_only.is_some_and(|option| option != "rw");
    match (&*mount.kind, mount.source.as_deref()) {
        ("cgroup" | "cgroup2", _) => !read_only,
        (_, Some(source)) if mount.has("bind") || mount.has("rbind") || mount.kind == "bind" => {
            // A recursive mount of what is above has the groups in it, and "ro" is not for what is below.
            let above = Path::new(GROUPS).starts_with(source) && source != Path::new(GROUPS);
            source.starts_with(GROUPS) && !read_only || above && mount.has("rbind") && !mount.has("rro")
        }
        _ => false,
    }
}

/// Moves the first process, `pid`, into a group of its own and has the container's children counted. Where that is not
/// possible all stays as it is: execs are then counted by the container's group.
pub fn settle(dirs: &[CgroupDir], pid: i32) {
    let [dir] = dirs else { return };
    if !dir.is_v2() {
        return;
    }
    if let Err(err) = try_settle(&dir.path, pid) {
        tracing::warn!(cgroup = %dir.path.display(), error = %err, "execs are not counted apart");
    }
}

fn try_settle(dir: &Path, pid: i32) -> io::Result<()> {
    let available = proc::read_text(&dir.join("cgroup.controllers"))?;
    let wanted: Vec<&str> = available.split_whitespace().filter(|name| CONTROLLERS.contains(name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let own = dir.join(FIRST_GROUP);
    match rustix::fs::mkdir(&own, rustix::fs::Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let moved = write(&own.join("cgroup.procs"), &pid.to_string());
    let control = dir.join("cgroup.subtree_control");
    let enabled = moved.and_then(|()| {
        // Each by itself: one that can't be given is no reason to go without the others.
        let outcomes: Vec<io::Result<()>> = wanted.iter().map(|name| write(&control, &format!("+{name}"))).collect();
        match outcomes.iter().any(Result::is_ok) {
            true => Ok(()),
            false => outcomes.into_iter().collect(),
        }
    });
    if enabled.is_err() {
        // As it was; whatever of this fails changes no count.
        let _ = write(&dir.join("cgroup.procs"), &pid.to_string());
        let _ = rustix::fs::rmdir(&own);
        return enabled;
    }
    mirror_to_all(dir);
    Ok(())
}

/// Writes the limits of the container's group `dir` to our groups below it.
pub fn mirror_to_all(dir: &Path) {
    let groups = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for group in groups.filter(|group| group.file_name().to_str().is_some_and(|name| name.starts_with(OURS))) {
        mirror(dir, &group.path());
    }
}

/// Writes the limits of group `dir` to the group `below`. They hold by `dir` itself: this is for those who read them.
pub fn mirror(dir: &Path, below: &Path) {
    for name in MIRRORED {
        let (from, to) = (dir.join(name), below.join(name));
        // Without the controller there is no file.
        let Ok(there) = proc::read_text(&to) else { continue };
        if let Ok(limit) = proc::read_text(&from)
            && limit != there
        {
            let _ = write(&to, limit.trim());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_manages_groups() {
        let with = |mounts: serde_json::Value, caps: serde_json::Value| {
            is_manager(&Config::from_value(json!({"mounts": mounts, "process": {"capabilities": {"bounding": caps}}})))
        };
        let cgroup = |options: &[&str]| json!([{"destination": "/c", "type": "cgroup", "options": options}]);
        let bind = |source: &str, options: &[&str]| json!([{"destination": "/c", "type": "bind", "source": source, "options": options}]);
        for (mounts, manages) in [
            (json!([]), false),
            (cgroup(&["nosuid", "ro"]), false),
            (cgroup(&["nosuid"]), true),
            (cgroup(&["ro", "rw"]), true),
            (bind("/sys/fs/cgroup/x", &["rbind", "ro"]), false),
            (bind("/sys/fs/cgroup", &["bind"]), true),
            (bind("/sys", &["rbind", "ro"]), true),
            (bind("/sys", &["rbind", "rro"]), false),
            (bind("/sys", &["bind"]), false),
            (bind("/", &["rbind"]), true),
            (bind("/srv", &["rbind"]), false),
        ] {
            assert_eq!(with(mounts.clone(), json!([])), manages, "{mounts}");
        }
        assert!(with(json!([]), json!(["CAP_CHOWN", "CAP_SYS_ADMIN"])));
    }

    #[test]
    fn limits_are_mirrored_where_there_is_a_controller() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            crate::durable::replace_unsynced(&dir.path().join(name), text.as_bytes(), 0o600).unwrap();
        };
        for group in ["agentsbx-first", "other"] {
            std::fs::create_dir(dir.path().join(group)).unwrap();
            put(&format!("{group}/memory.max"), "max\n");
        }
        put("memory.max", "1048576\n");
        put("cpu.max", "50000 100000\n");
        mirror_to_all(dir.path());
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        // A control file takes a value anew with each write; this one is only written over.
        assert!(read("agentsbx-first/memory.max").unwrap().starts_with("1048576"));
        assert_eq!(read("other/memory.max").as_deref(), Some("max\n"));
        assert_eq!(read("agentsbx-first/cpu.max"), None);
    }
}
