//! `kill -9` at random moments, of whoever is at work: the caller, its supervisor, the container's first process, the
//! engine's shim. After `recover` nothing is left, nothing that was committed is lost, and HEAD shows what it must.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::census::{Census, assert_gone};
use super::model::{History, script};
use super::random::Random;
use super::{assert_clean, rounds};
use crate::support::bundle::Bundle;
use crate::support::{Cmd, Env, result, wait_until};

/// Files of results and the container's log are as many as there were execs.
fn census(env: &Env, bundle: &Bundle) -> Census {
    let mut census = Census::of(env, bundle);
    census.forget_results();
    census
}

/// What may be killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Exec,
    Detached,
    Parallel,
    Hold,
    Commit,
    Discard,
    Rollback,
    Reset,
    Gc,
    Recover,
    Repair,
}

const VICTIMS: [Victim; 14] = [
    Victim::Exec,
    Victim::Exec,
    Victim::Exec,
    Victim::Detached,
    Victim::Detached,
    Victim::Parallel,
    Victim::Hold,
    Victim::Commit,
    Victim::Discard,
    Victim::Rollback,
    Victim::Reset,
    Victim::Gc,
    Victim::Recover,
    Victim::Repair,
];

/// One container's life under kills.
struct Chaos<'e> {
    env: &'e Env,
    bundle: Bundle<'e>,
    random: Random,
    /// How many execs there were.
    n: u64,
}

impl Chaos<'_> {
    fn next(&mut self) -> u64 {
        self.n += 1;
        self.n
    }

    fn exec(&mut self, options: &[&str]) -> Cmd {
        let n = self.next();
        self.env.cmd(["exec"]).args(options).args([&self.bundle.id, "sh", "-c", &script(n)])
    }

    /// Most moments are in the first 60 ms, in which an exec begins and ends; some are later.
    fn pause(&mut self) {
        let limit = *self.random.of(&[2_000, 20_000, 60_000, 150_000]);
        std::thread::sleep(Duration::from_micros(self.random.below(limit)));
    }

    /// A held layer's exec, made if there is none. Not one of an exec that was killed: what it had done is not known.
    fn held(&mut self) -> String {
        let find = |results: Vec<serde_json::Value>| {
            results.into_iter().rfind(|r| ["held", "conflict"].contains(&result::disposition(r)))
        };
        if let Some(known) = find(result::in_bundle(&self.bundle.dir)) {
            let exec = result::exec(&known).to_owned();
            if self.env.json(["show", &self.bundle.id, &exec, "--json"])["disposition"] == known["disposition"] {
                return exec;
            }
        }
        self.exec(&["--layer", "hold"]).run().expect(0);
        self.bundle.show()["exec"].as_str().expect("an exec").to_owned()
    }

    fn a_generation(&mut self, history: &History) -> u64 {
        let numbers: Vec<u64> = [0].into_iter().chain(history.generations.keys().copied()).collect();
        *self.random.of(&numbers)
    }

    /// One kill, one recovery, and what must be then.
    fn round(&mut self, round: u64) {
        let victim = *self.random.of(&VICTIMS);
        let before = History::read(self.env, &self.bundle.id).expect("the container");
        let id = self.bundle.id.clone();
        let mut heads = vec![before.head];
        let cmd = match victim {
            Victim::Exec | Victim::Parallel => self.exec(&[]),
            Victim::Hold => self.exec(&["--layer", "hold"]),
            Victim::Detached => {
                let file = self.bundle.dir.join("supervisor.pid");
                let _ = fs::remove_file(&file);
                let file = file.display().to_string();
                self.exec(&["--detach", "--pid-file", &file]).output_to(self.bundle.dir.join("detached.out"))
            }
            Victim::Commit => {
                let exec = self.held();
                self.env.cmd(["commit", "--force", &id, &exec])
            }
            Victim::Discard => {
                let exec = self.held();
                self.env.cmd(["discard", &id, &exec])
            }
            Victim::Rollback => {
                let to = self.a_generation(&before);
                heads.push(to);
                self.env.cmd(["rollback", &id, &to.to_string()])
            }
            Victim::Reset => {
                heads.push(0);
                self.env.cmd(["reset", &id])
            }
            Victim::Gc => self.env.cmd(["gc"]),
            Victim::Recover => self.env.cmd(["recover"]),
            Victim::Repair => self.env.cmd(["fsck", "--repair"]),
        };
        // What was held for this round may have been made in it.
        let before = History::read(self.env, &self.bundle.id).expect("the container");
        let others: Vec<_> = match victim {
            Victim::Parallel => (0..3).map(|_| self.exec(&[]).spawn()).collect(),
            _ => Vec::new(),
        };
        let running = cmd.spawn();
        self.pause();
        running.signal(Signal::KILL);
        running.wait();
        if let Victim::Detached = victim {
            // Half of them also lose their supervisor, the others end.
            let pid = fs::read_to_string(self.bundle.dir.join("supervisor.pid")).ok().and_then(|t| t.parse().ok());
            if let (Some(pid), 0) = (pid.and_then(Pid::from_raw), self.random.below(2)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            wait_until("supervisors", Duration::from_secs(10), || supervisors(self.env) == 0);
        }
        others.into_iter().for_each(|exec| drop(exec.wait().expect(0)));
        self.env.ok(["recover"]);
        let when = format!("round {round}, {victim:?}");
        let after = History::read(self.env, &self.bundle.id).expect("the container");
        let new: Vec<u64> = after.generations.keys().copied().filter(|n| !before.generations.contains_key(n)).collect();
        heads.extend(&new);
        assert!(heads.contains(&after.head), "{when}: HEAD is {}, not of {heads:?}", after.head);
        if new.is_empty() && !matches!(victim, Victim::Rollback | Victim::Reset) {
            assert_eq!(after.head, before.head, "{when}");
        }
        after.assert_follows(&before, &self.bundle, &when);
        assert_clean(self.env, &when);
    }
}

