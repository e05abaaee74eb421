//! What the store costs one exec: run with `cargo test --release --lib store::tests::timing -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use super::*;

#[derive(Default)]
struct Costs(Vec<(&'static str, Vec<Duration>)>);

impl Costs {
    fn time<T>(&mut self, what: &'static str, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = f();
        let took = start.elapsed();
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, all)) => all.push(took),
            None => self.0.push((what, vec![took])),
        }
        value
    }

    fn print(mut self, title: &str) {
        println!("{title}");
        for (what, all) in &mut self.0 {
            all.sort();
            let mean = all.iter().sum::<Duration>() / all.len() as u32;
            let (median, worst) = (all[all.len() / 2], all[all.len() - 1]);
            println!("  {what:<12} median {median:>9.1?}  mean {mean:>9.1?}  worst {worst:>9.1?}");
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn of_one_exec() {
    for (title, depth, commits) in [
        ("commit, generation 1 on", 0, true),
        ("commit, generation 1000 on (settled)", 1000, true),
        ("empty", 0, false),
    ] {
        let f = fixture();
        let root = f.root();
        let key = f.store.add_container(&new_container("c")).unwrap();
        commit_times(&f.store, key, depth);
        if depth > 0 {
            f.store.set_settled(key, Generation(depth)).unwrap();
        }
        drop(f.store);
        let mut costs = Costs::default();
        for _ in 0..500 {
            let start = Instant::now();
            let store = costs.time("open", || Store::open(&root)).unwrap();
            let container = costs.time("find_in", || store.find_in(Path::new("/run/agentsbx"), &cid("c"))).unwrap();
            let staged = costs.time("create_layer", || store.create_layer()).unwrap();
            let exec = new_exec(Some(staged.id()));
            let lock = costs.time("lock", || ExecLock::create(&store, &exec.id)).unwrap();
            let begun = costs.time("begin", || store.begin_exec(key, &exec)).unwrap();
            staged.keep();
            let ending = if commits { commit_on(begun.base) } else { Ending::Empty };
            let finished = costs.time("finish", || store.finish_exec(key, &exec.id, &outcome(ending))).unwrap();
            if commits {
                store.set_settled(container.key, finished.head).unwrap();
            }
            costs.time("delete", || finished.released.into_iter().for_each(|l| store.delete_layer(l).unwrap()));
            costs.time("release", || lock.release()).unwrap();
            costs.time("close", || drop(store));
            let total = start.elapsed();
            costs.time("(whole)", || ());
            costs.0.last_mut().unwrap().1.pop();
            costs.0.last_mut().unwrap().1.push(total);
        }
        costs.print(title);
    }
}
