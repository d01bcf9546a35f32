use super::super::judge;
use super::super::slurm_file::SlurmFile;
use super::super::testing::{MISTAKES, right};
use super::*;

#[test]
fn a_correct_installation_has_no_findings() {
    for roles in [(true, false), (false, true), (false, false), (true, true)] {
        let mut facts = right();
        facts.roles = Roles { compute: roles.0, controller: roles.1 };
        assert_eq!(judge(&facts), [], "{roles:?}");
    }
}

#[test]
fn every_planted_mistake_is_found_by_exactly_its_rule() {
    assert!(MISTAKES.len() >= 20);
    for (rule, words, plant) in MISTAKES {
        let mut facts = right();
        plant(&mut facts);
        let findings = judge(&facts);
        assert_eq!(findings.len(), 1, "{words}: {findings:#?}");
        assert_eq!((findings[0].rule, findings[0].level), (*rule, Level::Wrong), "{words}");
        assert!(findings[0].what.contains(words), "{findings:#?}");
        assert!(!findings[0].put.is_empty() && !findings[0].why.is_empty());
    }
    let named: Vec<_> = MISTAKES.iter().map(|(rule, ..)| *rule).collect();
    let never: Vec<_> = RULES.iter().map(|rule| rule.id).filter(|id| !named.contains(id)).collect();
    assert_eq!(never, ["slurm-answers", "requeue-delay"], "rules that no mistake proves");
}

#[test]
fn a_missing_answer_of_slurm_is_reported_once() {
    let mut facts = right();
    facts.slurm = Err("no answer".to_owned());
    let findings = judge(&facts);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0].level, Level::Unknown);
    let mut facts = right();
    facts.lost_ends = Err("Permission denied".to_owned());
    assert_eq!((judge(&facts)[0].rule, judge(&facts)[0].level), ("job-ends", Level::Unknown));
}

#[test]
fn a_program_that_the_last_line_also_starts_is_not_reported() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (site, health) = (at("site-prolog"), at("site-health"));
    std::fs::create_dir(at("prolog.d")).unwrap();
    for program in [&site, &health] {
        std::fs::write(program, "#!/bin/sh\n").unwrap();
    }
    std::fs::write(at("periodic.sh"), format!("#!/bin/sh\nexec railgate check --then {health}\n")).unwrap();
    std::fs::write(
        at("slurm.conf"),
        format!(
            "Prolog={site}\nHealthCheckProgram={health}\nProlog={}\nHealthCheckProgram={}\n",
            at("prolog.d/*"),
            at("periodic.sh")
        ),
    )
    .unwrap();
    let mut facts = right();
    facts.slurm_file = SlurmFile::read(at("slurm.conf").as_ref());
    facts.prolog = Hook::resolve(&at("prolog.d/*"), "railgate-prolog");
    facts.periodic = Hook::resolve(&at("periodic.sh"), "railgate");
    let lost = |facts: &Facts| -> Vec<String> {
        let doubles = judge(facts).into_iter().filter(|finding| finding.rule == "slurm-conf-doubles");
        doubles.map(|finding| finding.what).collect()
    };
    let told = lost(&facts);
    assert!(told.len() == 1 && told[0].contains("site-prolog is lost"), "{told:?}");
    // A machine that is not a node may not have the directory.
    facts.roles = Roles { compute: false, controller: true };
    assert_eq!(lost(&facts), [""; 0]);

    std::os::unix::fs::symlink(&site, at("prolog.d/50-site")).unwrap();
    let mut facts = Facts { roles: Roles { compute: true, controller: false }, ..facts };
    facts.prolog = Hook::resolve(&at("prolog.d/*"), "railgate-prolog");
    assert_eq!(lost(&facts), [""; 0]);
}
