use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The network transport or plugin that carries NCCL's data between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Net {
    /// NCCL's built-in verbs transport.
    #[default]
    Ib,
    /// aws-ofi-nccl, over libfabric. It has its own settings and writes NCCL's topology.
    Ofi,
    /// HPC-X's plugin, with or without SHARP; it reads NCCL's variables for verbs.
    Sharp,
    /// Another plugin, or sockets chosen by the user. The variables that it reads are not known.
    Other,
}

/// A text that is not the name of a network plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}': expected ib, ofi, sharp or other")]
pub struct BadNet(String);

impl Net {
    /// Returns the name in configuration and other files: `ib`, `ofi`, `sharp`, `other`.
    pub fn as_str(self) -> &'static str {
        match self {
            Net::Ib => "ib",
            Net::Ofi => "ofi",
            Net::Sharp => "sharp",
            Net::Other => "other",
        }
    }

    /// Derives the plugin from a job's variables (`now` returns the value of one); `None` if they do not determine it.
    /// The order is NCCL's: `NCCL_NET` selects the transport, `NCCL_NET_PLUGIN` the library, and without both NCCL
    /// loads the first `libnccl-net.so` of `LD_LIBRARY_PATH`. Directories in that path are recognised only by known
    /// names.
    pub fn told(now: impl Fn(&str) -> Option<Vec<u8>>) -> Option<Net> {
        let said = |name: &str| {
            let value = now(name)?;
            let text = String::from_utf8_lossy(&value).to_ascii_lowercase();
            (!text.is_empty()).then_some(text)
        };
        if let Some(net) = said("NCCL_NET") {
            return Some(match net.as_str() {
                "ib" => Net::Ib,
                "socket" => Net::Other,
                _ => by_name(&net).unwrap_or(Net::Other),
            });
        }
        if let Some(plugins) = said("NCCL_NET_PLUGIN") {
            let first = plugins.split(',').find(|name| !name.is_empty())?;
            return Some(if first == "none" { Net::Ib } else { by_name(first).unwrap_or(Net::Other) });
        }
        said("LD_LIBRARY_PATH")?.split(':').find_map(by_name)
    }
}

/// Recognises a transport name or a directory, for example `AWS Libfabric`, `IBext_v8`, `/opt/amazon/ofi-nccl/lib` or
/// `/opt/hpcx/nccl_rdma_sharp_plugin/lib`.
fn by_name(name: &str) -> Option<Net> {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if has(&["libfabric", "ofi-nccl", "ofi_nccl", "nccl-ofi", "aws-ofi", "net-ofi"]) || name == "ofi" {
        Some(Net::Ofi)
    } else if has(&["ibext", "nccl_rdma_sharp", "nccl-rdma-sharp"]) || name == "sharp" {
        Some(Net::Sharp)
    } else {
        None
    }
}

/// Deserialises the list of plugins to which a setting is limited. An unknown name, from a later release, becomes
/// [`Net::Other`]: dropping it could leave an empty list, and the setting would apply to every plugin.
///
/// # Errors
/// Returns an error if the value is not a list of texts.
pub(crate) fn known_or_other<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Net>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    Ok(names.iter().map(|name| name.parse().unwrap_or(Net::Other)).collect())
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Net {
    type Err = BadNet;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Net::Ib, Net::Ofi, Net::Sharp, Net::Other];
        all.into_iter().find(|net| net.as_str() == text).ok_or_else(|| BadNet(railgate_text::clip(text, 40)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_evaluated_in_nccls_order() {
        let told = |pairs: &[(&str, &str)]| {
            Net::told(|name| {
                pairs.iter().find(|(have, _)| *have == name).map(|(_, value)| value.as_bytes().to_vec())
            })
        };
        let plugin = |value: &str| told(&[("NCCL_NET_PLUGIN", value)]);
        let path = |value: &str| told(&[("LD_LIBRARY_PATH", value)]);
        let net = |value: &str| told(&[("NCCL_NET", value), ("NCCL_NET_PLUGIN", "none")]);
        assert_eq!(net("IB"), Some(Net::Ib));
        assert_eq!(net("Socket"), Some(Net::Other));
        assert_eq!(net("AWS Libfabric"), Some(Net::Ofi));
        assert_eq!(net("IBext_v8"), Some(Net::Sharp));
        assert_eq!(net("UCX"), Some(Net::Other));
        assert_eq!(net(""), Some(Net::Ib), "an empty NCCL_NET names nothing");
        assert_eq!(plugin("none"), Some(Net::Ib));
        assert_eq!(plugin("ofi"), Some(Net::Ofi));
        assert_eq!(plugin("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"), Some(Net::Sharp));
        assert_eq!(plugin("libnccl-net-fastrak.so,ofi"), Some(Net::Other), "the first counts");
        assert_eq!(plugin(""), None);
        assert_eq!(path("/usr/lib:/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/efa/lib"), Some(Net::Ofi));
        assert_eq!(path("/opt/hpcx/nccl_rdma_sharp_plugin/lib:/usr/lib"), Some(Net::Sharp));
        assert_eq!(path("/usr/lib:/home/sharp/lib:/opt/hpcx/sharp/lib"), None);
        assert_eq!(told(&[]), None);
    }

    #[test]
    fn each_name_survives_a_round_trip() {
        for net in [Net::Ib, Net::Ofi, Net::Sharp, Net::Other] {
            assert_eq!(net.as_str().parse(), Ok(net));
        }
        assert!("IB".parse::<Net>().is_err());
    }
}
