//! What the machine says: the bottom room that every other one stands on.
//!
//! A [`Snapshot`] is plain data. Live, recorded and simulated nodes produce the same type, and from
//! there on the code is the same: `gate` judges it, `rails` wires from it, `stats` compares two.
//! This room only reads. A read that failed stays visible as [`Reading::Failed`]; it never becomes a
//! default, a zero or a healthy value.
//!
//! [`FileLock`] is here too, because every other crate stands on this one: it is the only way railgate locks a file.

pub mod child;
mod drive_log;
pub mod duration_text;
mod fabric;
mod fabric_details;
mod fabric_manager;
mod file_lock;
mod finding;
mod gpu;
mod gpu_details;
mod gpu_processes;
mod gpu_watch;
mod host;
mod identity;
mod ioctl;
mod job;
mod job_group;
mod job_processes;
pub mod kernel_lines;
mod kernel_log;
mod kernel_origin;
mod live;
mod nvml;
mod oom;
mod optics;
mod part;
mod pci;
mod profile;
mod profile_record;
mod profiles;
mod rail_counters;
mod rail_map;
mod rdma_self_test;
pub mod readers;
mod reading;
mod recorded;
pub mod simulate;
mod site_check;
mod snapshot;
mod source;
mod statistics;
mod sysfs;
mod system;
mod time;
mod topology_file;
mod trust;
mod verdict;
mod xid;
pub mod xid_catalogue;
mod xid_watch;

pub use drive_log::DriveHealth;
pub use fabric::{Fabric, Hca, LinkLayer, PhysState, Port, PortState};
pub use fabric_details::{Gid, HcaDetails, Interface, PortDetails, roce_mtu};
pub use file_lock::FileLock;
pub use finding::{Class, Evidence, Finding, Severity};
pub use gpu::{Access, EccCounts, Gpu, GpuProcess, Gpus, MemoryUse, NvLink, RecoveryAction, RowRemap};
pub use gpu_details::{GpuDetails, GpuFabric, LinkErrors, NvLinkErrors, Peer, RetiredPages, SramEcc};
pub use gpu_watch::{GpuSample, GpuSamples, GpuWatch, Watched, WatchedGpu, own_memory_mib};
pub use host::{Host, Mount, MountProbe};
pub use job::{Allocation, GpuId, Job, JobRequest, Phase};
pub use job_group::{GroupUse, JobGroup};
pub use job_processes::{JobLook, JobProcess, JobProcesses, job_is_here, job_is_stopped, job_processes};
pub use kernel_log::{ForgedLine, KernelLine, KernelLog, KernelMark, XidEvent};
pub use live::{Request, live};
pub use oom::{OomKill, OomLimit, OomPlace, is_oom, oom_kills};
pub use optics::{Limits, Module, Monitor, Optic, module_of_dump, optics};
pub use part::{Part, PartName};
pub use pci::{Pci, PciAddress, PciDevice, PciLink};
pub use profile::{FabricProfile, GpuProfile, HostProfile, Profile, ProfileError, RailProfile};
pub use profile_record::{Recorded, record};
pub use profiles::toml_error;
pub use rail_counters::{RailTraffic, RailTrouble, rail_traffic, rail_trouble};
pub use rail_map::{Distance, LeftOut, Rail, RailGpu, RailMap, Setting};
pub use rdma_self_test::{SelfTested, rdma_self_test};
pub use reading::Reading;
pub use recorded::{RecordedError, recorded};
pub use site_check::{SiteCheck, SiteFinding, SiteOutcome, SiteRequest, is_site_check, site_checks};
pub use snapshot::{Origin, SNAPSHOT_SCHEMA, Snapshot, UnixMillis};
pub use source::SourceConfig;
pub use statistics::{InterfaceStatistics, interface_statistics};
pub use system::{BlockedProcess, Clock, Dimm, FileSystem, MemoryController, Nvme, Processes, Space, System};
pub use time::rfc3339;
pub use topology_file::{TopologyFile, TopologyRemark, read_topology_file};
pub use trust::{Untrusted, trusted};
pub use verdict::{Action, Fitness, Sign, Verdict};
pub use xid::{SxidEvent, SxidSeverity};
pub use xid_watch::XidWatch;
