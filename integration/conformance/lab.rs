//! The runtime under test and runc side by side, on bundles that are alike, and small C programs for what a shell cannot do.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::env::{binary, process};
use crate::support::{Cmd, Env, Output};

/// Which runtime runs a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runtime {
    /// The binary under test.
    Ours,
    /// Debian's runc.
    Runc,
}

/// Both, ours first.
pub const BOTH: [Runtime; 2] = [Runtime::Ours, Runtime::Runc];

impl Runtime {
    /// A command of the runtime, with a state directory of this environment's.
    pub fn cmd<A: AsRef<std::ffi::OsStr>>(self, env: &Env, args: impl IntoIterator<Item = A>) -> Cmd {
        match self {
            Runtime::Ours => env.cmd(args),
            Runtime::Runc => Cmd::new("runc").arg("--root").arg(env.dir.join("runc")).args(args),
        }
    }
}

impl Runtime {
    /// The words that [`Runtime::cmd`] begins with, for a command that runs it in some other place.
    pub fn words(self, env: &Env) -> Vec<OsString> {
        match self {
            Runtime::Ours => {
                let places = ["--root".into(), env.root.clone().into(), "--store".into(), env.store.clone().into()];
                std::iter::once(binary().into_os_string()).chain(places).collect()
            }
            Runtime::Runc => vec!["runc".into(), "--root".into(), env.dir.join("runc").into()],
        }
    }
}

/// A container of one of the runtimes; deleted by force at the end.
#[derive(Debug)]
pub struct Container<'e> {
    /// Whose it is.
    pub runtime: Runtime,
    /// What it is made from.
    pub bundle: Bundle<'e>,
}

impl<'e> Container<'e> {
    /// A bundle whose first process is a shell with `script`; `change` may edit it.
    pub fn new(env: &'e Env, runtime: Runtime, script: &str, change: impl FnOnce(&mut Bundle<'e>)) -> Container<'e> {
        let mut bundle = Bundle::new(env, ["sh", "-c", script]);
        change(&mut bundle);
        bundle.write();
        Container { runtime, bundle }
    }

    /// A command of the runtime.
    pub fn cmd<const N: usize>(&self, args: [&str; N]) -> Cmd {
        self.runtime.cmd(self.bundle.env, args)
    }

    /// `run` in the foreground.
    pub fn run(&self) -> Output {
        self.cmd(["run", "--bundle"]).arg(&self.bundle.dir).arg(&self.bundle.id).run()
    }

    /// `create`; what the container prints goes to the file `out` of the bundle.
    pub fn create(&self) -> Output {
        let create = self.cmd(["create", "--bundle"]).arg(&self.bundle.dir).arg(&self.bundle.id);
        create.output_to(self.bundle.dir.join("out")).run()
    }

    /// `run --detach`, asserted to succeed.
    #[track_caller]
    pub fn start(&self) {
        let run = self.cmd(["run", "--detach", "--bundle"]).arg(&self.bundle.dir).arg(&self.bundle.id);
        run.output_to(self.bundle.dir.join("out")).run().expect(0);
    }

    /// `VERB ID`.
    pub fn verb(&self, verb: &str) -> Output {
        self.cmd([verb, &self.bundle.id]).run()
    }

    /// `exec ID sh -c SCRIPT`.
    pub fn sh(&self, script: &str) -> Output {
        self.cmd(["exec", &self.bundle.id, "sh", "-c", script]).run()
    }

    /// `state ID`.
    #[track_caller]
    pub fn state(&self) -> Value {
        serde_json::from_str(&self.verb("state").ok()).expect("JSON")
    }

    /// The status that `state` tells.
    #[track_caller]
    pub fn status(&self) -> String {
        self.state()["status"].as_str().expect("a status").to_owned()
    }

    /// The first process's pid.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.state()["pid"].as_i64().expect("a pid")).expect("a pid")
    }

    /// What a detached container printed.
    pub fn out(&self) -> String {
        fs::read_to_string(self.bundle.dir.join("out")).unwrap_or_default()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.cmd(["delete", "--force", &self.bundle.id]).run();
    }
}

/// Runs `script` in the foreground under both runtimes, in containers that `change` edits alike.
pub fn side_by_side(env: &Env, script: &str, change: impl Fn(&mut Bundle<'_>)) -> [Output; 2] {
    BOTH.map(|runtime| Container::new(env, runtime, script, &change).run())
}

/// As [`side_by_side`]; both must succeed with the same output, which is returned.
#[track_caller]
pub fn alike(env: &Env, script: &str, change: impl Fn(&mut Bundle<'_>)) -> String {
    let [ours, runc] = side_by_side(env, script, change).map(|output| output.expect(0));
    assert_eq!(ours.stdout, runc.stdout, "ours, and runc's\nours: {}\nrunc: {}", ours.stderr, runc.stderr);
    ours.stdout
}

/// Gives the bundle a user namespace of its own with ids from 100000 on, and the root filesystem to its root.
pub fn with_user_namespace(bundle: &mut Bundle<'_>) {
    let map = json!([{"containerID": 0, "hostID": 100000, "size": 65536}]);
    bundle.config["linux"]["uidMappings"] = map.clone();
    bundle.config["linux"]["gidMappings"] = map;
    bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").push(json!({"type": "user"}));
    Cmd::new("chown").args(["-R", "100000:100000"]).arg(&bundle.rootfs).ok();
}

/// Takes the bundle's namespace of this type away: the container shares the host's.
pub fn without_namespace(bundle: &mut Bundle<'_>, kind: &str) {
    bundle.config["linux"]["namespaces"].as_array_mut().expect("namespaces").retain(|ns| ns["type"] != kind);
}

/// Adds a mount at the end.
pub fn add_mount(bundle: &mut Bundle<'_>, mount: Value) {
    bundle.config["mounts"].as_array_mut().expect("mounts").push(mount);
}

/// Compiles a static C program; where it is on the host.
pub fn compile(env: &Env, name: &str, source: &str) -> PathBuf {
    let (text, program) = (env.dir.join(format!("{name}.c")), env.dir.join(name));
    fs::write(&text, source).expect("write the source");
    Cmd::new("gcc").args(["-static", "-O1", "-pthread", "-o"]).arg(&program).arg(&text).ok();
    program
}

/// Compiles a program into the bundle's root filesystem, as `/NAME`.
pub fn install(bundle: &Bundle<'_>, name: &str, source: &str) {
    let program = compile(bundle.env, &format!("{name}-{}", bundle.id), source);
    fs::copy(program, bundle.rootfs.join(name)).expect("copy");
}

/// The cgroup directories of container `id` of this test process, in every hierarchy.
pub fn cgroups_of(id: &str) -> Vec<PathBuf> {
    let path = format!("*{}/{id}", process().cgroup);
    let found = Cmd::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", &path]).run();
    found.stdout.lines().map(PathBuf::from).collect()
}

/// A cgroup file of the container of process `pid` in the v1 hierarchy with `controller`, or on v2.
pub fn cgroup_file(pid: i32, controller: &str, v1: &str, v2: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("read");
    let path_of = |pick: &dyn Fn(&str) -> bool| {
        text.lines().find_map(|line| {
            let (of, path) = line.split_once(':')?.1.split_once(':')?;
            pick(of).then(|| path.to_owned())
        })
    };
    let file = match path_of(&|of| of.split(',').any(|c| c == controller)) {
        Some(path) => format!("/sys/fs/cgroup/{controller}{path}/{v1}"),
        None => format!("/sys/fs/cgroup{}/{v2}", path_of(&str::is_empty).expect("a v2 path")),
    };
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}")).trim().to_owned()
}
