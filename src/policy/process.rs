//! The process, first and exec alike: capabilities, no_new_privileges, limits, scheduling, labels.
//!
//! An engine's `process.json` asks for the same as its configuration did. What the container's own decisions tell already
//! is taken from an exec without telling it again.

use oci_spec::runtime::{Capabilities, Capability, IOPriorityClass, LinuxCapabilities, LinuxSchedulerPolicy};
use oci_spec::runtime::{PosixRlimit, PosixRlimitBuilder, PosixRlimitType, Process};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::capabilities::number;
use super::{Confinement, Decision, Refusal, Work, strict};
use crate::terms::Allow;

const NO_NEW_PRIVILEGES: &str = "a setuid program or file capabilities of the image would give what the profile takes";
const CAPABILITIES: &str = "what running as root in an image needs is left; capabilities.add of the configuration adds";
const BOUNDED: &str = "an exec has no capability that its container has not";
const CORE: &str = "a dump of memory would be written, perhaps by a program of the host";
const NOFILE: &str = "limits.nofile of the configuration, or less where the runtime itself may have no more";
const OOM: &str = "the host's processes would be ended before it when memory is short";
const REALTIME: &str = "it would keep the host's processes from running";
const LABEL: &str = "an exec does not leave its container's profile";

/// What the container's own process asked for, by which an exec's is told apart that asks for more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Asked {
    /// Capabilities, bit N is capability N.
    capabilities: u64,
    /// `noNewPrivileges` was not true.
    new_privileges: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rlimits: Vec<PosixRlimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i64>,
    /// Realtime scheduling or I/O.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    realtime: bool,
}

/// What the profile leaves to the container's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bounds {
    /// The capabilities that the first process can have, bit N is capability N.
    capabilities: u64,
    /// The most open files.
    #[serde(skip_serializing_if = "Option::is_none")]
    nofile: Option<u64>,
    /// The container's AppArmor profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    apparmor: Option<String>,
    /// The container's SELinux label.
    #[serde(skip_serializing_if = "Option::is_none")]
    selinux: Option<String>,
    asked: Asked,
}

