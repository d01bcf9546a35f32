//! Checks that required names are present: services, modules, kernel arguments. A profile or the site requires them.

use railgate_model::{Class, Reading, Severity};

use crate::report::{Found, Report};

/// The kind of a required name, in the words of its findings.
pub(crate) struct Kind {
    pub(crate) class: Class,
    /// For example `service`.
    pub(crate) what: &'static str,
    /// For example `not running`.
    pub(crate) absent: &'static str,
    pub(crate) fix: &'static str,
    pub(crate) source: &'static str,
}

/// Adds one finding for each required name that is absent.
pub(crate) fn judge(
    kind: &Kind,
    (severity, required): (Severity, &[String]),
    of_type: &[String],
    there: &Reading<Vec<String>>,
    same: fn(&str, &str) -> bool,
    out: &mut Report<'_>,
) {
    let mut wanted: Vec<&String> = of_type.iter().chain(required).collect();
    wanted.sort();
    wanted.dedup();
    if wanted.is_empty() {
        return;
    }
    let Kind { class, what, absent, fix, source } = kind;
    if *there == Reading::Unsupported {
        let why = format!("cannot list the {what}s of this machine");
        out.add(Found::unknown(Class::Site, "", &why).fix("see log").row(
            *what,
            "not supported",
            "a list",
            *source,
        ));
    }
    let Some(there) = out.value("", what, source, there) else { return };
    for name in wanted.into_iter().filter(|name| !there.iter().any(|known| same(known, name))) {
        out.add(Found::new(severity, *class, name, *absent).fix(*fix).row(
            format!("{what} {name}"),
            *absent,
            "there",
            *source,
        ));
    }
}
