//! The ways to change a filesystem: what is there, and what an exec makes of it, in the player's words.

use super::session::quote;

/// One way.
pub struct Case {
    /// Its name, and that of the directory below `/t` that it happens in.
    pub name: String,
    /// Makes what is there before.
    pub image: Vec<String>,
    /// Changes it.
    pub change: Vec<String>,
}

/// `@` is the case's own directory.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The ACL of one named user, rw for the owner (see acl(5), `linux/posix_acl_xattr.h`).
const ACL: &str = "%02%00%00%00%01%00%06%00%ff%ff%ff%ff%02%00%04%00%e8%03%00%00%04%00%04%00%ff%ff%ff%ff\
                   %10%00%04%00%ff%ff%ff%ff%20%00%00%00%ff%ff%ff%ff";
/// `cap_net_bind_service=ep`, revision 2.
const CAPABILITY: &str = "%01%00%00%02%00%04%00%00%00%00%00%00%00%00%00%00%00%00%00%00";
/// The same without the effective bit.
const OTHER_CAPABILITY: &str = "%00%00%00%02%00%04%00%00%00%00%00%00%00%00%00%00%00%00%00%00";

const TREE: &[&str] = &[
    "mkdir @/d",
    "put @/d/x old",
    "mkdir @/d/e",
    "put @/d/e/y deep",
    "symlink x @/d/l",
    "put @/f file",
    "touch @/f 5 6",
];

