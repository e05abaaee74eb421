//! Images made by somebody who knows where a runtime reads and mounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use super::host::{Canary, mounts_below};
use super::lab::{Asks, hostile, outcomes, strict};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, Output, env};

/// The longest that a small command may take, whatever the image has in its files: far less than reading 1 GB takes.
const SHORT: Duration = Duration::from_secs(6);

fn clear(path: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
}

/// A way to spoil a file of the image.
type Spoil = (&'static str, fn(&Path));

const FILES: &[Spoil] = &[
    ("a link to /dev/zero", |path| symlink("/dev/zero", path).expect("symlink")),
    ("a link to the environment", |path| symlink("/proc/self/environ", path).expect("symlink")),
    ("a link to itself", |path| symlink("passwd", path).expect("symlink")),
    ("a link out", |path| symlink("../../../../../../../../etc/passwd", path).expect("symlink")),
    ("a pipe", |path| drop(Cmd::new("mkfifo").arg(path).ok())),
    ("a directory", |path| fs::create_dir(path).expect("mkdir")),
    ("a gigabyte", |path| fs::File::create(path).expect("create").set_len(1 << 30).expect("truncate")),
    ("a line without end", |path| fs::write(path, "x".repeat(4 << 20)).expect("write")),
    ("no text", |path| fs::write(path, [0xff, 0x00, b':', b'\n'].repeat(1000)).expect("write")),
];

/// `/etc/passwd` and `/etc/group` of an image may be anything: a user's home and groups are looked up in bounded time.
#[test]
fn user_databases_may_be_anything() {
    let env = strict();
    let mut bundle = hostile(&env, Asks::Usual, ["sleep", "100000"]);
    bundle.config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
    for (what, spoil) in FILES {
        for name in ["passwd", "group"] {
            let path = bundle.rootfs.join("etc").join(name);
            clear(&path);
            spoil(&path);
        }
        bundle.start();
        let output = env.cmd(["exec", &bundle.id, "sh", "-c", "echo ${HOME:-none}"]).run().expect(0);
        assert!(output.took < SHORT, "{what}: {:?}", output.took);
        assert!(output.stdout.len() < 4096, "{what}: {}", output.stdout.len());
        env.ok(["delete", "--force", &bundle.id]);
    }
}

/// What may not be the program: answered, not waited for.
#[test]
fn programs_may_be_anything() {
    let env = strict();
    let bundle = hostile(&env, Asks::Usual, ["sleep", "100000"]);
    let root = bundle.rootfs.clone();
    Cmd::new("mkfifo").arg(root.join("pipe")).ok();
    symlink("/dev/zero", root.join("zero")).expect("symlink");
    symlink("/loop", root.join("loop")).expect("symlink");
    fs::File::create(root.join("sparse")).expect("create").set_len(1 << 30).expect("truncate");
    fs::write(root.join("itself"), "#!/itself\n").expect("write");
    fs::write(root.join("long"), format!("#!{}\n", "/x".repeat(100_000))).expect("write");
    fs::write(root.join("elf"), [b"\x7fELF\x02\x01\x01" as &[u8], &[0xff; 4096]].concat()).expect("write");
    Cmd::new("chmod").args(["755"]).args(["sparse", "itself", "long", "elf", "pipe"].map(|name| root.join(name))).ok();
    bundle.start();
    // The same files for a container that is not running.
    let mut first = hostile(&env, Asks::Usual, []);
    fs::remove_dir_all(&first.rootfs).expect("remove");
    Cmd::new("cp").arg("-a").arg(&root).arg(&first.rootfs).ok();
    for program in ["/pipe", "/zero", "/loop", "/sparse", "/itself", "/long", "/elf", "/", "/image-loop", "/image-mem"]
    {
        let output = env.cmd(["exec", &bundle.id, program]).run();
        assert!(output.code != 0 && output.took < SHORT, "{program}: {} {:?}", output.both(), output.took);
        first.config["process"]["args"] = json!([program]);
        let output = first.run();
        assert!(output.code != 0 && output.took < SHORT, "run {program}: {} {:?}", output.both(), output.took);
    }
}

/// Runs the tables of the kernel's files in a container that could be made; refused at creation is as good.
#[track_caller]
fn assert_contained(what: &str, canary: &Canary, output: &Output) -> bool {
    canary.assert_untouched(&[&output.both()]);
    if output.code != 0 {
        return false;
    }
    let got = outcomes(&output.stdout);
    assert!(got.len() > 25, "{what}: {}", output.both());
    for (name, outcome) in got {
        assert!(
            outcome != "ok" || !(name.starts_with("write:") || name.starts_with("read:")),
            "{what}: {name} {outcome}"
        );
    }
    true
}

/// Puts a link in the place of a file of the image while it is alive.
struct Link {
    path: PathBuf,
    aside: PathBuf,
}

impl Link {
    fn new(path: PathBuf, target: &str) -> Link {
        let aside = path.with_extension("aside");
        let _ = fs::rename(&path, &aside);
        symlink(target, &path).expect("symlink");
        Link { path, aside }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        clear(&self.path);
        let _ = fs::rename(&self.aside, &self.path);
    }
}

/// Where links lead is no matter of the profile: what libcontainer and the runtime do must hold without it too.
const PROFILES: [&str; 2] = ["", "profile = 'oci'\n"];

/// A container that plays the tables of the kernel's files, by a shell of its own.
fn reporting(env: &Env) -> Bundle<'_> {
    hostile(env, Asks::Usual, ["sh", "-c", "/attack tables write: && /attack tables read:"])
}

