//! The format of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

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
}
