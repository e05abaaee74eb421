//! `log`.

use serde_json::{Value, json};

use super::decisions;
use super::graph::Graph;
use super::render::{self, Colour, Paint};
use super::{Global, print};
use crate::diff::Summary;
use crate::id::Generation;
use crate::ops::history;
use crate::ops::policy::Told;
use crate::report::{End, rfc3339};
use crate::store::{ExecRecord, LogEntry, now_ns};
use crate::terms::{count, noun};

/// Show a container's history (execs, commits, rollbacks), or list the containers that have one
///
/// @ is HEAD, which the next exec sees; * its ancestors; - a generation that a rollback left: "rollback" can return to
/// it. "4 on 1" begins such a branch, with 1 as its parent. A layer that is "dropped" went to keep
/// the history within its bounds ([retention] in the configuration): there is no way back to it. An exec whose layer was not committed has no number.
/// The container's id is what "docker ps", "podman ps", "crictl ps", "ctr containers list" and so on show.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// The container: its id, or the start of it if no other begins so; not an engine's name for it; by default
    /// all containers are listed
    #[arg(value_name = "CONTAINER")]
    container: Option<String>,
    /// Not taken: whoever gives one gets the verb that does.
    #[arg(hide = true)]
    exec: Option<String>,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let Some(name) = &args.container else { return containers(global, args.json) };
    if let Some(exec) = &args.exec {
        anyhow::bail!("log takes no exec: `agentsbx show {name} {exec}` shows what one did");
    }
    let history::History { container, entries, parents } = history::log(&global.context()?, name)?;
    if args.json {
        return Ok(print(&entries.iter().map(|entry| format!("{}\n", as_json(entry))).collect::<String>()).map(|()| 0)?);
    }
    let paint = Paint::stdout();
    let short = short_length(&entries);
    let (made, told): (Vec<&LogEntry>, Vec<&LogEntry>) =
        entries.iter().partition(|entry| matches!(entry, LogEntry::Event(event) if event.kind == history::CREATED));
    let of = |entry: &&LogEntry| match entry {
        LogEntry::Exec(exec) => exec.generation.filter(|_| exec.dropped.is_none()),
        LogEntry::Event(_) => None,
    };
    let generations: Vec<_> = [Some(Generation::ZERO)].into_iter().chain(told.iter().map(of)).collect();
    let graph = Graph::new(&generations, &parents, container.head);
    let place = |row: usize| {
        let generation = generations[row];
        let colour = match generation {
            Some(generation) if generation == container.head => Colour::Bold,
            _ => Colour::Dim,
        };
        let number = generation.map(|g| graph.number(g)).unwrap_or_default();
        [paint.text(colour, &graph.cell(row, generation)), number]
    };
    let mut rows = vec![
        ["", "GEN", "EXEC", "WHEN", "COMMAND", "END", "LAYER", "CHANGES"].map(|h| paint.text(Colour::Dim, h)).to_vec(),
    ];
    let [mark, zero] = place(0);
    let origin = paint.text(Colour::Dim, &format!("(the root filesystem as created{})", policy(&made)));
    rows.push(vec![mark, zero, String::new(), ago(container.created_ns), origin]);
    rows.extend(told.iter().enumerate().map(|(at, entry)| {
        let [mark, number] = place(at + 1);
        match entry {
            LogEntry::Exec(exec) => match (exec.dropped, exec.generation) {
                (Some(_), Some(generation)) => {
                    let number = paint.text(Colour::Dim, &generation.to_string());
                    exec_row(paint, exec, short, mark, number)
                }
                _ => exec_row(paint, exec, short, mark, number),
            },
            LogEntry::Event(event) => {
                let text = event_text(&event.kind, &serde_json::from_str(&event.payload).unwrap_or(Value::Null), short);
                vec![mark, String::new(), String::new(), ago(event.time_ns), paint.text(Colour::Warm, &text)]
            }
        }
    }));
    print(&render::table(&rows))?;
    Ok(0)
}

/// What the event of the container's creation tells of its policy, in brief.
fn policy(made: &[&LogEntry]) -> String {
    let told = made.iter().find_map(|entry| match entry {
        LogEntry::Event(event) => Told::of(&serde_json::from_str(&event.payload).ok()?),
        LogEntry::Exec(_) => None,
    });
    told.map(|told| format!("; {}", decisions::in_brief(&told))).unwrap_or_default()
}

/// The containers that the store knows, whatever root they were made with.
fn containers(global: &Global, as_json: bool) -> anyhow::Result<u8> {
    let known = history::containers(&global.context()?)?;
    if as_json {
        for container in &known {
            let one = json!({
                "id": container.id, "head": container.head, "root": container.root, "bundle": container.bundle,
                "createdAt": rfc3339(container.created_ns),
            });
            print(&format!("{one}\n"))?;
        }
        return Ok(0);
    }
    let mut rows =
        vec![["CONTAINER", "HEAD", "CREATED", "ROOT"].map(|h| Paint::stdout().text(Colour::Dim, h)).to_vec()];
    rows.extend(known.iter().map(|container| {
        let root = render::visible(&container.root.to_string_lossy());
        vec![render::clip(container.id.as_str(), 24), container.head.to_string(), ago(container.created_ns), root]
    }));
    print(&render::table(&rows))?;
    Ok(0)
}

