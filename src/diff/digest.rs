//! A digest of what a layer changed, for the event log.

use sha2::{Digest, Sha256};

use super::change::Diff;

/// `sha256:` and 64 hexadecimal digits, over the changes as JSON, a line each, in the order of their paths: kinds,
/// types, sizes, modes, owners, targets. Two layers with the same digest changed the same paths in the same way; what
/// files contain is not read.
pub fn digest(diff: &Diff) -> String {
    let mut hash = Sha256::new();
    for change in &diff.changes {
        // Writing to memory can't fail, and every change has a JSON form.
        if let Ok(line) = serde_json::to_vec(change) {
            hash.update(&line);
            hash.update(b"\n");
        }
    }
    hash.finalize().iter().fold("sha256:".to_owned(), |mut text, byte| {
        let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or('0');
        text.extend([digit(byte >> 4), digit(byte & 15)]);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_nothing_and_of_something() {
        let empty = digest(&Diff::default());
        assert_eq!(empty, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let json = r#"{"kind":"added","path":"/x","type":"file","size":1,"mode":"0644","uid":0,"gid":0}"#;
        let one = Diff { changes: vec![serde_json::from_str(json).unwrap()], ..Diff::default() };
        assert_ne!(digest(&one), empty);
        assert_eq!(digest(&one), digest(&one.clone()));
    }
}
