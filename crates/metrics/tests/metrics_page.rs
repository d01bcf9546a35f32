//! `docs/metrics.md` matches the tables.

use std::path::Path;

/// `RAILGATE_WRITE_DOCS=1 cargo test -p railgate-metrics --test metrics_page` regenerates the page.
#[test]
fn metrics_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let wanted = railgate_metrics::metrics_markdown();
    if std::env::var_os("RAILGATE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == wanted, "docs/metrics.md is not what the tables say; run cargo xtask docs");
}
