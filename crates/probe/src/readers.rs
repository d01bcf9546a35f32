//! What the kernel's own files say. Each reader takes its root from configuration, answers with plain
//! data, and may hang where the kernel hangs: [`crate::live()`] runs each in a child with a deadline.

mod clock;
mod fabric;
mod fabric_details;
mod host;
mod kernel_log;
mod pci;
mod processes;
mod system;

pub(crate) use fabric::counter;
pub use fabric::fabric_read;
pub use host::{boot_id_read, host_read};
pub use kernel_log::kernel_log_read;
pub use pci::pci_read;
