//! What the libraries under us say through `tracing`: their errors are captured, so that a failure in a child process
//! can be told with its cause; everything else only goes to the log file, and only with `--debug`.
//!
//! Nothing is ever written to stdout or stderr: in `create` and `run` they are the container's.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, Write};

use rustix::fs::MemfdFlags;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Longest line that is kept of one event, in bytes.
const LINE_MAX: usize = 2048;
/// How much of the captured errors is read back, in bytes.
const READ_MAX: u64 = 64 * 1024;

/// The error events of this process and of the children it forks, kept in a memory file that they share.
#[derive(Debug)]
pub struct ErrorCapture {
    file: File,
}

impl ErrorCapture {
    /// An empty capture.
    pub fn new() -> io::Result<ErrorCapture> {
        Ok(ErrorCapture { file: rustix::fs::memfd_create("errors", MemfdFlags::CLOEXEC)?.into() })
    }

    /// Runs `work` with every error event captured here, and with all events written to `debug` if given.
    pub fn during<T>(&self, debug: Option<&File>, work: impl FnOnce() -> T) -> io::Result<T> {
        let sink = Sink { errors: self.file.try_clone()?, debug: debug.map(File::try_clone).transpose()? };
        Ok(tracing::subscriber::with_default(sink, work))
    }

    /// What was captured, one entry an event, the earliest (so the deepest cause) first.
    pub fn lines(&self) -> io::Result<Vec<String>> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(READ_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
    }
}

struct Sink {
    errors: File,
    debug: Option<File>,
}

impl Subscriber for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level()
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level().into())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = line.finish();
        // Lost diagnostics are no reason to fail what they are about.
        if *event.metadata().level() == Level::ERROR {
            let _ = (&self.errors).write_all(format!("{text}\n").as_bytes());
        }
        if let Some(mut debug) = self.debug.as_ref() {
            let level = event.metadata().level().as_str().to_ascii_lowercase();
            // `debug` level always: an engine takes a line of level "error" for the command's failure.
            let level = if level == "error" { "warning" } else { &level };
            let entry = serde_json::json!({"level": level, "msg": text, "time": crate::telemetry::now()});
            let _ = debug.write_all(format!("{entry}\n").as_bytes());
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Sink {
    fn level(&self) -> Level {
        if self.debug.is_some() { Level::DEBUG } else { Level::ERROR }
    }
}

/// The time now, RFC 3339 in UTC with seconds.
pub fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn finish(self) -> String {
        let mut text = self.message + &self.fields;
        if text.len() > LINE_MAX {
            let cut = (0..=LINE_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            text.truncate(cut);
        }
        text.replace('\n', " ")
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a String does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_captured_and_nothing_else() {
        let capture = ErrorCapture::new().unwrap();
        capture
            .during(None, || {
                tracing::error!(path = "/x", "first\nfailure");
                tracing::info!("not this");
                tracing::error!("second");
            })
            .unwrap();
        assert_eq!(capture.lines().unwrap(), ["first failure path=\"/x\"", "second"]);
    }

    #[test]
    fn debug_lines_are_json_and_never_of_level_error() {
        let capture = ErrorCapture::new().unwrap();
        let mut log = tempfile::tempfile().unwrap();
        capture
            .during(Some(&log), || {
                tracing::error!("bad");
                tracing::debug!("detail");
            })
            .unwrap();
        log.rewind().unwrap();
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        let levels: Vec<_> = text
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["level"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(levels, ["warning", "debug"]);
    }
}
