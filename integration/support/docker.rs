//! A Docker container of a test: started, asked, and removed when it goes out of scope.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::engines::{Engines, engines};
use super::env::unique;
use super::images::BUSYBOX;
use super::walk::{Tree, walk};
use super::{Cmd, Output, wait_for, wait_until};

/// A container of the engines' Docker, removed by force at the end.
#[derive(Debug)]
pub struct Container {
    /// The engines that it runs under.
    pub engines: &'static Engines,
    /// Its full id.
    pub id: String,
}

impl Container {
    /// `docker run -d OPTIONS… IMAGE ARGS…`
    #[track_caller]
    pub fn of<const N: usize>(image: &str, options: [&str; N], args: &[&str]) -> Container {
        let engines = engines();
        let id = engines.docker(["run", "--detach"]).args(options).arg(image).args(args).ok();
        Container { engines, id }
    }

    /// A busybox container whose first process only waits.
    #[track_caller]
    pub fn idle<const N: usize>(options: [&str; N]) -> Container {
        Container::of(BUSYBOX, options, &["sleep", "100000"])
    }

    /// `docker VERB OPTIONS… CONTAINER`
    pub fn verb<const N: usize>(&self, args: [&str; N]) -> Cmd {
        self.engines.docker(args).arg(&self.id)
    }

    /// `docker exec OPTIONS… CONTAINER ARGS…`
    pub fn exec_with<const N: usize>(&self, options: [&str; N], args: &[&str]) -> Cmd {
        self.engines.docker(["exec"]).args(options).arg(&self.id).args(args)
    }

    /// `docker exec CONTAINER sh -c SCRIPT`
    pub fn sh(&self, script: &str) -> Output {
        self.exec_with([], &["sh", "-c", script]).run()
    }

    /// `docker exec -e AGENTSBX_LAYER=MODE CONTAINER sh -c SCRIPT`
    pub fn sh_layer(&self, mode: &str, script: &str) -> Output {
        self.exec_with(["-e", &format!("AGENTSBX_LAYER={mode}")], &["sh", "-c", script]).run()
    }

    /// One value of `docker inspect`.
    #[track_caller]
    pub fn inspect(&self, format: &str) -> String {
        self.engines.docker(["inspect", "--format", format, &self.id]).ok()
    }

    /// The host's path of the root filesystem as Docker has it mounted.
    #[track_caller]
    pub fn merged(&self) -> PathBuf {
        PathBuf::from(self.inspect("{{.GraphDriver.Data.MergedDir}}"))
    }

    /// The first process' pid on the host.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        self.inspect("{{.State.Pid}}").parse().expect("a pid")
    }

    /// A full walk of what an exec sees, through the eyes of one that waits meanwhile and is discarded.
    #[track_caller]
    pub fn walk(&self) -> Tree {
        let name = unique("");
        let seconds = format!("9900{}", name.trim_start_matches('-'));
        let options = ["--detach", "-e", "AGENTSBX_LAYER=discard", "-e", "AGENTSBX_TIMEOUT=0"];
        self.exec_with(options, &["sleep", &seconds]).run().expect(0);
        let command = || -> Option<i32> {
            let top = self.engines.docker(["top", &self.id, "-o", "pid,args"]).run().stdout;
            let line = top.lines().find(|line| line.ends_with(&format!("sleep {seconds}")))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let pid = wait_for("the command", Duration::from_secs(10), command);
        let tree = walk(Path::new(&format!("/proc/{pid}/root/")));
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
        wait_until("the end of the walker", Duration::from_secs(10), || command().is_none());
        tree
    }

    /// The last exec's result, by `agentsbx show`.
    #[track_caller]
    pub fn show(&self) -> Value {
        self.engines.json(["show", &self.id])
    }

    /// The results of all execs that have ended, from the bundle.
    pub fn results(&self) -> Vec<Value> {
        self.engines.results("moby", &self.id)
    }

    /// `agentsbx VERB CONTAINER ARGS…`
    pub fn agentsbx<const N: usize>(&self, verb: &str, args: [&str; N]) -> Cmd {
        self.engines.agentsbx([verb, &self.id]).args(args)
    }

    /// `agentsbx diff CONTAINER ARGS… --json`
    #[track_caller]
    pub fn diff<const N: usize>(&self, args: [&str; N]) -> Value {
        let text = self.agentsbx("diff", args).arg("--json").ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("diff: {e} in {text}"))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.engines.docker(["rm", "--force", "--volumes", &self.id]).limit(Duration::from_secs(60)).run();
    }
}
