//! The shim's log: lines in logrus's text form, written to the fifo `log` of the bundle, which containerd reads.
//!
//! Nobody is waited for. A line that the fifo does not take at once is dropped, and the next one that it takes says how many
//! were. containerd may be away for long, or have removed the bundle.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The longest line, in bytes: so many a pipe takes whole or not at all (`PIPE_BUF`).
const LINE_MAX: usize = 4096;
/// How long to leave a fifo alone that could not be opened.
const PAUSE: Duration = Duration::from_secs(1);

/// A subscriber that writes what `tracing` tells it.
#[derive(Debug)]
pub struct Log {
    level: Level,
    /// Said in each line.
    id: String,
    out: Mutex<Out>,
}

#[derive(Debug)]
struct Out {
    path: PathBuf,
    fifo: Option<File>,
    tried: Option<Instant>,
    dropped: u64,
}

impl Log {
    /// A log that goes to the fifo at `path`, of a shim that was started for the container `id`.
    pub fn to(path: &Path, id: &str, debug: bool) -> Log {
        let mut out = Out { path: path.to_owned(), fifo: None, tried: None, dropped: 0 };
        out.open();
        let level = if debug { Level::DEBUG } else { Level::INFO };
        Log { level, id: id.to_owned(), out: Mutex::new(out) }
    }
}

impl Out {
    /// Opens the fifo, if somebody reads it.
    fn open(&mut self) {
        if self.fifo.is_some() || self.tried.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        self.tried = Some(Instant::now());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::open(&self.path, flags, Mode::empty()) else { return };
        let is_fifo = rustix::fs::fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
        self.fifo = is_fifo.then(|| File::from(fd));
    }

    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        match self.fifo.as_mut() {
            Some(fifo) => fifo.write_all(line),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn write(&mut self, line: &str) {
        self.open();
        if self.dropped > 0 {
            let note = format!("time=\"{}\" level=warning msg=\"{} lines were dropped\"\n", now(), self.dropped);
            if self.put(note.as_bytes()).is_ok() {
                self.dropped = 0;
            }
        }
        if let Err(err) = self.put(line.as_bytes()) {
            self.dropped += 1;
            // A full pipe has a reader; any other has lost it, and is opened again when there is one.
            if err.kind() != io::ErrorKind::WouldBlock {
                self.fifo = None;
            }
        }
    }
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Nanos, true)
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let head = format!("time=\"{}\" level={level} msg={}{}", now(), quoted(&said.message), said.fields);
        let tail = format!(" shim={}\n", quoted(&self.id));
        let line = cut(&head, LINE_MAX.saturating_sub(tail.len())).to_owned() + &tail;
        self.out.lock().unwrap_or_else(PoisonError::into_inner).write(&line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The longest beginning of `text` with at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// `text` in quotation marks, on one line.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.record(field.name(), &format!("{value:?}"));
    }
}

impl Said {
    fn record(&mut self, name: &str, value: &str) {
        match name {
            "message" => self.message.push_str(value),
            // Writing to a String does not fail.
            name => drop(write!(self.fields, " {name}={}", quoted(value))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn reader(path: &Path) -> File {
        File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap())
    }

    fn fifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    fn text(reader: &mut File) -> String {
        let mut buffer = vec![0; 1 << 20];
        let n = reader.read(&mut buffer).unwrap_or(0);
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    }

    #[test]
    fn lines_are_logruss() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fifo(&path);
        let mut reader = reader(&path);
        let log = Log::to(&path, "c1", false);
        tracing::subscriber::with_default(log, || {
            tracing::warn!(path = "/a \"b\"", n = 3, "two\nlines");
            tracing::debug!("not this");
            tracing::error!("{}", "ä".repeat(LINE_MAX));
        });
        let text = text(&mut reader);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let (time, rest) = lines[0].split_once(' ').unwrap();
        let time = time.strip_prefix("time=\"").and_then(|time| time.strip_suffix('"')).unwrap();
        chrono::DateTime::parse_from_rfc3339(time).unwrap();
        assert_eq!(rest, r#"level=warning msg="two\nlines" path="/a \"b\"" n="3" shim="c1""#);
        assert!(lines[1].len() < LINE_MAX && lines[1].ends_with("ä shim=\"c1\""), "{}", lines[1].len());
    }

    /// Neither a missing reader nor a full fifo is waited for; when there is room again the loss is told.
    #[test]
    fn nobody_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fifo(&path);
        let mut out = Out { path: path.clone(), fifo: None, tried: None, dropped: 0 };
        out.write("lost\n");
        assert_eq!(out.dropped, 1);
        let mut first = reader(&path);
        out.tried = None;
        out.write("told\n");
        let said = text(&mut first);
        assert!(said.ends_with("told\n") && said.contains("1 lines were dropped"), "{said}");
        let line = "x".repeat(LINE_MAX);
        while out.dropped == 0 {
            out.write(&line);
        }
        assert!(out.fifo.is_some(), "a full fifo is kept");
        drop(first);
        out.write("lost\n");
        assert!(out.fifo.is_none());
        let mut second = reader(&path);
        out.tried = None;
        out.write("again\n");
        assert!(text(&mut second).ends_with("again\n"));
    }

    #[test]
    fn only_a_fifo_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        std::os::unix::fs::symlink(&file, dir.path().join("log")).unwrap();
        for path in [file.clone(), dir.path().join("log")] {
            let log = Log::to(&path, "c", true);
            tracing::subscriber::with_default(log, || tracing::error!("x"));
        }
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
