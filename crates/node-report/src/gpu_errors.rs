use railgate_model::UnixMillis;
use railgate_model::xid_catalogue::{Owner, explain, lookup};
use serde::{Deserialize, Serialize};

use crate::plain::clock;

/// Most errors that are listed of a hang.
const MOST: usize = 8;

/// An error of a GPU of the job (Xid) that the driver reported shortly before ranks began to wait, or since.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuError {
    /// NVML index of the GPU.
    pub gpu: u32,
    /// Its node, if that is another one than the node that found the hang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The rank whose process the driver named; `None`: it named none, or one that is no rank's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Xid.
    pub code: u32,
    /// Whether its usual cause is the hardware or the driver; otherwise it is the program.
    pub hardware: bool,
    /// Time of the record; 0 in a report without times.
    pub time: UnixMillis,
}

impl GpuError {
    /// Without its rank; `None` for an Xid after which the work of a program continues, or that only follows from another error.
    /// `text`: the whole record.
    pub fn new(gpu: u32, code: u32, text: &str, time: UnixMillis) -> Option<Self> {
        let (owner, _) = explain(code, text);
        let hardware = owner == Owner::Hardware;
        let ends_work = hardware || owner == Owner::Application;
        ends_work.then_some(GpuError { gpu, node: None, rank: None, code, hardware, time })
    }

    /// `GPU 3 of rank 11 on gn5 reported Xid 79 (fallen off the bus) at 19:44:30`
    pub fn sentence(&self) -> String {
        let rank = self.rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        let node = self.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let name = lookup(self.code).map(|xid| format!(" ({})", xid.name)).unwrap_or_default();
        let time = clock(self.time);
        let at = match self.time {
            0 => String::new(),
            _ => format!(" at {}", time.get(..8).unwrap_or_default()),
        };
        format!("GPU {}{rank}{node} reported Xid {}{name}{at}", self.gpu, self.code)
    }
}

/// Keeps a list within its limits.
pub(crate) fn bound_errors(errors: &mut Vec<GpuError>, most_name: usize) {
    errors.truncate(MOST);
    let names = errors.iter_mut().filter_map(|error| error.node.as_mut());
    names.for_each(|name| name.truncate(name.floor_char_boundary(most_name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: UnixMillis = 1_700_000_000_000;

    #[test]
    fn an_error_says_its_gpu_code_and_time() {
        let error = GpuError::new(3, 79, "NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus.", TIME);
        let error = error.unwrap();
        assert!(error.hardware);
        assert_eq!(error.sentence(), "GPU 3 reported Xid 79 (fallen off the bus) at 22:13:20");
        let elsewhere = GpuError { node: Some("gn5".to_owned()), rank: Some(11), code: 31, ..error };
        assert_eq!(
            elsewhere.sentence(),
            "GPU 3 of rank 11 on gn5 reported Xid 31 (GPU memory page fault) at 22:13:20"
        );
        let unknown = GpuError { code: 99_999, ..elsewhere };
        assert!(unknown.sentence().contains("reported Xid 99999 at "), "{}", unknown.sentence());
    }

    #[test]
    fn an_xid_after_which_work_continues_is_no_error() {
        for code in [44, 45, 63, 92, 121, 99_999] {
            assert_eq!(GpuError::new(0, code, "", TIME), None, "Xid {code}");
        }
        assert_eq!(GpuError::new(0, 31, "", TIME).map(|error| error.hardware), Some(false));
        assert_eq!(GpuError::new(0, 94, "", TIME).map(|error| error.hardware), Some(true));
    }
}
