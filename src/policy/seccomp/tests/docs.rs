//! docs/strict.md tells of every refusal what the list says.

use oci_spec::runtime::LinuxSeccompAction;

use super::super::rules::{List, Rule};

/// Where the table begins and ends in the document.
const BEGIN: &str = "<!-- system calls: begin (the table is made of src/policy/strict/seccomp.json) -->\n";
const END: &str = "<!-- system calls: end -->\n";

fn errno(number: u16) -> &'static str {
    match i32::from(number) {
        libc::EPERM => "EPERM",
        libc::ENOSYS => "ENOSYS",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        other => panic!("errno {other}"),
    }
}

fn table() -> String {
    let list = List::read().unwrap();
    let named = |rule: &Rule| {
        let names: Vec<String> = rule.names.iter().map(|name| format!("`{name}`")).collect();
        match &rule.when {
            Some(when) => format!("{} with {when}", names.join(", ")),
            None => names.join(", "),
        }
    };
    let mut text = "| refused | answer | why | what usual programs do |\n|---|---|---|---|\n".to_owned();
    let refused = |rule: &&Rule| rule.action == LinuxSeccompAction::ScmpActErrno;
    for rule in list.syscalls.iter().filter(refused) {
        let said = |text: &Option<String>| text.clone().unwrap_or_default();
        let cells = [named(rule), errno(rule.errno_ret).to_owned(), said(&rule.why), said(&rule.then)];
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text.push_str("\n| allowed | why |\n|---|---|\n");
    for rule in list.syscalls.iter().filter(|rule| !refused(rule)) {
        if let Some(why) = &rule.why {
            text.push_str(&format!("| {} | {why} |\n", named(rule)));
        }
    }
    text
}

/// `AGENTSBX_WRITE_DOCS=1 cargo test --lib docs` writes the table anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "a document of the repository needs no durability")]
fn the_table_in_the_docs_is_the_list() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/strict.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (is, after) = rest.split_once(END).expect("the end of the table");
    let table = table();
    if std::env::var_os("AGENTSBX_WRITE_DOCS").is_some() {
        let new = [before, BEGIN, &table, END, after].concat();
        std::fs::write(path, new).unwrap();
        return;
    }
    assert!(is == table, "the table in docs/strict.md is old: AGENTSBX_WRITE_DOCS=1 cargo test --lib docs");
}
