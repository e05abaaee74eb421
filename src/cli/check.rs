//! `check`.

use super::render::{self, Colour, Paint, visible};
use super::report::plain_errno;
use super::{Global, print};
use crate::ops::check::{self, Feature, Report, State};

/// Try whether execs on layers will work on this host; exits 1 if not
///
/// Each feature of the kernel, the store and the cgroups is tried, and nothing stays behind. It is enforced, or has a
/// fallback (what is lost is said), or is absent.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document
    #[arg(long)]
    json: bool,
}

pub fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let report = check::run(&global.context()?);
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?,
        false => print(&text(&report, Paint::stdout()))?,
    }
    Ok(u8::from(!report.ready))
}

fn text(report: &Report, paint: Paint) -> String {
    let mut rows = vec![["FEATURE", "STATE", "DETAIL"].map(|head| paint.text(Colour::Dim, head)).to_vec()];
    rows.extend(report.features.iter().map(|f| vec![f.name.to_owned(), state(f, paint), shown(&f.detail)]));
    let mut text = render::table(&rows);
    let remedies = remedies(report);
    if !remedies.is_empty() {
        text.push_str(&format!("\n{}\n", paint.text(Colour::Bold, "What to do:")));
    }
    for (remedy, features) in remedies {
        let features = paint.text(Colour::Dim, &format!("({})", features.join(", ")));
        text.push_str(&format!("  {} {features}\n", shown(remedy)));
    }
    text.push_str(&match &report.reason {
        None => format!("\n{}\n", paint.text(Colour::Good, "Execs on layers will work.")),
        Some(reason) => {
            format!("\n{} {}\n", paint.text(Colour::Bad, "Execs on layers will not work:"), shown(reason))
        }
    });
    text
}

/// Each remedy once, with the features that it is for.
fn remedies(report: &Report) -> Vec<(&str, Vec<&str>)> {
    let mut list: Vec<(&str, Vec<&str>)> = Vec::new();
    for feature in &report.features {
        let Some(remedy) = feature.remedy.as_deref() else { continue };
        match list.iter_mut().find(|(known, _)| *known == remedy) {
            Some((_, features)) => features.push(feature.name),
            None => list.push((remedy, vec![feature.name])),
        }
    }
    list
}

fn shown(text: &str) -> String {
    visible(&plain_errno(text))
}

fn state(feature: &Feature, paint: Paint) -> String {
    match feature.state {
        State::Enforced => paint.text(Colour::Good, "enforced"),
        State::Fallback => paint.text(Colour::Warm, "fallback"),
        State::Absent if feature.needed => paint.text(Colour::Bad, "absent"),
        State::Absent => paint.text(Colour::Dim, "absent"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_remedies_and_the_verdict() {
        let feature = |name, state, remedy: Option<&str>| Feature {
            name,
            state,
            needed: true,
            detail: "why\x1b[2J".into(),
            remedy: remedy.map(str::to_owned),
        };
        let mut report = Report {
            ready: false,
            reason: Some("mount API: why".into()),
            features: vec![
                feature("root", State::Enforced, None),
                feature("mount API", State::Absent, Some("run it as root")),
                feature("seccomp", State::Absent, Some("run it as root")),
            ],
        };
        assert_eq!(
            text(&report, Paint::plain()),
            "FEATURE    STATE     DETAIL\n\
             root       enforced  why\\u{1b}[2J\n\
             mount API  absent    why\\u{1b}[2J\n\
             seccomp    absent    why\\u{1b}[2J\n\
             \n\
             What to do:\n\
             \u{20} run it as root (mount API, seccomp)\n\
             \n\
             Execs on layers will not work: mount API: why\n"
        );
        report.features.truncate(1);
        (report.ready, report.reason) = (true, None);
        assert!(text(&report, Paint::plain()).ends_with("[2J\n\nExecs on layers will work.\n"));
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(json["features"][0]["state"], "enforced");
    }
}
