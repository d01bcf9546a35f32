//! Name, meaning for a job, and cause of each code.

use super::Owner::{self, Application, Hardware, Other};

/// Texts of one code, or of several that differ only in the number of an engine.
pub(super) struct Words {
    pub(super) code: u32,
    /// A few words, for a finding.
    pub(super) name: &'static str,
    /// A sentence without its full stop, for the owner of a job.
    pub(super) meaning: &'static str,
    pub(super) owner: Owner,
}

const fn words(code: u32, owner: Owner, name: &'static str, meaning: &'static str) -> Words {
    Words { code, name, meaning, owner }
}

/// A copy engine stops on a command of the program, or on memory that the program did not map.
const fn copy(code: u32, name: &'static str) -> Words {
    words(code, Application, name, "a copy engine of the GPU received invalid work")
}

const fn video(code: u32, name: &'static str) -> Words {
    words(code, Application, name, "a video or image engine of the GPU received invalid work")
}

const fn nvlink5(code: u32, name: &'static str) -> Words {
    words(code, Hardware, name, "an NVLink error")
}

const POWER: &str = "the GPU's power smoothing changed its state; work continues";
const GSP: &str = "the GPU's system processor (GSP) failed";
const COMMANDS: &str = "the program sent invalid commands";
const DRIVER: &str = "an internal event of the driver and the GPU's firmware; work continues";

