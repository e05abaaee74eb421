//! Whether the store is whole: files, database, histories, layers, execs, and what was left behind. Looking changes
//! nothing and needs no right to write; repairing is what `recover` and `gc` do, and then looking again.
//!
//! Execs may run meanwhile: what seems wrong is looked at again before it is told.

mod host;
mod layers;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::{Context, OpsError, gc, recover};
use crate::error::{Classify, Kind, chain};
use crate::runtime::exec::cgroup::KILL_PATIENCE;
use crate::runtime::members;
use crate::runtime::{Record, RuntimeError};
use crate::store::{Container, Finding, Store, StoreError};
use crate::terms::count;

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// The store's directories, its database file and their modes.
    Files,
    /// The database and its invariants, the event log among them.
    Database,
    /// What layers hold, held against what was recorded when they were sealed.
    Layers,
    /// Execs and containers whose processes are gone.
    Execs,
    /// What nothing refers to.
    Leftovers,
    /// Mounts and cgroups.
    Host,
}

/// What can be done about a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Repair {
    /// `agentsbx recover` ends what a killed process left.
    Recover,
    /// `agentsbx recover` drops the history of a container that is gone, held layers too.
    Forget,
    /// `agentsbx gc` deletes it.
    Collect,
    /// The cgroup is emptied and removed.
    Cgroup,
    /// Nothing by itself: a person must decide.
    Hand,
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What it is about.
    pub area: Area,
    /// What is wrong, and with which object.
    pub what: String,
    /// What repairs it.
    pub repair: Repair,
    /// For people: what to do where nothing repairs it.
    pub advice: Option<String>,
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Looked {
    /// Containers that the store has a history of.
    pub containers: u64,
    /// Their generations.
    pub generations: u64,
    /// Their execs on record.
    pub execs: u64,
    /// Paths in layers that were compared with the record.
    pub paths: u64,
    /// Events of the log.
    pub events: u64,
}

/// What was found, and with `repair` what was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The store.
    pub store: PathBuf,
    /// No problem is left.
    pub clean: bool,
    /// What is wrong now.
    pub problems: Vec<Problem>,
    /// What was done.
    pub repaired: Vec<String>,
    /// What is worth knowing and no problem.
    pub notes: Vec<String>,
    /// How much was looked at.
    pub looked: Looked,
}

impl Report {
    fn new(context: &Context) -> Report {
        Report {
            store: context.config.store.clone(),
            clean: false,
            problems: Vec::new(),
            repaired: Vec::new(),
            notes: Vec::new(),
            looked: Looked::default(),
        }
    }

    fn problem(&mut self, area: Area, repair: Repair, what: String) {
        self.problems.push(Problem { area, what, repair, advice: None });
    }

    fn for_a_person(&mut self, area: Area, what: String, advice: &str) {
        self.problems.push(Problem { area, what, repair: Repair::Hand, advice: Some(advice.to_owned()) });
    }

    fn findings(&mut self, area: Area, found: Vec<Finding>, advice: &str) {
        for finding in found {
            self.for_a_person(area, finding.to_string(), advice);
        }
    }

    /// Whether what the database says is not to be relied on.
    fn is_damaged(&self) -> bool {
        self.problems.iter().any(|p| p.area == Area::Database)
    }
}

const PRIVATE: &str = "find out who could have changed it, then chown and chmod it (directories 0700, files 0600)";
const RESTORE: &str = "keep a copy of the store as it is, then put it back from a backup, or move it away";
const NOT_OURS: &str = "nothing is to be repaired here: use the agentsbx that made it, or another --store";

/// Looks at everything. An error is about looking itself: there is no store, or it can't be read.
///
/// Takes some milliseconds, and about 10 µs for each changed path of a layer; file contents are not read.
pub fn look(context: &Context) -> Result<Report, OpsError> {
    let mut report = Report::new(context);
    let root = &context.config.store;
    let store = match Store::open_to_read(root) {
        Ok(store) => store,
        Err(err) if is_about_data(&err) => {
            let foreign = matches!(err, StoreError::NewerFormat { .. } | StoreError::NotOurs { .. });
            report.for_a_person(Area::Database, chain(&err), if foreign { NOT_OURS } else { RESTORE });
            report.notes.push("containers, layers and events were not looked at".into());
            report.findings(Area::Files, Store::check_files(root)?, PRIVATE);
            return Ok(report);
        }
        Err(err) => return Err(err.into()),
    };
    report.findings(Area::Files, Store::check_files(root)?, PRIVATE);
    report.findings(Area::Database, store.check_whole()?, RESTORE);
    if report.problems.is_empty() {
        // Of rows that break their invariants the rest would only say the same again.
        report.looked.events = store.verify_events()?.count;
        report.findings(Area::Layers, store.check_layer_files()?, RESTORE);
        layers::look(&store, &mut report)?;
        lost(&store, &mut report)?;
        leftovers(&store, &mut report)?;
        host::look(&store, &mut report)?;
    } else {
        report.notes.push("because of these, containers, layers and leftovers were not looked at".into());
    }
    report.clean = report.problems.is_empty();
    Ok(report)
}

