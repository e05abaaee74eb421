//! The kinds of failure, and the one table that maps a kind to what callers see of it.
//!
//! Every module has an error enum of its own, with the operation and its object in each variant; what they share is
//! [`Kind`], by which the front doors choose an exit code, a shim status and wording that engines match on.

/// What sort of failure an error is, whatever module it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The thing named does not exist (container, exec, generation, layer, file).
    NotFound,
    /// The thing to be made exists already.
    AlreadyExists,
    /// The caller's input is wrong: flags, JSON, names, annotations.
    InvalidInput,
    /// The object is in a state that does not allow the operation.
    WrongState,
    /// A commit would lose somebody's update.
    Conflict,
    /// Refused by policy or permissions.
    Denied,
    /// The host or kernel lacks what is needed.
    Unsupported,
    /// No space, no quota, no descriptors or no memory left.
    Exhausted,
    /// Data that we wrote, or were given, is damaged.
    Corrupt,
    /// The operating system refused a call.
    System,
}

/// An error that knows its kind.
pub trait Classify: std::error::Error {
    /// The failure's kind.
    fn kind(&self) -> Kind;
}

impl Kind {
    /// The exit code of a command other than `exec` and `run` that failed with this kind (runc: always 1).
    pub fn exit_code(self) -> u8 {
        1
    }

    /// The kind that an `errno` value stands for.
    pub fn of_errno(errno: i32) -> Kind {
        match errno {
            libc::ENOENT | libc::ESRCH => Kind::NotFound,
            libc::EEXIST => Kind::AlreadyExists,
            libc::EACCES | libc::EPERM | libc::EROFS => Kind::Denied,
            libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::ENOMEM => Kind::Exhausted,
            libc::ENOSYS | libc::EOPNOTSUPP => Kind::Unsupported,
            _ => Kind::System,
        }
    }

    /// The kind of an I/O error.
    pub fn of_io(err: &std::io::Error) -> Kind {
        err.raw_os_error().map_or(Kind::System, Kind::of_errno)
    }
}

/// An error with the chain of its causes on one line, causes that repeat what was said left out.
pub fn chain(err: &(dyn std::error::Error + 'static)) -> String {
    let mut text = err.to_string();
    let mut next = err.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    text
}

/// The beginning of a text, at most `max` bytes of it; `…` says that there was more.
pub fn beginning(text: &str, max: usize) -> String {
    match text.floor_char_boundary(max) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// The text of an `errno` as C and Go programs print it: lower case, without the number.
pub fn errno_text(err: &std::io::Error) -> String {
    let text = err.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|c| c.to_ascii_lowercase().to_string() + chars.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_cut_between_characters() {
        assert_eq!(beginning("short", 5), "short");
        assert_eq!(beginning("longer", 5), "longe…");
        assert_eq!(beginning("öö", 3), "ö…");
        assert_eq!(beginning("ö", 1), "…");
        assert_eq!(beginning("", 0), "");
    }

    #[test]
    fn errno_kinds() {
        for (errno, kind) in [
            (libc::ENOENT, Kind::NotFound),
            (libc::ENOSPC, Kind::Exhausted),
            (libc::EROFS, Kind::Denied),
            (libc::ENOSYS, Kind::Unsupported),
            (libc::EIO, Kind::System),
        ] {
            assert_eq!(Kind::of_errno(errno), kind, "errno {errno}");
        }
    }

    #[test]
    fn errno_words() {
        for (errno, want) in [
            (libc::ENOENT, "no such file or directory"),
            (libc::EACCES, "permission denied"),
            (libc::ENOTDIR, "not a directory"),
            (libc::EPERM, "operation not permitted"),
            (libc::ENOEXEC, "exec format error"),
            (libc::E2BIG, "argument list too long"),
            (libc::ESRCH, "no such process"),
        ] {
            assert_eq!(errno_text(&std::io::Error::from_raw_os_error(errno)), want);
        }
    }

    #[test]
    fn chain_does_not_repeat_the_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("open /x: {0}")]
        struct Outer(#[source] std::io::Error);
        let err = Outer(std::io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(chain(&err), "open /x: No such file or directory (os error 2)");
    }
}
