//! The tools that agents use, in a Debian image: pip, git, gcc, each in an exec, under the layers.

use std::time::Duration;

use crate::support::docker::Container;
use crate::support::engines::engines;
use crate::support::images::{DEBIAN, WHEEL, wheel_dir};
use crate::support::walk::assert_same;

/// One exec installs a wheel, makes a repository with a commit, and compiles and runs a C program. The next sees all of
/// it, the diff is what a walk of the whole tree shows, and after `rollback 0` the next exec sees none.
#[test]
fn pip_git_and_gcc_in_one_exec() {
    engines().with_debian();
    let volume = format!("{}:/wheels:ro", wheel_dir().display());
    let container = Container::of(DEBIAN, ["--network", "none", "-v", &volume], &["sleep", "100000"]);
    let before = container.walk();
    let script = format!(
        r#"set -e
        pip install --no-index --break-system-packages --root-user-action=ignore /wheels/{WHEEL} >/dev/null
        git init -q /root/project
        cd /root/project
        printf '#include <stdio.h>\nint main(void) {{ puts("compiled"); return 0; }}\n' >main.c
        gcc -O2 -o main main.c
        ./main
        git add main.c
        git -c user.name=Test -c user.email=test@invalid commit -q -m first"#
    );
    let build = container.exec_with([], &["sh", "-c", &script]).limit(Duration::from_secs(120)).run().expect(0);
    assert_eq!(build.stdout, "compiled\n");
    let see = "python3 -c 'import agentsbx_probe; print(agentsbx_probe.ANSWER)'; \
               git -C /root/project log --format=%s; git -C /root/project status --porcelain; /root/project/main";
    let seen = || container.exec_with(["-e", "AGENTSBX_LAYER=discard"], &["sh", "-c", see]).run();
    assert_eq!(seen().stdout, "42\nfirst\n?? main\ncompiled\n");
    let after = container.walk();
    assert!(after.contains_key(&b"/root/project/main"[..]));
    assert_same(&container.diff([]), &before, &after);
    assert_same(&container.show_of_build(), &before, &after);

    container.agentsbx("rollback", ["0"]).ok();
    let output = seen();
    assert_eq!(output.stdout, "");
    assert!(output.stderr.contains("No module named 'agentsbx_probe'"), "{}", output.stderr);
    assert_same(&serde_json::json!({"changes": []}), &before, &container.walk());
    // And forward again.
    container.agentsbx("rollback", ["1"]).ok();
    assert_eq!(seen().stdout, "42\nfirst\n?? main\ncompiled\n");
    assert_same(&serde_json::json!({"changes": []}), &after, &container.walk());
}

impl Container {
    /// The result of the first exec that committed.
    fn show_of_build(&self) -> serde_json::Value {
        let results = self.results();
        results.into_iter().find(|r| r["disposition"] == "committed").expect("a committed exec")
    }
}

/// What only a program can make: extended attributes, sockets, hard links, sparse files, setuid, odd modes and times.
/// Told as a walk shows it, undone, and brought back.
#[test]
fn python_makes_every_kind_of_file() {
    engines().with_debian();
    let container = Container::of(DEBIAN, ["--network", "none"], &["sleep", "100000"]);
    let before = container.walk();
    let script = r#"
import os, socket
os.mkdir("/made")
os.chdir("/made")
def write(name, data=b"data"):
    with open(name, "wb") as f:
        f.write(data)
write("attributed"); os.setxattr("attributed", "user.key", b"value\0with\xff")
os.setxattr("/etc/issue", "user.on-a-lower-file", b"1")
s = socket.socket(socket.AF_UNIX); s.bind("socket")
write("linked"); os.link("linked", "link"); os.link("/etc/debian_version", "lower-link")
with open("sparse", "wb") as f:
    f.seek(50_000_000); f.write(b"end")
write("setuid"); os.chmod("setuid", 0o6755)
write("none"); os.chmod("none", 0)
write("old"); os.utime("old", ns=(1, 1_000_000_001))
write(b"\xff\xfe-not-utf8".decode("utf-8", "surrogateescape"))
write("x" * 255)
os.mkfifo("fifo", 0o640)
os.symlink("target/" * 400, "long-link")
os.mkdir("closed"); write("closed/inside"); os.chmod("closed", 0)
deep = "/made"
for n in range(60):
    deep += "/" + "d" * 60
    os.mkdir(deep)
write(deep + "/bottom")
os.chmod("/etc", 0o711); os.chown("/etc/issue.net", 12, 34)
"#;
    container.exec_with(["-i"], &["python3", "-"]).stdin(script).run().expect(0);
    let after = container.walk();
    assert_same(&container.diff([]), &before, &after);
    let unchanged = serde_json::json!({"changes": []});
    container.agentsbx("rollback", ["0"]).ok();
    assert_same(&unchanged, &before, &container.walk());
    container.agentsbx("rollback", ["1"]).ok();
    assert_same(&unchanged, &after, &container.walk());
}
