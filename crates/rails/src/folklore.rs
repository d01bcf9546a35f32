//! Variables that are common in launch scripts and that railgate never sets, with the reasons.

use serde::Serialize;

/// A variable that railgate never sets by default.
#[derive(Clone, Copy, Serialize)]
pub struct Folklore {
    /// The variable.
    pub variable: &'static str,
    /// The values in question, in words.
    pub values: &'static str,
    /// Why railgate does not set it.
    pub why: &'static str,
    /// Source of the reason.
    pub source: &'static str,
    #[serde(skip)]
    meant: fn(&str) -> bool,
}

impl std::fmt::Debug for Folklore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folklore")
            .field("variable", &self.variable)
            .field("values", &self.values)
            .finish_non_exhaustive()
    }
}

/// A variable of [`FOLKLORE`] that is set in an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FolkloreWarning {
    /// The variable.
    pub variable: String,
    /// Its value, with control characters replaced.
    pub value: String,
    /// Why it is harmful.
    pub why: &'static str,
    /// Source of the reason.
    pub source: &'static str,
}

impl std::fmt::Display for FolkloreWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}: {}", self.variable, self.value, self.why)
    }
}

fn any(_: &str) -> bool {
    true
}

/// Any value other than "off".
fn on(value: &str) -> bool {
    !matches!(value.trim(), "" | "0")
}

/// A list of names, unless it starts with `^` (all but these).
fn hcas(value: &str) -> Option<&str> {
    Some(value.strip_prefix('=').unwrap_or(value)).filter(|list| !list.starts_with('^') && !list.is_empty())
}

/// Whether the list ends with the name of a single device. `mlx5` is the driver and matches all of its devices.
fn one_device(list: &str) -> bool {
    list.ends_with(|c: char| c.is_ascii_digit()) && !matches!(list, "mlx4" | "mlx5")
}

/// Values that `NCCL_NET_GDR_LEVEL` accepts. NCCL ignores others without a message.
const LEVELS: &[&str] = &["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"];

