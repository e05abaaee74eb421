//! Honest work under the strict profile: what agents do all day must work as if there was no profile.
//!
//! Each kind of work is a script of `work/`, which is run as model-written code would be: as a container's first process,
//! and as an exec with a layer of its own; by root, and by an ordinary user. The configuration is the default, the engine's
//! `config.json` one like Docker's without any limit. A script's whole output is compared, and the files that it made must be
//! in the exec's result and seen by the next exec.

mod languages;
mod system;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::env::{process, unique};
use crate::support::{Cmd, Env, Output, images, result};

/// As whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Root,
    User,
}

impl Who {
    fn id(self) -> u32 {
        match self {
            Who::Root => 0,
            Who::User => 1000,
        }
    }

    fn home(self) -> &'static str {
        match self {
            Who::Root => "/root",
            Who::User => "/home/user",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Who::Root => "root",
            Who::User => "user",
        }
    }
}

/// A kind of work: a script, what it must print, and the files that it must make.
struct Work {
    script: &'static str,
    says: &'static str,
    makes: &'static [&'static str],
    who: &'static [Who],
    crosswise: bool,
}

impl Work {
    /// `script` of `work/` prints `says`, and not a line more; of those lines, the ones that begin with `root:` or `user:`
    /// only as that one, without the prefix, and `*` is what may be any text. Indentation does not count.
    fn new(script: &'static str, says: &'static str) -> Work {
        Work { script, says, makes: &[], who: &[Who::Root, Who::User], crosswise: false }
    }

    /// Paths, below the home directory where they aren't absolute, that an exec's diff must have as added.
    fn makes(self, makes: &'static [&'static str]) -> Work {
        Work { makes, ..self }
    }

    /// Not as both.
    fn only(self, who: &'static [Who]) -> Work {
        Work { who, ..self }
    }

    /// What takes long is done by root as first process, and by the user as exec, and not the other way round too.
    fn crosswise(self) -> Work {
        Work { crosswise: true, ..self }
    }

    /// Does it in all ways.
    #[track_caller]
    fn works(&self) {
        if self.crosswise {
            self.as_first(Who::Root);
            self.as_exec(&Container::running(), Who::User);
            return;
        }
        for who in self.who {
            self.as_first(*who);
        }
        let container = Container::running();
        for who in self.who {
            self.as_exec(&container, *who);
        }
    }

    /// As a container's first process.
    #[track_caller]
    fn as_first(&self, who: Who) {
        let container = Container::new(who, &["sh", &self.path()]);
        let output = container.cmd(["run", "--bundle"]).arg(&container.bundle).arg(&container.id).run();
        self.check(&output, who, "as first process");
        for path in self.paths(who) {
            let there = container.bundle.join("rootfs").join(path.trim_start_matches('/'));
            assert!(fs::symlink_metadata(&there).is_ok(), "{} as {who:?} did not make {path}", self.script);
        }
    }

    /// As an exec, whose result and whose successor have what it made.
    #[track_caller]
    fn as_exec(&self, container: &Container, who: Who) {
        let output = container.exec(who, &["sh", &self.path()]).run();
        self.check(&output, who, "as exec");
        let shown: Value = serde_json::from_str(&container.cmd(["show", &container.id, "--json"]).ok()).expect("JSON");
        assert_eq!(result::disposition(&shown), "committed", "{shown}");
        let diff: Value =
            serde_json::from_str(&container.cmd(["diff", &container.id, "@-1..@", "--json"]).ok()).expect("JSON");
        let changes = diff["changes"].as_array().expect("changes");
        for path in self.paths(who) {
            let added = changes.iter().any(|c| c["kind"] == "added" && c["path"] == path.as_str());
            assert!(added, "{} as {who:?}: {path} is not in the diff", self.script);
            container.exec(who, &["test", "-e", &path, "-o", "-L", &path]).run().expect(0);
        }
    }

    fn path(&self) -> String {
        format!("/srv/work/{}", self.script)
    }

    fn paths(&self, who: Who) -> impl Iterator<Item = String> {
        self.makes.iter().map(move |path| match path.starts_with('/') {
            true => (*path).to_owned(),
            false => format!("{}/{path}", who.home()),
        })
    }

    #[track_caller]
    fn check(&self, output: &Output, who: Who, how: &str) {
        let want: Vec<String> = self
            .says
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .filter_map(|line| match line.split_once(": ") {
                Some((name @ ("root" | "user"), rest)) => (name == who.name()).then(|| rest.to_owned()),
                _ => Some(line.to_owned()),
            })
            .collect();
        let said: Vec<&str> = output.stdout.lines().map(str::trim).collect();
        let same = want.len() == said.len() && want.iter().zip(&said).all(|(want, said)| like(want, said));
        assert!(
            output.code == 0 && same,
            "{} {how} as {who:?}: exit code {}\nwant: {want:#?}\nsaid: {said:#?}\nstderr: {}",
            self.script,
            output.code,
            output.stderr
        );
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.script)
    }
}

