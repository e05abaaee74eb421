//! Whether a user could get to a path of the host: by the modes of the directories on the way.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// True if user `uid` with group `gid` and no other may search all directories above what `path` leads to, as far as modes
/// say. An access list is not looked at. A path that does not exist is said to be reachable: its absence is what matters.
pub fn can_search(path: &Path, uid: u32, gid: u32) -> bool {
    let Ok(real) = std::fs::canonicalize(path) else { return true };
    real.ancestors().skip(1).all(|dir| {
        std::fs::metadata(dir).is_ok_and(|meta| {
            let bit = match (meta.uid() == uid, meta.gid() == gid) {
                (true, _) => 0o100,
                (false, true) => 0o010,
                (false, false) => 0o001,
            };
            meta.mode() & bit != 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_directory_on_the_way_counts_and_the_last_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &str, mode| {
            std::fs::set_permissions(dir.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        mode("", 0o755);
        mode("a", 0o755);
        mode("a/b", 0o700);
        let (uid, gid) = (54_321, 54_321);
        let inner = dir.path().join("a/b");
        assert!(can_search(&inner, uid, gid));
        mode("a", 0o750);
        assert!(!can_search(&inner, uid, gid));
        std::os::unix::fs::chown(dir.path().join("a"), None, Some(gid)).unwrap();
        assert!(can_search(&inner, uid, gid), "by its group");
        std::os::unix::fs::chown(dir.path().join("a"), Some(uid), None).unwrap();
        mode("a", 0o050);
        assert!(!can_search(&inner, uid, gid), "the owner's bits alone count for the owner");
        assert!(can_search(&dir.path().join("none/x"), uid, gid));
    }
}