/// The table; `railgate rails` prints it, and reports use it to warn about a job's variables.
pub static FOLKLORE: &[Folklore] = &[
    Folklore {
        variable: "NCCL_IB_HCA",
        values: "a single device (one HCA for each rank)",
        why: "ranks of one node must have the same list: with a device each, older NCCL fails to build its rings and \
              newer NCCL sends everything through one HCA. NCCL finds each GPU's rail by itself. Right only where \
              the node has one rail",
        source: "NVIDIA/nccl#1478; NCCL src/graph/rings.cc, src/graph/topo.cc",
        meant: |value| hcas(value).is_some_and(|list| !list.contains(',') && one_device(list)),
    },
    Folklore {
        variable: "NCCL_IB_HCA",
        values: "names without a leading '='",
        why: "without '=' names are prefixes: mlx5_1 takes mlx5_10 and mlx5_11 as well",
        source: "NCCL src/misc/utils.cc",
        meant: |value| !value.starts_with(['^', '=']) && value.split(',').any(one_device),
    },
    Folklore {
        variable: "NCCL_IB_GID_INDEX",
        values: "any (mostly 3)",
        why: "InfiniBand does not use it from 2.22 on. On RoCE NCCL finds the GID itself from 2.21 on, and one number \
              for all HCAs is right on one host and an error (modify_qp: Invalid argument) on the next",
        source: "NCCL src/transport/net_ib/connect.cc; NVIDIA/nccl#890",
        meant: any,
    },
    Folklore {
        variable: "NCCL_NET_GDR_LEVEL",
        values: "4, 5, SYS, or a word that NCCL does not know",
        why: "4 and 5 mean SYS: GPUDirect across sockets, which is slow and hides a wrong topology. The default (PXB) \
              is what the wiring supports. Misspelt words are ignored without a message",
        source: "NCCL src/graph/paths.cc",
        meant: |value| match value.trim().parse::<i64>() {
            Ok(level) => level >= 4,
            Err(_) => value == "SYS" || !LEVELS.contains(&value),
        },
    },
    Folklore {
        variable: "NCCL_ALGO",
        values: "any (mostly Tree or Ring)",
        why: "NCCL's tuner knows size and topology of each collective; one answer for all is wrong for most, and an \
              unknown word is an error from 2.24 on",
        source: "NCCL src/graph/tuning.cc",
        meant: any,
    },
    Folklore {
        variable: "NCCL_PROTO",
        values: "any",
        why: "as NCCL_ALGO; LL128 where the machine does not support it corrupts data",
        source: "NCCL src/graph/tuning.cc",
        meant: any,
    },
    Folklore {
        variable: "NCCL_MIN_NRINGS",
        values: "any (mostly 8)",
        why: "a name and a habit from 2018: takes streaming multiprocessors away from the model",
        source: "NCCL src/graph/connect.cc (still an alias of NCCL_MIN_NCHANNELS)",
        meant: any,
    },
    Folklore {
        variable: "NCCL_MIN_NCHANNELS",
        values: "any",
        why: "takes streaming multiprocessors away from the model; NCCL_MIN_CTAS replaced it in 2.17",
        source: "NCCL src/graph/connect.cc",
        meant: any,
    },
    Folklore {
        variable: "NCCL_NTHREADS",
        values: "any",
        why: "the default is the most there is",
        source: "NCCL src/graph/tuning.cc",
        meant: any,
    },
    Folklore {
        variable: "NCCL_PXN_DISABLE",
        values: "1",
        why: "PXN is how one list of rails serves every GPU of the node; without it traffic crosses rails",
        source: "NCCL src/graph/paths.cc",
        meant: on,
    },
    Folklore {
        variable: "NCCL_P2P_DISABLE",
        values: "1",
        why: "turns NVLink off: a test, never a tuning",
        source: "NCCL src/transport/p2p.cc",
        meant: on,
    },
    Folklore {
        variable: "NCCL_SHM_DISABLE",
        values: "1",
        why: "with NCCL_P2P_DISABLE it sends traffic within the node through the HCAs: a loopback test",
        source: "NCCL src/transport/shm.cc",
        meant: on,
    },
    Folklore {
        variable: "NCCL_IB_DISABLE",
        values: "1",
        why: "falls back to TCP, and hides that the fabric is broken",
        source: "NCCL src/transport/net_ib/init.cc",
        meant: on,
    },
    Folklore {
        variable: "NCCL_IB_TIMEOUT",
        values: "0, or above 22",
        why: "the default (20, about 30 s with 7 retries) outlives a flap; more delays the discovery of a dead peer \
              beyond the framework's own watchdog, 0 and 32 or more never end",
        source: "NCCL src/transport/net_ib; NCCL user guide, NCCL_IB_TIMEOUT",
        meant: |value| value.trim().parse::<i64>().is_ok_and(|value| value <= 0 || value > 22),
    },
    Folklore {
        variable: "NCCL_IB_RETRY_CNT",
        values: "0",
        why: "the first packet that is lost ends the job; the default (7) is the most there is",
        source: "NCCL user guide, NCCL_IB_RETRY_CNT",
        meant: |value| value.trim() == "0",
    },
    Folklore {
        variable: "NCCL_NET",
        values: "IB",
        why: "makes a wrong HCA list fatal rather than slow, and shuts out every external network plugin; only the \
              site knows whether one is used ([rails] set)",
        source: "NCCL src/plugin/net.cc",
        meant: |value| value == "IB",
    },
    Folklore {
        variable: "NCCL_TOPO_FILE",
        values: "a dump of NCCL_TOPO_DUMP_FILE",
        why: "a dump freezes what was true while it was taken: port speed, GPUDirect, SHARP. On bare metal the real \
              tree is better than any file",
        source: "NCCL src/graph/topo.cc (values of the file are never overwritten)",
        meant: |value| value.to_ascii_lowercase().contains("dump"),
    },
    Folklore {
        variable: "NCCL_IB_PCI_RELAXED_ORDERING",
        values: "0 or 1",
        why: "the default (2) finds out by itself. 1 is treated the same, and 0 costs bandwidth, most of all in virtual \
              machines",
        source: "NCCL src/transport/net_ib/init.cc; user guide",
        meant: |value| matches!(value.trim(), "0" | "1"),
    },
    Folklore {
        variable: "NCCL_IGNORE_CPU_AFFINITY",
        values: "1",
        why: "hides a wrong CPU binding of the job instead of mending it",
        source: "NCCL src/graph/topo.cc",
        meant: on,
    },
];

