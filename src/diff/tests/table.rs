//! Cases one by one.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType as RawType, Mode, XattrFlags, mknodat, setxattr};

use super::lab::{Lab, open_all, patch_of};
use super::walk::{lines, truth};
use crate::diff::{
    Diff, Kind, Namespace, Options, PathBytes, Touched, conflicts, lookup, refresh_passed, seal, touched,
};

fn put(path: impl AsRef<Path>, bytes: &[u8]) {
    File::create(path).unwrap().write_all(bytes).unwrap();
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn xattr(path: impl AsRef<Path>, name: &str, value: &[u8]) {
    setxattr(path.as_ref(), name, value, XattrFlags::empty()).unwrap();
}

/// An ACL of one named user (see acl(5), `linux/posix_acl_xattr.h`).
fn acl(path: impl AsRef<Path>) {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 6u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)]
    {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    xattr(path, "system.posix_acl_access", &value);
}

/// `cap_net_bind_service=ep`, revision 2.
fn capability(path: impl AsRef<Path>) {
    let words = [0x0200_0001u32, 1 << 10, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    xattr(path, "security.capability", &value);
}

/// One of each type by its name.
fn make(path: &Path, file_type: &str) {
    let node = |kind, dev| mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), dev).unwrap();
    match file_type {
        "file" => put(path, b"content"),
        "directory" => {
            fs::create_dir(path).unwrap();
            put(path.join("inside"), b"x");
        }
        "symlink" => symlink("target", path).unwrap(),
        "fifo" => node(RawType::Fifo, 0),
        "socket" => node(RawType::Socket, 0),
        "char" => node(RawType::CharacterDevice, rustix::fs::makedev(240, 1)),
        "block" => node(RawType::BlockDevice, rustix::fs::makedev(240, 2)),
        other => panic!("{other}"),
    }
}

const TYPES: [&str; 7] = ["file", "directory", "symlink", "fifo", "socket", "char", "block"];

fn base(root: &Path) {
    for name in ["f", "g", "h", "same"] {
        put(root.join(name), name.as_bytes());
    }
    fs::create_dir_all(root.join("d/e")).unwrap();
    put(root.join("d/x"), b"x");
    put(root.join("d/e/y"), b"y");
    symlink("f", root.join("l")).unwrap();
}