fn is_about_data(err: &StoreError) -> bool {
    matches!(err, StoreError::NotOurs { .. } | StoreError::NewerFormat { .. }) || err.kind() == Kind::Corrupt
}

fn lost(store: &Store, report: &mut Report) -> Result<(), OpsError> {
    for record in store.lost()? {
        let what = format!(
            "exec {}: it has no end, and its supervisor (process {}) is gone",
            record.id, record.supervisor_pid
        );
        report.problem(Area::Execs, Repair::Recover, what);
    }
    for container in store.containers()? {
        for path in litter(&container)? {
            report.problem(
                Area::Leftovers,
                Repair::Recover,
                format!("{}: it was never put in its place", path.display()),
            );
        }
        match Record::load(&container.root, &container.id) {
            Ok(_) | Err(RuntimeError::NotFound) => {}
            Err(err) => report.for_a_person(
                Area::Execs,
                format!("container {}: {}", container.id, chain(&err)),
                "`agentsbx delete --force` removes the container, and `recover` then its history",
            ),
        }
    }
    for container in recover::gone(store)? {
        let what =
            format!("container {}: the runtime does not know it any more, and its history is still here", container.id);
        report.problem(Area::Execs, Repair::Forget, what);
    }
    Ok(())
}

/// The temporary files that are there for longer than it takes to lock one that was just made.
fn litter(container: &Container) -> Result<Vec<PathBuf>, OpsError> {
    let mut left = recover::litter(container)?;
    if !left.is_empty() {
        std::thread::sleep(Duration::from_millis(50));
        let now = recover::litter(container)?;
        left.retain(|path| now.contains(path));
    }
    Ok(left)
}

fn leftovers(store: &Store, report: &mut Report) -> Result<(), OpsError> {
    let found = store.leftovers()?;
    for garbage in &found.garbage {
        let what = format!("{garbage}: {}", garbage.reason());
        if found.unsure {
            report.notes.push(format!("{what}; or somebody is deleting it just now"));
        } else {
            report.problem(Area::Leftovers, Repair::Collect, what);
        }
    }
    for layer in &found.unknown {
        let what = format!("layer {layer}: it was sealed, and neither a row nor the event log tells of it");
        let advice = "the database has lost its newest rows: put db.sqlite and db.sqlite-wal back as they were; or, if \
                      nobody needs the layer, delete its directory";
        report.for_a_person(Area::Database, what, advice);
    }
    for name in found.foreign {
        report.notes.push(format!("{}: not of the store's making, left alone", name.to_string_lossy()));
    }
    Ok(())
}

/// Looks, does what is safe, and looks again. Nothing is deleted where the database is damaged: what is needed can't be
/// told then.
pub fn repair(context: &Context) -> Result<Report, OpsError> {
    let before = look(context)?;
    if before.clean || before.is_damaged() {
        return Ok(before);
    }
    let mut repaired = Vec::new();
    let mut failed = Vec::new();
    let wanted = |repair| before.problems.iter().any(|p| p.repair == repair);
    // It collects too.
    let recovering = wanted(Repair::Recover) || wanted(Repair::Forget);
    if recovering {
        let done = recover::all(context)?;
        repaired.extend(done.execs.iter().map(|e| format!("exec {} of {}: ended as aborted", e.exec, e.container)));
        repaired.extend(done.containers.iter().map(|id| format!("container {id}: its history was dropped")));
        if done.collected > 0 {
            repaired.push(format!("{} deleted", count(done.collected, "leftover")));
        }
        failed.extend(done.failed.iter().map(|err| format!("recover: {}", chain(err))));
    }
    if wanted(Repair::Cgroup) {
        for group in host::stray_cgroups(&context.store()?)? {
            members::kill(std::slice::from_ref(&group), KILL_PATIENCE)?;
            members::remove(std::slice::from_ref(&group))?;
            repaired.push(format!("cgroup {}: removed", group.display()));
        }
    }
    if wanted(Repair::Collect)
        && !recovering
        && let Some(gc::Done { report: done, .. }) = gc::collect(context, false)?.done
    {
        repaired.extend(done.deleted.iter().map(|garbage| format!("{garbage}: deleted")));
        failed.extend(done.failed.iter().map(|(garbage, err)| format!("{garbage}: not deleted: {err}")));
    }
    let mut after = look(context)?;
    after.repaired = repaired;
    after.notes.extend(failed);
    Ok(after)
}