/// By code. A code that is missing here is not used by any GPU of the catalogue, and has only its mnemonic.
pub(super) const WORDS: &[Words] = &[
    words(8, Application, "GPU stopped processing", "a kernel ran longer than the driver waits"),
    words(11, Application, "invalid push buffer", COMMANDS),
    words(
        13,
        Application,
        "graphics engine exception",
        "a kernel raised an exception: an index out of bounds, an illegal instruction",
    ),
    words(14, Application, "injected channel error", "a program injected an error as a test"),
    words(25, Application, "invalid push buffer stream", COMMANDS),
    words(
        31,
        Application,
        "GPU memory page fault",
        "a kernel accessed an address outside its memory: a bad pointer",
    ),
    words(32, Application, "corrupted push buffer", "the program's command stream was invalid"),
    words(37, Other, "driver firmware error", DRIVER),
    words(38, Other, "driver firmware error", DRIVER),
    copy(39, "copy engine 0 exception"),
    copy(40, "copy engine 1 exception"),
    copy(41, "copy engine 2 exception"),
    words(
        43,
        Application,
        "channel reset, application fault",
        "the program's own error stopped its work on the GPU; the GPU is fine",
    ),
    words(44, Other, "fault during context switch", "the driver stopped the work after another error"),
    words(
        45,
        Other,
        "channels removed, follows another error",
        "the work was cleaned up because the program ended or another error came first",
    ),
    words(46, Hardware, "GPU stopped processing", "the GPU stopped processing"),
    video(47, "video encoder 0 (NVENC) error"),
    words(48, Hardware, "double-bit ECC error", "an uncorrectable memory error (double bit)"),
    words(54, Hardware, "auxiliary power not connected", "auxiliary power is missing"),
    words(
        60,
        Application,
        "security engine (SEC2) exception",
        "the security engine of the GPU received invalid work",
    ),
    words(62, Hardware, "micro-controller (PMU) halt", "the GPU's power controller halted"),
    words(63, Other, "row remap recorded", "a memory row was remapped, or will be at the next reset"),
    words(64, Hardware, "row remap failed to record", "a memory row could not be remapped"),
    video(65, "video encoder 1 (NVENC) error"),
    words(66, Other, "illegal register access by driver", DRIVER),
    words(67, Other, "illegal access by driver", DRIVER),
    video(68, "video decoder 0 (NVDEC) exception"),
    words(69, Application, "graphics engine class error", "the program's command stream was invalid"),
    copy(70, "copy engine 3 exception"),
    copy(71, "copy engine 4 exception"),
    copy(72, "copy engine 5 exception"),
    video(73, "video encoder 2 (NVENC) error"),
    words(74, Hardware, "NVLink error", "an NVLink error"),
    copy(75, "copy engine 6 exception"),
    copy(76, "copy engine 7 exception"),
    copy(77, "copy engine 8 exception"),
    words(
        78,
        Other,
        "vGPU failed to start",
        "a virtual GPU did not start: its driver does not match the host's",
    ),
    words(79, Hardware, "fallen off the bus", "the GPU fell off the bus"),
    words(80, Application, "corrupted data sent to GPU", "the program's command stream was invalid"),
    video(82, "image engine 0 (NVJPG) error"),
    video(83, "video decoder 1 (NVDEC) error"),
    video(84, "video decoder 2 (NVDEC) error"),
    copy(85, "copy engine 9 exception"),
    video(86, "optical flow engine 0 (OFA) exception"),
    video(88, "video decoder 3 (NVDEC) error"),
    video(89, "video decoder 4 (NVDEC) error"),
    words(92, Other, "high single-bit ECC rate", "many corrected memory errors"),
    words(93, Other, "InfoROM wear limit", "the GPU's InfoROM refused a write; work continues"),
    words(94, Hardware, "contained ECC error", "an uncorrectable memory error, contained to this program"),
    words(95, Hardware, "uncontained ECC error", "an uncorrectable memory error that was not contained"),
    video(96, "video decoder 5 (NVDEC) error"),
    video(97, "video decoder 6 (NVDEC) error"),
    video(98, "video decoder 7 (NVDEC) error"),
    video(99, "image engine 1 (NVJPG) error"),
    video(100, "image engine 2 (NVJPG) error"),
    video(101, "image engine 3 (NVJPG) error"),
    video(102, "image engine 4 (NVJPG) error"),
    video(103, "image engine 5 (NVJPG) error"),
    video(104, "image engine 6 (NVJPG) error"),
    video(105, "image engine 7 (NVJPG) error"),
    words(106, Other, "SMBPBI test message", "a test message of the management bus"),
    words(107, Other, "SMBPBI test message, silent", "a test message of the management bus"),
    words(
        108,
        Other,
        "NVLink remote translation error",
        "an NVLink access was refused: a bad address of the program, or a fault of the peer GPU",
    ),
    words(
        109,
        Other,
        "context switch timeout",
        "the GPU did not switch contexts in time: a kernel that does not yield, or the GPU",
    ),
    words(110, Hardware, "security fault", "a security fault of the GPU"),
    words(119, Hardware, "GSP RPC timeout", GSP),
    words(120, Hardware, "GSP error", GSP),
    words(121, Other, "chip-to-chip link error", "a corrected error on the link between CPU and GPU"),
    copy(126, "copy engine 10 exception"),
    copy(127, "copy engine 11 exception"),
    copy(128, "copy engine 12 exception"),
    copy(129, "copy engine 13 exception"),
    copy(130, "copy engine 14 exception"),
    copy(131, "copy engine 15 exception"),
    copy(132, "copy engine 16 exception"),
    copy(133, "copy engine 17 exception"),
    copy(134, "copy engine 18 exception"),
    copy(135, "copy engine 19 exception"),
    words(136, Hardware, "NVLink training failed", "an NVLink error"),
    words(
        137,
        Other,
        "NVLink privilege error",
        "an NVLink access was refused: a bad address of the program, or a fault of the peer GPU",
    ),
    video(139, "optical flow engine 1 (OFA) error"),
    words(
        140,
        Hardware,
        "unrecovered ECC error",
        "an uncorrectable memory error that could not be recovered",
    ),
    words(141, Other, "CUDA fast path error", "the driver left a fast path; work continues"),
    video(142, "video encoder 3 (NVENC) error"),
    words(143, Hardware, "GPU initialisation error", "the GPU could not be initialised"),
    nvlink5(144, "NVLink SAW error"),
    nvlink5(145, "NVLink RLW error"),
    nvlink5(146, "NVLink TLW error"),
    nvlink5(147, "NVLink TREX error"),
    nvlink5(148, "NVLink NVLPW error"),
    nvlink5(149, "NVLink NETIR error"),
    nvlink5(150, "NVLink MSE error"),
    words(
        151,
        Hardware,
        "key rotation error",
        "the GPU could not change its encryption keys (confidential computing)",
    ),
    words(152, Other, "DLA memory error", DRIVER),
    words(153, Other, "DLA timeout", DRIVER),
    words(154, Other, "recovery action changed", "the driver reports which recovery the GPU needs"),
    words(155, Hardware, "NVLink taken down by software", "an NVLink was taken down"),
    words(
        156,
        Hardware,
        "resource retirement",
        "a faulty part of the GPU is taken out of use at the next reset",
    ),
    words(
        157,
        Other,
        "resource retirement failed",
        "a faulty part of the GPU could not be taken out of use: none is left to replace it",
    ),
    words(158, Hardware, "fatal timeout", "the GPU stopped answering the driver"),
    words(
        159,
        Other,
        "CHI non-data error",
        "an access over the link between CPU and GPU failed: a bad address of the program, or the link",
    ),
    words(160, Other, "channel retirement", "the driver took a channel of the GPU out of use"),
    words(161, Other, "channel retirement failed", "the driver could not take a channel out of use"),
    words(162, Other, "power smoothing on", POWER),
    words(163, Other, "power smoothing off", POWER),
    words(164, Other, "power smoothing near end of life", POWER),
    words(165, Other, "power smoothing at end of life", POWER),
    words(
        166,
        Other,
        "NVLink traffic before encryption",
        "an NVLink carried data before its encryption was set up (confidential computing)",
    ),
    words(167, Hardware, "PCIe fatal timeout", "the GPU stopped answering over PCIe"),
    words(
        168,
        Hardware,
        "protected memory reduced",
        "the GPU has less memory: errors in the part that its firmware needs",
    ),
    words(169, Hardware, "micro-controller (SEC2) halt", "the GPU's security controller halted"),
    words(
        170,
        Other,
        "NVLink encryption interrupt",
        "an NVLink reported an event of its encryption (confidential computing)",
    ),
    words(171, Hardware, "uncorrectable DRAM error", "an uncorrectable error in the GPU's memory"),
    words(172, Hardware, "uncorrectable SRAM error", "an uncorrectable error in the GPU's caches"),
    words(173, Hardware, "chip-to-chip link fatal error", "the link between CPU and GPU failed"),
    words(174, Other, "process killed with its channel", "the driver ended a process with its channel"),
    words(175, Other, "memory subsystem error", "the GPU's memory subsystem reported an error"),
    words(176, Other, "correctable PCIe error", "a corrected error on the PCIe link of the GPU"),
];
