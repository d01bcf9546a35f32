//! A file system that can be frozen. A process that writes to it sleeps in the kernel and ignores SIGKILL.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::Cluster;
use super::sandbox::Guard;

/// A frozen file system; dropping it thaws it.
#[derive(Debug)]
pub struct Frozen(#[expect(dead_code, reason = "it works by being dropped")] Guard);

impl Cluster {
    /// Mounts an ext4 of its own at `place` on a node and freezes it.
    ///
    /// # Errors
    /// A step failed; loop devices and e2fsprogs are required.
    pub fn frozen_disk(&self, node: &str, place: &str) -> Result<Frozen> {
        let root = self.root().on(node).deadline(Duration::from_secs(30));
        let image = format!("/run/disk{}.img", place.replace('/', "-"));
        // mount finds a free loop device itself, but only among existing device files.
        let prepare = format!(
            "set -e; [ -e /dev/loop-control ] || {{ mknod /dev/loop-control c 10 237; \
             for n in $(seq 0 63); do mknod /dev/loop$n b 7 $n; done; }}; \
             truncate -s 8M {image}; mkfs.ext4 -q {image}; mkdir -p {place}; mount -o loop {image} {place}"
        );
        root.run(&["sh", "-c", &prepare])?.ok()?;
        // The guard starts before the freeze, so that the file system is thawed even if this process is killed in between.
        let guard = Guard::thaw(&self.path(node, place)?)?;
        root.run(&["fsfreeze", "--freeze", place])?.ok().context("freezing")?;
        Ok(Frozen(guard))
    }
}
