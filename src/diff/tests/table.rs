//! Cases one by one.
