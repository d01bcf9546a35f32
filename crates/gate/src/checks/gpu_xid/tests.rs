use railgate_model::xid_catalogue::{DEPARTURES, EDITION, Owner, all, lookup};
use railgate_model::{Class, Fitness, Gpu, Reading, RecoveryAction, Severity};

use super::GpuXid;
use crate::register::Check as _;
use crate::testing::{Case, case};

const RESET: &str = "pid=1, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";

fn xid(code: u32) -> Case {
    case("h100-sxm").xid(3, code, "pid=4711, name=python3, Ch 00000010")
}

/// The Xid in the log, and the NVML reading that confirms it.
fn confirmed(code: u32) -> Case {
    xid(code).gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset))
}

/// Removes the recovery action, which drivers before R570 do not report.
fn old_driver(case: Case) -> Case {
    case.gpu(3, |gpu| gpu.recovery_action = Reading::Unsupported)
}

#[test]
fn with_confirmation_by_nvml_the_table_decides() {
    let confirmed_by_ecc = xid(48).gpu(3, |gpu| gpu.ecc.volatile_uncorrected = Reading::Known(1));
    assert_eq!(confirmed_by_ecc.summary(), "unfit: fail gpu-xid@3: Xid 48 (double-bit ECC error); reset GPU");
    for code in [64, 95, 109, 119, 120, 140, 143, 151, 159, 169] {
        assert_eq!(confirmed(code).of("gpu-xid"), [Severity::Fail], "{code}");
    }
    for code in [1, 63, 92, 94, 121, 145, 166, 4242] {
        assert_eq!(confirmed(code).of("gpu-xid"), [Severity::Warn], "{code}");
    }
}

#[test]
fn a_record_that_nvml_denies_does_not_drain() {
    for code in [48, 62, 64, 74, 95, 109, 119, 140, 143, 155, 159, 172] {
        let denied = xid(code).again().with(|case| case.config.strikes = 1);
        assert_eq!(denied.fitness(), Fitness::Degraded, "{code}");
        assert!(denied.summary().contains(", NVML reports no fault"), "{}", denied.summary());
    }
}

#[test]
fn a_record_without_an_nvml_reading_drains_when_it_recurs() {
    let once = old_driver(xid(119));
    assert!(once.summary().contains("Xid 119 (GSP RPC timeout), strike 1 of 2"), "{}", once.summary());
    assert_eq!(old_driver(xid(119)).again().again().fitness(), Fitness::Degraded, "one record is one sight");
    let twice = old_driver(xid(119)).again().xid(3, 119, "pid=4711, name=python3, Timeout");
    assert_eq!(twice.fitness(), Fitness::Unfit);
    let other = old_driver(xid(119)).again().with(|case| case.now.taken += 25 * 3600 * 1000);
    let other = other.xid(3, 119, "pid=4711, name=python3, Timeout");
    assert_eq!(other.fitness(), Fitness::Degraded, "the day before");
    let power = xid(54);
    assert!(power.summary().contains("strike 1 of 2"), "NVML has no such reading: {}", power.summary());
}

#[test]
fn a_raisable_xid_fails_only_if_nvml_confirms_it() {
    for code in [13, 31, 43, 69, 109, 137, 159, 4242] {
        let strict = |case: Case| case.settings(&format!("[checks.gpu-xid.codes]\n{code} = \"fail\""));
        let again = |case: Case| case.again().xid(3, code, "pid=4711, name=python3, Ch 00000010");
        assert_eq!(strict(again(xid(code))).fitness(), Fitness::Degraded, "{code}");
        assert_eq!(strict(again(old_driver(xid(code)))).fitness(), Fitness::Degraded, "{code}");
        assert_eq!(strict(confirmed(code)).of("gpu-xid"), [Severity::Fail], "{code}");
    }
}

#[test]
fn an_application_error_is_a_note_of_class_user() {
    for code in [13, 31, 43, 45] {
        let case = xid(code);
        assert_eq!(case.fitness(), Fitness::Fit, "{code}");
        let finding = case.judge().findings.remove(0);
        assert_eq!((finding.class, finding.severity), (Class::User, Severity::Note), "{code}");
    }
}

