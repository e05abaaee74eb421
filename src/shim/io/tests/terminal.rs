//! A terminal, handed over as a runtime does it.

use std::os::fd::AsFd;
use std::path::Path;

use super::*;
use crate::shim::process::Process;
use crate::sys::socket;

/// Does what a runtime does: a terminal, its master to the socket, a process with it as its controlling terminal.
pub(super) fn runtime(console: &Path, script: &str) -> Child {
    let (master, slave) = tty::open_pty().unwrap();
    let sender = socket::connect(console).unwrap();
    socket::send_fd(sender.as_fd(), master.as_fd(), b"/dev/ptmx").unwrap();
    let end = || slave.try_clone().unwrap();
    Command::new("setsid").args(["-c", "sh", "-c", script]).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
}

async fn start_terminal(stdio: &Stdio, script: &str) -> (Streams, Child) {
    let mut streams = open(stdio).await.unwrap();
    let child = streams.child().unwrap();
    let process = runtime(child.console_socket.as_deref().unwrap(), script);
    drop(child);
    streams.started().await.unwrap();
    (streams, process)
}

fn with_terminal(client: &Client) -> Stdio {
    Stdio { terminal: true, ..client.stdio() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\r', "")
}

#[test]
fn a_terminal_carries_both_ways_and_ends_with_the_process() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let mut streams = open(&with_terminal(&client)).await.unwrap();
        // Before there is one: the last counts.
        streams.resize(10, 10).unwrap();
        streams.resize(132, 43).unwrap();
        let console = streams.child().unwrap().console_socket.unwrap();
        let dir = console.parent().unwrap().to_owned();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert!(console.as_os_str().len() < 108);
        let process = runtime(&console, "read go; stty size; read again; stty size; tty; read x; echo got $x; exit 4");
        streams.started().await.unwrap();
        assert!(!dir.exists(), "the console socket goes when it has served");
        let mut typed = client.writer("in");
        typed.write_all(b"\n").unwrap();
        sleep(Duration::from_millis(200)).await;
        streams.resize(80, 25).unwrap();
        typed.write_all(b"\nword\n").unwrap();
        assert_eq!(wait(process).await, Some(4));
        assert!(streams.drain(LONG).await);
        let out = text(&out.await.unwrap());
        for want in ["43 132\n", "25 80\n", "/dev/pts/", "got word\n"] {
            assert!(out.contains(want), "{want} is not in {out}");
        }
        streams.resize(1, 1).unwrap();
    });
}

/// A size that is asked for while the process is being started comes too late for its beginning; it was dropped.
#[test]
fn a_size_that_comes_during_the_start_is_the_terminals() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let (streams, child) = start_terminal(&with_terminal(&client), "read go; stty size").await;
        let process = Process::new("e", Stdio::default());
        process.resize(132, 43).unwrap();
        process.born(child.id(), streams);
        client.writer("in").write_all(b"\n").unwrap();
        assert_eq!(wait(child).await, Some(0));
        assert!(process.streams().unwrap().drain(LONG).await);
        assert!(text(&out.await.unwrap()).ends_with("43 132\n"));
    });
}

/// At the end of its input a process on a terminal reads an end of file, also in the middle of a line, and its output
/// still comes.
#[test]
fn the_end_of_the_input_is_typed() {
    run(async {
        for (input, want) in [("a\n", "a\nend\n"), ("a\nhalf", "halfend\n"), ("", "end\n")] {
            let client = Client::new();
            let out = client.read("out");
            let (streams, process) =
                start_terminal(&with_terminal(&client), "stty -echo; echo ready; cat; echo end").await;
            sleep(Duration::from_millis(100)).await;
            client.writer("in").write_all(input.as_bytes()).unwrap();
            streams.close_stdin();
            assert_eq!(wait(process).await, Some(0), "{input:?}");
            assert!(streams.drain(LONG).await);
            let out = text(&out.await.unwrap());
            assert!(out.ends_with(want), "{input:?}: {out:?}");
        }
    });
}

