//! The samples file: `<node>.samples` beside a report, and in segments while the job runs.
//!
//! A stream of records: length of the payload (u32), kind (u8), CRC-32 of kind and payload (u32), payload.
//! Numbers are little-endian. A truncated record or one with a wrong checksum ends the stream; earlier records
//! are valid.
//!
//! | kind | payload |
//! |---|---|
//! | `H` | [`Head`] as JSON: describes the records after it, up to the next head |
//! | `S` | one sample |
//! | `M` | samples of a minute or more, folded into one |
//! | `N` | [`Note`] as JSON |
//! | `E` | [`End`] as JSON: the sampler ended normally |
//!
//! A sample: start (u64, Unix milliseconds), seconds (f32), number of folded samples (u16), state (u8: 0
//! running, 1 suspended, 2 yielded), then the values of each GPU, each port and the host in the head's order.
//! Values: two bits per field (0 unknown, 1 zero, 2 one number, 3 mean with minimum and maximum), padded to whole bytes,
//! then for each field with numbers the mean (f32) and, in a folded sample, minimum and maximum as the upper half of an
//! f32, which is exact to 0.4 %. Fields that no report has keep the mean only.

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

use super::{Field, GpuField, HostField, RailField, Sample, State, Value, Values};

/// Schema that this build writes.
pub const SAMPLES_SCHEMA: u32 = 1;
/// Maximum length of a record, bytes.
const MOST_BYTES: usize = 1 << 20;
/// Maximum number of GPUs, and of ports.
const MOST_THINGS: usize = 256;
/// Maximum number of fields of one device: two bits of a u128 for each.
const MOST_FIELDS: usize = 64;
const FRAME: usize = 9;

/// Describes the samples after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// [`SAMPLES_SCHEMA`] of the writer.
    pub schema: u32,
    /// Slurm's name of the node.
    pub node: String,
    /// Job id.
    pub job: u32,
    /// Restart count.
    pub attempt: u32,
    /// Start of the sampler; later times are measured from here with a monotonic clock.
    pub start: UnixMillis,
    /// Monotonic clock at the same moment: seconds since boot.
    pub boot_s: f64,
    /// Boot id.
    pub boot_id: String,
    /// Interval between samples, seconds.
    pub interval_s: f64,
    /// GPUs in the order of the samples.
    pub gpus: Vec<HeadGpu>,
    /// Ports in the order of the samples.
    pub rails: Vec<HeadRail>,
    /// Field names of each GPU in the order of the samples; readers use these names.
    pub gpu_fields: Vec<String>,
    /// Field names of each port.
    pub rail_fields: Vec<String>,
    /// Field names of the host.
    pub host_fields: Vec<String>,
}

/// A GPU in the head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadGpu {
    /// NVML index.
    pub index: u32,
    /// UUID; that of the MIG device if it is one.
    pub uuid: String,
    /// NVML's model name.
    pub model: String,
    /// GPU instance id of a MIG device.
    pub instance: Option<u32>,
    /// Number of SMs of that instance.
    pub instance_sms: Option<u32>,
    /// Total memory, MiB.
    pub memory_total_mib: Option<u64>,
    /// Missing fields with the reason: `unsupported`, or NVML's error.
    pub lacking: Vec<(String, String)>,
}

/// A port in the head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadRail {
    /// HCA name, `mlx5_0`.
    pub hca: String,
    /// Port number, from 1.
    pub port: u32,
    /// Rail number.
    pub rail: Option<usize>,
}

/// A remark that the figures do not include.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time of the remark.
    pub at: UnixMillis,
    /// The remark, one line.
    pub what: String,
}

/// Final record of the sampler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Time of the end.
    pub at: UnixMillis,
    /// CPU time of both its processes, seconds.
    pub cpu_s: f64,
    /// Memory of both processes, MiB; shared pages count once.
    pub memory_mib: f64,
    /// Processes killed for lack of memory in the job's cgroup.
    pub oom_kills: Option<u64>,
    /// Peak memory of the job's cgroup as counted by the kernel, MiB.
    pub memory_peak_mib: Option<u64>,
    /// CPU cores that the job may use.
    pub cpus_allowed: Option<f64>,
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Describes the records after it.
    Head(Head),
    /// One sample, or several folded into one.
    Sample(Sample),
    /// A remark.
    Note(Note),
    /// End of the sampler.
    End(End),
}

impl Head {
    /// A head with the fields of this build.
    pub fn new(node: &str, job: u32, attempt: u32) -> Self {
        fn names<F: Field>() -> Vec<String> {
            F::ALL.iter().map(|field| field.name().to_owned()).collect()
        }
        Head {
            schema: SAMPLES_SCHEMA,
            node: node.to_owned(),
            job,
            attempt,
            gpu_fields: names::<GpuField>(),
            rail_fields: names::<RailField>(),
            host_fields: names::<HostField>(),
            ..Head::default()
        }
    }
}

