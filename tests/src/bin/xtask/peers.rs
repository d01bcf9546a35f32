//! `cargo xtask bench peers`: railgate's gate, Meta's GCM and LBNL's NHC on one simulated node, run alternately.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Cluster, Session};

use super::bench::{memory_mib, put_clock, spread, table, timed};
use super::build;

const GCM: &str = "gpucm==0.0.2";
/// Path of the simulated hardware on the node.
const HARDWARE: &str = "/opt/railgate-test";
const OURS: [&str; 4] = ["railgate", "check", "--phase", "prolog"];

/// The closest equivalent in GCM: four of its checks in one process, with the same simulated NVML.
const GCM_CHECKS: [&str; 4] =
    ["gpu_num", "ecc_uncorrected_volatile_total", "row_remap_pending", "row_remap_failed"];

/// The closest equivalent in NHC: state and rate of each port, the root file system, processors and memory. nvidia-smi, which NHC
/// would run for the GPUs, is not available and is replaced by a program that does nothing.
fn nhc_conf() -> (String, usize) {
    let ports = (0..8).map(|port| format!("check_hw_ib 400 mlx5_{port}:1"));
    let others = [
        "check_nvsmi_healthmon",
        "check_fs_mount_rw -f /",
        "check_hw_physmem 1 1000TB",
        "check_hw_swap 0 1000TB",
    ];
    let checks: Vec<String> = ports.chain(others.map(str::to_owned)).collect();
    let lines: Vec<String> = checks.iter().map(|check| format!("* || {check}")).collect();
    (format!("* || export NVIDIA_SMI_HEALTHMON=/bin/true\n{}\n", lines.join("\n")), checks.len())
}

/// `nhc` is a checkout of github.com/mej/nhc; without it the row of NHC is left out.
pub(super) fn run(cluster: &Cluster, count: u32, nhc: Option<&Path>) -> Result<()> {
    put_clock(cluster, "gn1")?;
    let root = cluster.root().on("gn1");
    let gcm = install_gcm()?;
    let gcm = cluster
        .path("gn1", "/opt/gcm")
        .and_then(|place| copy(&gcm, &place))
        .map(|()| "/opt/gcm/bin/python3")?;
    let checks = GCM_CHECKS.iter().flat_map(|check| ["-c", check]);
    let gcm_words: Vec<&str> =
        [gcm, "/opt/gcm/bin/health_checks", "check-nvidia-smi", "--log-folder", "/tmp"]
            .into_iter()
            .chain(checks)
            .chain(["--gpu_num", "8", "--ecc_uncorrected_volatile_threshold", "0", "test", "nagios"])
            .collect();
    let with_nvml = root.clone().env("LD_LIBRARY_PATH", HARDWARE);
    let nhc_words = nhc.map(|source| put_nhc(cluster, &root, source)).transpose()?;

    let (mut ours, mut theirs, mut shell) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=count {
        let one = timed(&root, 1, &OURS)?;
        let other = timed(&with_nvml, 1, &gcm_words)?;
        let third = nhc_words.as_ref().map(|words| timed(&root, 1, words)).transpose()?;
        // The first round warms the caches.
        if round > 0 {
            ours.extend(one);
            theirs.extend(other);
            shell.extend(third.unwrap_or_default());
        }
    }
    table(
        "A node's checks, on one simulated node of 8 GPUs and 8 HCAs, run alternately",
        &[
            ("`railgate check --phase prolog`", &ours),
            ("GCM, four NVML checks in one process", &theirs),
            ("NHC", &shell),
        ],
    );
    let list = root.run(&["railgate", "check", "--list", "--format", "json"])?.ok()?;
    let list: serde_json::Value = serde_json::from_str(&list)?;
    let number = list["checks"].as_array().map_or(0, Vec::len);
    let each = |times: &[f64], checks: usize| spread(times).median / checks as f64;
    let own = each(&ours, number);
    println!(
        "\n{number} checks of railgate, {own:.2} ms each; memory at most {:.1} MiB",
        memory_mib(&root, &OURS)?
    );
    println!(
        "GCM: {:.1} ms each, {:.0} times ours",
        each(&theirs, GCM_CHECKS.len()),
        each(&theirs, GCM_CHECKS.len()) / own
    );
    if !shell.is_empty() {
        let checks = nhc_conf().1;
        println!(
            "NHC: {:.1} ms each, {:.1} times railgate's; in total {:.1} times, without nvidia-smi",
            each(&shell, checks),
            each(&shell, checks) / own,
            spread(&shell).median / spread(&ours).median
        );
    }
    Ok(())
}

/// Installs GCM into the target folder, once.
fn install_gcm() -> Result<PathBuf> {
    let place = build::folder(true)?.join("peers/gcm");
    if place.join("bin/health_checks").exists() {
        return Ok(place);
    }
    println!("installing {GCM}");
    let pip = place.join("bin/pip").display().to_string();
    for words in [
        ["python3", "-m", "venv", "--copies", &place.display().to_string()].as_slice(),
        &[&pip, "install", "-q", GCM],
    ] {
        let (program, rest) = words.split_first().context("no command")?;
        let status = Command::new(program).args(rest).status().with_context(|| (*program).to_owned())?;
        ensure!(status.success(), "{} ended with {status}", words.join(" "));
    }
    Ok(place)
}

fn put_nhc(cluster: &Cluster, root: &Session<'_>, source: &Path) -> Result<Vec<&'static str>> {
    copy(source, &cluster.path("gn1", "/opt/nhc")?)?;
    cluster.write("gn1", "/opt/nhc.conf", &nhc_conf().0)?;
    // NHC reads the real /sys and requires the version of the user space driver there.
    cluster.write("gn1", &format!("{HARDWARE}/sysfs/class/infiniband_mad/abi_version"), "5\n")?;
    root.run(&["mount", "--bind", &format!("{HARDWARE}/sysfs"), "/sys"])?.ok()?;
    Ok(vec![
        "bash",
        "/opt/nhc/nhc",
        "-c",
        "/opt/nhc.conf",
        "-l",
        "/dev/null",
        "INCDIR=/opt/nhc/scripts",
        "HELPERDIR=/opt/nhc/helpers",
        "MARK_OFFLINE=0",
    ])
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().context("cp")?;
    ensure!(status.success(), "{} cannot be copied", from.display());
    Ok(())
}
