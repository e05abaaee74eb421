//! Mounts: what may be mounted where, and with which flags.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::host::{Source, SourceKind};
use super::{Decision, Refusal, Work, sources, strict};
use crate::spec::Mount;
use crate::spec::annotations::MOUNTS;
use crate::spec::mount_rules::{Access, MountRule};
use crate::spec::normalise::clean_absolute;
use crate::sys::mountattr;
use crate::terms::{Allow, Writes};

/// Why a mount has an option that its engine did not give it.
const REASONS: &[(&str, &str)] = &[
    ("nosuid", "setuid programs of a mount have no effect"),
    ("nodev", "device files of a mount cannot be used"),
    ("noexec", "programs come with the image, or from where mounts.exec of the configuration lets them"),
    ("ro", "nothing is to be written there"),
    ("rprivate", "what is mounted later stays on its side"),
];

/// Judges and changes all mounts.
pub(super) fn pass(work: &mut Work<'_>) -> Result<(), Refusal> {
    let mounts: Vec<Option<Mount>> = work.spec["mounts"].as_array().into_iter().flatten().map(Mount::of).collect();
    let mut unused: BTreeSet<&Path> = work.policy.mounts.keys().map(PathBuf::as_path).collect();
    // A destination is told where the document has one.
    for (n, mount) in mounts.iter().enumerate().filter_map(|(n, mount)| Some((n, mount.as_ref()?))) {
        let written = clean_absolute(&mount.destination);
        let rule = work.policy.mounts.get(&written).copied();
        let place = work.host.destinations.get(&n).cloned().unwrap_or_else(|| written.clone());
        let this = This { n, mount, at: &written, place: &place, rule: rule.unwrap_or_default() };
        let options = if mount.is_bind() { this.bind(work)? } else { this.filesystem(work)? };
        if rule.is_some() && (mount.is_bind() || mount.kind == "tmpfs") {
            unused.remove(written.as_path());
        }
        if options != mount.options {
            let why = reasons(&mount.options, &options, mount.is_bind());
            work.spec["mounts"][n]["options"] = json!(options);
            let field = format!("mounts[{}].options", written.display());
            let (from, to) = (json!(mount.options), json!(options));
            work.decisions.push(Decision { field, from, to, why: why.into() });
        }
    }
    // Without a filesystem of its own on /dev the image's device files are the container's.
    let own_dev = mounts.iter().flatten().any(|mount| clean_absolute(&mount.destination) == Path::new("/dev"));
    work.confinement.root_flags = mountattr::NOSUID | if own_dev { mountattr::NODEV } else { 0 };
    match unused.first() {
        Some(path) => Err(annotation(path, "no bind mount has this destination", "correct the path, or leave it out")),
        None => Ok(()),
    }
}

