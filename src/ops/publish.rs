//! What others read: the result files and annotations in the bundle, the annotations that `state` shows, the document
//! that `show` prints.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::OpsError;
use super::commit::Conflict;
use super::owners;
use crate::diff::{Change, PathBytes};
use crate::durable::{self, LockFile};
use crate::id::ExecId;
use crate::policy::Decision;
use crate::report::{
    Dropped, Generations, MAX_ANNOTATION, PolicyDecision, ResultDocument, Schema, UserIds, is_kept, left_out,
    result_file, rfc3339,
};
use crate::runtime::claim::BundleLock;
use crate::runtime::state::Record;
use crate::spec::{self, annotations};
use crate::store::{Container, ExecRecord, MAX_RESULT, Store, StoreError};
use crate::terms::Disposition;

/// The part of a result document that no column of the store has.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    changes: Vec<Change>,
    conflicts: Vec<PathBytes>,
    conflict_reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policy: Vec<PolicyDecision>,
    truncated: bool,
}

/// Decisions as documents have them.
pub fn decisions(list: &[Decision]) -> Vec<PolicyDecision> {
    let one = |d: &Decision| PolicyDecision {
        field: d.field.clone(),
        from: d.from.clone(),
        to: d.to.clone(),
        why: d.why.clone().into_owned(),
    };
    list.iter().map(one).collect()
}

/// Paths as JSON for the store, the last ones left out where they are too many. `None` where there is nothing to tell.
pub fn details(changes: &[Change], conflict: Option<&Conflict>, policy: &[Decision]) -> Option<String> {
    if changes.is_empty() && conflict.is_none() && policy.is_empty() {
        return None;
    }
    let mut details = Details {
        conflicts: conflict.map(|c| c.paths.clone()).unwrap_or_default(),
        conflict_reason: conflict.map(|c| c.reason.clone()),
        changes: Vec::new(),
        policy: decisions(policy),
        truncated: true,
    };
    let mut room = MAX_RESULT.saturating_sub(1024 + details.conflict_reason.as_ref().map_or(0, |r| r.len() * 2));
    details.policy = crate::report::fitting(&details.policy, &mut room).ok()?;
    details.conflicts = crate::report::fitting(&details.conflicts, &mut room).ok()?;
    details.changes = crate::report::fitting(changes, &mut room).ok()?;
    let all =
        details.changes.len() == changes.len() && details.conflicts.len() == conflict.map_or(0, |c| c.paths.len());
    details.truncated = !all;
    serde_json::to_string(&details).ok()
}

/// The changes that the store has on record for an exec, and whether these are all; `None` if there are none.
pub fn recorded(store: &Store, container: &Container, exec: &ExecId) -> Result<Option<(Vec<Change>, bool)>, OpsError> {
    let Some(text) = store.result(container.key, exec)? else { return Ok(None) };
    let details: Details = serde_json::from_str(&text).map_err(json_file(Path::new("result in the store")))?;
    Ok(Some((details.changes, !details.truncated)))
}

/// Where the whole result of an exec is, in the bundle.
pub fn result_path(container: &Container, exec: &str) -> PathBuf {
    result_file(&container.bundle, exec)
}

fn file(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpsError {
    move |source| OpsError::File { doing, path: path.to_owned(), source }
}

fn json_file(path: &Path) -> impl FnOnce(serde_json::Error) -> OpsError {
    move |source| OpsError::Json { path: path.to_owned(), source }
}

/// Writes down what an ended exec came to. An exec that changed nothing leaves no file: its row in the log is enough. Where
/// one thing can't be written, the others still are; the first failure is told.
pub fn ended(
    store: &Store,
    container: &Container,
    document: &ResultDocument,
    extra: Option<&Path>,
) -> Result<(), OpsError> {
    let text = serde_json::to_string(document).map_err(json_file(Path::new("result")))?;
    let delivered =
        extra.map_or(Ok(()), |path| durable::deliver(path, text.as_bytes(), 0o644, true).map_err(file("write", path)));
    // The engine may be done with the bundle already.
    if !container.bundle.is_dir() {
        return delivered;
    }
    let kept = keep_file(store, container, document, &text);
    let short = document.shortened(text, MAX_ANNOTATION).map_err(json_file(Path::new("result")));
    let told = short.and_then(|short| annotate(store, container, Some(&short)));
    delivered.and(kept).and(told)
}

/// Puts the whole result into the bundle.
fn keep_file(store: &Store, container: &Container, document: &ResultDocument, text: &str) -> Result<(), OpsError> {
    let kept = document.disposition.zip(document.end.as_ref()).is_none_or(|(what, end)| is_kept(what, end));
    if kept {
        let path = result_path(container, &document.exec);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(file("make", dir))?;
        }
        durable::replace_unsynced(&path, text.as_bytes(), 0o600).map_err(file("write", &path))?;
        // One in 32, as the store does with its rows.
        if document.exec.ends_with('0') {
            forget_old(store, container)?;
        }
    }
    Ok(())
}

