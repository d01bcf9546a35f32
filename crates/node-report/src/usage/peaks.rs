//! Peaks of GPUs: dense tensor peaks, their clock, and the conversion of tensor activity to work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Peaks of one GPU model. Figures are dense (vendors often advertise those for 2:4 sparsity, twice as high)
/// and per GPU, not per board or superchip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Id of the row.
    pub id: &'static str,
    /// Words that NVML's model name must all contain. The first matching row is used, so longer names come
    /// first.
    pub words: &'static [&'static str],
    /// bf16 peak with single-precision accumulation (fp16 on chips without bf16), TFLOP/s.
    pub bf16: f64,
    /// tf32 peak relative to bf16; 0 if not supported.
    pub tf32: f64,
    /// fp8 peak relative to bf16; 0 if not supported.
    pub fp8: f64,
    /// Enabled SMs of the product.
    pub sms: u32,
    /// SM clock of the peak, MHz.
    pub clock_mhz: f64,
    /// Single precision outside the tensor pipe, FLOP per clock and SM.
    pub fp32_per_clock: f64,
    /// Double precision outside the tensor pipe, FLOP per clock and SM.
    pub fp64_per_clock: f64,
    /// Memory bandwidth, GB/s.
    pub memory_gbytes_s: f64,
    /// Measured ratio of tensor activity × NVML's clock to work done while tensor kernels run, and the relative
    /// uncertainty of the result.
    pub calibration: Option<(f64, f64)>,
    /// Source of the figures.
    pub source: &'static str,
}

/// Uncertainty of a model without calibration, used as it is; measured models read 1 to 14 % too high.
pub const UNCALIBRATED_BAND: f64 = 0.15;

const SHEET: &str = "NVIDIA data sheet, dense; SMs × FLOP per clock × clock gives the same";

const fn hopper(
    id: &'static str,
    words: &'static [&'static str],
    bf16: f64,
    sms: u32,
    clock_mhz: f64,
    memory_gbytes_s: f64,
) -> Peak {
    Peak {
        id,
        words,
        bf16,
        tf32: 0.5,
        fp8: 2.0,
        sms,
        clock_mhz,
        fp32_per_clock: 256.0,
        fp64_per_clock: 128.0,
        memory_gbytes_s,
        calibration: None,
        source: SHEET,
    }
}

const fn ampere(id: &'static str, words: &'static [&'static str], memory_gbytes_s: f64) -> Peak {
    Peak {
        id,
        words,
        bf16: 311.9,
        tf32: 0.5,
        fp8: 0.0,
        sms: 108,
        clock_mhz: 1410.0,
        fp32_per_clock: 128.0,
        fp64_per_clock: 64.0,
        memory_gbytes_s,
        calibration: None,
        source: SHEET,
    }
}

/// Cards with graphics chips: single precision at twice the number of CUDA cores, almost no double precision.
const fn graphics(
    id: &'static str,
    words: &'static [&'static str],
    bf16: f64,
    fp8: f64,
    sms: u32,
    clock_mhz: f64,
    memory_gbytes_s: f64,
) -> Peak {
    Peak {
        id,
        words,
        bf16,
        tf32: 0.5,
        fp8,
        sms,
        clock_mhz,
        fp32_per_clock: 256.0,
        fp64_per_clock: 4.0,
        memory_gbytes_s,
        calibration: None,
        source: SHEET,
    }
}