fn annotation(path: &Path, why: &str, remedy: &str) -> Refusal {
    Refusal {
        what: format!("annotation {MOUNTS}, {:?}", path.display().to_string()),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// One mount that is looked at.
struct This<'a> {
    n: usize,
    mount: &'a Mount,
    /// Its destination, as written.
    at: &'a Path,
    /// Its destination, where it is in the root filesystem.
    place: &'a Path,
    rule: MountRule,
}

impl This<'_> {
    fn refuse<T>(&self, what: &str, why: &str, remedy: &str) -> Result<T, Refusal> {
        let place = if self.place == self.at { String::new() } else { format!(" (which is {})", self.place.display()) };
        let what = format!("mounts[{}]{place}: {what}", self.at.display());
        Err(Refusal { what, why: why.to_owned(), remedy: remedy.to_owned() })
    }

    /// A mount that is no bind mount: the options that it gets.
    fn filesystem(&self, work: &Work<'_>) -> Result<Vec<String>, Refusal> {
        let kind = self.mount.kind.as_str();
        let Some(known) = strict::FILESYSTEMS.iter().find(|fs| fs.kind == kind) else {
            let why =
                "filesystems that need a device, a network or a program of their own are not for a container to mount";
            return self.refuse(
                &format!("filesystem {kind:?}"),
                why,
                "mount it on the host, and give the container a bind mount",
            );
        };
        let fits = |at: &str| self.place == at || (kind.starts_with("cgroup") && self.place.starts_with(at));
        if let Some(at) = known.at.filter(|at| !fits(at)) {
            let why = format!("its only place is {at}: {}", known.why);
            return self.refuse(&format!("filesystem {kind:?}"), &why, "mount it there, or leave it out");
        }
        if known.at.is_none() {
            self.check_place()?;
        }
        if self.rule.access.is_some() {
            return Err(annotation(self.at, "no bind mount has this destination", "correct the path, or leave it out"));
        }
        let exec = self.may_exec(work, None)?;
        let is_dev = self.place == Path::new("/dev");
        let wanted = known.flags.iter().filter(|flag| !(exec && **flag == "noexec" || is_dev && **flag == "nodev"));
        let flags: Vec<&str> = ["nosuid"].into_iter().chain(wanted.copied()).collect();
        Ok(with_flags(&self.mount.options, &flags))
    }

    /// A bind mount: the options that it gets.
    fn bind(&self, work: &mut Work<'_>) -> Result<Vec<String>, Refusal> {
        self.check_place()?;
        let source = work.host.sources.get(&self.n);
        let read_only = self.is_read_only(work, source)?;
        if let Some(source) = source {
            let written = !read_only && !work.confinement.copy_on_write.iter().any(|at| at == self.at);
            sources::judge(source, self.at, written, &work.policy.rules, work.host)?;
        }
        let mut flags = vec!["nosuid"];
        if !source.is_some_and(|source| matches!(source.kind, SourceKind::Device(_))) {
            flags.push("nodev");
        }
        if !self.may_exec(work, source)? {
            flags.push("noexec");
        }
        if read_only {
            flags.push("ro");
        }
        let recursive: Vec<String> = flags.iter().map(|flag| format!("r{flag}")).collect();
        if self.mount.has("rbind") {
            // What is mounted below the source comes with it.
            flags.extend(recursive.iter().map(String::as_str));
        }
        let mut options = with_flags(&self.mount.options, &flags);
        if !work.policy.rules.allows(Allow::MountPropagation) {
            private(&mut options);
        }
        Ok(options)
    }

    /// Refuses places at which a mount would cover what the runtime relies on.
    fn check_place(&self) -> Result<(), Refusal> {
        let remedy = "mount it elsewhere";
        let lxcfs = |name: &Path| strict::PROC_FILES.iter().any(|file| name == Path::new(file));
        match self.place.strip_prefix("/proc") {
            Ok(name) if !lxcfs(name) => {
                return self.refuse(
                    "a mount there",
                    "what programs of the runtime see in /proc would not be the kernel's",
                    remedy,
                );
            }
            _ => {}
        }
        if self.place.starts_with("/sys") {
            return self.refuse("a mount there", "/sys is the kernel's", remedy);
        }
        if self.place == Path::new("/") {
            return self.refuse("a mount there", "it would cover the root filesystem, with its layers", remedy);
        }
        if self.place == Path::new("/dev") && self.mount.is_bind() {
            return self.refuse(
                "a bind mount there",
                "a container has a /dev of its own",
                "leave it out, and list devices one by one",
            );
        }
        Ok(())
    }

    /// Whether programs on it can be executed.
    fn may_exec(&self, work: &Work<'_>, source: Option<&Source>) -> Result<bool, Refusal> {
        let rules = &work.policy.rules;
        let listed = source.is_some_and(|source| {
            let program = strict::PROGRAMS.iter().any(|program| source.path == Path::new(program));
            program || rules.mounts.exec.iter().any(|path| source.path.starts_with(path))
        });
        if listed || !self.rule.exec {
            return Ok(listed);
        }
        if rules.allows(Allow::MountExec) {
            return Ok(true);
        }
        let why = "\"exec\" lets programs in that the profile keeps out";
        let remedy = "leave it out, or have \"mount-exec\" in the configuration's allow, or the mount's source in its mounts.exec";
        Err(annotation(self.at, why, remedy))
    }

    /// Whether nothing can be written to it; notes where writes go to layers.
    fn is_read_only(&self, work: &mut Work<'_>, source: Option<&Source>) -> Result<bool, Refusal> {
        if self.mount.has("ro") || self.mount.has("rro") {
            return Ok(true);
        }
        let default = work.policy.rules.mounts.default;
        let access = match (self.rule.access, default) {
            (Some(Access::ReadWrite), Writes::ReadOnly | Writes::CopyOnWrite) => {
                if !work.policy.rules.allows(Allow::MountWrite) {
                    let why = format!("\"rw\" loosens mounts.default = {:?} of the configuration", default.as_str());
                    let remedy = "leave it out, or have \"mount-write\" in the configuration's allow";
                    return Err(annotation(self.at, &why, remedy));
                }
                Access::ReadWrite
            }
            (Some(access), _) => access,
            (None, Writes::AsGiven) => Access::ReadWrite,
            (None, Writes::ReadOnly) => Access::ReadOnly,
            // Only a directory can be an overlay, which would map no ids.
            (None, Writes::CopyOnWrite)
                if source.is_some_and(|s| s.kind == SourceKind::Directory) && !self.mount.maps_ids() =>
            {
                Access::CopyOnWrite
            }
            (None, Writes::CopyOnWrite) => Access::ReadOnly,
        };
        if access == Access::CopyOnWrite {
            if source.is_some_and(|source| source.kind != SourceKind::Directory) {
                return Err(annotation(self.at, "\"cow\" is for directories", "leave it out, or say \"ro\""));
            }
            let at = self.at.to_owned();
            if !work.confinement.copy_on_write.contains(&at) {
                let field = format!("mounts[{}]", at.display());
                work.confinement.copy_on_write.push(at);
                let why =
                    "its annotation or mounts.default: writes go to layers, the host's directory is never written";
                work.decide(field, Value::Null, json!("copy-on-write"), why);
            }
        }
        Ok(access == Access::ReadOnly)
    }
}

