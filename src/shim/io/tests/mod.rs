//! Real fifos and real processes, under one thread, as the shim runs.

mod logger;
mod terminal;

use super::*;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::{Child, Command};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

const ID: Identity<'static> = Identity { namespace: "ns", id: "c" };
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

/// What a command says that fails to start a process is none of the process's output.
#[test]
fn nothing_is_copied_before_the_start() {
    run(async {
        for drained in [true, false] {
            let client = Client::new();
            let (out, err) = (client.read("out"), client.read("err"));
            let mut streams = open(&client.stdio()).await.unwrap();
            let process = sh(&mut streams, "echo an error >&2; exit 1");
            assert_eq!(wait(process).await, Some(1));
            if drained {
                assert!(streams.drain(LONG).await);
            }
            drop(streams);
            assert_eq!((out.await.unwrap(), err.await.unwrap()), (vec![], vec![]));
        }
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

/// The fifo, filled by a process that has ended, is there for a client that comes late; and it ends.
#[test]
fn a_client_that_comes_after_the_end_reads_all_of_it() {
    run(async {
        for output in ["", "late"] {
            let client = Client::new();
            let (streams, process) = start(&client.only_out(), &format!("printf '{output}'")).await;
            assert_eq!(wait(process).await, Some(0));
            sleep(Duration::from_millis(100)).await;
            // A blocking open, as a client's is.
            assert_eq!(client.read("out").await.unwrap(), output.as_bytes());
            assert!(streams.drain(LONG).await);
        }
    });
}

#[test]
fn a_client_that_never_comes_is_not_waited_for() {
    run(async {
        for (script, delivered) in [("true", true), ("echo lost", false), ("yes | head -c 100000", false)] {
            let client = Client::new();
            let (streams, mut process) = start(&client.only_out(), script).await;
            if script.starts_with("yes") {
                // What nobody reads fills both pipes, and the process stays.
                sleep(Duration::from_millis(200)).await;
            } else {
                assert!(process.wait().unwrap().success());
            }
            let begun = Instant::now();
            assert_eq!(streams.drain(LONG).await, delivered, "{script}");
            assert!(begun.elapsed() < Duration::from_secs(5), "{script}: {:?}", begun.elapsed());
            process.wait().unwrap();
        }
    });
}

/// containerd restarts: its ends of the fifos close and are opened anew. Its shims' processes neither die of it nor is a
/// byte lost (containerd/rust-extensions 276).
#[test]
fn a_client_may_go_and_come_back() {
    run(async {
        let client = Client::new();
        let first = client.reader("out");
        let script = "for i in $(seq 2000); do echo line $i || exit 9; [ $i = 1000 ] && read x; done; exit 3";
        let stdio = Stdio { stdin: client.name("in"), ..client.only_out() };
        let (streams, process) = start(&stdio, script).await;
        let mut got = Vec::new();
        let mut chunk = [0; 500];
        while got.len() < 2000 {
            match (&first).read(&mut chunk) {
                Ok(n) => got.extend_from_slice(&chunk[..n]),
                Err(_) => sleep(Duration::from_millis(1)).await,
            }
        }
        drop(first);
        // It goes on while nobody is there.
        client.writer("in").write_all(b"\n").unwrap();
        sleep(Duration::from_millis(200)).await;
        got.extend(client.read("out").await.unwrap());
        assert_eq!(wait(process).await, Some(3));
        let want: String = (1..=2000).map(|i| format!("line {i}\n")).collect();
        assert!(got == want.as_bytes(), "{} of {} bytes", got.len(), want.len());
        assert!(streams.drain(LONG).await);
    });
}

/// While the client is away small writes fill the fifo by their size, not by their number.
#[test]
fn short_lines_fill_a_fifo_whose_client_is_away() {
    run(async {
        let client = Client::new();
        let script = "for i in $(seq 1000); do printf 'some line of text of no more than fifty bytes %04d\n' $i; done";
        let (streams, process) = start(&client.only_out(), script).await;
        assert_eq!(wait(process).await, Some(0));
        assert_eq!(client.read("out").await.unwrap().len(), 51_000);
        assert!(streams.drain(LONG).await);
    });
}

/// Much, in both directions at once, byte for byte.
#[test]
fn ten_megabytes_go_through() {
    run(async {
        let client = Client::new();
        let data: Vec<u8> = (0..10_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (out, err) = (client.read("out"), client.read("err"));
        let (streams, process) = start(&client.stdio(), "tee /dev/stderr").await;
        let mut writer = client.writer("in");
        let sent = data.clone();
        spawn_blocking(move || writer.write_all(&sent).unwrap()).await.unwrap();
        streams.close_stdin();
        assert_eq!(wait(process).await, Some(0));
        assert!(out.await.unwrap() == data, "the output differs");
        assert!(err.await.unwrap() == data, "the error output differs");
        assert!(streams.drain(LONG).await);
    });
}

/// The process's input ends when the client has closed its end and CloseIO was called, in whichever order, not before.
#[test]
fn input_ends_when_both_have_closed_it() {
    run(async {
        for close_io_first in [false, true] {
            let client = Client::new();
            let out = client.read("out");
            let stdio = Stdio { stdin: client.name("in"), ..client.only_out() };
            let (streams, mut process) = start(&stdio, "cat; echo end").await;
            let mut writer = client.writer("in");
            writer.write_all(b"x").unwrap();
            if close_io_first {
                streams.close_stdin();
            } else {
                drop(writer);
                writer = File::open("/dev/null").unwrap();
            }
            sleep(Duration::from_millis(100)).await;
            assert!(process.try_wait().unwrap().is_none(), "the input ended early");
            if close_io_first {
                writer.write_all(b"y").unwrap();
                drop(writer);
            } else {
                // A client that has come back.
                client.writer("in").write_all(b"y").unwrap();
                streams.close_stdin();
            }
            assert_eq!(wait(process).await, Some(0));
            assert_eq!(out.await.unwrap(), b"xyend\n");
            streams.close_stdin();
            assert!(streams.drain(LONG).await);
        }
    });
}

/// A process that wants no more input ends that copy only; the client's writer learns of it.
#[test]
fn a_process_that_closes_its_input_keeps_its_output() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let stdio = Stdio { stdin: client.name("in"), ..client.only_out() };
        let (streams, process) = start(&stdio, "exec <&-; sleep 0.2; echo still here").await;
        let mut writer = client.writer("in");
        let broken = spawn_blocking(move || writer.write_all(&vec![0; 1 << 20])).await.unwrap();
        assert_eq!(broken.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(wait(process).await, Some(0));
        assert_eq!(out.await.unwrap(), b"still here\n");
        assert!(streams.drain(LONG).await);
    });
}

/// A process that floods one output, which nobody reads, and never reads its input, into which much is written.
#[test]
fn one_blocked_stream_blocks_no_other() {
    run(async {
        let client = Client::new();
        let stalled = client.reader("err");
        let mut input = std::fs::OpenOptions::new();
        input.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let mut input = input.open(client.path("in")).unwrap();
        let out = client.read("out");
        let script = "yes >&2 & n=$!; sleep 0.2; for i in $(seq 1000); do echo $i; done; kill $n";
        let (streams, process) = start(&client.stdio(), script).await;
        while input.write(&[0; 4096]).is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(wait(process).await, Some(0));
        assert!(out.await.unwrap().ends_with(b"999\n1000\n"));
        // The client is there and may read on: it is waited for as long as the limit is.
        let begun = Instant::now();
        assert!(!streams.drain(Duration::from_millis(300)).await);
        assert!(begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < Duration::from_secs(5));
        // And what is in the fifo is still its own, up to the end.
        let mut left = Vec::new();
        (&stalled).read_to_end(&mut left).unwrap();
        assert!(left.len() >= 4096 && left.iter().all(|byte| b"y\n".contains(byte)));
    });
}

/// A child in the background keeps the output (containerd 7802): the drain has a limit, then the child is on its own.
#[test]
fn a_background_child_is_waited_for_no_longer_than_the_limit() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let (streams, process) = start(&client.only_out(), "(trap '' PIPE; sleep 10; echo never) & echo x").await;
        assert_eq!(wait(process).await, Some(0));
        let begun = Instant::now();
        assert!(!streams.drain(Duration::from_millis(300)).await);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(out.await.unwrap(), b"x\n");
    });
}

