use super::*;

#[test]
fn every_code_of_the_catalogue_is_known() {
    for code in 1..=172 {
        let row = lookup(code).unwrap();
        assert!(row.code == code && row.in_catalogue && !row.name.is_empty() && !row.meaning.is_empty());
    }
    assert_eq!(
        all().filter(|row| !row.in_catalogue).map(|row| row.code).collect::<Vec<_>>(),
        [173, 174, 175, 176]
    );
    assert_eq!((lookup(0), lookup(177), nvlink5_rows().len()), (None, None, 95));
}

#[test]
fn every_used_code_has_a_unique_name() {
    for row in all().filter(|row| !row.families.is_empty()) {
        assert_ne!(row.name, row.mnemonic, "{}", row.code);
    }
}

/// The gate drains by `judgement`, and reports assign the cause by `owner`.
#[test]
fn severity_and_owner_agree() {
    for row in all() {
        let Judgement { severity, class, .. } = row.judgement;
        match row.owner {
            Owner::Application => {
                assert_eq!((severity, class), (Severity::Note, Class::User), "{}", row.code)
            }
            // A contained error ends the affected program, and is no reason to drain.
            Owner::Hardware => {
                let decoded = (144..=150).contains(&row.code);
                assert!(severity == Severity::Fail || decoded || row.code == 94, "{}", row.code);
            }
            Owner::Other => assert!(severity < Severity::Fail || row.raisable, "{}", row.code),
        }
        assert!(class == Class::Node || severity == Severity::Note, "{}", row.code);
    }
    for code in [13, 31, 43, 69] {
        assert_eq!(lookup(code).unwrap().owner, Owner::Application, "{code}");
    }
    for code in [48, 64, 74, 79, 95, 119] {
        assert_eq!(lookup(code).unwrap().owner, Owner::Hardware, "{code}");
    }
    assert_eq!(explain(9999, "").0, Owner::Other);
}

/// A code that a program can raise never fails by the record alone.
#[test]
fn codes_that_a_program_can_raise_are_marked() {
    for code in [8, 13, 31, 43, 45, 69, 109, 137, 159] {
        assert!(lookup(code).unwrap().raisable, "{code}");
    }
    for code in [48, 54, 79, 95, 119, 167] {
        assert!(!lookup(code).unwrap().raisable, "{code}");
    }
}

#[test]
fn each_severity_follows_from_the_catalogue_or_is_a_departure() {
    for row in all() {
        let rule = judge(row.immediate, row.owner);
        match departure(row.code) {
            None => assert_eq!(row.judgement, rule, "{}", row.code),
            Some(departure) => {
                let without_owner = judge(row.immediate, Owner::Other);
                assert!([rule.severity, without_owner.severity].contains(&departure.rule), "{}", row.code);
                assert_ne!(departure.judgement.severity, departure.rule, "{}: no departure", row.code);
                assert!(departure.reason.len() > 20 && !departure.source.is_empty(), "{}", row.code);
            }
        }
    }
    let mut codes: Vec<u32> = DEPARTURES.iter().flat_map(|departure| departure.codes).copied().collect();
    let departures = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), departures, "a code has one departure");
    assert!(codes.iter().all(|code| lookup(*code).is_some()));
}

/// Names of engine errors contain the engine and its number.
#[test]
fn names_of_engine_errors_agree_with_their_mnemonics() {
    for row in all() {
        let engine =
            row.mnemonic.strip_prefix("ROBUST_CHANNEL_").and_then(|rest| rest.strip_suffix("_ERROR"));
        let Some(engine) = engine else { continue };
        let kind = engine.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = engine.strip_prefix(kind).unwrap_or_default();
        let word = match kind {
            "CE" => "copy engine",
            "NVDEC" | "NVENC" | "NVJPG" | "OFA" => kind,
            _ => continue,
        };
        assert!(row.name.contains(word), "{}: {}", row.code, row.name);
        assert!(row.name.contains(&format!(" {number} ")), "{}: {}", row.code, row.name);
    }
    assert_eq!(lookup(82).unwrap().name, "image engine 0 (NVJPG) error");
    assert_eq!(lookup(139).unwrap().name, "optical flow engine 1 (OFA) error");
}

#[test]
fn every_row_of_the_decode_table_can_be_reached() {
    for row in nvlink5_rows() {
        let status = row.statuses.first().copied().unwrap_or_default();
        for (unit, bits) in [(row.unit_v1, row.v1.bits), (row.unit_v2, row.v2.bits)] {
            let unit = unit.split(' ').next_back().unwrap();
            let read = nvlink5(row.code, unit, bits, status).unwrap();
            assert_eq!((read.immediate, read.promoted), (row.immediate, false), "{row:?}");
        }
        if let Some(promotion) = row.promotion {
            for (unit, bits) in [(row.unit_v1, promotion.v1.bits), (row.unit_v2, promotion.v2.bits)] {
                let read = nvlink5(row.code, unit, bits, status).unwrap();
                assert_eq!((read.immediate, read.promoted), (promotion.immediate, true), "{row:?}");
            }
        }
    }
}
