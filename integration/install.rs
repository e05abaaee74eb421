//! `make install` and `make uninstall`, into a directory that stands for the root of a machine. What engines make of it is
//! seen on a machine of its own, by hack/vm.sh.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::shim::daemon::Release;
use crate::support::env::{binary, process, shim_binary, unique};
use crate::support::images::repository;
use crate::support::{Cmd, Output};

const DAEMON: &str = "etc/docker/daemon.json";

/// The directory.
struct Machine(PathBuf);

impl Machine {
    fn new() -> Machine {
        let dir = process().data.join(unique("machine"));
        fs::create_dir_all(dir.join("etc/docker")).expect("make a directory");
        Machine(dir)
    }

    /// One that has a daemon.json.
    fn with_daemon(text: &str) -> Machine {
        let machine = Machine::new();
        fs::write(machine.0.join(DAEMON), text).expect("write");
        machine
    }

    fn make(&self, target: &str) -> Output {
        self.make_below("/opt/sbx", target)
    }

    /// By make, as people do it. Nobody but root may read what is made carelessly.
    fn make_below(&self, prefix: &str, target: &str) -> Output {
        let variables = [format!("PREFIX={prefix}"), format!("DESTDIR={}", self.0.display())];
        Cmd::new("make")
            .args(["--silent", "--no-print-directory", "-C"])
            .arg(repository())
            .arg(target)
            .args(variables)
            .env("AGENTSBX_BIN", binary())
            .in_shell("umask 077; exec \"$@\"")
            .run()
    }

    fn daemon(&self) -> Option<String> {
        fs::read_to_string(self.0.join(DAEMON)).ok()
    }

    /// Each file's path, mode, inode and what it says.
    fn files(&self) -> BTreeMap<String, (u32, u64, Vec<u8>)> {
        let found = Cmd::new("find").arg(&self.0).args(["-type", "f", "-printf", "%P\\n"]).ok();
        let of = |name: &str| {
            let meta = fs::metadata(self.0.join(name)).expect("stat");
            (meta.mode() & 0o7777, meta.ino(), fs::read(self.0.join(name)).expect("read"))
        };
        found.lines().map(|name| (name.to_owned(), of(name))).collect()
    }

    /// The same without the inodes, which change when a file is replaced by its like.
    fn contents(&self) -> BTreeMap<String, (u32, Vec<u8>)> {
        self.files().into_iter().map(|(name, (mode, _, bytes))| (name, (mode, bytes))).collect()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).mode() & 0o7777
}

#[test]
fn each_file_is_there_with_its_mode() {
    let machine = Machine::new();
    let said = machine.make("install").ok();
    assert!(said.contains("agentsbx") && said.contains("/opt/sbx/bin/agentsbx"), "{said}");
    let modes: Vec<(String, u32)> = machine.files().into_iter().map(|(name, (mode, ..))| (name, mode)).collect();
    let wanted = [
        ("etc/containers/containers.conf.d/agentsbx.conf", 0o644),
        (DAEMON, 0o644),
        ("opt/sbx/bin/agentsbx", 0o755),
        ("opt/sbx/bin/containerd-shim-agentsbx-v1", 0o755),
        ("opt/sbx/share/agentsbx/containerd-1.toml", 0o644),
        ("opt/sbx/share/agentsbx/containerd-2.toml", 0o644),
        ("opt/sbx/share/agentsbx/runtimeclass.yaml", 0o644),
    ];
    assert_eq!(modes, wanted.map(|(name, mode)| (name.to_owned(), mode)));
    for dir in ["opt/sbx/bin", "opt/sbx/share/agentsbx", "etc/containers/containers.conf.d"] {
        assert_eq!(mode(&machine.0.join(dir)), 0o755, "{dir}");
    }
    for (name, built) in [("agentsbx", binary()), ("containerd-shim-agentsbx-v1", shim_binary())] {
        let installed = fs::read(machine.0.join("opt/sbx/bin").join(name)).expect("read");
        assert!(installed == fs::read(built).expect("read"), "{name} is another");
    }
    // Engines are told the path without DESTDIR.
    let daemon: Value = serde_json::from_str(&machine.daemon().expect("a file")).expect("JSON");
    assert_eq!(daemon, json!({ "runtimes": { "agentsbx": { "path": "/opt/sbx/bin/agentsbx" } } }));
    let podman = machine.0.join("etc/containers/containers.conf.d/agentsbx.conf");
    let podman = fs::read_to_string(podman).expect("read");
    assert_eq!(podman, "[engine.runtimes]\nagentsbx = [\"/opt/sbx/bin/agentsbx\"]\n");

    let once = machine.contents();
    machine.make("install").ok();
    assert_eq!(machine.contents(), once, "a second time");
    machine.make("uninstall").ok();
    assert_eq!(machine.files().into_keys().collect::<Vec<_>>(), Vec::<String>::new());
    assert!(!machine.0.join("opt/sbx/share/agentsbx").exists());
    // There is nothing to take away, and that is well, and said.
    let again = machine.make("uninstall").expect(0);
    assert!(again.stderr.contains("nothing of agentsbx is installed below") && again.stdout.is_empty(), "{again:?}");
}

