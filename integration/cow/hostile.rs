//! Programs that do all they can to get at the host's directory, or to lead the runtime astray.

use std::time::Duration;

use super::{assert_sound, assert_untouched, below, bundle, layers, project, seen};
use crate::support::walk::{compare, walk};
use crate::support::{Env, wait_until};

/// Paths are renamed in a loop, in the first process, a shared exec and an exec of its own, while others are compared,
/// committed, undone and applied: nothing outside is touched, and what is applied is what was committed.
#[test]
fn renames_in_a_loop() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let outside = env.dir.join("outside");
    std::fs::create_dir(&outside).expect("mkdir");
    std::fs::write(outside.join("precious"), "x").expect("write");
    let outside_before = walk(&outside);
    let mut bundle = bundle(&env, &host);
    let churn = format!(
        "cd /work; mkdir -p swap real; ln -s {} evil; while :; do mv swap away; mv evil swap; mv swap evil; mv away swap; done 2>/dev/null",
        outside.display()
    );
    bundle.config["process"]["args"] = serde_json::json!(["sh", "-c", &churn]);
    bundle.start();
    let id = bundle.id.as_str();
    let shared = env
        .cmd(["exec", "--layer", "shared", id, "sh", "-c", &churn.replace("swap", "swap2").replace("evil", "evil2")])
        .spawn();
    let own = env.cmd(["exec", "--timeout", "0", id, "sh", "-c", &churn.replace("evil", "own")]).spawn();
    for n in 0..8 {
        bundle.sh(&format!("cd /work; echo {n} >src/one; mkdir -p made; echo {n} >made/{n}")).expect(0);
        env.run(["diff", id, "--json"]).expect(0);
        env.run(["apply", id, "--dry-run"]).expect(0);
    }
    env.ok(["rollback", id, "5"]);
    assert_untouched(&before, &host);
    env.ok(["apply", id, "/work/made"]);
    assert_eq!(std::fs::read_dir(host.join("made")).expect("list").count(), 5);
    assert_untouched(&outside_before, &outside);
    drop((shared, own));
    env.ok(["delete", "--force", id]);
    assert_untouched(&outside_before, &outside);
    assert_sound(&env);
}

/// With every capability and the host's devices at hand, unmounting and mounting over: the host's directory is not to be had
/// through the mount, and an exec that would not have its layer is refused.
#[test]
fn a_privileged_container_does_not_get_at_it_through_the_mount() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let mut bundle = bundle(&env, &host);
    for set in ["bounding", "effective", "permitted"] {
        bundle.config["process"]["capabilities"][set].as_array_mut().expect("a set").push("CAP_SYS_ADMIN".into());
    }
    bundle.start();
    let id = bundle.id.as_str();
    bundle.sh("umount /work; echo under >/work/under; ls /work").expect(0);
    bundle.sh("mount -t tmpfs none /work; echo over >/work/over; umount /work; mount -o remount,bind,rw /work; echo x >/work/x").expect(0);
    assert_untouched(&before, &host);
    bundle.sh_with(["--layer", "shared"], "mkdir -p /tmp/a; umount /work").expect(0);
    let said = bundle.sh("true").expect(255).both();
    assert!(said.contains("the container has moved or unmounted its copy-on-write mount"), "{said}");
    assert_untouched(&before, &host);
    env.ok(["delete", "--force", id]);
    assert_eq!(layers(&env), 0);
}

/// Marks of overlayfs that a program forges are its own attributes and no marks.
#[test]
fn forged_marks() {
    let env = Env::new();
    let host = project(&env);
    let before = walk(&host);
    let mut bundle = bundle(&env, &host);
    for set in ["bounding", "effective", "permitted"] {
        let list = bundle.config["process"]["capabilities"][set].as_array_mut().expect("a set");
        list.extend(["CAP_SYS_ADMIN".into(), "CAP_MKNOD".into()]);
    }
    bundle.start();
    let states = seen(&bundle);
    bundle.sh("cd /work; mknod white c 0 0; mv white src/one; : >'.wh.src'; true");
    let now = seen(&bundle);
    let told = super::told(&env.json(["diff", &bundle.id, "--json"]));
    assert_eq!(told.contains("deleted /work/src/one"), !now.contains_key(b"/work/src/one".as_slice()), "{told:?}");
    assert!(now.contains_key(b"/work/src/two".as_slice()));
    env.ok(["rollback", &bundle.id, "0"]);
    assert!(compare(&states, &seen(&bundle)).is_empty());
    assert!(compare(&below("/work", walk(&host)), &states).is_empty());
    assert_untouched(&before, &host);
    wait_until("soundness", Duration::from_secs(5), || env.run(["fsck"]).code == 0);
}