/// Returns the variables of `environment` that are in [`FOLKLORE`], in the order of the table.
pub fn folklore<N: AsRef<str>, V: AsRef<str>>(environment: &[(N, V)]) -> Vec<FolkloreWarning> {
    let mut warnings = Vec::new();
    for (name, value) in environment {
        let (name, value) = (name.as_ref(), value.as_ref());
        for row in FOLKLORE.iter().filter(|row| row.variable == name && (row.meant)(value)) {
            warnings.push(FolkloreWarning {
                variable: name.to_owned(),
                value: railgate_text::clip(value, 200),
                why: row.why,
                source: row.source,
            });
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::name_ok;

    #[test]
    fn every_row_of_the_table_is_complete() {
        for row in FOLKLORE {
            assert!(name_ok(row.variable) && !row.why.is_empty() && !row.source.is_empty(), "{row:?}");
        }
    }

    /// Each variable has a rule, or a reason for having none.
    #[test]
    fn every_common_variable_has_a_rule_or_a_reason() {
        for name in [
            "IB_HCA",
            "SOCKET_IFNAME",
            "NET_GDR_LEVEL",
            "CROSS_NIC",
            "IB_TC",
            "IB_SL",
            "IB_QPS_PER_CONNECTION",
            "IB_GID_INDEX",
            "IB_ADDR_RANGE",
            "IB_TIMEOUT",
            "IB_RETRY_CNT",
            "IB_ADAPTIVE_ROUTING",
            "IB_PCI_RELAXED_ORDERING",
            "NET_MERGE_LEVEL",
            "TOPO_FILE",
            "RAS_ADDR",
            "DEBUG",
            "DEBUG_FILE",
            "PROFILER_PLUGIN",
            "PXN_DISABLE",
            "IGNORE_CPU_AFFINITY",
            "ALGO",
            "MIN_NRINGS",
            "SHM_DISABLE",
        ] {
            let name = format!("NCCL_{name}");
            let ruled = crate::RULES.iter().any(|rule| rule.variable == name);
            assert!(ruled || FOLKLORE.iter().any(|row| row.variable == name), "{name}");
        }
    }

    #[test]
    fn only_the_harmful_values_are_reported() {
        let count = |name: &str, value: &str| folklore(&[(name, value)]).len();
        for (name, value) in [
            ("NCCL_IB_HCA", "=mlx5_3:1"),
            ("NCCL_IB_HCA", "mlx5_0,mlx5_1"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("NCCL_NET_GDR_LEVEL", "5"),
            ("NCCL_NET_GDR_LEVEL", "pix"),
            ("NCCL_ALGO", "Tree"),
            ("NCCL_MIN_NRINGS", "8"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_IB_TIMEOUT", "0"),
        ] {
            assert_eq!(count(name, value), 1, "{name}={value}");
        }
        assert_eq!(count("NCCL_IB_HCA", "mlx5_3"), 2);
        for (name, value) in [
            ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
            ("NCCL_IB_HCA", "^=mlx5_8"),
            ("NCCL_IB_HCA", "mlx5"),
            ("NCCL_NET_GDR_LEVEL", "PIX"),
            ("NCCL_SHM_DISABLE", "0"),
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_DEBUG", "INFO"),
        ] {
            assert_eq!(count(name, value), 0, "{name}={value}");
        }
    }

    #[test]
    fn control_characters_in_warnings_are_replaced() {
        let warnings = folklore(&[("NCCL_ALGO".to_owned(), "Tree\x1b[31m".to_owned())]);
        assert!(!warnings[0].to_string().contains('\x1b'));
    }
}
