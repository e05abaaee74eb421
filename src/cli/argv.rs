//! Arguments as Go's flag packages take them, brought into the form that clap takes.
//!
//! `-flag`, `--flag=v`, `-flag v`, bools as `--flag=true`, flags after the positional. Values are joined with `=`, so that
//! one like `-1` is not taken for a flag. `exec`, `kill` and `ps` end their flags at the first positional, as in runc.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command};

/// Commands whose flags end at the first positional.
const FLAGS_FIRST: [&str; 3] = ["exec", "kill", "ps"];

/// Rewrites `argv` by what `root` defines; what it does not know stays, for clap to refuse.
pub fn normalise(argv: Vec<OsString>, root: &Command) -> Vec<OsString> {
    let mut rest = argv.into_iter();
    let mut out: Vec<OsString> = rest.next().into_iter().collect();
    let mut command = root;
    while let Some(arg) = rest.next() {
        let bytes = arg.as_bytes();
        if bytes == b"--" {
            out.push(arg);
            break;
        }
        if bytes.len() < 2 || bytes[0] != b'-' {
            let flags_end = FLAGS_FIRST.contains(&command.get_name());
            if let Some(sub) = command.get_subcommands().find(|c| OsStr::new(c.get_name()) == arg) {
                command = sub;
            } else if flags_end {
                out.push(OsString::from("--"));
                out.push(arg);
                break;
            }
            out.push(arg);
            continue;
        }
        let name = bytes.strip_prefix(b"--").unwrap_or(&bytes[1..]);
        let (name, value) = match name.iter().position(|b| *b == b'=') {
            Some(at) => (&name[..at], Some(&name[at + 1..])),
            None => (name, None),
        };
        let Some(flag) = find(command, name) else {
            out.push(arg);
            continue;
        };
        let long = match (flag.get_long(), flag.get_short()) {
            (None, Some(short)) => format!("-{short}"),
            (long, _) => format!("--{}", long.unwrap_or_default()),
        };
        if !matches!(flag.get_action(), ArgAction::Set | ArgAction::Append) {
            match value {
                None | Some(b"true" | b"True" | b"TRUE" | b"t" | b"T" | b"1") => out.push(long.into()),
                Some(b"false" | b"False" | b"FALSE" | b"f" | b"F" | b"0") => {}
                Some(_) => out.push(arg),
            }
            continue;
        }
        let value = value.map(<[u8]>::to_vec).or_else(|| rest.next().map(OsString::into_vec));
        let mut joined = long.into_bytes();
        if let Some(value) = value {
            joined.push(b'=');
            joined.extend(value);
        }
        out.push(OsString::from_vec(joined));
    }
    out.extend(rest);
    out
}

fn find<'a>(command: &'a Command, name: &[u8]) -> Option<&'a Arg> {
    let name = std::str::from_utf8(name).ok()?;
    command.get_arguments().filter(|a| !a.is_positional()).find(|a| {
        let mut chars = name.chars();
        let single = chars.next().filter(|_| chars.next().is_none());
        a.get_long() == Some(name) || (single.is_some() && a.get_short() == single)
    })
}

/// True if the first argument that is no flag of normalised `argv` is `command`.
pub fn names(argv: &[OsString], command: &str) -> bool {
    argv.iter().skip(1).find(|a| !a.as_bytes().starts_with(b"-")).is_some_and(|a| a == command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn go_style_becomes_clap_style() {
        let root = crate::cli::Cli::command();
        for (given, want) in [
            ("create -bundle B ID", "create --bundle=B ID"),
            ("create --bundle=B ID", "create --bundle=B ID"),
            ("create -b B -pid-file P ID", "create --bundle=B --pid-file=P ID"),
            ("create -b=B ID", "create --bundle=B ID"),
            ("create ID --bundle B", "create ID --bundle=B"),
            (
                "--root R --log=L -log-format json --rootless=true state ID",
                "--root=R --log=L --log-format=json --rootless=true state ID",
            ),
            ("--systemd-cgroup=true -debug state ID", "--systemd-cgroup --debug state ID"),
            ("--systemd-cgroup=false state ID", "state ID"),
            ("delete -force=1 ID", "delete --force ID"),
            ("delete -f ID", "delete --force ID"),
            ("delete ID --force", "delete ID --force"),
            ("kill --all ID -9", "kill --all -- ID -9"),
            ("kill -a ID 9", "kill --all -- ID 9"),
            ("ps --format json ID -ef", "ps --format=json -- ID -ef"),
            ("ps ID --format json", "ps -- ID --format json"),
            ("update --memory-swap -1 ID", "update --memory-swap=-1 ID"),
            ("update -r - ID", "update --resources=- ID"),
            ("run -no-subreaper --bundle B ID", "run --no-subreaper --bundle=B ID"),
            ("start -- --odd", "start -- --odd"),
            ("run -d --unknown ID", "run --detach --unknown ID"),
            ("diff C -name-only -z", "diff C --name-only --null"),
            ("-v", "--version"),
            ("create --bundle", "create --bundle"),
        ] {
            let argv = |s: &str| -> Vec<OsString> {
                std::iter::once("agentsbx").chain(s.split(' ')).map(OsString::from).collect()
            };
            assert_eq!(normalise(argv(given), &root), argv(want), "{given}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_pass_through() {
        let root = crate::cli::Cli::command();
        let odd = OsString::from_vec(b"--bundle=\xff".to_vec());
        let argv = vec![OsString::from("x"), OsString::from("create"), odd.clone()];
        assert_eq!(normalise(argv, &root)[2], odd);
    }

    #[test]
    fn the_command_is_found_behind_the_flags() {
        let argv: Vec<OsString> = ["x", "--root=exec", "state", "exec"].into_iter().map(OsString::from).collect();
        assert!(names(&argv, "state") && !names(&argv, "exec"));
    }
}