/// Removes the results of execs that are no longer on record: a health check that fails leaves one each time.
fn forget_old(store: &Store, container: &Container) -> Result<(), OpsError> {
    let dir = container.bundle.join("agentsbx/execs");
    let entries = std::fs::read_dir(&dir).map_err(file("list", &dir))?;
    // Files before rows: who writes a file has its row already.
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let known = store.exec_ids(container.key)?;
    for path in files {
        let exec = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        if let Some(exec) = exec.filter(|exec| exec.parse::<ExecId>().is_ok() && !known.contains(*exec)) {
            durable::remove_file(&path).map_err(file("remove", &dir.join(exec)))?;
        }
    }
    Ok(())
}

/// Brings an exec's result up to date after its held layer was committed or discarded. Nothing where its row is gone since:
/// rows that kept no layer are bounded, and the container may have been deleted.
pub fn decided(store: &Store, container: &Container, exec: &ExecId) -> Result<(), OpsError> {
    let record = match store.exec(container.key, &exec.to_string()) {
        Err(StoreError::ExecNotFound { .. }) => return Ok(()),
        other => other?,
    };
    let document = document(store, container, &record)?;
    ended(store, container, &document, None)
}

/// Writes HEAD, and an exec's result if there is a new one, into the bundle's `config.json` and beside our own state.
pub fn annotate(store: &Store, container: &Container, diff: Option<&str>) -> Result<(), OpsError> {
    let dir = Record::dir_of(&container.root, &container.id);
    let lock = dir.join("annotations.lock");
    // The state directory is gone when the container is being deleted.
    let lock = match LockFile::lock(&lock) {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(file("lock", &lock))?,
    };
    let head = match store.head(container.key) {
        Err(StoreError::ContainerRemoved { .. } | StoreError::ContainerNotFound { .. }) => return Ok(()),
        other => other?,
    };
    let mut ours = written(&dir)?;
    ours.insert(annotations::GENERATION.into(), head.to_string().into());
    if let Some(diff) = diff {
        ours.insert(annotations::DIFF.into(), diff.into());
    }
    let path = dir.join(WRITTEN);
    let text = serde_json::to_vec(&ours).map_err(json_file(&path))?;
    match durable::replace_unsynced(&path, &text, 0o600) {
        // Gone since, or just going.
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(file("write", &path))?,
    }
    // A `delete` puts the engine's configuration back. Where a `create` of another container is at work for longer, or there is
    // no bundle any more, there is nothing of this one's to write to; what was left out is written with the next ones.
    let Some(_bundle) = BundleLock::wait(&container.bundle, BUNDLE_WITHIN)? else { return Ok(()) };
    match lock.is_at_its_path().map_err(file("look at", lock.path()))? {
        true if spec::is_replaced(&container.bundle) => into_config(&container.bundle, &ours),
        // What is there after a `delete` is the engine's, or another container's; nobody would take this out of it again.
        _ => Ok(()),
    }
}

/// How long a `create` in the same bundle is waited for.
const BUNDLE_WITHIN: Duration = Duration::from_secs(2);

const WRITTEN: &str = "annotations.json";

/// The annotations that we wrote for a container, from its state directory.
pub fn written(dir: &Path) -> Result<Map<String, Value>, OpsError> {
    let path = dir.join(WRITTEN);
    match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(json_file(&path)),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Map::new()),
        Err(err) => Err(file("read", &path)(err)),
    }
}

fn into_config(bundle: &Path, ours: &Map<String, Value>) -> Result<(), OpsError> {
    let path = bundle.join("config.json");
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(err) => return Err(file("read", &path)(err)),
    };
    // All but the annotations is passed on as it is written: a seccomp profile alone has thousands of values.
    let mut config: Members<'_> = serde_json::from_slice(&text).map_err(json_file(&path))?;
    let place = config.0.iter().position(|(name, _)| name == "annotations");
    let given = place.map(|n| serde_json::from_str::<Option<Map<String, Value>>>(config.0[n].1.get())).transpose();
    let mut notes = given.map_err(json_file(&path))?.flatten().unwrap_or_default();
    for (name, value) in ours {
        notes.insert(name.clone(), value.clone());
    }
    let notes = serde_json::value::to_raw_value(&notes).map_err(json_file(&path))?;
    match place {
        Some(n) => config.0[n].1 = &notes,
        None => config.0.push(("annotations".into(), &notes)),
    }
    let text = serde_json::to_vec(&config).map_err(json_file(&path))?;
    durable::replace_unsynced(&path, &text, 0o644).map_err(file("write", &path))
}

