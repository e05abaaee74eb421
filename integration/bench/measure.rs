//! Taking turns, and what the samples say.

use super::lab::Runtime;

/// One who takes part in a benchmark, in which each run gives a `T`: one value, or an array of them.
pub struct Contestant<'a, T = f64> {
    /// Its name in the table.
    pub who: String,
    /// Whether the benchmark goes on without it where it fails.
    peer: bool,
    once: Box<dyn FnMut(usize) -> anyhow::Result<T> + 'a>,
}

impl<'a, T> Contestant<'a, T> {
    /// `once` is called once a round with the round's number; it does and checks the work and gives what it measured.
    pub fn new(who: impl Into<String>, once: impl FnMut(usize) -> anyhow::Result<T> + 'a) -> Contestant<'a, T> {
        Contestant { who: who.into(), peer: false, once: Box::new(once) }
    }

    /// The same for a runtime; one that is not the subject may fail.
    pub fn of(runtime: &Runtime, once: impl FnMut(usize) -> anyhow::Result<T> + 'a) -> Contestant<'a, T> {
        Contestant { peer: !runtime.is_subject(), ..Contestant::new(runtime.name.clone(), once) }
    }
}

/// The samples of one contestant, by round.
#[derive(Debug, Clone)]
pub struct Samples<T = f64> {
    /// Whose.
    pub who: String,
    /// What was measured, one value (or array) a round.
    pub values: Vec<T>,
    /// Why it did not do it to the end: then its values count for nothing.
    pub failed: Option<String>,
}

/// One round that does not count, then `runs` that do; each round begins with another contestant.
pub fn alternate<T>(runs: usize, contestants: Vec<Contestant<'_, T>>) -> anyhow::Result<Vec<Samples<T>>> {
    let mut contestants = contestants;
    let count = contestants.len();
    let none = |c: &Contestant<'_, T>| Samples { who: c.who.clone(), values: Vec::new(), failed: None };
    let mut all: Vec<_> = contestants.iter().map(none).collect();
    for round in 0..=runs {
        for turn in 0..count {
            let at = (round + turn) % count;
            let who = &mut contestants[at];
            if all[at].failed.is_some() {
                continue;
            }
            match (who.once)(round) {
                Ok(value) if round > 0 => all[at].values.push(value),
                Ok(_) => {}
                Err(err) if who.peer => all[at].failed = Some(format!("round {round}: {err:#}")),
                Err(err) => return Err(err.context(format!("{}, round {round}", who.who))),
            }
        }
    }
    Ok(all)
}

/// The samples in a few numbers, of the same unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Half are below.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// Nine tenths are at or below.
    pub p90: f64,
    /// Between the quartiles.
    pub iqr: f64,
}

impl Stats {
    /// Of at least one value; between two samples it is interpolated.
    pub fn of(values: &[f64]) -> Stats {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let place = q * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Stats { median: at(0.5), min: sorted[0], p90: at(0.9), iqr: at(0.75) - at(0.25) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let stats = Stats::of(&[5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((stats.median, stats.min, stats.iqr), (3.0, 1.0, 2.0));
        assert!((stats.p90 - 4.6).abs() < 1e-9);
        assert_eq!(Stats::of(&[7.0]), Stats { median: 7.0, min: 7.0, p90: 7.0, iqr: 0.0 });
    }

    #[test]
    fn they_take_turns_and_the_first_round_is_for_warming_up() {
        let order = std::cell::RefCell::new(String::new());
        let contestant = |name: &'static str| {
            let order = &order;
            Contestant::new(name, move |round| {
                order.borrow_mut().push_str(name);
                Ok(round as f64)
            })
        };
        let samples = alternate(2, vec![contestant("a"), contestant("b"), contestant("c")]).unwrap();
        assert_eq!(*order.borrow(), "abcbcacab");
        assert_eq!(samples[1].values, [1.0, 2.0]);
    }

    #[test]
    fn a_peer_may_fail_and_the_subject_may_not() {
        let once = |round| if round == 1 { Err(anyhow::anyhow!("no")) } else { Ok(1.0) };
        let peer = || Contestant { peer: true, ..Contestant::new("peer", once) };
        let samples = alternate(2, vec![Contestant::new("subject", |_| Ok(2.0)), peer()]).unwrap();
        assert_eq!(samples[0].values, [2.0, 2.0]);
        assert_eq!(samples[1].failed.as_deref(), Some("round 1: no"));
        assert!(alternate(2, vec![Contestant::new("subject", once)]).is_err());
    }
}
