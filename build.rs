//! Gives the linker the runtime's entry point (src/sys/start.rs), where there is one for the architecture, and the program the
//! commit that it is built of. The shim enters no container and begins as any program.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that has the commit: who builds from what is no repository can set it.
const COMMIT: &str = "AGENTSBX_COMMIT";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|list| list.split(',').any(|one| one == value));
    // Code that is not optimised calls memcpy, which a static program has not chosen yet there. Without the entry point
    // `exe::protect` does the same.
    let too_early = is("CARGO_CFG_TARGET_FEATURE", "crt-static") && is("OPT_LEVEL", "0");
    if is("CARGO_CFG_TARGET_ARCH", "x86_64") && !too_early {
        println!("cargo::rustc-link-arg-bin=agentsbx=-Wl,-e,agentsbx_start");
    }
    println!("cargo::rerun-if-env-changed={COMMIT}");
    if let Some(commit) = env::var(COMMIT).ok().filter(|commit| !commit.is_empty()).or_else(head) {
        println!("cargo::rustc-env={COMMIT}={commit}");
    }
}

/// HEAD, if this is a repository of our own, and not a copy in somebody else's. It is asked for again only when HEAD has moved:
/// all that is built depends on it.
fn head() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let ours = env::var_os("CARGO_MANIFEST_DIR")?;
    if Path::new(&top).canonicalize().ok()? != Path::new(&ours).canonicalize().ok()? {
        return None;
    }
    let file = |name: &str| git(&["rev-parse", "--git-path", name]).map(PathBuf::from).filter(|path| path.exists());
    // HEAD names the branch; its log has a line for each move. Without the log there is the branch itself, in one of two places.
    let log = file("logs/HEAD");
    let moves = match git(&["symbolic-ref", "--quiet", "HEAD"]) {
        Some(branch) if log.is_none() => [file(&branch), file("packed-refs")],
        _ => [log, None],
    };
    for path in moves.into_iter().chain([file("HEAD")]).flatten() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    git(&["rev-parse", "--short", "HEAD"])
}

/// What git says, if there is one, on one line. Of the repository here: in a hook of git's the variables name that one's.
fn git(args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    let output = git.args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
