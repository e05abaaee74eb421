//! A Docker container of a test: started, asked, and removed when it goes out of scope.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::engines::{Engines, engines};
use super::images::BUSYBOX;
use super::{Cmd, Output};

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