/// It is the administrator's file: only the entry comes and goes, in the file's own style, and to the byte.
#[test]
fn what_else_daemon_json_says_stays_as_it_is() {
    for (text, entry) in [
        ("{}", "{\"runtimes\": {\"agentsbx\": {\"path\": \"/opt/sbx/bin/agentsbx\"}}}"),
        (
            "{\n    \"log-opts\": {\"max-size\": \"10m\"},\n    \"labels\": [\"a}\",  \"é\"]\n}\n",
            ",\n    \"runtimes\": {\n        \"agentsbx\": {\n            \"path\": \"/opt/sbx/bin/agentsbx\"\n        }\n    }\n}\n",
        ),
        (
            "{\n\t\"runtimes\": {\n\t\t\"kata\": {\"path\": \"/k\"}\n\t},\n\t\"debug\": true\n}",
            "{\"path\": \"/k\"},\n\t\t\"agentsbx\": {\n\t\t\t\"path\": \"/opt/sbx/bin/agentsbx\"\n\t\t}\n\t},\n\t\"debug\"",
        ),
        ("{\r\n  \"debug\": true\r\n}\r\n", "true,\r\n  \"runtimes\": {\r\n    \"agentsbx\": {\r\n      \"path\""),
        ("{\"a\":1,\"runtimes\":{\"kata\":{\"path\":\"/k\"}},\"b\":2}", "\"/k\"}, \"agentsbx\": {\"path\""),
    ] {
        let machine = Machine::with_daemon(text);
        let path = machine.0.join(DAEMON);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        machine.make("install").ok();
        let with = machine.daemon().expect("a file");
        assert!(with.contains(entry), "{with}");
        let mut expected: Value = serde_json::from_str(text).expect("JSON");
        expected["runtimes"]["agentsbx"] = json!({ "path": "/opt/sbx/bin/agentsbx" });
        assert_eq!(serde_json::from_str::<Value>(&with).expect("JSON"), expected, "{with}");
        let inode = machine.files()[DAEMON].1;
        machine.make("install").ok();
        assert_eq!((machine.daemon(), machine.files()[DAEMON].1), (Some(with), inode), "a second time");
        machine.make("uninstall").ok();
        assert_eq!(machine.daemon().as_deref(), Some(text));
        assert_eq!(mode(&path), 0o640);
    }
}

/// A link that stands in its place leads to what is changed, and stays.
#[test]
fn a_link_to_daemon_json_stays() {
    for text in [None, Some("{\n  \"debug\": true\n}\n")] {
        let machine = Machine::new();
        let (link, real) = (machine.0.join(DAEMON), machine.0.join("real.json"));
        std::os::unix::fs::symlink(&real, &link).expect("link");
        if let Some(text) = text {
            fs::write(&real, text).expect("write");
        }
        machine.make("install").ok();
        assert!(fs::read_to_string(&real).expect("a file").contains("/opt/sbx/bin/agentsbx"));
        machine.make("uninstall").ok();
        assert_eq!(fs::read_link(&link).expect("a link"), real);
        assert_eq!(fs::read_to_string(&real).ok().as_deref(), text);
    }
}

