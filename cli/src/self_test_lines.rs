//! Lines that `railgate-gpu-selftest` printed, in files.

use std::path::Path;

use anyhow::{Context as _, bail};
use railgate_fsutil::read::whole_bytes;
use railgate_model::GpuSelfTested;

/// Largest file that is read, bytes: the lines of a thousand GPUs.
const MAX_FILE: u64 = 16 << 20;

/// The results in a file; each line is one.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<GpuSelfTested>> {
    let content = whole_bytes(path, MAX_FILE)?;
    let text = String::from_utf8(content).with_context(|| format!("{}: not UTF-8", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let results: Vec<GpuSelfTested> = lines
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| {
                format!("{}: line {} is no line of railgate-gpu-selftest", path.display(), number + 1)
            })
        })
        .collect::<anyhow::Result<_>>()?;
    if results.is_empty() {
        bail!("{}: no line of railgate-gpu-selftest", path.display());
    }
    Ok(results)
}
