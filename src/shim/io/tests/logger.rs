//! Logging programs, and that nothing is left of any kind of stream. The reaper takes every child of its process, so these
//! tests run in processes of their own.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

/// Runs one of the ignored tests of this file in a process of its own.
fn alone(test: &str) {
    let name = format!("shim::io::tests::logger::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args([&name, "--exact", "--ignored", "--test-threads=1"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// A logger that is a script, and the URI that names it.
fn logger(dir: &tempfile::TempDir, scheme: &str, script: &str) -> Stdio {
    let path = dir.path().join("logger");
    let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
    write!(file, "#!/bin/sh\nPATH=/bin:/usr/bin\ncd {}\n{script}\n", dir.path().display()).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    let uri = format!("{scheme}://{}?id=x%20y&env.MORE=m&env.CONTAINER_ID=forged", path.display());
    Stdio { stdout: uri.clone(), stderr: uri, ..Stdio::default() }
}

async fn open_with(stdio: &Stdio, reaper: &Reaper) -> Result<Streams, ShimError> {
    Streams::open(stdio, Owner::default(), ID, reaper).await
}

async fn run_logged(stdio: &Stdio, reaper: &Reaper, script: &str) -> Streams {
    let mut streams = open_with(stdio, reaper).await.unwrap();
    let ChildStdio { stdin, stdout, stderr, .. } = streams.child().unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).stdin(stdin).stdout(stdout).stderr(stderr);
    let (_, exit) = reaper.spawn(&mut command).unwrap();
    drop(command);
    streams.started().await.unwrap();
    assert_eq!(exit.await.unwrap().code, 0);
    streams
}

fn children() -> String {
    let pid = std::process::id();
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default())
        .collect()
}

fn read(dir: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(dir.path().join(name)).unwrap_or_default()
}

#[test]
fn a_logger_reads_the_pipes_itself() {
    alone("alone_loggers");
}

#[test]
#[ignore = "run by a_logger_reads_the_pipes_itself, in its own process"]
fn alone_loggers() {
    run(async {
        let reaper = Reaper::start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let copy = "cat <&3 >out 5>&- & cat <&4 >err 5>&- & exec 3<&- 4<&-";
        let told = "echo \"$CONTAINER_NAMESPACE $CONTAINER_ID $MORE $# $1 $2\" >told";

        // One that ends at the end of its input: nothing is lost, and nothing is waited for.
        for (scheme, ready) in [("binary", "exec 5>&-"), ("binary-v2", "echo >&5; exec 5>&-")] {
            let stdio = logger(&dir, scheme, &format!("{told}; {copy}; {ready}; wait; sleep 0.1; echo done >>out"));
            let streams = run_logged(&stdio, &reaper, "echo 1; echo 2 >&2; head -c 200000 /dev/zero").await;
            let begun = Instant::now();
            assert!(streams.drain(LONG).await);
            assert!(begun.elapsed() < Duration::from_secs(5));
            assert_eq!(read(&dir, "told"), "ns c m 2 id x y\n");
            assert_eq!(read(&dir, "out").replace('\0', ""), "1\ndone\n");
            assert_eq!((read(&dir, "out").len(), read(&dir, "err").as_str()), (200_007, "2\n"));
            assert_eq!(children(), "");
        }

        // One that waits for SIGTERM, one that ignores it, and one whose pipes a background process holds.
        let stdio = logger(
            &dir,
            "binary",
            &format!("trap 'echo term >asked; exit' TERM; {copy}; exec 5>&-; while :; do sleep 0.05; done"),
        );
        let streams = run_logged(&stdio, &reaper, "echo 1").await;
        assert!(streams.drain(LONG).await);
        assert_eq!((read(&dir, "asked").as_str(), read(&dir, "out").as_str()), ("term\n", "1\n"));
        let stdio = logger(&dir, "binary", "trap '' TERM; exec 5>&-; cat <&3 >out; while :; do sleep 0.05; done");
        let streams = run_logged(&stdio, &reaper, "echo 2").await;
        let begun = Instant::now();
        assert!(!streams.drain(Duration::from_secs(1)).await);
        assert_eq!(read(&dir, "out"), "2\n");
        while !children().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the logger stays");
            sleep(Duration::from_millis(50)).await;
        }
        assert!(begun.elapsed() > Duration::from_secs(12), "it had its time");
        let stdio = logger(&dir, "binary", "exec 5>&-; exec cat <&3 >out");
        let streams = run_logged(&stdio, &reaper, "sleep 10 & echo 3").await;
        let begun = Instant::now();
        assert!(!streams.drain(Duration::from_millis(300)).await);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(read(&dir, "out"), "3\n");

        // One that dies: a terminal's process goes on, and what it writes is dropped.
        let stdio = Stdio { terminal: true, ..logger(&dir, "binary", "exit 1") };
        let mut streams = open_with(&stdio, &reaper).await.unwrap();
        let script = "sleep 0.2; head -c 300000 /dev/zero";
        let mut process = super::terminal::runtime(&streams.child().unwrap().console_socket.unwrap(), script);
        streams.started().await.unwrap();
        while Path::new(&format!("/proc/{}", process.id())).exists() {
            sleep(Duration::from_millis(20)).await;
        }
        assert!(process.wait().is_err(), "the reaper has it");
        assert!(!streams.drain(LONG).await);

        // A process whose logger died learns that nobody reads.
        let stdio = logger(&dir, "binary", "exit 1");
        let streams = run_logged(&stdio, &reaper, "trap '' PIPE; sleep 0.2; echo x || exit 0; exit 1").await;
        assert!(streams.drain(LONG).await);
        assert_eq!(children(), "");
    });
}

