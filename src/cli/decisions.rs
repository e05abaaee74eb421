//! What a profile decided, as people read it: what was changed, and below it why.

use std::fmt::Write;

use serde_json::Value;

use super::render::{Colour, Paint, clip, visible};
use crate::ops::policy::Told;
use crate::terms::count;

/// How many characters of a value are shown.
const VALUE_WIDTH: usize = 160;

/// A container's policy in a few words.
pub fn in_brief(told: &Told) -> String {
    let n = told.decisions.len() + told.left_out;
    format!("profile {}, {}", told.profile, count(n, "decision"))
}

/// A container's policy.
pub fn policy(paint: Paint, told: &Told) -> String {
    let mut out = format!("{}\n", paint.text(Colour::Bold, &in_brief(told)));
    for decision in &told.decisions {
        let values = [&decision.from, &decision.to];
        let _ = writeln!(out, "{}", one(paint, &decision.field, values, &decision.why));
    }
    if told.left_out > 0 {
        let more = format!("… and {} more, for which the log has no room", told.left_out);
        let _ = writeln!(out, "{}", paint.text(Colour::Dim, &more));
    }
    out
}

/// One decision; the values are what was asked for and what it came to.
pub fn one(paint: Paint, field: &str, [from, to]: [&Value; 2], why: &str) -> String {
    let field = paint.text(Colour::Warm, &visible(field));
    format!("{field}  {}\n    {}", changed(from, to), paint.text(Colour::Dim, &visible(why)))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => clip(&visible(text), VALUE_WIDTH),
        other => clip(&visible(&other.to_string()), VALUE_WIDTH),
    }
}

/// The difference between two values: of lists, what went and what came.
fn changed(from: &Value, to: &Value) -> String {
    let list = |value: &Value| match value {
        Value::Array(items) => Some(items.iter().map(shown).collect::<Vec<_>>()),
        Value::Null => Some(Vec::new()),
        _ => None,
    };
    if (from.is_array() || to.is_array())
        && let (Some(before), Some(after)) = (list(from), list(to))
    {
        let gone = before.iter().filter(|word| !after.contains(word)).map(|word| format!("-{word}"));
        let come = after.iter().filter(|word| !before.contains(word)).map(|word| format!("+{word}"));
        return gone.chain(come).collect::<Vec<_>>().join(" ");
    }
    match (from.is_null(), to.is_null()) {
        (true, true) => String::new(),
        (true, false) => format!("+ {}", shown(to)),
        (false, true) => format!("- {}", shown(from)),
        (false, false) => format!("{} -> {}", shown(from), shown(to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_side_by_side() {
        for (from, to, want) in [
            (json!(["a", "b"]), json!(["b", "c"]), "-a +c"),
            (json!(null), json!(["x"]), "+x"),
            (json!(["x", "y"]), json!(null), "-x -y"),
            (json!(false), json!(true), "false -> true"),
            (json!(null), json!("own"), "+ own"),
            (json!({"a": 1}), json!(null), "- {\"a\":1}"),
            (json!("a\u{1b}"), json!([]), "a\\u{1b} -> []"),
        ] {
            assert_eq!(changed(&from, &to), want);
        }
    }

    #[test]
    fn a_policy_is_told_with_its_reasons() {
        let decision = |n: usize| json!({"field": format!("f{n}"), "from": null, "to": n, "why": "because"});
        let told: Told =
            serde_json::from_value(json!({"profile": "strict", "decisions": [decision(1)], "leftOut": 2})).unwrap();
        let text = policy(Paint::plain(), &told);
        let more = "… and 2 more, for which the log has no room";
        assert_eq!(text, format!("profile strict, 3 decisions\nf1  + 1\n    because\n{more}\n"));
    }
}