/// The first process.
pub(super) fn first(work: &mut Work<'_>) -> Result<(), Refusal> {
    if !work.spec["process"].is_object() {
        return Ok(());
    }
    work.confinement.layered = !work.policy.rules.allows(Allow::SharedLayer);
    new_privileges(work);
    capabilities(work);
    rlimits(work)?;
    scheduling(work);
    let process = &work.spec["process"];
    let label = |name: &str| process[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let (apparmor, selinux) = (label("apparmorProfile"), label("selinuxLabel"));
    (work.confinement.bounds.apparmor, work.confinement.bounds.selinux) = (apparmor, selinux);
    Ok(())
}

fn new_privileges(work: &mut Work<'_>) {
    let field = &mut work.spec["process"]["noNewPrivileges"];
    if *field != json!(true) {
        let from = field.take();
        *field = json!(true);
        work.confinement.bounds.asked.new_privileges = true;
        work.decide("process.noNewPrivileges", from, json!(true), NO_NEW_PRIVILEGES);
    }
}

/// The five sets, by their names in the document.
const SETS: [&str; 5] = ["bounding", "effective", "inheritable", "permitted", "ambient"];

/// The capabilities that a container can have.
fn allowed(work: &Work<'_>) -> u64 {
    let rules = &work.policy.rules.capabilities;
    let mask = |names: &mut dyn Iterator<Item = &str>| names.filter_map(parse).fold(0, |mask, cap| mask | bit(cap));
    let ours = mask(&mut strict::CAPABILITIES.iter().map(|(name, _)| *name));
    let added = mask(&mut rules.add.iter().map(String::as_str));
    (ours | added) & !mask(&mut rules.drop.iter().map(String::as_str))
}

fn parse(name: &str) -> Option<Capability> {
    serde_json::from_value(name.into()).ok()
}

fn bit(cap: Capability) -> u64 {
    1 << number(cap)
}

fn capabilities(work: &mut Work<'_>) {
    let allowed = allowed(work);
    let given = work.spec["process"]["capabilities"].take();
    if !given.is_object() {
        // Left out, they would be all that the runtime has.
        work.spec["process"]["capabilities"] = SETS.iter().map(|set| (*set, json!([]))).collect();
        work.decide("process.capabilities", given, json!([]), CAPABILITIES);
        return;
    }
    let mut kept = given.clone();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let bounds = &mut work.confinement.bounds;
    for set in SETS {
        let Some(names) = kept[set].as_array_mut() else { continue };
        names.retain(|name| {
            let cap = name.as_str().and_then(parse);
            let keep = cap.is_some_and(|cap| bit(cap) & allowed != 0);
            if let Some(cap) = cap {
                bounds.asked.capabilities |= bit(cap);
                if set == "bounding" && keep {
                    bounds.capabilities |= bit(cap);
                }
            }
            for list in [Some(&mut before), keep.then_some(&mut after)].into_iter().flatten() {
                if !list.contains(name) {
                    list.push(name.clone());
                }
            }
            keep
        });
    }
    work.spec["process"]["capabilities"] = kept;
    if before != after {
        work.decide("process.capabilities", json!(before), json!(after), CAPABILITIES);
    }
}

fn rlimits(work: &mut Work<'_>) -> Result<(), Refusal> {
    let given = &work.spec["process"]["rlimits"];
    let list: Option<Vec<PosixRlimit>> = serde_json::from_value(given.clone()).map_err(|err| Refusal {
        what: format!("process.rlimits: {given}"),
        why: err.to_string(),
        remedy: "correct it".to_owned(),
    })?;
    let mut list = list.unwrap_or_default();
    let hard = work.host.nofile;
    let most = work.policy.rules.limits.nofile.map(|most| most.min(hard.unwrap_or(u64::MAX)));
    work.confinement.bounds.asked.rlimits = list.clone();
    work.confinement.bounds.nofile = most;
    let decisions = limit(&mut list, most);
    if !decisions.is_empty() {
        work.spec["process"]["rlimits"] = json!(list);
        work.decisions.extend(decisions);
    }
    Ok(())
}

/// No core dumps, and no more open files than `most`.
fn limit(list: &mut Vec<PosixRlimit>, most: Option<u64>) -> Vec<Decision> {
    let wanted = [(PosixRlimitType::RlimitCore, Some(0), CORE), (PosixRlimitType::RlimitNofile, most, NOFILE)];
    let mut decisions = Vec::new();
    for (kind, most, why) in wanted {
        let Some(most) = most else { continue };
        let mut decide = |from: Value, entry: &PosixRlimit| {
            let to = json!({"soft": entry.soft(), "hard": entry.hard()});
            decisions.push(Decision { field: format!("process.rlimits[{kind}]"), from, to, why: why.into() });
        };
        let with = |soft, hard| PosixRlimitBuilder::default().typ(kind).soft(soft).hard(hard).build();
        // The last one is in force, and each is set on the way there.
        let mut is_given = false;
        for entry in list.iter_mut().filter(|entry| entry.typ() == kind) {
            is_given = true;
            if let Ok(bounded) = with(entry.soft().min(most), entry.hard().min(most))
                && bounded != *entry
            {
                decide(json!({"soft": entry.soft(), "hard": entry.hard()}), &bounded);
                *entry = bounded;
            }
        }
        if !is_given && let Ok(entry) = with(most, most) {
            decide(Value::Null, &entry);
            list.push(entry);
        }
    }
    decisions
}

fn scheduling(work: &mut Work<'_>) {
    let score = work.spec["process"]["oomScoreAdj"].as_i64();
    work.confinement.bounds.asked.oom_score_adj = score;
    if let Some(score) = score.filter(|score| *score < 0) {
        work.spec["process"]["oomScoreAdj"] = json!(0);
        work.decide("process.oomScoreAdj", json!(score), json!(0), OOM);
    }
    for (name, is_realtime) in [("scheduler", realtime_policy as fn(&Value) -> bool), ("ioPriority", realtime_io)] {
        if let Some(object) = work.spec["process"].as_object_mut()
            && object.get(name).is_some_and(is_realtime)
        {
            let from = object.shift_remove(name).unwrap_or_default();
            work.confinement.bounds.asked.realtime = true;
            work.decide(format!("process.{name}"), from, Value::Null, REALTIME);
        }
    }
}

fn realtime_policy(scheduler: &Value) -> bool {
    let policy = scheduler["policy"].as_str().unwrap_or_default();
    matches!(policy, "SCHED_FIFO" | "SCHED_RR" | "SCHED_DEADLINE") || scheduler["nice"].as_i64().is_some_and(|n| n < 0)
}

fn realtime_io(priority: &Value) -> bool {
    priority["class"] == "IOPRIO_CLASS_RT"
}

/// An exec's. What is told is what it asks for beyond its container.
pub(super) fn exec(confinement: &Confinement, process: &mut Process) -> Vec<Decision> {
    let Bounds { asked, .. } = &confinement.bounds;
    let bounds = &confinement.bounds;
    let mut told = Told(Vec::new());
    if process.no_new_privileges() != Some(true) {
        let from = process.no_new_privileges().map_or(Value::Null, Value::from);
        process.set_no_new_privileges(Some(true));
        told.unless(asked.new_privileges, "process.noNewPrivileges", from, json!(true), NO_NEW_PRIVILEGES);
    }
    bound(bounds, process, &mut told);
    let before = process.rlimits().clone().unwrap_or_default();
    let mut list = before.clone();
    let decisions = limit(&mut list, bounds.nofile);
    if !decisions.is_empty() {
        process.set_rlimits(Some(list));
        // What its engine says of a limit as of the container's, or leaves out.
        let known =
            |kind: &str| before.iter().filter(|l| l.typ().to_string() == kind).all(|l| asked.rlimits.contains(l));
        let is_new = |decision: &Decision| {
            let kind = decision.field.trim_start_matches("process.rlimits[").trim_end_matches(']');
            !known(kind)
        };
        told.0.extend(decisions.into_iter().filter(is_new));
    }
    if let Some(score) = process.oom_score_adj().filter(|score| *score < 0) {
        process.set_oom_score_adj(Some(0));
        let known = asked.oom_score_adj == Some(score.into());
        told.unless(known, "process.oomScoreAdj", json!(score), json!(0), OOM);
    }
    let realtime = |policy| {
        use LinuxSchedulerPolicy::{SchedDeadline, SchedFifo, SchedRr};
        matches!(policy, SchedFifo | SchedRr | SchedDeadline)
    };
    if let Some(given) = process.scheduler().clone()
        && (realtime(*given.policy()) || given.nice().is_some_and(|nice| nice < 0))
    {
        process.set_scheduler(None);
        told.unless(asked.realtime, "process.scheduler", json!(given), Value::Null, REALTIME);
    }
    if let Some(given) = (*process.io_priority()).filter(|p| p.class() == IOPriorityClass::IoprioClassRt) {
        process.set_io_priority(None);
        told.unless(asked.realtime, "process.ioPriority", json!(given), Value::Null, REALTIME);
    }
    if let Some(label) = leaves(&bounds.apparmor, process.apparmor_profile()) {
        let from = json!(process.apparmor_profile());
        told.unless(false, "process.apparmorProfile", from, json!(label), LABEL);
        process.set_apparmor_profile(Some(label));
    }
    if let Some(label) = leaves(&bounds.selinux, process.selinux_label()) {
        told.unless(false, "process.selinuxLabel", json!(process.selinux_label()), json!(label), LABEL);
        process.set_selinux_label(Some(label));
    }
    told.0
}

/// The container's label, if it has one and `asked` is another.
fn leaves(own: &Option<String>, asked: &Option<String>) -> Option<String> {
    own.clone().filter(|own| asked.as_ref() != Some(own))
}

fn bound(bounds: &Bounds, process: &mut Process, told: &mut Told) {
    let given = process.capabilities().clone();
    let (mut before, mut after): (Vec<Capability>, Vec<Capability>) = (Vec::new(), Vec::new());
    let mut reduce = |of: fn(&LinuxCapabilities) -> &Option<Capabilities>| -> Option<Capabilities> {
        let all = given.iter().flat_map(|sets| of(sets).iter().flatten().copied());
        before.extend(all.clone());
        let left: Capabilities = all.filter(|cap| bit(*cap) & bounds.capabilities != 0).collect();
        after.extend(left.iter().copied());
        Some(left)
    };
    let mut kept = LinuxCapabilities::default();
    kept.set_bounding(reduce(LinuxCapabilities::bounding))
        .set_effective(reduce(LinuxCapabilities::effective))
        .set_inheritable(reduce(LinuxCapabilities::inheritable))
        .set_permitted(reduce(LinuxCapabilities::permitted))
        .set_ambient(reduce(LinuxCapabilities::ambient));
    if given.is_some() && before.len() == after.len() {
        return;
    }
    process.set_capabilities(Some(kept));
    let mask = before.iter().fold(0, |mask, cap| mask | bit(*cap));
    let known = mask & !bounds.capabilities & !bounds.asked.capabilities == 0;
    told.unless(known, "process.capabilities", names(before), names(after), BOUNDED);
}

/// Names, each once, in the order of their numbers.
fn names(mut caps: Vec<Capability>) -> Value {
    caps.sort_by_key(|cap| number(*cap));
    caps.dedup();
    json!(caps)
}

struct Told(Vec<Decision>);

impl Told {
    fn unless(&mut self, known: bool, field: &str, from: Value, to: Value, why: &'static str) {
        if !known {
            self.0.push(Decision { field: field.to_owned(), from, to, why: why.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Rules};
    use crate::policy::tests::{minimal, strict_on, strict_with};
    use crate::policy::{Hardened, Host};

    fn of(process: Value) -> Hardened {
        let mut spec = minimal();
        spec["process"] = process;
        strict_with(spec, Rules::default()).unwrap()
    }

    fn fields(decisions: &[Decision]) -> Vec<&str> {
        decisions.iter().map(|d| d.field.as_str()).filter(|field| field.starts_with("process")).collect()
    }

    /// What Docker gives by default.
    fn docker() -> Value {
        let caps = ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE"];
        json!({"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["x"], "oomScoreAdj": 0,
            "capabilities": {"bounding": caps, "effective": caps, "permitted": caps, "inheritable": caps}})
    }

    fn process(value: &Value) -> Process {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn capabilities_are_those_of_the_list() {
        let got = of(docker());
        let caps = &got.spec.value()["process"]["capabilities"];
        for set in ["bounding", "effective", "permitted", "inheritable"] {
            assert_eq!(caps[set], json!(["CAP_CHOWN", "CAP_KILL"]), "{set}");
        }
        assert_eq!(got.confinement.bounds.capabilities, 1 | 1 << 5);
        let told = got.decisions.iter().find(|d| d.field == "process.capabilities").unwrap();
        assert_eq!((told.from.as_array().unwrap().len(), &told.to), (5, &json!(["CAP_CHOWN", "CAP_KILL"])));
        let none = of(json!({}));
        assert_eq!(none.spec.value()["process"]["capabilities"]["effective"], json!([]), "left out is none, not all");
        assert_eq!(none.confinement.bounds.capabilities, 0);
        let mut spec = minimal();
        spec["process"] = docker();
        let capabilities = config::Capabilities { add: vec!["CAP_NET_RAW".into()], drop: vec!["CAP_CHOWN".into()] };
        let got = strict_with(spec, Rules { capabilities, ..Rules::default() }).unwrap();
        assert_eq!(got.spec.value()["process"]["capabilities"]["bounding"], json!(["CAP_KILL", "CAP_NET_RAW"]));
    }

    #[test]
    fn every_capability_of_the_list_is_one() {
        for (name, _) in strict::CAPABILITIES {
            assert!(parse(name).is_some(), "{name}");
        }
    }

    #[test]
    fn limits_and_scheduling() {
        let limit = |kind: &str, soft: u64, hard: u64| json!({"type": kind, "hard": hard, "soft": soft});
        let core = limit("RLIMIT_CORE", 0, 0);
        let mut spec = minimal();
        let rlimits = |given: Value, hard: Option<u64>| {
            let mut spec = minimal();
            spec["process"]["rlimits"] = given;
            let host = Host { nofile: hard, ..Host::default() };
            strict_on(spec, Rules::default(), &host).unwrap().spec.value()["process"]["rlimits"].clone()
        };
        assert_eq!(rlimits(Value::Null, None), json!([core, limit("RLIMIT_NOFILE", 65536, 65536)]));
        assert_eq!(rlimits(Value::Null, Some(1024)), json!([core, limit("RLIMIT_NOFILE", 1024, 1024)]));
        let small = json!([limit("RLIMIT_NOFILE", 10, 20), core, limit("RLIMIT_CPU", 1, 2)]);
        assert_eq!(rlimits(small.clone(), None), small);
        let large = json!([limit("RLIMIT_NOFILE", 10, 1 << 20), limit("RLIMIT_CORE", 5, 5)]);
        assert_eq!(rlimits(large, None), json!([limit("RLIMIT_NOFILE", 10, 65536), core]));
        // A second one of a kind would be the one in force.
        let twice = json!([
            core,
            limit("RLIMIT_NOFILE", 9, 9),
            limit("RLIMIT_CORE", 5, 5),
            limit("RLIMIT_NOFILE", 10, 1 << 20)
        ]);
        let bounded = json!([core, limit("RLIMIT_NOFILE", 9, 9), core, limit("RLIMIT_NOFILE", 10, 65536)]);
        assert_eq!(rlimits(twice, None), bounded);
        spec["process"]["rlimits"] = json!([{"type": "RLIMIT_X"}]);
        assert!(strict_with(spec, Rules::default()).unwrap_err().to_string().contains("process.rlimits"));

        let given = json!({"oomScoreAdj": -500, "scheduler": {"policy": "SCHED_FIFO", "priority": 9},
            "ioPriority": {"class": "IOPRIO_CLASS_RT", "priority": 0}});
        let got = of(given);
        let process = &got.spec.value()["process"];
        assert_eq!(process["oomScoreAdj"], 0);
        assert!(process["scheduler"].is_null() && process["ioPriority"].is_null());
        let calm = json!({"oomScoreAdj": 500, "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
            "ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 0}});
        let got = of(calm.clone());
        for name in ["oomScoreAdj", "scheduler", "ioPriority"] {
            assert_eq!(got.spec.value()["process"][name], calm[name]);
        }
        let nice = of(json!({"scheduler": {"policy": "SCHED_OTHER", "nice": -5}}));
        assert!(nice.spec.value()["process"]["scheduler"].is_null());
    }

    /// An engine sends for each exec what it gave the container.
    #[test]
    fn an_exec_that_asks_for_the_containers_is_told_nothing() {
        let given = docker();
        let got = of(given.clone());
        let mut p = process(&given);
        assert_eq!(got.confinement.harden(&mut p), Vec::new());
        assert_eq!(p.no_new_privileges(), Some(true));
        let bounding = p.capabilities().as_ref().unwrap().bounding().clone().unwrap();
        assert_eq!(bounding, [Capability::Chown, Capability::Kill].into_iter().collect());
        assert_eq!(p.rlimits().as_ref().unwrap().len(), 2);
        // As one that is the container's own already.
        let mut own = process(&got.spec.value()["process"]);
        let before = own.clone();
        assert_eq!(got.confinement.harden(&mut own), Vec::new());
        assert_eq!(own, before);
    }

    #[test]
    fn an_exec_that_asks_for_more_does_not_get_it_and_it_is_told() {
        let mut container = docker();
        container["apparmorProfile"] = json!("theirs");
        container["noNewPrivileges"] = json!(true);
        let got = of(container.clone());
        let all = ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_FOWNER"];
        let mut asked = container;
        asked["noNewPrivileges"] = json!(false);
        asked["apparmorProfile"] = json!("unconfined");
        asked["oomScoreAdj"] = json!(-1000);
        asked["rlimits"] = json!([{"type": "RLIMIT_NOFILE", "soft": 1 << 20, "hard": 1 << 20}]);
        asked["capabilities"] = json!({"bounding": all, "effective": all, "ambient": all});
        asked["scheduler"] = json!({"policy": "SCHED_RR", "priority": 1});
        asked["ioPriority"] = json!({"class": "IOPRIO_CLASS_RT", "priority": 1});
        let mut p = process(&asked);
        let told = got.confinement.harden(&mut p);
        let want = [
            "process.noNewPrivileges",
            "process.capabilities",
            "process.rlimits[RLIMIT_NOFILE]",
            "process.oomScoreAdj",
            "process.scheduler",
            "process.ioPriority",
            "process.apparmorProfile",
        ];
        assert_eq!(fields(&told), want);
        // In the container's bounding set, FOWNER is not.
        assert_eq!(told[1].from, json!(["CAP_CHOWN", "CAP_FOWNER", "CAP_SYS_ADMIN"]));
        assert_eq!(told[1].to, json!(["CAP_CHOWN"]));
        let caps = p.capabilities().clone().unwrap();
        let left: Capabilities = [Capability::Chown].into_iter().collect();
        assert_eq!((caps.effective(), caps.ambient()), (&Some(left.clone()), &Some(left)));
        assert_eq!((p.apparmor_profile().as_deref(), p.oom_score_adj()), (Some("theirs"), Some(0)));
        assert_eq!((p.scheduler(), p.io_priority()), (&None, &None));
        assert_eq!(p.rlimits().as_ref().unwrap()[0].hard(), 65536);
    }

    #[test]
    fn profile_oci_takes_nothing() {
        let mut p = process(&docker());
        let before = p.clone();
        assert_eq!(Confinement::default().harden(&mut p), Vec::new());
        assert_eq!(p, before);
    }
}
