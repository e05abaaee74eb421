//! Ranges of ids: users and groups of a container with a user namespace, as it sees them, and the owners of files on mounts
//! that map them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Config, Mount, NO_ID, SpecError};

/// What an id is that the namespace does not have: `/proc/sys/kernel/overflowuid`.
const NOBODY: u32 = 65534;

/// The most ranges that the kernel takes for one namespace.
pub const RANGES_MAX: usize = 340;

/// One mapping of `uidMappings` or `gidMappings`. What is left out is 0, as in Go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mapping {
    /// The first id in the namespace, or on the file system.
    #[serde(rename = "containerID")]
    pub inside: u32,
    /// What it is on the host.
    #[serde(rename = "hostID")]
    pub outside: u32,
    /// How many there are.
    pub size: u32,
}

impl std::fmt::Display for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.inside, self.outside, self.size)
    }
}

/// What the kernel takes no ranges for, whatever it is asked to do with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// There are none.
    #[error("no ranges: give at least one")]
    None,
    /// There are more than [`RANGES_MAX`].
    #[error("{0} ranges: at most {RANGES_MAX} are taken")]
    Many(usize),
    /// One has no ids.
    #[error("range ({0}) is empty: give it a size, or leave it out")]
    Empty(Mapping),
    /// One goes past the last id.
    #[error("range ({0}) goes past the last id, {last}: give it a smaller size", last = NO_ID - 1)]
    Past(Mapping),
    /// Two have an id in common.
    #[error("ranges ({0}) and ({1}) overlap in {2}: give each id once")]
    Overlap(Mapping, Mapping, &'static str),
}

/// Refuses ranges that the kernel does not take (user_namespaces(7)). That all of them, written out, are to be shorter than a
/// page is left to it.
pub fn check(ranges: &[Mapping]) -> Result<(), RangeError> {
    match ranges.len() {
        0 => return Err(RangeError::None),
        n if n > RANGES_MAX => return Err(RangeError::Many(n)),
        _ => {}
    }
    let ends = |first: u32, range: &Mapping| first.checked_add(range.size).is_some();
    for range in ranges {
        if range.size == 0 {
            return Err(RangeError::Empty(*range));
        }
        if !ends(range.inside, range) || !ends(range.outside, range) {
            return Err(RangeError::Past(*range));
        }
    }
    type Side = fn(&Mapping) -> u32;
    let sides: [(Side, _); 2] = [(|range| range.inside, "containerID"), (|range| range.outside, "hostID")];
    for (first, name) in sides {
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(first);
        // No sum is too large: see above.
        if let Some(pair) = sorted.windows(2).find(|pair| first(&pair[0]) + pair[0].size > first(&pair[1])) {
            return Err(RangeError::Overlap(pair[0], pair[1], name));
        }
    }
    Ok(())
}

/// The mappings of users and of groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMaps {
    /// Of users.
    pub uids: Vec<Mapping>,
    /// Of groups.
    pub gids: Vec<Mapping>,
}

impl IdMaps {
    /// Those of a configuration; none where its ids are the host's, or it does not say what they are in the namespace that
    /// it joins.
    pub fn of(config: &Config) -> Option<IdMaps> {
        let namespaces = config.namespaces();
        let (_, joined) = namespaces.iter().find(|(kind, _)| kind == "user")?;
        let of = |name: &str| list(&config.value()["linux"][name]).unwrap_or_default();
        let maps = IdMaps { uids: of("uidMappings"), gids: of("gidMappings") };
        (joined.is_none() || !maps.uids.is_empty() && !maps.gids.is_empty()).then_some(maps)
    }

    /// Refuses what the kernel would not take for the user namespace that is made for a container of this configuration.
    ///
    /// # Errors
    /// [`SpecError::Field`], of `linux.uidMappings` or `linux.gidMappings`.
    pub fn check_own(config: &Config) -> Result<(), SpecError> {
        let makes_one = config.namespaces().iter().any(|(kind, path)| kind == "user" && path.is_none());
        let (true, Some(maps)) = (makes_one, IdMaps::of(config)) else { return Ok(()) };
        for (field, ranges) in [("linux.uidMappings", &maps.uids), ("linux.gidMappings", &maps.gids)] {
            check(ranges).map_err(|err| {
                let why = match err {
                    RangeError::None => {
                        "missing: a user namespace that is made for the container needs at least one range \
                                         of users and one of groups"
                            .to_owned()
                    }
                    err => err.to_string(),
                };
                SpecError::Field { field, why }
            })?;
        }
        Ok(())
    }

    /// The host's user and group as the container sees them.
    pub fn inside(&self, uid: u32, gid: u32) -> (u32, u32) {
        (inside(&self.uids, uid), inside(&self.gids, gid))
    }
}

/// A list of mappings; `None` where there is none.
pub(super) fn list(value: &Value) -> Option<Vec<Mapping>> {
    let read = |value: &Value| serde_json::from_value(value.clone()).ok();
    value.as_array().map(|list| list.iter().filter_map(read).collect())
}

