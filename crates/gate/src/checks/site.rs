use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use railgate_model::{
    Class, Extra, Job, Origin, PartName, Phase, Severity, SiteCheck, SiteFinding, SiteOutcome, SiteRequest,
};
use serde::{Deserialize, Serialize};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{Limit, Value, absolute, settings, within};

/// The check.
pub(crate) struct Site;

settings! {
    action = Drain;
    directory: PathBuf = PathBuf::from("/etc/railgate/checks.d"), limit absolute(), "absolute, or relative to the directory of railgate.toml";
    #[serde(with = "railgate_model::duration_text")]
    deadline: Duration = Duration::from_secs(10), limit within(DEADLINES), "for each; all run in parallel";
    phases: Vec<Phase> = vec![Phase::Prolog, Phase::Periodic], "when they run";
    worst: Severity = Severity::Warn, "the worst severity of their findings; only fail can drain";
    class: Class = Class::Node, limit not_our_own(), "of findings that name no class";
    named: BTreeMap<String, Named> = BTreeMap::new(), limit Limit::new("", named_problems), "own deadline, phases, worst or class for one check, in [gate.checks.site.named.raid]; run = false switches it off";
}

const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(300);

impl Value for Named {
    /// The table is empty by default, so it has no value to show.
    fn toml(&self) -> Option<String> {
        None
    }
}

fn not_our_own() -> Limit<Class> {
    Limit::one("node, fabric, user, site", |class: &Class| {
        (*class == Class::Internal).then(|| "'internal' is reserved for railgate".to_owned())
    })
}

/// The limits of the settings of all site checks apply to those of a single one.
fn named_problems(key: &str, named: &BTreeMap<String, Named>) -> Vec<String> {
    let of_one = |(name, own): (&String, &Named)| {
        let key = |last: &str| format!("{key}.{name}.{last}");
        let deadline = own.deadline.map(|deadline| within(DEADLINES).problems(&key("deadline"), &deadline));
        let class = own.class.map(|class| not_our_own().problems(&key("class"), &class));
        deadline.into_iter().chain(class).flatten().collect::<Vec<_>>()
    };
    named.iter().flat_map(of_one).collect()
}

/// Settings of one site check that override those of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// Whether the check is run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<bool>,
    /// Overrides `deadline`.
    #[serde(skip_serializing_if = "Option::is_none", with = "optional_duration")]
    pub deadline: Option<Duration>,
    /// Overrides `phases`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<Phase>>,
    /// Overrides `worst`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<Severity>,
    /// Overrides `class`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
}

impl Settings {
    /// The site checks to run in a phase; `None` if there are none.
    pub(crate) fn request(&self, phase: Phase, job: Option<&Job>) -> Option<SiteRequest> {
        let deadline = self.phases.contains(&phase).then_some(self.deadline);
        let named: BTreeMap<String, Option<Duration>> =
            self.named.keys().map(|name| (name.clone(), self.deadline_of(name, phase))).collect();
        let any = deadline.is_some() || named.values().any(Option::is_some);
        any.then(|| SiteRequest {
            directory: self.directory.clone(),
            phase,
            job: job.map(|job| job.id),
            deadline,
            named,
        })
    }

    /// The phases in which a check runs; empty if it does not run.
    pub fn phases_of(&self, name: &str) -> &[Phase] {
        match self.named.get(name) {
            Some(Named { run: Some(false), .. }) => &[],
            Some(Named { phases: Some(own), .. }) => own,
            _ => &self.phases,
        }
    }

    fn deadline_of(&self, name: &str, phase: Phase) -> Option<Duration> {
        let own = self.named.get(name).and_then(|own| own.deadline);
        self.phases_of(name).contains(&phase).then(|| own.unwrap_or(self.deadline))
    }

    /// The worst severity that a finding of this check may have.
    pub(crate) fn worst_of(&self, name: &str) -> Severity {
        self.named.get(name).and_then(|own| own.worst).unwrap_or(self.worst)
    }

    fn class_of(&self, name: &str) -> Class {
        self.named.get(name).and_then(|own| own.class).unwrap_or(self.class)
    }
}

