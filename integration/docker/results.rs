//! Result documents under Docker: there when `docker exec` returns, and right.

use serde_json::Value;

use crate::support::docker::Container;
use crate::support::result;

/// When `docker exec` has returned, `agentsbx show` has that exec's result, every time.
#[test]
fn the_result_is_there_when_exec_returns() {
    let container = Container::idle([]);
    for n in 0..20 {
        container.sh(&format!("echo {n} >/file; exit {n}")).expect(n);
        let result = container.show();
        assert_eq!(result::end(&result), ("exited", Some(n.into())));
        assert_eq!(result["args"], serde_json::json!(["sh", "-c", format!("echo {n} >/file; exit {n}")]));
        assert_eq!(result::head(&result), n as u64 + 1);
    }
}

/// How an exec ended is told apart: exit, signal, timeout, out of memory, could not be started.
#[test]
fn every_kind_of_end_is_told() {
    let container = Container::idle(["--memory", "32m", "--memory-swap", "32m"]);
    let ended = |script: &str| {
        container.sh(script);
        container.show()
    };
    assert_eq!(result::end(&ended("exit 3")), ("exited", Some(3)));
    let signaled = ended("kill -KILL $$");
    assert_eq!(result::end(&signaled).0, "signaled");
    assert_eq!(signaled["end"]["signal"], 9, "{signaled}");
    container.exec_with(["-e", "AGENTSBX_TIMEOUT=1"], &["sleep", "1000"]).run().expect(124);
    assert_eq!(result::end(&container.show()).0, "timeout");
    container.exec_with([], &["dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"]).run().expect(137);
    assert_eq!(result::end(&container.show()).0, "oom");
    assert_ne!(container.exec_with([], &["no-such-command"]).run().code, 0);
    let error = container.show();
    assert_eq!(result::end(&error).0, "error", "{error}");
    assert!(error["end"]["message"].as_str().is_some_and(|m| m.contains("no-such-command")), "{error}");
}

/// What it cost is measured, and what was not is null, never a made-up 0.
#[test]
fn usage_is_measured() {
    let container = Container::idle([]);
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; dd if=/dev/zero of=/blob bs=1M count=4 2>/dev/null; sleep 0.2";
    container.sh(script).expect(0);
    let result = container.show();
    let of = |name: &str| result["usage"][name].as_u64();
    assert!(of("wallNs").is_some_and(|ns| (200_000_000..60_000_000_000).contains(&ns)), "{result}");
    // The kernel tells user and system time apart by samples: of a short run, either may be 0.
    let cpu = of("userNs").zip(of("systemNs")).map(|(user, system)| user + system);
    assert!(cpu.is_some_and(|ns| ns > 10_000_000), "{result}");
    for (name, least) in [("peakMemoryBytes", 65536), ("maxPids", 1), ("writtenBytes", 1)] {
        assert!(result["usage"][name].is_null() || of(name).is_some_and(|n| n >= least), "{name} in {result}");
    }
    assert_eq!(result["summary"]["bytes"], 4 << 20, "{result}");
}

/// The bundle's config.json carries the generation and the last result, which is also a file of its own.
#[test]
fn the_bundle_carries_generation_and_diff() {
    let container = Container::idle([]);
    let annotation = |name: &str| -> Option<String> {
        let config = container.engines.config("moby", &container.id);
        config["annotations"][name].as_str().map(str::to_owned)
    };
    assert_eq!(annotation("dev.agentsbx.generation").as_deref(), Some("0"));
    assert_eq!(annotation("dev.agentsbx.diff"), None);
    container.sh("echo x >/x").expect(0);
    container.sh("echo y >/y; exit 5").expect(5);
    assert_eq!(annotation("dev.agentsbx.generation").as_deref(), Some("2"));
    let diff: Value = serde_json::from_str(&annotation("dev.agentsbx.diff").expect("a diff")).expect("JSON");
    assert_eq!(diff["schema"], "dev.agentsbx.result/v1");
    assert_eq!(diff["changes"][0]["path"], "/y", "{diff}");
    assert_eq!(result::end(&diff), ("exited", Some(5)));
    let whole = container.results().into_iter().find(|r| r["exec"] == diff["exec"]).expect("the result's file");
    assert_eq!(whole, diff);
    container.agentsbx("rollback", ["1"]).ok();
    assert_eq!(annotation("dev.agentsbx.generation").as_deref(), Some("1"));
}

/// A result with more changes than an annotation may hold is cut there and says so; the file has all of them.
#[test]
fn a_large_result_is_cut_in_the_annotation_only() {
    let container = Container::idle([]);
    container.sh("mkdir /many; cd /many; for i in $(seq 1000); do : >a-rather-long-name-for-a-file-$i; done").expect(0);
    let config = container.engines.config("moby", &container.id);
    let text = config["annotations"]["dev.agentsbx.diff"].as_str().expect("a diff");
    assert!(text.len() <= 16 * 1024, "{} bytes", text.len());
    let diff: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(diff["truncated"], true);
    assert_eq!(diff["summary"]["added"], 1001);
    let whole = container.results().into_iter().find(|r| r["exec"] == diff["exec"]).expect("the result's file");
    assert_eq!(whole["changes"].as_array().map(Vec::len), Some(1001));
    assert_eq!(whole["truncated"], false);
}

/// Names that would break a line or a quote come through as they are; what is not UTF-8 as base64.
#[test]
fn odd_names_come_through() {
    let container = Container::idle([]);
    container
        .sh(r#"cd /root; : >'new
line'; : >'quo"te'; : >'back\slash'; : >'co:lon,comma'; : >"$(printf '\377')""#)
        .expect(0);
    let result = container.show();
    let paths: Vec<&Value> = result["changes"].as_array().expect("changes").iter().map(|c| &c["path"]).collect();
    for name in ["/root/new\nline", "/root/quo\"te", "/root/back\\slash", "/root/co:lon,comma"] {
        assert!(paths.contains(&&Value::from(name)), "{name:?} not in {paths:?}");
    }
    assert!(paths.iter().any(|p| p["pathBase64"] == "L3Jvb3Qv/w=="), "{paths:?}");
}

/// `log` tells the container's story in order: execs with their ends and dispositions, commits and rollbacks.
#[test]
fn log_tells_the_story() {
    let container = Container::idle([]);
    container.sh("echo x >/first-file").expect(0);
    container.sh_layer("hold", "echo x >/second-file; exit 6").expect(6);
    let held = result::exec(&container.show()).to_owned();
    container.agentsbx("commit", [&held]).ok();
    container.agentsbx("rollback", ["1"]).ok();
    let text = container.agentsbx("log", []).ok();
    for expected in ["first-file", "second-file", "committed", "6", "rollback"] {
        assert!(text.contains(expected), "{expected} not in {text}");
    }
    let graph = |line: &str| line.chars().take(4).collect::<String>();
    let marked = |mark: char| text.lines().filter(|l| graph(l).contains(mark)).map(str::to_owned).collect::<Vec<_>>();
    // HEAD, and what the rollback left.
    assert!(matches!(marked('@').as_slice(), [one] if one.contains("first-file")), "{text}");
    assert!(matches!(marked('-').as_slice(), [one] if one.contains("second-file")), "{text}");
    let json = container.agentsbx("log", ["--json"]).ok();
    let parsed: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&json).into_iter().collect();
    assert!(parsed.is_ok_and(|values| !values.is_empty()), "{json}");
    assert!(json.contains(&held), "{json}");
}
