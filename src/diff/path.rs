//! Paths and names as bytes, in JSON a string where they are UTF-8 and base64 where they are not.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const FIELD: &str = "pathBase64";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A path (or a symbolic link's target) as bytes. The path of a change is absolute inside the container: `/root/x`,
/// `/` for the root itself; no `.`, `..`, empty component or trailing slash. The order is that of the bytes.
///
/// JSON: `"/root/x"`, or `{"pathBase64": "L3Jvb3Qv/w=="}` where the bytes are not UTF-8 (RFC 4648, with padding).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PathBytes(Vec<u8>);

impl PathBytes {
    /// The path of these bytes, taken as they are.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        PathBytes(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The components, the root giving none. Empty ones are left out.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == b'/').filter(|part| !part.is_empty())
    }

    /// For people: what is not UTF-8 is replaced by U+FFFD.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// True where this path lies below `ancestor` or is it.
    pub fn is_below(&self, ancestor: &PathBytes) -> bool {
        self == ancestor || is_below(&self.0, &ancestor.0)
    }

    /// The name after the last slash.
    pub(crate) fn file_name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }
}

/// True where `path` lies below `ancestor`, both absolute (a path is not below itself).
pub(crate) fn is_below(path: &[u8], ancestor: &[u8]) -> bool {
    let ancestor = ancestor.strip_suffix(b"/").unwrap_or(ancestor);
    path.len() > ancestor.len() + 1 && path.starts_with(ancestor) && path[ancestor.len()] == b'/'
}

impl From<&str> for PathBytes {
    fn from(path: &str) -> Self {
        PathBytes(path.as_bytes().to_vec())
    }
}

impl AsRef<[u8]> for PathBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for PathBytes {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for PathBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string_lossy())
    }
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(FIELD, &encode_base64(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PathVisitor;
        impl<'de> Visitor<'de> for PathVisitor {
            type Value = PathBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a string, or an object with {FIELD}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PathBytes, E> {
                Ok(PathBytes(text.as_bytes().to_vec()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PathBytes, A::Error> {
                let mut path = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != FIELD || path.is_some() {
                        return Err(de::Error::unknown_field(&key, &[FIELD]));
                    }
                    let text = map.next_value::<String>()?;
                    path = Some(decode_base64(&text).ok_or_else(|| de::Error::custom("not base64"))?);
                }
                path.map(PathBytes).ok_or_else(|| de::Error::missing_field(FIELD))
            }
        }
        deserializer.deserialize_any(PathVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for PathBytes {
    fn schema_name() -> Cow<'static, str> {
        "PathBytes".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A path: a string where its bytes are UTF-8, else its bytes in base64.",
            "oneOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "pathBase64": { "type": "string", "contentEncoding": "base64" } },
                    "required": ["pathBase64"],
                    "additionalProperties": false
                }
            ]
        })
    }
}

fn encode_base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, b| word << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let six = (word >> (18 - 6 * i)) & 63;
            out.push(if i <= chunk.len() { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    out
}

/// None where it is not canonical base64 with padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let body = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - body.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in body.as_bytes().chunks(4) {
        let mut word = 0u32;
        for byte in chunk {
            word = word << 6 | ALPHABET.iter().position(|a| a == byte)? as u32;
        }
        word <<= 6 * (4 - chunk.len());
        out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    (encode_base64(&out) == text).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_both_ways() {
        for (bytes, json) in [
            (&b"/root/x"[..], "\"/root/x\""),
            (b"/a\nb", "\"/a\\nb\""),
            (b"/\xff", "{\"pathBase64\":\"L/8=\"}"),
            (b"/x\xff", "{\"pathBase64\":\"L3j/\"}"),
            (b"/xy\xff", "{\"pathBase64\":\"L3h5/w==\"}"),
        ] {
            let path = PathBytes::new(bytes);
            assert_eq!(serde_json::to_string(&path).unwrap(), json);
            assert_eq!(serde_json::from_str::<PathBytes>(json).unwrap(), path);
        }
    }

    #[test]
    fn bad_base64_is_refused() {
        for text in ["L/8", "L/9=", "=L/8", "L/8==", "L*8=", "===="] {
            let json = format!("{{\"pathBase64\":\"{text}\"}}");
            assert!(serde_json::from_str::<PathBytes>(&json).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<PathBytes>("{}").is_err());
        assert!(serde_json::from_str::<PathBytes>("{\"x\":\"\"}").is_err());
    }

    #[test]
    fn below() {
        for (path, ancestor, want) in [
            ("/a/b", "/a", true),
            ("/a", "/a", false),
            ("/ab", "/a", false),
            ("/a", "/", true),
            ("/", "/", false),
            ("/a/b/c", "/a/b", true),
        ] {
            assert_eq!(is_below(path.as_bytes(), ancestor.as_bytes()), want, "{path} {ancestor}");
        }
    }
}
