//! The tables, and the same as JSON.

use serde_json::{Value, json};

use super::measure::{Samples, Stats};

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds of wall-clock time.
    Ns,
    /// KiB of memory.
    KiB,
}

/// One contestant's line in one benchmark.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who.
    pub who: String,
    /// Of what.
    pub unit: Unit,
    /// In how many rounds.
    pub runs: usize,
    /// What came out.
    pub stats: Result<Stats, String>,
    /// The number of the row whose median over this one's is its ratio.
    pub base: usize,
}

impl Row {
    /// A line of times.
    pub fn times(samples: &[Samples]) -> Vec<Row> {
        samples.iter().map(|s| Row::of(s, Unit::Ns)).collect()
    }

    /// A line.
    pub fn of(samples: &Samples, unit: Unit) -> Row {
        let stats = samples.failed.clone().map_or_else(|| Ok(Stats::of(&samples.values)), Err);
        Row { who: samples.who.clone(), unit, runs: samples.values.len(), stats, base: 0 }
    }

    /// Lines of KiB, where each run gives as many values as there are `kinds`: all contestants' of the first kind, then all
    /// of the next. Ratios are within a kind.
    pub fn sizes<const N: usize>(kinds: [&str; N], samples: &[Samples<[f64; N]>]) -> Vec<Row> {
        let contestants = samples.len();
        let row = |at: usize, kind: &str, of: &Samples<[f64; N]>| {
            let who = format!("{}: {kind}", of.who);
            let values = of.values.iter().map(|values| values[at]).collect();
            let samples = Samples { who, values, failed: of.failed.clone() };
            Row { base: at * contestants, ..Row::of(&samples, Unit::KiB) }
        };
        let kinds = kinds.iter().enumerate();
        kinds.flat_map(|(at, kind)| samples.iter().map(move |of| row(at, kind, of))).collect()
    }
}

/// Everything that was measured.
#[derive(Debug)]
pub struct Report {
    facts: Vec<(String, String)>,
    benches: Vec<(String, String, Vec<Row>)>,
}

impl Report {
    /// Of a machine.
    pub fn new(facts: Vec<(String, String)>) -> Report {
        Report { facts, benches: Vec::new() }
    }

    /// The machine's facts, for people.
    pub fn head(&self) -> String {
        let width = self.facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.facts.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
    }

    /// Takes in one benchmark's rows; its table.
    pub fn add(&mut self, name: String, what: String, rows: Vec<Row>) -> String {
        let table = table(&name, &what, &rows);
        self.benches.push((name, what, rows));
        table
    }

    /// All of it: `facts` by name, and `rows`, in the order in which they were measured.
    pub fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> =
            self.facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let rows = self.benches.iter().flat_map(|(name, what, rows)| {
            rows.iter().map(move |row| {
                json!({
                    "benchmark": name, "what": what, "who": row.who,
                    "unit": match row.unit { Unit::Ns => "ns", Unit::KiB => "KiB" },
                    "runs": row.runs, "median": of(row, |s| s.median), "min": of(row, |s| s.min),
                    "p90": of(row, |s| s.p90), "iqr": of(row, |s| s.iqr), "firstOverThis": ratio(rows, row),
                    "failed": row.stats.as_ref().err(),
                })
            })
        });
        let rows: Vec<Value> = rows.collect();
        json!({ "schema": "dev.agentsbx.bench/v1", "facts": facts, "rows": rows })
    }
}

fn ratio(rows: &[Row], row: &Row) -> Option<f64> {
    let (base, own) = (of(&rows[row.base], |s| s.median)?, of(row, |s| s.median)?);
    (own > 0.0).then(|| base / own)
}

fn of(row: &Row, member: impl Fn(&Stats) -> f64) -> Option<f64> {
    row.stats.as_ref().ok().map(member)
}

fn table(name: &str, what: &str, rows: &[Row]) -> String {
    let mut cells = vec![["", "median", "min", "p90", "IQR", "runs", "ratio"].map(str::to_owned)];
    for (at, row) in rows.iter().enumerate() {
        let value = |v: f64| shown(row.unit, v);
        let ratio = ratio(rows, row).filter(|_| at != row.base).map_or_else(String::new, |r| format!("{r:.2}"));
        let Ok(Stats { median, min, p90, iqr }) = row.stats else { continue };
        cells.push([row.who.clone(), value(median), value(min), value(p90), value(iqr), row.runs.to_string(), ratio]);
    }
    let width = |column: usize| cells.iter().map(|c| c[column].chars().count()).max().unwrap_or(0);
    let mut out = format!("\n{name}: {what}\n");
    for row in &cells {
        let mut line = format!("  {:<w$}", row[0], w = width(0));
        for (column, cell) in row.iter().enumerate().skip(1) {
            line.push_str(&format!("  {cell:>w$}", w = width(column)));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for row in rows {
        if let Err(reason) = &row.stats {
            out.push_str(&format!("  without {}: {reason}\n", row.who));
        }
    }
    out
}

fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ns if value.abs() < 1e9 => format!("{:.2} ms", value / 1e6),
        Unit::Ns => format!("{:.2} s", value / 1e9),
        Unit::KiB => format!("{value:.0} KiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_line_up_and_ratios_are_the_first_over_each() {
        let row =
            |who: &str, ms: f64| Row::of(&Samples { who: who.into(), values: vec![ms * 1e6], failed: None }, Unit::Ns);
        let mut report = Report::new(vec![("kernel".into(), "x".into())]);
        let table = report.add("b".into(), "what".into(), vec![row("agentsbx", 2.0), row("runc", 20.0)]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[1], "b: what");
        assert_eq!(lines[3], "  agentsbx   2.00 ms   2.00 ms   2.00 ms  0.00 ms     1");
        assert_eq!(lines[4], "  runc      20.00 ms  20.00 ms  20.00 ms  0.00 ms     1   0.10");
        assert_eq!(report.json()["rows"][1]["firstOverThis"], 0.1);
        assert_eq!(report.json()["facts"]["kernel"], "x");
    }

    #[test]
    fn ratios_of_sizes_are_within_a_kind() {
        let samples = |who: &str, values| Samples { who: who.into(), values: vec![values], failed: None };
        let rows = Row::sizes(["RSS", "PSS"], &[samples("a", [1.0, 3.0]), samples("b", [4.0, 4.0])]);
        let of: Vec<_> = rows.iter().map(|row| (row.who.as_str(), ratio(&rows, row))).collect();
        assert_eq!(of, [("a: RSS", Some(1.0)), ("b: RSS", Some(0.25)), ("a: PSS", Some(1.0)), ("b: PSS", Some(0.75))]);
    }
}
