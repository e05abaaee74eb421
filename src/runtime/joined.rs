//! The namespaces that a container joins, and those of one with a user namespace.
//!
//! What is none is found here: libcontainer would wait for ever at a fifo, and tell of others only that they are invalid. And
//! it opens their paths when it is in the user namespace already, whose root may not be let through to them: engines
//! keep the namespaces of pods in directories that are root's alone. So they are opened before, and it gets descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use serde_json::{Value, json};

use super::error::RuntimeError;
use crate::spec::idmap::Mapping;
use crate::spec::{Config, SpecError};
use crate::sys::userns::{self, IdRange};
use crate::sys::{mount, ns};

/// Open namespaces; libcontainer can join them as long as it lives.
#[derive(Debug, Default)]
pub struct Joined {
    /// With their types, as `linux.namespaces` has them.
    all: Vec<(String, OwnedFd)>,
}

impl Joined {
    /// Those that `config` names by a path. Without a user namespace they are only looked at.
    pub fn open(config: &Config) -> Result<Joined, RuntimeError> {
        let mut all = Vec::new();
        for (kind, path) in config.namespaces() {
            let Some(path) = path else { continue };
            let opened = open(&kind, &path)?;
            all.push((kind, opened));
        }
        Ok(if config.has_namespace("user") { Joined { all } } else { Joined::default() })
    }

    /// Puts the descriptors in the place of the paths.
    pub fn write_out(&self, config: &mut Config) {
        let list = config.value_mut().pointer_mut("/linux/namespaces").and_then(Value::as_array_mut);
        for namespace in list.into_iter().flatten() {
            let opened = self.all.iter().find(|(kind, _)| namespace["type"] == kind.as_str());
            if let Some((_, fd)) = opened {
                namespace["path"] = json!(mount::fd_path(fd.as_fd()));
            }
        }
    }
}

fn open(kind: &str, path: &Path) -> Result<OwnedFd, RuntimeError> {
    let named = match kind {
        "network" => "net",
        "mount" => "mnt",
        other => other,
    };
    ns::open(path, named).map_err(|err| match err.errno() {
        Some(libc::EINVAL) => {
            let path = path.display();
            wrong(format!("{kind}: {path} is not a {kind} namespace: name one, or leave the path out"))
        }
        _ => RuntimeError::Io { op: "open namespace", path: path.to_owned(), source: err.source },
    })
}

fn wrong(why: String) -> RuntimeError {
    SpecError::Field { field: "linux.namespaces", why }.into()
}

/// Puts the ranges of the user namespace that `config` joins in the place of those that it has beside it: engines may leave
/// them out, and whose files are is what the kernel says. The process must be single-threaded.
pub fn learn_ids(config: &mut Config) -> Result<(), RuntimeError> {
    let joined = config.namespaces().into_iter().find(|(kind, _)| kind == "user");
    let Some((kind, Some(path))) = joined else { return Ok(()) };
    let namespace = open(&kind, &path)?;
    let maps = userns::maps_of(namespace.as_fd()).map_err(|err| match (err.call, err.errno()) {
        ("setns", Some(libc::EINVAL)) => wrong(format!(
            "user: {} is the one that {} is in: leave it out, and the container is in it",
            path.display(),
            super::NAME
        )),
        _ => RuntimeError::Io { op: "look at the ids of namespace", path: path.clone(), source: err.source },
    })?;
    for (name, ranges) in ["uidMappings", "gidMappings"].into_iter().zip(maps) {
        let inside = |range: IdRange| Mapping { inside: range.inside, outside: range.outside, size: range.size };
        config.value_mut()["linux"][name] = json!(ranges.into_iter().map(inside).collect::<Vec<_>>());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_descriptors_where_there_is_a_user_namespace() {
        let with = |user: Value| {
            let net = json!({"type": "network", "path": "/proc/self/ns/net"});
            let mut config = Config::from_value(json!({"linux": {"namespaces": [{"type": "pid"}, net, user]}}));
            let joined = Joined::open(&config).unwrap();
            joined.write_out(&mut config);
            let found = config.namespaces().into_iter().map(|(_, path)| path).collect::<Vec<_>>();
            let names = |path: &std::path::PathBuf| std::fs::read_link(path).unwrap();
            (found.iter().flatten().map(names).collect::<Vec<_>>(), found)
        };
        let net = std::fs::read_link("/proc/self/ns/net").unwrap();
        let (targets, paths) = with(json!({"type": "user"}));
        assert_eq!(targets, std::slice::from_ref(&net));
        let path = paths[1].clone().unwrap();
        assert!(path.starts_with("/proc/self/fd") && paths[0].is_none() && paths[2].is_none(), "{paths:?}");
        let (targets, _) = with(json!({"type": "user", "path": "/proc/self/ns/user"}));
        assert_eq!(targets, [net, std::fs::read_link("/proc/self/ns/user").unwrap()]);
        let (_, paths) = with(json!({"type": "uts", "path": "/proc/self/ns/uts"}));
        assert_eq!(paths[1].as_deref(), Some("/proc/self/ns/net".as_ref()));
        let missing = Config::from_value(
            json!({"linux": {"namespaces": [{"type": "user"}, {"type": "ipc", "path": "/no/such"}]}}),
        );
        let err = Joined::open(&missing).unwrap_err().to_string();
        assert!(err.contains("/no/such"), "{err}");
        for kind in ["user", "network"] {
            let wrong =
                Config::from_value(json!({"linux": {"namespaces": [{"type": kind, "path": "/proc/self/ns/mnt"}]}}));
            let err = Joined::open(&wrong).unwrap_err().to_string();
            let words = format!("linux.namespaces in config.json: {kind}: /proc/self/ns/mnt is not a {kind} namespace");
            assert!(err.contains(&words), "{err}");
        }
    }
}
