use serde::{Deserialize, Serialize};

/// How the floating point operations of a model are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// PaLM paper, appendix B: 6 N + 12 L H Q T per token, where N are the parameters that a token passes (in a
    /// mixture of experts the active ones). Attention is counted without causal halving; recomputation is not
    /// counted.
    #[default]
    Palm,
    /// As PaLM, with attention halved for a causal mask: 6 N + 6 L H Q T.
    Causal,
    /// Megatron-LM's closed form per token, 72 L h² (1 + T / 6h + V / 12 L h): no causal halving, a four-fold MLP.
    Megatron,
    /// The program's own figure per token or per sample.
    Explicit,
}

impl Convention {
    /// Name of the convention in a report.
    pub fn title(self) -> &'static str {
        match self {
            Convention::Palm => "PaLM 6N+12LHQT",
            Convention::Causal => "causal 6N+6LHQT",
            Convention::Megatron => "Megatron 72Lh^2(1+T/6h+V/12Lh)",
            Convention::Explicit => "the program's own FLOP count",
        }
    }
}

/// The program's description of its model. If a value that the convention needs is missing, FLOP are unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Name, for display only.
    pub name: String,
    /// Convention by which operations are counted.
    pub convention: Convention,
    /// N: parameters.
    pub params: Option<f64>,
    /// Active parameters per token in a mixture of experts; replaces N.
    pub active_params: Option<f64>,
    /// L: layers.
    pub layers: Option<f64>,
    /// H: attention heads.
    pub heads: Option<f64>,
    /// Q: dimension of a head.
    pub head_dim: Option<f64>,
    /// h: hidden size of the model; H × Q if absent.
    pub hidden: Option<f64>,
    /// T: sequence length, tokens.
    pub seq_len: Option<f64>,
    /// V: vocabulary size.
    pub vocab: Option<f64>,
    /// FLOP per token as the program reports, forward and backward.
    pub flops_per_token: Option<f64>,
    /// FLOP per sample, likewise.
    pub flops_per_sample: Option<f64>,
    /// Data type of most matrix products: `bf16`, `fp16`, `tf32`, `fp8`.
    pub dtype: String,
    /// Each rank reports tokens and samples of the whole job instead of its own.
    pub global: bool,
    /// Number of GPUs that this rank drives.
    pub gpus: Option<f64>,
}

/// FLOP of one token or sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelFlops {
    /// Per token.
    Token(f64),
    /// Per sample.
    Sample(f64),
}

impl Model {
    /// FLOP per token or sample, forward and backward, by the model's convention.
    ///
    /// # Errors
    /// Which value of the description is missing.
    pub fn flops(&self) -> Result<ModelFlops, String> {
        let want = |value: Option<f64>, name: &str| {
            value
                .filter(|value| value.is_finite() && *value > 0.0)
                .ok_or_else(|| format!("the model's description lacks {name}"))
        };
        let hidden = || match self.hidden {
            Some(_) => want(self.hidden, "hidden"),
            None => Ok(want(self.heads, "hidden (or heads)")? * want(self.head_dim, "head_dim")?),
        };
        let dense = |attention: f64| {
            let params = want(self.active_params.or(self.params), "params")?;
            let width = match (self.heads, self.head_dim) {
                (Some(_), Some(_)) => want(self.heads, "heads")? * want(self.head_dim, "head_dim")?,
                _ => hidden()?,
            };
            let layers = want(self.layers, "layers")?;
            Ok(6.0 * params + attention * layers * width * want(self.seq_len, "seq_len")?)
        };
        match self.convention {
            Convention::Palm => dense(12.0).map(ModelFlops::Token),
            Convention::Causal => dense(6.0).map(ModelFlops::Token),
            Convention::Megatron => {
                let (h, layers) = (hidden()?, want(self.layers, "layers")?);
                let (seq, vocab) = (want(self.seq_len, "seq_len")?, want(self.vocab, "vocab")?);
                let of_layers = 1.0 + seq / (6.0 * h) + vocab / (12.0 * layers * h);
                Ok(ModelFlops::Token(72.0 * layers * h * h * of_layers))
            }
            Convention::Explicit => match (self.flops_per_token, self.flops_per_sample) {
                (Some(_), _) => want(self.flops_per_token, "flops_per_token").map(ModelFlops::Token),
                _ => {
                    want(self.flops_per_sample, "flops_per_token or flops_per_sample").map(ModelFlops::Sample)
                }
            },
        }
    }

    /// Peak of the data type as a multiple of bf16's, for GPU models that have it.
    pub fn rate(&self) -> &str {
        match self.dtype.as_str() {
            "" => "bf16",
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama7b() -> Model {
        Model {
            params: Some(6.74e9),
            layers: Some(32.0),
            heads: Some(32.0),
            head_dim: Some(128.0),
            seq_len: Some(2048.0),
            vocab: Some(32_000.0),
            ..Model::default()
        }
    }

    /// By hand: 6 × 6.74e9 = 40.44e9; 12 × 32 × 4096 × 2048 = 3.221225472e9.
    #[test]
    fn palm_convention_matches_the_paper() {
        let ModelFlops::Token(flops) = llama7b().flops().unwrap() else { panic!() };
        assert!((flops - 43_661_225_472.0).abs() < 1.0, "{flops}");
        let causal = Model { convention: Convention::Causal, ..llama7b() };
        let ModelFlops::Token(flops) = causal.flops().unwrap() else { panic!() };
        assert!((flops - 42_050_612_736.0).abs() < 1.0, "{flops}");
    }

    /// By hand: 72 × 32 × 4096² = 38 654 705 664; × (1 + 1/12 + 32000 / 1 572 864).
    #[test]
    fn megatron_convention_includes_the_logits() {
        let model = Model { convention: Convention::Megatron, ..llama7b() };
        let ModelFlops::Token(flops) = model.flops().unwrap() else { panic!() };
        let by_hand = 38_654_705_664.0 + 3_221_225_472.0 + 786_432_000.0;
        assert!((flops - by_hand).abs() < 1.0, "{flops} {by_hand}");
    }

    /// Mixtral 8x7B: 46.7 B parameters, 12.9 B of them active per token.
    #[test]
    fn mixture_of_experts_counts_active_parameters() {
        let model = Model { params: Some(46.7e9), active_params: Some(12.9e9), ..llama7b() };
        let ModelFlops::Token(flops) = model.flops().unwrap() else { panic!() };
        assert!((flops - (77.4e9 + 3_221_225_472.0)).abs() < 1.0);
    }

    #[test]
    fn missing_model_value_is_an_error_that_names_it() {
        let model = Model { layers: None, ..llama7b() };
        assert_eq!(model.flops().unwrap_err(), "the model's description lacks layers");
        let model = Model { params: Some(f64::NAN), ..llama7b() };
        assert!(model.flops().is_err());
        let own = Model { convention: Convention::Explicit, flops_per_sample: Some(1e9), ..Model::default() };
        assert_eq!(own.flops(), Ok(ModelFlops::Sample(1e9)));
        assert!(Model { convention: Convention::Explicit, ..Model::default() }.flops().is_err());
    }
}