/// A `fail` is ruled out even if NVML reports a fault of that GPU at the same time.
#[test]
fn an_xid_that_an_application_can_cause_never_fails() {
    let own = all().filter(|row| row.owner == Owner::Application).map(|row| row.code);
    let own: Vec<u32> = own.chain([45]).collect();
    assert!(own.len() > 50);
    for code in own {
        assert_eq!(confirmed(code).of("gpu-xid"), [Severity::Note], "{code}");
        assert_eq!(xid(code).again().xid(3, code, "pid=1, name=x").fitness(), Fitness::Fit, "{code}");
    }
}

#[test]
fn an_xid_of_another_jobs_gpu_is_ignored() {
    assert_eq!(xid(48).holding(&[0, 1]).findings(), Vec::<String>::new());
    assert_eq!(confirmed(48).holding(&[3]).fitness(), Fitness::Unfit);
}

#[test]
fn repeated_events_make_one_finding_per_gpu_with_a_count() {
    let twice = xid(94).xid(3, 94, "pid=2, Contained").xid(1, 94, "pid=2, Contained");
    assert_eq!(
        twice.findings(),
        [
            "warn gpu-xid@3: Xid 94 (contained ECC error) x2; watch",
            "warn gpu-xid@1: Xid 94 (contained ECC error); watch"
        ]
    );
}

#[test]
fn site_settings_override_the_table() {
    let fail = confirmed(94).settings("[checks.gpu-xid.codes]\n94 = \"fail\"");
    assert_eq!(fail.of("gpu-xid"), [Severity::Fail]);
    let user = confirmed(31).settings("[checks.gpu-xid.codes]\n31 = \"fail\"");
    assert_eq!(user.of("gpu-xid"), [Severity::Fail], "the site sets the class node");
    let warn = xid(119).settings("[checks.gpu-xid.codes]\n119 = \"warn\"");
    assert_eq!(warn.fitness(), Fitness::Degraded);
    let strict = confirmed(4242).settings("[checks.gpu-xid]\nunknown_code = \"fail\"");
    assert_eq!(strict.of("gpu-xid"), [Severity::Fail]);
    let config: crate::GateConfig =
        toml::from_str("[checks.gpu-xid.codes]\n013 = \"fail\"\nall = \"note\"").unwrap();
    assert_eq!(config.problems().len(), 2);
}

#[test]
fn the_fix_is_the_drivers_recovery_action() {
    let asks = xid(48).gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::NodeReboot));
    let findings = asks.findings();
    assert!(findings.contains(&"fail gpu-xid@3: Xid 48 (double-bit ECC error); reboot".to_owned()));
    assert!(asks.summary().starts_with("unfit: fail gpu-recovery-action@3"));
}

#[test]
fn an_xid_before_a_reset_does_not_fail() {
    let cured = xid(95).xid(3, 154, RESET);
    assert_eq!(
        cured.summary(),
        "degraded: warn gpu-xid@3: Xid 95 (uncontained ECC error), reset since; reset GPU"
    );
    let before = case("h100-sxm").xid(3, 154, RESET).xid(3, 95, "pid=1, Uncontained");
    assert!(!before.summary().contains("reset since"), "the error came after the driver's request");
    let old = old_driver(xid(95).xid(3, 154, RESET));
    assert!(!old.summary().contains("reset since"), "no sign of a reset");
    let still = xid(95)
        .xid(3, 154, RESET)
        .gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
    assert_eq!(still.of("gpu-xid"), [Severity::Fail], "the driver still asks for it");
}

#[test]
fn a_recovered_link_does_not_fail() {
    let recovered = "degraded: warn gpu-xid@3: Xid 74 (NVLink error), NVML reports no fault; reset GPUs";
    assert_eq!(xid(74).summary(), recovered);
    assert_eq!(old_driver(xid(74)).summary(), recovered, "its links are up");
    assert_eq!(confirmed(74).fitness(), Fitness::Unfit);
    let down = xid(74).gpu(3, |gpu| gpu.nvlinks[4].up = Reading::Known(false));
    assert_eq!(down.summary(), "unfit: fail gpu-xid@3: Xid 74 (NVLink error); reset GPUs");
}

