use std::path::Path;

use anyhow::Context as _;
use railgate_model::RailMap;
use railgate_probe::read_topology_file;
use railgate_rails::NcclVersion;
use railgate_topology_check::{TopologyView, check_topology};

use crate::exit;
use crate::node_source::Seen;
use crate::output::{self, Format};

/// Prints how NCCL would read the file, and whether it matches this machine.
pub(super) fn check(
    file: &Path,
    nccl: Option<NcclVersion>,
    seen: &Seen,
    map: &RailMap,
    format: Format,
) -> anyhow::Result<u8> {
    let text = read_topology_file(file).context("--check")?;
    let check = check_topology(&text, nccl, Some((&seen.snapshot, map)));
    let name = file.display().to_string();
    let view = TopologyView::new(&name, &seen.snapshot.node, nccl, &check);
    match format {
        Format::Table => output::text(&view.text())?,
        Format::Json => output::json(&view)?,
    }
    Ok(match () {
        () if !check.right() => exit::UNFIT,
        () if !check.unknown.is_empty() => exit::UNKNOWN,
        () => exit::OK,
    })
}