#[test]
fn without_a_process_nothing_is_waited_for() {
    run(async {
        let client = Client::new();
        let streams = open(&client.stdio()).await.unwrap();
        assert!(streams.drain(LONG).await);
        let mut streams = open(&client.stdio()).await.unwrap();
        drop(streams.child().unwrap());
        assert!(streams.drain(LONG).await);
        streams.resize(80, 25).unwrap();
        streams.close_stdin();
        assert!(matches!(streams.child(), Err(ShimError::State(_))));
    });
}

#[test]
fn files_are_appended_to_and_cannot_be_cut() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b/c/log");
        let uri = format!("file://{}", path.display()).replace(' ', "%20");
        let stdio = Stdio { stdout: uri.clone(), stderr: uri, ..Stdio::default() };
        for _ in 0..2 {
            let (streams, process) = start(&stdio, "echo out; sleep 0.1; echo err >&2; : >/dev/stdout").await;
            assert_eq!(wait(process).await, Some(0));
            assert!(streams.drain(LONG).await);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "out\nerr\nout\nerr\n");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7133, 0);
        // The plain path of a file that is there.
        let stdio = Stdio { stdout: path.display().to_string(), ..Stdio::default() };
        let (streams, process) = start(&stdio, "head -c 1000000 /dev/zero").await;
        assert_eq!(wait(process).await, Some(0));
        assert!(streams.drain(LONG).await);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1_000_016);
    });
}

