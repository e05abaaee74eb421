//! Attacks: what hostile code in a container tries, under the default configuration, must be refused, or change nothing.
//!
//! The attacker is one static C program (`attack/`) that prints what the kernel answered. docs/threat-model.md says what
//! is defended, and names a test for each claim. Every table is also played where nothing stands in its way, so that an
//! attack that does not work at all is not taken for one that was refused.

mod host;
mod images;
mod kernel;
mod lab;
mod layers;
mod leaks;
mod neighbours;
mod privileges;
mod races;
mod runtime_binary;

/// Every test that docs/threat-model.md names is there.
#[test]
fn the_threat_model_names_tests_that_exist() {
    let (seen, missing) = crate::support::named::tests("docs/threat-model.md");
    assert!(seen > 40 && missing.is_empty(), "{seen} names, missing: {missing:?}");
}