fn exec_row(paint: Paint, exec: &ExecRecord, short: usize, mark: String, number: String) -> Vec<String> {
    let end: Option<End> = exec.end.clone().and_then(|e| serde_json::from_value(e).ok());
    let summary: Summary = exec.summary.clone().and_then(|s| serde_json::from_value(s).ok()).unwrap_or_default();
    vec![
        mark,
        number,
        exec.id.to_string()[..short].to_owned(),
        ago(exec.started_ns),
        render::command(&exec.args, 44),
        render::end_painted(paint, end.as_ref().filter(|_| exec.disposition.is_some())),
        match exec.dropped {
            Some(_) => paint.text(Colour::Dim, "dropped"),
            None => render::disposition(paint, exec.disposition),
        },
        render::counts(paint, &summary),
    ]
}

fn event_text(kind: &str, payload: &Value, short: usize) -> String {
    let number = |name: &str| payload[name].as_u64().map_or_else(|| "?".into(), |n| n.to_string());
    let exec = || payload["exec"].as_str().map(|id| id.get(..short).unwrap_or(id).to_owned()).unwrap_or_default();
    match kind {
        "rollback" => format!("rollback from {} to {}", number("from"), number("to")),
        "reset" => format!("reset from {} to {}, execs killed: {}", number("from"), number("to"), number("killed")),
        "commit" => format!("commit of {} as generation {}", exec(), number("generation")),
        "apply" => format!(
            "apply of generation {} to the host: {} created, {} replaced, {} deleted, {} with other attributes",
            number("generation"),
            number("created"),
            number("replaced"),
            number("deleted"),
            number("metadata")
        ),
        "discard" => format!("discard of {}", exec()),
        "retention" => {
            let (from, to) = (&payload["from"], &payload["to"]);
            let listed = runs(&payload["generations"])
                .unwrap_or_else(|| if from == to { from.to_string() } else { format!("{from} to {to}") });
            let which = format!(
                "{} {}",
                noun(payload["layers"].as_u64().unwrap_or(0), "generation"),
                render::clip(&listed, 60)
            );
            let layers = count(payload["layers"].as_u64().unwrap_or(0), "layer");
            let bytes = render::bytes(payload["bytes"].as_u64().unwrap_or(0));
            let place =
                payload["into"].as_u64().map_or("left by a rollback".to_owned(), |into| format!("merged into {into}"));
            let why = render::visible(payload["why"].as_str().unwrap_or("?"));
            format!("{which} dropped: over retention.{why} ({layers}, {bytes}; {place})")
        }
        other => render::visible(other),
    }
}

/// The numbers of an event that lists them, as the first and last of each run.
fn runs(listed: &Value) -> Option<String> {
    let one = |run: &Value| {
        let (first, last) = run[0].as_u64().zip(run[1].as_u64())?;
        Some(if first == last { first.to_string() } else { format!("{first}-{last}") })
    };
    Some(listed.as_array()?.iter().map(one).collect::<Option<Vec<_>>>()?.join(", "))
}

/// How many characters of an exec's id tell all of them apart; at least twelve.
fn short_length(entries: &[LogEntry]) -> usize {
    let mut ids: Vec<String> = entries
        .iter()
        .filter_map(|e| if let LogEntry::Exec(exec) = e { Some(exec.id.to_string()) } else { None })
        .collect();
    ids.sort();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    ids.windows(2).map(|w| common(&w[0], &w[1]) + 1).max().unwrap_or(0).clamp(12, 26)
}

fn ago(ns: i64) -> String {
    // A damaged database may have any number there.
    let seconds = now_ns().saturating_sub(ns).max(0) / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..86400 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86400),
    }
}

fn as_json(entry: &LogEntry) -> Value {
    match entry {
        LogEntry::Exec(exec) => json!({
            "type": "exec",
            "exec": exec.id, "engineExec": exec.engine_exec, "args": exec.args, "base": exec.base,
            "generation": exec.generation, "dropped": exec.dropped, "mode": exec.mode, "disposition": exec.disposition, "end": exec.end,
            "summary": exec.summary, "usage": exec.usage,
            "startedAt": rfc3339(exec.started_ns), "finishedAt": exec.finished_ns.map(rfc3339),
        }),
        LogEntry::Event(event) => json!({
            "type": event.kind, "time": rfc3339(event.time_ns),
            "event": serde_json::from_str::<Value>(&event.payload).unwrap_or(Value::Null),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_retention_dropped_and_how() {
        let mut payload = json!({
            "from": 2, "to": 7, "layers": 3, "bytes": 2048, "why": "generations", "generations": [[2, 3], [7, 7]], "into": 9,
        });
        let text = |payload: &Value| event_text("retention", payload, 12);
        let end = "dropped: over retention.generations (3 layers, 2.0 KiB; merged into 9)";
        assert_eq!(text(&payload), format!("generations 2-3, 7 {end}"));
        // As they were written before the numbers were listed.
        payload["generations"] = Value::Null;
        assert_eq!(text(&payload), format!("generations 2 to 7 {end}"));
        let left = json!({
            "from": 5, "to": 5, "layers": 1, "bytes": 0, "why": "age", "generations": [[5, 5]],
        });
        assert_eq!(text(&left), "generation 5 dropped: over retention.age (1 layer, 0 B; left by a rollback)");
    }

    #[test]
    fn any_time_is_told() {
        assert_eq!(ago(i64::MAX), "0s ago");
        assert!(ago(i64::MIN).ends_with("d ago"));
        assert_eq!(ago(now_ns() - 61_000_000_000), "1m ago");
    }
}
