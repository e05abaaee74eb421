//! Users and groups of a container with a user namespace, as it sees them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Config;

/// What an id is that the namespace does not have: `/proc/sys/kernel/overflowuid`.
const NOBODY: u32 = 65534;

/// One mapping of `linux.uidMappings` or `linux.gidMappings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mapping {
    #[serde(rename = "containerID")]
    inside: u32,
    #[serde(rename = "hostID")]
    outside: u32,
    size: u32,
}

/// The mappings of users and of groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMaps {
    uids: Vec<Mapping>,
    gids: Vec<Mapping>,
}

impl IdMaps {
    /// Those of a configuration; none where its ids are the host's, or it does not say what they are in the namespace that
    /// it joins.
    pub fn of(config: &Config) -> Option<IdMaps> {
        let namespaces = config.namespaces();
        let (_, joined) = namespaces.iter().find(|(kind, _)| kind == "user")?;
        let list = |name: &str| -> Vec<Mapping> {
            let entries = config.value()["linux"][name].as_array();
            let read = |value: &Value| serde_json::from_value(value.clone()).ok();
            entries.map(|list| list.iter().filter_map(read).collect()).unwrap_or_default()
        };
        let maps = IdMaps { uids: list("uidMappings"), gids: list("gidMappings") };
        (joined.is_none() || !maps.uids.is_empty() && !maps.gids.is_empty()).then_some(maps)
    }

    /// The host's user and group as the container sees them.
    pub fn inside(&self, uid: u32, gid: u32) -> (u32, u32) {
        (inside(&self.uids, uid), inside(&self.gids, gid))
    }
}

fn inside(maps: &[Mapping], id: u32) -> u32 {
    let one = |m: &Mapping| id.checked_sub(m.outside).filter(|offset| *offset < m.size).map(|n| m.inside + n);
    maps.iter().find_map(one).unwrap_or(NOBODY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_hosts_ids_are_told_as_the_containers() {
        let map =
            json!([{"containerID": 0, "hostID": 100_000, "size": 1000}, {"containerID": 5000, "hostID": 7, "size": 1}]);
        let of = |namespaces: Value, map: &Value| {
            IdMaps::of(&Config::from_value(
                json!({"linux": {"namespaces": namespaces, "uidMappings": map, "gidMappings": map}}),
            ))
        };
        let with = |namespaces: Value| of(namespaces, &map);
        let maps = with(json!([{"type": "user"}])).unwrap();
        for (host, want) in
            [(100_000, 0), (100_999, 999), (101_000, NOBODY), (7, 5000), (0, NOBODY), (u32::MAX, NOBODY)]
        {
            assert_eq!(maps.inside(host, host), (want, want), "{host}");
        }
        assert_eq!(with(json!([{"type": "pid"}])), None);
        // That of a pod, which its containers join: engines write down its ids as well.
        let joined = json!([{"type": "user", "path": "/proc/1/ns/user"}]);
        assert_eq!(with(joined.clone()), Some(maps));
        assert_eq!(of(joined, &json!([])), None);
    }
}
