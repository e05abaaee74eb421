//! Death at every step: each verb is run until its Nth call of a kind that changes something (a write, a rename, a mount, a
//! fork …) and killed at it, for each N, by `strace`. Then `recover`, and everything must hold.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::census::assert_gone;
use super::model::{History, script};
use super::{assert_clean, leaks};
use crate::support::bundle::Bundle;
use crate::support::env::binary;
use crate::support::{Cmd, Env, wait_until};

/// The calls before which a process is stopped: all that change the disk, mounts, processes or who has a lock.
const CALLS: &str = "write,pwrite64,ftruncate,fallocate,fsync,fdatasync,mkdir,mkdirat,rmdir,rename,renameat,renameat2,unlink,\
                     unlinkat,flock,fchmod,fchown,fchmodat,fsetxattr,fremovexattr,mknodat,linkat,symlinkat,utimensat,chdir,\
                     fsconfig,fsmount,move_mount,open_tree,mount,umount2,clone,clone3,fork,vfork,setns,unshare,sendto,\
                     sendmsg,pidfd_send_signal,kill,waitid,wait4,dup2,execve";

/// A verb to be killed in.
struct Verb {
    name: &'static str,
    /// Makes what the verb works on, and says its arguments.
    prepare: fn(&mut Lab) -> Vec<String>,
    /// What is done while it runs.
    meanwhile: fn(&mut Lab),
    /// HEAD may be this instead of where it was, or of a new generation.
    moves_to: fn(&History) -> Option<u64>,
    /// The container may be gone, and is deleted afterwards.
    ends: bool,
}

const NOTHING: Verb = Verb { name: "", prepare: |_| Vec::new(), meanwhile: |_| (), moves_to: |_| None, ends: false };

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

fn verbs() -> Vec<Verb> {
    vec![
        Verb { name: "exec", prepare: |lab| lab.exec(&[]), ..NOTHING },
        Verb { name: "exec, held", prepare: |lab| lab.exec(&["--layer", "hold"]), ..NOTHING },
        Verb {
            name: "exec, discarded",
            prepare: |lab| {
                let result = lab.env.dir.join("result.json").display().to_string();
                lab.exec(&["--layer", "discard", "--result", &result])
            },
            ..NOTHING
        },
        Verb {
            name: "exec past another",
            prepare: |lab| {
                let script =
                    format!("touch /dev/shm/ready; until [ -e /dev/shm/go ]; do usleep 1000; done; {}", lab.script());
                words(&["exec", &lab.bundle.id, "sh", "-c", &script])
            },
            meanwhile: |lab| {
                // It may be killed before it is ready.
                let begun = std::time::Instant::now();
                let there = |name| lab.bundle.sh_with(["--layer", "shared"], &format!("ls /dev/shm/{name}")).code == 0;
                while !there("ready") && begun.elapsed() < Duration::from_millis(700) {}
                // A path of its own, so that there is no conflict.
                lab.bundle.sh("echo 1 >/other").expect(0);
                lab.bundle.sh_with(["--layer", "shared"], "touch /dev/shm/go").expect(0);
            },
            ..NOTHING
        },
        Verb { name: "commit", prepare: |lab| lab.with_held("commit"), ..NOTHING },
        Verb { name: "discard", prepare: |lab| lab.with_held("discard"), ..NOTHING },
        Verb {
            name: "rollback",
            prepare: |lab| words(&["rollback", &lab.bundle.id, "1"]),
            moves_to: |_| Some(1),
            ..NOTHING
        },
        Verb { name: "reset", prepare: |lab| words(&["reset", &lab.bundle.id]), moves_to: |_| Some(0), ..NOTHING },
        Verb { name: "gc", prepare: |lab| lab.with_garbage("gc"), ..NOTHING },
        Verb { name: "recover", prepare: |lab| lab.with_lost("recover"), ..NOTHING },
        Verb { name: "delete", prepare: |lab| words(&["delete", "--force", &lab.bundle.id]), ends: true, ..NOTHING },
        Verb { name: "run", prepare: |lab| lab.not_yet("run"), ends: true, ..NOTHING },
    ]
}

/// A container to try verbs on.
struct Lab<'e> {
    env: &'e Env,
    bundle: Bundle<'e>,
    n: u64,
}

