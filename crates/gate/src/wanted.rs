//! What a machine type and a site want to be there by name: services, modules, words of the command line.

use railgate_model::{Action, Class, Reading, Severity};
use serde::{Deserialize, Serialize};

use crate::register::Table;
use crate::report::{Found, Report};

/// The table of a check that looks for names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow.
    pub action: Action,
    /// How bad it is.
    pub severity: Severity,
    /// Names that must be there, besides those of the machine type.
    pub required: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { action: Action::Drain, severity: Severity::Warn, required: Vec::new() }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        let odd = |name: &&String| name.is_empty() || name.contains(char::is_whitespace);
        self.required.iter().filter(odd).map(|name| format!("required: '{name}' is no name")).collect()
    }
}

/// What is looked for, in words.
pub(crate) struct Kind {
    pub(crate) class: Class,
    /// `service`.
    pub(crate) what: &'static str,
    /// `not running`.
    pub(crate) absent: &'static str,
    pub(crate) fix: &'static str,
    pub(crate) source: &'static str,
}

/// One finding for each name that is wanted and not there.
pub(crate) fn judge(
    kind: &Kind,
    set: &Settings,
    of_type: &[String],
    there: &Reading<Vec<String>>,
    same: fn(&str, &str) -> bool,
    out: &mut Report<'_>,
) {
    let mut wanted: Vec<&String> = of_type.iter().chain(&set.required).collect();
    wanted.sort();
    wanted.dedup();
    if wanted.is_empty() {
        return;
    }
    let Kind { class, what, absent, fix, source } = kind;
    if *there == Reading::Unsupported {
        let why = format!("this machine does not say which {what}s it has");
        out.add(Found::unknown(Class::Site, "", &why).fix("see log").row(
            *what,
            "not supported",
            "a list",
            *source,
        ));
    }
    let Some(there) = out.value("", what, source, there) else { return };
    for name in wanted.into_iter().filter(|name| !there.iter().any(|known| same(known, name))) {
        out.add(Found::new(set.severity, *class, name, *absent).fix(*fix).row(
            format!("{what} {name}"),
            *absent,
            "there",
            *source,
        ));
    }
}