#[test]
fn an_nvlink_5_record_is_judged_by_the_decode_table() {
    let reset =
        |case: Case| case.gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::DrainAndReset));
    let fatal = || case("b200:gpu-nvlink5-fatal@3");
    let text = "Xid 149 (NETIR_LINK_EVT 33, fatal, link 1)";
    let denied = format!("degraded: warn gpu-xid@3: {text}, NVML reports no fault; reset GPU");
    assert_eq!(fatal().summary(), denied);
    assert_eq!(reset(fatal()).of("gpu-xid"), [Severity::Fail]);
    let down = fatal().gpu(3, |gpu| gpu.nvlinks[1].up = Reading::Known(false));
    assert_eq!(down.of("gpu-xid"), [Severity::Fail], "the link is down");
    let other = case("b200:gpu-nvlink5-nonfatal@3");
    assert_eq!((other.summary(), other.of("gpu-xid")), ("fit".to_owned(), vec![Severity::Note]));
    assert_eq!(other.judge().findings[0].class, Class::User, "XID_154_EVAL, and there is no Xid 154");
    assert_eq!(other.xid(3, 145, "with another wording").of("gpu-xid"), [Severity::Warn]);
}

#[test]
fn the_decode_table_overrides_fatal_and_nonfatal() {
    let b200 = |code: u32, text: &str| {
        let reset = |gpu: &mut Gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset);
        case("b200").xid(3, code, text).gpu(3, reset).of("gpu-xid")
    };
    let link = |subcode: u32| {
        let intr_info = 0x0000_01c6 | subcode << 20;
        b200(
            149,
            &format!("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x{intr_info:08x} 0x00000000 0x00000000)"),
        )
    };
    for subcode in [0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, 32, 33, 34, 35, 36, 37, 42, 43] {
        assert_eq!(link(subcode), [Severity::Fail], "{subcode}: RESET_GPU");
    }
    for subcode in [38, 40] {
        assert_eq!(link(subcode), [Severity::Note], "{subcode}: IGNORE");
    }
    assert_eq!(link(63), [Severity::Warn], "fatal, and no row");
    let rxpipe = |intr_info: &str| {
        b200(145, &format!("RLW_RXPIPE Nonfatal XC0 i0 Link 13 ({intr_info} 0x00000001 0x00000001)"))
    };
    assert_eq!(rxpipe("0x0409a0c2"), [Severity::Note], "IGNORE");
    assert_eq!(rxpipe("0x0409a4c2"), [Severity::Fail], "action 2 is RESET_GPU");
    assert_eq!(rxpipe("0x04000006"), [Severity::Note], "driver 575 and later");
    assert_eq!(rxpipe("0x04000086"), [Severity::Fail], "driver 575 and later, action 2");
    let cut = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025001c6)";
    assert_eq!(b200(149, cut), [Severity::Warn], "cut short");
}

#[test]
fn an_nvlink_5_record_that_software_causes_does_not_drain() {
    let silent = |text: &str| {
        let once = case("b200").xid(3, 145, text).gpu(3, |gpu| {
            gpu.recovery_action = Reading::Unsupported;
            gpu.nvlinks.clear();
        });
        once.again().xid(3, 145, text)
    };
    let software = silent("RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000001 0x00000001)");
    assert!(software.summary().contains("a program can raise it"), "{}", software.summary());
    assert_eq!(software.fitness(), Fitness::Degraded);
    let hardware = silent("RLW_SRC_TRACK Fatal XC0 i0 Link 13 (0x040868e2 0x00000001 0x00000001)");
    assert_eq!(hardware.of("gpu-xid"), [Severity::Fail], "{}", hardware.summary());
}

#[test]
fn nvlink_fatal_sets_the_severity_of_all_fatal_records() {
    let fatal = |value: &str| {
        let case = case("b200:gpu-nvlink5-fatal@3")
            .settings(&format!("[checks.gpu-xid]\nnvlink_fatal = \"{value}\""));
        let reset = |gpu: &mut Gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset);
        case.xid(3, 149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x026001c6 0x00000000)")
            .gpu(3, reset)
            .of("gpu-xid")
    };
    assert_eq!(fatal("warn"), [Severity::Warn]);
    assert_eq!(fatal("note"), [Severity::Note]);
    assert_eq!(fatal("fail"), [Severity::Fail]);
}

