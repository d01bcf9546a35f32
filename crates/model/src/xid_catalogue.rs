//! The meaning of each Xid of the NVIDIA driver and of each SXid of its NVSwitch driver. Both the gate and the reports
//! use this table.
//!
//! `generated.rs` has the facts of NVIDIA's Xid catalogue (`cargo xtask xid-catalogue`). The other files add railgate's names,
//! the rule that derives a severity from the catalogue's action, and the departures from that rule with their reasons.

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

/// The cause of an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The GPU, its memory, its links, or the driver.
    Hardware,
    /// The program that was running.
    Application,
    /// A consequence of another error, or not enough information.
    Other,
}

/// One Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The code.
    pub code: u32,
    /// The driver's identifier, for example `ROBUST_CHANNEL_GPU_ECC_DBE`.
    pub mnemonic: &'static str,
    /// Immediate action in the catalogue; `None` if it has none or lacks the code.
    pub immediate: Option<Bucket>,
    /// Investigatory action in the catalogue.
    pub investigatory: Option<Bucket>,
    /// GPU families that report it, from the catalogue.
    pub families: &'static [Family],
    /// Whether the driver changes its recovery action (Xid 154) with it.
    pub sets_154: Option<SetsXid154>,
    /// Whether NVIDIA's catalogue has the code; otherwise only the driver's source has it.
    pub in_catalogue: bool,
    /// A few words; the mnemonic for a code that is no longer used.
    pub name: &'static str,
    /// What it means for a job, in one sentence.
    pub meaning: &'static str,
    /// The usual cause.
    pub owner: Owner,
    /// A user program can make the driver log it.
    pub raisable: bool,
    /// Severity, class and fix of the record.
    pub judgement: Judgement,
}

/// Returns the row of a code.
pub fn lookup(code: u32) -> Option<Xid> {
    let row = |rows: &'static [Facts]| {
        rows.binary_search_by_key(&code, |row| row.code).ok().and_then(|at| rows.get(at))
    };
    match row(generated::FACTS) {
        Some(facts) => Some(xid(facts, true)),
        None => row(policy::NEWER).map(|facts| xid(facts, false)),
    }
}

/// Returns every code, in order.
pub fn all() -> impl Iterator<Item = Xid> {
    let known = generated::FACTS.iter().map(|facts| xid(facts, true));
    known.chain(policy::NEWER.iter().map(|facts| xid(facts, false)))
}

/// Returns every row of the NVLink 5 decode table, in the catalogue's order.
pub fn nvlink5_rows() -> &'static [Nvlink5Row] {
    generated::NVLINK5
}

/// Returns the cause of one record, and what it means for a job, in one sentence without its full stop.
///
/// Records of NVLink 5 (144 to 150) are decoded, since most of them are not fatal.
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
        // Software at the other end of the link can be the cause.
        Some(Nvlink5 { origin: Origin::Sw, reach: Reach::NonFatal, .. }) => (Owner::Other, row.meaning),
        Some(_) => (Owner::Hardware, row.meaning),
        None if line.is_some_and(|line| line.fatal) => (Owner::Hardware, row.meaning),
        None => (Owner::Other, row.meaning),
    }
}

/// Returns the departure from the rule for a code, if there is one.
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
