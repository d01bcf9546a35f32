//! Fragments of Slurm's configuration files for `--fix-hints`.

use railgate_text::{Lines, put};

use super::facts::{Facts, SlurmConf};
use super::rules::{
    CONTROLLER_HOOK, PERIODIC, PLUGIN, PROLOG_FLAGS, SCHEDULER_PARAMETERS, hook_limit, start_limit,
    with_words,
};

/// The lines for slurm.conf. They contain the current values of the site's lists: Slurm uses only the last line of a
/// key.
pub(crate) fn slurm_conf(facts: &Facts) -> Lines {
    let nothing = SlurmConf::default();
    let conf = facts.slurm.as_ref().unwrap_or(&nothing);
    let mut lines = vec![
        with_words(conf, "PrologFlags", &PROLOG_FLAGS),
        with_words(conf, "SchedulerParameters", &SCHEDULER_PARAMETERS),
        node_hook(facts, conf, "Prolog", "/etc/slurm/prolog.d/*"),
        node_hook(facts, conf, "Epilog", "/etc/slurm/epilog.d/*"),
        at_least(conf, "PrologEpilogTimeout", hook_limit(facts)),
        at_least(conf, "BatchStartTimeout", start_limit(facts)),
        kept(conf, "HealthCheckProgram", "/etc/railgate/periodic.sh"),
        // Any interval that the site has set is fine, and a shorter one is better.
        format!(
            "HealthCheckInterval={}",
            conf.seconds("HealthCheckInterval").filter(|own| *own > 0).unwrap_or(300)
        ),
        kept(conf, "HealthCheckNodeState", "IDLE,CYCLE"),
        "JobFileAppend=1".to_owned(),
    ];
    lines.extend(controller_hooks(facts));
    lines.extend(beside(facts));
    let mut text = Lines::own("# slurm.conf (docs/install.md explains each)");
    lines.iter().for_each(|line| put!(text, "{line}"));
    text
}

/// The line for plugstack.conf.
pub(crate) fn plugstack_conf() -> Lines {
    let mut text = Lines::own("# plugstack.conf, before pyxis");
    put!(text, "{PLUGIN}");
    text
}

/// For a Prolog, Epilog or health check of the site's own, the hint is a comment: running both needs steps on every
/// node first.
fn beside(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    for (hook, key, name) in [(&facts.prolog, "Prolog", "prolog"), (&facts.epilog, "Epilog", "epilog")] {
        if hook.of_site_alone() && hook.directory().is_none() && !facts.repeatable(key) {
            lines.push(format!(
                "# {key}={} does not start railgate: {}",
                hook.value,
                hook.with_ours(key, name)
            ));
        }
    }
    let health = &facts.periodic;
    if health.of_site_alone() {
        let value = &health.value;
        lines.push(format!(
            "# HealthCheckProgram={value} does not call railgate: {PERIODIC}, with --then {value} at the end of its last line"
        ));
    }
    lines
}

/// A program of the site is kept as a comment: Slurm before 24.05 runs only one.
fn controller_hooks(facts: &Facts) -> Vec<String> {
    let theirs = Some(&facts.ctld.value).filter(|value| !value.is_empty() && facts.ctld.ours().is_none());
    match theirs {
        // The site's line stays in force beside this one.
        Some(_) if facts.repeatable("EpilogSlurmctld") => vec![CONTROLLER_HOOK.to_owned()],
        Some(value) => vec![format!(
            "# {CONTROLLER_HOOK}: yours is EpilogSlurmctld={value}; let a script call both, and name it here"
        )],
        None => vec![CONTROLLER_HOOK.to_owned()],
    }
}

/// If Slurm runs the programs of every line, the site's line is not repeated, since it would then run twice.
fn node_hook(facts: &Facts, conf: &SlurmConf, key: &str, ours: &str) -> String {
    if facts.repeatable(key) { format!("{key}={ours}") } else { kept(conf, key, ours) }
}

fn kept(conf: &SlurmConf, key: &str, otherwise: &str) -> String {
    format!("{key}={}", conf.get(key).unwrap_or(otherwise))
}

/// A sufficient limit of the site is kept.
fn at_least(conf: &SlurmConf, key: &str, seconds: u64) -> String {
    format!("{key}={}", conf.seconds(key).map_or(seconds, |have| have.max(seconds)))
}

#[cfg(test)]
mod tests {
    use super::super::files::Hook;
    use super::super::testing::right;
    use super::*;

    #[test]
    fn existing_values_are_kept() {
        let mut facts = right();
        if let Ok(conf) = &mut facts.slurm {
            conf.0.insert("PrologFlags".to_owned(), "X11,Alloc".to_owned());
            conf.0.insert("BatchStartTimeout".to_owned(), "900 sec".to_owned());
            conf.0.insert("Prolog".to_owned(), "/site/prolog.d/*".to_owned());
        }
        let text = slurm_conf(&facts);
        for line in
            ["PrologFlags=X11,Alloc,Contain,DeferBatch", "BatchStartTimeout=900", "Prolog=/site/prolog.d/*"]
        {
            assert!(text.contains(&format!("{line}\n")), "{text}");
        }
    }

    #[test]
    fn hints_explain_how_to_run_both_the_sites_and_our_program() {
        let mut facts = right();
        for (hook, value) in [
            (&mut facts.prolog, "/site/prolog"),
            (&mut facts.epilog, "/site/epilog.d/*"),
            (&mut facts.periodic, "/site/health"),
        ] {
            value.clone_into(&mut hook.value);
            hook.programs.retain(|program| !program.ours);
        }
        if let Ok(conf) = &mut facts.slurm {
            conf.0.insert("Prolog".to_owned(), "/site/prolog".to_owned());
            conf.0.insert("HealthCheckProgram".to_owned(), "/site/health".to_owned());
            conf.0.insert("HealthCheckInterval".to_owned(), "60 sec".to_owned());
        }
        let text = slurm_conf(&facts);
        for line in [
            "Prolog=/site/prolog",
            "HealthCheckProgram=/site/health",
            "HealthCheckInterval=60",
            "# Prolog=/site/prolog does not start railgate: ln -s /site/prolog /etc/slurm/prolog.d/50-prolog; \
             ln -s /usr/libexec/railgate/railgate-prolog /etc/slurm/prolog.d/95-railgate; Prolog=/etc/slurm/prolog.d/*",
            "# HealthCheckProgram=/site/health does not call railgate: HealthCheckProgram=/etc/railgate/periodic.sh, with \
             --then /site/health at the end of its last line",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
        }
        assert!(!text.contains("epilog.d/95-railgate"), "{text}");
        let put = facts.epilog.with_ours("Epilog", "epilog");
        assert_eq!(put, "ln -s /usr/libexec/railgate/railgate-epilog /site/epilog.d/95-railgate");
    }

    #[test]
    fn the_sites_program_on_the_controller_is_kept() {
        let mut facts = right();
        facts.ctld = Hook::resolve("/site/epilog-ctld", "railgate-epilog-ctld");
        let text = slurm_conf(&facts);
        assert!(text.contains("yours is EpilogSlurmctld=/site/epilog-ctld"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("EpilogSlurmctld=")), "{text}");
        if let Ok(conf) = &mut facts.slurm {
            conf.0.insert("SLURM_VERSION".to_owned(), "24.11.5".to_owned());
        }
        let text = slurm_conf(&facts);
        assert!(
            text.contains(&format!("{CONTROLLER_HOOK}\n")) && !text.contains("/site/epilog-ctld"),
            "{text}"
        );
    }
}
