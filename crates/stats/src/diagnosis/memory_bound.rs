use railgate_node::Reading;

use super::Diagnosis;
use super::facts::{Facts, mean_of};

/// Memory traffic near its practical peak, of about 80 to 90 %, while the tensor pipes do little.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let (Reading::Known(dram), Reading::Known(tensor)) =
        (facts.mean(|gpu| mean_of(&gpu.dram_percent)), facts.mean(|gpu| mean_of(&gpu.tensor_percent)))
    else {
        return Vec::new();
    };
    if dram < 55.0 || tensor > 35.0 {
        return Vec::new();
    }
    let what = format!(
        "kernels wait for memory: {dram:.0} % of its bandwidth is used, the tensor pipes are active {tensor:.0} %"
    );
    let fix = "fuse element-wise kernels (torch.compile), larger batches, fewer bytes per element";
    let mut found = Diagnosis::new("application", "high", String::new(), what, fix);
    found.costs = Some(((dram - tensor) / 100.0).clamp(0.0, 1.0));
    vec![found]
}
