//! What the specification and runc promise, and what users of runtimes have reported: each test says what must hold, and
//! where runc is there runs the same through it.

mod exec;
mod hooks;
mod idmap;
pub mod lab;
mod life;
mod mounts;
mod pod;
mod process;
mod reports;
mod texts;

use crate::support::named;

/// Every test that docs/conformance.md names is there.
#[test]
fn the_document_names_tests_that_exist() {
    let (seen, missing) = named::tests("docs/conformance.md");
    assert!(seen > 50 && missing.is_empty(), "{seen} names, missing: {missing:?}");
}
