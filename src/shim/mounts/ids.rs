//! `uidmap=` and `gidmap=`: whose the files of a mount are, for containers in a user namespace.
//!
//! They are no options of the kernel's but of containerd's own code for mounts, which its snapshotters write for. Each value
//! is a list of ranges, `INSIDE:OUTSIDE:SIZE`, with commas in between.

use std::os::fd::OwnedFd;

use crate::spec::idmap::{self, Mapping};
use crate::sys::SysError;
use crate::sys::userns::{self, IdRange};

/// The options by which users and groups are mapped.
pub const KEYS: [&str; 2] = ["uidmap", "gidmap"];

/// How the owners of a mount's files are mapped: `inside` as on disk, `outside` as seen by the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ids {
    uids: Vec<IdRange>,
    gids: Vec<IdRange>,
}

impl Ids {
    /// Takes an option of [`KEYS`].
    ///
    /// # Errors
    /// What is wrong with its value.
    pub fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        let ranges = ranges(value)?;
        if key == KEYS[0] {
            self.uids = ranges;
        } else {
            self.gids = ranges;
        }
        Ok(())
    }

    /// Whether neither option was given.
    ///
    /// # Errors
    /// Where only one was: the owners of such a mount would be half the host's.
    pub fn none(&self) -> Result<bool, String> {
        match (self.uids.is_empty(), self.gids.is_empty()) {
            (true, false) => Err("option gidmap without uidmap".into()),
            (false, true) => Err("option uidmap without gidmap".into()),
            (none, _) => Ok(none),
        }
    }

    /// A user namespace with these ranges, in which no process is.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn namespace(&self) -> Result<OwnedFd, SysError> {
        userns::with_maps(&self.uids, &self.gids)
    }
}

fn ranges(value: &str) -> Result<Vec<IdRange>, String> {
    let all = value.split(',').map(range).collect::<Option<Vec<_>>>();
    let all = all.ok_or("not INSIDE:OUTSIDE:SIZE, ids of 32 bits, more of them with commas in between")?;
    let mappings = all.iter().map(|&IdRange { inside, outside, size }| Mapping { inside, outside, size });
    idmap::check(&mappings.collect::<Vec<_>>()).map_err(|err| err.to_string())?;
    Ok(all)
}

