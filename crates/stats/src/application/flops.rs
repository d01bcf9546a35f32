use serde::{Deserialize, Serialize};

/// Whose way of counting a model's floating point operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// PaLM, appendix B: 6 N + 12 L H Q T per token. N: the parameters that a token passes (of a mixture of experts the
    /// active ones); attention without causal halving; nothing for recomputation.
    #[default]
    Palm,
    /// The same with attention halved, as a causal mask has it: 6 N + 6 L H Q T.
    Causal,
    /// Megatron-LM's closed form per token, 72 L h² (1 + T / 6h + V / 12 L h): no causal halving, a four-fold MLP.
    Megatron,
    /// The program's own figure per token or per sample.
    Explicit,
}

impl Convention {
    /// As a report names it.
    pub fn title(self) -> &'static str {
        match self {
            Convention::Palm => "PaLM 6N+12LHQT",
            Convention::Causal => "causal 6N+6LHQT",
            Convention::Megatron => "Megatron 72Lh^2(1+T/6h+V/12Lh)",
            Convention::Explicit => "the program's own FLOP count",
        }
    }
}

/// The program's description of its model. What a convention needs and is not given makes the figure unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// A name for people.
    pub name: String,
    /// How operations are counted.
    pub convention: Convention,
    /// N: parameters.
    pub params: Option<f64>,
    /// N of a mixture of experts: parameters that one token passes. Goes before `params`.
    pub active_params: Option<f64>,
    /// L.
    pub layers: Option<f64>,
    /// H: attention heads.
    pub heads: Option<f64>,
    /// Q: width of a head.
    pub head_dim: Option<f64>,
    /// h: width of the model; H × Q where it is left out.
    pub hidden: Option<f64>,
    /// T: tokens of a sequence.
    pub seq_len: Option<f64>,
    /// V: size of the vocabulary.
    pub vocab: Option<f64>,
    /// The program's own figure, forward and backward.
    pub flops_per_token: Option<f64>,
    /// Likewise.
    pub flops_per_sample: Option<f64>,
    /// What most of the matrix products are in: `bf16`, `fp16`, `tf32`, `fp8`.
    pub dtype: String,
    /// Tokens and samples are the whole job's in every rank's report, not this rank's share.
    pub global: bool,
    /// GPUs that this rank drives.
    pub gpus: Option<f64>,
}

/// What one token or sample costs.
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
    /// Which part of the description is lacking.
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

    /// The dtype's peak as a multiple of bf16's, where the model of the GPU has it.
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
    fn palm_counts_as_the_paper_does() {
        let ModelFlops::Token(flops) = llama7b().flops().unwrap() else { panic!() };
        assert!((flops - 43_661_225_472.0).abs() < 1.0, "{flops}");
        let causal = Model { convention: Convention::Causal, ..llama7b() };
        let ModelFlops::Token(flops) = causal.flops().unwrap() else { panic!() };
        assert!((flops - 42_050_612_736.0).abs() < 1.0, "{flops}");
    }

    /// By hand: 72 × 32 × 4096² = 38 654 705 664; × (1 + 1/12 + 32000 / 1 572 864).
    #[test]
    fn megatron_counts_the_logits() {
        let model = Model { convention: Convention::Megatron, ..llama7b() };
        let ModelFlops::Token(flops) = model.flops().unwrap() else { panic!() };
        let by_hand = 38_654_705_664.0 + 3_221_225_472.0 + 786_432_000.0;
        assert!((flops - by_hand).abs() < 1.0, "{flops} {by_hand}");
    }

    /// Mixtral 8x7B: 46.7 B parameters, of which a token passes 12.9 B.
    #[test]
    fn a_mixture_counts_what_a_token_passes() {
        let model = Model { params: Some(46.7e9), active_params: Some(12.9e9), ..llama7b() };
        let ModelFlops::Token(flops) = model.flops().unwrap() else { panic!() };
        assert!((flops - (77.4e9 + 3_221_225_472.0)).abs() < 1.0);
    }

    #[test]
    fn what_is_lacking_is_named_and_nothing_is_guessed() {
        let model = Model { layers: None, ..llama7b() };
        assert_eq!(model.flops().unwrap_err(), "the model's description lacks layers");
        let model = Model { params: Some(f64::NAN), ..llama7b() };
        assert!(model.flops().is_err());
        let own = Model { convention: Convention::Explicit, flops_per_sample: Some(1e9), ..Model::default() };
        assert_eq!(own.flops(), Ok(ModelFlops::Sample(1e9)));
        assert!(Model { convention: Convention::Explicit, ..Model::default() }.flops().is_err());
    }
}