/// Known models. Clocks of Blackwell are derived from the peak in its data sheet and the chip's rate.
pub const PEAKS: &[Peak] = &[
    Peak {
        // Measured with GEMMs of six sizes in four data types at full and partial load: docs/accuracy.md.
        calibration: Some((1.103, 0.03)),
        ..hopper("h200-sxm", &["H200"], 989.4, 132, 1830.0, 4800.0)
    },
    hopper("h200-nvl", &["H200 NVL"], 835.5, 132, 1545.0, 4800.0),
    hopper("gh200", &["GH200"], 989.4, 132, 1830.0, 4000.0),
    hopper("h100-pcie", &["H100", "PCIe"], 756.4, 114, 1620.0, 2039.0),
    hopper("h100-nvl", &["H100 NVL"], 835.5, 132, 1545.0, 3938.0),
    hopper("h800-pcie", &["H800", "PCIe"], 756.4, 114, 1620.0, 2039.0),
    hopper("h800-sxm", &["H800"], 989.4, 132, 1830.0, 3352.0),
    Peak {
        // Measured on an H100 80GB HBM3 with steady GEMMs in four data types: docs/accuracy.md.
        calibration: Some((1.008, 0.03)),
        ..hopper("h100-sxm", &["H100"], 989.4, 132, 1830.0, 3352.0)
    },
    ampere("a100-80gb-sxm", &["A100", "SXM4-80GB"], 2039.0),
    ampere("a100-80gb-pcie", &["A100", "80GB"], 1935.0),
    ampere("a100-40gb", &["A100"], 1555.0),
    ampere("a800", &["A800"], 2039.0),
    Peak { bf16: 2250.0, clock_mhz: 1855.0, ..blackwell("b200", &["B200"]) },
    Peak { bf16: 2500.0, clock_mhz: 2062.0, ..blackwell("gb200", &["GB200"]) },
    Peak { bf16: 2500.0, clock_mhz: 2062.0, fp64_per_clock: 4.0, ..blackwell("gb300", &["GB300"]) },
    Peak { bf16: 2250.0, clock_mhz: 1855.0, fp64_per_clock: 4.0, ..blackwell("b300", &["B300"]) },
    Peak {
        bf16: 125.3,
        tf32: 0.0,
        fp8: 0.0,
        sms: 80,
        clock_mhz: 1530.0,
        ..ampere("v100-sxm2", &["V100", "SXM2"], 900.0)
    },
    graphics("l40s", &["L40S"], 362.1, 2.0, 142, 2520.0, 864.0),
    graphics("l40", &["L40"], 181.0, 2.0, 142, 2490.0, 864.0),
    graphics("rtx-6000-ada", &["RTX 6000 Ada"], 364.2, 2.0, 142, 2505.0, 960.0),
    graphics("a6000", &["RTX A6000"], 154.8, 0.0, 84, 1800.0, 768.0),
    graphics("rtx4090", &["RTX 4090"], 165.2, 2.0, 128, 2520.0, 1008.0),
    graphics("rtx3090", &["RTX 3090"], 71.2, 0.0, 82, 1695.0, 936.0),
    // An export variant: the chip's rate does not follow from its SMs, so activity × clock needs a calibration.
    Peak { tf32: 0.5, fp8: 2.0, ..export("h20", &["H20"], 148.0, 78, 1980.0, 4000.0) },
    Peak { tf32: 0.5, fp8: 2.0, ..export("l20", &["L20"], 119.5, 92, 2520.0, 864.0) },
];

const fn blackwell(id: &'static str, words: &'static [&'static str]) -> Peak {
    Peak {
        source: "NVIDIA data sheet, dense; clock from its peak",
        ..hopper(id, words, 0.0, 148, 0.0, 8000.0)
    }
}

const fn export(
    id: &'static str,
    words: &'static [&'static str],
    bf16: f64,
    sms: u32,
    clock_mhz: f64,
    memory_gbytes_s: f64,
) -> Peak {
    Peak {
        source: "published figures, dense; its activity is not calibrated",
        ..hopper(id, words, bf16, sms, clock_mhz, memory_gbytes_s)
    }
}

/// `[stats.models."NVIDIA H200"]`: the site's figures for a model, by NVML's complete name. Absent keys keep
/// the value of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteModel {
    /// Dense bf16 peak, TFLOP/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_tflops: Option<f64>,
    /// SM clock of that peak, MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<f64>,
    /// Memory bandwidth, GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gbytes_s: Option<f64>,
    /// Activity × clock ÷ work under load, as `railgate calibrate` measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity_per_work: Option<f64>,
    /// Relative uncertainty of the result; 0.05 is 5 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<f64>,
}

