use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use railgate_model::{DriveHealth, MemoryController, Nvme, Reading, System};

use super::{Tree, text};

/// The parts of the host that the tree can show. Root cannot make a folder that cannot be listed, so failed lists are left out.
pub(in crate::hardware) fn shown(system: &System) -> System {
    fn known<T: Clone>(reading: &Reading<T>) -> Reading<T> {
        reading.known().map_or(Reading::Unsupported, |value| Reading::Known(value.clone()))
    }
    System {
        nvmes: known(&system.nvmes),
        memory: known(&system.memory),
        cpus: known(&system.cpus),
        governors: known(&system.governors),
        modules: known(&system.modules),
        services: known(&system.services),
        ..System::default()
    }
}

impl Tree {
    /// Writes the host's part of sysfs: drives, memory controllers, processors, modules, services.
    pub(super) fn system(&self, system: &System) -> Result<()> {
        self.each("class/nvme", &system.nvmes, |drive| drive.name.clone(), Tree::drive)?;
        let controllers = "devices/system/edac/mc";
        self.each(controllers, &system.memory, |controller| controller.name.clone(), Tree::controller)?;
        let cpus = self.root.join("devices/system/cpu");
        let online = |count: u32| format!("0-{}", count.saturating_sub(1));
        self.put(&cpus.join("online"), text(&system.cpus.clone().map(online)))?;
        let governors = system.governors.clone().map(|counts| {
            let each = counts.into_iter().flat_map(|(name, count)| vec![name; count as usize]);
            (0..).zip(each).collect::<Vec<(u32, String)>>()
        });
        self.each(
            "devices/system/cpu/cpufreq",
            &governors,
            |(at, _)| format!("policy{at}"),
            |tree, dir, (_, name)| tree.put(&dir.join("scaling_governor"), Some(name.clone())),
        )?;
        self.each("module", &system.modules, String::clone, |_, _, _| Ok(()))?;
        let service = |name: &String| format!("{name}.service");
        self.each("fs/cgroup/system.slice", &system.services, service, |tree, dir, _| {
            tree.put(&dir.join("cgroup.events"), Some("populated 1\nfrozen 0".to_owned()))
        })
    }

    fn drive(&self, dir: &Path, drive: &Nvme) -> Result<()> {
        let millidegrees = |degrees: f64| format!("{:.0}", degrees * 1000.0);
        let sensor = dir.join("hwmon0");
        self.put(&dir.join("model"), text(&drive.model))?;
        self.put(&dir.join("serial"), text(&drive.serial))?;
        self.put(&dir.join("firmware_rev"), text(&drive.firmware))?;
        self.put(&dir.join("state"), text(&drive.state))?;
        self.put(&sensor.join("temp1_input"), text(&drive.temperature_c.clone().map(millidegrees)))?;
        self.put(&sensor.join("temp1_crit"), text(&drive.critical_c.clone().map(millidegrees)))?;
        self.put(&sensor.join("temp1_alarm"), text(&drive.alarm.clone().map(|on| u8::from(on).to_string())))?;
        self.put_bytes(&dir.join("smart_log"), drive.health.known().map(smart_log))
    }

    fn controller(&self, dir: &Path, controller: &MemoryController) -> Result<()> {
        let number = |count: &Reading<u64>| text(&count.clone().map(|count| count.to_string()));
        self.put(&dir.join("ce_count"), number(&controller.corrected))?;
        self.put(&dir.join("ue_count"), number(&controller.uncorrected))?;
        for (at, dimm) in controller.dimms.iter().enumerate() {
            let dir = dir.join(format!("dimm{at}"));
            self.put(&dir.join("dimm_label"), Some(dimm.label.clone()))?;
            self.put(&dir.join("size"), number(&dimm.size_mib))?;
            self.put(&dir.join("dimm_ce_count"), number(&dimm.corrected))?;
            self.put(&dir.join("dimm_ue_count"), number(&dimm.uncorrected))?;
        }
        let gone = dir.join(format!("dimm{}", controller.dimms.len()));
        if gone.exists() { Ok(fs::remove_dir_all(gone)?) } else { Ok(()) }
    }

    /// A folder that contains exactly one folder for each item; no folder if the machine has none.
    fn each<T>(
        &self,
        folder: &str,
        all: &Reading<Vec<T>>,
        name: impl Fn(&T) -> String,
        fill: impl Fn(&Tree, &Path, &T) -> Result<()>,
    ) -> Result<()> {
        let at = self.root.join(folder);
        let Reading::Known(all) = all else {
            return match fs::remove_dir_all(&at) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
                _ => Ok(()),
            };
        };
        fs::create_dir_all(&at).with_context(|| at.display().to_string())?;
        let names: BTreeSet<String> = all.iter().map(&name).collect();
        for entry in fs::read_dir(&at)? {
            let entry = entry?;
            if !names.contains(entry.file_name().to_string_lossy().as_ref()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        for one in all {
            let dir = at.join(name(one));
            fs::create_dir_all(&dir)?;
            fill(self, &dir, one)?;
        }
        Ok(())
    }
}

/// The SMART log page in the drive's format.
fn smart_log(health: &DriveHealth) -> Vec<u8> {
    let mut page = vec![0; 512];
    page[0] = health.critical_warning;
    page[3] = health.spare_percent;
    page[4] = health.spare_threshold_percent;
    page[5] = health.used_percent;
    page[160..168].copy_from_slice(&health.media_errors.to_le_bytes());
    page
}
