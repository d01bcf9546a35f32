//! Data about a node as plain types, and pure functions of them.
//!
//! A [`Snapshot`] describes a node at one point in time. Live (`railgate-probe`), recorded and simulated nodes
//! (`railgate-simulate`) have the same type, and are processed by the same code: `gate` judges a snapshot, `rails`
//! derives the wiring from it, `node-report` compares two. A failed read stays visible as [`Reading::Failed`]; it never
//! becomes a default, a zero or a healthy value.
//!
//! This crate uses no files, clock, processes or environment variables: `clippy.toml` forbids it.

mod cloud_maintenance;
mod compute_ports;
mod distance;
mod drive_health;
pub mod duration_text;
mod extras;
mod fabric;
mod fabric_details;
mod finding;
mod gamma;
mod gpu;
mod gpu_details;
mod gpu_places;
mod gpu_samples;
mod gpu_self_tested;
mod host;
mod identity;
mod job;
mod job_gpus;
mod job_outputs;
mod job_processes;
mod job_state;
pub mod kernel_lines;
mod kernel_log;
mod mttf;
mod net;
mod oom;
mod optic;
mod part;
mod pattern;
mod pci;
mod plan;
mod profile;
mod rail_map;
mod rank_process;
mod reading;
mod self_tested;
mod site_check;
pub mod slurm_cgroup;
mod snapshot;
mod statistics;
mod system;
mod time;
mod topology_file;
mod verdict;
mod xid;
pub mod xid_catalogue;

pub use cloud_maintenance::{CloudEvent, CloudProvider, CloudService};
pub use compute_ports::{Because, ComputePort, ComputePorts, NotCompute, compute_ports, port_state_text};
pub use drive_health::DriveHealth;
pub use extras::{Extra, Extras, FollowUp};
pub use fabric::{Fabric, Hca, LinkLayer, PhysState, Port, PortState};
pub use fabric_details::{Gid, HcaDetails, Interface, PortDetails, roce_mtu};
pub use finding::{Class, Evidence, Finding, PREFLIGHT_CHECK, Severity};
pub use gamma::{gamma_quantile, ln_gamma};
pub use gpu::{Access, EccCounts, Gpu, GpuProcess, Gpus, MemoryUse, NvLink, RecoveryAction, RowRemap};
pub use gpu_details::{GpuDetails, GpuFabric, LinkErrors, NvLinkErrors, Peer, RetiredPages, SramEcc};
pub use gpu_places::GpuPlace;
pub use gpu_samples::{GpmMetric, GpuCounters, GpuField, GpuSample, GpuSamples, Watched, WatchedGpu};
pub use gpu_self_tested::{GpuSelfTest, GpuSelfTested, SelfTestLength, ValueCheck, WrongValue};
pub use host::{Host, Mount, MountProbe};
pub use job::{Allocation, GpuId, Job, JobRequest, Phase};
pub use job_gpus::{GpuInventory, JobGpus, KnownGpu, SampledGpu, SampledGpus};
pub use job_outputs::{JobOutput, JobOutputs};
pub use job_processes::{JobProcess, JobProcesses};
pub use job_state::job_has_ended;
pub use kernel_log::{ForgedLine, KernelLine, KernelLog, KernelMark, XidEvent};
pub use mttf::{Mttf, mttf};
pub use net::{BadNet, Net};
pub use oom::{OomKill, OomLimit, OomPlace, is_oom, oom_kills};
pub use optic::{Limits, Module, Monitor, Optic};
pub use part::{Part, PartName};
pub use pattern::fits_pattern;
pub use pci::{Pci, PciAddress, PciDevice, PciLink};
pub use plan::Plan;
pub use profile::{FabricProfile, GpuProfile, HostProfile, Profile, ProfileError, RailProfile, RecordedRate};
pub use rail_map::{Distance, LeftOut, Rail, RailGpu, RailMap, Setting};
pub use rank_process::{ProcessExit, RankProcess};
pub use reading::Reading;
pub use self_tested::SelfTested;
pub use site_check::{SiteCheck, SiteFinding, SiteOutcome, SiteRequest, is_site_check};
pub use snapshot::{Origin, SNAPSHOT_SCHEMA, Snapshot, UnixMillis};
pub use statistics::InterfaceStatistics;
pub use system::{BlockedProcess, Clock, Dimm, FileSystem, MemoryController, Nvme, Processes, Space, System};
pub use time::{parse_rfc3339, rfc3339};
pub use topology_file::{TopologyFile, TopologyRemark};
pub use verdict::{Action, Fitness, Sign, Verdict};
pub use xid::{SxidEvent, SxidSeverity};