/// A log that takes nothing (the disk is full) costs its lines, and the process goes on.
#[test]
fn a_full_disk_does_not_stop_the_process() {
    run(async {
        let full = Arc::new(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let (ours, theirs) = pipe(Owner::default(), Towards::Client).unwrap();
        let (_draining, receiver) = flag::channel(false);
        let copy = tokio::spawn(output::run(Source::Pipe(ours), Sink::File(full), receiver));
        let process = Command::new("head").args(["-c", "1000000", "/dev/zero"]).stdout(theirs).spawn().unwrap();
        assert_eq!(wait(process).await, Some(0));
        assert!(!copy.await.unwrap(), "nothing was delivered");
    });
}

/// The pipes are the owner's, so that a process without root can open its /dev/stdout.
#[test]
fn the_owner_can_open_its_streams_again() {
    run(async {
        let client = Client::new();
        let (out, err) = (client.read("out"), client.read("err"));
        let owner = Owner { uid: 1234, gid: 1235 };
        let mut streams = Streams::open(&client.stdio(), owner, ID, &Reaper::default()).await.unwrap();
        let script = "id -u; exec setpriv --reuid 1234 --regid 1235 --clear-groups \
            sh -c 'echo out >/dev/stdout; echo err >/dev/stderr; read x </dev/stdin; echo $x'";
        let process = sh(&mut streams, script);
        streams.started().await.unwrap();
        client.writer("in").write_all(b"in\n").unwrap();
        assert_eq!(wait(process).await, Some(0));
        assert_eq!(out.await.unwrap(), b"0\nout\nin\n");
        assert_eq!(err.await.unwrap(), b"err\n");
        assert!(streams.drain(LONG).await);
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    run(async {
        let client = Client::new();
        let missing = client.name("none");
        let socket = client.name("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (stdio, want) in [
            (
                Stdio { stdout: "mem://x".into(), ..Stdio::default() },
                "unknown STDIO scheme mem: invalid argument".into(),
            ),
            (
                Stdio { stdout: missing.clone(), ..Stdio::default() },
                format!("stat {missing}: no such file or directory"),
            ),
            (
                Stdio { stdin: missing.clone(), ..Stdio::default() },
                format!("stat {missing}: no such file or directory"),
            ),
            (
                Stdio { stdout: socket.clone(), ..Stdio::default() },
                format!("stdio {socket}: this is not a fifo: invalid argument"),
            ),
            (
                Stdio { stdin: "/etc/passwd".into(), ..Stdio::default() },
                "stdio /etc/passwd: this is not a fifo: invalid argument".into(),
            ),
            (
                Stdio { stdin: "file:///x".into(), ..Stdio::default() },
                "stdin file:///x: this must be a fifo: invalid argument".into(),
            ),
            (
                Stdio { stdout: "file:///proc/1/x/y".into(), ..Stdio::default() },
                "mkdir /proc/1/x: no such file or directory".into(),
            ),
            (Stdio { stdout: "/etc".into(), ..Stdio::default() }, "open /etc: is a directory".into()),
        ] {
            assert_eq!(open(&stdio).await.unwrap_err().to_string(), want, "{stdio:?}");
        }
        let stdio = Stdio { stderr: "binary:///bin/true".into(), ..client.only_out() };
        assert!(open(&stdio).await.unwrap_err().to_string().contains("stdout must name it too"));
    });
}

/// A process can close its pipe and open it again through an end of the other kind. What is watched then looks closed for
/// good and is not: waiting for it would return at once, for ever.
#[test]
fn a_pipe_that_was_closed_and_opened_again_has_ended() {
    run(async {
        let again = |fd: &AsyncFd<OwnedFd>, write| {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            std::fs::OpenOptions::new().write(write).read(!write).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
        };
        let soon = Duration::from_secs(1);
        let (read, write) = copy::pipe().unwrap();
        let read = watch::watch(read).unwrap();
        drop(write);
        drop(read.readable().await.unwrap());
        let _write = again(&read, true);
        assert_eq!(timeout(soon, copy::read(&read, 10)).await.expect("it spins").unwrap(), b"");

        let (read, write) = copy::pipe().unwrap();
        let write = watch::watch(write).unwrap();
        drop(read);
        drop(write.writable().await.unwrap());
        let _read = again(&write, false);
        let failed = timeout(soon, copy::write_all(&write, &vec![0; 1 << 20])).await.expect("it spins");
        assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    });
}

/// What a stream takes of memory while nothing moves on it.
#[test]
fn an_idle_stream_holds_no_buffer() {
    run(async {
        let client = Client::new();
        let (ours, _theirs) = pipe(Owner::default(), Towards::Client).unwrap();
        let sink = sink(Target::Fifo(client.path("out"))).await.unwrap().unwrap();
        let (_draining, receiver) = flag::channel(false);
        let copy = output::run(Source::Pipe(ours), sink, receiver);
        assert!(size_of_val(&copy) < 2048, "{}", size_of_val(&copy));
    });
}