impl Check for Site {
    const ABOUT: &'static str = "a site check found something, did not end, or must not be run";
    const EXPLAIN: &'static str = "
Reads the output of the executables in `/etc/railgate/checks.d/`. Each is a check: `raid.sh` is `site-raid` in findings, drain
reasons and `railgate check --list`. docs/site-checks.md shows how to write one.

Why: it lets a site judge, log and act on what only it has (an array, a licence, a storage client) like on everything else.

- A check prints JSON, or returns an exit code and prints a line like a Nagios plugin (0 good, 1 warning, 2 critical, others
  unknown).
- It runs as root with its own deadline and a minimal environment; all processes that it started are ended with it.
- A check that does not end by its deadline is `unknown`; one that is stuck in the kernel is bad.
- A file that users other than root can change is never run; that is a finding of class `site`.

Unless `worst = \"fail\"`, no site check drains.

Fix: what the check reports; run it by hand as `env -i RAILGATE_PHASE=prolog /etc/railgate/checks.d/NAME`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[];
    const NEEDS: &'static [Need<Settings>] =
        &[Need::extra(|set, phase, job| set.request(phase, job).map(Extra::SiteChecks))];
    const SCOPE: Scope = Scope::Always;
    const COST: &'static str = "one child process per check, and what the check itself costs";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for check in &scene.now.extras.site_checks {
            judge(check, set, out);
        }
        if scene.now.origin == Origin::Live {
            let there = |name: &str| scene.now.extras.site_checks.iter().any(|check| check.name == name);
            let wanted = set.named.keys().filter(|name| set.deadline_of(name, scene.phase()).is_some());
            for name in wanted.filter(|name| !there(name)) {
                let what = format!("no such check in {}", set.directory.display());
                let found = Found::unknown(Class::Site, "", &what).fix("install it");
                out.add_as(
                    &format!("site-{name}"),
                    found.row(name, "absent", "an executable", "railgate.toml"),
                );
            }
        }
    }
}

fn judge(check: &SiteCheck, set: &Settings, out: &mut Report<'_>) {
    let id = if check.name.is_empty() { "site".to_owned() } else { format!("site-{}", check.name) };
    let path = check.path.display().to_string();
    let found = match &check.outcome {
        SiteOutcome::Said(findings) => {
            for finding in findings {
                out.add_as(&id, said(finding, check, set, &path));
            }
            return;
        }
        SiteOutcome::Refused(why) => Found::warn(Class::Site, "", format!("not run: {why}"))
            .fix("chown root, chmod go-w")
            .row(&path, why, "only root can change it", "lstat"),
        SiteOutcome::NotRun(why) => Found::note(Class::Site, "", format!("not run: {path} {why}"))
            .fix("chmod +x or remove")
            .row(&path, why, "an executable", "lstat"),
        SiteOutcome::Failed(why) => Found::unknown(Class::Site, "", why).fix("run it by hand").row(
            &path,
            why,
            "an answer",
            "exit status",
        ),
        SiteOutcome::Silent { stuck, after_ms } => {
            let mut what = format!("not finished after {:.1} s", after_ms / 1000.0);
            let found = if *stuck {
                what.push_str(", stuck in the kernel");
                let severity = Severity::Fail.min(set.worst_of(&check.name));
                Found::new(severity, Class::Node, "", &what).fix("reboot")
            } else {
                Found::unknown(Class::Site, "", &what).fix("run it by hand")
            };
            found.row(&path, &what, "an answer", "waitpid")
        }
    };
    out.add_as(&id, found);
}

fn said(finding: &SiteFinding, check: &SiteCheck, set: &Settings, path: &str) -> Found {
    let class = finding.class.unwrap_or_else(|| set.class_of(&check.name));
    let severity = finding.severity.min(set.worst_of(&check.name));
    let fix = if finding.fix.is_empty() { "see the check" } else { &finding.fix };
    Found::new(severity, class, &finding.part, &finding.what).fix(fix).row(
        path,
        &finding.proof,
        "exit code 0",
        "the site's check",
    )
}

