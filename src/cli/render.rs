//! What people read: columns that line up, colour on a terminal only, control characters of hostile names made visible.

use std::fmt::Write;

use rustix::termios::isatty;

use super::decisions;
use crate::diff::{Change, FileType, Kind, Summary};
use crate::report::{Dropped, End, ResultDocument};
use crate::terms::{Disposition, EndKind, count};

/// Colours, where the output is a terminal that wants them.
#[derive(Debug, Clone, Copy)]
pub struct Paint(bool);

/// ANSI colours by what they are for.
#[derive(Debug, Clone, Copy)]
pub enum Colour {
    /// Added, succeeded, committed.
    Good,
    /// Deleted, failed, conflicts.
    Bad,
    /// Modified, held.
    Warm,
    /// Less important.
    Dim,
    /// Names.
    Bold,
}

impl Paint {
    /// Colours if standard output is a terminal and `NO_COLOR` is not set.
    pub fn stdout() -> Paint {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Paint(wanted && isatty(rustix::stdio::stdout()))
    }

    /// No colours.
    #[cfg(test)]
    pub fn plain() -> Paint {
        Paint(false)
    }

    /// The text in its colour.
    pub fn text(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Good => "32",
            Colour::Bad => "31",
            Colour::Warm => "33",
            Colour::Dim => "2",
            Colour::Bold => "1",
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A hostile string on one line: control characters as escapes, so that none reaches the terminal.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The same of a text with lines and tabs.
pub fn visible_lines(text: &str) -> String {
    text.split_inclusive(['\n', '\t'])
        .map(|part| {
            let (plain, end) =
                part.strip_suffix(['\n', '\t']).map_or((part, ""), |plain| (plain, &part[plain.len()..]));
            visible(plain) + end
        })
        .collect()
}

/// A command as it would be typed, at most `width` characters.
pub fn command(args: &[String], width: usize) -> String {
    let plain = |a: &str| !a.is_empty() && a.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c));
    let words: Vec<String> = args
        .iter()
        .map(|a| if plain(a) { a.clone() } else { format!("'{}'", visible(a).replace('\'', "'\\''")) })
        .collect();
    clip(&words.join(" "), width)
}

/// The text, or its start and an ellipsis where it is longer than `width`.
pub fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Rows of cells as lines; the first row is the head. Cells are padded by what they show, colour codes aside; one with
/// nothing after it in its row may be longer than its column.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let goes_on = |row: &[String], n: usize| row.iter().skip(n + 1).any(|cell| !cell.is_empty());
    let padded = |n: usize| rows.iter().filter(move |row| goes_on(row, n)).filter_map(move |row| row.get(n));
    let width = |n: usize| padded(n).map(|cell| shown_width(cell)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(shown_width(cell)) + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn shown_width(cell: &str) -> usize {
    let mut width = 0;
    let mut in_code = false;
    for c in cell.chars() {
        match c {
            '\x1b' => in_code = true,
            'm' if in_code => in_code = false,
            _ if in_code => {}
            _ => width += 1,
        }
    }
    width
}

/// How a command ended, in a word or two.
pub fn end(end: Option<&End>) -> String {
    let Some(end) = end else { return "running".into() };
    let code = end.code.map_or_else(|| "?".into(), |c| c.to_string());
    match end.kind {
        EndKind::Exited => format!("exit {code}"),
        EndKind::Signaled => end.signal.map_or_else(|| "signal".into(), signal_name),
        EndKind::Timeout => "timeout".into(),
        EndKind::Oom => "oom".into(),
        EndKind::Error => "error".into(),
    }
}

fn signal_name(signal: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM",
        "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF",
        "WINCH", "IO", "PWR", "SYS",
    ];
    usize::try_from(signal)
        .ok()
        .and_then(|n| NAMES.get(n.checked_sub(1)?))
        .map_or_else(|| format!("signal {signal}"), |n| format!("SIG{n}"))
}

/// The end with its colour.
pub fn end_painted(paint: Paint, what: Option<&End>) -> String {
    let text = end(what);
    match what {
        Some(End { kind: EndKind::Exited, code: Some(0), .. }) => text,
        Some(_) => paint.text(Colour::Bad, &text),
        None => paint.text(Colour::Warm, &text),
    }
}

/// A disposition with its colour.
pub fn disposition(paint: Paint, what: Option<Disposition>) -> String {
    let Some(what) = what else { return String::new() };
    let colour = match what {
        Disposition::Committed => Colour::Good,
        Disposition::Conflict | Disposition::Aborted => Colour::Bad,
        Disposition::Held => Colour::Warm,
        Disposition::Discarded | Disposition::Empty | Disposition::Shared => Colour::Dim,
    };
    paint.text(colour, what.as_str())
}

