use std::fmt::Write as _;

use railgate_node::PartName;

use crate::{CHECKS, Checks, Scope, class_cap};

/// What a check means, why it matters, how to fix it and how to change it; `None` for an unknown id.
pub fn explain(id: &str) -> Option<&'static str> {
    CHECKS.iter().find(|check| check.id == id).map(|check| check.explain)
}

/// The register as a page: `docs/checks.md`.
pub fn catalogue_markdown() -> String {
    let mut page = String::from(HEAD);
    for check in CHECKS {
        let _ = writeln!(page, "| [`{0}`](#{0}) | {1} | {2} |", check.id, check.about, check.class);
    }
    let defaults = Checks::default();
    for check in CHECKS {
        let phases: Vec<&str> = check.phases.iter().map(|phase| phase.as_str()).collect();
        let parts: Vec<&str> = check.parts.iter().copied().map(PartName::as_str).collect();
        let jobs = match check.scope {
            Scope::Gpus => "that hold GPUs",
            Scope::Fabric => "that hold GPUs (its fabric)",
            Scope::Always => "all",
        };
        let default = check.action(&defaults).min(class_cap(check.class));
        let _ = write!(
            page,
            "\n## {}\n{}.\n\nClass {}, at most `{default:?}` by default; {:?} level; phases {}; jobs {jobs}; reads {}; costs {}.\n\n{}\n",
            check.id,
            capitalised(check.about),
            check.class,
            check.level,
            phases.join(", "),
            parts.join(", "),
            check.cost,
            check.explain.trim(),
        );
    }
    page.replace("`Drain`", "`drain`")
        .replace("`Notify`", "`notify`")
        .replace("`Report`", "`report`")
        .replace("; Quick level", "; quick level")
        .replace("; Full level", "; full level")
}

const HEAD: &str = "\
# Checks

Made from the register of `crates/gate` (`railgate check --list` prints it, `railgate explain CHECK` one of them).
A finding has a severity (`note`, `unknown`, `warn`, `fail`) and a class that says whose it is. What follows is the
weakest of three: the phase's entry for the severity (`[gate.prolog]`, `[gate.epilog]`, `[gate.periodic]`), what the
class allows (`node` and `fabric` drain, `user` notifies, `site` and `internal` report), and the check's own
`action` (`off`, `report`, `notify`, `drain`) in `[gate.checks.<id>]`.

| check | what is wrong when it fires | class |
|---|---|---|
";

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