const ROWS: &[Row] = &[
    ("nothing", TREE, &[]),
    ("added", &[], &["put @/new hello", "put @/empty", "symlink /nowhere @/link", "fifo @/pipe", "socket @/s"]),
    ("new-empty-directory", &[], &["mkdir @/new"]),
    ("new-directories", &[], &["mkdir @/a", "mkdir @/a/b", "mkdir @/a/b/c", "put @/a/b/c/f x"]),
    ("added-and-deleted", TREE, &["put @/t x", "rm @/t", "mkdir @/u", "put @/u/x x", "rmtree @/u"]),
    ("modified-size", TREE, &["append @/f more"]),
    ("modified-same-size", TREE, &["put @/f FILE"]),
    ("modified-in-disguise", TREE, &["disguise @/f FILE", "disguise @/d/x new"]),
    ("modified-and-back", TREE, &["put @/f FILE", "put @/f file", "touch @/f 5 6"]),
    ("modified-and-back-later", TREE, &["put @/f FILE", "put @/f file"]),
    ("copied-up-as-it-is", TREE, &["open @/f", "open @/d/e/y"]),
    ("emptied", TREE, &["put @/f", "truncate @/d/x 0"]),
    ("truncated", TREE, &["truncate @/f 2", "truncate @/d/x 100"]),
    ("deleted", TREE, &["rm @/f", "rm @/d/l"]),
    ("deleted-directory", TREE, &["rmtree @/d"]),
    ("deleted-and-made-anew", TREE, &["rmtree @/d", "mkdir @/d", "put @/d/x new"]),
    ("deleted-and-made-anew-empty", TREE, &["rmtree @/d", "mkdir @/d"]),
    (
        "deleted-and-made-anew-alike",
        TREE,
        &["rmtree @/d/e", "mkdir @/d/e", "put @/d/e/y deep", "rm @/f", "put @/f file", "touch @/f 5 6"],
    ),
    (
        "deleted-and-made-anew-twice",
        TREE,
        &["rmtree @/d", "mkdir @/d", "put @/d/z 1", "rmtree @/d", "mkdir @/d", "mkdir @/d/e", "put @/d/e/new x"],
    ),
    (
        "anew-inside-anew",
        TREE,
        &["rmtree @/d/e", "mkdir @/d/e", "rmtree @/d", "mkdir @/d", "mkdir @/d/e", "put @/d/e/y deep"],
    ),
    ("chmod", TREE, &["chmod @/f 600", "chmod @/d 700"]),
    ("chmod-and-back", TREE, &["chmod @/f 600", "chmod @/f 644", "chmod @/d 700", "chmod @/d 755"]),
    ("special-bits", TREE, &["chmod @/f 6755", "chmod @/d 3777", "chmod @/d/x 4700", "chmod @/d/e 1755"]),
    ("mode-000", TREE, &["chmod @/f 0", "chmod @/d 0", "chmod @/d/e 0"]),
    (
        "mode-000-below",
        &["mkdir @/d", "put @/d/x x", "chmod @/d/x 0", "chmod @/d 0"],
        &["append @/d/x y", "put @/d/n n"],
    ),
    ("chown", TREE, &["chown @/f 5 6", "chown @/d 7 -1", "chown @/d/l 8 9"]),
    ("chown-clears-setuid", &["put @/f x", "chmod @/f 6755"], &["chown @/f 5 6"]),
    ("written-clears-setuid", &["put @/f x", "chmod @/f 6755"], &["append @/f y"]),
    ("xattr-set", TREE, &["setx @/f user.a 1", "setx @/d user.a 1", "setx @/d/x trusted.b"]),
    (
        "xattr-changed",
        &["put @/f x", "setx @/f user.a 1", "mkdir @/d", "setx @/d user.a 1"],
        &["setx @/f user.a 2", "setx @/d user.a 22"],
    ),
    (
        "xattr-removed",
        &["put @/f x", "setx @/f user.a 1", "mkdir @/d", "setx @/d user.a 1"],
        &["rmx @/f user.a", "rmx @/d user.a"],
    ),
    ("xattr-and-back", &["put @/f x", "setx @/f user.a 1"], &["setx @/f user.a 2", "setx @/f user.a 1"]),
    ("xattr-odd-names", TREE, &["setx @/f user.%ff%0a%22 1", "setx @/f user.a%20b 2", "setx @/d user.\\ %00%01"]),
    ("xattr-and-content", TREE, &["put @/f other", "setx @/f user.a 1", "chmod @/f 600"]),
    ("acl", TREE, &["setx @/f system.posix_acl_access ACL", "setx @/d system.posix_acl_default ACL"]),
    ("acl-removed", &["put @/f x", "setx @/f system.posix_acl_access ACL"], &["rmx @/f system.posix_acl_access"]),
    ("acl-inherited", &["mkdir @/d", "setx @/d system.posix_acl_default ACL"], &["put @/d/new x", "mkdir @/d/sub"]),
    ("capability", TREE, &["setx @/f security.capability CAPABILITY"]),
    (
        "capability-changed",
        &["put @/f x", "setx @/f security.capability CAPABILITY"],
        &["setx @/f security.capability OTHER"],
    ),
    ("capability-lost", &["put @/f x", "setx @/f security.capability CAPABILITY"], &["append @/f y"]),
    ("capability-removed", &["put @/f x", "setx @/f security.capability CAPABILITY"], &["rmx @/f security.capability"]),
    ("touch-file", TREE, &["touch @/f 1000000000 123456789", "touch @/d/l 7 0"]),
    ("touch-nanosecond", TREE, &["touch @/f 5 7"]),
    ("touch-before-1970", TREE, &["touch @/f -5 6"]),
    ("touch-directory", TREE, &["touch @/d 1000000000 1"]),
    ("moved", TREE, &["mv @/f @/g", "mv @/d/l @/m"]),
    ("moved-elsewhere", TREE, &["mv @/f @/d/e/f"]),
    ("moved-there-and-back", TREE, &["mv @/f @/g", "mv @/g @/f"]),
    ("moved-over", TREE, &["mv @/f @/d/x"]),
    ("swapped", &["put @/a 1", "put @/b 2"], &["mv @/a @/t", "mv @/b @/a", "mv @/t @/b"]),
    ("exchanged", &["put @/a 1", "put @/b 22", "chmod @/b 600"], &["exchange @/a @/b"]),
    (
        "exchanged-types",
        &["put @/a 1", "symlink x @/b", "mkdir @/c"],
        &["exchange @/a @/b", "mkdir @/n", "?exchange @/n @/a"],
    ),
    ("moved-and-changed", TREE, &["mv @/f @/g", "append @/g x", "mv @/d/x @/d/z", "chmod @/d/z 600"]),
    ("moved-and-attribute", TREE, &["mv @/f @/g", "setx @/g user.a 1"]),
    (
        "moved-and-capability",
        &["put @/f x", "put @/g y", "setx @/g security.capability CAPABILITY"],
        &["mv @/f @/f2", "setx @/f2 security.capability CAPABILITY", "mv @/g @/g2", "rmx @/g2 security.capability"],
    ),
    ("moved-empty", &["put @/a", "put @/b"], &["mv @/a @/c"]),
    (
        "moved-many-alike",
        &["put @/a 1", "put @/b 1", "put @/c 1", "touch @/a 1 1", "touch @/b 1 1", "touch @/c 1 1", "mkdir @/d"],
        &["mv @/a @/d/a", "mv @/b @/d/z", "mv @/c @/d/y"],
    ),
    ("moved-tree", TREE, &["!mv @/d @/n", "sh mv%20@/d%20@/n"]),
    (
        "moved-tree-over-another",
        &[
            "mkdir @/d",
            "put @/d/x old",
            "mkdir @/d/e",
            "put @/d/e/y deep",
            "mkdir @/n",
            "put @/n/gone 1",
            "put @/n/x other",
        ],
        &["sh rm%20-r%20@/n;mv%20@/d%20@/n"],
    ),
    ("moved-new-tree", TREE, &["mkdir @/a", "put @/a/1 1", "mv @/a @/b", "mkdir @/b/c", "mv @/b @/d/b"]),
    ("moved-new-tree-over-old", TREE, &["mkdir @/n", "put @/n/z z", "put @/n/x old", "rmtree @/d", "mv @/n @/d"]),
    ("moved-new-tree-over-empty", &["mkdir @/d"], &["mkdir @/n", "put @/n/z z", "mv @/n @/d"]),
    ("moved-out-of-deleted", TREE, &["mv @/d/e/y @/saved", "rmtree @/d"]),
    ("moved-whiteout", TREE, &["?mv-whiteout @/f @/g"]),
    ("links-new", TREE, &["put @/n 1", "link @/n @/m", "link @/n @/d/o"]),
    ("links-to-old", TREE, &["link @/f @/d/also", "link @/f @/a"]),
    ("links-to-old-symlink", TREE, &["link @/d/l @/also"]),
    ("links-one-side-changed", &["put @/a 1", "link @/a @/b", "link @/a @/c"], &["append @/b x"]),
    ("links-one-side-chmod", &["put @/a 1", "link @/a @/b"], &["chmod @/a 600"]),
    ("links-one-deleted", &["put @/a 1", "link @/a @/b", "link @/a @/c"], &["rm @/b"]),
    ("links-opened", &["put @/a 1", "link @/a @/b"], &["open @/a"]),
    ("links-replaced", &["put @/a 1", "link @/a @/b"], &["rm @/a", "put @/a 1", "link @/a @/c"]),
    ("links-then-written", TREE, &["link @/f @/g", "append @/g x"]),
    ("links-then-first-gone", TREE, &["link @/f @/g", "rm @/f"]),
    ("links-of-pipes", &["fifo @/p"], &["link @/p @/q", "fifo @/n", "link @/n @/o"]),
    (
        "links-in-anew",
        &["mkdir @/d", "put @/d/a 1", "put @/d/b 1"],
        &["put @/a 1", "rmtree @/d", "mkdir @/d", "link @/a @/d/a", "link @/a @/d/b"],
    ),
    ("sparse-new", &[], &["write-at @/s 1099511627775 x", "truncate @/t 1099511627776"]),
    ("sparse-changed", &["write-at @/s 549755813888 x", "truncate @/s 1099511627776"], &["write-at @/s 1000000000 y"]),
    ("sparse-same", &["write-at @/s 549755813888 x", "truncate @/s 1099511627776"], &["open @/s", "chmod @/s 600"]),
    (
        "sparse-zeros-written-over",
        &["truncate @/s 10000000", "touch @/s 1 1"],
        &["write-at @/s 5000000 %00%00%00", "touch @/s 1 1"],
    ),
    ("sparse-zeros-written", &["truncate @/s 10000000"], &["write-at @/s 5000000 %00%00%00"]),
    ("sparse-moved", &["write-at @/s 549755813888 x"], &["mv @/s @/t"]),
    ("symlink-retargeted", TREE, &["rm @/d/l", "symlink y @/d/l"]),
    ("symlink-anew-alike", TREE, &["rm @/d/l", "symlink x @/d/l"]),
    (
        "symlink-odd-targets",
        &[],
        &["symlink %ff%fe @/a", "symlink a%0ab @/b", "symlink {%22pathBase64%22:%22AA==%22} @/c"],
    ),
    (
        "written-through-symlinks",
        &[
            "mkdir @/d",
            "put @/d/x old",
            "symlink d/x @/relative",
            "symlink /@/d/x @/absolute",
            "symlink d @/dir",
            "put @/d/y 1",
            "symlink /@/d/new @/dangling",
        ],
        &["append @/relative a", "append @/absolute b", "put @/dir/y 2", "put @/dir/z 3", "put @/dangling 4"],
    ),
    (
        "rdev-changed",
        &["char @/c 240 1", "block @/b 240 1"],
        &["rm @/c", "char @/c 240 2", "rm @/b", "block @/b 241 1"],
    ),
    ("rdev-anew-alike", &["char @/c 240 1", "touch @/c 1 1"], &["rm @/c", "char @/c 240 1", "touch @/c 1 1"]),
    (
        "device-chmod",
        &["char @/c 240 1", "fifo @/p", "socket @/s"],
        &["chmod @/c 644", "chown @/p 1 1", "touch @/s 9 9"],
    ),
    ("written-while-deleted", TREE, &["write-unlinked @/f lost", "write-unlinked @/never lost"]),
    ("tmpfile-linked", TREE, &["tmpfile @ @/from-nowhere data", "rm @/f", "tmpfile @/d @/f data"]),
    (
        "names-of-whiteouts",
        &["put @/x 1", "mkdir @/d", "put @/d/y 1"],
        &[
            "put @/.wh.x",
            "put @/d/.wh..wh..opq",
            "put @/.wh..wh.plnk 1",
            "mkdir @/.wh.d",
            "put @/.wh.d/.wh. 1",
            "mkdir @/work",
        ],
    ),
    (
        "names-of-whiteouts-there",
        &["put @/x 1", "put @/.wh.x", "mkdir @/d", "put @/d/.wh..wh..opq"],
        &["rm @/.wh.x", "put @/d/.wh..wh..opq 1", "rm @/x"],
    ),
    (
        "hostile-marks",
        TREE,
        &[
            "!char @/w 0 0",
            "?setx @/d trusted.overlay.opaque y",
            "?setx @/d/e trusted.overlay.opaque x",
            "?setx @/f trusted.overlay.whiteout y",
            "?setx @/f trusted.overlay.metacopy",
            "?setx @/f trusted.overlay.redirect /etc",
            "?setx @/d trusted.overlay.origin",
            "?setx @/d trusted.overlay.overlay.opaque y",
            "?setx @/d/x trusted.overlay.impure y",
        ],
    ),
    (
        "hostile-user-marks",
        TREE,
        &[
            "setx @/d user.overlay.opaque y",
            "setx @/d/e user.overlay.opaque x",
            "put @/d/e/y",
            "setx @/d/e/y user.overlay.whiteout y",
            "setx @/f user.overlay.redirect /etc",
            "setx @/f user.overlay.metacopy",
        ],
    ),
    ("hostile-whiteout-move", TREE, &["put @/n x", "!mv-whiteout @/n @/o", "!mv-whiteout @/d/x @/o"]),
    ("deep", &[], &["deep @ 30 200"]),
    ("deep-changed", &["deep @ 30 200"], &["deep @ 31 200"]),
    ("deep-deleted", &["deep @ 30 200"], &["rmtree @/DEEP"]),
    ("many-levels", &[], &["deep @ 900 1"]),
    ("wide", &["many @ 4 30 1"], &["many @ 4 40 2"]),
];