impl Record {
    /// Appends the record to a stream.
    ///
    /// # Errors
    /// The record exceeds the maximum length.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), String> {
        let json = |what: serde_json::Result<Vec<u8>>| what.map_err(|why| why.to_string());
        let (kind, payload) = match self {
            Record::Head(head) => (b'H', json(serde_json::to_vec(head))?),
            Record::Sample(sample) => (if sample.folded > 1 { b'M' } else { b'S' }, encode(sample)),
            Record::Note(note) => (b'N', json(serde_json::to_vec(note))?),
            Record::End(end) => (b'E', json(serde_json::to_vec(end))?),
        };
        if payload.len() > MOST_BYTES {
            return Err(format!("a record of {} bytes", payload.len()));
        }
        out.extend_from_slice(&u32::try_from(payload.len()).unwrap_or_default().to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&sum(kind, &payload).to_le_bytes());
        out.extend_from_slice(&payload);
        Ok(())
    }
}

fn encode(sample: &Sample) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(&sample.start.to_le_bytes());
    out.extend_from_slice(&sample.seconds.to_le_bytes());
    out.extend_from_slice(&sample.folded.to_le_bytes());
    out.push(match sample.state {
        State::Running => 0,
        State::Suspended => 1,
        State::Yielded => 2,
    });
    for gpu in &sample.gpus {
        encode_values(gpu, sample.folded > 1, &mut out);
    }
    for rail in &sample.rails {
        encode_values(rail, sample.folded > 1, &mut out);
    }
    encode_values(&sample.host, sample.folded > 1, &mut out);
    out
}

fn encode_values<F: Field>(values: &Values<F>, spread: bool, out: &mut Vec<u8>) {
    let mut bits = 0_u128;
    let mut numbers = Vec::new();
    for (place, field) in F::ALL.iter().enumerate() {
        let Some(value) = values.get(*field) else { continue };
        let flat = !spread || !field.has_spread() || (value.min.total_cmp(&value.max).is_eq());
        let state: u128 = match (flat, value.mean == 0.0) {
            (true, true) => 1,
            (true, false) => 2,
            (false, _) => 3,
        };
        bits |= state << (2 * place);
        if state > 1 {
            numbers.extend_from_slice(&value.mean.to_le_bytes());
        }
        if state > 2 {
            // Rounded outwards, so that the mean stays between them.
            numbers.extend_from_slice(&half(value.min, value.min < 0.0).to_le_bytes());
            numbers.extend_from_slice(&half(value.max, value.max > 0.0).to_le_bytes());
        }
    }
    let bytes = (2 * F::ALL.len()).div_ceil(8);
    out.extend_from_slice(bits.to_le_bytes().get(..bytes).unwrap_or_default());
    out.extend_from_slice(&numbers);
}

/// Upper half of an f32, rounded away from zero or towards it.
fn half(value: f32, away: bool) -> u16 {
    let [low, lower, b, a] = value.to_le_bytes();
    let half = u16::from_le_bytes([b, a]);
    // The next value is still finite; no sensor has larger ones.
    if away && (low, lower) != (0, 0) && value.abs() < 1e38 { half + 1 } else { half }
}

/// Iterates over records; ends at the first incomplete one.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    left: &'a [u8],
    at: usize,
    layout: Layout,
    damage: Option<String>,
}

/// Length of a stream up to its first incomplete record, bytes.
pub fn whole_bytes(stream: &[u8]) -> usize {
    let mut records = Records::new(stream);
    while records.next().is_some() {}
    records.at
}

/// Layout of the samples under the last head.
#[derive(Clone, Debug, Default)]
struct Layout {
    gpus: usize,
    rails: usize,
    gpu_fields: Vec<Option<usize>>,
    rail_fields: Vec<Option<usize>>,
    host_fields: Vec<Option<usize>>,
}

impl<'a> Records<'a> {
    /// Reads a stream from its start. The content is not trusted.
    pub fn new(stream: &'a [u8]) -> Self {
        Records { left: stream, at: 0, layout: Layout::default(), damage: None }
    }

