//! What containerd writes on the shim's command line: flags in Go's style, then a word that says what to do.

use std::ffi::OsString;
use std::path::PathBuf;

use super::ShimError;

/// What the shim is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Start the process that serves a group of containers, or find it, and print its address.
    Start,
    /// Clean up after a shim that is gone.
    Delete,
    /// Serve on the socket that is this process's standard input: how `start` runs the program again.
    Serve,
    /// Describe the runtime.
    Info,
    /// Print the version.
    Version,
    /// Print how to call it.
    Help,
}

/// The command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// What to do.
    pub action: Action,
    /// containerd's namespace.
    pub namespace: String,
    /// The container's id; for [`Action::Serve`] that of the container which the process was started for.
    pub id: String,
    /// Where containerd listens for gRPC.
    pub address: String,
    /// containerd's program, by which shims of old told events. Not used.
    pub publish_binary: String,
    /// The bundle, where it is not the working directory.
    pub bundle: Option<PathBuf>,
    /// The path of the socket to serve; for [`Action::Serve`] only.
    pub socket: Option<PathBuf>,
    /// Log more.
    pub debug: bool,
}

/// How the shim is called.
pub const USAGE: &str = "\
Usage: containerd-shim-agentsbx-v1 [flags] start|delete
containerd calls it; see `runtime_type = \"io.containerd.agentsbx.v1\"`.
  -address string         where containerd listens
  -bundle string          the bundle, if it is not the working directory
  -debug                  log more
  -id string              the container's id
  -info                   read options from stdin, write what the runtime can do to stdout, and exit
  -namespace string       the container's namespace
  -publish-binary string  accepted and not used
  -socket string          given by `start` to the process that serves
  -v, -version            show the version and exit
";

/// Reads the arguments after the program's name.
///
/// As Go's `flag` package does: one hyphen or two, `-x=v` or `-x v`, `-x` alone for a switch, and no flags after the
/// first word that is none.
///
/// # Errors
/// [`ShimError::Invalid`] for an unknown flag or action, and for what an action needs and has not got.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Args, ShimError> {
    let mut args = Args {
        action: Action::Serve,
        namespace: String::new(),
        id: String::new(),
        address: String::new(),
        publish_binary: String::new(),
        bundle: None,
        socket: None,
        debug: false,
    };
    let (mut version, mut info, mut help) = (false, false, false);
    let mut words = argv.into_iter().map(text);
    let mut word = words.next().transpose()?;
    while let Some(flag) = word.as_deref().filter(|word| word.len() > 1 && word.starts_with('-')) {
        if flag == "--" {
            word = words.next().transpose()?;
            break;
        }
        let name = flag.strip_prefix("--").or_else(|| flag.strip_prefix('-')).unwrap_or(flag);
        let (name, given) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value.to_owned())));
        let mut value = |given: Option<String>| match given {
            Some(value) => Ok(value),
            None => words.next().unwrap_or_else(|| Err(ShimError::Invalid(format!("flag needs an argument: -{name}")))),
        };
        match name {
            "namespace" => args.namespace = value(given)?,
            "id" => args.id = value(given)?,
            "address" => args.address = value(given)?,
            "publish-binary" => args.publish_binary = value(given)?,
            "bundle" => args.bundle = Some(value(given)?).filter(|path| !path.is_empty()).map(PathBuf::from),
            "socket" => args.socket = Some(value(given)?).filter(|path| !path.is_empty()).map(PathBuf::from),
            "debug" => args.debug = switch(name, given.as_deref())?,
            "v" | "version" => version = switch(name, given.as_deref())?,
            "info" => info = switch(name, given.as_deref())?,
            "h" | "help" => help = switch(name, given.as_deref())?,
            _ => return Err(ShimError::Invalid(format!("flag provided but not defined: -{name}"))),
        }
        word = words.next().transpose()?;
    }
    args.action = match word.as_deref() {
        _ if help => Action::Help,
        _ if version => Action::Version,
        _ if info => Action::Info,
        Some("start") => Action::Start,
        Some("delete") => Action::Delete,
        None => Action::Serve,
        Some(other) => return Err(ShimError::Invalid(format!("action {other:?}: it is start or delete"))),
    };
    args.check()?;
    Ok(args)
}

impl Args {
    fn check(&self) -> Result<(), ShimError> {
        if matches!(self.action, Action::Help | Action::Version | Action::Info) {
            return Ok(());
        }
        if self.action == Action::Serve && self.socket.is_none() {
            return Err(ShimError::Invalid("no action given: it is start or delete".into()));
        }
        for (flag, value) in [("namespace", &self.namespace), ("id", &self.id)] {
            // Both become parts of paths.
            if value.is_empty() || value.contains(['/', '\0']) || value.starts_with('.') {
                return Err(ShimError::Invalid(format!("-{flag} {value:?}: not a name")));
            }
        }
        Ok(())
    }
}

fn text(word: OsString) -> Result<String, ShimError> {
    word.into_string().map_err(|word| ShimError::Invalid(format!("argument {word:?}: not UTF-8")))
}

/// The values that Go takes for a switch.
fn switch(name: &str, given: Option<&str>) -> Result<bool, ShimError> {
    match given {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(ShimError::Invalid(format!("-{name}={other}: not true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Args, String> {
        parse(line.split(' ').filter(|w| !w.is_empty()).map(OsString::from)).map_err(|err| err.to_string())
    }

    #[test]
    fn as_containerd_calls_it() {
        let args = of("-namespace k8s.io -address /run/c.sock -publish-binary /usr/bin/containerd -id c1 \
                       -debug -bundle /b start")
        .unwrap();
        assert_eq!(
            args,
            Args {
                action: Action::Start,
                namespace: "k8s.io".into(),
                id: "c1".into(),
                address: "/run/c.sock".into(),
                publish_binary: "/usr/bin/containerd".into(),
                bundle: Some("/b".into()),
                socket: None,
                debug: true,
            }
        );
        let same = of("--namespace=k8s.io -address=/run/c.sock --publish-binary /usr/bin/containerd -id=c1 \
                       --debug=true --bundle=/b -- start");
        assert_eq!(same.unwrap(), args);
    }

    #[test]
    fn actions() {
        for (line, want) in [
            ("-v", Action::Version),
            ("-version=true", Action::Version),
            ("-info", Action::Info),
            ("-namespace n -id i -info start", Action::Info),
            ("-h", Action::Help),
            ("-namespace n -id i delete", Action::Delete),
            ("-namespace n -id i -v=false start", Action::Start),
            ("-namespace n -id i -socket /s", Action::Serve),
            // A flag after the action is none.
            ("-namespace n -id i start -nonsense", Action::Start),
        ] {
            assert_eq!(of(line).unwrap().action, want, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, want) in [
            ("-namespace n -id i -bogus start", "flag provided but not defined: -bogus: invalid argument"),
            ("-id", "flag needs an argument: -id: invalid argument"),
            ("-debug=maybe start", "-debug=maybe: not true or false: invalid argument"),
            ("-namespace n -id i stop", "action \"stop\": it is start or delete: invalid argument"),
            ("-namespace n start", "-id \"\": not a name: invalid argument"),
            ("-namespace n -id ../x start", "-id \"../x\": not a name: invalid argument"),
            ("-namespace n -id i", "no action given: it is start or delete: invalid argument"),
        ] {
            assert_eq!(of(line).unwrap_err(), want, "{line}");
        }
    }
}
