//! passwd(5): a user's home or name. Parsed here, since the C library's lookup would load libraries that a container
//! controls.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags};

/// Largest part of the file that is looked at, in bytes.
const PASSWD_MAX: u64 = 1 << 20;

/// Opens the passwd(5) file of this process's root. An image can have anything there, so only what is a regular file is
/// opened for reading: to open a FIFO waits for a writer, and a device may do something when it is opened.
///
/// # Errors
/// `InvalidInput` for what is no regular file.
pub fn open() -> io::Result<File> {
    // Not blocking, and followed by a look: what asks is the container's own user by now, who could open it as well.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/etc/passwd", flags, Mode::empty())?;
    require_regular(&file)?;
    Ok(file.into())
}

/// The file that `path`, opened with `O_PATH`, is, for reading; the same errors.
pub fn reopen(path: impl AsFd) -> io::Result<File> {
    require_regular(&path)?;
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&path.as_fd()));
    Ok(rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn require_regular(file: impl AsFd) -> io::Result<()> {
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The name of `uid` by the first matching line of a passwd(5) file.
pub fn name(file: impl Read, uid: u32) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(PASSWD_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    }))
}

/// The home of `uid` by the first matching line of a passwd(5) file; `None` if it has none.
pub fn home(file: impl Read, uid: u32) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(PASSWD_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).lines().find_map(|line| {
        let mut fields = line.split(':');
        let id = fields.nth(2)?;
        let home = fields.nth(2)?;
        (id.parse() == Ok(uid) && !home.is_empty()).then(|| home.to_owned())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes() {
        let text: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nbad\nnone:x:5:5:::\nu:x:1000:1000:,,,:/home/u:/bin/sh\n";
        for (uid, want) in [(0, Some("/root")), (1000, Some("/home/u")), (5, None), (7, None)] {
            assert_eq!(home(text, uid).unwrap().as_deref(), want, "uid {uid}");
        }
        assert_eq!(name(text, 1000).unwrap().as_deref(), Some("u"));
        assert_eq!(name(text, 9).unwrap(), None);
    }

    /// A device of the image's was opened as the host's root, and a FIFO waited for somebody to write.
    #[test]
    fn only_a_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let path = |at: &std::path::Path| rustix::fs::open(at, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for at in ["/dev/null".as_ref(), fifo.as_path(), dir.path()] {
            assert_eq!(reopen(path(at)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", at.display());
        }
        let file = dir.path().join("passwd");
        crate::durable::replace_unsynced(&file, b"u:x:7:7::/u:\n", 0o600).unwrap();
        assert_eq!(home(reopen(path(&file)).unwrap(), 7).unwrap().as_deref(), Some("/u"));
    }
}