#[test]
fn the_evidence_has_the_time_and_the_process() {
    let finding = xid(48).judge().findings.remove(0);
    assert!(
        finding.evidence[0]
            .source
            .ends_with(" at 2026-01-05T08:00:00.000Z; meaning: NVIDIA Xid catalogue, WORKFLOW_XID_48"),
        "{}",
        finding.evidence[0].source
    );
    let departs = xid(94).judge().findings.remove(0).evidence.remove(0).source;
    assert!(departs.ends_with("the GPU's memory (NVIDIA Xid catalogue: RESTART_APP)"), "{departs}");
}

#[test]
fn every_code_of_the_catalogue_and_the_driver_has_a_row() {
    for code in 1..=176 {
        let says = xid(code).judge().findings.iter().map(|finding| finding.what.clone()).collect::<String>();
        assert!(!says.contains("not in the table"), "{code}: {says}");
    }
    assert!(xid(177).summary().contains("Xid 177 (not in the table)"));
}

#[test]
fn without_nvml_the_gate_state_identifies_the_gpu() {
    let blind = || case("h100-sxm:nvml-silent").xid(3, 48, "pid=1, DBE").remembering();
    assert!(blind().summary().starts_with("unfit: fail gpu-xid@3"));
    assert_eq!(blind().holding(&[0]).of("gpu-xid"), []);
    let forgotten = case("h100-sxm:nvml-silent").xid(3, 48, "pid=1, DBE").holding(&[0]);
    assert_eq!(forgotten.of("gpu-xid"), [Severity::Unknown]);
}

#[test]
fn a_storm_of_events_makes_a_short_finding() {
    let storm = (0..200).fold(case("h100-sxm"), |case, _| case.xid(3, 31, "pid=1, MMU Fault"));
    let finding = storm.judge().findings.remove(0);
    assert!(finding.what.ends_with("x200"));
    assert_eq!(finding.evidence.len(), super::MOST_ROWS);
}

/// Formats codes as ranges: `46, 48, 74-77`.
fn ranges(codes: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for code in codes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == code => *last = code,
            _ => runs.push((code, code)),
        }
    }
    let run = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// The page is written by hand; its lists of codes must agree with the table.
#[test]
fn the_page_lists_the_codes_of_the_table() {
    let listed = |severity: Severity, class: Class| {
        let used = all().filter(|row| !row.families.is_empty() || !row.in_catalogue);
        let here = used.filter(|row| row.judgement.severity == severity && row.judgement.class == class);
        ranges(here.map(|row| row.code).filter(|code| !(144..=150).contains(code)))
    };
    let mut lines = vec![
        format!("(`{}` of {}, 172 codes)", EDITION.file, EDITION.modified),
        format!("- `fail`: {}.", listed(Severity::Fail, Class::Node)),
        format!("- `warn`: {}.", listed(Severity::Warn, Class::Node)),
        format!("- `note`: {}.", listed(Severity::Note, Class::Node)),
        format!(
            "- `note`, class `user` (an application error, which never drains): {}.",
            listed(Severity::Note, Class::User)
        ),
    ];
    for departure in DEPARTURES {
        let catalogue = lookup(departure.codes[0]).unwrap().immediate;
        let catalogue = catalogue.map_or_else(|| "no action".to_owned(), |action| action.to_string());
        let codes = ranges(departure.codes.iter().copied());
        let severity = departure.judgement.severity;
        lines.push(format!("- {codes}: `{severity}` (catalogue: {catalogue}): {}.", departure.reason));
    }
    let page: String = GpuXid::EXPLAIN.split_whitespace().collect::<Vec<_>>().join(" ");
    let missing: Vec<&String> = lines.iter().filter(|line| !page.contains(line.as_str())).collect();
    assert!(
        missing.is_empty(),
        "missing on the page:\n{}",
        missing.iter().map(|line| format!("{line}\n")).collect::<String>()
    );
}
