//! The filters as programs: run by an interpreter, and held against what the JSON says.

mod compile;
mod docs;
pub(super) mod interpreter;
mod list;
mod oracle;
mod property;
