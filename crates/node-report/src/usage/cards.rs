//! Calibrations of single cards, as `railgate calibrate` measures them, and the one lookup of a GPU's figures.

use std::collections::BTreeMap;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use super::peaks::{Model, SiteModel, model};

/// Schema that this build writes.
const SCHEMA: u32 = 1;
/// Maximum number of cards that are kept, the newest ones: many times those of a node.
const MOST_CARDS: usize = 256;

/// The calibration of one card, with its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// NVML's model name.
    pub model: String,
    /// Activity × clock ÷ work while tensor kernels run.
    pub activity_per_work: f64,
    /// Relative uncertainty of the result, from the scatter of the measurement.
    pub band: f64,
    /// Driver version; `None` if it could not be read.
    #[serde(default)]
    pub driver: Option<String>,
    /// Time of the measurement.
    pub measured: UnixMillis,
    /// railgate version that measured it.
    pub railgate: String,
    /// What measured it: `calibrate` or `self-test`.
    pub by: String,
}

impl Card {
    /// Why the values cannot be used; `None` if they can.
    pub fn problem(&self) -> Option<String> {
        let ranges = [("activity_per_work", self.activity_per_work, 0.2, 5.0), ("band", self.band, 0.0, 1.0)];
        let wrong = |(key, value, low, high)| {
            let fits: bool = (low..=high).contains(&value);
            (!fits).then(|| format!("{key}: {value} is not within {low} to {high}"))
        };
        ranges.into_iter().find_map(wrong)
    }
}

/// The calibrated cards of a node, by UUID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cards(BTreeMap<String, Card>);

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct File {
    schema: u32,
    cards: BTreeMap<String, serde_json::Value>,
}

impl Cards {
    /// Parses the file, with the reason for each card that is left out: one bad row does not take the others along.
    ///
    /// # Errors
    /// The content is not such a file.
    pub fn parse(content: &[u8]) -> Result<(Self, Vec<String>), String> {
        let file: File = serde_json::from_slice(content).map_err(|why| why.to_string())?;
        if file.schema != SCHEMA {
            return Err(format!("schema {}, not {SCHEMA}", file.schema));
        }
        let (mut cards, mut left_out) = (Cards::default(), Vec::new());
        for (uuid, row) in file.cards {
            let card = serde_json::from_value::<Card>(row).map_err(|why| why.to_string());
            match card.and_then(|card| card.problem().map_or(Ok(card), Err)) {
                Ok(card) => drop(cards.0.insert(uuid, card)),
                Err(why) => left_out.push(format!("{uuid}: {why}")),
            }
        }
        Ok((cards, left_out))
    }

    /// Content of the file.
    ///
    /// # Errors
    /// A value is not a number of JSON.
    pub fn to_json(&self) -> Result<Vec<u8>, String> {
        let all = serde_json::json!({ "schema": SCHEMA, "cards": self.0 });
        serde_json::to_vec_pretty(&all).map_err(|why| why.to_string())
    }

    /// Adds a card, in place of an earlier measurement of it. Beyond 256 cards the oldest are dropped.
    pub fn put(&mut self, uuid: &str, card: Card) {
        self.0.insert(uuid.to_owned(), card);
        while self.0.len() > MOST_CARDS {
            let oldest = self.0.iter().min_by_key(|(_, card)| card.measured).map(|(uuid, _)| uuid.clone());
            let Some(oldest) = oldest else { break };
            self.0.remove(&oldest);
        }
    }

    /// The calibration of a card.
    pub fn get(&self, uuid: &str) -> Option<&Card> {
        self.0.get(uuid)
    }
}

/// What a node knows of GPUs: the site's figures of models, and its own cards. Report and metrics use it alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFigures {
    /// `[stats.models]`.
    pub site: BTreeMap<String, SiteModel>,
    /// Calibrations of this node's cards.
    pub cards: Cards,
}

impl GpuFigures {
    /// The figures in force for a GPU. Its calibration is the card's own, else the site's for its model, else the
    /// built-in one. `None` if the model is unknown.
    pub fn of(&self, name: &str, uuid: &str) -> Option<Model> {
        let mut model = model(name, &self.site)?;
        if let Some(card) = self.cards.get(uuid) {
            model.calibration = Some((card.activity_per_work, card.band, "card"));
        }
        Some(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(activity_per_work: f64) -> Card {
        Card {
            model: "NVIDIA H200".to_owned(),
            activity_per_work,
            band: 0.034,
            driver: None,
            measured: 1_800_000_000_000,
            railgate: "0.1.0".to_owned(),
            by: "calibrate".to_owned(),
        }
    }

    #[test]
    fn a_card_comes_before_the_site_and_the_site_before_the_built_in_factor() {
        let own = SiteModel { activity_per_work: Some(1.2), ..SiteModel::default() };
        let mut figures =
            GpuFigures { site: BTreeMap::from([("NVIDIA H200".to_owned(), own)]), cards: Cards::default() };
        figures.cards.put("GPU-1", card(1.09));
        let from = |figures: &GpuFigures, name, uuid| figures.of(name, uuid).unwrap().calibration;
        assert_eq!(from(&figures, "NVIDIA H200", "GPU-1"), Some((1.09, 0.034, "card")));
        assert_eq!(from(&figures, "NVIDIA H200", "GPU-2"), Some((1.2, 0.05, "site")));
        assert_eq!(from(&figures, "NVIDIA H200", ""), Some((1.2, 0.05, "site")));
        figures.site.clear();
        assert_eq!(from(&figures, "NVIDIA H200", "GPU-2"), Some((1.103, 0.03, "built-in")));
        assert_eq!(from(&figures, "NVIDIA H200 NVL", "GPU-2"), None);
        assert_eq!(from(&figures, "NVIDIA H200 NVL", "GPU-1"), Some((1.09, 0.034, "card")));
        assert_eq!(figures.of("X9", "GPU-1"), None, "a factor without a peak is no figure");
    }

    #[test]
    fn a_bad_row_does_not_take_the_others_along() {
        let mut cards = Cards::default();
        cards.put("GPU-1", card(1.103));
        cards.put("GPU-2", card(7.0));
        let (read, left_out) = Cards::parse(&cards.to_json().unwrap()).unwrap();
        assert_eq!((read.get("GPU-1"), read.get("GPU-2")), (Some(&card(1.103)), None));
        assert_eq!(left_out, ["GPU-2: activity_per_work: 7 is not within 0.2 to 5"]);
        for bad in ["", "[]", "{\"cards\": {}}", "{\"schema\": 2, \"cards\": {}}"] {
            assert!(Cards::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let row = r#"{"schema": 1, "cards": {"GPU-3": {"activity_per_work": 1.1}}}"#;
        assert_eq!(Cards::parse(row.as_bytes()).unwrap().1.len(), 1);
    }

    #[test]
    fn the_file_is_bounded() {
        let mut cards = Cards::default();
        for number in 0..300_u64 {
            cards.put(&format!("GPU-{number}"), Card { measured: number, ..card(1.1) });
        }
        assert_eq!((cards.0.len(), cards.get("GPU-0"), cards.get("GPU-299").is_some()), (256, None, true));
    }
}