/// Processes of this environment, zombies not counted.
fn supervisors(env: &Env) -> usize {
    let root = env.root.display().to_string();
    let line = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
    let entries = fs::read_dir("/proc").expect("list /proc").flatten();
    entries.filter_map(line).filter(|line| String::from_utf8_lossy(line).contains(&root)).count()
}

fn chaos(rounds: u64) {
    let env = Env::new();
    let mut chaos =
        Chaos { env: &env, bundle: Bundle::new(&env, super::leaks::REAPER), random: Random::new("kills"), n: 3 };
    chaos.bundle.start();
    chaos.exec(&[]).run().expect(0);
    chaos.held();
    // Locks stay as long as the container: of who changes HEAD, and of who reads layers.
    env.ok(["rollback", &chaos.bundle.id, "1"]);
    env.ok(["diff", &chaos.bundle.id]);
    let before = census(&env, &chaos.bundle);
    for round in 0..rounds {
        chaos.round(round);
        if round % 10 == 9 {
            let mut before = before.clone();
            before.forget_layers();
            Census::assert_unchanged_but(&env, &chaos.bundle, &before, &format!("round {round}"), |census| {
                census.forget_layers();
                census.forget_results();
            });
        }
    }
    env.ok(["delete", "--force", &chaos.bundle.id]);
    assert_clean(&env, "after delete");
    assert_gone(&env, &chaos.bundle.id);
    assert_eq!(fs::read_dir(env.store.join("layers")).expect("layers").count(), 0);
}

/// Callers and supervisors.
#[test]
fn kills_at_random_moments() {
    chaos(36);
}

/// The same, a thousand times.
#[test]
#[ignore = "ten minutes"]
fn kills_at_random_moments_long() {
    chaos(rounds(1000));
}

/// A container's making and its end: whoever is killed in it, `delete --force` and `recover` leave nothing.
fn lives(rounds: u64) {
    let env = Env::new();
    let mut random = Random::new("lives");
    // It makes the store, which else the first one may be killed before: then there is nothing to recover.
    let first = Bundle::running(&env);
    env.ok(["delete", "--force", &first.id]);
    for round in 0..rounds {
        let bundle = Bundle::new(&env, ["sleep", "100000"]);
        bundle.write();
        let when = format!("life {round}");
        let mut pause = |most: u64| std::thread::sleep(Duration::from_micros(random.below(most)));
        let run = env.cmd(["run", "--detach", "--bundle"]).arg(&bundle.dir).arg(&bundle.id);
        let run = run.output_to(bundle.dir.join("out"));
        match round % 4 {
            0 => {
                let run = run.spawn();
                pause(150_000);
                run.signal(Signal::KILL);
                run.wait();
            }
            1 => {
                // The first process, with execs under it.
                run.run().expect(0);
                let pid = Pid::from_raw(bundle.state()["pid"].as_i64().expect("a pid") as i32).expect("a pid");
                let execs: Vec<_> =
                    (0..3).map(|n| env.cmd(["exec", &bundle.id, "sh", "-c", &script(n + 4)]).spawn()).collect();
                pause(80_000);
                kill_process(pid, Signal::KILL).expect("kill the first process");
                execs.into_iter().for_each(|exec| drop(exec.wait()));
            }
            _ => {
                run.run().expect(0);
                env.cmd(["exec", &bundle.id, "sh", "-c", &script(4)]).run().expect(0);
                let delete = env.cmd(["delete", "--force", &bundle.id]).spawn();
                pause(60_000);
                delete.signal(Signal::KILL);
                delete.wait();
            }
        }
        env.cmd(["delete", "--force", &bundle.id]).run();
        env.ok(["recover"]);
        assert_clean(&env, &when);
        assert_gone(&env, &bundle.id);
        assert!(History::read(&env, &bundle.id).is_none(), "{when}: its history is still there");
        assert_eq!(fs::read_dir(env.store.join("layers")).expect("layers").count(), 0, "{when}");
    }
}

/// The short form.
#[test]
fn kills_while_a_container_is_made_and_deleted() {
    lives(12);
}

/// The same, for long.
#[test]
#[ignore = "three minutes"]
fn kills_while_a_container_is_made_and_deleted_long() {
    lives(rounds(1000) / 4);
}
