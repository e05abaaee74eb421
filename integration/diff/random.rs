//! Random histories: several execs a history, committed, held, discarded, rolled back, two at once; each told as it
//! was, nothing lost, nothing invented.
//!
//! `AGENTSBX_SEED=N` plays that one history. `AGENTSBX_SOAK=SECONDS` is how long the ignored test goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::session::{Session, bundle, view};
use super::truth::{changed_paths, check, same_after_commit, same_view};
use crate::support::bundle::Bundle;
use crate::support::walk::Tree;
use crate::support::{Env, result};

/// A small generator (splitmix64): a seed gives the same history for ever.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }

    fn of<'t>(&mut self, items: &[&'t str]) -> &'t str {
        items[self.below(items.len() as u64) as usize]
    }

    /// A path of one to three components out of few names.
    fn path(&mut self) -> String {
        let parts: Vec<&str> = (0..=self.below(3)).map(|_| self.of(&["a", "b", "a-c", ".wh.a", "%ff"])).collect();
        format!("t/{}", parts.join("/"))
    }

    /// One thing that a program may do; failures are as good.
    fn line(&mut self) -> String {
        let (at, other) = (self.path(), self.path());
        let bytes = self.of(&["", "x", "y", "xx", "xy"]);
        let number = self.below(3);
        let line = match self.below(34) {
            0..=3 => format!("mkdir {at}"),
            4..=7 => format!("put {at} {bytes}"),
            8 => format!("append {at} {bytes}"),
            9 => format!("disguise {at} {bytes}"),
            10 => format!("truncate {at} {number}"),
            11 | 12 => format!("rm {at}"),
            13 | 14 => format!("rmtree {at}"),
            15..=17 => format!("mv {at} {other}"),
            18 => format!("exchange {at} {other}"),
            19 | 20 => format!("link {at} {other}"),
            21 => format!("symlink {} {at}", self.of(&["a", "b/a", "/t/a", "gone"])),
            22 => format!("chmod {at} {}", self.of(&["700", "755", "4755", "0", "1777"])),
            23 => format!("chown {at} {number} {}", self.below(2)),
            24 => format!("touch {at} {number} {}", self.below(2)),
            25 => format!("setx {at} user.t {bytes}"),
            26 => format!("rmx {at} user.t"),
            27 => format!("setx {at} {} y", self.of(&["trusted.overlay.opaque", "user.overlay.opaque", "trusted.t"])),
            28 => format!("open {at}"),
            29 => format!("{} {at}", self.of(&["fifo", "socket"])),
            30 => format!("{} {at} 240 {number}", self.of(&["char", "block"])),
            31 => format!("tmpfile t {at} {bytes}"),
            // By way of a place outside, so that nothing is copied into itself.
            32 => format!("sh rm%20-rf%20t.tmp;cp%20-a%20{at}%20t.tmp;rm%20-rf%20{other};mv%20t.tmp%20{other}"),
            _ => format!("sh rm%20-rf%20t.tmp;cp%20-a%20{at}%20t.tmp;rm%20-rf%20{at};mv%20t.tmp%20{other}"),
        };
        format!("?{line}")
    }
}

/// A history as it is played.
struct History<'e> {
    bundle: Bundle<'e>,
    head: u64,
    /// What an exec saw at each generation, and its parent.
    states: BTreeMap<u64, (Tree, u64)>,
    /// What was done, for people.
    log: Vec<String>,
}

/// What an exec is told to do with its layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Commit,
    HoldThenCommit,
    HoldThenDiscard,
    Discard,
}

