//! How long a diff takes, beside find(1) over the same upper. Run as root, with optimisation:
//! `cargo test --release --lib diff::tests::timing -- --ignored --nocapture`.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, setxattr};

use super::lab::open_all;
use crate::diff::{Options, compare};

const DIRS: usize = 100;
const FILES: usize = 1000;

/// As copied up by overlayfs where `copied`.
fn fill(root: &Path, bytes: &[u8], copied: bool) {
    let origin = |path: &Path| {
        if copied {
            setxattr(path, "trusted.overlay.origin", &[0x5a; 29], XattrFlags::empty()).unwrap();
        }
    };
    for d in 0..DIRS {
        let dir = root.join(format!("d{d}"));
        fs::create_dir(&dir).unwrap();
        origin(&dir);
        for f in 0..FILES {
            let path = dir.join(format!("some-file-{f}.txt"));
            File::create(&path).unwrap().write_all(bytes).unwrap();
            origin(&path);
        }
    }
}

fn best(mut what: impl FnMut()) -> Duration {
    let time = |what: &mut dyn FnMut()| {
        let start = Instant::now();
        what();
        start.elapsed()
    };
    (0..7).map(|_| time(&mut what)).min().unwrap_or_default()
}

#[test]
#[ignore = "a measurement"]
fn a_diff_beside_find() {
    let dir = tempfile::Builder::new().prefix("diff-").tempdir().unwrap();
    let at = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (lower, empty) = (at("lower"), at("empty"));
    fill(&lower, b"0123456789abcdef", false);
    for (name, below, bytes, copied) in [
        ("added", &empty, &b"0123456789abcdef"[..], false),
        ("other size", &lower, b"other", true),
        ("same size", &lower, b"0123456789abcdeF", true),
        ("as it was but for its time", &lower, b"0123456789abcdef", true),
    ] {
        let upper = at(name);
        fill(&upper, bytes, copied);
        let fds = open_all(&[upper.clone(), below.clone()]);
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let find = best(|| {
            let format = ["-printf", "%p %s %m %U %G %T@\n"];
            let output = std::process::Command::new("find").arg(&upper).args(format).output().unwrap();
            assert!(output.status.success());
        });
        let diff = best(|| {
            let diff = compare(&fds[..1], &fds[1..], &Options::default()).unwrap();
            assert!(diff.summary.changes() as usize >= DIRS * FILES);
        });
        let ratio = diff.as_secs_f64() / find.as_secs_f64();
        println!("{name}: find {find:?}, diff {diff:?}, {ratio:.2} x");
    }
}
