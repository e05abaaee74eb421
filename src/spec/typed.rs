//! A document read into a type as Go reads it: what has named fields is an object there, and never a list of their values, which
//! derived types take as well, and one of several words is a string, and not an object `{"word": null}`. Those who look at the
//! document by its names would see nothing of such a list or word, and a policy would judge other than what is carried out.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// Reads `document` into a `T`.
///
/// # Errors
/// A value of the wrong type, or a field that is missing; it does not say where.
pub fn typed<T: DeserializeOwned>(document: &Value) -> Result<T, Error> {
    T::deserialize(Named(document))
}

/// A document, or a part of it.
#[derive(Clone, Copy)]
struct Named<'a>(&'a Value);

impl<'de> IntoDeserializer<'de, Error> for Named<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Named<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => {
                let mut items = SeqDeserializer::new(list.iter().map(Named));
                let value = visitor.visit_seq(&mut items)?;
                items.end().map(|()| value)
            }
            Value::Object(map) => {
                let mut members = MapDeserializer::new(map.iter().map(|(name, value)| (name.as_str(), Named(value))));
                let value = visitor.visit_map(&mut members)?;
                members.end().map(|()| value)
            }
            value => value.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Other("a list"), &"an object")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(_) => Err(Error::invalid_type(Unexpected::Other("an object"), &"a string")),
            value => value.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oci_spec::runtime::Spec;
    use serde_json::json;

    #[test]
    fn a_configuration_is_read_as_by_others() {
        let spec = Spec::rootless(1000, 1000);
        let mut document = json!(spec);
        document["linux"]["resources"] = json!({"unified": {"pids.max": "7"}, "cpu": {"quota": -1, "shares": 9},
            "memory": {"limit": u64::from(u32::MAX), "disableOOMKiller": false},
            "network": {"classID": 5, "priorities": [{"name": "lo", "priority": 3}]}});
        document["linux"]["intelRdt"] = json!({"closID": "x"});
        document["annotations"] = json!({"a": "b"});
        document["process"]["scheduler"] = json!({"policy": "SCHED_OTHER", "nice": 5});
        let read: Spec = typed(&document).unwrap();
        assert_eq!(read, serde_json::from_value::<Spec>(document).unwrap());
        assert!(read.linux().as_ref().unwrap().resources().is_some());
    }

    #[test]
    fn a_list_is_no_object() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Pair {
            a: u8,
            b: Option<Vec<u8>>,
        }
        assert_eq!(typed::<Pair>(&json!({"a": 1, "b": [2]})).unwrap(), Pair { a: 1, b: Some(vec![2]) });
        assert_eq!(typed::<Vec<(u8, u8)>>(&json!([[1, 2]])).unwrap(), [(1, 2)]);
        let why = |document| typed::<Vec<Pair>>(&document).unwrap_err().to_string();
        assert_eq!(why(json!([[1, [2]]])), "invalid type: a list, expected an object");
        assert_eq!(why(json!([{"a": 300}])), "invalid value: integer `300`, expected u8");
        assert_eq!(why(json!([{"b": null}])), "missing field `a`");
    }

    /// `{"type": {"pid": null}}` was no pid namespace for the policy, and one to be joined for who made the container.
    #[test]
    fn an_object_is_no_word() {
        use oci_spec::runtime::{LinuxNamespace, LinuxSeccomp};
        assert!(typed::<LinuxNamespace>(&json!({"type": "pid"})).is_ok());
        let why = typed::<LinuxNamespace>(&json!({"type": {"pid": null}})).unwrap_err().to_string();
        assert_eq!(why, "invalid type: an object, expected a string");
        assert!(typed::<LinuxSeccomp>(&json!({"defaultAction": {"SCMP_ACT_ALLOW": null}})).is_err());
    }
}