/// The members of a JSON object in their order, the values as text.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The result document of an exec as the store has it now, with all its paths if the bundle still has them.
pub fn document(store: &Store, container: &Container, record: &ExecRecord) -> Result<ResultDocument, OpsError> {
    let id = record.id.to_string();
    let column = Path::new("result in the store");
    let parse = |text: &str| serde_json::from_str::<Details>(text).map_err(json_file(column));
    let mut details = store.result(container.key, &record.id)?.map(|t| parse(&t)).transpose()?.unwrap_or_default();
    details.changes = owners::as_inside(details.changes, owners::maps_of(container).as_ref());
    if details.truncated
        && let Ok(text) = std::fs::read(result_path(container, &id))
        && let Ok(whole) = serde_json::from_slice::<ResultDocument>(&text)
    {
        details = Details {
            changes: whole.changes,
            conflicts: whole.conflicts,
            conflict_reason: whole.conflict_reason,
            policy: details.policy,
            truncated: whole.truncated,
        };
    }
    let value = |v: &Option<Value>| v.clone().unwrap_or(Value::Null);
    let mut args = record.args.clone();
    if record.args_dropped > 0 {
        args.push(left_out(record.args_dropped));
    }
    let in_conflict = record.disposition == Some(Disposition::Conflict);
    let head = match record.generation {
        Some(generation) => generation,
        None => store.head(container.key)?,
    };
    Ok(ResultDocument {
        schema: Schema::V1,
        container: container.id.to_string(),
        exec: id,
        engine_exec: record.engine_exec.clone(),
        args,
        cwd: record.cwd.clone(),
        user: UserIds { uid: record.uid, gid: record.gid },
        generation: Generations { base: record.base, head },
        disposition: record.disposition,
        dropped: store.dropping(container.key, record)?.map(|dropping| Dropped {
            why: dropping.why,
            at: dropping.told.map(|told| rfc3339(told.at_ns)),
            into: dropping.told.and_then(|told| told.into),
        }),
        end: serde_json::from_value(value(&record.end)).map_err(json_file(column))?,
        started_at: rfc3339(record.started_ns),
        finished_at: record.finished_ns.map(rfc3339),
        usage: record
            .usage
            .clone()
            .map(serde_json::from_value)
            .transpose()
            .map_err(json_file(column))?
            .unwrap_or_default(),
        summary: record
            .summary
            .clone()
            .map(serde_json::from_value)
            .transpose()
            .map_err(json_file(column))?
            .unwrap_or_default(),
        changes: details.changes,
        // One that was committed or discarded since is in conflict with nobody.
        conflicts: if in_conflict { details.conflicts } else { Vec::new() },
        conflict_reason: details.conflict_reason.filter(|_| in_conflict),
        policy: details.policy,
        survivors_killed: record.survivors,
        truncated: details.truncated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::fixture::Fixture;

    /// Beside a `create` or a `delete` in the bundle, its configuration was overwritten with one that was not there any more.
    #[test]
    fn annotations_wait_for_the_bundle_and_leave_it_to_who_has_it_then() {
        let fixture = Fixture::new(|_| ());
        let bundle = fixture.dir.path();
        let (config, state) = (bundle.join("config.json"), bundle.join("run/c"));
        std::fs::create_dir_all(&state).unwrap();
        let write = |text: &str| durable::replace_unsynced(&config, text.as_bytes(), 0o600).unwrap();
        let read = || std::fs::read_to_string(&config).unwrap();
        let beside = |change: &dyn Fn()| {
            let lock = BundleLock::lock(bundle).unwrap();
            std::thread::scope(|scope| {
                let annotating = scope.spawn(|| {
                    let store = Store::open(&bundle.join("store")).unwrap();
                    annotate(&store, &fixture.container, Some("{}")).unwrap();
                });
                while !state.join(WRITTEN).exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(50));
                assert!(!annotating.is_finished());
                change();
                drop(lock);
                annotating.join().unwrap();
            });
        };
        let replace = || {
            write("{}");
            spec::Config::load(bundle).unwrap().replace(bundle).unwrap();
        };
        replace();
        beside(&|| write(r#"{"by":"create"}"#));
        assert_eq!(read(), r#"{"by":"create","annotations":{"dev.agentsbx.generation":"0","dev.agentsbx.diff":"{}"}}"#);
        std::fs::remove_file(state.join(WRITTEN)).unwrap();
        beside(&|| {
            write(r#"{"by":"delete"}"#);
            std::fs::remove_dir_all(&state).unwrap();
        });
        assert_eq!(read(), r#"{"by":"delete"}"#);
        std::fs::create_dir_all(&state).unwrap();
        beside(&|| spec::restore(bundle).unwrap());
        assert_eq!(read(), r#"{"by":"delete"}"#, "the engine's own");
    }
}
