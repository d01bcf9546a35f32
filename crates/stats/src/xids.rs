//! What the Xids of the NVIDIA driver mean for the question why a job ended.

use serde::{Deserialize, Serialize};

/// Whose doing an Xid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The GPU, its memory, its links, or the driver beside it.
    Hardware,
    /// The program that ran.
    Application,
    /// It follows from something else, or tells too little.
    Other,
}

/// What one Xid means, in one line, and whose doing it is.
pub fn explain_xid(code: u32) -> (Whose, &'static str) {
    known_xid(code).unwrap_or((Whose::Other, "not in railgate's table; see NVIDIA's Xid catalogue"))
}

/// After NVIDIA's Xid catalogue (Ampere and later); `None` for a code that it does not have.
pub(crate) fn known_xid(code: u32) -> Option<(Whose, &'static str)> {
    use Whose::{Application, Hardware, Other};
    Some(match code {
        8 => (Application, "a kernel ran longer than the driver waits"),
        11 | 25 => (Application, "the program sent invalid commands"),
        13 => (Application, "a kernel raised an exception: an index out of bounds, an illegal instruction"),
        31 => (Application, "a kernel touched an address that is not its own: a bad pointer"),
        32 | 68 | 69 => (Application, "the program's command stream was invalid"),
        43 => (Application, "the program's own error stopped its work on the GPU; the GPU is fine"),
        44 => (Other, "the driver stopped the work after another error"),
        45 => (Other, "the work was cleaned up because the program ended or another error came first"),
        46 => (Hardware, "the GPU stopped processing"),
        48 => (Hardware, "an uncorrectable memory error (double bit)"),
        54 => (Hardware, "auxiliary power is missing"),
        62 => (Hardware, "the GPU's own controller halted"),
        63 => (Other, "a memory row was remapped, or will be at the next reset"),
        64 => (Hardware, "a memory row could not be remapped"),
        74 => (Hardware, "an NVLink error"),
        79 => (Hardware, "the GPU fell off the bus"),
        92 => (Other, "many corrected memory errors"),
        94 => (Hardware, "an uncorrectable memory error, contained to this program"),
        95 => (Hardware, "an uncorrectable memory error that was not contained"),
        109 => (Other, "the GPU did not switch contexts in time: a kernel that does not yield, or the GPU"),
        110 => (Hardware, "a security fault of the GPU"),
        119 | 120 => (Hardware, "the GPU's system processor (GSP) failed"),
        121 => (Other, "a corrected error on the link between CPU and GPU"),
        136 | 144..=150 => (Hardware, "an NVLink error"),
        137 => {
            (Other, "an NVLink access was refused: a bad address of the program, or a fault of the peer GPU")
        }
        139 => (Application, "the program used a copy engine wrongly"),
        140 => (Hardware, "an uncorrectable memory error that could not be recovered"),
        143 => (Hardware, "the GPU could not be initialised"),
        154 => (Other, "the driver says which recovery the GPU needs"),
        155..=158 | 167 | 168 | 171..=173 => (Hardware, "the GPU's memory or link failed"),
        39..=41 | 70..=72 | 75..=77 | 80 | 82..=89 | 96..=105 | 126..=135 => {
            (Application, "an engine of the GPU was given invalid work")
        }
        _ => return None,
    })
}

/// What an exit code or signal usually means; `None` where it tells nothing.
pub(crate) fn explain_exit(code: i32, signal: i32) -> Option<&'static str> {
    Some(match (code, signal) {
        (_, 125) => "Slurm's mark for out of memory",
        (_, 9) | (137, _) => "killed (SIGKILL): often the memory limit, or someone's kill -9",
        (_, 15) | (143, _) => "asked to end (SIGTERM)",
        (_, 11) | (139, _) => "a crash (SIGSEGV)",
        (_, 6) | (134, _) => "it aborted itself (SIGABRT): an assertion, or NCCL's watchdog",
        (_, 7) | (135, _) => "a bus error (SIGBUS): often a full /dev/shm or a truncated file",
        (_, 8) | (136, _) => "an arithmetic fault (SIGFPE)",
        (130, _) => "interrupted (SIGINT)",
        (126, _) => "the command could not be executed",
        (127, _) => "the command was not found",
        (1, 0) => "a general error: in Python, an exception",
        (2, 0) => "a usage error",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_faults_are_told_from_the_hardwares() {
        for code in [13, 31, 43] {
            assert_eq!(explain_xid(code).0, Whose::Application, "{code}");
        }
        for code in [48, 64, 74, 79, 95, 119] {
            assert_eq!(explain_xid(code).0, Whose::Hardware, "{code}");
        }
        for code in [45, 63, 154, 9999] {
            assert_eq!(explain_xid(code).0, Whose::Other, "{code}");
        }
    }

    #[test]
    fn exits_are_explained_where_there_is_something_to_say() {
        assert!(explain_exit(0, 125).unwrap().contains("out of memory"));
        assert!(explain_exit(139, 0).unwrap().contains("SIGSEGV"));
        assert_eq!(explain_exit(42, 0), None);
    }
}