/// An init closes its console and opens it again.
#[test]
fn a_terminal_that_nobody_has_open_for_a_while_goes_on() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let script =
            "t=$(tty); echo before; exec <&- >&- 2>&-; sleep 0.3; exec <>$t >&0 2>&0; echo back; read x; echo $x";
        let (streams, process) = start_terminal(&with_terminal(&client), script).await;
        sleep(Duration::from_millis(100)).await;
        client.writer("in").write_all(b"typed while away\n").unwrap();
        assert_eq!(wait(process).await, Some(0));
        assert!(streams.drain(LONG).await);
        let out = text(&out.await.unwrap());
        assert!(out.starts_with("before\n") && out.contains("back\n"), "{out}");
        assert!(out.ends_with("typed while away\n"), "{out}");
    });
}

/// Docker deletes an exec only when its output has ended, or two seconds later.
#[test]
fn the_output_of_a_terminal_ends_with_its_process() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let (streams, process) = start_terminal(&with_terminal(&client), "echo x").await;
        assert_eq!(wait(process).await, Some(0));
        streams.over();
        assert_eq!(text(&timeout(LONG, out).await.expect("an end before it is drained").unwrap()), "x\n");
        assert!(streams.drain(LONG).await);
    });
}

#[test]
fn much_goes_through_a_terminal() {
    run(async {
        let client = Client::new();
        let out = client.read("out");
        let script = "stty raw -echo; echo ready; head -c 300000 | wc -c; head -c 3000000 /dev/zero | tr '\\0' x";
        let (streams, process) = start_terminal(&with_terminal(&client), script).await;
        sleep(Duration::from_millis(200)).await;
        let mut typed = client.writer("in");
        spawn_blocking(move || typed.write_all(&vec![b'i'; 300_000]).unwrap()).await.unwrap();
        assert_eq!(wait(process).await, Some(0));
        assert!(streams.drain(LONG).await);
        let out = text(&out.await.unwrap());
        assert!(out.starts_with("ready\n300000\n"), "{}", &out[..out.len().min(100)]);
        assert_eq!(out.len(), "ready\n300000\n".len() + 3_000_000);
    });
}

/// Without a client that reads, without a sink, and with a child in the background.
#[test]
fn a_terminal_is_drained_within_the_limit() {
    run(async {
        let nowhere = Stdio { terminal: true, ..Stdio::default() };
        let (streams, process) = start_terminal(&nowhere, "head -c 300000 /dev/zero").await;
        assert_eq!(wait(process).await, Some(0), "output that nobody wants is read");
        assert!(streams.drain(LONG).await);

        let client = Client::new();
        let (streams, process) = start_terminal(&with_terminal(&client), "trap '' HUP; sleep 10 & echo x").await;
        assert_eq!(wait(process).await, Some(0));
        let out = client.read("out");
        let begun = Instant::now();
        assert!(!streams.drain(Duration::from_millis(300)).await);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(text(&out.await.unwrap()), "x\n");

        let (streams, process) = start_terminal(&with_terminal(&client), "head -c 30000 /dev/zero").await;
        assert_eq!(wait(process).await, Some(0));
        let begun = Instant::now();
        assert!(!streams.drain(LONG).await);
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn what_is_no_terminal_is_refused() {
    run(async {
        for gives in [false, true] {
            let client = Client::new();
            let mut streams = open(&with_terminal(&client)).await.unwrap();
            let console = streams.child().unwrap().console_socket.unwrap();
            let sender = socket::connect(&console).unwrap();
            if gives {
                socket::send_fd(sender.as_fd(), File::open("/dev/null").unwrap().as_fd(), b"x").unwrap();
            }
            drop(sender);
            let err = streams.started().await.unwrap_err().to_string();
            let why = if gives { "inappropriate ioctl for device" } else { "no message of desired type" };
            assert_eq!(err, format!("receive the terminal from {}: {why}", console.display()));
            assert!(!console.parent().unwrap().exists());
        }
    });
}
