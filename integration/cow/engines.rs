//! Copy-on-write mounts under Docker, by the configuration's default, and under podman, by annotation.

use super::{assert_untouched, below, project, told};
use crate::support::bundle::Bundle;
use crate::support::docker::Container;
use crate::support::engines::podman;
use crate::support::env::{binary, process};
use crate::support::walk::{compare, walk};
use crate::support::{Cmd, Env};

/// `docker run -v`, strict: programs run from the project, its changes are in layers, and applied on request. Docker's own
/// files, `/etc/hosts` and the like, can't be overlays and are read-only.
#[test]
fn docker_volumes_by_default() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let volume = format!("{}:/work", host.display());
    let container = Container::idle(["--runtime", "agentsbx-cow", "-v", &volume, "-w", "/work"]);
    let sh = |script: &str| container.sh(script);
    assert_eq!(sh("pwd; cat src/one; ./run && echo ran; cat /etc/hostname | wc -l").ok(), "/work\none\nran\n1");
    sh("echo docker >new; echo docker >>src/one; rm -r empty; printf '#!/bin/sh\\necho mine\\n' >prog; chmod 755 prog")
        .expect(0);
    let want = ["added /work/new", "added /work/prog", "deleted /work/empty", "modified /work/src/one"];
    assert_eq!(told(&container.show()), want.map(String::from).into());
    assert_eq!(sh("./prog; cat new").ok(), "mine\ndocker");
    assert!(sh("echo x >/etc/hosts").code != 0);
    assert_untouched(&before, &host);
    container.agentsbx("rollback", ["0"]).ok();
    assert_eq!(sh("ls new 2>&1 | wc -l; cat src/one").ok(), "1\none");
    container.agentsbx("rollback", ["1"]).ok();
    assert_untouched(&before, &host);
    container.agentsbx("apply", ["/work"]).ok();
    assert_eq!(std::fs::read_to_string(host.join("new")).expect("read"), "docker\n");
    assert!(!host.join("empty").exists());
    let after = walk(&host);
    container.engines.docker(["restart", "--time", "0", &container.id]).ok();
    assert_eq!(sh("cat new src/one").ok(), "docker\none\ndocker");
    drop(container);
    assert_untouched(&after, &host);
}

/// `podman run -v --annotation`.
#[test]
fn podman_volumes_by_annotation() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let volume = format!("{}:/work", host.display());
    let podman = podman();
    // podman reads the flag's value as a line of CSV.
    let note = r#""dev.agentsbx.mounts={""/work"":""cow""}""#;
    let id = podman.start(["-v", &volume, "--annotation", note], &["sleep", "100000"]);
    let sh = |script: &str| podman.cmd(["exec", &id, "sh", "-c", script]).run();
    sh("echo podman >/work/new; rm /work/run").expect(0);
    assert_eq!(sh("cat /work/new; ls /work/run 2>&1 | grep -c such").ok(), "podman\n1");
    assert_untouched(&before, &host);
    let agentsbx = |args: &[&str]| {
        Cmd::new(binary()).env("AGENTSBX_CONFIG", &process().config).arg("--store").arg(&podman.store).args(args).ok()
    };
    agentsbx(&["apply", &id]);
    assert_eq!(std::fs::read_to_string(host.join("new")).expect("read"), "podman\n");
    assert!(!host.join("run").exists());
    podman.run(["rm", "--force", "--time", "0", &id]).ok();
}

/// Strict, without an engine: the annotation is enough, and it is no loosening.
#[test]
fn strict_containers() {
    let env = Env::with_config("profile = 'strict'\n");
    let host = project(&env);
    let before = walk(&host);
    let mut bundle = super::bundle(&env, &host);
    std::fs::create_dir(bundle.rootfs.join("real")).expect("mkdir");
    std::os::unix::fs::symlink("real", bundle.rootfs.join("link")).expect("symlink");
    let mounts = bundle.config["mounts"].as_array_mut().expect("mounts");
    mounts.last_mut().expect("a mount")["destination"] = "/link/work".into();
    let bundle: Bundle<'_> = bundle.annotate("dev.agentsbx.mounts", r#"{"/link/work": "cow"}"#);
    bundle.start();
    bundle.sh("cd /link/work; echo x >new; echo y >>src/one; ! ./run 2>/dev/null").expect(0);
    let want = ["added /real/work/new", "modified /real/work/src/one"];
    assert_eq!(told(&bundle.show()), want.map(String::from).into());
    let flags = "grep ' /real/work ' /proc/self/mountinfo | cut -d' ' -f6";
    assert!(bundle.sh(flags).ok().starts_with("rw,nosuid,nodev,noexec"), "{}", bundle.sh(flags).ok());
    assert_untouched(&before, &host);
    env.ok(["apply", &bundle.id]);
    assert_eq!(std::fs::read_to_string(host.join("new")).expect("read"), "x\n");
    assert!(!compare(&below("/work", before), &below("/work", walk(&host))).is_empty());
}
