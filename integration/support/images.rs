//! The test images, built once by `hack/images.sh` and kept below target/images.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use super::Cmd;

/// One static busybox with all its applets.
pub const BUSYBOX: &str = "localhost/agentsbx-test/busybox:latest";
/// The same files, but by default it only waits.
pub const PAUSE: &str = "localhost/agentsbx-test/pause:latest";
/// Debian with python3, pip, git, gcc and make.
pub const DEBIAN: &str = "localhost/agentsbx-test/debian:latest";
/// The wheel that pip installs in tests; its module has `ANSWER = 42`.
pub const WHEEL: &str = "agentsbx_probe-1.0-py3-none-any.whl";

/// The repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn built(name: &'static str, once: &'static OnceLock<PathBuf>) -> &'static Path {
    once.get_or_init(|| {
        let script = repository().join("hack/images.sh");
        Cmd::new(script).arg(name).env_remove("AGENTSBX_IMAGES").limit(Duration::from_secs(900)).ok();
        repository().join("target/images")
    })
}

/// The busybox root filesystem as a plain tar.
pub fn busybox_tar() -> PathBuf {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    built("busybox", &ONCE).join("busybox.tar")
}

/// The busybox image as an archive that engines load.
pub fn busybox_archive() -> PathBuf {
    busybox_tar().with_file_name("busybox.image.tar")
}

/// The image of a pod's first container as an archive.
pub fn pause_archive() -> PathBuf {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    built("pause", &ONCE).join("pause.image.tar")
}

/// The Debian image as an archive that engines load.
pub fn debian_archive() -> PathBuf {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    built("debian", &ONCE).join("debian.image.tar")
}

/// The directory that has the wheel, to be mounted into a container.
pub fn wheel_dir() -> PathBuf {
    busybox_tar().parent().expect("a file in a directory").to_owned()
}

/// The root filesystem with what agents work with, as a directory: a lower, which nothing may write to.
pub fn work_rootfs() -> PathBuf {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    built("work", &ONCE).join("work/rootfs")
}
