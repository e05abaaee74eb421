//! What containerd's shim reads of a container's cgroups by itself: kills for want of memory, and what is used, beside what
//! containerd's own shim says of the same container.

use std::future::Future;
use std::time::Duration;

use agentsbx::shim::cgroup::CgroupPaths;
use agentsbx::shim::metrics::collect;
use agentsbx::shim::oom::Watch;
use containerd_shim_protos::cgroups::metrics as v1;
use containerd_shim_protos::cgroups_v2::metrics as v2;
use containerd_shim_protos::protobuf::reflect::{ReflectFieldRef, ReflectValueRef};
use containerd_shim_protos::protobuf::{Message, MessageDyn};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::bundle::Bundle;
use crate::support::engines::engines;
use crate::support::env::{process, unique};
use crate::support::images::BUSYBOX;
use crate::support::result::end;
use crate::support::{Env, wait_until};

const LIMIT: u64 = 20 << 20;
const SOON: Duration = Duration::from_secs(20);
/// More than a watch takes to find out what woke it.
const QUIET: Duration = Duration::from_millis(400);
/// Takes memory until it is killed.
const GREEDY: &str = "x=a; while :; do x=$x$x; done";

fn within<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// A container with a limit, whose first process waits.
fn limited(env: &Env) -> Bundle<'_> {
    let mut bundle = Bundle::new(env, ["sleep", "100000"]);
    bundle.config["linux"]["resources"]["memory"] = json!({"limit": LIMIT, "swap": LIMIT});
    bundle
}

fn paths(bundle: &Bundle<'_>) -> CgroupPaths {
    let pid = bundle.state()["pid"].as_u64().expect("a pid");
    CgroupPaths::of(u32::try_from(pid).expect("a pid")).expect("cgroups")
}

#[test]
fn a_kill_of_the_first_process_is_told_and_then_that_the_group_is_gone() {
    let env = Env::new();
    let mut bundle = limited(&env);
    bundle.config["process"]["args"] = json!(["sh", "-c", format!("sleep 1; {GREEDY}")]);
    bundle.start();
    let paths = paths(&bundle);
    within(async {
        let mut watch = Watch::new(&paths).expect("a watch");
        assert!(!watch.killed_since_last());
        assert!(timeout(SOON, watch.next()).await.expect("it is told"));
        assert!(!watch.killed_since_last(), "once");
        wait_until("the end", SOON, || bundle.state()["status"] == "stopped");
        env.ok(["delete", &bundle.id]);
        let gone = async {
            // More than one of its processes may have been killed.
            while watch.next().await {}
        };
        timeout(Duration::from_secs(70), gone).await.expect("its end is told");
        assert!(!watch.next().await && !watch.killed_since_last());
        assert!(Watch::new(&paths).is_err() && collect(&paths).is_err());
    });
}

/// An exec has a group of its own, which is gone by the time that its end is seen; it is the container's limit that was hit.
#[test]
fn a_kill_of_an_exec_is_told_before_its_end_is() {
    let env = Env::new();
    let bundle = limited(&env);
    bundle.start();
    within(async {
        let mut watch = Watch::new(&paths(&bundle)).expect("a watch");
        for n in 0..3 {
            // Nobody has waited: as when the runtime was busy with something else.
            bundle.sh(GREEDY).expect(137);
            assert_eq!(end(&bundle.show()).0, "oom");
            assert!(watch.killed_since_last(), "{n}");
            assert!(!watch.killed_since_last(), "{n}: once");
            assert!(timeout(QUIET, watch.next()).await.is_err(), "{n}: once, by whomever it is asked");
        }
        // While somebody waits.
        let running = env.cmd(["exec", &bundle.id, "sh", "-c", GREEDY]).spawn();
        assert!(timeout(SOON, watch.next()).await.expect("it is told"));
        running.wait().expect(137);
        bundle.sh("kill -9 $$").expect(137);
        assert!(!watch.killed_since_last(), "killed, but not for memory");
        // To the limit, and no further: pages of files can be let go of.
        bundle.sh_with(["--layer", "discard"], "dd if=/dev/zero of=/f bs=1M count=60 2>/dev/null").expect(0);
        assert!(!watch.killed_since_last());
        assert!(timeout(QUIET, watch.next()).await.is_err());
        assert_eq!(bundle.state()["status"], "running");
    });
}

/// Two containers of a pod, whose group has a limit: who was killed is told, and not the other.
#[test]
fn a_neighbours_kill_is_not_told() {
    let env = Env::new();
    let (mut one, mut other) = (Bundle::new(&env, ["sleep", "100000"]), Bundle::new(&env, ["sleep", "100000"]));
    let pod = format!("{}/pod-{}", process().cgroup, one.id);
    for bundle in [&mut one, &mut other] {
        bundle.config["linux"]["cgroupsPath"] = json!(format!("{pod}/{}", bundle.id));
        bundle.start();
    }
    let v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let (dir, limit, swap) = match v2 {
        true => (format!("/sys/fs/cgroup{pod}"), "memory.max", ("memory.swap.max", 0)),
        false => {
            (format!("/sys/fs/cgroup/memory{pod}"), "memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", LIMIT))
        }
    };
    std::fs::write(format!("{dir}/{limit}"), LIMIT.to_string()).expect("limit the pod");
    // Where swap is not counted there is no such file.
    let _ = std::fs::write(format!("{dir}/{}", swap.0), swap.1.to_string());
    within(async {
        let (mut killed, mut spared) =
            (Watch::new(&paths(&one)).expect("a watch"), Watch::new(&paths(&other)).expect("a watch"));
        let running = env.cmd(["exec", &one.id, "sh", "-c", GREEDY]).spawn();
        assert!(timeout(SOON, killed.next()).await.expect("it is told"));
        running.wait().expect(137);
        assert!(timeout(QUIET, spared.next()).await.is_err(), "the neighbour");
        assert!(!spared.killed_since_last());
    });
    for bundle in [&one, &other] {
        env.ok(["delete", "--force", &bundle.id]);
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").expect("list").flatten() {
        let _ = std::fs::remove_dir(format!("{}{pod}", hierarchy.path().display()));
    }
    let _ = std::fs::remove_dir(format!("/sys/fs/cgroup{pod}"));
}

