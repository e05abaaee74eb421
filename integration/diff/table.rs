//! Every case three times: on the image, on a layer that made the same, and after a rollback of something else.

use std::collections::BTreeSet;

use serde_json::Value;

use super::cases::{Case, all};
use super::session::{Session, bundle, view};
use super::truth::{check, same_after_commit, same_view};
use crate::support::bundle::Bundle;
use crate::support::walk::{Tree, bytes_of};
use crate::support::{Env, result};

/// A container, what has been seen of it, and what was wrong.
struct Play<'e> {
    bundle: Bundle<'e>,
    /// HEAD, and what an exec saw there.
    head: u64,
    /// What an exec saw at each generation that is of interest.
    states: Vec<(u64, Tree)>,
    wrong: Vec<String>,
}

impl<'e> Play<'e> {
    fn new(env: &'e Env, image: &[String]) -> Self {
        let bundle = bundle(env, &[vec!["mkdir t".to_owned()], image.to_vec()].concat());
        bundle.start();
        let first = view(&bundle);
        Play { bundle, head: 0, states: vec![(0, first)], wrong: Vec::new() }
    }

    fn judge(&mut self, what: &str, verdict: Result<(), String>) {
        if let Err(why) = verdict {
            self.wrong.push(format!("{what}: {why}"));
        }
    }

    fn now(&self) -> &Tree {
        &self.states.last().expect("a state").1
    }

    /// One exec: its own document, and the diff of its generation, against the walks before and after; and the next
    /// exec's view against what this one left.
    fn exec(&mut self, what: &str, lines: &[String]) {
        let mut session = Session::start(&self.bundle, &[]);
        let before = session.walk();
        let verdict = same_view(&before, self.now());
        self.judge(&format!("{what}, the view before"), verdict);
        session.play(lines);
        let after = session.walk();
        let document = session.end();
        assert_eq!(self.bundle.show(), document, "{what}");
        self.judge(&format!("{what}, the result"), check(&document, &before, &after, false));
        let changed = document["changes"].as_array().is_some_and(|changes| !changes.is_empty());
        let (disposition, head) = (result::disposition(&document).to_owned(), result::head(&document));
        if disposition != if changed { "committed" } else { "empty" } {
            self.judge(what, Err(format!("{disposition}: {}", document["end"])));
        }
        if head == self.head {
            return;
        }
        let step = format!("{}..{head}", self.head);
        let diff = self.diff(&["--recursive", "--json", &step]);
        self.judge(&format!("{what}, diff --recursive"), check(&diff, &before, &after, true));
        self.head = head;
        let now = view(&self.bundle);
        self.judge(&format!("{what}, the next view"), same_after_commit(&now, &before, &after));
        self.states.push((head, now));
    }

    fn diff(&self, options: &[&str]) -> Value {
        let text = self.bundle.env.cmd(["diff", &self.bundle.id]).args(options).ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("diff {options:?}: {e}"))
    }

    /// Makes HEAD an older or newer generation, and looks at it.
    fn roll(&mut self, what: &str, generation: u64) {
        self.bundle.env.ok(["rollback", &self.bundle.id, &generation.to_string()]);
        self.head = generation;
        let now = view(&self.bundle);
        let then = self.states.iter().find(|(at, _)| *at == generation).expect("a state").1.clone();
        self.judge(&format!("{what}, at generation {generation}"), same_view(&now, &then));
        self.states.push((generation, now));
    }

    /// Back to the beginning and forward again, and all of it as one diff; then the verdict.
    fn finish(mut self) {
        let (end, last) = (self.head, self.now().clone());
        let first = self.states[0].1.clone();
        let whole = self.diff(&["--recursive", "--json"]);
        self.judge("all of it", check(&whole, &first, &last, true));
        let listed = self.diff(&["--json"]);
        self.judge("all of it, not recursive", check(&listed, &first, &last, false));
        let names = self.bundle.env.cmd(["diff", &self.bundle.id, "--recursive", "--name-only"]).ok();
        let paths: BTreeSet<Vec<u8>> =
            whole["changes"].as_array().expect("changes").iter().filter_map(|c| bytes_of(&c["path"])).collect();
        assert_eq!(names.lines().count(), paths.len(), "a name has a line");
        for form in ["--patch", "--stat"] {
            self.bundle.env.cmd(["diff", &self.bundle.id, form]).run().expect(0);
        }
        let mut middle: Vec<u64> = self.states.iter().map(|(at, _)| *at).filter(|at| at % 7 == 3).collect();
        middle.dedup();
        for generation in [vec![0, end], middle, vec![0, end]].concat() {
            self.roll("back and forth", generation);
        }
        let wrong = self.wrong.len();
        assert!(self.wrong.is_empty(), "{wrong} faults:\n{}", self.wrong.join("\n"));
    }
}

