//! Errors that the NVLinks of a card count while cards copy to each other.
//!
//! nvml-wrapper asks for no link: from Hopper on the counters exist for each link only, so the driver's function is called here with the
//! number of the link, as `railgate-probe` does.
#![expect(unsafe_code, reason = "the fields of one link need NVML's C interface")]

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

use crate::cuda::Device;
use crate::said::Outcome;

/// Links of the card with the most.
const MOST_LINKS: u32 = 18;
/// `NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS`, in place of [`Kind::Recoveries`] from Blackwell on.
const RECOVERY_EVENTS: u32 = 215;
const NOT_SUPPORTED: u32 = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const INVALID_ARGUMENT: u32 = sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;

/// Errors that a link counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Packets sent again.
    Replays,
    /// The link was trained again.
    Recoveries,
    /// Checksum errors.
    Crc,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Replays, Kind::Recoveries, Kind::Crc];

    /// The field of one link.
    fn of_link(self) -> u32 {
        match self {
            Kind::Replays => sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
            Kind::Recoveries => sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            Kind::Crc => sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        }
    }

    /// The sum over all links, which cards up to Ampere have.
    fn of_all(self) -> u32 {
        match self {
            Kind::Replays => sys::field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            Kind::Recoveries => sys::field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            Kind::Crc => sys::field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        }
    }

    fn figure(self) -> &'static str {
        match self {
            Kind::Replays => "replays_count",
            Kind::Recoveries => "recoveries_count",
            Kind::Crc => "crc_errors_count",
        }
    }
}

/// Why there are no counts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Missing {
    /// The card or the driver has none.
    Absent(&'static str),
    /// They could not be read.
    Failed(String),
}

/// Counters by link and kind; link `None` is the sum over all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    links: usize,
    counts: BTreeMap<(Option<u32>, Kind), u64>,
}

/// A reading of a card.
#[derive(Clone, Debug)]
pub(crate) struct Reading(Result<Counts, Missing>);

/// Reads the counters of all links.
pub(crate) fn read(nvml: Option<&Nvml>, device: &Device) -> Reading {
    let Some(nvml) = nvml else { return Reading(Err(Missing::Failed("NVML is not available".to_owned()))) };
    Reading(counts(nvml, device))
}

fn counts(nvml: &Nvml, device: &Device) -> Result<Counts, Missing> {
    let failed = |why: NvmlError| Missing::Failed(format!("NVML: {why}"));
    let card = nvml.device_by_pci_bus_id(device.pci.to_string()).map_err(failed)?;
    let mut links = Vec::new();
    for link in 0..MOST_LINKS {
        match card.link_wrapper_for(link).is_active() {
            Ok(_) => links.push(link),
            // The card has no further link.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(why) => return Err(failed(why)),
        }
    }
    if links.is_empty() {
        return Err(Missing::Absent("this card has no NVLink"));
    }
    let ask = |wanted: Vec<(u32, Option<u32>, Kind)>| {
        // SAFETY: the handle is used only while `nvml` exists.
        fields(nvml, unsafe { card.handle() }, &wanted)
    };
    let of_each = |kind: Kind, field: u32| links.iter().map(move |link| (field, Some(*link), kind));
    let mut found = ask(Kind::ALL.into_iter().flat_map(|kind| of_each(kind, kind.of_link())).collect())?;
    if !found.keys().any(|(_, kind)| *kind == Kind::Recoveries) {
        found.extend(ask(of_each(Kind::Recoveries, RECOVERY_EVENTS).collect())?);
    }
    if found.is_empty() {
        found = ask(Kind::ALL.map(|kind| (kind.of_all(), None, kind)).into())?;
    }
    if found.is_empty() {
        return Err(Missing::Absent("this driver counts no errors of NVLinks"));
    }
    Ok(Counts { links: links.len(), counts: found })
}

