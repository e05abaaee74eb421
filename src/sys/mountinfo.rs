//! The format of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A path field with the kernel's octal escapes (of space, tab, newline and backslash) undone.
pub fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| byte == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(digits) = octal {
            out.push(digits.iter().fold(0u32, |n, d| n * 8 + u32::from(d - b'0')) as u8);
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The mounts below the directory `top`: where, and the filesystem's type. What is mounted on `top` itself is none of them.
pub fn below(mountinfo: &[u8], top: &Path) -> Vec<(PathBuf, String)> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|b| *b == b' ');
        let point = fields.nth(4).map(unescape).filter(|point| point != top && point.starts_with(top))?;
        // Optional fields end with a hyphen, which none of them is.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        Some((point, String::from_utf8_lossy(kind).into_owned()))
    };
    mountinfo.split(|b| *b == b'\n').filter_map(mount).collect()
}

/// The filesystem's type of the mount with this id.
pub fn kind_of(mountinfo: &[u8], id: u64) -> Option<String> {
    let id = id.to_string();
    let mut lines = mountinfo.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b' '));
    let mut fields = lines.find_map(|mut fields| (fields.next() == Some(id.as_bytes())).then_some(fields))?;
    // Optional fields end with a hyphen, which none of those before is.
    fields.find(|field| *field == b"-")?;
    fields.next().map(|kind| String::from_utf8_lossy(kind).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn escapes() {
        for (raw, want) in [
            (&b"/a\\040b"[..], &b"/a b"[..]),
            (b"\\134", b"\\"),
            (b"\\9", b"\\9"),
            (b"a\\04", b"a\\04"),
            (b"\\012", b"\n"),
        ] {
            assert_eq!(unescape(raw).as_os_str().as_bytes(), want);
        }
    }

    #[test]
    fn what_is_mounted_below() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            23 22 8:2 / /srv/a\\040b rw - ext4 /dev/sdb rw\n\
            24 23 0:6 / /srv/a\\040b/proc rw,nosuid shared:4 master:1 - proc proc rw\n\
            25 23 0:7 / /srv/a\\040b/x/y rw - fuse.x - rw\n\
            26 22 0:7 / /srv/a\\040bc rw - sysfs - rw\n\n";
        let want = [("/srv/a b/proc", "proc"), ("/srv/a b/x/y", "fuse.x")];
        assert_eq!(below(text, Path::new("/srv/a b")), want.map(|(path, kind)| (path.into(), kind.to_owned())));
        assert_eq!(below(text, Path::new("/")).len(), 4);
        assert!(below(text, Path::new("/srv/a")).is_empty());
        let kinds = [24, 25, 2, 27].map(|id| kind_of(text, id));
        assert_eq!(kinds.each_ref().map(Option::as_deref), [Some("proc"), Some("fuse.x"), None, None]);
    }
}
