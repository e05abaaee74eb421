//! Random numbers that can be had again: by a seed that is printed, or given.

use std::time::{SystemTime, UNIX_EPOCH};

/// A generator (SplitMix64).
pub struct Random(u64);

impl Random {
    /// From `AGENTSBX_SOAK_SEED`, or a new seed; it is printed.
    pub fn new(what: &str) -> Random {
        let seed = super::setting("AGENTSBX_SOAK_SEED").unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
            u64::from(now.subsec_nanos()) ^ now.as_secs()
        });
        println!("{what}: AGENTSBX_SOAK_SEED={seed}");
        Random(seed)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// One of them.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}