impl SiteModel {
    /// Values out of range, one line each.
    pub(crate) fn problems(&self, name: &str) -> Vec<String> {
        let ranges = [
            ("bf16_tflops", self.bf16_tflops, 1.0, 1e6),
            ("clock_mhz", self.clock_mhz, 100.0, 10_000.0),
            ("memory_gbytes_s", self.memory_gbytes_s, 1.0, 1e6),
            ("activity_per_work", self.activity_per_work, 0.2, 5.0),
            ("band", self.band, 0.0, 1.0),
        ];
        ranges
            .into_iter()
            .filter_map(|(key, value, low, high)| {
                let value = value.filter(|value| !(low..=high).contains(value))?;
                Some(format!("stats.models.'{name}'.{key}: {value} is not within {low} to {high}"))
            })
            .collect()
    }
}

/// The figures in force for a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Id of the row, or `site`.
    pub id: String,
    /// As in [`Peak`].
    pub bf16: f64,
    /// As in [`Peak`].
    pub clock_mhz: f64,
    /// As in [`Peak`]; `None` if the model is only configured by the site, without this figure.
    pub memory_gbytes_s: Option<f64>,
    /// Activity × clock ÷ work, its uncertainty, and its source.
    pub calibration: Option<(f64, f64, &'static str)>,
    /// The row of the table, if there is one.
    pub row: Option<&'static Peak>,
    /// Source of the figures.
    pub source: String,
}

impl Model {
    /// Factor for NVML's clock during tensor kernels; 1 without a calibration.
    pub fn clock_factor(&self) -> f64 {
        self.calibration.map_or(1.0, |(activity_per_work, ..)| 1.0 / activity_per_work)
    }

    /// Corrected work of a pipe, percent MHz: activity × clock, of which `slowed` was measured while tensor
    /// kernels ran. SMs then run slower than NVML's clock; the activity is exact.
    pub fn done(&self, work: f64, slowed: f64) -> f64 {
        work - slowed * (1.0 - self.clock_factor())
    }

    /// [`Model::done`] of the tensor pipe as a fraction of the peak.
    pub fn tensor_fraction(&self, work: f64, slowed: f64) -> f64 {
        self.done(work, slowed) / 100.0 / self.clock_mhz
    }
}

/// Row of the table for NVML's model name.
pub fn peak_of(name: &str) -> Option<&'static Peak> {
    let name = name.to_ascii_lowercase();
    // Whole words only: "H20" does not match "H200", nor "B200" "GB200".
    let holds = |word: &str| {
        let word = word.to_ascii_lowercase();
        name.match_indices(&word).any(|(at, _)| {
            let before = name.get(..at).and_then(|text| text.chars().next_back());
            let after = name.get(at + word.len()..).and_then(|text| text.chars().next());
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        })
    };
    let fits = |peak: &&Peak| peak.words.iter().all(|word| holds(word));
    PEAKS.iter().filter(fits).max_by_key(|peak| peak.words.iter().map(|word| word.len()).sum::<usize>())
}

