use std::fmt;

/// The edition of NVIDIA's spreadsheet from which the rows were generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edition {
    /// File name.
    pub file: &'static str,
    /// Last change, from the properties of the workbook: `2025-09-30`.
    pub modified: &'static str,
    /// SHA-256 of the file.
    pub sha256: &'static str,
}

/// GPU families, one for each column of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Ampere: A100, A800, A30.
    A100,
    /// Hopper: H100, H200, H20, GH200.
    H100,
    /// Blackwell: B200, B300.
    B100,
    /// Grace Blackwell: GB200, GB300.
    Gb200,
}

/// A resolution bucket: the catalogue's immediate or investigatory action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the catalogue's own identifiers; `Display` prints them")]
pub enum Bucket {
    CheckApp,
    CheckMechanicals,
    CheckNvlinkFailureFlow,
    CheckUvm,
    ContactSupport,
    Ignore,
    IgnoreSympathetic,
    Informational,
    InvestigateHost,
    InvestigateLinkSi,
    InvestigateLinkSiAndCables,
    InvestigatePeerDevice,
    InvestigateSw,
    InvestigateSwUser,
    InvestigateSwUserLinkSi,
    ReportIssue,
    ResetGpu,
    RestartApp,
    RestartBm,
    RestartVm,
    SympatheticReportSolo,
    UpdateSwfw,
    WorkflowNvlink5Err,
    WorkflowNvlinkErr,
    WorkflowXid13,
    WorkflowXid31,
    WorkflowXid45,
    WorkflowXid48,
    Xid137Flow,
    Xid154,
    Xid154Eval,
}

impl Bucket {
    /// All buckets, with the catalogue's identifiers.
    pub const ALL: &[(Bucket, &str)] = &[
        (Bucket::CheckApp, "CHECK_APP/CUDA"),
        (Bucket::CheckMechanicals, "CHECK_MECHANICALS"),
        (Bucket::CheckNvlinkFailureFlow, "CHECK_NVLINK_FAILURE_FLOW"),
        (Bucket::CheckUvm, "CHECK_UVM"),
        (Bucket::ContactSupport, "CONTACT_SUPPORT"),
        (Bucket::Ignore, "IGNORE"),
        (Bucket::IgnoreSympathetic, "IGNORE (sympathetic)"),
        (Bucket::Informational, "N/A Informational only regarding another Xid"),
        (Bucket::InvestigateHost, "INVESTIGATE_HOST"),
        (Bucket::InvestigateLinkSi, "INVESTIGATE_LINK_SI"),
        (Bucket::InvestigateLinkSiAndCables, "INVESTIGATE_LINK_SI_AND_CABLES"),
        (Bucket::InvestigatePeerDevice, "INVESTIGATE_PEER_DEVICE"),
        (Bucket::InvestigateSw, "INVESTIGATE_SW"),
        (Bucket::InvestigateSwUser, "INVESTIGATE_SW_USER"),
        (Bucket::InvestigateSwUserLinkSi, "INVESTIGATE_SW_USER_LINK_SI"),
        (Bucket::ReportIssue, "REPORT_ISSUE (if seen >1 per day)"),
        (Bucket::ResetGpu, "RESET_GPU"),
        (Bucket::RestartApp, "RESTART_APP"),
        (Bucket::RestartBm, "RESTART_BM"),
        (Bucket::RestartVm, "RESTART_VM"),
        (Bucket::SympatheticReportSolo, "SYMPATHETIC_REPORT_SOLO"),
        (Bucket::UpdateSwfw, "UPDATE_SWFW"),
        (Bucket::WorkflowNvlink5Err, "WORKFLOW_NVLINK5_ERR"),
        (Bucket::WorkflowNvlinkErr, "WORKFLOW_NVLINK_ERR"),
        (Bucket::WorkflowXid13, "WORKFLOW_XID_13"),
        (Bucket::WorkflowXid31, "WORKFLOW_XID_31"),
        (Bucket::WorkflowXid45, "WORKFLOW_XID_45"),
        (Bucket::WorkflowXid48, "WORKFLOW_XID_48"),
        (Bucket::Xid137Flow, "XID_137_FLOW"),
        (Bucket::Xid154, "XID_154"),
        (Bucket::Xid154Eval, "XID_154_EVAL"),
    ];
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Bucket::ALL.iter().find(|(bucket, _)| bucket == self).map(|(_, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

/// Whether the driver also logs Xid 154 when it logs this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetsXid154 {
    /// Since this driver release (565).
    SinceDriver(u32),
    /// In all drivers that have this Xid.
    Always,
}

/// A row of the sheet "Xids".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The code.
    pub code: u32,
    /// The driver's identifier, for example `ROBUST_CHANNEL_GPU_ECC_DBE`.
    pub mnemonic: &'static str,
    /// GPU families that report it; empty for a code that is no longer used.
    pub families: &'static [Family],
    /// Immediate action; `None` if the catalogue leaves the cell empty.
    pub immediate: Option<Bucket>,
    /// Investigatory action; `None` if the catalogue leaves the cell empty.
    pub investigatory: Option<Bucket>,
    /// Whether the driver changes its recovery action with it.
    pub sets_154: Option<SetsXid154>,
}

/// The extent of an NVLink 5 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The link keeps working.
    NonFatal,
    /// The link is lost; the GPU has to be drained and reset.
    LinkFatal,
    /// All links of the GPU are lost.
    Fatal,
}

/// The usual origin of an NVLink 5 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Hardware.
    Hw,
    /// Software, possibly that of a user.
    Sw,
    /// Hardware or software.
    HwSw,
    /// Firmware.
    Fw,
    /// Not in the catalogue.
    Unknown,
}

/// Required bits of the first number in an NVLink 5 line (`intrInfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The bits to compare.
    pub mask: u32,
    /// Their values.
    pub bits: u32,
}

impl Pattern {
    /// Returns whether the number matches.
    pub fn matches(self, intr_info: u32) -> bool {
        intr_info & self.mask == self.bits
    }
}

/// Another action if further bits are set ("Action 2").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Drivers before 575.
    pub v1: Pattern,
    /// Driver 575 and later.
    pub v2: Pattern,
    /// Immediate action.
    pub immediate: Bucket,
}

/// A row of the sheet "Xid 144-150 Decode".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvlink5Row {
    /// Xid, 144 to 150.
    pub code: u32,
    /// Name of the unit in lines of drivers before 575.
    pub unit_v1: &'static str,
    /// Name of the unit in lines of driver 575 and later.
    pub unit_v2: &'static str,
    /// `intrInfo` of drivers before 575.
    pub v1: Pattern,
    /// `intrInfo` of driver 575 and later.
    pub v2: Pattern,
    /// Values of the second number (error status); empty if any value matches.
    pub statuses: &'static [u32],
    /// Extent of the error.
    pub reach: Reach,
    /// Usual origin.
    pub origin: Origin,
    /// Immediate action.
    pub immediate: Bucket,
    /// Another action if further bits are set.
    pub promotion: Option<Promotion>,
    /// Investigatory action.
    pub investigatory: Bucket,
}