    /// Why reading ended before the end of the stream; `None` if it did not.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    fn step(&mut self) -> Result<Option<Record>, String> {
        loop {
            if self.left.is_empty() {
                return Ok(None);
            }
            let (frame, rest) = self.left.split_at_checked(FRAME).ok_or("cut off")?;
            let mut frame = Cursor(frame);
            let (length, kind, want) = (frame.u32()?, frame.u8()?, frame.u32()?);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MOST_BYTES {
                return Err(format!("a record of {length} bytes"));
            }
            let (payload, rest) = rest.split_at_checked(length).ok_or("cut off")?;
            if sum(kind, payload) != want {
                return Err("record checksum mismatch".to_owned());
            }
            let record = self.record(kind, payload)?;
            self.left = rest;
            self.at += FRAME + length;
            // Record kinds of newer builds are skipped.
            if let Some(record) = record {
                return Ok(Some(record));
            }
        }
    }

    fn record(&mut self, kind: u8, payload: &[u8]) -> Result<Option<Record>, String> {
        let bad = |why: serde_json::Error| format!("a record that cannot be read: {why}");
        Ok(Some(match kind {
            b'H' => {
                let head: Head = serde_json::from_slice(payload).map_err(bad)?;
                self.layout = Layout::of(&head)?;
                Record::Head(head)
            }
            b'S' | b'M' => Record::Sample(self.layout.sample(payload)?),
            b'N' => Record::Note(serde_json::from_slice(payload).map_err(bad)?),
            b'E' => Record::End(serde_json::from_slice(payload).map_err(bad)?),
            _ => return Ok(None),
        }))
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        if self.damage.is_some() {
            return None;
        }
        self.step().unwrap_or_else(|why| {
            self.damage = Some(format!("at byte {}: {why}", self.at));
            None
        })
    }
}

impl Layout {
    fn of(head: &Head) -> Result<Self, String> {
        fn places<F: Field>(names: &[String]) -> Vec<Option<usize>> {
            let place = |name: &String| F::ALL.iter().position(|field| field.name() == name);
            names.iter().map(place).collect()
        }
        let lists = [&head.gpu_fields, &head.rail_fields, &head.host_fields];
        if lists.iter().any(|list| list.len() > MOST_FIELDS)
            || head.gpus.len() > MOST_THINGS
            || head.rails.len() > MOST_THINGS
        {
            return Err("a head with too many entries".to_owned());
        }
        Ok(Layout {
            gpus: head.gpus.len(),
            rails: head.rails.len(),
            gpu_fields: places::<GpuField>(&head.gpu_fields),
            rail_fields: places::<RailField>(&head.rail_fields),
            host_fields: places::<HostField>(&head.host_fields),
        })
    }

    fn sample(&self, payload: &[u8]) -> Result<Sample, String> {
        let mut from = Cursor(payload);
        let (start, seconds) = (from.u64()?, f32::from_bits(from.u32()?));
        let folded = from.u16()?;
        if !(seconds.is_finite() && (0.0..=1e7).contains(&seconds)) {
            return Err("a sample of length 0".to_owned());
        }
        let state = match from.u8()? {
            0 => State::Running,
            1 => State::Suspended,
            2 => State::Yielded,
            other => return Err(format!("a sample of state {other}")),
        };
        let gpus =
            (0..self.gpus).map(|_| decode_values(&self.gpu_fields, &mut from)).collect::<Result<_, _>>()?;
        let rails =
            (0..self.rails).map(|_| decode_values(&self.rail_fields, &mut from)).collect::<Result<_, _>>()?;
        let host = decode_values(&self.host_fields, &mut from)?;
        Ok(Sample { start, seconds, folded, state, gpus, rails, host })
    }
}

fn decode_values<F: Field>(places: &[Option<usize>], from: &mut Cursor<'_>) -> Result<Values<F>, String> {
    let mut bits = 0_u128;
    for place in 0..(2 * places.len()).div_ceil(8) {
        bits |= u128::from(from.u8()?) << (8 * place);
    }
    let mut values = Values::default();
    for (number, place) in places.iter().enumerate() {
        let state = (bits >> (2 * number)) & 3;
        let value = match state {
            0 => None,
            1 => Some(Value { mean: 0.0, min: 0.0, max: 0.0 }),
            _ => {
                let mean = f32::from_bits(from.u32()?);
                let (min, max) = if state == 2 {
                    (mean, mean)
                } else {
                    let whole = |half: u16| f32::from_bits(u32::from(half) << 16);
                    (whole(from.u16()?), whole(from.u16()?))
                };
                Some(Value { mean, min, max })
            }
        };
        if let Some(field) = place.and_then(|place| F::ALL.get(place)) {
            values.set(*field, value);
        }
    }
    Ok(values)
}

struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (here, rest) = self.0.split_first_chunk::<N>().ok_or("a record that is too short")?;
        self.0 = rest;
        Ok(*here)
    }

    fn u8(&mut self) -> Result<u8, String> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, String> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }
}

/// CRC-32 as in Ethernet and zip.
fn sum(kind: u8, payload: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |sum: u32, byte: &u8| {
        let index = usize::from(sum.to_le_bytes()[0] ^ byte);
        (sum >> 8) ^ TABLE.get(index).copied().unwrap_or_default()
    };
    !std::iter::once(&kind).chain(payload).fold(!0, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut sum = byte;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        table[byte as usize] = sum;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests;
