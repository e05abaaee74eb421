//! Passing our own terminal through to the container's or the command's, for a run or an exec in the foreground.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use super::error::RuntimeError;
use crate::sys::{Call, SysError};

/// Bytes on their way in one direction.
#[derive(Default)]
struct Pending(Vec<u8>);

/// Most bytes that wait in one direction: then its source is not read until they have gone.
const FULL: usize = 64 * 1024;

/// The caller's terminal, where runc looks for it: standard error, output, input, then the controlling one.
///
/// # Errors
/// [`RuntimeError::NoTerminal`] where there is none: what is told to wait for input would then wait for ever.
pub fn callers_terminal() -> Result<OwnedFd, RuntimeError> {
    let named = [stderr(), stdout(), stdin()].into_iter().find(|fd| isatty(fd));
    let copied = named.and_then(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).ok());
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let found = copied.map_or_else(|| rustix::fs::open("/dev/tty", flags, Mode::empty()), Ok);
    found.map_err(|errno| RuntimeError::NoTerminal { source: errno.into() })
}

/// Rows and columns of the terminal that is passed on; none where there is none, or it has no size: that says nothing about
/// the command's.
pub fn callers_size() -> Option<(u16, u16)> {
    size_of(&callers_terminal().ok()?).map(|size| (size.ws_row, size.ws_col))
}

fn size_of(terminal: &OwnedFd) -> Option<Winsize> {
    tcgetwinsize(terminal).ok().filter(|size| size.ws_row != 0 && size.ws_col != 0)
}

/// Copies between our standard streams and the master side of a command's terminal.
pub struct Relay {
    master: OwnedFd,
    /// The one whose size the command's has; it may be gone.
    terminal: Option<OwnedFd>,
    /// Our terminal's settings before it was made raw.
    saved: Option<Termios>,
    to_master: Pending,
    to_stdout: Pending,
    output: Output,
    stdin_open: bool,
    master_open: bool,
}

/// How our standard output is written without a wait for whoever reads it: meanwhile no signal would be forwarded, and no
/// limit hold. Its description is others' too, so it is not made non-blocking itself.
enum Output {
    /// Opened anew for that.
    Own(OwnedFd),
    /// A socket, which can be asked each time.
    Socket,
    /// A file, which never waits for a reader; or what can't be opened again.
    Plain,
}

impl Output {
    fn find() -> Output {
        let Ok(stat) = rustix::fs::fstat(stdout()) else { return Output::Plain };
        // Whoever opens a multiplexer gets another terminal.
        let multiplexer = stat.st_rdev == rustix::fs::makedev(5, 2);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket => Output::Socket,
            FileType::Fifo => Output::again(),
            FileType::CharacterDevice if isatty(stdout()) && !multiplexer => Output::again(),
            _ => Output::Plain,
        }
    }

    fn again() -> Output {
        let name = format!("/proc/self/fd/{}", stdout().as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(name, flags, Mode::empty()).map_or(Output::Plain, Output::Own)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Output::Own(fd) => rustix::io::write(fd, bytes),
            Output::Socket => rustix::net::send(stdout(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Output::Plain => rustix::io::write(stdout(), bytes),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Output::Own(fd) => fd.as_fd(),
            Output::Socket | Output::Plain => stdout(),
        }
    }
}

impl Relay {
    /// Makes our terminal raw, if we have one, and gives the command's its size.
    pub fn start(master: OwnedFd) -> Result<Relay, SysError> {
        let saved = if isatty(stdin()) { tcgetattr(stdin()).ok() } else { None };
        if let Some(settings) = &saved {
            let mut raw = settings.clone();
            raw.make_raw();
            // What is no terminal any more needs no raw mode.
            let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        }
        rustix::io::ioctl_fionbio(&master, true).call("ioctl", || "terminal, FIONBIO".into())?;
        let relay = Relay {
            master,
            terminal: callers_terminal().ok(),
            saved,
            to_master: Pending::default(),
            to_stdout: Pending::default(),
            output: Output::find(),
            stdin_open: true,
            master_open: true,
        };
        relay.resize();
        Ok(relay)
    }

    /// Gives the command's terminal the size of ours.
    pub fn resize(&self) {
        if let Some(size) = self.terminal.as_ref().and_then(size_of) {
            // One that is closing has no size to keep.
            let _ = rustix::termios::tcsetwinsize(&self.master, size);
        }
    }

    /// Adds what to wait for; `pump` takes the answers in the same order.
    pub fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let master = self.awaited();
        if !master.is_empty() {
            fds.push(PollFd::new(&self.master, master));
        }
        if self.reads_stdin() {
            fds.push(PollFd::from_borrowed_fd(stdin(), PollFlags::IN));
        }
        if !self.to_stdout.0.is_empty() {
            fds.push(PollFd::from_borrowed_fd(self.output.fd(), PollFlags::OUT));
        }
    }

    /// What is waited for on the master. It is not looked at for nothing: its hang-up could not be left unheard.
    fn awaited(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.master_open && self.to_stdout.0.len() < FULL);
        flags.set(PollFlags::OUT, self.master_open && !self.to_master.0.is_empty());
        flags
    }

    fn reads_stdin(&self) -> bool {
        self.stdin_open && self.master_open && self.to_master.0.len() < FULL
    }

    /// Moves what can be moved.
    pub fn pump(&mut self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        let master = !self.awaited().is_empty() && ready.next().unwrap_or(false);
        if self.reads_stdin() && ready.next().unwrap_or(false) {
            let mut buffer = [0u8; 4096];
            match rustix::io::read(stdin(), &mut buffer) {
                Ok(0) => self.stdin_open = false,
                Ok(n) => self.to_master.0.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.stdin_open = false,
            }
        }
        if master {
            self.read_master();
        }
        self.write_out();
        while !self.to_master.0.is_empty() {
            match rustix::io::write(&self.master, &self.to_master.0) {
                Ok(n) => drop(self.to_master.0.drain(..n)),
                Err(Errno::AGAIN) => break,
                Err(_) => self.to_master.0.clear(),
            }
        }
    }

    fn read_master(&mut self) {
        let mut buffer = [0u8; 4096];
        while self.to_stdout.0.len() < FULL {
            match rustix::io::read(&self.master, &mut buffer) {
                Ok(0) => self.master_open = false,
                Ok(n) => self.to_stdout.0.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                // EIO: no process has the slave open any more.
                Err(_) => self.master_open = false,
            }
            if !self.master_open {
                return;
            }
        }
    }

    /// Writes what is taken now.
    fn write_out(&mut self) {
        while !self.to_stdout.0.is_empty() {
            match self.output.write(&self.to_stdout.0) {
                Ok(n) => drop(self.to_stdout.0.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody reads; what was written is lost as it would be on a closed terminal.
                Err(_) => self.to_stdout.0.clear(),
            }
        }
    }

    /// Passes on what is left and puts our terminal back. A reader that takes nothing for as long as `patience` gets no more.
    pub fn finish(mut self, patience: Option<Duration>) {
        let patience = patience.and_then(|p| Timespec::try_from(p).ok());
        loop {
            if self.master_open {
                self.read_master();
            }
            if self.to_stdout.0.is_empty() {
                return;
            }
            self.write_out();
            if self.to_stdout.0.is_empty() {
                continue;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.output.fd(), PollFlags::OUT)];
            match poll(&mut fds, patience.as_ref()) {
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(settings) = &self.saved {
            // The terminal may be gone.
            let _ = tcsetattr(stdin(), OptionalActions::Now, settings);
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("master", &self.master.as_fd()).finish_non_exhaustive()
    }
}
