//! Real result documents, and events made of them, against the JSON Schemas in runtime-spec/.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::images::repository;
use crate::support::{Env, result, wait_until};

fn schema() -> jsonschema::Validator {
    published("result.schema.json")
}

fn published(name: &str) -> jsonschema::Validator {
    let path = repository().join("runtime-spec").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    jsonschema::validator_for(&schema).expect("the schema is a schema")
}

#[track_caller]
fn assert_valid(validator: &jsonschema::Validator, document: &Value) {
    let errors: Vec<_> = validator.iter_errors(document).map(|e| format!("{} at {}", e, e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?} in {document:#}");
}

/// Every kind of end, disposition and change that execs can be made to have is a valid document, in the bundle's files,
/// in the annotation and from `show`.
#[test]
fn real_results_are_valid() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let mut results = Vec::new();
    for (options, script) in [
        (["--layer", "commit"], "mkdir /d; echo x >/d/x; ln -s a /d/l; mkfifo /d/p; mknod /d/c c 1 3; ln /d/x /d/y"),
        (["--layer", "commit"], "rm -r /home; mv /d/x /d/z; chmod 700 /etc; echo >>/etc/passwd; rm /d/l; mkdir /d/l"),
        (["--layer", "commit"], ": >\"$(printf '/bad\\377name')\""),
        (["--layer", "commit-on-success"], "echo x >/x; exit 3"),
        (["--layer", "discard"], "echo x >/x; sleep 1000 &"),
        (["--layer", "hold"], "echo x >/x; kill -9 $$"),
        (["--layer", "shared"], "true"),
        (["--layer", "commit"], "true"),
        (["--timeout", "1"], "sleep 1000"),
    ] {
        bundle.sh_with(options, script);
        results.push(bundle.show());
    }
    bundle.exec(["no-such-command"]).expect(255);
    results.push(bundle.show());
    let validator = schema();
    let written = result::in_bundle(&bundle.dir);
    assert!(written.iter().all(|document| results.contains(document)), "{written:#?}");
    for document in &results {
        assert_valid(&validator, document);
    }
    let mut seen: Vec<&str> = results.iter().map(result::disposition).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, ["committed", "discarded", "empty", "held", "shared"]);
    let config = bundle.read();
    let text = config["annotations"]["dev.agentsbx.diff"].as_str().expect("a diff");
    assert_valid(&validator, &serde_json::from_str(text).expect("JSON"));
}

/// A shim reads the file of `--result` when the supervisor has ended, however the exec ended, and makes an event of it: the
/// file is there by then, whole.
#[test]
fn an_event_can_be_made_of_every_end() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    let validator = published("exec-result.schema.json");
    let mut seen = Vec::new();
    for (n, (options, script, kept)) in [
        (["--layer", "commit"], "echo x >/x", true),
        (["--layer", "commit"], "true", false),
        (["--layer", "commit-on-success"], "echo y >/y; exit 3", true),
        (["--layer", "hold"], "echo y >/y; kill -9 $$", true),
        (["--layer", "shared"], "true", true),
        (["--timeout", "300ms"], "echo y >/z; sleep 1000", true),
    ]
    .into_iter()
    .enumerate()
    {
        let (file, pid_file) = (env.dir.join(format!("{n}.json")), env.dir.join(format!("engines-{n}.pid")));
        let exec = env.cmd(["exec", "--detach", "--pid-file"]).arg(&pid_file).arg("--result").arg(&file);
        exec.args(options).args([&bundle.id, "sh", "-c", script]).output_to(env.dir.join("out")).run().expect(0);
        let supervisor = fs::read_to_string(&pid_file).expect("a pid file");
        wait_until("the supervisor's end", Duration::from_secs(20), || {
            fs::read_to_string(format!("/proc/{supervisor}/stat")).map_or(true, |stat| stat.contains(") Z "))
        });
        let document = fs::File::open(&file).expect("the result is there when its supervisor is gone");
        let event = agentsbx::report::exec_result(document, &bundle.dir).expect("an event");
        let event: Value = serde_json::from_slice(&event.to_json()).expect("JSON");
        assert_valid(&validator, &event);
        assert_eq!(event["engineExec"], format!("engines-{n}"));
        assert_eq!(event["result"].as_str().map(|path| fs::metadata(path).is_ok()), kept.then_some(true), "{event}");
        seen.push(format!("{} {}", result::disposition(&event), result::end(&event).0));
    }
    let ends =
        ["committed exited", "empty exited", "discarded exited", "held signaled", "shared exited", "committed timeout"];
    assert_eq!(seen, ends);
    // One that could not be started has a result, too; its engine is told by the failed start.
    let file = env.dir.join("failed.json");
    env.cmd(["exec", "--detach", "--result"]).arg(&file).args([&bundle.id, "no-such-command"]).run().expect(255);
    wait_until("the result", Duration::from_secs(20), || file.exists());
    let event = agentsbx::report::exec_result(fs::File::open(&file).expect("open"), &bundle.dir).expect("an event");
    let mut broken: Value = serde_json::from_slice(&event.to_json()).expect("JSON");
    assert_valid(&validator, &broken);
    broken["disposition"] = Value::Null;
    assert!(!validator.is_valid(&broken), "valid: {broken:#}");
}

/// The schema is one that refuses: what lacks a field, has a wrong kind or a wrong type is no result.
#[test]
fn what_is_no_result_is_invalid() {
    let env = Env::new();
    let bundle = Bundle::running(&env);
    bundle.sh("echo x >/x").expect(0);
    let good = bundle.show();
    let validator = schema();
    assert_valid(&validator, &good);
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut document = good.clone();
        change(&mut document);
        assert!(!validator.is_valid(&document), "valid: {document:#}");
    };
    broken(&|d| drop(d.as_object_mut().map(|o| o.remove("summary"))));
    broken(&|d| d["disposition"] = json!("merged"));
    broken(&|d| d["end"]["kind"] = json!("finished"));
    broken(&|d| d["changes"][0]["kind"] = json!("touched"));
    broken(&|d| d["generation"]["base"] = json!("0"));
    broken(&|d| d["schema"] = json!("dev.agentsbx.result/v0"));
}
