use std::fmt::Write as _;

use humantime::format_duration;
use railgate_model::{Action, PartName};

use crate::settings::block;
use crate::{CHECKS, CheckInfo, Checks, Level, Scope, class_cap};

/// Returns what a check means, why it matters, how to fix it and how to configure it, as text for a terminal, or `None`
/// for an unknown id.
pub fn explain(id: &str) -> Option<String> {
    // All checks of a site share one row of the register.
    let row = if id.starts_with("site-") { "site" } else { id };
    let check = CHECKS.iter().find(|check| check.id == row)?;
    Some(format!("{}: {}.\n\n{}\n", check.id, check.about, body(check)))
}

/// Returns the register as a Markdown page: `docs/checks.md`.
pub fn catalogue_markdown() -> String {
    let mut page = String::from(HEAD);
    for check in CHECKS {
        let _ = writeln!(page, "| [`{0}`](#{0}) | {1} | {2} |", check.id, check.about, check.class);
    }
    for check in CHECKS {
        let _ = write!(page, "\n## {}\n{}.\n\n{}\n", check.id, capitalised(check.about), body(check));
    }
    page
}

fn body(check: &CheckInfo) -> String {
    let phases: Vec<&str> = check.phases.iter().map(|phase| phase.as_str()).collect();
    let parts: Vec<&str> = check.parts.iter().copied().map(PartName::as_str).collect();
    let reads =
        if parts.is_empty() { "whether the other parts could be read".to_owned() } else { parts.join(", ") };
    let jobs = match check.scope {
        Scope::Gpus => "jobs that hold GPUs",
        Scope::Fabric => "jobs that hold GPUs (fabric)",
        Scope::Always => "all jobs",
    };
    let (action, cap) = (check.action(&Checks::default()), class_cap(check.class));
    let effect = if cap == Action::Notify { "notifies the job's owner" } else { "is reported" };
    let limit = match action > cap {
        true => format!(
            "\nA finding of class `{}` {effect} and never drains. The `action` below is only an upper limit: of the actions of \
             phase,\nclass and check, the weakest applies.",
            check.class
        ),
        false => String::new(),
    };
    let strongest = match action.min(cap) {
        Action::Off => "off",
        Action::Shadow => "shadow",
        Action::Report => "report",
        Action::Notify => "notify",
        Action::Drain => "drain",
    };
    let level = match check.level {
        Level::Quick => "quick",
        Level::Full => "full",
    };
    let transient = check.transient.map_or_else(String::new, |window| {
        format!(
            "\nTransient: the first sighting only warns, the second within {} is a fail.",
            format_duration(window)
        )
    });
    format!(
        "Class {}, action `{strongest}` at most by default; level {level}; runs in {}, for {jobs}.\nReads {reads}; extra cost: {}.{transient}{limit}\n\n{}\n\n{}",
        check.class,
        phases.join(", "),
        check.cost,
        check.explain.trim(),
        block(check.id, &(check.rows)()),
    )
}

const HEAD: &str = "\
# Checks

`railgate check --list` lists the checks, `railgate explain CHECK` prints one of them. This page is made from the register of
`crates/gate`.

A finding has a severity (`note`, `unknown`, `warn`, `fail`) and a class: who has to act on it. The action is the weakest of
three: the phase's action for the severity (`[gate.prolog]`, `[gate.epilog]`, `[gate.periodic]`), what the class allows
(`node` and `fabric` drain, `user` notifies, `site` and `internal` report), and the check's `action` (`off`, `shadow`,
`report`, `notify`, `drain`) in `[gate.checks.<id>]`.

A check in `shadow` is judged and counted, without any action; a check that is new after an upgrade starts in shadow
(`[gate] new_checks`). `railgate check --history` shows how often each check drained, and how often it would have. A
transient finding drains on the second sighting.

| check | what is wrong when it fires | class |
|---|---|---|
";

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_register_row_is_complete_and_unique() {
        let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
        assert_eq!(ids.len(), CHECKS.len(), "an id stands twice");
        for check in CHECKS {
            assert!(check.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", check.id);
            assert!(!check.about.is_empty() && !check.about.ends_with('.'), "{}", check.id);
            assert!(check.about.len() <= 100, "{}", check.id);
            assert!(!check.phases.is_empty(), "{}", check.id);
            for needed in ["Reads", "Why:", "Fix:"] {
                let told =
                    check.explain.contains(needed) || check.id == "mounts" || check.id == "part-silent";
                assert!(told, "{} does not say '{needed}'", check.id);
            }
            assert!(explain(check.id).is_some_and(|text| text.contains(check.explain.trim())));
        }
        assert_eq!(explain("gpu-ec"), None);
        assert_eq!(explain("site-raid"), explain("site"));
    }

    /// The configuration examples in the explanations must show the defaults.
    #[test]
    fn each_example_shows_the_default_settings() {
        for check in CHECKS {
            let page = explain(check.id).unwrap();
            let (_, text) = page.split_once("```toml").unwrap();
            let example =
                text.split("```").step_by(2).collect::<String>().replace("toml\n", "").replace("[gate.", "[");
            let config: crate::GateConfig =
                toml::from_str(&example).unwrap_or_else(|why| panic!("{}: {why}", check.id));
            assert_eq!(config, crate::GateConfig::default(), "{}", check.id);
        }
    }

    #[test]
    fn each_check_that_supports_shadow_documents_it() {
        for check in CHECKS {
            let page = explain(check.id).unwrap();
            let row = page.lines().find(|line| line.starts_with("action = ")).unwrap();
            assert_eq!(row.contains("shadow, report, notify"), !check.always, "{}: {row}", check.id);
        }
    }

    #[test]
    fn the_page_lists_every_check_and_has_no_long_line() {
        let page = catalogue_markdown();
        for check in CHECKS {
            assert!(page.contains(&format!("\n## {}\n", check.id)));
        }
        let long = page.lines().find(|line| line.chars().count() > 190 && !line.starts_with('|'));
        assert_eq!(long, None);
    }
}