const TYPES: &[(&str, &str)] = &[
    ("file", "put @/p content"),
    ("empty-directory", "mkdir @/p"),
    ("directory", "mkdir @/p|put @/p/inside x|mkdir @/p/more|put @/p/more/x x"),
    ("symlink", "symlink target @/p"),
    ("fifo", "fifo @/p"),
    ("socket", "socket @/p"),
    ("char", "char @/p 240 1"),
    ("block", "block @/p 240 2"),
];

/// Each byte string a name: of files, of one directory, of a symbolic link's target, there before and new.
fn odd_names() -> Vec<Vec<u8>> {
    let texts = [
        "new\nline",
        "spa ce",
        "back\\slash",
        "co:lon",
        "com,ma",
        "dou\"ble",
        "sin'gle",
        "-rf",
        "--",
        "...",
        " ",
        "\t",
        "*",
        "~",
        "$(x)",
        "{\"path\":1}",
        "[\"a\"]",
        "null",
        "\u{7f}",
        "\u{1b}[31m",
        "ünï",
        "\u{202e}",
        "\u{fffd}",
        "%41",
    ];
    let mut names: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    names.extend([b"\xff".to_vec(), b"\xc3".to_vec(), b"a\xed\xa0\x80".to_vec(), vec![b'n'; 255], vec![0xfe; 255]]);
    names
}