/// Counts in brief: `+2 ~1 -3`, empty where nothing changed.
pub fn counts(paint: Paint, summary: &Summary) -> String {
    let changed = summary.modified + summary.metadata + summary.replaced + summary.renamed;
    let parts = [(Colour::Good, '+', summary.added), (Colour::Warm, '~', changed), (Colour::Bad, '-', summary.deleted)];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(_, _, n)| *n > 0)
        .map(|(colour, sign, n)| paint.text(*colour, &format!("{sign}{n}")))
        .collect();
    parts.join(" ")
}

/// Numbers in ascending order, those that follow each other in brief: `1-3, 7`.
pub fn ranges(numbers: &[u64]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let one = |(first, last): &(u64, u64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Bytes for people.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Nanoseconds for people.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} µs", ns / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        _ => format!("{} min {} s", ns / 60_000_000_000, ns / 1_000_000_000 % 60),
    }
}

/// One change on one line.
pub fn change(paint: Paint, change: &Change) -> String {
    let path = visible(&change.path.to_string_lossy());
    let slash = if change.file_type == FileType::Directory && path != "/" { "/" } else { "" };
    let (letter, colour) = match change.kind {
        Kind::Added => ('A', Colour::Good),
        Kind::Modified => ('M', Colour::Warm),
        Kind::Metadata => ('m', Colour::Warm),
        Kind::Deleted => ('D', Colour::Bad),
        Kind::Replaced => ('T', Colour::Warm),
        Kind::Renamed => ('R', Colour::Warm),
    };
    let mut line = paint.text(colour, &format!("{letter} {path}{slash}"));
    let mut note = Vec::new();
    if let Some(from) = &change.from {
        note.push(format!("from {}", visible(&from.to_string_lossy())));
    }
    if let Some(from) = change.from_type {
        note.push(format!("{} -> {}", type_name(from), type_name(change.file_type)));
    }
    if !change.attributes.is_empty() {
        note.push(change.attributes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    }
    if let (Some(size), Kind::Added | Kind::Modified | Kind::Replaced) = (change.size, change.kind) {
        note.push(bytes(size));
    }
    if let Some(target) = change.target.as_ref().filter(|_| change.kind != Kind::Deleted) {
        note.push(format!("-> {}", visible(&target.to_string_lossy())));
    }
    if let Some(link) = &change.link_to {
        note.push(format!("hard link to {}", visible(&link.to_string_lossy())));
    }
    if let Some(n) = change.entries.filter(|n| *n > 0) {
        note.push(format!("with {}", count(n, "path")));
    }
    if !note.is_empty() {
        let _ = write!(line, "  {}", paint.text(Colour::Dim, &format!("({})", note.join("; "))));
    }
    line
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Char => "char device",
        FileType::Block => "block device",
    }
}

/// The summary in a sentence.
pub fn summary(summary: &Summary) -> String {
    let parts = [
        (summary.added, "added"),
        (summary.modified, "modified"),
        (summary.metadata, "metadata"),
        (summary.deleted, "deleted"),
        (summary.replaced, "replaced"),
        (summary.renamed, "renamed"),
    ];
    let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if parts.is_empty() {
        "no changes".into()
    } else {
        format!("{}, {} written", parts.join(", "), bytes(summary.bytes))
    }
}

/// Most changes that `show` lists for people.
const SHOWN: usize = 50;

/// How a committed layer went.
fn dropped(gone: &Dropped) -> String {
    let at = gone.at.as_deref().map(|at| format!("at {} ", visible(at))).unwrap_or_default();
    let place = match (gone.into, &gone.at) {
        (Some(into), _) => format!(", merged into generation {into}"),
        (None, Some(_)) => ", left by a rollback".to_owned(),
        (None, None) => String::new(),
    };
    format!("{at}to keep the history within retention.{}{place}", gone.why)
}