/// How many cases one exec plays: each has a directory of its own.
const TOGETHER: usize = 16;

/// What one exec does to several cases: its name for messages, and the lines.
fn each(cases: &[Case], lines: impl Fn(&Case) -> Vec<String>) -> Vec<String> {
    cases.iter().flat_map(lines).collect()
}

fn names(cases: &[Case]) -> String {
    let ends = [cases.first(), cases.last()];
    ends.into_iter().flatten().map(|case| case.name.as_str()).collect::<Vec<_>>().join(" to ")
}

/// The changes again, over what they have made, whatever of them is possible.
fn again(case: &Case) -> Vec<String> {
    let line = |line: &String| format!("?{}", line.trim_start_matches(['?', '!']));
    case.change.iter().map(line).collect()
}

#[test]
fn every_change_of_the_image_is_told_committed_and_undone() {
    let env = Env::new();
    let cases = all();
    let mut play = Play::new(&env, &each(&cases, |case| case.image.clone()));
    for cases in cases.chunks(TOGETHER) {
        play.exec(&names(cases), &each(cases, |case| case.change.clone()));
    }
    play.finish();
}

#[test]
fn every_change_of_a_layer_is_told_committed_and_undone() {
    let env = Env::new();
    let mut play = Play::new(&env, &[]);
    for cases in all().chunks(TOGETHER) {
        play.exec(&format!("{}, made", names(cases)), &each(cases, |case| case.image.clone()));
        play.exec(&names(cases), &each(cases, |case| case.change.clone()));
        play.exec(&format!("{}, again", names(cases)), &each(cases, again));
    }
    play.finish();
}

#[test]
fn every_change_after_a_rollback_is_told_committed_and_undone() {
    let env = Env::new();
    let cases = all();
    let mut play = Play::new(&env, &each(&cases, |case| case.image.clone()));
    for cases in cases.chunks(TOGETHER) {
        let base = play.head;
        let other = |case: &Case| {
            let dir = format!("t/{}", case.name);
            let lines = [format!("rmtree {dir}"), format!("mkdir {dir}"), format!("put {dir}/f else")];
            [lines.to_vec(), vec![format!("mkdir {dir}/d")]].concat()
        };
        play.exec(&format!("{}, something else", names(cases)), &each(cases, other));
        play.exec(&format!("{}, over something else", names(cases)), &each(cases, again));
        play.roll(&names(cases), base);
        play.exec(&names(cases), &each(cases, |case| case.change.clone()));
    }
    play.finish();
}

/// What changes nothing makes no generation, one by one and all at once.
#[test]
fn what_comes_to_nothing_is_empty() {
    let env = Env::new();
    let quiet = [
        "nothing",
        "added-and-deleted",
        "modified-and-back",
        "copied-up-as-it-is",
        "chmod-and-back",
        "xattr-and-back",
        "moved-there-and-back",
        "links-opened",
        "touch-directory",
        "sparse-zeros-written-over",
        "rdev-anew-alike",
    ];
    let cases: Vec<Case> = all().into_iter().filter(|case| quiet.contains(&case.name.as_str())).collect();
    assert_eq!(cases.len(), quiet.len());
    let mut play = Play::new(&env, &each(&cases, |case| case.image.clone()));
    for case in &cases {
        play.exec(&case.name, &case.change);
    }
    play.exec("all of them", &each(&cases, |case| case.change.clone()));
    assert_eq!(play.head, 0, "{:?}", play.wrong);
    play.finish();
}
