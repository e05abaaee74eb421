//! The history as a graph beside the log: HEAD's line on the left, what rollbacks have left beside it.
//!
//! ```text
//! *    0
//! *    1
//! | -  2           left when HEAD went back to 1
//! |    (rollback from 2 to 1)
//! @    3
//! ```

use std::collections::BTreeMap;

use crate::id::Generation;

/// Most columns that are drawn; more branches than that at a time share the last.
const WIDEST: usize = 8;

/// What the rows of a log look like from above.
#[derive(Debug)]
pub struct Graph {
    head: Generation,
    /// Column of each generation.
    columns: BTreeMap<Generation, usize>,
    /// For each column, the rows (first, last) that a branch in it reaches over.
    spans: Vec<Vec<(usize, usize)>>,
    /// Generations that begin a branch which was left, and what they were made on.
    forks: BTreeMap<Generation, Generation>,
}

impl Graph {
    /// Of a log whose rows, in this order, show these generations; `parents` has every generation but 0.
    pub fn new(rows: &[Option<Generation>], parents: &BTreeMap<Generation, Generation>, head: Generation) -> Graph {
        let mut row_of: BTreeMap<Generation, usize> = BTreeMap::new();
        for (at, generation) in rows.iter().enumerate() {
            row_of.extend(generation.map(|g| (g, at)));
        }
        // HEAD's line is branch 0.
        let mut branch_of = BTreeMap::from([(Generation::ZERO, 0)]);
        let mut at = head;
        while at != Generation::ZERO {
            branch_of.insert(at, 0);
            at = parents.get(&at).copied().unwrap_or(Generation::ZERO);
        }
        // A branch goes on with the first child of its newest generation; others begin branches of their own.
        let mut tips: BTreeMap<Generation, usize> = BTreeMap::new();
        let mut forks = BTreeMap::new();
        let mut branches = 1;
        for (&generation, &parent) in parents {
            if branch_of.contains_key(&generation) {
                continue;
            }
            let branch = tips.remove(&parent).unwrap_or_else(|| {
                forks.insert(generation, parent);
                branches += 1;
                branches - 1
            });
            branch_of.insert(generation, branch);
            tips.insert(generation, branch);
        }
        let mut reach: Vec<Option<(usize, usize)>> = vec![None; branches];
        for (generation, row) in &row_of {
            if let Some(&branch) = branch_of.get(generation) {
                let (first, last) = reach[branch].unwrap_or((*row, *row));
                reach[branch] = Some((first.min(*row), last.max(*row)));
            }
        }
        let mut order: Vec<usize> = (0..branches).filter(|&branch| reach[branch].is_some()).collect();
        order.sort_by_key(|&branch| (branch != 0, reach[branch]));
        let mut spans: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut column_of: BTreeMap<usize, usize> = BTreeMap::new();
        for branch in order {
            let Some((first, last)) = reach[branch] else { continue };
            let free = |column: &Vec<(usize, usize)>| column.iter().all(|&(_, end)| end < first);
            let column = spans.iter().skip(1).position(free).map_or(spans.len(), |at| at + 1);
            let column = if branch == 0 { 0 } else { column.clamp(1, WIDEST - 1) };
            spans.resize(spans.len().max(column + 1), Vec::new());
            spans[column].push((first, last));
            column_of.insert(branch, column);
        }
        let columns = branch_of.into_iter().filter_map(|(g, branch)| Some((g, *column_of.get(&branch)?))).collect();
        Graph { head, columns, spans, forks }
    }

    /// The cell of a row: `@` HEAD, `*` on its line, `-` left by a rollback, `|` where a branch goes on.
    pub fn cell(&self, row: usize, generation: Option<Generation>) -> String {
        let own = generation.and_then(|g| self.columns.get(&g)).copied();
        let mark = |column: usize| match generation {
            Some(generation) if own == Some(column) => match column {
                _ if generation == self.head => '@',
                0 => '*',
                _ => '-',
            },
            _ if self.spans[column].iter().any(|&(first, last)| (first..=last).contains(&row)) => '|',
            _ => ' ',
        };
        let marks: Vec<String> = (0..self.spans.len()).map(|column| mark(column).to_string()).collect();
        marks.join(" ").trim_end().to_owned()
    }

    /// The generation's number; where a branch begins, with what it was made on.
    pub fn number(&self, generation: Generation) -> String {
        match self.forks.get(&generation) {
            Some(parent) => format!("{generation} on {parent}"),
            None => generation.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows as generations (`-1`: a row without one), the tree, HEAD; what is drawn.
    fn drawn(rows: &[i64], parents: &[(u64, u64)], head: u64) -> Vec<String> {
        let rows: Vec<_> = rows.iter().map(|&n| u64::try_from(n).ok().map(Generation)).collect();
        let parents = parents.iter().map(|&(child, parent)| (Generation(child), Generation(parent))).collect();
        let graph = Graph::new(&rows, &parents, Generation(head));
        let number = |g: Option<Generation>| g.map(|g| graph.number(g)).unwrap_or_default();
        rows.iter()
            .enumerate()
            .map(|(at, &g)| format!("{:<4}{}", graph.cell(at, g), number(g)).trim_end().into())
            .collect()
    }

    #[test]
    fn a_line_a_branch_and_a_branch_of_a_branch() {
        assert_eq!(drawn(&[0, 1, -1, 2, -1], &[(1, 0), (2, 1)], 2), ["*   0", "*   1", "|", "@   2", ""]);
        assert_eq!(drawn(&[0], &[], 0), ["@   0"]);
        assert_eq!(
            drawn(&[0, 1, 2, 3, -1, 4], &[(1, 0), (2, 1), (3, 2), (4, 1)], 4),
            ["*   0", "*   1", "| - 2 on 1", "| - 3", "|", "@   4"]
        );
        // Back on the older branch; two lie beside it, one after the other, in the same column.
        assert_eq!(
            drawn(&[0, 1, 2, 3, -1, 4, 5], &[(1, 0), (2, 1), (3, 2), (4, 1), (5, 0)], 3),
            ["*   0", "*   1", "*   2", "@   3", "", "  - 4 on 1", "  - 5 on 0"]
        );
    }

    /// HEAD at 0: everything was left.
    #[test]
    fn all_left() {
        assert_eq!(drawn(&[0, 1, 2, -1], &[(1, 0), (2, 1)], 0), ["@   0", "  - 1 on 0", "  - 2", ""]);
    }

    /// A layer that was held is committed later: its row stands where the exec began.
    #[test]
    fn rows_need_not_be_in_the_order_of_numbers() {
        assert_eq!(drawn(&[0, 2, 1], &[(1, 0), (2, 1)], 2), ["*   0", "@   2", "*   1"]);
    }

    #[test]
    fn many_branches_at_a_time_share_the_last_column() {
        let parents: Vec<_> = (1..=40).map(|n| (n, u64::saturating_sub(n, 20))).collect();
        let rows: Vec<_> = (0..=40).collect();
        let drawn = drawn(&rows, &parents, 0);
        assert!(drawn.iter().all(|row| row.len() < 2 * WIDEST + 10), "{drawn:?}");
        assert_eq!(drawn.iter().filter(|row| row.contains('-')).count(), 40);
    }
}
