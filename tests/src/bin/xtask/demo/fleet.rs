//! The last scene: the history of the demo's own nodes and jobs.

use anyhow::{Result, ensure};
use railgate_tests::cluster::Cluster;

use super::leave;

/// Where the history is kept, as docs/fleet.md has it.
const DIR: &str = "/var/lib/railgate/fleet";
const HTML: &str = "railgate-demo-fleet.html";
/// `railgate-fleet once`: a source could not be read, and the others were taken in.
const INCOMPLETE: i32 = 3;

/// Takes in what the cluster has recorded, and shows it as text and as a page.
pub(super) fn show(cluster: &Cluster) -> Result<()> {
    let root = cluster.root();
    root.run(&["install", "-d", "-o", "slurm", "-g", "slurm", "-m", "0700", DIR])?.ok()?;
    let taken = root.run(&["railgate-fleet", "once"])?;
    ensure!([0, INCOMPLETE].contains(&taken.code), "railgate-fleet once: {}", taken.both());
    println!("\n$ railgate-fleet once\n{}", taken.both().trim_end());
    let text = root.run(&["railgate", "fleet"])?.ok()?;
    println!("\n$ railgate fleet\n{}", text.trim_end());
    let page = root.run(&["railgate", "fleet", "--format", "html"])?.ok()?;
    println!("\nthe fleet as an HTML page: {}", leave(HTML, &page)?.display());
    Ok(())
}