/// The figures for a model: the table's, overridden by the site's. `None` if the model is unknown.
pub fn model(name: &str, site: &BTreeMap<String, SiteModel>) -> Option<Model> {
    let row = peak_of(name);
    let own = site.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, own)| own);
    let figure = |site: Option<f64>, table: Option<f64>| site.or(table);
    let bf16 = figure(own.and_then(|own| own.bf16_tflops), row.map(|row| row.bf16))?;
    let clock_mhz = figure(own.and_then(|own| own.clock_mhz), row.map(|row| row.clock_mhz))?;
    let calibration = match own.and_then(|own| Some((own.activity_per_work?, own.band))) {
        Some((factor, band)) => Some((factor, band.unwrap_or(0.05), "site")),
        None => row.and_then(|row| row.calibration).map(|(factor, band)| (factor, band, "built-in")),
    };
    let of_site = own.is_some_and(|own| own.bf16_tflops.is_some() || own.clock_mhz.is_some());
    Some(Model {
        id: row.map_or("site", |row| row.id).to_owned(),
        bf16,
        clock_mhz,
        memory_gbytes_s: figure(own.and_then(|own| own.memory_gbytes_s), row.map(|row| row.memory_gbytes_s)),
        calibration,
        row,
        source: match (of_site, row) {
            (false, Some(row)) => row.source.to_owned(),
            _ => "stats.models of this site".to_owned(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_names_find_their_row() {
        for (name, id) in [
            ("NVIDIA H200", "h200-sxm"),
            ("NVIDIA H200 NVL", "h200-nvl"),
            ("NVIDIA GH200 480GB", "gh200"),
            ("NVIDIA H20", "h20"),
            ("NVIDIA H100 80GB HBM3", "h100-sxm"),
            ("NVIDIA H100 PCIe", "h100-pcie"),
            ("NVIDIA H100 NVL", "h100-nvl"),
            ("NVIDIA H800", "h800-sxm"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
            ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
            ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
            ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
            ("NVIDIA A800-SXM4-80GB", "a800"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA GB200", "gb200"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA L20", "l20"),
            ("Tesla V100-SXM2-32GB", "v100-sxm2"),
            ("NVIDIA RTX A6000", "a6000"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ] {
            assert_eq!(peak_of(name).map(|peak| peak.id), Some(id), "{name}");
        }
        assert_eq!(peak_of("NVIDIA GeForce RTX 4090 Ti"), peak_of("RTX 4090"));
        assert_eq!(peak_of("Quadro P400"), None);
    }

    /// NVML's clock is a tenth too high on one of two cards of one architecture, so no factor may reach a relative.
    #[test]
    fn only_measured_models_have_a_calibration() {
        let built_in = |name| peak_of(name).and_then(|peak| peak.calibration);
        assert_eq!(built_in("NVIDIA H200"), Some((1.103, 0.03)));
        assert_eq!(built_in("NVIDIA H100 80GB HBM3"), Some((1.008, 0.03)));
        let calibrated: Vec<_> =
            PEAKS.iter().filter(|peak| peak.calibration.is_some()).map(|peak| peak.id).collect();
        assert_eq!(calibrated, ["h200-sxm", "h100-sxm"]);
        for other in
            ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H800", "NVIDIA GH200 480GB", "NVIDIA H200 NVL"]
        {
            assert_eq!(built_in(other), None, "{other}");
        }
    }

    /// A peak taken from the sparse column would be twice as high.
    #[test]
    fn peaks_follow_from_the_chip() {
        for peak in PEAKS.iter().filter(|peak| !["h20", "l20", "l40"].contains(&peak.id)) {
            let per_clock = peak.bf16 * 1e12 / (f64::from(peak.sms) * peak.clock_mhz * 1e6);
            let rate = [512.0, 1024.0, 2048.0, 4096.0, 8192.0_f64]
                .into_iter()
                .min_by(|a, b| (a / per_clock).ln().abs().total_cmp(&(b / per_clock).ln().abs()))
                .unwrap();
            assert!((per_clock / rate - 1.0).abs() < 0.02, "{}: {per_clock}", peak.id);
        }
    }

    #[test]
    fn site_figures_override_the_table() {
        let site = BTreeMap::from([
            ("NVIDIA H200".to_owned(), SiteModel { activity_per_work: Some(1.2), ..SiteModel::default() }),
            (
                "X1".to_owned(),
                SiteModel { bf16_tflops: Some(10.0), clock_mhz: Some(1000.0), ..SiteModel::default() },
            ),
        ]);
        let h200 = model("NVIDIA H200", &site).unwrap();
        assert_eq!((h200.bf16, h200.calibration), (989.4, Some((1.2, 0.05, "site"))));
        assert_eq!(model("NVIDIA H200", &BTreeMap::new()).unwrap().calibration.unwrap().2, "built-in");
        let own = model("X1", &site).unwrap();
        assert_eq!((own.id.as_str(), own.calibration), ("site", None));
        assert_eq!(model("X2", &site), None);
        let bad = SiteModel { band: Some(2.0), clock_mhz: Some(f64::NAN), ..SiteModel::default() };
        assert_eq!(bad.problems("x").len(), 2);
    }
}