/// `KIND PATH` of each change.
fn brief(diff: &Diff) -> Vec<String> {
    lines(diff).iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn every_pair_of_types() {
    for old in TYPES {
        for new in TYPES.iter().filter(|new| **new != old) {
            let mut lab = Lab::new(|root| make(&root.join("p"), old));
            let diff = lab.check(|root| {
                let _ = fs::remove_file(root.join("p")).or_else(|_| fs::remove_dir_all(root.join("p")));
                make(&root.join("p"), new);
            });
            assert!(brief(&diff).contains(&"replaced /p".to_owned()), "{old} {new}");
            let change = diff.changes.iter().find(|change| change.path.as_bytes() == b"/p").unwrap();
            assert_eq!(change.entries, (old == "directory").then_some(1));
        }
    }
}

#[test]
fn one_thing_at_a_time() {
    type Case = (&'static str, fn(&Path), &'static [&'static str]);
    let cases: &[Case] = &[
        ("nothing", |_| {}, &[]),
        ("add", |r| put(r.join("new"), b"1"), &["added /new"]),
        ("modify", |r| put(r.join("f"), b"F!"), &["modified /f"]),
        ("same size", |r| put(r.join("f"), b"F"), &["modified /f"]),
        ("chmod", |r| chmod(r.join("f"), 0o600), &["metadata /f"]),
        ("setuid", |r| chmod(r.join("f"), 0o4755), &["metadata /f"]),
        ("chmod dir 000", |r| chmod(r.join("d"), 0), &["metadata /d"]),
        ("chown", |r| chown(r.join("f"), Some(5), Some(6)).unwrap(), &["metadata /f"]),
        ("chown dir", |r| chown(r.join("d"), Some(5), None).unwrap(), &["metadata /d"]),
        ("xattr", |r| xattr(r.join("f"), "user.a", b"1"), &["metadata /f"]),
        ("xattr dir", |r| xattr(r.join("d"), "user.a", b"1"), &["metadata /d"]),
        ("trusted xattr", |r| xattr(r.join("f"), "trusted.a", b"1"), &["metadata /f"]),
        ("user.overlay is the user's", |r| xattr(r.join("d"), "user.overlay.opaque", b"y"), &["metadata /d"]),
        ("acl", |r| acl(r.join("f")), &["metadata /f"]),
        ("acl dir", |r| acl(r.join("d")), &["metadata /d"]),
        ("capability", |r| capability(r.join("f")), &["metadata /f"]),
        ("root's mode", |r| chmod(r.join("."), 0o711), &["metadata /"]),
        (
            "touch",
            |r| {
                let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
                File::options().write(true).open(r.join("f")).unwrap().set_times(times).unwrap();
            },
            &["metadata /f"],
        ),
        ("open and leave", |r| drop(File::options().read(true).write(true).open(r.join("f")).unwrap()), &[]),
        ("delete", |r| fs::remove_file(r.join("f")).unwrap(), &["deleted /f"]),
        (
            "delete dir",
            |r| fs::remove_dir_all(r.join("d")).unwrap(),
            &["deleted /d", "deleted /d/e", "deleted /d/e/y", "deleted /d/x"],
        ),
        (
            "link target",
            |r| {
                fs::remove_file(r.join("l")).unwrap();
                symlink("g", r.join("l")).unwrap();
            },
            &["modified /l"],
        ),
        (".wh. is a name", |r| put(r.join(".wh.f"), b""), &["added /.wh.f"]),
        (
            "add and delete",
            |r| {
                put(r.join("t"), b"");
                fs::remove_file(r.join("t")).unwrap();
            },
            &[],
        ),
        (
            "delete and make anew with one file",
            |r| {
                fs::remove_dir_all(r.join("d")).unwrap();
                fs::create_dir(r.join("d")).unwrap();
                put(r.join("d/x"), b"other");
            },
            &["deleted /d/e", "deleted /d/e/y", "modified /d/x"],
        ),
        (
            "swap",
            |r| {
                for (from, to) in [("f", "t"), ("g", "f"), ("t", "g")] {
                    rustix::fs::rename(r.join(from), r.join(to)).unwrap();
                }
            },
            &["modified /f", "modified /g"],
        ),
        (
            "a new dir over an old one",
            |r| {
                fs::create_dir(r.join("n")).unwrap();
                put(r.join("n/z"), b"z");
                fs::remove_dir_all(r.join("d")).unwrap();
                rustix::fs::rename(r.join("n"), r.join("d")).unwrap();
            },
            &["deleted /d/e", "deleted /d/e/y", "deleted /d/x", "added /d/z"],
        ),
    ];
    for (name, change, want) in cases {
        let mut lab = Lab::new(base);
        let diff = lab.check(change);
        let mut want = want.to_vec();
        want.sort_by_key(|line| line.split(' ').nth(1).unwrap().to_owned());
        assert_eq!(brief(&diff), want, "{name}");
        // What is not listed is counted.
        let short = lab.diff(1, &Options { recursive: false, ..lab.options() });
        assert_eq!(short.summary, diff.summary, "{name}");
    }
}

#[test]
fn odd_names_and_nodes() {
    let names: Vec<Vec<u8>> =
        [&b"new\nline"[..], b"co:lon", b"com,ma", b"back\\slash", b"\xff\xfe", b"'\"", b"-rf", b" "]
            .map(<[u8]>::to_vec)
            .into_iter()
            .chain([vec![b'n'; 255]])
            .collect();
    let at = |root: &Path, name: &[u8]| root.join(std::ffi::OsStr::from_bytes(name));
    let mut lab = Lab::new(|root| names.iter().step_by(2).for_each(|name| put(at(root, name), b"1")));
    let diff = lab.check(|root| {
        names.iter().for_each(|name| put(at(root, name), b"22"));
        for file_type in TYPES {
            make(&root.join(file_type), file_type);
        }
    });
    let json = serde_json::to_string(&diff.changes).unwrap();
    assert_eq!(diff.summary.modified, 5);
    let back: Vec<crate::diff::Change> = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
    assert!(json.contains("{\"pathBase64\":\"L//+\"}") && json.contains("\"rdev\":\"240:1\""), "{json}");
}

#[test]
fn renames() {
    let mut lab = Lab::new(|root| {
        base(root);
        // Two empty files that look the same can't be told apart.
        for name in ["empty1", "empty2"] {
            let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
            File::create(root.join(name)).unwrap().set_times(times).unwrap();
        }
    });
    let (before, after) = lab.exec(|root| {
        let mv = |from: &str, to: &str| rustix::fs::rename(root.join(from), root.join(to)).unwrap();
        mv("f", "moved");
        mv("l", "d/link");
        mv("empty1", "no1");
        mv("empty2", "no2");
        // As mv does where the kernel says EXDEV.
        let cp = std::process::Command::new("cp").arg("-a").args([root.join("d/e"), root.join("dir")]).status();
        assert!(cp.unwrap().success());
        fs::remove_dir_all(root.join("d/e")).unwrap();
        // It looks the same and is another.
        fs::copy(root.join("g"), root.join("g2")).unwrap();
        let times = fs::FileTimes::new().set_modified(fs::metadata(root.join("g")).unwrap().modified().unwrap());
        fs::remove_file(root.join("g")).unwrap();
        put(root.join("g2"), b"G");
        File::options().write(true).open(root.join("g2")).unwrap().set_times(times).unwrap();
    });
    assert_eq!(lines(&lab.diff(1, &lab.options())), truth(&before, &after));
    let diff = lab.diff(1, &Options { renames: true, recursive: false, ..lab.options() });
    let text: Vec<String> = diff
        .changes
        .iter()
        .map(|c| {
            format!("{} {}", serde_json::to_value(c.kind).unwrap().as_str().unwrap(), c.path)
                + &c.from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default()
        })
        .collect();
    let want = [
        "deleted /d/e",
        "renamed /d/link from /l",
        "added /dir",
        "renamed /dir/y from /d/e/y",
        "deleted /empty1",
        "deleted /empty2",
        "deleted /g",
        "added /g2",
        "renamed /moved from /f",
        "added /no1",
        "added /no2",
    ];
    assert_eq!(text, want);
    let summary = diff.summary;
    assert_eq!((summary.renamed, summary.deleted, summary.added, summary.bytes), (3, 4, 4, 1));
    let set = touched(&diff);
    assert!(set.iter().any(|t| t.path.as_bytes() == b"/f" && t.covers));
}

#[test]
fn a_directory_made_anew_keeps_what_it_shows_and_covers_what_it_hides() {
    let mut lab = Lab::new(base);
    let (before, after) = lab.exec(|root| {
        let cp = std::process::Command::new("cp").arg("-a").args([root.join("d"), root.join("anew")]).status();
        assert!(cp.unwrap().success());
        fs::remove_dir_all(root.join("d")).unwrap();
        rustix::fs::rename(root.join("anew"), root.join("d")).unwrap();
        fs::remove_file(root.join("d/x")).unwrap();
    });
    let fds = open_all(&lab.lowers());
    let diff = seal(fds[0].as_fd(), &[fds[1].as_fd()], &lab.options()).unwrap();
    assert_eq!(brief(&diff), ["deleted /d/x"]);
    // The copy that equals the lower's is all that is seen of it.
    assert_eq!(diff.unchanged, [PathBytes::from("/d/e/y")]);
    assert_eq!(truth(&before, &lab.view(&lab.lowers())), truth(&before, &after));
    assert_eq!(diff.hides, [PathBytes::from("/d")]);
    let theirs = Touched { path: PathBytes::from("/d/new"), covers: false, new_directory: None };
    assert_eq!(conflicts(&touched(&diff), std::slice::from_ref(&theirs)), [theirs.path]);

    // All of it as it was: nothing is left.
    lab.layers.clear();
    let upper = lab.scratch("again");
    let mounted = lab.mount(&upper, &lab.lowers());
    let root = mounted.root();
    let cp = std::process::Command::new("cp").arg("-a").args([root.join("d"), root.join("anew")]).status();
    assert!(cp.unwrap().success());
    fs::remove_dir_all(root.join("d")).unwrap();
    rustix::fs::rename(root.join("anew"), root.join("d")).unwrap();
    let file = File::open(&upper).unwrap();
    let diff = seal(file.as_fd(), &[fds[1].as_fd()], &lab.options()).unwrap();
    assert!(diff.summary.is_empty() && diff.hides.is_empty(), "{diff:?}");
    assert_eq!(fs::read_dir(&upper).unwrap().count(), 0);
}

#[test]
fn hard_links_are_told() {
    let mut lab = Lab::new(base);
    let diff = lab.check(|root| {
        put(root.join("n2"), b"n");
        fs::hard_link(root.join("n2"), root.join("n1")).unwrap();
        fs::hard_link(root.join("same"), root.join("also")).unwrap();
    });
    let link = |path: &str| {
        let change = diff.changes.iter().find(|change| change.path.as_bytes() == path.as_bytes()).unwrap();
        change.link_to.as_ref().map(ToString::to_string)
    };
    assert_eq!((link("/n1"), link("/n2")), (None, Some("/n1".to_owned())));
    assert_eq!(link("/also"), Some("/same".to_owned()));
}

#[test]
fn sparse_files_are_compared_by_their_data() {
    let mut lab = Lab::new(|root| {
        for name in ["a", "b", "c"] {
            let file = File::create(root.join(name)).unwrap();
            file.set_len(1 << 40).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"data", 1 << 39).unwrap();
        }
    });
    // Not through the mount, which would copy; the walk that is the truth would read all of it.
    let upper = lab.scratch("layer0");
    lab.layers.push(upper.clone());
    let cp = |name: &str| {
        let args = [lab.rootfs().join(name), upper.join(name)];
        assert!(std::process::Command::new("cp").arg("-a").args(args).status().unwrap().success());
    };
    ["a", "b", "c"].into_iter().for_each(cp);
    let write = |name: &str, at: u64| {
        let file = File::options().write(true).open(upper.join(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", at).unwrap();
    };
    write("b", (1 << 40) - 1);
    write("c", 1 << 39);
    let diff = lab.diff(1, &lab.options());
    assert_eq!(brief(&diff), ["modified /b", "modified /c"]);
    assert_eq!(diff.unchanged, [PathBytes::from("/a")]);
}

/// Looking changes nothing: a diff that read a file made its inode be written back.
#[test]
fn a_diff_leaves_access_times_alone() {
    use std::os::unix::fs::MetadataExt;
    let mut lab = Lab::new(base);
    lab.exec(|root| put(root.join("f"), b"F"));
    let paths = lab.lowers().into_iter().map(|layer| layer.join("f")).collect::<Vec<_>>();
    let times = fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
    for path in &paths {
        File::options().write(true).open(path).unwrap().set_times(times).unwrap();
    }
    assert_eq!(brief(&lab.diff(1, &lab.options())), ["modified /f"]);
    for path in &paths {
        assert_eq!(fs::metadata(path).unwrap().atime(), 0, "{}", path.display());
    }
}

#[test]
fn both_encodings_of_whiteouts_and_both_namespaces() {
    for ns in [Namespace::Trusted, Namespace::User] {
        let name = |mark: &str| format!("{}overlay.{mark}", if ns == Namespace::User { "user." } else { "trusted." });
        let mut lab = Lab::new(base);
        lab.namespace = ns;
        let upper = lab.scratch("layer0");
        lab.layers.push(upper.clone());
        xattr(&upper, &name("opaque"), b"x");
        put(upper.join("f"), b"");
        xattr(upper.join("f"), &name("whiteout"), b"y");
        // Without the attribute, an empty file is one; so is one with it where the directory is not marked.
        put(upper.join("g"), b"");
        mknodat(CWD, upper.join("h"), RawType::CharacterDevice, Mode::empty(), 0).unwrap();
        fs::create_dir(upper.join("d")).unwrap();
        put(upper.join("d/x"), b"");
        xattr(upper.join("d/x"), &name("whiteout"), b"y");
        mknodat(CWD, upper.join("nothing"), RawType::CharacterDevice, Mode::empty(), 0).unwrap();
        let diff = lab.diff(1, &lab.options());
        assert_eq!(brief(&diff), ["modified /d/x", "deleted /f", "modified /g", "deleted /h"], "{ns:?}");
        // The other namespace's marks are attributes like any other.
        let other = if ns == Namespace::User { Namespace::Trusted } else { Namespace::User };
        let diff = lab.diff(1, &Options { namespace: other, ..lab.options() });
        assert!(brief(&diff).contains(&"modified /f".to_owned()), "{ns:?}");
    }
}

#[test]
fn a_marker_like_attribute_of_the_user_is_told_by_its_name() {
    let mut lab = Lab::new(base);
    let upper = lab.scratch("layer0");
    lab.layers.push(upper.clone());
    let cp = std::process::Command::new("cp").arg("-a").args([lab.rootfs().join("f"), upper.join("f")]).status();
    assert!(cp.unwrap().success());
    xattr(upper.join("f"), "trusted.overlay.overlay.opaque", b"y");
    xattr(upper.join("f"), "trusted.overlay.origin", b"");
    let diff = lab.diff(1, &lab.options());
    let attributes: Vec<String> = diff.changes[0].attributes.iter().map(ToString::to_string).collect();
    assert_eq!(attributes, ["xattr:trusted.overlay.opaque"]);
}

#[test]
fn mount_points_are_no_change() {
    let mut lab = Lab::new(base);
    lab.exec(|root| {
        fs::create_dir_all(root.join("mnt/a/b")).unwrap();
        put(root.join("hosts"), b"");
        put(root.join("full"), b"1");
        fs::create_dir(root.join("used")).unwrap();
        put(root.join("used/x"), b"");
    });
    let ignore = ["/mnt/a/b", "/hosts", "/full", "/used"].map(PathBytes::from).into_iter().collect();
    let options = Options { ignore, ..lab.options() };
    let fds = open_all(&lab.lowers());
    let diff = seal(fds[0].as_fd(), &[fds[1].as_fd()], &options).unwrap();
    assert_eq!(brief(&diff), ["added /full", "added /used", "added /used/x"]);
    let left: Vec<_> = fs::read_dir(&lab.layers[0]).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn deep_trees_take_few_descriptors_and_have_a_bound() {
    let lab = Lab::new(|_| {});
    let mut stack = lab.lowers();
    let upper = lab.scratch("upper");
    stack.insert(0, upper.clone());
    // A second, empty directory at each level makes the walk come back to every one.
    let mut at: std::os::fd::OwnedFd = File::open(&upper).unwrap().into();
    let depth = 1500;
    for _ in 0..depth {
        for name in ["deeper", "z"] {
            rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        }
        at = rustix::fs::openat(&at, "deeper", crate::diff::descent::DIR_FLAGS, Mode::empty()).unwrap();
    }
    let fds = open_all(&stack);
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let diff = crate::diff::compare(&fds[..1], &fds[1..], &lab.options()).unwrap();
    assert_eq!(diff.summary.added, 2 * depth);
    // However deep, few directories are open.
    use crate::diff::descent::{Descent, Found, Side};
    let side = |layers| Side::layers(layers);
    let list = [true, false, false];
    let sides = [side(&fds[..1]), side(&[]), side(&[])];
    let mut descent = Descent::new(sides, list, Namespace::Trusted, 4096, ()).unwrap();
    let (mut most, mut entered) = (0, 0);
    loop {
        while descent.advance() {
            let Found::Dir { dirs, .. } = descent.resolve(0).unwrap() else { panic!("only directories") };
            descent.enter([dirs, Vec::new(), Vec::new()], list, ()).unwrap();
            entered += 1;
            most = most.max(descent.open());
        }
        if descent.leave().unwrap().is_none() {
            break;
        }
        most = most.max(if descent.depth() > 0 { descent.open() } else { 0 });
    }
    assert_eq!(entered, 2 * depth);
    assert!((200..=320).contains(&most), "{most}");
    let error = crate::diff::compare(&fds[..1], &fds[1..], &Options { max_depth: 1000, ..lab.options() }).unwrap_err();
    assert!(matches!(error, crate::diff::DiffError::TooDeep { limit: 1000, .. }), "{error}");
    let options = Options { max_path_bytes: 10_000, ..lab.options() };
    let error = crate::diff::compare(&fds[..1], &fds[1..], &options).unwrap_err();
    assert!(matches!(error, crate::diff::DiffError::TooLarge { .. }), "{error}");
    assert!(std::process::Command::new("rm").arg("-r").arg(&upper).status().unwrap().success());
}

#[test]
fn a_passed_directory_takes_the_new_mode() {
    let mut lab = Lab::new(base);
    lab.exec(|root| put(root.join("d/mine"), b""));
    let mine = lab.layers.pop().unwrap();
    let kept = mine.with_extension("mine");
    rustix::fs::rename(&mine, &kept).unwrap();
    fs::remove_dir_all(mine.with_extension("work")).unwrap();
    lab.exec(|root| {
        chmod(root.join("d"), 0o700);
        xattr(root.join("d"), "user.a", b"1");
    });
    let base_fds = open_all(&[lab.rootfs()]);
    let head_fds = open_all(&lab.lowers());
    let head: Vec<BorrowedFd<'_>> = head_fds.iter().map(AsFd::as_fd).collect();
    let upper = File::open(&kept).unwrap();
    refresh_passed(upper.as_fd(), &[base_fds[0].as_fd()], &head, None, &lab.options()).unwrap();
    let view = lab.view(&[vec![kept], lab.lowers()].concat());
    let dir = &view[&b"/d"[..]];
    assert_eq!((dir.mode, dir.xattrs.len()), (0o700, 1));
    assert!(view.contains_key(&b"/d/mine"[..]));
}

#[test]
fn lookups_see_what_the_mount_shows() {
    let mut lab = Lab::new(base);
    lab.exec(|root| {
        fs::remove_file(root.join("f")).unwrap();
        fs::remove_dir_all(root.join("d")).unwrap();
        fs::create_dir(root.join("d")).unwrap();
    });
    let fds = open_all(&lab.lowers());
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let get = |path: &str| lookup(&fds, &PathBytes::from(path), Namespace::Trusted).unwrap();
    assert!(get("/f").is_none() && get("/d/x").is_none() && get("/l/x").is_none() && get("/no/no").is_none());
    assert_eq!(get("/g").map(|entry| (entry.size, entry.layer)), Some((1, 1)));
    assert_eq!(get("/d").map(|entry| entry.layer), Some(0));
    assert_eq!(get("/l").and_then(|entry| entry.target), Some(PathBytes::from("f")));
    assert!(get("/").is_some());
    for out in ["/..", "/../rootfs", "/d/../g", "/d/..", "/.", "/g\0"] {
        assert_eq!(get(out), None, "{out:?}");
    }
}

#[test]
fn patches_apply() {
    let mut lab = Lab::new(|root| {
        put(root.join("text"), b"1\n2\n3\n4\n5\n");
        put(root.join("gone"), b"bye\n");
        put(root.join("mode"), b"#!\n");
        put(root.join("bin"), b"\0\x01");
        put(root.join("sp ace"), b"a");
        put(root.join("old"), b"moved as it is\n");
        symlink("text", root.join("link")).unwrap();
    });
    lab.exec(|root| {
        put(root.join("text"), b"1\n2\nthree\n4\n5\n");
        fs::remove_file(root.join("gone")).unwrap();
        chmod(root.join("mode"), 0o755);
        put(root.join("bin"), b"\0\x01\x02");
        put(root.join("sp ace"), b"b");
        put(root.join("new\nline"), b"n\n");
        rustix::fs::rename(root.join("old"), root.join("renamed")).unwrap();
        fs::remove_file(root.join("link")).unwrap();
        symlink("gone", root.join("link")).unwrap();
    });
    let fds = open_all(&lab.lowers());
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let diff = lab.diff(1, &Options { renames: true, ..lab.options() });
    let text = patch_of(&fds[..1], &fds[1..], &diff, &|uid, gid| (uid, gid));
    let shown = String::from_utf8(text.clone()).unwrap();
    assert!(shown.contains("Binary file /bin changed: 2 -> 3 bytes\n"), "{shown}");
    assert!(shown.contains("+++ \"b/new\\nline\"\n"), "{shown}");
    // git itself is the judge; what it can't take is left out.
    let applied = lab.scratch("applied");
    let rootfs = lab.rootfs();
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        std::process::Command::new(program).current_dir(&applied).args(args).output().unwrap()
    };
    run("cp", &["-a".as_ref(), rootfs.join(".").as_os_str(), ".".as_ref()]);
    let file = applied.with_extension("patch");
    let without = shown.replace("diff --git a/bin b/bin\n", "");
    put(&file, without.as_bytes());
    let git = run("git", &["apply".as_ref(), file.as_os_str()]);
    assert!(git.status.success(), "{}\n{shown}", String::from_utf8_lossy(&git.stderr));
    let mut want = lab.view(&lab.lowers());
    let mut got = super::walk::walk(&applied);
    for tree in [&mut want, &mut got] {
        tree.remove(&b"/bin"[..]);
        tree.values_mut().for_each(|item| item.mtime = None);
        tree.get_mut(&b"/"[..]).unwrap().mode = 0;
    }
    assert!(got == want, "{:#?}", truth(&want, &got));
    assert_eq!(diff.changes.iter().filter(|change| change.kind == Kind::Renamed).count(), 1);
}

/// Both values of what has short ones, owners as the container sees them; of the rest the name.
#[test]
fn a_patch_tells_metadata_before_and_after() {
    let mut lab = Lab::new(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        for name in ["file", "dir"] {
            touch(&root.join(name), 1_000_000_000, 0);
        }
    });
    lab.exec(|root| {
        for name in ["file", "dir"] {
            std::os::unix::fs::chown(root.join(name), Some(100_001), Some(100_002)).unwrap();
            setxattr(root.join(name), "user.short", b"a\x1b[m", XattrFlags::empty()).unwrap();
        }
        setxattr(root.join("file"), "user.long", &[b'x'; 65], XattrFlags::empty()).unwrap();
        acl(root.join("file"));
        touch(&root.join("file"), 1_000_000_001, 5_000_000);
    });
    let fds = open_all(&lab.lowers());
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let diff = lab.diff(1, &lab.options());
    let inside = |uid: u32, gid: u32| (uid.saturating_sub(100_000), gid.saturating_sub(100_000));
    let text = patch_of(&fds[..1], &fds[1..], &diff, &inside);
    let long = "x".repeat(64);
    let wanted = format!(
        "Metadata of /dir changed: owner 0:0 -> 1:2, xattr:user.short none -> \"a\\x1b[m\"\n\
         Metadata of /file changed: mode 0644 -> 0640, owner 0:0 -> 1:2, mtime 2001-09-09T01:46:40Z -> 2001-09-09T01:46:41.005Z, acl, \
         xattr:user.long none -> \"{long}\"… (65 bytes), xattr:user.short none -> \"a\\x1b[m\"\n"
    );
    assert_eq!(String::from_utf8(text).unwrap(), wanted);
}

/// A file or directory (a file is made) with this modification time.
fn touch(path: &Path, seconds: i64, nanoseconds: i64) {
    if !path.exists() {
        put(path, b"");
    }
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// A renamed file's capabilities can differ, and git's form has no word for them.
#[test]
fn a_patch_tells_what_else_differs_in_a_renamed_file() {
    let mut lab = Lab::new(|root| put(root.join("old"), b"moved with another attribute\n"));
    lab.exec(|root| {
        rustix::fs::rename(root.join("old"), root.join("renamed")).unwrap();
        // VFS_CAP_REVISION_2 with the effective bit, and CAP_NET_BIND_SERVICE permitted.
        let value: Vec<u8> = [0x0200_0001_u32, 1 << 10, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        setxattr(root.join("renamed"), "security.capability", &value, XattrFlags::empty()).unwrap();
    });
    let fds = open_all(&lab.lowers());
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let diff = lab.diff(1, &Options { renames: true, ..lab.options() });
    let text = patch_of(&fds[..1], &fds[1..], &diff, &|uid, gid| (uid, gid));
    let shown = String::from_utf8(text).unwrap();
    let wanted = "Metadata of /renamed changed: capability\ndiff --git a/old b/renamed\nsimilarity index 100%\n\
                  rename from old\nrename to renamed\n";
    assert_eq!(shown, wanted);
}

#[test]
fn the_root_filesystem_may_be_a_live_overlay() {
    let mut inner = Lab::new(base);
    inner.exec(|root| {
        fs::remove_file(root.join("h")).unwrap();
        acl(root.join("g"));
        put(root.join("d/e/z"), b"z");
    });
    let engine_upper = inner.scratch("engine");
    let engine = inner.mount(&engine_upper, &inner.lowers());
    let upper = inner.scratch("upper");
    let ours = inner.mount(&upper, &[engine.root()]);
    let root = ours.root();
    let before = super::walk::walk(&root);
    put(root.join("h"), b"again");
    drop(File::options().write(true).open(root.join("g")).unwrap());
    chmod(root.join("same"), 0o600);
    fs::remove_dir_all(root.join("d")).unwrap();
    let after = super::walk::walk(&root);
    let file = File::open(&upper).unwrap();
    let diff = crate::diff::compare(&[file.as_fd()], &[engine.fd()], &inner.options()).unwrap();
    assert_eq!(lines(&diff), truth(&before, &after));
    assert_eq!(diff.unchanged, [PathBytes::from("/g")]);
}

#[test]
fn a_lower_tree_that_changes_meanwhile_is_no_error() {
    let fill = |root: &Path| {
        for i in 0..40 {
            let dir = root.join(format!("d{i}"));
            let _ = fs::create_dir(&dir);
            (0..5).for_each(|f| put(dir.join(format!("f{f}")), b"12345"));
        }
    };
    let mut lab = Lab::new(fill);
    lab.exec(|root| {
        fill(root);
        fs::remove_dir_all(root.join("d0")).unwrap();
    });
    let stop = std::sync::atomic::AtomicBool::new(false);
    let rootfs = lab.rootfs();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for i in 0..40 {
                    let dir = rootfs.join(format!("d{i}"));
                    let file = dir.join("f1");
                    let _ = fs::remove_file(&file);
                    let _ = mknodat(CWD, &file, RawType::Fifo, Mode::RWXU, 0);
                    let _ = fs::remove_file(&file);
                    let _ = symlink("f0", &file);
                    let _ = fs::remove_file(&file);
                    let _ = fs::remove_dir_all(&dir);
                    let _ = symlink("d0", &dir);
                    let _ = fs::remove_file(&dir);
                }
                // What the walk must cope with is made anew, by names that may be directories, links or nothing.
                for i in 0..40 {
                    let dir = rootfs.join(format!("d{i}"));
                    let _ = fs::create_dir(&dir);
                    for f in 0..5 {
                        let _ = File::create(dir.join(format!("f{f}"))).and_then(|mut file| file.write_all(b"12345"));
                    }
                }
            }
        });
        for _ in 0..150 {
            let result = {
                let fds = open_all(&lab.lowers());
                let options = Options { renames: true, ..lab.options() };
                crate::diff::compare(&[fds[0].as_fd()], &[fds[1].as_fd()], &options)
            };
            if result.is_err() {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            let error = result.err().map(|error| crate::error::chain(&error));
            assert_eq!(error, None);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[cfg(feature = "schema")]
#[test]
fn real_changes_validate_against_the_schema() {
    let schema = serde_json::to_value(schemars::schema_for!(Vec<crate::diff::Change>)).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut lab = Lab::new(|root| {
        base(root);
        TYPES.iter().for_each(|file_type| make(&root.join(format!("old-{file_type}")), file_type));
    });
    let diff = lab.check(|root| {
        TYPES.iter().for_each(|file_type| make(&root.join(file_type), file_type));
        put(root.join(std::ffi::OsStr::from_bytes(b"\xff")), b"");
        acl(root.join("f"));
        xattr(root.join("f"), "user.a", b"");
        capability(root.join("g"));
        chmod(root.join("h"), 0o4755);
        fs::remove_dir_all(root.join("old-directory")).unwrap();
        fs::remove_file(root.join("old-file")).unwrap();
        fs::create_dir(root.join("old-file")).unwrap();
        fs::hard_link(root.join("same"), root.join("also")).unwrap();
    });
    let document = serde_json::to_value(&diff.changes).unwrap();
    let errors: Vec<String> = validator.iter_errors(&document).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let mut wrong = document.clone();
    wrong[0]["mode"] = "644".into();
    assert!(!validator.is_valid(&wrong));
    let summary = serde_json::to_value(schemars::schema_for!(crate::diff::Summary)).unwrap();
    assert!(jsonschema::is_valid(&summary, &serde_json::to_value(diff.summary).unwrap()));
}
