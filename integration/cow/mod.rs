//! Copy-on-write bind mounts: the host's directory is never written but by `apply`; all else is as for the root.

mod apply;
mod engines;
mod hostile;
mod layers;
mod mounts;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::Env;
use crate::support::bundle::Bundle;
use crate::support::env::unique;
use crate::support::walk::{self, Tree, walk};

/// A directory of the host with what projects have, and what is unusual.
pub fn project(env: &Env) -> PathBuf {
    let dir = env.dir.join(unique("project"));
    let script = "mkdir -p src/deep/er .git empty; echo one >src/one; echo two >src/two; echo x >src/deep/er/x
        printf '#!/bin/sh\\n' >run; chmod 755 run; ln -s src/one link; ln -s /etc/passwd out; ln src/two src/hard
        chown 1000:1001 src/one; chmod 600 src/two; chmod 1777 empty; touch -d @1000000000 src/one run
        printf a >'a,b:c'; printf b >\"$(printf 'new\\nline')\"; printf c >'back\\slash'; mkfifo pipe
        truncate -s 5000000 sparse; printf d >.git/HEAD";
    fs::create_dir_all(&dir).expect("make a project");
    crate::support::Cmd::new("sh").args(["-c", &format!("cd \"$1\" && set -e\n{script}"), "sh"]).arg(&dir).ok();
    dir
}

/// A bundle in which `source` is at `/work`, copy on write.
pub fn bundle<'e>(env: &'e Env, source: &Path) -> Bundle<'e> {
    with_mounts(env, &[(source, "/work")], r#"{"/work": "cow"}"#)
}

/// A bundle with these bind mounts and rules.
pub fn with_mounts<'e>(env: &'e Env, binds: &[(&Path, &str)], rules: &str) -> Bundle<'e> {
    let mut bundle = Bundle::new(env, ["sleep", "100000"]).annotate("dev.agentsbx.mounts", rules);
    for (source, at) in binds {
        let mount = json!({"destination": at, "type": "bind", "source": source, "options": ["rbind", "rprivate"]});
        bundle.config["mounts"].as_array_mut().expect("mounts").push(mount);
    }
    bundle
}

/// A full walk of what an exec sees at `/work`, named as it sees it.
pub fn seen(bundle: &Bundle<'_>) -> Tree {
    below("/work", bundle.walk_as_exec_at("work"))
}

/// The tree's paths, below a directory.
pub fn below(at: &str, tree: Tree) -> Tree {
    let name = |path: Vec<u8>| if path == b"/" { at.into() } else { [at.as_bytes(), &path].concat() };
    tree.into_iter().map(|(path, entry)| (name(path), entry)).collect()
}

/// Nothing of the host's directory is other than it was.
#[track_caller]
pub fn assert_untouched(before: &Tree, dir: &Path) {
    let now = walk(dir);
    let different = walk::compare(before, &now);
    assert!(different.is_empty(), "{different:#?}");
    let times = |tree: &Tree| tree.values().map(|entry| entry.mtime).collect::<Vec<_>>();
    assert_eq!(times(before), times(&now), "of directories too");
}

/// `KIND PATH` of each change, sorted.
pub fn told(diff: &Value) -> BTreeSet<String> {
    let changes = diff["changes"].as_array().expect("changes");
    changes
        .iter()
        .map(|c| format!("{} {}", c["kind"].as_str().expect("a kind"), c["path"].as_str().unwrap_or("?")))
        .collect()
}

/// The store has nothing that nobody needs, and all that is needed.
#[track_caller]
pub fn assert_sound(env: &Env) {
    let report = env.run(["fsck", "--json"]);
    assert_eq!(report.code, 0, "{}{}", report.stdout, report.stderr);
}

/// How many layers the store has.
pub fn layers(env: &Env) -> usize {
    fs::read_dir(env.store.join("layers")).expect("list layers").count()
}
