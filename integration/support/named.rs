//! Documents name the tests that show what they claim; here is looked whether there are such tests.

use std::fs;

use super::images::repository;

/// How many tests a document of the repository names, and those that are not there. A name stands between backquotes and
/// is `MODULE::…::NAME` of integration/, with `c` for conformance, or a module of src/.
pub fn tests(document: &str) -> (usize, Vec<String>) {
    let text = fs::read_to_string(repository().join(document)).unwrap_or_else(|e| panic!("{document}: {e}"));
    let words = text.split('`').skip(1).step_by(2);
    let names: Vec<&str> =
        words.filter(|word| word.contains("::") && !word.ends_with("::") && !word.contains(' ')).collect();
    let missing = names.iter().filter(|name| !exists(name)).map(|name| (*name).to_owned()).collect();
    (names.len(), missing)
}

fn exists(name: &str) -> bool {
    let parts: Vec<&str> = name.split("::").collect();
    let folder = if parts[0] == "c" { "conformance" } else { parts[0] };
    let place = repository().join("integration").join(folder);
    let file = match (place.is_dir(), parts.get(1)) {
        (true, Some(module)) => place.join(format!("{module}.rs")),
        _ => place.with_extension("rs"),
    };
    match fs::read_to_string(&file) {
        Ok(source) => parts.len() < 3 && place.is_dir() || source.contains(&format!("fn {}()", parts[parts.len() - 1])),
        // Modules of src/ are named as such.
        Err(_) => repository().join("src").join(parts[0]).is_dir() && !place.is_dir(),
    }
}