/// Why the options were changed.
fn reasons(before: &[String], after: &[String], bind: bool) -> String {
    let is_new = |name: &str| after.iter().any(|o| o == name) && !before.iter().any(|o| o == name);
    let told = REASONS.iter().filter(|(name, _)| is_new(name)).map(|(_, why)| *why);
    let below = (bind && is_new("rnosuid")).then_some("the same for what is mounted below the source");
    told.chain(below).collect::<Vec<_>>().join("; ")
}

/// The options that undo a flag. A recursive one does so to the mount itself too, and comes after all that are not.
fn opposites(flag: &str) -> [String; 2] {
    let plain = match flag {
        "ro" | "rro" => "rw".to_owned(),
        // nosuid, rnosuid …
        flag => flag.strip_prefix('r').unwrap_or(flag).replacen("no", "", 1),
    };
    [format!("r{plain}"), plain]
}

/// The options with these flags, and without what undoes one.
fn with_flags(options: &[String], flags: &[&str]) -> Vec<String> {
    let undone: Vec<String> = flags.iter().flat_map(|flag| opposites(flag)).collect();
    let mut all: Vec<String> = options.iter().filter(|option| !undone.contains(option)).cloned().collect();
    for flag in flags {
        if !all.iter().any(|option| option == flag) {
            all.push((*flag).to_owned());
        }
    }
    all
}