/// Whether a line is the pattern's, in which one `*` is any text.
fn like(pattern: &str, line: &str) -> bool {
    match pattern.split_once('*') {
        Some((head, tail)) => line.len() >= head.len() + tail.len() && line.starts_with(head) && line.ends_with(tail),
        None => pattern == line,
    }
}

/// A container of the image for honest work, its root filesystem an overlay over the image's.
#[derive(Debug)]
struct Container {
    env: Env,
    id: String,
    bundle: PathBuf,
    config: PathBuf,
}

impl Container {
    /// Its bundle; nothing runs yet.
    fn new(who: Who, args: &[&str]) -> Container {
        Container::configured(who, args, "")
    }

    /// The same, with a configuration.
    fn configured(who: Who, args: &[&str], text: &str) -> Container {
        let env = Env::new();
        let id = unique("honest");
        let bundle = env.dir.join(&id);
        for dir in ["rootfs", "upper", "work"] {
            fs::create_dir_all(bundle.join(dir)).expect("make a bundle");
        }
        let config = env.dir.join("config.toml");
        fs::write(&config, text).expect("write a configuration");
        let at = |name: &str| bundle.join(name).display().to_string();
        let image = images::work_rootfs();
        let options = format!("lowerdir={},upperdir={},workdir={}", image.display(), at("upper"), at("work"));
        Cmd::new("mount").args(["-t", "overlay", "overlay", "-o", &options, &at("rootfs")]).ok();
        let sources = images::repository().join("integration/honest/work");
        Cmd::new("cp").arg("-R").arg(sources).arg(at("rootfs") + "/srv/work").ok();
        // Engines mount one of their own.
        fs::write(bundle.join("rootfs/etc/hosts"), "127.0.0.1 localhost box\n").expect("write hosts");
        let spec = spec(who, args, &format!("{}/{id}", process().cgroup));
        fs::write(bundle.join("config.json"), spec.to_string()).expect("write config.json");
        Container { env, id, bundle, config }
    }

    /// One whose first process only waits.
    fn running() -> Container {
        Container::running_with("")
    }

    /// The same, with a configuration.
    fn running_with(text: &str) -> Container {
        let container = Container::configured(Who::Root, &["sleep", "100000"], text);
        let run = container.cmd(["run", "--detach", "--bundle"]).arg(&container.bundle).arg(&container.id);
        run.output_to(container.bundle.join("out")).run().expect(0);
        container
    }

    /// A command under the default configuration, whose time limit is enough for all work.
    fn cmd<const N: usize>(&self, args: [&str; N]) -> Cmd {
        self.env.cmd(args).env("AGENTSBX_CONFIG", &self.config).limit(Duration::from_secs(300))
    }

    /// `exec` as somebody, at home.
    fn exec(&self, who: Who, args: &[&str]) -> Cmd {
        let user = format!("{0}:{0}", who.id());
        let home = format!("HOME={}", who.home());
        self.cmd(["exec", "--user", &user, "--env", &home, "--cwd", who.home(), &self.id]).args(args)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.cmd(["delete", "--force", &self.id]).run();
        Cmd::new("umount").arg(self.bundle.join("rootfs")).run();
    }
}

/// As Docker writes it, but for limits: those are the profile's.
fn spec(who: Who, args: &[&str], cgroup: &str) -> Value {
    let mut spec = crate::bench::config::config(args, cgroup);
    let process = &mut spec["process"];
    process["user"] = json!({"uid": who.id(), "gid": who.id()});
    process["cwd"] = who.home().into();
    process["env"] = json!([
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOSTNAME=box",
        format!("HOME={}", who.home())
    ]);
    let resources = spec["linux"]["resources"].as_object_mut().expect("resources");
    resources.remove("memory");
    resources.remove("pids");
    spec
}

/// That the suite is run under what it says: no new privileges is the first thing that the profile takes.
#[test]
fn the_profile_is_strict() {
    let container = Container::running();
    let output = container.exec(Who::Root, &["grep", "^NoNewPrivs:", "/proc/self/status"]).run().expect(0);
    assert_eq!(output.stdout, "NoNewPrivs:\t1\n");
    assert!(Path::new(&container.config).metadata().is_ok_and(|file| file.len() == 0));
}
