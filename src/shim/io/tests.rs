use super::*;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

const ID: Identity<'static> = Identity { namespace: "ns", container: "c" };
const LONG: Duration = Duration::from_secs(20);

/// Runs a test as the shim runs: one thread.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(60), test).await.expect("the test hangs") })
}

/// A directory with the fifos of a client.
struct Client(tempfile::TempDir);

impl Client {
    fn new() -> Client {
        let dir = tempfile::tempdir().unwrap();
        for name in ["in", "out", "err"] {
            rustix::fs::mknodat(CWD, dir.path().join(name), FileType::Fifo, Mode::from(0o600), 0).unwrap();
        }
        Client(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// All three.
    fn stdio(&self) -> Stdio {
        Stdio { stdin: self.name("in"), stdout: self.name("out"), stderr: self.name("err"), terminal: false }
    }

    fn only_out(&self) -> Stdio {
        Stdio { stdout: self.name("out"), ..Stdio::default() }
    }

    /// Reads a fifo to its end, in a thread.
    fn read(&self, name: &str) -> JoinHandle<Vec<u8>> {
        let path = self.path(name);
        spawn_blocking(move || std::fs::read(path).unwrap())
    }

    /// Opens a fifo for writing; the shim has it open.
    fn writer(&self, name: &str) -> File {
        std::fs::OpenOptions::new().write(true).open(self.path(name)).unwrap()
    }

    fn reader(&self, name: &str) -> File {
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path(name)).unwrap()
    }
}

async fn open(stdio: &Stdio) -> Result<Streams, ShimError> {
    Streams::open(stdio, Owner::default(), ID, &Reaper::default()).await
}

/// Opens the streams and starts a script with them.
async fn start(stdio: &Stdio, script: &str) -> (Streams, Child) {
    let mut streams = open(stdio).await.unwrap();
    let process = sh(&mut streams, script);
    streams.started().await.unwrap();
    (streams, process)
}

fn sh(streams: &mut Streams, script: &str) -> Child {
    let ChildStdio { stdin, stdout, stderr, .. } = streams.child().unwrap();
    Command::new("sh").arg("-c").arg(script).stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap()
}

async fn wait(mut process: Child) -> Option<i32> {
    spawn_blocking(move || process.wait().unwrap().code()).await.unwrap()
}

#[test]
fn three_fifos_carry_what_is_said_and_end_with_the_process() {
    run(async {
        let client = Client::new();
        let (out, err) = (client.read("out"), client.read("err"));
        let (streams, process) = start(&client.stdio(), "read line; echo got $line; echo bad >&2").await;
        client.writer("in").write_all(b"a line\n").unwrap();
        assert_eq!(wait(process).await, Some(0));
        // Before anything is drained: a client waits for the ends of its fifos before it deletes the process.
        assert_eq!(out.await.unwrap(), b"got a line\n");
        assert_eq!(err.await.unwrap(), b"bad\n");
        assert!(streams.drain(LONG).await);
    });
}

#[test]
fn nothing_is_dev_null() {
    run(async {
        let script = "for i in 0 1 2; do [ /dev/null -ef /dev/fd/$i ] || exit 1; done; test -z \"$(cat)\" && exit 5";
        let mut streams = open(&Stdio::default()).await.unwrap();
        let process = sh(&mut streams, script);
        assert!(matches!(streams.child(), Err(ShimError::State(_))));
        streams.started().await.unwrap();
        assert_eq!(wait(process).await, Some(5));
        assert!(streams.drain(LONG).await);
    });
}
