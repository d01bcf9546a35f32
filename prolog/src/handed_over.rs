//! Converts the NCCL settings that `rails` chose to the files from which tasks and NCCL read them.

use std::path::{Path, PathBuf};

use railgate_model::Setting;
use railgate_node_report::StatsConfig;
use railgate_rails::{NcclRange, NcclVersion, RailsConfig};
use railgate_rundir::{NcclConf, NcclEnv, ProfilerChoice, ReleaseSetting, TaskSetting};

/// The site's configuration file for NCCL. Only root can write in /etc.
const SITE_CONF: &str = "/etc/nccl.conf";

/// The NCCL environment plugin, if it is installed.
pub(crate) fn env_plugin(config: &RailsConfig) -> Option<PathBuf> {
    Some(PathBuf::from(&config.env_plugin)).filter(|path| path.is_absolute() && path.is_file())
}

/// The NCCL profiler plugin, if it is installed and the job's owner or, by default, the site enables it for this job.
pub(crate) fn profiler(config: &StatsConfig, job: u32, asked: Option<ProfilerChoice>) -> Option<PathBuf> {
    let wanted = asked.map_or_else(|| config.nccl_profiler.takes(job), |choice| choice == ProfilerChoice::On);
    let path = PathBuf::from(&config.nccl_profiler_path);
    Some(path).filter(|path| wanted && path.is_absolute() && path.is_file())
}

/// Settings in the site's NCCL configuration file, as far as they are valid text.
pub(crate) fn site_conf() -> Vec<(String, String)> {
    let conf = NcclConf::read(Path::new(SITE_CONF)).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    conf.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// Settings for the SPANK plugin.
pub(crate) fn for_tasks(settings: &[Setting]) -> Vec<TaskSetting> {
    settings
        .iter()
        .filter(|setting| setting.nccl.is_none())
        .map(|setting| TaskSetting {
            name: setting.name.clone(),
            value: setting.value.clone(),
            force: setting.force,
            nets: setting.nets.clone(),
            with: setting.with.clone(),
        })
        .collect()
}

/// The file for the NCCL environment plugin; `None` if there are no settings that depend on NCCL's release. The
/// plugin uses the first line that applies, so the setting with the highest precedence comes first.
pub(crate) fn by_release(settings: &[Setting]) -> Option<String> {
    let entries = settings.iter().rev().filter_map(|setting| {
        let range: NcclRange = setting.nccl.as_ref()?.parse().ok()?;
        Some(ReleaseSetting {
            name: setting.name.clone(),
            value: setting.value.clone(),
            force: setting.force,
            from: release(range.from)?,
            below: release(range.below)?,
            nets: setting.nets.clone(),
        })
    });
    let env = NcclEnv { settings: entries.collect() };
    let (text, left_out) = env.to_text();
    for setting in left_out {
        tracing::warn!("{} is left out: no value for NCCL's environment plugin", setting.name);
    }
    (text.lines().count() > 1).then_some(text)
}

/// The outer `None`: NCCL cannot have such a release.
fn release(version: Option<NcclVersion>) -> Option<Option<[u8; 3]>> {
    let Some(NcclVersion { major, minor, patch }) = version else { return Some(None) };
    let byte = |number: u32| u8::try_from(number).ok();
    Some(Some([byte(major)?, byte(minor)?, byte(patch)?]))
}

#[cfg(test)]
mod tests {
    use railgate_model::Net;

    use super::*;

    fn setting(name: &str, value: &str, nccl: Option<&str>) -> Setting {
        Setting {
            name: name.to_owned(),
            value: value.to_owned(),
            nccl: nccl.map(str::to_owned),
            nets: vec![Net::Ib, Net::Sharp],
            ..Setting::default()
        }
    }

    #[test]
    fn settings_that_depend_on_the_release_go_to_the_other_file() {
        let settings = [
            setting("A", "1", None),
            setting("A", "2", Some(">=2.29.2")),
            setting("A", "3", Some("<2.30.7")),
        ];
        let tasks = for_tasks(&settings);
        assert_eq!((tasks.len(), tasks[0].value.as_str(), tasks[0].nets.len()), (1, "1", 2));
        let text = by_release(&settings).unwrap();
        assert_eq!(
            text,
            "railgate-nccl-env 1\ndefault - 2.30.7 ib,sharp A=3\ndefault 2.29.2 - ib,sharp A=2\n"
        );
        assert_eq!(by_release(&settings[..1]), None);
    }

    #[test]
    fn an_unknown_network_plugin_does_not_match_every_plugin() {
        let json =
            r#"{"name":"A","value":"1","force":false,"rule":"r","why":"w","source":"s","nets":["gin"]}"#;
        let setting: Setting = serde_json::from_str(json).unwrap();
        assert!(!setting.fits(Net::Ib));
        let settings = for_tasks(std::slice::from_ref(&setting));
        let (text, _) = railgate_rundir::TaskEnv { settings, ..Default::default() }.to_text();
        assert!(text.contains("default;net=other A=1"), "{text}");
        let text = by_release(&[Setting { nccl: Some(">=2.29.2".to_owned()), ..setting }]).unwrap();
        assert!(text.contains("default 2.29.2 - other A=1"), "{text}");
    }
}
