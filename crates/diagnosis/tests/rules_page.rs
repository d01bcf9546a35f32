//! `docs/rules.md` matches the register.
#![expect(clippy::disallowed_methods, reason = "the test reads and writes a file, the crate does not")]

use std::path::Path;

/// `RAILGATE_WRITE_DOCS=1 cargo test -p railgate-diagnosis --test rules_page` regenerates the page.
#[test]
fn rules_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rules.md");
    let wanted = railgate_diagnosis::rules_markdown();
    if std::env::var_os("RAILGATE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == wanted, "docs/rules.md differs from the register; run cargo xtask docs");
}