/// All of them.
pub fn all() -> Vec<Case> {
    let words = |name: &str, lines: &[&str]| -> Vec<String> {
        let deep = "d".repeat(200);
        let replace = |line: &&str| {
            let line = line.replace("CAPABILITY", CAPABILITY).replace("OTHER", OTHER_CAPABILITY).replace("ACL", ACL);
            line.replace("DEEP", &deep).replace('@', &format!("t/{name}"))
        };
        lines.iter().map(replace).collect()
    };
    let case = |name: &str, image: &[&str], change: &[&str]| {
        let make = [vec![format!("mkdir t/{name}")], words(name, image)].concat();
        Case { name: name.to_owned(), image: make, change: words(name, change) }
    };
    let mut cases: Vec<Case> = ROWS.iter().map(|(name, image, change)| case(name, image, change)).collect();
    for (old, make_old) in TYPES {
        let old_lines: Vec<&str> = make_old.split('|').collect();
        for (new, make_new) in TYPES.iter().filter(|(new, _)| new != old) {
            let change: Vec<&str> = ["rmtree @/p"].into_iter().chain(make_new.split('|')).collect();
            cases.push(case(&format!("{old}-to-{new}"), &old_lines, &change));
        }
    }
    let names = odd_names();
    let at = |name: &[u8]| format!("t/names/{}", quote(name));
    let mut image = vec!["mkdir t/names".to_owned()];
    let mut change = Vec::new();
    for (n, name) in names.iter().enumerate() {
        match n % 3 {
            0 => {
                image.push(format!("put {} 1", at(name)));
                change.push(if n % 2 == 0 { format!("append {} 2", at(name)) } else { format!("rm {}", at(name)) });
            }
            1 => {
                change.extend([format!("mkdir {}", at(name)), format!("put {}/{} 1", at(name), quote(name))]);
            }
            _ => change.push(format!("symlink {} {}", quote(name), at(name))),
        }
    }
    cases.push(Case { name: "names".into(), image, change });
    cases
}
