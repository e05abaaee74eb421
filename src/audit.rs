//! The hash chain over the event log: each event carries the hash of the one before it.
//!
//! This module is pure: what an event's hash is, whether a sequence of events fits the chain's head, and an event as a
//! JSON line. The rows are the store's (`Store::verify_events`, `Store::export_events`). docs/on-disk-format.md says
//! what the chain can show and what it can't.

use std::fmt::{self, Write};

use sha2::{Digest as _, Sha256};

use crate::error::{Classify, Kind};

/// A SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What the first event has as the hash before it.
    pub const ZERO: Hash = Hash([0; 32]);
}

impl fmt::Display for Hash {
    /// 64 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place: the first is 1, each next one more.
    pub seq: u64,
    /// Nanoseconds since 1970 UTC, by the clock of the host then.
    pub time_ns: i64,
    /// The store's key of the container that it is about, 0 if none.
    pub container: i64,
    /// That container's id, empty if none.
    pub container_id: String,
    /// What happened, `[a-z-]{1,32}`.
    pub kind: String,
    /// A JSON object, as text.
    pub payload: String,
    /// The hash of the event before.
    pub prev: Hash,
    /// This event's hash.
    pub hash: Hash,
}

impl Event {
    /// What the event's hash must be: over everything else in it, in an encoding that two different events can't share.
    pub fn expected_hash(&self) -> Hash {
        let mut sha = Sha256::new();
        sha.update(b"agentsbx.event/v1\0");
        sha.update(self.seq.to_be_bytes());
        sha.update(self.time_ns.to_be_bytes());
        sha.update(self.container.to_be_bytes());
        for text in [&self.container_id, &self.kind, &self.payload] {
            sha.update((text.len() as u64).to_be_bytes());
            sha.update(text.as_bytes());
        }
        sha.update(self.prev.0);
        Hash(sha.finalize().into())
    }

    /// The event as one JSON object without a line end. The payload is put in byte for byte, so that the hash can be
    /// computed again from the line; one that is no JSON (tampered with) is put in as a string, as `payloadText`.
    pub fn to_json_line(&self) -> String {
        let string = |s: &str| serde_json::Value::from(s).to_string();
        let mut line =
            format!("{{\"seq\":{},\"time\":\"{}\",\"timeNs\":{}", self.seq, rfc3339(self.time_ns), self.time_ns);
        let payload_is_json =
            !self.payload.contains('\n') && serde_json::from_str::<serde::de::IgnoredAny>(&self.payload).is_ok();
        let (name, payload) =
            if payload_is_json { ("payload", self.payload.clone()) } else { ("payloadText", string(&self.payload)) };
        // Writing to a String can't fail.
        let _ = write!(
            line,
            ",\"container\":{},\"containerId\":{},\"kind\":{},\"{name}\":{payload},\"prev\":\"{}\",\"hash\":\"{}\"}}",
            self.container,
            string(&self.container_id),
            string(&self.kind),
            self.prev,
            self.hash
        );
        line
    }
}

/// A time as RFC 3339 in UTC with nanoseconds.
pub fn rfc3339(time_ns: i64) -> String {
    chrono::DateTime::from_timestamp_nanos(time_ns).to_rfc3339_opts(chrono::SecondsFormat::Nanos, true)
}

/// The end of a chain, or the point it starts from: an event's place and hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The event's seq; 0 before the first.
    pub seq: u64,
    /// The event's hash; zeros before the first.
    pub hash: Hash,
}

impl Head {
    /// Before the first event.
    pub const START: Head = Head { seq: 0, hash: Hash::ZERO };
}

/// What verifying found where all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// How many events were looked at.
    pub count: u64,
    /// The newest event. Keep a copy elsewhere to find a chain that was cut or rewritten together with its head.
    pub head: Head,
}