/// Values of fields; those that the driver or the card does not have are left out.
fn fields(
    nvml: &Nvml,
    card: sys::nvmlDevice_t,
    wanted: &[(u32, Option<u32>, Kind)],
) -> Result<BTreeMap<(Option<u32>, Kind), u64>, Missing> {
    let failed = |code: u32| Missing::Failed(format!("nvmlDeviceGetFieldValues: NVML error {code}"));
    let unreadable = || Missing::Failed("nvmlDeviceGetFieldValues: value of an unknown type".to_owned());
    let Ok(call) = nvml.lib().nvmlDeviceGetFieldValues.as_ref() else { return Ok(BTreeMap::new()) };
    let empty = |(field, link, _): &(u32, Option<u32>, Kind)| sys::nvmlFieldValue_t {
        fieldId: *field,
        scopeId: link.unwrap_or_default(),
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 0,
        value: sys::nvmlValue_t { ullVal: 0 },
    };
    let mut values: Vec<_> = wanted.iter().map(empty).collect();
    let count = i32::try_from(values.len()).unwrap_or_default();
    // SAFETY: `values` has `count` entries, each initialised, and outlives the call.
    match unsafe { call(card, count, values.as_mut_ptr()) } {
        0 => {}
        NOT_SUPPORTED | INVALID_ARGUMENT => return Ok(BTreeMap::new()),
        code => return Err(failed(code)),
    }
    let mut found = BTreeMap::new();
    for (value, (_, link, kind)) in values.iter().zip(wanted) {
        match value.nvmlReturn {
            0 => found.insert((*link, *kind), number(value).ok_or_else(unreadable)?),
            // The field is newer than the driver, or the card does not count it.
            NOT_SUPPORTED | INVALID_ARGUMENT => None,
            code => return Err(failed(code)),
        };
    }
    Ok(found)
}

/// The number in a field, which is not negative.
fn number(value: &sys::nvmlFieldValue_t) -> Option<u64> {
    // SAFETY: the driver set the type of the value that it wrote, and the union is initialised to its whole size.
    unsafe {
        match value.valueType {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(value.value.uiVal.into()),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(value.value.ulVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => Some(value.value.ullVal),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                u64::try_from(value.value.sllVal).ok()
            }
            _ => None,
        }
    }
}

/// What the counters grew by between two readings of a card: of each kind over all links, and of each link with errors. A kind that the driver does not count is left out.
pub(crate) fn grown(before: &Reading, after: &Reading) -> Result<Outcome, String> {
    let (before, after) = match (&before.0, &after.0) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(Missing::Failed(why)), _) | (_, Err(Missing::Failed(why))) => return Err(why.clone()),
        (Err(Missing::Absent(why)), _) | (_, Err(Missing::Absent(why))) => {
            return Ok(Outcome::not_applicable(why));
        }
    };
    let mut sums: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut of_links = Vec::new();
    for (place, first) in &before.counts {
        let last = after.counts.get(place).ok_or("a counter of NVLink errors is gone")?;
        let more = last.checked_sub(*first).ok_or("the counters of NVLink errors were set back")?;
        *sums.entry(place.1).or_default() += more;
        if let (Some(link), 1..) = (place.0, more) {
            of_links.push((link, place.1, more));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let figure = |count: u64| count as f64;
    let links = u32::try_from(before.links).unwrap_or_default();
    let outcome = Outcome::default().with("links_count", f64::from(links));
    let outcome =
        sums.into_iter().fold(outcome, |outcome, (kind, more)| outcome.with(kind.figure(), figure(more)));
    Ok(of_links.into_iter().fold(outcome, |outcome, (link, kind, more)| {
        outcome.with(&format!("link_{link}_{}", kind.figure()), figure(more))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(counts: &[((Option<u32>, Kind), u64)]) -> Reading {
        Reading(Ok(Counts { links: 2, counts: counts.iter().copied().collect() }))
    }

    #[test]
    fn growth_is_counted_by_kind_and_link() {
        let before =
            reading(&[((Some(0), Kind::Crc), 7), ((Some(1), Kind::Crc), 1), ((Some(1), Kind::Replays), 4)]);
        let after =
            reading(&[((Some(0), Kind::Crc), 7), ((Some(1), Kind::Crc), 3), ((Some(1), Kind::Replays), 9)]);
        let measured = grown(&before, &after).unwrap().measured;
        let text: Vec<String> = measured.iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert_eq!(
            text,
            [
                "crc_errors_count 2",
                "link_1_crc_errors_count 2",
                "link_1_replays_count 5",
                "links_count 2",
                "replays_count 5"
            ]
        );
    }

    /// Unknown, never zero.
    #[test]
    fn counters_that_go_back_or_fail_are_no_zero() {
        let (high, low) = (reading(&[((None, Kind::Crc), 7)]), reading(&[((None, Kind::Crc), 6)]));
        assert_eq!(grown(&high, &low).unwrap_err(), "the counters of NVLink errors were set back");
        assert_eq!(grown(&high, &reading(&[])).unwrap_err(), "a counter of NVLink errors is gone");
        let failed = Reading(Err(Missing::Failed("lost".to_owned())));
        assert_eq!(grown(&high, &failed).unwrap_err(), "lost");
        let none = Reading(Err(Missing::Absent("no NVLink")));
        let outcome = grown(&none, &none).unwrap();
        assert_eq!((outcome.not_applicable.as_deref(), outcome.measured.len()), (Some("no NVLink"), 0));
    }
}
