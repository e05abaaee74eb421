//! Where errors leave the program: exactly one line a failed command in the log file, and the message on stderr.
//!
//! Engines read the log file (containerd takes the last line of level `error`, podman takes the file for one object) and
//! look for known words in it, so errno values are written as C programs do.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Global, LogFormat};
use crate::error::beginning;
use crate::runtime::NAME;
use crate::telemetry;

/// Longest message, in bytes: stderr may be a pipe that nobody drains.
const TEXT_MAX: usize = 8 * 1024;

/// Where to report.
#[derive(Debug)]
pub struct Target {
    log: Option<PathBuf>,
    format: LogFormat,
}

impl Target {
    /// As the options say.
    pub fn of(global: &Global) -> Target {
        Target { log: global.log.clone(), format: global.log_format }
    }

    /// From normalised arguments that could not be parsed as a whole. As where they could, only what is before the verb
    /// counts (behind it may be a container's command, with options of its own), and of that the last.
    pub fn of_argv(argv: &[OsString]) -> Target {
        let options = || argv.iter().skip(1).map(|arg| arg.as_bytes()).take_while(|arg| arg.starts_with(b"-"));
        let value = |name: &str| options().filter_map(|arg| arg.strip_prefix(name.as_bytes())).last();
        let format = if value("--log-format=") == Some(b"json") { LogFormat::Json } else { LogFormat::Text };
        Target { log: value("--log=").map(|path| PathBuf::from(OsStr::from_bytes(path))), format }
    }
}

/// Opens a log file for appending: all commands of a container write to the same.
pub fn open_log(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true).mode(0o644).custom_flags(libc::O_SYNC | libc::O_CLOEXEC | libc::O_NOCTTY);
    options.open(path)
}

/// Reports that the command failed.
pub fn failure(target: &Target, message: &str) {
    let message = beginning(message.trim_end(), TEXT_MAX);
    let stderr_line = match &target.log {
        // A person at a terminal; callers that are programs get runc's form.
        None if rustix::termios::isatty(rustix::stdio::stderr()) => {
            format!("{NAME}: {}\n", super::render::visible(&message))
        }
        None => text_line("error", &message),
        Some(path) => {
            let line = entry(target.format, "error", &message);
            match open_log(path).and_then(|mut log| log.write_all(line.as_bytes())) {
                Ok(()) => format!("{message}\n"),
                Err(err) => format!("{message}\n(and the log file {} cannot be written: {err})\n", path.display()),
            }
        }
    };
    // A closed stderr is the caller's choice; the exit code still tells.
    let _ = io::stderr().write_all(stderr_line.as_bytes());
}

/// Reports something that did not fail the command; only to a log file.
pub fn warning(target: &Target, message: &str) {
    if let Some(path) = &target.log {
        let line = entry(target.format, "warning", &beginning(message.trim_end(), TEXT_MAX));
        // There is no other place that could not be the container's.
        let _ = open_log(path).and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

fn entry(format: LogFormat, level: &str, message: &str) -> String {
    match format {
        LogFormat::Json => {
            let mut line = json!({"level": level, "msg": message, "time": telemetry::now()}).to_string();
            line.push('\n');
            line
        }
        LogFormat::Text => text_line(level, message),
    }
}

fn text_line(level: &str, message: &str) -> String {
    format!("time=\"{}\" level={level} msg={}\n", telemetry::now(), json!(message))
}

/// An error and its causes on one line.
pub fn text(err: &anyhow::Error) -> String {
    plain_errno(&crate::error::chain(err.as_ref()))
}

/// clap's message without its usage and help parts.
pub fn usage(text: &str) -> String {
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (what, tips) = text[..end].split_once("\n\n  tip: ").unwrap_or((&text[..end], ""));
    let line = one_line(what);
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    if tips.is_empty() { line.to_owned() } else { format!("{line}: {}", one_line(&tips.replace("tip: ", ""))) }
}

/// `No such file or directory (os error 2)` as `no such file or directory`.
pub fn plain_errno(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut out = text.to_owned();
    while let Some(at) = out.find(MARK) {
        let rest = &out[at + MARK.len()..];
        let Some(close) = rest.find(')') else { break };
        let Ok(errno) = rest[..close].parse::<i32>() else { break };
        let long = io::Error::from_raw_os_error(errno).to_string();
        let short = crate::error::errno_text(&io::Error::from_raw_os_error(errno));
        let replaced = out.replacen(&long, &short, 1);
        if replaced == out {
            break;
        }
        out = replaced;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_written_as_c_programs_do() {
        assert_eq!(
            plain_errno("open /x: No such file or directory (os error 2), then Permission denied (os error 13)"),
            "open /x: no such file or directory, then permission denied"
        );
        assert_eq!(plain_errno("odd (os error x)"), "odd (os error x)");
    }

    #[test]
    fn one_line_a_failure_and_appended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.json");
        let target = Target { log: Some(path.clone()), format: LogFormat::Json };
        warning(&target, "first");
        failure(&target, "sec\"ond\nline");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[1]["level"].as_str(), lines[1]["msg"].as_str()), (Some("error"), Some("sec\"ond\nline")));
        assert!(chrono::DateTime::parse_from_rfc3339(lines[1]["time"].as_str().unwrap()).is_ok());
    }

    /// Where an option was not understood, the error went to a file that the container's own command named.
    #[test]
    fn the_log_is_the_one_named_last_before_the_verb() {
        let target = |line: &str| {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let target = Target::of_argv(&argv);
            (target.log.map(|path| path.display().to_string()).unwrap_or_default(), target.format)
        };
        let json = ("/a".to_owned(), LogFormat::Json);
        assert_eq!(target("x --log=/a --log-format=json exec --bad -- c1 x --log=/b --log-format=text"), json);
        assert_eq!(target("x --log=/b --log-format=text --log=/a --log-format=json exec --bad"), json);
        assert_eq!(target("x exec --bad -- c1 x --log=/b --log-format=json"), (String::new(), LogFormat::Text));
    }

    #[test]
    fn usage_is_one_line() {
        let text = "error: the following required arguments were not provided:\n  <ID>\n\nUsage: x\n\nFor more\n";
        assert_eq!(usage(text), "the following required arguments were not provided: <ID>");
        let text = "error: unrecognized subcommand 'shw'\n\n  tip: a similar subcommand exists: 'show'\n\nUsage: x\n";
        assert_eq!(usage(text), "unrecognized subcommand 'shw': a similar subcommand exists: 'show'");
    }
}