/// What is wrong with the log, and at which event first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event log, event {seq}: {what}")]
pub struct AuditError {
    /// The first event that does not fit.
    pub seq: u64,
    /// What does not fit.
    pub what: Break,
}

/// How a chain can be broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The event's content does not have the event's hash.
    #[error("it was changed: its content has hash {computed}, it says {stored}")]
    Changed {
        /// The hash in the event.
        stored: Hash,
        /// The hash of its content.
        computed: Hash,
    },
    /// The event does not carry the hash of the one before.
    #[error("it does not follow the event before, which was replaced or moved")]
    Unlinked,
    /// Another event is in its place.
    #[error("it is missing; event {found} comes next")]
    Missing {
        /// The next event there is.
        found: u64,
    },
    /// The log ends before the head that is on record.
    #[error("it and all up to event {head} were cut off")]
    Cut {
        /// The newest event on record.
        head: u64,
    },
    /// The log starts behind some event, and none tells that this and what was before it were dropped.
    #[error("it and all before it are missing, and no event tells that they were dropped")]
    Base,
    /// The log goes on behind the head that is on record, or the head on record has another hash.
    #[error("it does not agree with the newest event on record")]
    Head,
}

impl Classify for AuditError {
    fn kind(&self) -> Kind {
        Kind::Corrupt
    }
}

/// Checks a chain event by event, in the order of their seq.
#[derive(Debug)]
pub struct Verifier {
    at: Head,
    count: u64,
}

impl Verifier {
    /// Starts behind `base`.
    pub fn new(base: Head) -> Verifier {
        Verifier { at: base, count: 0 }
    }

    /// Takes the next event.
    pub fn push(&mut self, event: &Event) -> Result<(), AuditError> {
        let next = self.at.seq + 1;
        if event.seq != next {
            return Err(AuditError { seq: next, what: Break::Missing { found: event.seq } });
        }
        if event.prev != self.at.hash {
            return Err(AuditError { seq: next, what: Break::Unlinked });
        }
        let computed = event.expected_hash();
        if event.hash != computed {
            return Err(AuditError { seq: next, what: Break::Changed { stored: event.hash, computed } });
        }
        self.at = Head { seq: event.seq, hash: event.hash };
        self.count += 1;
        Ok(())
    }

    /// Compares where the events ended with the head on record.
    pub fn finish(self, head: Head) -> Result<Verified, AuditError> {
        if self.at.seq < head.seq {
            return Err(AuditError { seq: self.at.seq + 1, what: Break::Cut { head: head.seq } });
        }
        if self.at != head {
            return Err(AuditError { seq: head.seq + u64::from(self.at.seq > head.seq), what: Break::Head });
        }
        Ok(Verified { count: self.count, head })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: u64) -> Vec<Event> {
        let mut prev = Hash::ZERO;
        (1..=n)
            .map(|seq| {
                let mut event = Event {
                    seq,
                    time_ns: 1_700_000_000_000_000_000 + seq as i64,
                    container: 1,
                    container_id: "c".into(),
                    kind: "exec".into(),
                    payload: format!("{{\"n\":{seq}}}"),
                    prev,
                    hash: Hash::ZERO,
                };
                event.hash = event.expected_hash();
                prev = event.hash;
                event
            })
            .collect()
    }

    fn head(events: &[Event]) -> Head {
        events.last().map_or(Head::START, |e| Head { seq: e.seq, hash: e.hash })
    }

    fn verify(events: &[Event], head: Head) -> Result<Verified, AuditError> {
        let mut verifier = Verifier::new(Head::START);
        events.iter().try_for_each(|e| verifier.push(e))?;
        verifier.finish(head)
    }

    #[test]
    fn a_whole_chain_verifies() {
        for n in [0, 1, 5] {
            let events = chain(n);
            assert_eq!(verify(&events, head(&events)), Ok(Verified { count: n, head: head(&events) }));
        }
    }