/// The metrics of a container that containerd's own shim runs, by that shim and by us: the same fields, and the same values
/// where they do not change from moment to moment.
#[test]
fn metrics_are_those_of_containerds_own_shim() {
    let engines = engines().with_ctr_image();
    let id = unique("metrics");
    let cgroup = format!("{}/ctr/{id}", process().cgroup);
    let wrapper = engines.wrapper.display().to_string();
    let run = ["run", "--detach", "--runtime", "io.containerd.runc.v2", "--runc-binary", &wrapper, "--cgroup", &cgroup];
    let run = engines.ctr(run).args(["--memory-limit", "100000000"]);
    run.args([BUSYBOX, &id, "sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exec sleep 100000"]).ok();
    let tasks = engines.ctr(["tasks", "list"]).ok();
    let line = tasks.lines().find(|line| line.starts_with(&format!("{id} "))).expect("the task").to_owned();
    let pid: u32 = line.split_whitespace().nth(1).expect("a column").parse().expect("a pid");
    wait_until("the loop's end", SOON, || {
        std::fs::read(format!("/proc/{pid}/cmdline")).expect("read").starts_with(b"sleep")
    });
    // Between two looks a moment passes, and the kernel may have counted something.
    let same = (0..10).any(|_| {
        let theirs = engines.ctr(["tasks", "metrics", "--format", "json", &id]).ok();
        let theirs = without_empty(serde_json::from_str(&theirs).expect("JSON"));
        let any = collect(&CgroupPaths::of(pid).expect("cgroups")).expect("metrics");
        let ours = match any.type_url.as_str() {
            "io.containerd.cgroups.v1.Metrics" => to_json(&v1::Metrics::parse_from_bytes(&any.value).expect("v1")),
            _ => to_json(&v2::Metrics::parse_from_bytes(&any.value).expect("v2")),
        };
        let (mut ours, mut theirs) = (without_empty(ours), theirs);
        for (part, field) in LATER {
            if theirs[part][field].is_null()
                && let Some(part) = ours.get_mut(part).and_then(Value::as_object_mut)
            {
                part.remove(field);
            }
        }
        for metrics in [&mut ours, &mut theirs] {
            // In the order in which a directory is read.
            if let Some(sizes) = metrics.get_mut("hugetlb").and_then(Value::as_array_mut) {
                sizes.sort_by_key(|size| size["pagesize"].as_str().map(str::to_owned));
            }
        }
        assert!(theirs["memory"]["usage"] != Value::Null && theirs["cpu"] != Value::Null, "{theirs:#}");
        if ours != theirs {
            println!("ours: {ours:#}\ntheirs: {theirs:#}");
        }
        ours == theirs
    });
    engines.ctr(["tasks", "kill", "--signal", "KILL", &id]).run();
    engines.ctr(["tasks", "delete", "--force", &id]).run();
    engines.ctr(["containers", "delete", &id]).run();
    assert!(same, "see above");
}

/// Of v2, what containerd 1.6 does not tell yet.
const LATER: [(&str, &str); 5] =
    [("cpu", "psi"), ("memory", "psi"), ("io", "psi"), ("memory", "max_usage"), ("memory", "swap_max_usage")];

/// A message's fields by their names in the protocol, as Go's JSON has them.
fn to_json(message: &dyn MessageDyn) -> Value {
    let value = |value: ReflectValueRef<'_>| match value {
        ReflectValueRef::U32(number) => json!(number),
        ReflectValueRef::U64(number) => json!(number),
        ReflectValueRef::F64(number) => json!(number),
        ReflectValueRef::String(text) => json!(text),
        ReflectValueRef::Message(message) => to_json(&*message),
        other => panic!("{other:?}"),
    };
    let descriptor = message.descriptor_dyn();
    let fields = descriptor.fields().map(|field| {
        let found = match field.get_reflect(message) {
            ReflectFieldRef::Optional(optional) => optional.value().map_or(Value::Null, value),
            ReflectFieldRef::Repeated(list) => list.into_iter().map(value).collect(),
            ReflectFieldRef::Map(_) => panic!("no message has a map"),
        };
        (field.name().to_owned(), found)
    });
    Value::Object(fields.collect())
}

/// As Go leaves out what is empty; and a part with nothing in it.
fn without_empty(value: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) => false,
    };
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| (key, without_empty(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        // Elements have their places.
        Value::Array(list) => Value::Array(
            list.into_iter().map(|value| if value.is_object() { without_empty(value) } else { value }).collect(),
        ),
        other => other,
    }
}
