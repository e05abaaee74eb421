//! The runtime's own program file, which a container could overwrite to have the host run its code (CVE-2019-5736):
//! played for real against a copy of the binary, dynamic and static.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::host::Canary;
use super::lab::{Asks, all_capabilities, hostile, outcomes, strict};
use crate::layering::sources;
use crate::support::bundle::Bundle;
use crate::support::images::repository;
use crate::support::{Cmd, Env, env, wait_until};

/// The loader that a dynamic program names.
const LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2";

/// The binaries to attack: the one under test, and the static one, where it is built of these sources.
fn binaries() -> Vec<PathBuf> {
    let mut all = vec![env::binary()];
    let built = repository().join("target/x86_64-unknown-linux-gnu/release/agentsbx");
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    match changed(&built) {
        Some(built_at) if sources(&repository().join("src")).iter().all(|file| changed(file) < Some(built_at)) => {
            all.push(built);
        }
        Some(_) => eprintln!("skipped: the static binary is older than the sources (hack/build-static.sh makes it)"),
        None => eprintln!("skipped: there is no static binary (hack/build-static.sh makes it)"),
    }
    all
}

/// An environment that runs a copy of `binary`: should an attack work, it is the copy that is lost.
fn with_copy(mut env: Env, binary: &Path) -> (Env, Vec<u8>) {
    env.binary = env.dir.join("agentsbx");
    fs::copy(binary, &env.binary).expect("copy");
    let content = fs::read(&env.binary).expect("read");
    (env, content)
}

#[track_caller]
fn assert_unchanged(env: &Env, before: &[u8]) {
    assert!(fs::read(&env.binary).expect("read") == before, "{} was overwritten", env.binary.display());
}

/// Without the profile, and with every capability that helps to look into other processes.
fn prying(env: &Env) -> Bundle<'_> {
    let mut bundle = hostile(env, Asks::Usual, ["/attack", "serve"]);
    for set in ["bounding", "effective", "permitted"] {
        let list = bundle.config["process"]["capabilities"][set].as_array_mut().expect("capabilities");
        list.extend(["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"].map(Into::into));
    }
    assert!(all_capabilities().iter().any(|name| name == "CAP_SYS_PTRACE"));
    bundle
}

/// A process that scans /proc in a loop while execs start; what it counted. It must have seen the runtime.
fn scan(bundle: &mut Bundle<'_>, canary: &Canary) -> BTreeMap<String, String> {
    let env = bundle.env;
    let file = canary.dir.join(&canary.name);
    bundle.config["process"]["args"] = serde_json::json!(["/attack", "scan", "3", file]);
    bundle.start();
    let out = bundle.dir.join("out");
    let said = |word: &str| fs::read_to_string(&out).is_ok_and(|text| text.contains(word));
    wait_until("the scanner", Duration::from_secs(10), || said("scanning"));
    let start = Instant::now();
    let mut execs = 0;
    // The scanner must not end before the last exec does.
    while start.elapsed() < Duration::from_secs(2) {
        let options: &[&str] = if execs % 2 == 0 { &[] } else { &["--layer", "shared"] };
        env.cmd(["exec"]).args(options).args([&bundle.id, "true"]).run().expect(0);
        execs += 1;
    }
    wait_until("the scanner's end", Duration::from_secs(10), || said("written"));
    let got = outcomes(&fs::read_to_string(&out).expect("read"));
    eprintln!("{execs} execs: {got:?}");
    assert!(execs > 3 && got["seen"] != "0", "the scanner saw no runtime in {execs} execs: {got:?}");
    got
}

/// CVE-2019-5736 by looking for the runtime in /proc while execs start.
#[test]
fn a_scanner_cannot_write_to_the_runtime() {
    for binary in binaries() {
        let (env, before) = with_copy(strict(), &binary);
        let got = scan(&mut hostile(&env, Asks::Everything, []), &Canary::new(&env));
        // Neither its program nor its descriptors, its root, its working directory.
        assert_eq!(
            (got["written"].as_str(), got["opened"].as_str(), got["followed"].as_str()),
            ("0", "0", "0"),
            "{got:?}"
        );
        assert_unchanged(&env, &before);
        // The second line of defence, when the profile that is the first is off.
        let (env, before) = with_copy(Env::with_config("profile = 'oci'\n"), &binary);
        let got = scan(&mut prying(&env), &Canary::new(&env));
        assert!(got["written"] == "0" && got["opened"] != "0", "{got:?}");
        assert_unchanged(&env, &before);
    }
}

/// CVE-2019-5736 by an image whose programs are the runtime's own, run inside, with a loader of the image's: the program
/// is opened while it is the runtime's, and written to when it is not any more.
#[test]
fn an_image_that_has_the_runtime_run_itself_cannot_write_to_it() {
    let mut opened = 0;
    for binary in binaries() {
        for profile in ["", "profile = 'oci'\n"] {
            let (env, before) = with_copy(Env::with_config(profile), &binary);
            let loader = env.dir.join("loader");
            let source = repository().join("integration/security/attack/loader.c");
            let flags = ["-static", "-nostdlib", "-fno-stack-protector", "-fno-builtin", "-O1", "-o"];
            Cmd::new("gcc").args(flags).arg(&loader).arg(source).ok();
            let mut bundle = prying(&env);
            let root = bundle.rootfs.clone();
            fs::create_dir_all(root.join("lib64")).expect("mkdir");
            fs::copy(&loader, root.join("lib64/ld-linux-x86-64.so.2")).expect("copy");
            for (name, argument) in [("plain", ""), ("listing", " list"), ("checking", " features")] {
                fs::write(root.join(name), format!("#!/proc/self/exe{argument}\n")).expect("write");
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).expect("chmod");
            }
            symlink("/proc/self/exe", root.join("link")).expect("symlink");
            bundle.start();
            for name in ["/plain", "/listing", "/checking", "/link", "/proc/self/exe"] {
                for options in [&[] as &[&str], &["--layer", "shared"], &["--user", "1000:1000"]] {
                    let output = env.cmd(["exec"]).args(options).args([bundle.id.as_str(), name]).run();
                    assert!(!output.both().contains("overwrite ok"), "{name} {options:?}: {}", output.both());
                    opened += output.stdout.matches("behind ").count();
                    assert_unchanged(&env, &before);
                }
                bundle.config["process"]["args"] = serde_json::json!([name]);
                let mut first = hostile(&env, Asks::Usual, [name]);
                Cmd::new("cp").args(["-a"]).arg(format!("{}/.", root.display())).arg(&first.rootfs).ok();
                first.config["process"]["args"] = serde_json::json!([name]);
                let output = first.run();
                assert!(!output.both().contains("overwrite ok"), "run {name}: {}", output.both());
                assert_unchanged(&env, &before);
            }
        }
    }
    // The attack did come as far as a descriptor of the runtime's program. A static one needs no loader.
    let dynamic = binaries().iter().any(|path| {
        let bytes = fs::read(path).expect("read");
        bytes[..bytes.len().min(4096)].windows(LOADER.len()).any(|word| word == LOADER)
    });
    assert!(opened > 0 || !dynamic, "no loader of the image was ever run in the runtime's place");
}
