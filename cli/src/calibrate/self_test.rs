//! The factor of a card from its self-test, which counts the SMs' cycles while cuBLASLt multiplies.

use std::collections::BTreeMap;

use railgate_model::GpuSelfTested;
use railgate_node_report::usage::Card;
use railgate_runner::now;

/// Types that the tensor cores multiply; the clock is read correctly without them.
const TESTS: [&str; 4] = ["gemm-rate-bf16", "gemm-rate-fp16", "gemm-rate-tf32", "gemm-rate-fp8"];
/// Matrix sizes and pauses differ by about this much (docs/accuracy.md, "Which clock").
const OF_SIZES: f64 = 0.03;

/// A card's factor, or why it has none.
pub(super) type Found = Result<Card, String>;

/// The cards of these results, by UUID.
///
/// Tensor activity times the clock that the SMs counted is the work done, so NVML's clock by the counted one is activity × NVML's clock by
/// the work.
pub(super) fn cards(lines: &[GpuSelfTested], driver: Option<&String>) -> BTreeMap<String, Found> {
    let mut of_cards: BTreeMap<&str, Vec<&GpuSelfTested>> = BTreeMap::new();
    for line in lines {
        of_cards.entry(line.uuid.as_deref().unwrap_or_default()).or_default().push(line);
    }
    of_cards.into_iter().map(|(uuid, lines)| (uuid.to_owned(), card(uuid, &lines, driver))).collect()
}

fn card(uuid: &str, lines: &[&GpuSelfTested], driver: Option<&String>) -> Found {
    if uuid.is_empty() {
        return Err("the lines have no UUID".to_owned());
    }
    let figure = |line: &GpuSelfTested, name: &str| line.measured.get(name).copied();
    if lines.iter().any(|line| figure(line, "other_processes_count").is_some_and(|count| count > 0.0)) {
        return Err("other processes used the GPU during the test".to_owned());
    }
    let rated = lines.iter().filter(|line| TESTS.contains(&line.test.as_str()));
    let factors: Vec<f64> = rated.filter_map(|line| figure(line, "clock_factor")).collect();
    let count = u32::try_from(factors.len()).unwrap_or_default();
    if count == 0 {
        return Err("no line gemm-rate-* has a clock_factor: cuBLASLt is not installed, or a reading failed"
            .to_owned());
    }
    let mean = factors.iter().sum::<f64>() / f64::from(count);
    let off = factors.iter().map(|factor| (factor / mean - 1.0).abs()).fold(0.0, f64::max);
    let card = Card {
        model: lines.first().map(|line| line.model.clone()).unwrap_or_default(),
        activity_per_work: (mean * 1000.0).round() / 1000.0,
        band: ((off + OF_SIZES) * 200.0 - 1e-6).ceil() / 200.0,
        driver: driver.cloned(),
        measured: now(),
        railgate: env!("CARGO_PKG_VERSION").to_owned(),
        by: "self-test".to_owned(),
    };
    card.problem().map_or(Ok(card), Err)
}

#[cfg(test)]
mod tests {
    use railgate_model::ValueCheck;

    use super::*;

    fn line(uuid: Option<&str>, test: &str, figures: &[(&str, f64)]) -> GpuSelfTested {
        GpuSelfTested {
            gpu: "0000:61:00.0".parse().unwrap(),
            uuid: uuid.map(str::to_owned),
            to: None,
            model: "NVIDIA H200".to_owned(),
            test: test.to_owned(),
            seconds: 1.0,
            values: ValueCheck::None,
            measured: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            unknown: None,
            not_applicable: None,
        }
    }

    #[test]
    fn the_factor_is_the_mean_of_the_tensor_types() {
        let factor = |test: &str, factor| line(Some("GPU-1"), test, &[("clock_factor", factor)]);
        let lines = [
            factor("gemm-rate-bf16", 1.10),
            factor("gemm-rate-tf32", 1.08),
            // Without the tensor cores, and under the own products.
            factor("gemm-rate-fp32", 1.0),
            factor("clock", 1.2),
        ];
        let found = cards(&lines, Some(&"580.1".to_owned()));
        let card = found["GPU-1"].as_ref().unwrap();
        assert_eq!((card.activity_per_work, card.band, card.by.as_str()), (1.09, 0.04, "self-test"));
        assert_eq!((card.model.as_str(), card.driver.as_deref()), ("NVIDIA H200", Some("580.1")));
    }

    #[test]
    fn without_a_count_or_with_a_competing_load_there_is_no_factor() {
        let shared = [("clock_factor", 1.1), ("other_processes_count", 1.0)];
        let lines = [
            line(Some("GPU-1"), "gemm-rate-bf16", &[("rate_tflops", 700.0)]),
            line(Some("GPU-2"), "gemm-rate-bf16", &shared),
            line(None, "gemm-rate-bf16", &[("clock_factor", 1.1)]),
            line(Some("GPU-3"), "gemm-rate-bf16", &[("clock_factor", 40.0)]),
        ];
        let found = cards(&lines, None);
        assert_eq!(found.len(), 4);
        assert!(found.values().all(Result::is_err), "{found:?}");
    }
}
