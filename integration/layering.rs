//! The map of the house: which module may use which, checked against the `use crate::` lines of the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::images::repository;

/// Module and what it may import. A submodule counts as its top module; tests inside a file, after its `#[cfg(test)]`,
/// may use what they like.
const MAP: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("id", &["error"]),
    ("terms", &["error"]),
    ("sys", &["error"]),
    ("durable", &["sys", "error"]),
    ("config", &["terms", "id", "error"]),
    ("telemetry", &["error"]),
    ("spec", &["durable", "id", "error"]),
    ("policy", &["spec", "sys", "config", "terms", "error"]),
    ("rootfs", &["sys", "error"]),
    // The event log's hash goes into the transaction that the event tells of.
    ("store", &["audit", "durable", "terms", "id", "error"]),
    // What is applied to the host is put in its place by `durable`.
    ("diff", &["sys", "durable", "error"]),
    ("audit", &["durable", "id", "error"]),
    ("report", &["diff", "durable", "terms", "id", "error"]),
    ("runtime", &["init", "rootfs", "policy", "spec", "sys", "durable", "telemetry", "terms", "id", "error"]),
    ("init", &["rootfs", "policy", "spec", "sys", "error"]),
    (
        "ops",
        &[
            "runtime",
            "spec",
            "policy",
            "rootfs",
            "store",
            "diff",
            "audit",
            "report",
            "sys",
            "durable",
            "config",
            "telemetry",
            "terms",
            "id",
            "error",
        ],
    ),
    // A front door makes requests and prints values: it knows their types, and does nothing by itself.
    (
        "cli",
        &["ops", "runtime", "store", "diff", "report", "spec", "sys", "config", "telemetry", "terms", "id", "error"],
    ),
    // Threaded, so it runs the program and never clones.
    ("shim", &["ops", "report", "spec", "sys", "durable", "config", "telemetry", "terms", "id", "error"]),
];

/// Every `.rs` file below `dir`, in order.
pub fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("readdir").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The top modules that a file's code names after `crate::`.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = lines.join("\n");
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut name = String::new();
            for c in group.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => found.extend(first_word(&std::mem::take(&mut name))),
                    c if depth == 0 => name.push(c),
                    _ => {}
                }
            }
            found.extend(first_word(&name));
        } else {
            found.extend(first_word(rest));
        }
    }
    found
}

fn first_word(text: &str) -> Option<String> {
    let word: String = text.trim().chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    (!word.is_empty()).then_some(word)
}

/// No module imports what its row does not list, and no module is without a row.
#[test]
fn modules_import_only_what_the_map_allows() {
    let src = repository().join("src");
    let mut wrong = Vec::new();
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).expect("below src");
        let top = relative.components().next().expect("a name").as_os_str().to_string_lossy();
        let module = top.trim_end_matches(".rs");
        if matches!(module, "lib" | "main" | "bin") {
            continue;
        }
        let Some((_, allowed)) = MAP.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{}: module {module} is not on the map", relative.display()));
            continue;
        };
        for import in imports(&fs::read_to_string(&path).expect("read")) {
            if import != module && !allowed.contains(&import.as_str()) {
                wrong.push(format!("{}: {module} must not import {import}", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// System calls that Rust cannot check are in one place.
#[test]
fn unsafe_is_in_sys_alone() {
    let src = repository().join("src");
    for path in sources(&src) {
        let text = fs::read_to_string(&path).expect("read");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found =
            code.filter(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe")).count();
        assert!(found == 0 || path.starts_with(src.join("sys")), "{}: {found} lines with unsafe", path.display());
    }
}

/// A file opens with its one idea and is no longer than 800 lines.
#[test]
fn files_open_with_their_idea_and_are_short() {
    for dir in ["src", "integration"] {
        for path in sources(&repository().join(dir)) {
            let text = fs::read_to_string(&path).expect("read");
            assert!(text.starts_with("//! "), "{}: no `//!` paragraph at the top", path.display());
            assert!(text.lines().count() <= 800, "{}: {} lines", path.display(), text.lines().count());
        }
    }
}

#[test]
fn imports_are_read_from_groups_and_paths() {
    let text = "use crate::{id::A, sys::{b, c}, error::Kind as K};\nfn f() { crate::store::open() }\n// crate::cli\n\
                #[cfg(test)]\nmod tests { use crate::ops::x; }";
    let found: Vec<_> = imports(text).into_iter().collect();
    assert_eq!(found, ["error", "id", "store", "sys"]);
}