impl History<'_> {
    fn now(&self) -> &Tree {
        &self.states[&self.head].0
    }

    /// One exec, held against the walks; where it became a generation, that too.
    fn exec(&mut self, lines: &[String], end: End) -> Result<(), String> {
        self.log.push(format!("exec, {end:?}:"));
        self.log.extend(lines.iter().cloned());
        let mode = match end {
            End::Commit => "commit",
            End::Discard => "discard",
            End::HoldThenCommit | End::HoldThenDiscard => "hold",
        };
        let mut session = Session::start(&self.bundle, &["--layer", mode]);
        let before = session.walk();
        same_view(&before, self.now()).map_err(|e| format!("the view before: {e}"))?;
        session.play(lines);
        let after = session.walk();
        let told = session.end();
        check(&told, &before, &after, false).map_err(|e| format!("the result: {e}"))?;
        if result::disposition(&told) == "empty" {
            return Ok(());
        }
        let (env, id, exec) = (self.bundle.env, &self.bundle.id, result::exec(&told));
        match end {
            End::Commit => {}
            End::Discard => return Ok(()),
            End::HoldThenCommit => drop(env.ok(["commit", id, exec])),
            End::HoldThenDiscard => {
                let diff = env.json(["diff", id, exec, "--json", "--recursive"]);
                check(&diff, &before, &after, true).map_err(|e| format!("diff of the held exec: {e}"))?;
                env.ok(["discard", id, exec]);
                return Ok(());
            }
        }
        let head = result::head(&self.bundle.show());
        let now = view(&self.bundle);
        same_after_commit(&now, &before, &after).map_err(|e| format!("the view after: {e}"))?;
        self.states.insert(head, (now, self.head));
        self.head = head;
        self.diff(self.states[&head].1, head)
    }

    /// Two at once from the same generation, one committed after the other.
    fn two(&mut self, first: &[String], second: &[String]) -> Result<(), String> {
        self.log.push("two at once, the first:".into());
        self.log.extend(first.iter().cloned());
        self.log.push("the second:".into());
        self.log.extend(second.iter().cloned());
        let mut sessions = [Session::start(&self.bundle, &[]), Session::start(&self.bundle, &[])];
        let before = sessions[0].walk();
        sessions[0].play(first);
        sessions[1].play(second);
        let after = [sessions[0].walk(), sessions[1].walk()];
        let [one, other] = sessions;
        let told = one.end();
        check(&told, &before, &after[0], false).map_err(|e| format!("the first result: {e}"))?;
        let changed = changed_paths(&before, &after[0]);
        let between = result::head(&told);
        let told = other.end();
        check(&told, &before, &after[1], false).map_err(|e| format!("the second result: {e}"))?;
        let also = changed_paths(&before, &after[1]);
        let now = view(&self.bundle);
        let is_directory = |tree: &Tree, path: &Vec<u8>| tree.get(path).is_some_and(|e| e.kind == "directory");
        let both = changed
            .iter()
            .find(|path| also.contains(*path) && !(is_directory(&after[0], path) && is_directory(&after[1], path)));
        match result::disposition(&told) {
            "conflict" => same_view(&now, if between == self.head { &before } else { &now }),
            "empty" => Ok(()),
            "committed" => match both {
                Some(path) => Err(format!("{} was changed by both, and no conflict", path.escape_ascii())),
                // Nothing of either is lost.
                None => {
                    let mut want = after[0].clone();
                    for path in &also {
                        match after[1].get(path) {
                            Some(entry) => drop(want.insert(path.clone(), entry.clone())),
                            None => drop(want.remove(path)),
                        }
                    }
                    let unlinked = |tree: &Tree| -> Tree {
                        let entry = |e: &crate::support::walk::Entry| {
                            let mtime = if e.kind == "directory" { (0, 0) } else { e.mtime };
                            crate::support::walk::Entry { link: None, blocks: 0, mtime, ..e.clone() }
                        };
                        tree.iter().map(|(path, e)| (path.clone(), entry(e))).collect()
                    };
                    same_view(&unlinked(&now), &unlinked(&want))
                }
            },
            other => Err(format!("disposition {other}: {told}")),
        }
        .map_err(|e| format!("after both: {e}"))?;
        let heads = [between, result::head(&told)];
        if heads[0] != self.head {
            // Seen by nobody in between; what it is like is told by going there.
            self.bundle.env.ok(["rollback", &self.bundle.id, &heads[0].to_string()]);
            let state = view(&self.bundle);
            self.states.insert(heads[0], (state, self.head));
            self.bundle.env.ok(["rollback", &self.bundle.id, &heads[1].to_string()]);
        }
        if result::disposition(&told) == "committed" {
            self.states.insert(heads[1], (now, heads[0]));
        }
        self.head = heads[1];
        Ok(())
    }

    fn roll(&mut self, generation: u64) -> Result<(), String> {
        self.log.push(format!("rollback {generation}"));
        self.bundle.env.ok(["rollback", &self.bundle.id, &generation.to_string()]);
        self.head = generation;
        same_view(&view(&self.bundle), self.now()).map_err(|e| format!("rolled back: {e}"))
    }

    /// The difference between a generation and an ancestor of it.
    fn diff(&self, from: u64, to: u64) -> Result<(), String> {
        let (env, id, range) = (self.bundle.env, &self.bundle.id, format!("{from}..{to}"));
        let (before, after) = (&self.states[&from].0, &self.states[&to].0);
        let diff = env.json(["diff", id, &range, "--json", "--recursive"]);
        check(&diff, before, after, true).map_err(|e| format!("diff {range} --recursive: {e}"))?;
        let diff = env.json(["diff", id, &range, "--json"]);
        check(&diff, before, after, false).map_err(|e| format!("diff {range}: {e}"))
    }
}