/// `/proc`, `/sys`, `/dev` as links, in the image: what the runtime mounts and masks lies inside, or the container is not
/// made.
#[test]
fn mount_points_may_be_links() {
    PROFILES.into_iter().for_each(mount_points);
}

fn mount_points(profile: &str) {
    let env = Env::with_config(profile);
    let canary = Canary::new(&env);
    let host = canary.dir.display().to_string();
    let up = format!("../../../../../../../../../..{host}");
    let bundle = reporting(&env);
    let before = mounts_below(&env.dir);
    let (mut made, mut tried) = (0, 0);
    for place in ["proc", "sys", "dev", "etc"] {
        for target in ["etc", "/", "..", "/tmp/x", "/proc/self/root", host.as_str(), up.as_str(), "/proc"] {
            let _link = Link::new(bundle.rootfs.join(place), target);
            tried += 1;
            made += usize::from(assert_contained(&format!("{place} -> {target}"), &canary, &bundle.run()));
            assert_eq!(mounts_below(&env.dir), before, "{place} -> {target}");
        }
    }
    assert!(made > 0 && made < tried, "{made} of {tried} were made");
}

/// CVE-2025-31133 and CVE-2025-52565: what the runtime takes for its own device (`/dev/null`, with which files are masked,
/// and `/dev/console`) is the image's link to a file of the kernel.
#[test]
fn devices_may_be_links() {
    PROFILES.into_iter().for_each(devices);
}

fn devices(profile: &str) {
    let env = Env::with_config(profile);
    let canary = Canary::new(&env);
    let file = canary.dir.join(&canary.name).display().to_string();
    let mut bundle = reporting(&env);
    // The image's own /dev, as there is none mounted on it.
    bundle.config["mounts"].as_array_mut().expect("mounts").retain(|mount| mount["destination"] != "/dev");
    let mut made = 0;
    for name in ["null", "console", "ptmx", "pts", "fd", "tty", "zero", "shm"] {
        for target in ["/proc/sys/kernel/core_pattern", "../proc/sysrq-trigger", "/", file.as_str()] {
            let _link = Link::new(bundle.rootfs.join("dev").join(name), target);
            for terminal in [false, true] {
                if terminal && !["console", "ptmx", "pts"].contains(&name) {
                    continue;
                }
                bundle.config["process"]["terminal"] = terminal.into();
                bundle.write();
                let run = env.cmd(["run", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
                let mut output = if terminal { run.on_terminal() } else { run }.run();
                output.stdout = output.stdout.replace('\r', "");
                let what = format!("/dev/{name} -> {target}, terminal {terminal}");
                made += usize::from(assert_contained(&what, &canary, &output));
            }
        }
    }
    assert!(made > 5, "{made} containers were made");
}

/// A volume's destination, a masked and a read-only path that are links of the image: they end inside.
#[test]
fn destinations_may_be_links() {
    PROFILES.into_iter().for_each(destinations);
}

fn destinations(profile: &str) {
    let env = Env::with_config(profile);
    let canary = Canary::new(&env);
    let volume = env.dir.join(env::unique("volume"));
    fs::create_dir_all(&volume).expect("mkdir");
    fs::write(volume.join("of-the-volume"), "x\n").expect("write");
    let host = canary.dir.display().to_string();
    let up = format!("../../../../../../../../../..{host}");
    let mut bundle = reporting(&env);
    let before = mounts_below(&env.dir);
    let plain = bundle.config.clone();
    let mut made = 0;
    for target in [host.as_str(), up.as_str(), "/proc/self/root", "/proc/1/root", "..", "/", "/proc/sys"] {
        let _link = Link::new(bundle.rootfs.join("link"), target);
        for list in ["mounts", "maskedPaths", "readonlyPaths"] {
            bundle.config = plain.clone();
            match list {
                "mounts" => bundle.config["mounts"].as_array_mut().expect("mounts").push(json!(
                    {"destination": "/link", "type": "bind", "source": volume, "options": ["rbind", "rw"]}
                )),
                _ => bundle.config["linux"][list].as_array_mut().expect("paths").push("/link".into()),
            }
            made += usize::from(assert_contained(&format!("{list}: /link -> {target}"), &canary, &bundle.run()));
            assert_eq!(mounts_below(&env.dir), before, "{list}: /link -> {target}");
            assert!(!canary.dir.join("of-the-volume").exists());
        }
    }
    assert!(made > 5, "{made} containers were made");
}