/// How a mount maps ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountIds {
    /// By what.
    pub by: IdSource,
    /// What is mounted below the source, too.
    pub recursive: bool,
}

/// Where the ranges come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdSource {
    /// They are written down, at the mount or for the container's own user namespace.
    Ranges(IdMaps),
    /// They are those of the user namespace that the container joins.
    Namespace(PathBuf),
}

impl Mount {
    /// Its files are to have owners other than on the file system: by an option (`idmap`, `ridmap`) or by mappings.
    pub fn maps_ids(&self) -> bool {
        self.options.iter().any(|option| matches!(option.split('=').next(), Some("idmap" | "ridmap")))
            || self.mappings.iter().any(Option::is_some)
    }

    /// How its ids are to be mapped in a container of this configuration; `None` for most mounts.
    ///
    /// # Errors
    /// [`SpecError::Mount`] for what the runtime specification does not allow, and for ranges that the kernel does not take;
    /// [`SpecError::Field`] where they are to be the container's.
    pub fn ids(&self, config: &Config) -> Result<Option<MountIds>, SpecError> {
        if !self.maps_ids() {
            return Ok(None);
        }
        let refuse = |why: &str| Err(SpecError::Mount { at: self.destination.clone(), why: why.to_owned() });
        if !self.is_bind() {
            return refuse("only bind mounts can map ids: make it one, or take idmap and its mappings out");
        }
        if self.options.iter().any(|option| option.starts_with("idmap=") || option.starts_with("ridmap=")) {
            return refuse("ranges are not given in an option here: give it uidMappings and gidMappings");
        }
        let recursive = self.options.iter().rfind(|o| matches!(o.as_str(), "idmap" | "ridmap"));
        let recursive = recursive.is_some_and(|option| option == "ridmap");
        let by = match &self.mappings {
            [Some(uids), Some(gids)] => IdSource::Ranges(IdMaps { uids: uids.clone(), gids: gids.clone() }),
            [Some(_), None] => return refuse("it has uidMappings but no gidMappings: both are needed"),
            [None, Some(_)] => return refuse("it has gidMappings but no uidMappings: both are needed"),
            [None, None] => match config.namespaces().into_iter().find(|(kind, _)| kind == "user") {
                Some((_, Some(path))) => IdSource::Namespace(path),
                _ => match IdMaps::of(config) {
                    Some(maps) => {
                        IdMaps::check_own(config)?;
                        IdSource::Ranges(maps)
                    }
                    None => {
                        return refuse(
                            "it maps ids, by mappings that neither it nor the container has: give it uidMappings and \
                             gidMappings, or the container a user namespace",
                        );
                    }
                },
            },
        };
        if let IdSource::Ranges(IdMaps { uids, gids }) = &by {
            for (name, ranges) in [("uidMappings", uids), ("gidMappings", gids)] {
                match check(ranges) {
                    Ok(()) => {}
                    Err(RangeError::None) => {
                        return refuse(&format!("it maps ids, but {name} is empty: give it ranges"));
                    }
                    Err(err) => return refuse(&format!("{name}: {err}")),
                }
            }
        }
        Ok(Some(MountIds { by, recursive }))
    }
}