/// Plays the history of a seed, its first `limit` lines: how many there were, and what was wrong.
fn play(seed: u64, limit: usize) -> (usize, Result<(), (String, Vec<String>)>) {
    let mut random = Random(seed);
    let image: Vec<String> = (0..40).map(|_| random.line()).collect();
    let env = Env::new();
    let bundle = bundle(&env, &[vec!["mkdir t".to_owned()], image.clone()].concat());
    bundle.start();
    let first = view(&bundle);
    let log = [vec!["image:".to_owned()], image].concat();
    let mut history = History { bundle, head: 0, states: BTreeMap::from([(0, (first, 0))]), log };
    let mut used = 0;
    let result = (|| {
        for _ in 0..4 + random.below(4) {
            let mut lines = |random: &mut Random| -> Vec<String> {
                let lines: Vec<String> = (0..=random.below(14)).map(|_| random.line()).collect();
                let few = lines.len().min(limit - used);
                used += few;
                lines[..few].to_vec()
            };
            let lines_of_one = lines(&mut random);
            match random.below(8) {
                0..=2 => history.exec(&lines_of_one, End::Commit)?,
                3 => history.exec(&lines_of_one, End::HoldThenCommit)?,
                4 => history.exec(&lines_of_one, End::HoldThenDiscard)?,
                5 => history.exec(&lines_of_one, End::Discard)?,
                _ => {
                    let others = lines(&mut random);
                    history.two(&lines_of_one, &others)?;
                }
            }
            let generations: Vec<u64> = history.states.keys().copied().collect();
            if random.below(4) == 0 {
                history.roll(generations[random.below(generations.len() as u64) as usize])?;
            }
            if used == limit {
                break;
            }
        }
        let mut at = history.head;
        while at != 0 {
            at = history.states[&at].1;
            history.diff(at, history.head)?;
        }
        let generations: Vec<u64> = history.states.keys().copied().collect();
        generations.into_iter().try_for_each(|generation| history.roll(generation))
    })();
    (used, result.map_err(|why| (why, history.log)))
}

/// Plays a history; of one that fails, tells the shortest beginning that fails too.
fn assert_true(seed: u64) {
    let (used, Err((mut why, mut log))) = play(seed, usize::MAX) else { return };
    let (mut good, mut bad) = (0, used);
    while bad - good > 1 {
        let middle = (good + bad) / 2;
        match play(seed, middle) {
            (_, Ok(())) => good = middle,
            (_, Err((w, l))) => (bad, why, log) = (middle, w, l),
        }
    }
    panic!("AGENTSBX_SEED={seed}, its first {bad} lines: {why}\n{}", log.join("\n"));
}

/// The seed that was asked for.
fn asked() -> Option<u64> {
    let text = std::env::var("AGENTSBX_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("AGENTSBX_SEED={text}: {e}")))
}

/// As many as half a minute takes.
#[test]
fn random_histories_are_told_as_they_were() {
    match asked() {
        Some(seed) => assert_true(seed),
        None => (1..=14).for_each(assert_true),
    }
}

/// Others each time, for as long as it may take: ten minutes unless `AGENTSBX_SOAK` says how many seconds.
#[test]
#[ignore = "goes on for AGENTSBX_SOAK seconds"]
fn soak_random_histories() {
    let seconds = std::env::var("AGENTSBX_SOAK").map_or(600, |text| text.parse().expect("AGENTSBX_SOAK in seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let first = asked().unwrap_or(now.as_secs() * 1000);
    let mut seed = first;
    while Instant::now() < end {
        assert_true(seed);
        seed += 1;
    }
    println!("{} histories, from seed {first} on", seed - first);
}
