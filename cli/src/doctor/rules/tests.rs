use super::super::judge;
use super::super::testing::{MISTAKES, right};
use super::*;

#[test]
fn a_right_installation_has_nothing_wrong() {
    for roles in [(true, false), (false, true), (false, false), (true, true)] {
        let mut facts = right();
        facts.roles = Roles { compute: roles.0, controller: roles.1 };
        assert_eq!(judge(&facts), [], "{roles:?}");
    }
}

#[test]
fn every_planted_mistake_is_found_by_its_rule_alone() {
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
fn what_cannot_be_told_is_said_once() {
    let mut facts = right();
    facts.slurm = Err("no answer".to_owned());
    let findings = judge(&facts);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0].level, Level::Unknown);
    let mut facts = right();
    facts.lost_ends = Err("Permission denied".to_owned());
    assert_eq!((judge(&facts)[0].rule, judge(&facts)[0].level), ("job-ends", Level::Unknown));
}