/// What an administrator has put into the entry is kept while it is there; as the default it goes with it, since dockerd does
/// not start with a default that it does not know.
#[test]
fn the_default_goes_with_its_entry() {
    let text = "{\n  \"default-runtime\": \"agentsbx\",\n  \"runtimes\": {\n    \"agentsbx\": {\n      \
                \"path\": \"/opt/sbx/bin/agentsbx\",\n      \
                \"runtimeArgs\": [\"--debug\"]\n    }\n  },\n  \"debug\": true\n}\n";
    let machine = Machine::with_daemon(text);
    machine.make("install").ok();
    assert_eq!(machine.daemon().as_deref(), Some(text));
    machine.make("uninstall").ok();
    assert_eq!(machine.daemon().as_deref(), Some("{\n  \"debug\": true\n}\n"));
}

/// An entry for another program is its administrator's, and comes and goes by his hand.
#[test]
fn an_entry_for_another_program_is_kept_and_told() {
    for (entry, named, remedy) in [
        ("{\"path\": \"/old/bin/agentsbx\"}", "/old/bin/agentsbx", "make uninstall PREFIX=/old DESTDIR="),
        ("{\"path\": \"/old/sbx\"}", "/old/sbx", "remove the entry"),
        ("{\"runtimeType\": \"io.containerd.agentsbx.v1\"}", "io.containerd.agentsbx.v1", "remove the entry"),
    ] {
        let text = format!("{{\"default-runtime\": \"agentsbx\", \"runtimes\": {{\"agentsbx\": {entry}}}}}\n");
        let machine = Machine::with_daemon(&text);
        for target in ["install", "uninstall"] {
            let said = machine.make(target).expect(0).stderr;
            assert!(said.contains(DAEMON) && said.contains("is kept"), "{target}: {said}");
            assert!(said.contains(named) && said.contains(remedy), "{target}: {said}");
            assert_eq!(machine.daemon().as_deref(), Some(text.as_str()), "{target}");
        }
        assert_eq!(machine.files().into_keys().collect::<Vec<_>>(), [DAEMON], "the files of this PREFIX went");
    }
    let machine = Machine::new();
    let podman = machine.0.join("etc/containers/containers.conf.d/agentsbx.conf");
    fs::create_dir_all(podman.parent().expect("a directory")).expect("make a directory");
    fs::write(&podman, "[engine.runtimes]\nagentsbx = [\"/old/bin/agentsbx\"]\n").expect("write");
    for target in ["install", "uninstall"] {
        let said = machine.make(target).expect(0).stderr;
        assert!(said.contains("agentsbx.conf: its entry agentsbx is for /old/bin/agentsbx, and is kept"), "{said}");
        assert!(fs::read_to_string(&podman).expect("read").contains("/old/"), "{target}");
    }
}

/// `uninstall` without the PREFIX of `install` takes nothing away that works, and names the one to give.
#[test]
fn another_prefix_takes_nothing_away() {
    let machine = Machine::new();
    machine.make("install").ok();
    let before = machine.files();
    let other = machine.make_below("/usr/local", "uninstall").expect(0);
    assert_eq!(machine.files(), before);
    assert!(!other.stdout.contains("uninstalled"), "{other:?}");
    let (nothing, remedy) = (
        format!("nothing of agentsbx is installed below {}/usr/local", machine.0.display()),
        format!("make uninstall PREFIX=/opt/sbx DESTDIR={}", machine.0.display()),
    );
    assert!(other.stderr.contains(&nothing), "{other:?}");
    // By Docker's file and by podman's.
    assert_eq!(other.stderr.matches(&remedy).count(), 2, "{other:?}");

    // A second one is installed beside, and taken away again.
    let second = machine.make_below("/usr/local", "install").expect(0);
    assert_eq!(second.stderr.matches("is kept").count(), 2, "{second:?}");
    machine.make_below("/usr/local", "uninstall").ok();
    assert_eq!(machine.files(), before);
}

/// Which containers run on this machine says nothing of the one below DESTDIR.
#[test]
fn with_destdir_running_shims_are_not_looked_at() {
    let machine = Machine::new();
    machine.make("install").ok();
    let name = "/opt/sbx/bin/containerd-shim-agentsbx-v1";
    let mut shim = std::process::Command::new("sleep").arg0(name).arg("60").spawn().expect("start a process");
    let said = machine.make("uninstall");
    shim.kill().expect("kill");
    shim.wait().expect("wait");
    assert!(!said.expect(0).stderr.contains("running"));
}