/// `0:100000:65536`; none where a number is missing.
fn range(text: &str) -> Option<IdRange> {
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let (inside, rest) = text.split_once(':')?;
    let (outside, size) = rest.split_once(':')?;
    Some(IdRange { inside: number(inside)?, outside: number(outside)?, size: number(size)? })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{apart, make, mounts_below, of};
    use super::super::{ShimError, mount_all, read, unmount_all};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};
    use std::path::Path;

    const MAPPED: [&str; 2] = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];

    #[test]
    fn options() {
        let mut got = Ids::default();
        for (key, value) in
            [("uidmap", "0:1:2"), ("uidmap", "0:100000:1000,1000:7:1,2000:4294967290:5"), ("gidmap", "3:0:9")]
        {
            got.take(key, value).unwrap();
        }
        let ranges = |all: &[(u32, u32, u32)]| {
            all.iter().map(|&(inside, outside, size)| IdRange { inside, outside, size }).collect::<Vec<_>>()
        };
        let uids = ranges(&[(0, 100_000, 1000), (1000, 7, 1), (2000, 4_294_967_290, 5)]);
        assert_eq!(got, Ids { uids, gids: ranges(&[(3, 0, 9)]) });
        let many = (0..341).map(|n| format!("{n}:{n}:1")).collect::<Vec<_>>().join(",");
        for (value, words) in [
            ("", "INSIDE:OUTSIDE:SIZE"),
            ("0:1", "INSIDE:OUTSIDE:SIZE"),
            ("0:1:2:3", "INSIDE:OUTSIDE:SIZE"),
            ("0:1:2,", "INSIDE:OUTSIDE:SIZE"),
            ("0:1:2;5:5:5", "INSIDE:OUTSIDE:SIZE"),
            ("-1:1:2", "INSIDE:OUTSIDE:SIZE"),
            ("+1:1:2", "INSIDE:OUTSIDE:SIZE"),
            (" 1:1:2", "INSIDE:OUTSIDE:SIZE"),
            ("0::2", "INSIDE:OUTSIDE:SIZE"),
            ("0:1:0", "is empty"),
            ("4294967296:1:1", "INSIDE:OUTSIDE:SIZE"),
            // The last number is nobody's id.
            ("0:4294967295:1", "goes past the last id"),
            ("4294967290:0:6", "goes past the last id"),
            ("0:10:5,4:100:1", "overlap"),
            ("0:10:5,100:14:1", "overlap"),
            (&many, "at most 340"),
        ] {
            let err = Ids::default().take("gidmap", value).unwrap_err();
            assert!(err.contains(words), "{value}: {err}");
        }
    }

    #[test]
    fn options_of_a_mount() {
        let both = read(&of("overlay", "overlay", &["uidmap=0:1:2,5:6:7", "gidmap=0:1:2", "lowerdir=/a"])).unwrap();
        assert_eq!(both.data, [("lowerdir".to_owned(), Some("/a".to_owned()))]);
        let ids = both.ids.unwrap();
        assert_eq!((ids.uids.len(), ids.gids.len()), (2, 1));
        // In one string with others there is one range of each.
        let short = read(&of("bind", "/a", &["ro,uidmap=0:1:2,gidmap=0:1:2,rbind"])).unwrap();
        assert_eq!((short.bind, short.ids.is_some()), (Some(true), true));
        for options in [&["uidmap=0:1:2"][..], &["gidmap=0:1:2"], &["uidmap=0:1:x", "gidmap=0:1:2"], &["uidmap="]] {
            let err = read(&of("overlay", "layers", options)).unwrap_err();
            assert!(matches!(err, ShimError::Invalid(_)) && err.to_string().contains("overlay of \"layers\""), "{err}");
        }
    }

    /// [`apart`] where the kernel maps the ids of a tmpfs (Linux 6.3).
    fn apart_mapped(work: impl FnOnce(&Path) + Send + 'static) {
        apart(|dir| {
            make(dir, &["probe", "rootfs"]);
            let source = dir.join("probe").display().to_string();
            match mount_all(&[of("bind", &source, &[&["bind"][..], &MAPPED].concat())], &dir.join("rootfs")) {
                Err(err) => eprintln!("skipped: no mapped tmpfs: {err}"),
                Ok(()) => {
                    unmount_all(&dir.join("rootfs")).unwrap();
                    work(dir);
                }
            }
        });
    }

    fn owner(path: &Path) -> (u32, u32) {
        let stat = fs::symlink_metadata(path).unwrap();
        (stat.uid(), stat.gid())
    }

    /// An overlay's options, of these lower directories; `up` and `work` are the others.
    fn layers(dir: &Path, lowers: &[&str]) -> Vec<String> {
        let escaped = |name: &&str| dir.join(name).display().to_string().replace('\\', "\\\\").replace(':', "\\:");
        let mut options = MAPPED.map(str::to_owned).to_vec();
        options.push(format!("workdir={}", dir.join("work").display()));
        options.push(format!("upperdir={}", dir.join("up").display()));
        options.push(format!("lowerdir={}", lowers.iter().map(escaped).collect::<Vec<_>>().join(":")));
        options
    }

    #[test]
    fn the_layers_of_an_overlay() {
        apart_mapped(|dir| {
            // Names that have to be escaped, by a link, and longer than an option can be.
            let long = format!("{0}/{0}", "x".repeat(250));
            let lowers = ["a:b,1", r"back\slash,:", "link", &long];
            make(dir, &[lowers[0], lowers[1], "three", lowers[3], "up", "work"]);
            symlink("three", dir.join("link")).unwrap();
            for (n, lower) in lowers.iter().enumerate() {
                let file = dir.join(lower).join(format!("file-{n}"));
                fs::File::create(&file).unwrap().set_len(1).unwrap();
                let id = [0, 1000, 65_535, 65_536][n];
                chown(&file, Some(id), Some(id)).unwrap();
            }
            make(dir, &[&format!("{}/dir", lowers[0])]);
            symlink("file-0", dir.join("a:b,1/to")).unwrap();
            lchown(dir.join("a:b,1/to"), Some(5), Some(6)).unwrap();
            // As the snapshotter makes it.
            chown(dir.join("up"), Some(100_000), Some(200_000)).unwrap();
            let options = layers(dir, &lowers);
            let overlay = of("overlay", "overlay", &options.iter().map(String::as_str).collect::<Vec<_>>());
            let root = dir.join("rootfs");
            mount_all(&[overlay], &root).unwrap();
            let owners = |names: &[&str]| names.iter().map(|name| owner(&root.join(name))).collect::<Vec<_>>();
            let files = ["", "dir", "file-0", "file-1", "file-2", "to"];
            let want = [
                (100_000, 200_000),
                (100_000, 200_000),
                (100_000, 200_000),
                (101_000, 201_000),
                (165_535, 265_535),
                (100_005, 200_006),
            ];
            assert_eq!(owners(&files), want);
            // Ids past the range are nobody's.
            assert_eq!(owners(&["file-3"]), [(65_534, 65_534)]);
            // Copied up it belongs to the same, without a map; the layer below is as it was.
            fs::OpenOptions::new().append(true).open(root.join("file-1")).unwrap().set_len(9).unwrap();
            fs::File::create(root.join("dir/new")).unwrap();
            rustix::fs::rename(root.join("file-0"), root.join("dir/moved")).unwrap();
            assert_eq!(owner(&dir.join("up/file-1")), (101_000, 201_000));
            assert_eq!(owner(&dir.join("up/dir")), (100_000, 200_000));
            assert_eq!(owner(&dir.join("up/dir/moved")), (100_000, 200_000));
            assert_eq!(owner(&dir.join("up/dir/new")), (0, 0));
            assert_eq!(owner(&dir.join(lowers[1]).join("file-1")), (1000, 1000));
            // What mountinfo shows of a layer is its own path, and none of them is a mount.
            assert_eq!(mounts_below(dir), std::slice::from_ref(&root));
            let info = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let line = info.lines().find(|line| line.contains(&format!(" {} ", root.display()))).unwrap();
            assert!(line.contains(&dir.join("link").display().to_string()), "{line}");
            unmount_all(&root).unwrap();
        });
    }

    #[test]
    fn other_mounts() {
        apart_mapped(|dir| {
            make(dir, &["tree/below", "tree/mounted"]);
            chown(dir.join("tree/below"), Some(7), Some(8)).unwrap();
            mount_all(&[of("tmpfs", "tmpfs", &[])], &dir.join("tree/mounted")).unwrap();
            let (source, root) = (dir.join("tree").display().to_string(), dir.join("rootfs"));
            // With `ro` too; what is mounted below as well, where that is taken.
            for bind in ["bind", "rbind"] {
                mount_all(&[of("bind", &source, &[&[bind, "ro"][..], &MAPPED].concat())], &root).unwrap();
                assert_eq!(owner(&root.join("below")), (100_007, 200_008));
                assert_eq!(owner(&root.join("mounted")), (100_000, 200_000), "{bind}");
                let refused = chown(root.join("below"), Some(100_009), None).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
                unmount_all(&root).unwrap();
            }
            mount_all(&[of("bind", &source, &[&["rw", "rbind"][..], &MAPPED].concat())], &root).unwrap();
            chown(root.join("below"), Some(100_009), None).unwrap();
            assert_eq!(owner(&dir.join("tree/below")), (9, 8));
            // Root itself is nobody in it.
            let refused = fs::File::create(root.join("new")).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EOVERFLOW));
            unmount_all(&root).unwrap();
            unmount_all(&dir.join("tree/mounted")).unwrap();

            mount_all(&[of("tmpfs", "tmpfs", &MAPPED)], &root).unwrap();
            assert_eq!(owner(&root), (100_000, 200_000));
            unmount_all(&root).unwrap();

            let image = dir.join("image");
            fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
            let made = std::process::Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&image).status();
            if made.is_ok_and(|status| status.success()) && Path::new("/dev/loop-control").exists() {
                let image = image.display().to_string();
                mount_all(&[of("ext4", &image, &[&["loop", "ro"][..], &MAPPED].concat())], &root).unwrap();
                assert_eq!(owner(&root.join("lost+found")), (100_000, 200_000));
                unmount_all(&root).unwrap();
            }
        });
    }

    #[test]
    fn what_fails_leaves_nothing_and_says_why() {
        apart_mapped(|dir| {
            make(dir, &["a", "b", "again", "up", "work"]);
            let root = dir.join("rootfs");
            let source = dir.join("a").display().to_string();
            mount_all(&[of("bind", &source, &[&["bind"][..], &MAPPED].concat())], &dir.join("again")).unwrap();
            for (lowers, words) in [
                (&["a", "none"][..], &["layer 1", "none", "No such file"][..]),
                (&["a", "b", "again"], &["layer 2", "again", "not permitted"]),
                (&["a", "/proc/self"], &["layer 1", "/proc/self", "Invalid argument"]),
                (&["a", "/"], &["layer 1"]),
                (&[], &["without lowerdir"]),
            ] {
                let options = layers(dir, lowers);
                let overlay = of("overlay", "overlay", &options.iter().map(String::as_str).collect::<Vec<_>>());
                let bind = of("bind", &source, &["bind"]);
                let err = mount_all(&[bind, overlay], &root).unwrap_err().to_string();
                assert!(words.iter().all(|word| err.contains(word)), "{err}");
                assert_eq!(mounts_below(dir), [dir.join("again")], "{lowers:?}");
            }
            // A file system that cannot.
            let err = mount_all(&[of("proc", "proc", &MAPPED)], &root).unwrap_err().to_string();
            assert!(err.contains("MOUNT_ATTR_IDMAP") && err.contains("Invalid argument"), "{err}");
            // Ranges that do not fit together are refused before anything is mounted.
            let wrong = of("bind", &source, &["bind", "uidmap=0:1:5,3:9:1", "gidmap=0:1:5"]);
            assert!(matches!(mount_all(&[wrong], &root), Err(ShimError::Invalid(_))));
            assert_eq!(mounts_below(dir), [dir.join("again")]);
            let children = fs::read_to_string("/proc/thread-self/children").unwrap();
            assert_eq!(children, "");
            unmount_all(&dir.join("again")).unwrap();
        });
    }
}
