//! What a container's history must be, whatever was killed: read from the store's own rows, and held against what was seen
//! before and against what an exec sees.
//!
//! Exec `n` of a test runs [`script`]; so what a generation shows follows from which execs made it and its ancestors.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OpenFlags};

use crate::support::Env;
use crate::support::bundle::Bundle;

/// A generation: its parent, and the exec (by the number in its script) that made it.
pub type Generations = BTreeMap<u64, (u64, u64)>;

/// A container's history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// HEAD.
    pub head: u64,
    /// All generations.
    pub generations: Generations,
}

/// What exec `n` does.
pub fn script(n: u64) -> String {
    format!("echo {n} >/last; echo {n} >/f-{n}; mkdir -p /d/{n}; echo {n} >/d/{n}/f; rm -f /f-{}", n.saturating_sub(3))
}

/// The number of the exec that has these arguments; 0 of one that is not [`script`].
fn number(args: &str) -> u64 {
    let Some((before, _)) = args.split_once(" >/last;") else { return 0 };
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("not a script of ours: {args}"))
}

impl History {
    /// As the store has it; `None` if it has no such container (any more).
    pub fn read(env: &Env, id: &str) -> Option<History> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let db = Connection::open_with_flags(env.store.join("db.sqlite"), flags).expect("open the database");
        let sql = "SELECT key, head FROM containers WHERE id = ? AND removed_ns IS NULL";
        let (key, head): (i64, i64) = db.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?))).ok()?;
        let sql =
            "SELECT number, parent, e.args FROM generations g JOIN execs e ON e.id = g.exec WHERE g.container = ?";
        let mut select = db.prepare(sql).expect("prepare");
        let rows =
            select.query_map([key], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?)));
        let generations = rows
            .expect("read generations")
            .map(|row| row.map(|(number, parent, args)| (number as u64, (parent as u64, self::number(&args)))))
            .collect::<Result<_, _>>()
            .expect("read generations");
        Some(History { head: head as u64, generations })
    }

    /// What `cat /last` and `ls /f-* /d` show at a generation.
    pub fn shows(&self, mut at: u64) -> String {
        let mut execs = Vec::new();
        while at != 0 {
            let (parent, n) = self.generations[&at];
            execs.push(n);
            at = parent;
        }
        let (mut last, mut files, mut dirs) = (String::new(), BTreeSet::new(), BTreeSet::new());
        for n in execs.into_iter().rev().filter(|n| *n != 0) {
            last = format!("{n}\n");
            files.insert(format!("/f-{n}"));
            dirs.insert(n.to_string());
            files.remove(&format!("/f-{}", n.saturating_sub(3)));
        }
        let mut text = last;
        for name in files.iter().chain(&dirs) {
            text.push_str(name);
            text.push('\n');
        }
        text
    }

    /// Asserts that nothing that `before` had is gone or another one, and that an exec sees HEAD as it must be.
    #[track_caller]
    pub fn assert_follows(&self, before: &History, bundle: &Bundle, when: &str) {
        for (number, generation) in &before.generations {
            assert_eq!(self.generations.get(number), Some(generation), "{when}: generation {number}\n{self:#?}");
        }
        assert!(self.head == 0 || self.generations.contains_key(&self.head), "{when}: {self:#?}");
        // Generations show whole execs: each of them was in the container when it was committed, or is there now.
        let sees = "cat /last 2>/dev/null; ls -d /f-* 2>/dev/null; ls /d 2>/dev/null; true";
        let seen = bundle.sh_with(["--layer", "discard"], sees).expect(0).stdout;
        let sorted = |text: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        assert_eq!(sorted(&seen), sorted(&self.shows(self.head)), "{when}: at {}", self.head);
    }
}