impl<'e> Lab<'e> {
    fn new(env: &'e Env) -> Lab<'e> {
        let bundle = Bundle::new(env, leaks::REAPER);
        bundle.start();
        let mut lab = Lab { env, bundle, n: 3 };
        for _ in 0..2 {
            let args = lab.exec(&[]);
            env.cmd(args).run().expect(0);
        }
        lab
    }

    fn script(&mut self) -> String {
        self.n += 1;
        script(self.n)
    }

    fn exec(&mut self, options: &[&str]) -> Vec<String> {
        let script = self.script();
        [&["exec"], options, &[&self.bundle.id, "sh", "-c", &script]].concat().iter().map(|w| (*w).to_owned()).collect()
    }

    fn with_held(&mut self, verb: &str) -> Vec<String> {
        let args = self.exec(&["--layer", "hold"]);
        self.env.cmd(args).run().expect(0);
        let exec = self.bundle.show()["exec"].as_str().expect("an exec").to_owned();
        // HEAD moves on, so that a commit must look for conflicts; the held layer changed /last too.
        let args = self.exec(&[]);
        self.env.cmd(args).run().expect(0);
        let force = if verb == "commit" { &["--force"][..] } else { &[] };
        [&words(&[verb]), &words(force), &words(&[&self.bundle.id, &exec])].into_iter().flatten().cloned().collect()
    }

    fn with_garbage(&mut self, verb: &str) -> Vec<String> {
        for name in ["layers/01JDVW3K6Q8ZJ4M2T9X5R7C1AB", "trash/01JDVW3K6Q8ZJ4M2T9X5R7C1AC"] {
            let dir = self.env.store.join(name);
            fs::create_dir_all(dir.join("upper/a/b")).expect("make garbage");
            fs::write(dir.join("upper/a/f"), "x").expect("make garbage");
        }
        fs::write(self.env.store.join("locks/01JDVW3K6Q8ZJ4M2T9X5R7C1AB"), "").expect("make garbage");
        words(&[verb])
    }

    fn with_lost(&mut self, verb: &str) -> Vec<String> {
        let ready = format!("{}; touch /dev/shm/lost; sleep 1000", self.script());
        let exec = self.env.cmd(["exec", &self.bundle.id, "sh", "-c", &ready]).spawn();
        wait_until("the exec", Duration::from_secs(10), || {
            self.bundle.sh_with(["--layer", "shared"], "rm /dev/shm/lost").code == 0
        });
        exec.signal(rustix::process::Signal::KILL);
        exec.wait();
        words(&[verb])
    }

    fn not_yet(&mut self, verb: &str) -> Vec<String> {
        self.env.ok(["delete", "--force", &self.bundle.id]);
        self.bundle.write();
        words(&[verb, "--detach", "--bundle", &self.bundle.dir.display().to_string(), &self.bundle.id])
    }

    /// `strace OPTIONS… agentsbx ARGS…`, its calls written to a file.
    fn strace(&self, options: &[String], args: &[String]) -> Cmd {
        let places = ["--root".into(), self.env.root.clone(), "--store".into(), self.env.store.clone()];
        let config = &crate::support::env::process().config;
        Cmd::new("strace")
            .env("AGENTSBX_CONFIG", config)
            .arg("-o")
            .arg(self.env.dir.join("trace"))
            .args(options)
            .arg(binary())
            .args(places)
            .args(args)
            .output_to(self.env.dir.join("traced.out"))
    }

    fn run(&mut self, verb: &Verb, options: &[String]) -> i32 {
        self.bundle.sh_with(["--layer", "shared"], "rm -f /dev/shm/*");
        let args = (verb.prepare)(self);
        let traced = self.strace(options, &args).spawn();
        (verb.meanwhile)(self);
        traced.wait().code
    }
}

/// How often the verb makes each call.
fn calls(lab: &mut Lab, verb: &Verb) -> BTreeMap<String, u64> {
    let code = lab.run(verb, &[format!("--trace={CALLS}")]);
    assert_eq!(code, 0, "{}: {}", verb.name, fs::read_to_string(lab.env.dir.join("traced.out")).unwrap_or_default());
    let text = fs::read(lab.env.dir.join("trace")).expect("the trace");
    let mut calls = BTreeMap::new();
    for line in String::from_utf8_lossy(&text).lines() {
        if let Some((name, _)) = line.split_once('(').filter(|(name, _)| CALLS.split(',').any(|c| c == *name)) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Dies before each `every`th of the verb's calls.
fn die(verb: &Verb, every: usize, offset: usize) -> usize {
    let env = Env::new();
    let mut lab = Lab::new(&env);
    let calls = calls(&mut lab, verb);
    let all: Vec<(String, u64)> =
        calls.into_iter().flat_map(|(name, n)| (1..=n).map(move |k| (name.clone(), k))).collect();
    let mut lab = Lab::new(&env);
    let mut deaths = 0;
    for (name, k) in all.iter().skip(offset % every).step_by(every) {
        let when = format!("{}: killed at {name} {k}", verb.name);
        if verb.ends {
            // What is left of it is deleted, and the next one begins anew.
            deaths += usize::from(lab.run(verb, &kill_at(name, *k)) == 137);
            env.run(["delete", "--force", &lab.bundle.id]);
            env.ok(["recover"]);
            assert_clean(&env, &when);
            assert_gone(&env, &lab.bundle.id);
            assert!(History::read(&env, &lab.bundle.id).is_none(), "{when}");
            lab = Lab::new(&env);
            continue;
        }
        let seen = History::read(&env, &lab.bundle.id).expect("the container");
        deaths += usize::from(lab.run(verb, &kill_at(name, *k)) == 137);
        env.ok(["recover"]);
        let after = History::read(&env, &lab.bundle.id).expect("the container");
        let new = after.generations.keys().copied().filter(|n| !seen.generations.contains_key(n));
        let heads: Vec<u64> = new.chain([seen.head]).chain((verb.moves_to)(&seen)).collect();
        assert!(heads.contains(&after.head), "{when}: HEAD is {}, not of {heads:?}", after.head);
        after.assert_follows(&seen, &lab.bundle, &when);
        assert_clean(&env, &when);
        if lab.n > 150 {
            env.ok(["delete", "--force", &lab.bundle.id]);
            lab = Lab::new(&env);
        }
    }
    env.ok(["delete", "--force", &lab.bundle.id]);
    assert_clean(&env, "after delete");
    println!("{}: {} calls, died at {deaths}", verb.name, all.len());
    deaths
}

fn kill_at(name: &str, k: u64) -> Vec<String> {
    vec![format!("--trace={name}"), format!("--inject={name}:signal=KILL:when={k}")]
}

/// Some steps of each verb: another part with each value of the seed.
#[test]
fn death_at_some_steps() {
    let mut random = super::random::Random::new("steps");
    let deaths: usize = verbs().iter().map(|verb| die(verb, 60, random.below(60) as usize)).sum();
    assert!(deaths > 4, "{deaths}");
}

/// Every step of each verb.
#[test]
#[ignore = "ten minutes"]
fn death_at_every_step() {
    let deaths: usize = verbs().iter().map(|verb| die(verb, 1, 0)).sum();
    assert!(deaths > 300, "{deaths}");
}

/// Every step of the commit that merges a deep stack.
#[test]
#[ignore = "two minutes"]
fn death_at_every_step_of_a_squash() {
    let env = Env::new();
    let mut lab = Lab::new(&env);
    let verb = Verb { name: "squash", prepare: |lab| lab.exec(&[]), ..NOTHING };
    let deepen = |lab: &mut Lab| {
        while lab.bundle.show()["generation"]["head"].as_u64().is_some_and(|n| n < 31) {
            let args = lab.exec(&[]);
            lab.env.cmd(args).run().expect(0);
        }
    };
    deepen(&mut lab);
    let calls = calls(&mut lab, &verb);
    let all: Vec<(String, u64)> =
        calls.into_iter().flat_map(|(name, n)| (1..=n).map(move |k| (name.clone(), k))).collect();
    assert!(all.len() > 200, "{} calls: nothing was merged", all.len());
    let mut deaths = 0;
    let mut lab = Lab::new(&env);
    deepen(&mut lab);
    for (n, (name, k)) in all.iter().enumerate().filter(|(n, _)| n % 4 == 0) {
        let when = format!("squash: killed at {name} {k}, step {n}");
        let seen = History::read(&env, &lab.bundle.id).expect("the container");
        deaths += usize::from(lab.run(&verb, &kill_at(name, *k)) == 137);
        env.ok(["recover"]);
        let after = History::read(&env, &lab.bundle.id).expect("the container");
        after.assert_follows(&seen, &lab.bundle, &when);
        assert_clean(&env, &when);
    }
    println!("squash: {} calls, died at {deaths}", all.len());
    assert!(deaths > 30, "{deaths}");
}
