//! What a request's `stdin`, `stdout` and `stderr` name: nothing, a fifo of the client's, a log file, a logging program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::shim::ShimError;

/// What stands before the names of environment variables among a logger's arguments.
const ENV_PREFIX: &[u8] = b"env.";

/// Where a stream leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Nowhere: the process gets /dev/null.
    Null,
    /// A fifo that the client has made: a path, or `fifo://` and a path.
    Fifo(PathBuf),
    /// A file that is appended to: `file://` and a path.
    File(PathBuf),
    /// A program that reads the output: `binary://` or `binary-v2://`, a path and arguments.
    Logger(LoggerCommand),
}

/// How a logger is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggerCommand {
    /// The program.
    pub path: PathBuf,
    /// Its arguments after the first, which is its path: key and value of each parameter, in the URI's order.
    pub args: Vec<OsString>,
    /// Its environment beside what every logger is told: name and value.
    pub env: Vec<(OsString, OsString)>,
    /// Whether it is ready only when it has said so (`binary-v2`), not also when it closes the descriptor.
    pub must_say: bool,
}

impl Target {
    /// Reads one of the three strings of a request.
    ///
    /// # Errors
    /// `Invalid` for another scheme, for a path that is not absolute, for a broken escape.
    pub fn parse(text: &str) -> Result<Target, ShimError> {
        if matches!(text, "" | "/dev/null") {
            return Ok(Target::Null);
        }
        // A path is taken as it is: it may hold any byte.
        let Some((scheme, rest)) = split_scheme(text) else { return Ok(Target::Fifo(text.into())) };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let rest = rest.split('#').next().unwrap_or_default();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let must_say = scheme == "binary-v2";
        match scheme.as_str() {
            "fifo" => Ok(Target::Fifo(absolute(text, path)?)),
            "file" => Ok(Target::File(absolute(text, path)?)),
            "binary" | "binary-v2" => Ok(Target::Logger(logger(text, absolute(text, path)?, query, must_say)?)),
            _ => Err(ShimError::Invalid(format!("unknown STDIO scheme {scheme}"))),
        }
    }
}

fn split_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    (scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(legal))
        .then(|| (scheme.to_ascii_lowercase(), rest))
}

fn absolute(uri: &str, path: &str) -> Result<PathBuf, ShimError> {
    let path = decode(uri, path, false)?;
    match Path::new(OsStr::from_bytes(&path)).is_absolute() {
        true => Ok(OsString::from_vec(path).into()),
        false => Err(ShimError::Invalid(format!("stdio {uri}: the path is not absolute"))),
    }
}

fn logger(uri: &str, path: PathBuf, query: &str, must_say: bool) -> Result<LoggerCommand, ShimError> {
    let mut command = LoggerCommand { path, args: Vec::new(), env: Vec::new(), must_say };
    let mut seen = Vec::new();
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (key, value) = (decode(uri, key, true)?, decode(uri, value, true)?);
        // Of a parameter that comes twice the first counts.
        if seen.contains(&key) {
            continue;
        }
        seen.push(key.clone());
        let value = OsString::from_vec(value);
        match key.strip_prefix(ENV_PREFIX) {
            Some(name) => command.env.push((OsStr::from_bytes(name).to_owned(), value)),
            None => command.args.extend([OsString::from_vec(key), value]),
        }
    }
    Ok(command)
}

/// The bytes that a part of a URI stands for; in a query `+` is a space. A byte that no path and no argument can hold is
/// an error.
fn decode(uri: &str, text: &str, query: bool) -> Result<Vec<u8>, ShimError> {
    let wrong = || ShimError::Invalid(format!("stdio {uri}: an escape in it is wrong"));
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(wrong);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' if query => b' ',
            byte => byte,
        };
        if byte == 0 {
            return Err(wrong());
        }
        out.push(byte);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme() {
        for (text, want) in [
            ("", Target::Null),
            ("/dev/null", Target::Null),
            ("/run/a b%20?x:y", Target::Fifo("/run/a b%20?x:y".into())),
            ("relative", Target::Fifo("relative".into())),
            ("fifo:///run/f", Target::Fifo("/run/f".into())),
            ("file:///var/log/a%20b?max=1#top", Target::File("/var/log/a b".into())),
            ("FILE:/var/log/x", Target::File("/var/log/x".into())),
        ] {
            assert_eq!(Target::parse(text).unwrap(), want, "{text}");
        }
        let Target::Logger(got) = Target::parse("binary-v2:///bin/l?id=a+b&env.A=%3D&flag&id=again&%ff=").unwrap()
        else {
            panic!("not a logger")
        };
        let odd = OsString::from_vec(vec![0xff]);
        assert_eq!(got.args, ["id".into(), "a b".into(), "flag".into(), "".into(), odd, OsString::new()]);
        assert_eq!(got.env, [("A".into(), "=".into())]);
        assert!(got.must_say && got.path == Path::new("/bin/l"));
    }

    #[test]
    fn what_is_refused_says_why() {
        for (text, want) in [
            ("http://x/y", "unknown STDIO scheme http: invalid argument"),
            ("file://host/x", "stdio file://host/x: the path is not absolute: invalid argument"),
            ("binary://", "stdio binary://: the path is not absolute: invalid argument"),
            ("file:///a%zz", "stdio file:///a%zz: an escape in it is wrong: invalid argument"),
            ("file:///a%2", "stdio file:///a%2: an escape in it is wrong: invalid argument"),
            ("file:///a%00b", "stdio file:///a%00b: an escape in it is wrong: invalid argument"),
        ] {
            assert_eq!(Target::parse(text).unwrap_err().to_string(), want);
        }
    }
}
