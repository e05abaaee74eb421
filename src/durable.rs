//! Files are replaced as a whole: readers see the old content or the new, never a part.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Replaces `path` by a file with `bytes` and `mode` (umask applies), through a temporary file beside it and rename(2).
/// Not synced: for files that need not outlive a crash of the host (runtime state on tmpfs, pid files).
pub fn replace_unsynced(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut temp = std::ffi::OsString::from(".");
    temp.push(name);
    temp.push(format!(".{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let temp = path.with_file_name(temp);
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temp)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| rename(&temp, path));
    if written.is_err() {
        // The temporary file is ours alone; that it may be gone already does not matter.
        let _ = fs::remove_file(&temp);
    }
    written
}

#[allow(clippy::disallowed_methods)]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace_unsynced(&path, b"one", 0o600).unwrap();
        replace_unsynced(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
