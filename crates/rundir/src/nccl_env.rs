use std::fmt::Write as _;

use railgate_model::Net;

use crate::task_env::{name_ok, value_ok};

/// Values that depend on NCCL's release, for the environment plugin that NCCL itself loads: `nccl.env`.
///
/// After a first line `railgate-nccl-env 1`, one line each: `default` (set only if the user has not) or `force`; the
/// first release; the first release to which it no longer applies; the network plugins, separated by commas; and
/// `NAME=VALUE`. A `-` means no restriction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclEnv {
    /// In any order.
    pub settings: Vec<ReleaseSetting>,
}

/// One variable for some releases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseSetting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether it replaces the user's value.
    pub force: bool,
    /// First release to which it applies: 2.28.9 is `[2, 28, 9]`.
    pub from: Option<[u8; 3]>,
    /// First release to which it no longer applies.
    pub below: Option<[u8; 3]>,
    /// Network plugins to which it applies; empty: all.
    pub nets: Vec<Net>,
}

const HEAD: &str = "railgate-nccl-env 1";
/// Most settings; the plugin reads no more.
const MOST: usize = 64;

impl NcclEnv {
    /// Formats the file's text. Settings that the format cannot represent are left out and returned as the second
    /// value.
    pub fn to_text(&self) -> (String, Vec<&ReleaseSetting>) {
        let mut text = String::from(HEAD);
        text.push('\n');
        let mut left_out = Vec::new();
        let mut lines = 0;
        for setting in &self.settings {
            let fits = name_ok(&setting.name)
                && setting.name.len() <= 128
                && value_ok(&setting.value)
                && setting.value.len() <= 4096;
            if !fits || lines == MOST {
                left_out.push(setting);
                continue;
            }
            lines += 1;
            let mode = if setting.force { "force" } else { "default" };
            let nets = if setting.nets.is_empty() {
                "-".to_owned()
            } else {
                setting.nets.iter().map(|net| net.as_str()).collect::<Vec<_>>().join(",")
            };
            let (from, below) = (release(setting.from), release(setting.below));
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{mode} {from} {below} {nets} {}={}", setting.name, setting.value);
        }
        (text, left_out)
    }
}

fn release(version: Option<[u8; 3]>) -> String {
    version.map_or_else(|| "-".to_owned(), |[major, minor, patch]| format!("{major}.{minor}.{patch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_the_format_cannot_represent_are_left_out() {
        let good = ReleaseSetting {
            name: "NCCL_IB_HCA".to_owned(),
            value: "=mlx5_0:1:0".to_owned(),
            force: false,
            from: Some([2, 30, 7]),
            below: None,
            nets: vec![Net::Ib],
        };
        let bad = [
            ReleaseSetting { name: "a b".to_owned(), ..good.clone() },
            ReleaseSetting { value: "x\nforce - - - LD_PRELOAD=/tmp/x".to_owned(), ..good.clone() },
            ReleaseSetting { value: "x".repeat(4097), ..good.clone() },
        ];
        let mut settings = bad.to_vec();
        settings.extend(std::iter::repeat_n(good.clone(), MOST + 1));
        let env = NcclEnv { settings };
        let (text, left_out) = env.to_text();
        assert_eq!(left_out.len(), bad.len() + 1);
        assert_eq!(text.lines().nth(1), Some("default 2.30.7 - ib NCCL_IB_HCA==mlx5_0:1:0"));
        assert_eq!(text.lines().count(), MOST + 1);
    }
}
