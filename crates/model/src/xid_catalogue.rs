//! What each Xid of the NVIDIA driver and each SXid of its NVSwitch driver means: the one table that the gate and the reports
//! read.
//!
//! `generated.rs` holds the facts of NVIDIA's Xid catalogue (`cargo xtask xid-catalogue`); beside them stand railgate's names,
//! the rule that makes a severity of the catalogue's action, and the departures from that rule with their reasons.

mod facts;
#[rustfmt::skip]
mod generated;
mod nvlink5;
mod policy;
mod sxid;
mod sxid_names;
#[cfg(test)]
mod tests;
mod words;

use serde::{Deserialize, Serialize};

pub use facts::{Bucket, Edition, Facts, Family, Nvlink5Row, Origin, Pattern, Promotion, Reach, SetsXid154};
pub use generated::EDITION;
pub use nvlink5::{Nvlink5, Nvlink5Line, nvlink5, nvlink5_line};
pub use policy::{DEPARTURES, Departure, Judgement, judge};
pub use sxid::{FabricLoss, fabric_loss, sxid_name, unstated_severity};

use crate::{Class, Severity};

/// Whose fault an Xid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The GPU, its memory, its links, or the driver beside it.
    Hardware,
    /// The program that ran.
    Application,
    /// It follows from another error, or has too little information.
    Other,
}

/// One Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// Xid.
    pub code: u32,
    /// The driver's identifier: `ROBUST_CHANNEL_GPU_ECC_DBE`.
    pub mnemonic: &'static str,
    /// The catalogue's immediate action; `None` if it has none or does not have the code yet.
    pub immediate: Option<Bucket>,
    /// The catalogue's investigatory action.
    pub investigatory: Option<Bucket>,
    /// The GPUs of the catalogue that report it.
    pub families: &'static [Family],
    /// The driver changes its recovery action (Xid 154) with it.
    pub sets_154: Option<SetsXid154>,
    /// NVIDIA's catalogue has it; otherwise only the driver's source.
    pub in_catalogue: bool,
    /// In a few words; the mnemonic for a code that is not used any more.
    pub name: &'static str,
    /// What it means for a job, in one sentence.
    pub meaning: &'static str,
    /// Whose fault it is.
    pub owner: Owner,
    /// A program can make the driver write it.
    pub raisable: bool,
    /// How bad the record is, whose it is and what to do.
    pub judgement: Judgement,
}

/// The row of a code.
pub fn lookup(code: u32) -> Option<Xid> {
    let row = |rows: &'static [Facts]| {
        rows.binary_search_by_key(&code, |row| row.code).ok().and_then(|at| rows.get(at))
    };
    match row(generated::FACTS) {
        Some(facts) => Some(xid(facts, true)),
        None => row(policy::NEWER).map(|facts| xid(facts, false)),
    }
}

/// Every code, in order.
pub fn all() -> impl Iterator<Item = Xid> {
    let known = generated::FACTS.iter().map(|facts| xid(facts, true));
    known.chain(policy::NEWER.iter().map(|facts| xid(facts, false)))
}

/// Every row of the NVLink 5 decode table, in the catalogue's order.
pub fn nvlink5_rows() -> &'static [Nvlink5Row] {
    generated::NVLINK5
}

/// Whose fault one record is, and what it means for a job, in one sentence without its full stop.
///
/// The records of NVLink 5 (144 to 150) are decoded: most are not fatal.
pub fn explain(code: u32, text: &str) -> (Owner, &'static str) {
    let Some(row) = lookup(code) else {
        return (Owner::Other, "not in railgate's table; see NVIDIA's Xid catalogue");
    };
    if !(144..=150).contains(&code) {
        return (row.owner, row.meaning);
    }
    let line = nvlink5_line(code, text);
    match line.and_then(|line| line.decode()) {
        Some(Nvlink5 { immediate: Bucket::Ignore, .. }) => (Owner::Other, "an NVLink error; work continues"),
        Some(Nvlink5 { immediate: Bucket::Xid154Eval, .. }) => (
            Owner::Other,
            "an NVLink access failed: a bad address of the program, or the end of its peer on another GPU",
        ),
        // Software at the other end may be the cause.
        Some(Nvlink5 { origin: Origin::Sw, reach: Reach::NonFatal, .. }) => (Owner::Other, row.meaning),
        Some(_) => (Owner::Hardware, row.meaning),
        None if line.is_some_and(|line| line.fatal) => (Owner::Hardware, row.meaning),
        None => (Owner::Other, row.meaning),
    }
}

/// The departure that a code falls under.
pub fn departure(code: u32) -> Option<&'static Departure> {
    DEPARTURES.iter().find(|departure| departure.codes.contains(&code))
}

fn xid(facts: &Facts, in_catalogue: bool) -> Xid {
    let words = words::WORDS.binary_search_by_key(&facts.code, |row| row.code).ok();
    let words = words.and_then(|at| words::WORDS.get(at));
    let owner = words.map_or(Owner::Other, |words| words.owner);
    let judgement =
        departure(facts.code).map_or_else(|| judge(facts.immediate, owner), |departure| departure.judgement);
    Xid {
        code: facts.code,
        mnemonic: facts.mnemonic,
        immediate: facts.immediate,
        investigatory: facts.investigatory,
        families: facts.families,
        sets_154: facts.sets_154,
        in_catalogue,
        name: words.map_or(facts.mnemonic, |words| words.name),
        meaning: words.map_or("an error that only older GPUs report", |words| words.meaning),
        owner,
        raisable: judgement.severity != Severity::Fail || policy::RAISABLE.contains(&facts.code),
        judgement,
    }
}
