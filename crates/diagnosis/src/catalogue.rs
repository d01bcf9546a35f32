use std::fmt::Write as _;

use super::{RULES, Rule};

/// Explanation of a rule for a terminal: what it reports and reads, similar causes, the fix and the settings.
/// `None` for an unknown id.
pub fn explain(id: &str) -> Option<String> {
    let rule = by_id(id)?;
    Some(format!("{}: {}.\n\n{}\n", rule.id, rule.about, body(rule)))
}

/// The rule with this id.
pub fn by_id(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// The register as a page: `docs/rules.md`.
pub fn rules_markdown() -> String {
    let mut page = String::from(HEAD);
    for rule in RULES {
        let _ = writeln!(page, "| [`{0}`](#{0}) | {1} | {2} |", rule.id, rule.about, rule.class.as_str());
    }
    for rule in RULES {
        let _ = write!(page, "\n## {}\nReports that {}.\n\n{}\n", rule.id, rule.about, body(rule));
    }
    page
}

fn body(rule: &Rule) -> String {
    let Rule { class, evidence, why, look_alikes, fix, .. } = rule;
    let class = class.as_str();
    let mut text = format!(
        "Class {class}.\n\nReads: {evidence}\n\nWhy: {why}\n\nLooks the same: {look_alikes}\n\nFix: {fix}.\n\n"
    );
    if rule.thresholds.is_empty() {
        text += "It has no thresholds.";
        return text;
    }
    let _ = writeln!(text, "```toml\n[report.rules.{}]", rule.id);
    for one in rule.thresholds {
        let unit = if one.unit == "time" { String::new() } else { format!("{}, ", one.unit) };
        let _ = writeln!(text, "# {} ({unit}{} to {})", one.meaning, one.low, one.high);
        let _ = writeln!(text, "{} = {}", one.key, one.default.toml());
    }
    text + "```"
}

const HEAD: &str = "\
# Diagnosis rules

Each rule reads the numbers of one attempt and reports what cost the job time, or what ended it. A report shows the findings in
`VERDICT`, `SLOW`, `RAILS` and `DO`, its JSON in `attempts[].analysis.diagnoses[]`. `railgate explain RULE` prints one rule,
`railgate report --rules` lists them. [How accurate the numbers are](accuracy.md) shows how well they distinguish causes.

`class` is the origin of the cause: `hardware` (a node, a GPU), `application` (the program, its input, its settings) or `unknown`.
If a measurement that a rule needs is missing, the rule makes no finding.

A site sets thresholds in `[report.rules.<id>]`, on the machine where the report is made; values below are the defaults. A
report shows at most eight findings of a rule.

| rule | reports that | class |
|---|---|---|
";
