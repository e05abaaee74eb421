//! Commands that always end: each has a time limit, after which its process group is killed and the test fails.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Debian's own programs come first, whatever else is installed on the machine.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

/// A command to be run to its end.
#[derive(Debug, Clone)]
pub struct Cmd {
    argv: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    stdin: Option<Vec<u8>>,
    file: Option<PathBuf>,
    limit: Duration,
}

/// A command that was started; killed with its process group if it still runs when this goes out of scope.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    start: Instant,
    limit: Duration,
    file: Option<PathBuf>,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
}

/// How a command ended and what it wrote.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command line, for messages.
    pub line: String,
    /// The exit code, or 128 + the signal that ended it.
    pub code: i32,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
    /// Wall-clock time from start to exit.
    pub took: Duration,
}

impl Cmd {
    /// A command that may take 60 seconds and reads nothing.
    pub fn new(program: impl AsRef<OsStr>) -> Cmd {
        Cmd {
            argv: vec![program.as_ref().to_owned()],
            env: vec![("PATH".into(), Some(PATH.into()))],
            stdin: None,
            file: None,
            limit: Duration::from_secs(60),
        }
    }

    /// Appends one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Cmd {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Appends arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Cmd {
        self.argv.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Cmd {
        self.env.push((name.into(), Some(value.as_ref().to_owned())));
        self
    }

    /// Takes a variable away.
    pub fn env_remove(mut self, name: &str) -> Cmd {
        self.env.push((name.into(), None));
        self
    }

    /// What the command reads.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Cmd {
        self.stdin = Some(bytes.into());
        self
    }

    /// For a command that leaves processes running with its output open: both streams go to `file` instead of pipes, and
    /// are read from there, as standard output, when it has ended.
    pub fn output_to(mut self, file: impl Into<PathBuf>) -> Cmd {
        self.file = Some(file.into());
        self
    }

    /// The time limit.
    pub fn limit(mut self, limit: Duration) -> Cmd {
        self.limit = limit;
        self
    }

    /// The same command on a terminal of its own, of `script`'s making, through which it also reads its stdin.
    pub fn on_terminal(self) -> Cmd {
        let quote = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"));
        let line = self.argv.iter().map(quote).collect::<Vec<_>>().join(" ");
        let argv = ["script", "--quiet", "--return", "--command", &line, "/dev/null"].map(OsString::from).to_vec();
        Cmd { argv, ..self }
    }

    /// The same command within a shell's line, which has it as `"$@"`.
    pub fn in_shell(self, line: &str) -> Cmd {
        let argv = ["sh", "-c", line, "sh"].iter().map(OsString::from).chain(self.argv).collect();
        Cmd { argv, ..self }
    }

    fn line(&self) -> String {
        self.argv.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Starts it, as a process group of its own, and does not wait. Its time limit counts from here.
    pub fn spawn(self) -> Running {
        let mut command = Command::new(&self.argv[0]);
        command.args(&self.argv[1..]).process_group(0);
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        match &self.file {
            Some(path) => {
                let file = fs::File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                command.stdout(file.try_clone().expect("dup")).stderr(file);
            }
            None => {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
        }
        let start = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.line()));
        let line = self.line();
        if let (Some(bytes), Some(mut pipe)) = (self.stdin, child.stdin.take()) {
            thread::spawn(move || {
                // A command that does not read all of its input gives EPIPE here; that is its own affair.
                let _ = pipe.write_all(&bytes);
            });
        }
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        Running { child, line, start, limit: self.limit, file: self.file, stdout, stderr }
    }

    /// Runs it to its end. Panics when its time limit is over.
    #[track_caller]
    pub fn run(self) -> Output {
        self.spawn().wait()
    }

    /// Runs it and asserts that it succeeded; its standard output without the last newline.
    pub fn ok(self) -> String {
        self.run().ok()
    }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap_or_else(|e| panic!("kill {}: {e}", self.line));
    }

    /// Waits for its end. Panics when its time limit is over. Output that some survivor of the command still holds open
    /// is read for two more seconds, then left.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            if self.start.elapsed() > self.limit {
                let patience = Duration::from_millis(100);
                let (stdout, stderr) = (collect(&self.stdout, patience), collect(&self.stderr, patience));
                panic!("{}: still running after {:?}\nstdout: {stdout}\nstderr: {stderr}", self.line, self.limit);
            }
            thread::sleep(Duration::from_millis(3));
        };
        let stdout = match &self.file {
            Some(path) => String::from_utf8_lossy(&fs::read(path).expect("read the output")).into_owned(),
            None => collect(&self.stdout, Duration::from_secs(2)),
        };
        Output {
            line: std::mem::take(&mut self.line),
            code: status.code().unwrap_or_else(|| 128 + status.signal().expect("exited or signaled")),
            took: self.start.elapsed(),
            stdout,
            stderr: collect(&self.stderr, Duration::from_secs(2)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Reaped already: its group may be somebody else's by now.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

impl Output {
    /// Asserts success; standard output without the last newline.
    #[track_caller]
    pub fn ok(self) -> String {
        self.expect(0).stdout.trim_end_matches(['\n', '\r']).to_owned()
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Output {
        assert_eq!(self.code, code, "{}: exit code\nstdout: {}\nstderr: {}", self.line, self.stdout, self.stderr);
        self
    }

    /// Standard output and error together, for messages that may come on either.
    pub fn both(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    let Some(mut pipe) = pipe else { return receive };
    thread::spawn(move || {
        let mut block = [0; 8192];
        while let Ok(n @ 1..) = pipe.read(&mut block) {
            if send.send(block[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

fn collect(blocks: &mpsc::Receiver<Vec<u8>>, patience: Duration) -> String {
    let deadline = Instant::now() + patience;
    let mut all = Vec::new();
    while let Ok(block) = blocks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        all.extend(block);
    }
    String::from_utf8_lossy(&all).into_owned()
}