/// A result document for people.
pub fn result(paint: Paint, document: &ResultDocument) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![paint.text(Colour::Dim, name), value]);
    row("exec", paint.text(Colour::Bold, &document.exec));
    if let Some(alias) = &document.engine_exec {
        row("engine's id", visible(alias));
    }
    row("command", command(&document.args, 200));
    row(
        "user, cwd",
        format!("{}:{} in {}", document.user.uid, document.user.gid, visible(&document.cwd.to_string_lossy())),
    );
    row(
        "ended",
        match document.end.as_ref().and_then(|e| e.message.as_ref()) {
            Some(message) => format!("{}: {}", end_painted(paint, document.end.as_ref()), visible(message)),
            None => end_painted(paint, document.end.as_ref()),
        },
    );
    if document.disposition == Some(Disposition::Committed) {
        row(
            "layer",
            format!(
                "{} as generation {} (it saw {})",
                disposition(paint, document.disposition),
                document.generation.head,
                document.generation.base
            ),
        );
    } else if document.disposition == Some(Disposition::Shared) {
        row(
            "layer",
            format!("{}: none of its own, it ran in the root filesystem", disposition(paint, document.disposition)),
        );
    } else if document.disposition.is_some_and(Disposition::is_held) {
        let told = disposition(paint, document.disposition);
        let base = document.generation.base;
        row("layer", format!("{told} (it saw generation {base}): kept until commit or discard"));
    } else if document.disposition.is_some() {
        row(
            "layer",
            format!("{} (it saw generation {})", disposition(paint, document.disposition), document.generation.base),
        );
    }
    if let Some(gone) = &document.dropped {
        row("dropped", dropped(gone));
    }
    if let Some(reason) = &document.conflict_reason {
        row("conflict", visible(reason));
    }
    let usage = &document.usage;
    let cpu = usage.user_ns.zip(usage.system_ns).map(|(u, s)| format!("{} CPU", duration(u + s)));
    let used = [usage.wall_ns.map(duration), cpu, usage.peak_memory_bytes.map(|b| format!("{} memory", bytes(b)))];
    let used: Vec<String> = used.into_iter().flatten().collect();
    if !used.is_empty() {
        row("used", used.join(", "));
    }
    if let Some(n) = document.survivors_killed.filter(|n| *n > 0) {
        row("left running", format!("{}, killed", count(n, "process")));
    }
    let changes = match document.disposition {
        None => "not known before it ends".to_owned(),
        Some(Disposition::Shared) => "not recorded".to_owned(),
        Some(_) => summary(&document.summary),
    };
    row("changes", changes);
    let mut out = table(&rows);
    for one in &document.policy {
        let _ = writeln!(out, "{}", decisions::one(paint, &one.field, [&one.from, &one.to], &one.why));
    }
    for path in document.conflicts.iter().take(SHOWN) {
        let _ = writeln!(out, "{}", paint.text(Colour::Bad, &format!("! {}", visible(&path.to_string_lossy()))));
    }
    for one in document.changes.iter().take(SHOWN) {
        let _ = writeln!(out, "{}", change(paint, one));
    }
    if document.changes.len() > SHOWN || document.truncated {
        let _ = writeln!(out, "{}", paint.text(Colour::Dim, "… more: --json has all that is kept"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Generation;
    use crate::terms::Bound;

    #[test]
    fn hostile_names_can_not_drive_the_terminal() {
        assert_eq!(visible("a\x1b[31mb\nc\u{202e}d é"), "a\\u{1b}[31mb\\nc\\u{202e}d é");
        assert_eq!(command(&["sh".into(), "-c".into(), "echo 'x'\n".into()], 80), r"sh -c 'echo '\''x'\''\n'");
        assert_eq!(command(&["".into()], 80), "''");
        assert_eq!(clip("abcdef", 4), "abc…");
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["A".into(), "B".into()],
            vec!["\x1b[1mlong\x1b[0m".into(), "x".into()],
            vec!["ü".into(), String::new()],
            vec!["nothing comes after it".into(), String::new()],
        ];
        assert_eq!(table(&rows), "A     B\n\x1b[1mlong\x1b[0m  x\nü\nnothing comes after it\n");
    }

    #[test]
    fn numbers() {
        assert_eq!((bytes(0), bytes(1023), bytes(1536)), ("0 B".into(), "1023 B".into(), "1.5 KiB".into()));
        assert_eq!(
            (duration(1500), duration(2_500_000), duration(61_000_000_000)),
            ("1 µs".into(), "2.5 ms".into(), "1 min 1 s".into())
        );
    }

    #[test]
    fn how_a_layer_went() {
        let text = include_str!("../../runtime-spec/examples/result-committed.json");
        let mut document: ResultDocument = serde_json::from_str(text).unwrap();
        let at = Some("2023-11-14T22:13:20.123456789Z".to_owned());
        let why = Bound::Bytes;
        for (at, into, want) in [
            (None, None, ""),
            (at.clone(), None, ", left by a rollback"),
            (at, Some(Generation(7)), ", merged into generation 7"),
        ] {
            let when = at.as_ref().map(|at| format!("at {at} ")).unwrap_or_default();
            document.dropped = Some(Dropped { why, at, into });
            let shown = result(Paint::plain(), &document);
            let line = format!("\ndropped      {when}to keep the history within retention.bytes{want}\n");
            assert!(shown.contains(&line), "{line} in {shown}");
        }
    }

    #[test]
    fn the_example_reads_well() {
        let text = include_str!("../../runtime-spec/examples/result-committed.json");
        let shown = result(Paint::plain(), &serde_json::from_str(text).unwrap());
        assert!(shown.contains("layer        committed as generation 2 (it saw 1)\n"), "{shown}");
        assert!(shown.contains("m /etc/group  (mode)\n") && shown.contains("A /root/note  (3 B)\n"), "{shown}");
        assert!(!shown.contains('\x1b') && !shown.contains("dropped"));
    }
}
