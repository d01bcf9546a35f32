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
fn what_is_in_use_has_a_name_of_its_own() {
    for row in all().filter(|row| !row.families.is_empty()) {
        assert_ne!(row.name, row.mnemonic, "{}", row.code);
    }
}
