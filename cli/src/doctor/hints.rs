//! Fragments of Slurm's files, ready to paste.

use super::facts::{Facts, SlurmConf};
use super::rules::{
    CONTROLLER_HOOK, PLUGIN, PROLOG_FLAGS, SCHEDULER_PARAMETERS, hook_limit, start_limit, with_words,
};

/// slurm.conf's and plugstack.conf's lines. What this site's lists hold already stays in them.
pub(crate) fn fragments(facts: &Facts) -> String {
    let nothing = SlurmConf::default();
    let conf = facts.slurm.as_ref().unwrap_or(&nothing);
    let lines = [
        with_words(conf, "PrologFlags", &PROLOG_FLAGS),
        with_words(conf, "SchedulerParameters", &SCHEDULER_PARAMETERS),
        kept(conf, "Prolog", "/etc/slurm/prolog.d/*"),
        kept(conf, "Epilog", "/etc/slurm/epilog.d/*"),
        CONTROLLER_HOOK.to_owned(),
        at_least(conf, "PrologEpilogTimeout", hook_limit(facts)),
        at_least(conf, "BatchStartTimeout", start_limit(facts)),
        kept(conf, "HealthCheckProgram", "/etc/railgate/periodic.sh"),
        at_least(conf, "HealthCheckInterval", 300),
        "JobFileAppend=1".to_owned(),
    ];
    let lines = lines.join("\n");
    format!(
        "# slurm.conf (docs/install.md says why each)\n{lines}\n\n# plugstack.conf, before pyxis\n{PLUGIN}\n"
    )
}

fn kept(conf: &SlurmConf, key: &str, otherwise: &str) -> String {
    format!("{key}={}", conf.get(key).unwrap_or(otherwise))
}

/// A limit of the site's own that is long enough stays.
fn at_least(conf: &SlurmConf, key: &str, seconds: u64) -> String {
    format!("{key}={}", conf.seconds(key).map_or(seconds, |have| have.max(seconds)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::right;
    use super::*;

    #[test]
    fn what_a_site_has_stays() {
        let mut facts = right();
        if let Ok(conf) = &mut facts.slurm {
            conf.0.insert("PrologFlags".to_owned(), "X11,Alloc".to_owned());
            conf.0.insert("BatchStartTimeout".to_owned(), "900 sec".to_owned());
            conf.0.insert("Prolog".to_owned(), "/site/prolog.d/*".to_owned());
        }
        let text = fragments(&facts);
        for line in
            ["PrologFlags=X11,Alloc,Contain,DeferBatch", "BatchStartTimeout=900", "Prolog=/site/prolog.d/*"]
        {
            assert!(text.contains(&format!("{line}\n")), "{text}");
        }
    }
}