/// (De)serialises an optional duration, for example `"500ms"`.
mod optional_duration {
    use std::time::Duration;

    use railgate_model::duration_text;
    use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

    #[derive(serde::Deserialize, Serialize)]
    struct Text(#[serde(with = "duration_text")] Duration);

    #[expect(clippy::ref_option, reason = "serde's form")]
    pub(super) fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Text).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Text>::deserialize(from)?.map(|text| text.0))
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Action;

    use super::*;
    use crate::testing::{Case, case};

    fn with(name: &str, outcome: SiteOutcome) -> Case {
        case("h100-sxm").with(|case| {
            let path = PathBuf::from(format!("/etc/railgate/checks.d/{name}"));
            case.now.extras.site_checks =
                vec![SiteCheck { name: name.to_owned(), path, outcome, took_ms: 3.0 }];
        })
    }

    fn said(severity: Severity, class: Option<Class>) -> SiteOutcome {
        SiteOutcome::Said(vec![SiteFinding {
            severity,
            class,
            part: "md0".to_owned(),
            what: "degraded".to_owned(),
            fix: "replace disk".to_owned(),
            proof: "exit code 2".to_owned(),
        }])
    }

    #[test]
    fn a_failing_check_warns_unless_worst_is_fail() {
        let raid = || with("raid", said(Severity::Fail, None));
        assert_eq!(raid().summary(), "degraded: warn site-raid@md0: degraded; replace disk");
        let all = raid().settings("[checks.site]\nworst = \"fail\"");
        assert_eq!(all.summary(), "unfit: fail site-raid@md0: degraded; replace disk");
        let one = raid().settings("[checks.site.named.raid]\nworst = \"fail\"");
        assert_eq!(one.summary(), "unfit: fail site-raid@md0: degraded; replace disk");
        let other = raid().settings("[checks.site.named.fans]\nworst = \"fail\"");
        assert_eq!(other.summary(), "degraded: warn site-raid@md0: degraded; replace disk");
        let users =
            with("raid", said(Severity::Fail, Some(Class::User))).settings("[checks.site]\nworst = \"fail\"");
        assert_eq!(users.fitness(), railgate_model::Fitness::Degraded);
    }

    #[test]
    fn passed_and_warning_checks_are_judged() {
        assert_eq!(with("raid", SiteOutcome::Said(Vec::new())).summary(), "fit");
        let warned = with("raid", said(Severity::Warn, None)).settings("[checks.site]\nworst = \"fail\"");
        assert_eq!(warned.findings(), ["warn site-raid@md0: degraded; replace disk"]);
        let noted = with("raid", said(Severity::Fail, None)).settings("[checks.site]\nworst = \"note\"");
        assert_eq!(noted.summary(), "fit");
    }

    #[test]
    fn a_check_that_is_not_run_is_a_site_problem() {
        let refused = with("raid", SiteOutcome::Refused("belongs to uid 1000, not root".to_owned()));
        assert_eq!(
            refused.summary(),
            "degraded: warn site-raid: not run: belongs to uid 1000, not root; chown root, chmod go-w"
        );
        assert_eq!(refused.judge().findings[0].class, Class::Site);
        let plain = with("raid", SiteOutcome::NotRun("is not executable".to_owned()));
        assert_eq!((plain.summary().as_str(), plain.judge().findings.len()), ("fit", 1));
        let whole = with("", SiteOutcome::Refused("mode 0777: others may write it".to_owned()));
        assert_eq!(whole.judge().findings[0].subject(), "site");
    }

    #[test]
    fn a_timeout_is_unknown_and_a_stuck_check_fails() {
        let trusted = "[checks.site]\nworst = \"fail\"";
        let silent = with("raid", SiteOutcome::Silent { stuck: false, after_ms: 10_000.0 });
        assert_eq!(
            silent.settings(trusted).summary(),
            "degraded: unknown site-raid: not finished after 10.0 s; run it by hand"
        );
        let stuck = || with("raid", SiteOutcome::Silent { stuck: true, after_ms: 10_000.0 });
        assert_eq!(stuck().fitness(), railgate_model::Fitness::Degraded);
        assert_eq!(
            stuck().settings(trusted).summary(),
            "unfit: fail site-raid: not finished after 10.0 s, stuck in the kernel; reboot"
        );
        let failed = with("raid", SiteOutcome::Failed("killed by signal 11".to_owned()));
        assert_eq!(failed.of("site-raid"), [Severity::Unknown]);
    }

    #[test]
    fn a_configured_check_that_is_not_installed_is_unknown() {
        let named = case("h100-sxm").settings("[checks.site.named.raid]\nworst = \"fail\"");
        assert_eq!(named.summary(), "fit", "a simulated node has none");
        let live = named.with(|case| case.now.origin = Origin::Live);
        assert_eq!(
            live.summary(),
            "degraded: unknown site-raid: no such check in /etc/railgate/checks.d; install it"
        );
        assert_eq!(live.phase(Phase::Epilog).summary(), "fit", "it does not run then");
    }

    #[test]
    fn the_request_has_the_deadlines_of_the_phases_checks() {
        let asked = |toml: &str, phase| toml::from_str::<Settings>(toml).unwrap().request(phase, None);
        let prolog = asked("", Phase::Prolog).unwrap();
        assert_eq!((prolog.deadline, prolog.named.len()), (Some(Duration::from_secs(10)), 0));
        assert_eq!(asked("", Phase::Epilog), None);
        let named = "[named.raid]\nphases = [\"epilog\"]\ndeadline = \"2s\"\n[named.fans]\nrun = false";
        let epilog = asked(named, Phase::Epilog).unwrap();
        assert_eq!(epilog.deadline, None);
        assert_eq!(epilog.named["raid"], Some(Duration::from_secs(2)));
        assert_eq!(asked(named, Phase::Prolog).unwrap().named["fans"], None);
    }

    #[test]
    fn the_action_is_the_strongest_that_the_configuration_allows() {
        let memory = crate::Memory::default();
        let follows = |toml: &str, name: &str| {
            let config: crate::GateConfig = toml::from_str(toml).unwrap();
            (config.action_of_site_check(name, &memory), config.site_check_phases(name).to_vec())
        };
        let always = vec![Phase::Prolog, Phase::Periodic];
        assert_eq!(follows("", "raid"), (Action::Report, always.clone()), "worst is warn");
        let raid = "[checks.site.named.raid]\nworst = \"fail\"";
        assert_eq!(follows(raid, "raid"), (Action::Drain, always.clone()));
        assert_eq!(follows(raid, "fans"), (Action::Report, always.clone()));
        let late = format!("{raid}\nphases = [\"epilog\"]\n[epilog]\nfail = \"notify\"");
        assert_eq!(follows(&late, "raid"), (Action::Notify, vec![Phase::Epilog]), "the phase does not drain");
        assert_eq!(follows("[prolog]\nwarn = \"drain\"", "raid"), (Action::Drain, always.clone()));
        let shadow = format!("[checks.site]\naction = \"shadow\"\n{raid}");
        assert_eq!(follows(&shadow, "raid"), (Action::Shadow, always));
        let off = format!("[checks.site]\naction = \"off\"\n{raid}");
        assert_eq!(follows(&off, "raid"), (Action::Off, vec![]));
        assert_eq!(follows("[checks.site.named.raid]\nrun = false", "raid"), (Action::Off, vec![]));
    }

    #[test]
    fn settings_out_of_range() {
        let config: crate::GateConfig = toml::from_str(
            "[checks.site]\ndirectory = \"checks.d\"\nclass = \"internal\"\n[checks.site.named.raid]\ndeadline = \"1h\"",
        )
        .unwrap();
        assert_eq!(
            config.problems(),
            [
                "gate.checks.site.directory: 'checks.d' is not an absolute path",
                "gate.checks.site.class: 'internal' is reserved for railgate",
                "gate.checks.site.named.raid.deadline: 1h is not within 100ms to 5m",
            ]
        );
    }
}