    #[test]
    fn every_kind_of_tampering_is_found() {
        let good = chain(5);
        let on_record = head(&good);
        type Tamper = fn(&mut Vec<Event>);
        let changed = |seq| (seq, "changed");
        let cases: [(&str, Tamper, (u64, &str)); 13] = [
            ("payload", |e| e[2].payload.push(' '), changed(3)),
            ("kind", |e| e[2].kind = "discard".into(), changed(3)),
            ("time", |e| e[0].time_ns += 1, changed(1)),
            ("container", |e| e[4].container = 2, changed(5)),
            ("container id", |e| e[4].container_id = "d".into(), changed(5)),
            (
                "text moved between fields",
                |e| {
                    e[1].kind = "exe".into();
                    e[1].payload.insert(0, 'c')
                },
                changed(2),
            ),
            (
                "hash recomputed",
                |e| {
                    e[2].payload.push(' ');
                    e[2].hash = e[2].expected_hash()
                },
                (4, "unlinked"),
            ),
            (
                "last one's hash recomputed",
                |e| {
                    e[4].payload.push(' ');
                    e[4].hash = e[4].expected_hash()
                },
                (5, "head"),
            ),
            (
                "taken out",
                |e| {
                    e.remove(2);
                },
                (3, "missing"),
            ),
            (
                "taken out and renumbered",
                |e| {
                    e.remove(2);
                    e[2].seq = 3;
                    e[3].seq = 4
                },
                (3, "unlinked"),
            ),
            ("cut", |e| e.truncate(3), (4, "cut")),
            (
                "swapped",
                |e| {
                    e.swap(1, 2);
                    e[1].seq = 2;
                    e[2].seq = 3
                },
                (2, "unlinked"),
            ),
            (
                "added",
                |e| {
                    let last = chain(6).pop().unwrap();
                    e.push(last)
                },
                (6, "head"),
            ),
        ];
        for (name, tamper, (seq, what)) in cases {
            let mut events = good.clone();
            tamper(&mut events);
            let err = verify(&events, on_record).expect_err(name);
            let found = match err.what {
                Break::Changed { .. } => "changed",
                Break::Unlinked => "unlinked",
                Break::Missing { .. } => "missing",
                Break::Cut { .. } => "cut",
                Break::Head => "head",
                Break::Base => "base",
            };
            assert_eq!((err.seq, found), (seq, what), "{name}");
        }
    }

    #[test]
    fn the_encoding_is_pinned() {
        // Computed outside of Rust, with Python's hashlib, over the documented bytes; a change of the encoding is a
        // change of format.
        let mut event = chain(1).remove(0);
        (event.time_ns, event.payload) = (1, "{}".into());
        let mut bytes = b"agentsbx.event/v1\0".to_vec();
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 1].repeat(3));
        for text in ["c", "exec", "{}"] {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, text.len() as u8]);
            bytes.extend(text.as_bytes());
        }
        bytes.extend([0; 32]);
        assert_eq!(event.expected_hash(), Hash(Sha256::digest(&bytes).into()));
        assert_eq!(
            event.expected_hash().to_string(),
            "0e4f9f9e0f02e6e29eec432d3f406a326346c4d515d0657c1b0b1abda5a98a31"
        );
    }

    #[test]
    fn json_lines_carry_the_payload_as_it_is() {
        let mut event = chain(1).remove(0);
        event.payload = "{\"a\":1.50,  \"b\":\"\\u00e9\"}".into();
        let line = event.to_json_line();
        assert!(line.contains(&format!("\"payload\":{},", event.payload)), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["time"], "2023-11-14T22:13:20.000000001Z");
        assert_eq!(value["prev"], "0".repeat(64));
        for hostile in ["not json\n{\"seq\":9}", "{}\n", "{} {}", ""] {
            event.payload = hostile.into();
            let line = event.to_json_line();
            assert!(!line.contains('\n'));
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["payloadText"], hostile);
        }
    }
}