/// Replaces propagation to or from the host.
fn private(options: &mut Vec<String>) {
    let before = options.len();
    options.retain(|option| !matches!(option.as_str(), "shared" | "rshared" | "slave" | "rslave"));
    if options.len() != before {
        options.push("rprivate".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Mounts, Rules};
    use crate::policy::tests::minimal;
    use crate::policy::{Hardened, Host, Policy, harden};
    use crate::spec::{Config, mount_rules};

    fn directory(path: &str) -> Source {
        Source {
            path: path.into(),
            links: Vec::new(),
            kind: SourceKind::Directory,
            filesystem: 0xef53,
            below: Vec::new(),
        }
    }

    /// Hardens `mounts`, the sources of bind mounts being directories of the same name.
    fn hardened(mounts: Value, rules: Rules, annotation: &str) -> Result<Hardened, String> {
        let mut host = Host::default();
        for (n, mount) in mounts.as_array().into_iter().flatten().enumerate() {
            let source = mount["source"].as_str().unwrap_or_default();
            if source.starts_with('/') {
                let kind = if source.contains('.') { SourceKind::File } else { SourceKind::Directory };
                host.sources.insert(n, Source { kind, ..directory(source) });
            }
        }
        on(mounts, rules, annotation, &host)
    }

    fn on(mounts: Value, rules: Rules, annotation: &str, host: &Host) -> Result<Hardened, String> {
        let mut spec = minimal();
        spec["mounts"] = mounts;
        let mounts = if annotation.is_empty() { Default::default() } else { mount_rules::parse(annotation).unwrap() };
        if !annotation.is_empty() {
            spec["annotations"] = json!({MOUNTS: annotation});
        }
        harden(&Config::from_value(spec), &Policy { rules, mounts, ..Policy::default() }, host)
            .map_err(|err| err.to_string())
    }

    fn options(got: &Hardened, n: usize) -> Vec<String> {
        serde_json::from_value(got.spec.value()["mounts"][n]["options"].clone()).unwrap()
    }

    fn bind(at: &str, source: &str, options: &[&str]) -> Value {
        json!({"destination": at, "type": "bind", "source": source, "options": options})
    }

    #[test]
    fn flags_of_the_kernels_filesystems() {
        let fs = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
        for (mount, want) in [
            (fs("/proc", "proc", &["nosuid", "noexec", "nodev"]), vec!["nosuid", "noexec", "nodev"]),
            (fs("/sys", "sysfs", &["rw", "suid"]), vec!["nosuid", "nodev", "noexec", "ro"]),
            (fs("/dev", "tmpfs", &["dev", "exec", "mode=755"]), vec!["dev", "mode=755", "nosuid", "noexec"]),
            (fs("/tmp", "tmpfs", &["exec", "dev", "size=1k"]), vec!["size=1k", "nosuid", "nodev", "noexec"]),
            (fs("/dev/pts", "devpts", &["newinstance"]), vec!["newinstance", "nosuid", "noexec"]),
            (fs("/sys/fs/cgroup", "cgroup", &[]), vec!["nosuid", "nodev", "noexec", "ro"]),
            // What is recursive holds for the mount itself too.
            (fs("/sys", "sysfs", &["rrw", "rexec"]), vec!["nosuid", "nodev", "noexec", "ro"]),
            (fs("/tmp", "tmpfs", &["rsuid", "rexec", "rdev"]), vec!["nosuid", "nodev", "noexec"]),
            (bind("/v", "/data", &["bind", "rexec", "rdev", "rsuid"]), vec!["bind", "nosuid", "nodev", "noexec"]),
            (bind("/v", "/data", &["bind", "ro", "rrw"]), vec!["bind", "ro", "nosuid", "nodev", "noexec"]),
        ] {
            let got = hardened(json!([mount]), Rules::default(), "").unwrap();
            assert_eq!(options(&got, 0), want, "{mount}");
        }
        for (at, kind, words) in [
            ("/proc2", "proc", "its only place is /proc"),
            ("/data", "ext4", "filesystem \"ext4\""),
            ("/data", "", "filesystem \"\""),
            ("/data", "overlay", "give the container a bind mount"),
            ("/proc/sys", "tmpfs", "would not be the kernel's"),
            ("/sys/x", "tmpfs", "/sys is the kernel's"),
            ("/", "tmpfs", "it would cover the root filesystem"),
        ] {
            let err = hardened(json!([fs(at, kind, &[])]), Rules::default(), "").unwrap_err();
            assert!(err.starts_with(&format!("mounts[{at}]: ")) && err.contains(words), "{err}");
        }
    }

    #[test]
    fn flags_of_bind_mounts() {
        let list = json!([
            bind("/a", "/h/a", &["rbind", "rprivate"]),
            bind("/b", "/h/b", &["bind", "exec", "suid", "rshared"])
        ]);
        let got = hardened(list.clone(), Rules::default(), "").unwrap();
        let all = ["rbind", "rprivate", "nosuid", "nodev", "noexec", "rnosuid", "rnodev", "rnoexec"];
        assert_eq!(options(&got, 0), all);
        assert_eq!(options(&got, 1), ["bind", "nosuid", "nodev", "noexec", "rprivate"]);
        let told: Vec<&str> =
            got.decisions.iter().map(|d| d.field.as_str()).filter(|f| f.starts_with("mounts")).collect();
        assert_eq!(told, ["mounts[/a].options", "mounts[/b].options"]);
        assert_eq!(got.confinement.root_flags, mountattr::NOSUID, "without a /dev of its own");
        let allow = Rules { allow: vec![Allow::MountPropagation], ..Rules::default() };
        assert!(options(&hardened(list, allow, "").unwrap(), 1).contains(&"rshared".to_owned()));
        let mounts = Mounts { exec: vec!["/h".into()], ..Mounts::default() };
        let rules = Rules { mounts, ..Rules::default() };
        let tools =
            hardened(json!([bind("/a", "/h/a", &["bind", "noexec"]), bind("/b", "/h", &["bind"])]), rules, "").unwrap();
        assert_eq!(options(&tools, 0), ["bind", "noexec", "nosuid", "nodev"], "what the engine takes stays taken");
        assert_eq!(options(&tools, 1), ["bind", "nosuid", "nodev"]);
        let init =
            hardened(json!([bind("/sbin/docker-init", "/usr/bin/docker-init", &["bind", "ro"])]), Rules::default(), "");
        assert!(!options(&init.unwrap(), 0).contains(&"noexec".to_owned()));
    }

    #[test]
    fn places_that_cannot_be_covered() {
        for at in ["/", "/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev", "/work/../proc/sys"] {
            let err = hardened(json!([bind(at, "/h", &["bind"])]), Rules::default(), "").unwrap_err();
            assert!(err.starts_with("mounts[/"), "{at}: {err}");
        }
        for at in ["/proc/meminfo", "/dev/shm", "/processes"] {
            hardened(json!([bind(at, "/h", &["bind"])]), Rules::default(), "").unwrap();
        }
        // The image has a link of that name.
        let host = Host { destinations: [(0, "/proc/sys".into())].into(), ..Host::default() };
        let err = on(json!([bind("/work", "/h", &["bind"])]), Rules::default(), "", &host).unwrap_err();
        assert!(err.starts_with("mounts[/work] (which is /proc/sys): "), "{err}");
    }

    #[test]
    fn annotations_loosen_only_where_they_may() {
        let list = json!([
            bind("/w", "/h/w", &["bind"]),
            bind("/ro", "/h/r", &["bind", "ro"]),
            bind("/f", "/h/f.conf", &["bind"]),
            json!({"destination": "/tmp", "type": "tmpfs"})
        ]);
        let rules = |allow: &[Allow], default| {
            let mounts = Mounts { default, exec: vec!["/h/w".into()], ..Mounts::default() };
            Rules { allow: allow.to_vec(), mounts, ..Rules::default() }
        };
        let with = |allow: &[Allow], default, note: &str| hardened(list.clone(), rules(allow, default), note);
        let given = Writes::AsGiven;
        let err = with(&[], given, r#"{"/tmp": "exec"}"#).unwrap_err();
        assert!(err.contains("\"mount-exec\" in the configuration's allow") && err.contains("\"/tmp\""), "{err}");
        assert!(
            !options(&with(&[Allow::MountExec], given, r#"{"/tmp": "exec"}"#).unwrap(), 3)
                .contains(&"noexec".to_owned())
        );
        with(&[], given, r#"{"/w": "exec,rw"}"#).unwrap();
        for default in [Writes::ReadOnly, Writes::CopyOnWrite] {
            let err = with(&[], default, r#"{"/w": "rw"}"#).unwrap_err();
            assert!(err.contains("\"mount-write\""), "{err}");
            let got = with(&[Allow::MountWrite], default, r#"{"/w": "rw"}"#).unwrap();
            assert!(!options(&got, 0).contains(&"ro".to_owned()));
        }
        let got = with(&[], given, r#"{"/w": "ro"}"#).unwrap();
        assert!(options(&got, 0).contains(&"ro".to_owned()));
        assert!(!options(&got, 2).contains(&"ro".to_owned()));
        for (note, words) in [
            (r#"{"/none": "ro"}"#, "no bind mount has this destination"),
            (r#"{"/tmp": "ro"}"#, "no bind mount has this destination"),
            (r#"{"/f": "cow"}"#, "\"cow\" is for directories"),
        ] {
            let err = with(&[], given, note).unwrap_err();
            assert!(err.starts_with("annotation dev.agentsbx.mounts, ") && err.contains(words), "{err}");
        }
    }

    #[test]
    fn writes_go_where_the_configuration_says() {
        let list = json!([
            bind("/w", "/h/w", &["rbind"]),
            bind("/ro", "/h/r", &["bind", "ro"]),
            bind("/f", "/h/f.conf", &["bind"]),
            bind("/ids", "/h/i", &["bind", "idmap"])
        ]);
        let with = |default| {
            let mounts = Mounts { default, ..Mounts::default() };
            hardened(list.clone(), Rules { mounts, ..Rules::default() }, "").unwrap()
        };
        let read_only = |got: &Hardened| [0, 1, 2, 3].map(|n| options(got, n).contains(&"ro".to_owned()));
        let given = with(Writes::AsGiven);
        assert_eq!((read_only(&given), given.confinement.copy_on_write.len()), ([false, true, false, false], 0));
        let closed = with(Writes::ReadOnly);
        assert_eq!(read_only(&closed), [true; 4]);
        assert!(options(&closed, 0).contains(&"rro".to_owned()));
        let cow = with(Writes::CopyOnWrite);
        assert_eq!(read_only(&cow), [false, true, true, true], "neither a file nor mapped ids can be an overlay");
        assert_eq!(cow.confinement.copy_on_write, [PathBuf::from("/w")]);
    }
}
