//! The tables of docs/strict.md are made from those that are enforced.

use std::path::Path;

use super::*;

/// Name and text of each table.
fn tables() -> Vec<(&'static str, String)> {
    let two = |rows: &[(&str, &str)]| rows.iter().map(|(a, b)| format!("| `{a}` | {b} |\n")).collect::<String>();
    let head = |names: &str| format!("{names}\n|{}\n", "---|".repeat(names.matches('|').count() - 1));
    let namespaces: String =
        NAMESPACES.iter().map(|(kind, word, why)| format!("| {kind} | `{word}` | {why} |\n")).collect();
    let filesystems: String = FILESYSTEMS
        .iter()
        .map(|fs| {
            let at = fs.at.map_or_else(|| "anywhere".to_owned(), |at| format!("`{at}`"));
            format!("| {} | {at} | `nosuid,{}` | {} |\n", fs.kind, fs.flags.join(","), fs.why)
        })
        .collect();
    let sources: String = SOURCES
        .iter()
        .map(|(path, reach, why)| {
            let reach = match reach {
                Reach::Itself => "",
                Reach::Read => "; below it read-only",
                Reach::Directories => ", and directories below",
                Reach::Below => " and below",
            };
            format!("| `{path}`{reach} | {why} |\n")
        })
        .collect();
    let devices: String = DEVICES
        .iter()
        .map(|(path, major, minor)| {
            format!("| `{path}` | {major}:{} |\n", minor.map_or_else(|| "*".to_owned(), |n| n.to_string()))
        })
        .collect();
    let names =
        |list: Vec<&str>| format!("{}.\n", list.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "));
    vec![
        ("capabilities", head("| capability | why |") + &two(CAPABILITIES)),
        ("namespaces", head("| kind | word of `allow` | with the host's |") + &namespaces),
        ("filesystems", head("| type | where | flags | why |") + &filesystems),
        ("sources", head("| path of the host | what is there |") + &sources),
        ("magic", names(MAGIC.iter().map(|(_, name)| *name).collect())),
        ("programs", names(PROGRAMS.to_vec())),
        ("proc-files", names(PROC_FILES.to_vec())),
        ("masked", head("| path | what is there |") + &two(MASKED)),
        ("read-only", head("| path | what is there |") + &two(READ_ONLY)),
        ("devices", head("| device | number |") + &devices),
        ("sysctls", head("| parameter | needs its own |") + &two(SYSCTLS)),
    ]
}

/// With AGENTSBX_WRITE_DOCS=1 the file is rewritten instead of compared.
#[test]
fn the_document_has_what_is_enforced() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/strict.md");
    let before = std::fs::read_to_string(&path).unwrap();
    let mut text = before.clone();
    for (name, table) in tables() {
        let (open, close) =
            (format!("<!-- {name}: begin (made of src/policy/strict.rs) -->\n"), format!("<!-- {name}: end -->\n"));
        let start = text.find(&open).unwrap_or_else(|| panic!("no {open:?} in docs/strict.md")) + open.len();
        let end = start + text[start..].find(&close).unwrap_or_else(|| panic!("no {close:?} in docs/strict.md"));
        text.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("AGENTSBX_WRITE_DOCS").is_some_and(|v| v == "1") {
        std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes()).unwrap();
        return;
    }
    assert!(before == text, "docs/strict.md is out of date: AGENTSBX_WRITE_DOCS=1 cargo test --lib strict::docs");
}

/// Each table is sorted as people look things up in it, and has nothing twice.
#[test]
fn the_tables_are_in_order() {
    let sorted = |name: &str, keys: Vec<String>| {
        let mut want = keys.clone();
        want.sort();
        want.dedup();
        assert_eq!(keys, want, "{name}");
    };
    sorted("capabilities", CAPABILITIES.iter().map(|row| row.0.to_owned()).collect());
    sorted("sources", SOURCES.iter().map(|row| row.0.to_owned()).collect());
    sorted("masked", MASKED.iter().map(|row| row.0.to_owned()).collect());
    sorted("read-only", READ_ONLY.iter().map(|row| row.0.to_owned()).collect());
    sorted("sysctls", SYSCTLS.iter().map(|row| row.0.to_owned()).collect());
    sorted("programs", PROGRAMS.iter().map(|row| (*row).to_owned()).collect());
}