fn inside(maps: &[Mapping], id: u32) -> u32 {
    let one = |m: &Mapping| id.checked_sub(m.outside).filter(|n| *n < m.size).and_then(|n| m.inside.checked_add(n));
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
        assert_eq!(of(joined.clone(), &json!([])), None);
        // What no namespace can have been given may be written beside one that is joined.
        let last = json!([{"containerID": u32::MAX, "hostID": 0, "size": 9}]);
        assert_eq!(of(joined, &last).unwrap().inside(0, 8), (u32::MAX, NOBODY));
    }

    #[test]
    fn how_a_mount_maps_ids() {
        let one = json!([{"containerID": 5, "hostID": 100_000, "size": 10}, {"hostID": 7, "size": 1}]);
        let ranges = vec![
            Mapping { inside: 5, outside: 100_000, size: 10 },
            // As Go reads it.
            Mapping { inside: 0, outside: 7, size: 1 },
        ];
        let written = IdSource::Ranges(IdMaps { uids: ranges.clone(), gids: ranges.clone() });
        let theirs = vec![Mapping { inside: 0, outside: 1, size: 2 }];
        let containers = IdSource::Ranges(IdMaps { uids: theirs.clone(), gids: theirs });
        let own = json!([{"containerID": 0, "hostID": 1, "size": 2}]);
        let linux =
            |namespaces: Value, map: &Value| json!({"namespaces": namespaces, "uidMappings": map, "gidMappings": map});
        let (none, user) = (linux(json!([]), &Value::Null), linux(json!([{"type": "user"}]), &own));
        let joined = linux(json!([{"type": "user", "path": "/proc/7/ns/user"}]), &Value::Null);
        let of = |mount: Value, linux: &Value| {
            let config = Config::from_value(json!({"mounts": [mount], "linux": linux}));
            config.mounts()[0].ids(&config)
        };
        let mount = |option: &str, uids: &Value, gids: &Value| json!({"destination": "/d", "source": "/s", "options": ["bind", option], "uidMappings": uids, "gidMappings": gids});
        let null = &Value::Null;
        assert_eq!(of(mount("ro", null, null), &user).unwrap(), None);
        for (mount, linux, by, recursive) in [
            (mount("ro", &one, &one), &none, &written, false),
            (mount("idmap", &one, &one), &user, &written, false),
            (mount("ridmap", &one, &one), &joined, &written, true),
            (mount("ridmap", null, null), &user, &containers, true),
            (mount("idmap", null, null), &joined, &IdSource::Namespace("/proc/7/ns/user".into()), false),
        ] {
            assert_eq!(of(mount, linux).unwrap(), Some(MountIds { by: by.clone(), recursive }));
        }
        let tmpfs = json!({"destination": "/d", "type": "tmpfs", "options": ["idmap"]});
        let bare = linux(json!([{"type": "user"}]), null);
        for (mount, linux, words) in [
            (mount("idmap", &one, null), &user, "no gidMappings: both are needed"),
            (mount("rw", null, &one), &user, "no uidMappings: both are needed"),
            (mount("idmap", null, null), &none, "or the container a user namespace"),
            (mount("rw", &one, &json!([])), &user, "gidMappings is empty"),
            (mount("idmap=uids=0-1-2", null, null), &user, "not given in an option"),
            (tmpfs, &user, "only bind mounts can map ids"),
        ] {
            let err = of(mount, linux).unwrap_err().to_string();
            assert!(err.starts_with("invalid mounts[/d] in config.json: ") && err.contains(words), "{err}");
        }
        // It is not the mount that lacks something.
        let err = of(mount("idmap", null, null), &bare).unwrap_err().to_string();
        assert!(err.starts_with("invalid linux.uidMappings in config.json: missing"), "{err}");
        let far = json!([{"containerID": 4_294_967_290_u32, "hostID": 1, "size": 100}]);
        let err = of(mount("idmap", &one, &far), &user).unwrap_err().to_string();
        assert!(err.contains("mounts[/d]") && err.contains("gidMappings: range (4294967290 1 100) goes past"), "{err}");
    }

    #[test]
    fn ranges_that_the_kernel_does_not_take() {
        let range = |inside, outside, size| Mapping { inside, outside, size };
        let many = |n| (0..n).map(|n| range(n, 7 * n, 1)).collect::<Vec<_>>();
        for (ranges, want) in [
            (many(340), Ok(())),
            (many(341), Err("341 ranges: at most 340 are taken")),
            (vec![], Err("no ranges: give at least one")),
            (vec![range(5, 0, 5), range(0, 5, 5)], Ok(())),
            (vec![range(4_294_967_290, 1, 5), range(0, 4_294_967_294, 1)], Ok(())),
            (
                vec![range(4_294_967_290, 1, 6)],
                Err("range (4294967290 1 6) goes past the last id, 4294967294: give it a smaller size"),
            ),
            (
                vec![range(0, 4_294_967_295, 1)],
                Err("range (0 4294967295 1) goes past the last id, 4294967294: give it a smaller size"),
            ),
            (vec![range(3, 4, 0)], Err("range (3 4 0) is empty: give it a size, or leave it out")),
            (
                vec![range(4, 100, 1), range(0, 10, 5)],
                Err("ranges (0 10 5) and (4 100 1) overlap in containerID: give each id once"),
            ),
            (
                vec![range(100, 14, 1), range(0, 10, 5)],
                Err("ranges (0 10 5) and (100 14 1) overlap in hostID: give each id once"),
            ),
        ] {
            assert_eq!(check(&ranges).map_err(|err| err.to_string()), want.map_err(str::to_owned), "{ranges:?}");
        }
    }

    #[test]
    fn the_containers_own_ranges() {
        let one = json!([{"hostID": 100_000, "size": 10}]);
        let two = json!([{"size": 10}, {"containerID": 5, "hostID": 300_000, "size": 10}]);
        let null = &Value::Null;
        let of = |namespace: Value, uids: &Value, gids: &Value| {
            let linux = json!({"namespaces": [namespace], "uidMappings": uids, "gidMappings": gids});
            IdMaps::check_own(&Config::from_value(json!({"linux": linux}))).map_err(|err| err.to_string())
        };
        let made = json!({"type": "user"});
        for other in [json!({"type": "pid"}), json!({"type": "user", "path": "/proc/1/ns/user"})] {
            assert_eq!(of(other, null, &two), Ok(()), "they are not looked at");
        }
        assert_eq!(of(made.clone(), &one, &one), Ok(()));
        for (uids, gids, words) in [
            (null, null, "invalid linux.uidMappings in config.json: missing: "),
            (&one, null, "invalid linux.gidMappings in config.json: missing: "),
            (&json!([]), &one, "invalid linux.uidMappings in config.json: missing: "),
            (&two, &two, "invalid linux.uidMappings in config.json: ranges (0 0 10) and (5 300000 10) overlap"),
        ] {
            let err = of(made.clone(), uids, gids).unwrap_err();
            assert!(err.starts_with(words), "{err}");
        }
    }
}
