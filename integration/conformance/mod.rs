//! What the specification and runc promise, and what users of runtimes have reported: each test says what must hold, and
//! where runc is there runs the same through it.

mod exec;
mod hooks;
pub mod lab;
mod life;
mod mounts;
mod process;
mod reports;

use std::fs;

use crate::support::images::repository;

/// Every test that docs/conformance.md names is there: `MODULE::…::NAME` of integration/, with `c` for this folder.
#[test]
fn the_document_names_tests_that_exist() {
    let text = fs::read_to_string(repository().join("docs/conformance.md")).expect("read");
    let mut seen = 0;
    let mut missing = Vec::new();
    for name in text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.contains("::") && !word.ends_with("::") && !word.contains(' '))
    {
        let parts: Vec<&str> = name.split("::").collect();
        let folder = if parts[0] == "c" { "conformance" } else { parts[0] };
        let place = repository().join("integration").join(folder);
        let file = match (place.is_dir(), parts.get(1)) {
            (true, Some(module)) => place.join(format!("{module}.rs")),
            _ => place.with_extension("rs"),
        };
        // Modules of src/ are named as such.
        let own = repository().join("src").join(parts[0]).is_dir() && !place.is_dir();
        let found = match fs::read_to_string(&file) {
            Ok(source) => {
                parts.len() < 3 && place.is_dir() || source.contains(&format!("fn {}()", parts[parts.len() - 1]))
            }
            Err(_) => own,
        };
        seen += 1;
        if !found {
            missing.push(name);
        }
    }
    assert!(seen > 50 && missing.is_empty(), "{seen} names, missing: {missing:?}");
}