/// Before anything is done.
#[test]
fn a_daemon_json_that_is_none_is_refused() {
    for broken in [
        "{\"runtimes\": {\"kata\": {\"path\": \"/k\"}",
        "[]",
        "{\"runtimes\": []}",
        "{\"runtimes\": {\"agentsbx\": \"/x\"}}",
        "{\"debug\": NaN}",
    ] {
        let machine = Machine::with_daemon(broken);
        let before = machine.files();
        let refused = machine.make("install");
        assert_ne!(refused.code, 0, "{broken}");
        assert!(refused.stderr.contains(DAEMON) && refused.stderr.contains("mend it"), "{refused:?}");
        assert_eq!(machine.files(), before, "{broken}");
    }
    // Broken later: all else goes, and the file's entry is told to have stayed.
    let machine = Machine::new();
    machine.make("install").ok();
    fs::write(machine.0.join(DAEMON), "{").expect("write");
    let failed = machine.make("uninstall");
    assert!(failed.code != 0 && failed.stderr.contains(DAEMON), "{failed:?}");
    assert_eq!(machine.files().into_keys().collect::<Vec<_>>(), [DAEMON]);
}

#[test]
fn what_cannot_be_installed_is_refused() {
    let machine = Machine::new();
    let script = repository().join("hack/install.sh");
    let install = |prefix: &str, program: &Path| {
        Cmd::new(&script).args(["install", prefix]).arg(&machine.0).env("AGENTSBX_BIN", program).run()
    };
    let refused = install("opt", &binary());
    assert!(refused.code == 2 && refused.stderr.contains("absolute"), "{refused:?}");
    let alone = machine.0.join("agentsbx");
    fs::copy(binary(), &alone).expect("copy");
    let refused = install("/opt", &alone);
    assert!(refused.code == 1 && refused.stderr.contains("containerd-shim-agentsbx-v1"), "{refused:?}");
    assert_eq!(machine.files().into_keys().collect::<Vec<_>>(), ["agentsbx"]);
}

/// containerd 1.x forgets runc once another runtime is named, and then serves no CRI; the snippet has what helps. On a node
/// whose file names runc it must not be there twice. For 2.x it has a class for pods with user namespaces.
#[test]
fn containerd_takes_the_snippets() {
    let machine = Machine::new();
    machine.make("install").ok();
    for (release, version, snippet) in [
        (Release::C16, 2, "containerd-1.toml"),
        (Release::C17, 2, "containerd-1.toml"),
        (Release::C2, 3, "containerd-2.toml"),
    ] {
        let text = fs::read_to_string(machine.0.join("opt/sbx/share/agentsbx").join(snippet)).expect("read");
        let whole = text.replace("\n#[", "\n[").replace("\n#  ", "\n  ");
        let known = |snippet: &str| {
            let config = machine.0.join("config.toml");
            fs::write(&config, format!("version = {version}\n{snippet}")).expect("write");
            let dump = Cmd::new(release.bin().join("containerd")).arg("--config").arg(config).args(["config", "dump"]);
            let dump = dump.ok().replace('\'', "\"");
            assert!(dump.contains("runtime_type = \"io.containerd.agentsbx.v1\""), "{dump}");
            assert!(dump.contains("pod_annotations = [\"dev.agentsbx.*\"]"), "{dump}");
            let by_path = "runtime_path = \"/opt/sbx/bin/containerd-shim-agentsbx-v1\"\n";
            let classes = ["runc", "agentsbx", "agentsbx-userns"];
            (classes.map(|name| dump.contains(&format!("runtimes.{name}]\n"))), dump.contains(by_path))
        };
        assert_ne!(whole, text);
        let (named, all) = match release {
            Release::C2 => (([true, true, false], false), ([true, true, true], true)),
            _ => (([false, true, false], false), ([true, true, false], false)),
        };
        assert_eq!((known(&text), known(&whole)), (named, all), "{}", release.version());
    }
}