#[test]
fn a_logger_that_is_not_ready_is_an_error() {
    alone("alone_unready");
}

#[test]
#[ignore = "run by a_logger_that_is_not_ready_is_an_error, in its own process"]
fn alone_unready() {
    run(async {
        let reaper = Reaper::start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logger").display().to_string();
        let err = open_with(&logger(&dir, "binary-v2", "exit 0"), &reaper).await.unwrap_err().to_string();
        let said = "logging program did not say that it is ready: it closed its descriptor 5, or ended";
        assert_eq!(err, format!("{said}: {path}"));
        let err = open_with(&logger(&dir, "binary", "exec sleep 100"), &reaper).await.unwrap_err().to_string();
        let late = "it neither wrote to nor closed its descriptor 5 in 10 s";
        assert_eq!(err, format!("wait for the logging program {path}: {late}"));
        let missing = Stdio { stdout: "binary:///none/such".into(), ..Stdio::default() };
        let err = open_with(&missing, &reaper).await.unwrap_err().to_string();
        assert_eq!(err, "start the logging program /none/such: no such file or directory");
        // It is asked to end when it is given up.
        for _ in 0..100 {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(children(), "");
    });
}

/// What every descriptor of this process is, and how often.
fn descriptors() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let link = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        let kind = link.display().to_string();
        *found.entry(kind.split(':').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    found
}

/// The console sockets of this process.
fn consoles() -> usize {
    let mine = format!("agentsbx-pty-{}-", std::process::id());
    let names = std::fs::read_dir("/run").unwrap().map(|e| e.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&mine)).count()
}

#[test]
fn nothing_is_left() {
    alone("alone_leaks");
}

#[test]
#[ignore = "run by nothing_is_left, in its own process"]
fn alone_leaks() {
    run(async {
        let reaper = Reaper::start().unwrap();
        let client = Client::new();
        let dir = tempfile::tempdir().unwrap();
        let logged = logger(&dir, "binary", "exec 5>&-; exec cat <&3 >out");
        let kinds = [
            client.stdio(),
            Stdio { stdout: format!("file://{}/log", dir.path().display()), ..client.stdio() },
            logged.clone(),
            Stdio { terminal: true, ..client.stdio() },
            Stdio { terminal: true, ..logged },
            Stdio { stdout: "/none".into(), ..client.stdio() },
            Stdio { stdin: client.name("in"), stdout: "binary:///none".into(), ..Stdio::default() },
        ];
        sleep(Duration::from_millis(10)).await;
        let (before, mut after) = (descriptors(), BTreeMap::new());
        for stdio in kinds.iter().cycle().take(kinds.len() * 5) {
            // Dropped at once; with its child's ends taken; drained.
            drop(open_with(stdio, &reaper).await);
            if let Ok(mut streams) = open_with(stdio, &reaper).await {
                let child = streams.child().unwrap();
                assert_eq!(consoles(), usize::from(stdio.terminal));
                drop(streams);
                drop(child);
            }
            if let Ok(mut streams) = open_with(stdio, &reaper).await {
                drop(streams.child().unwrap());
                streams.drain(Duration::from_secs(5)).await;
            }
        }
        for _ in 0..300 {
            sleep(Duration::from_millis(10)).await;
            after = descriptors();
            if after == before && children().is_empty() {
                break;
            }
        }
        assert_eq!(after, before);
        assert_eq!(children(), "");
        assert_eq!(consoles(), 0);
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 1, "the reaper");
    });
}
