//! Another health check, called by railgate with `--then`: each keeps its own drains and does not touch those of the other. Also
//! what `sinfo` prints of both.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);

/// Marks nodes as LBNL's node health check does: it rewrites a reason that is not its own unchanged, and clears only its own.
/// With `RAILGATE_NHC`, a checkout of the real one, that program runs instead.
const STAND_IN: &str = r#"#!/bin/bash
line=($(sinfo -hn "$(hostname)" -o '%t %E'))
note="${line[*]:1}"
if [ -e /run/nhc.fault ]; then
    case "$note" in none | NHC:*) note="NHC: check_fs_mount: /work is not mounted" ;; esac
    exec scontrol update State=DRAIN NodeName="$(hostname)" Reason="$note"
fi
case "$note" in NHC:*) exec scontrol update State=RESUME NodeName="$(hostname)" ;; esac
"#;
const NHC_CONF: &str = r#"* || { [[ ! -e /run/nhc.fault ]] || die 1 "check_fs_mount: /work is not mounted"; }
"#;
const COUNTED: &str = "#!/bin/sh\necho ran >> /run/nhc.ran\nexec /usr/sbin/nhc\n";
const PERIODIC: &str =
    "#!/bin/sh\nexec /usr/bin/railgate check --phase periodic --drain --then /usr/sbin/counted-nhc\n";

fn install_nhc(cluster: &Cluster) -> Result<()> {
    let put = |path: &str, text: &str| cluster.write("gn1", path, text);
    put("/usr/sbin/counted-nhc", COUNTED)?;
    let Some(checkout) = std::env::var_os("RAILGATE_NHC").map(PathBuf::from) else {
        return put("/usr/sbin/nhc", STAND_IN);
    };
    put("/usr/sbin/nhc", &std::fs::read_to_string(checkout.join("nhc"))?)?;
    put("/etc/nhc/nhc.conf", NHC_CONF)?;
    for (from, to) in [("scripts", "/etc/nhc/scripts"), ("helpers", "/usr/lib/nhc")] {
        for file in std::fs::read_dir(checkout.join(from))? {
            let file = file?;
            let text = std::fs::read_to_string(file.path())?;
            put(&format!("{to}/{}", file.file_name().to_string_lossy()), &text)?;
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn nhc_and_railgate_keep_their_own_drains() -> Result<()> {
    let builder = Builder::new(1).slurm_conf("HealthCheckInterval", "2");
    let builder = builder.config("breaker = { max_percent = 100.0, partition_max_percent = 100.0 }")?;
    builder.test(|cluster| {
        let sh = |node: &str, script: &str| cluster.root().on(node).run(&["sh", "-ec", script])?.ok();
        install_nhc(cluster)?;
        cluster.write("gn1", "/etc/railgate/periodic.sh", PERIODIC)?;
        // Waits for this many further runs, so that the state has survived both checks.
        let rounds = |count: usize| {
            let ran = || {
                Ok::<_, anyhow::Error>(
                    cluster.read("gn1", "/run/nhc.ran").unwrap_or_default().lines().count(),
                )
            };
            let begin = ran()?;
            poll::until(MINUTE, "slurmd to run both checks", || Ok((ran()? >= begin + count).then_some(())))
        };
        rounds(1)?;
        assert!(!cluster.node("gn1")?.drained());

        // NHC drains, then railgate finds a fault: the reason stays, and railgate reports who drained the node.
        sh("gn1", "touch /run/nhc.fault")?;
        let node = cluster.wait_node("gn1", "drained", MINUTE, |node| node.drained())?;
        assert_eq!(node.reason(), "NHC: check_fs_mount: /work is not mounted");
        cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        rounds(2)?;
        assert_eq!(cluster.node("gn1")?.reason(), "NHC: check_fs_mount: /work is not mounted");
        let readmit =
            |words: &[&str]| cluster.root().on("gn1").run(&[&["railgate", "readmit", "gn1"], words].concat());
        let refused = readmit(&[])?;
        assert!(
            refused.code == 1 && refused.stdout.contains("drained by others: NHC: check_fs_mount"),
            "{refused}"
        );
        assert!(
            cluster.alice().run(&["railgate", "nodes"])?.ok()?.contains("nodes drained by railgate: 0 of ")
        );

        // NHC clears its own drain; the next check run drains for railgate's fault.
        sh("gn1", "rm /run/nhc.fault")?;
        let ours =
            |reason: &str| reason.starts_with("railgate: gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot [");
        let node = cluster.wait_node("gn1", "railgate's", MINUTE, |node| ours(node.reason()))?;
        let reason = node.reason().to_owned();
        // A fault of NHC comes and goes: railgate's reason stays.
        sh("gn1", "touch /run/nhc.fault")?;
        rounds(2)?;
        sh("gn1", "rm /run/nhc.fault")?;
        rounds(2)?;
        let node = cluster.node("gn1")?;
        assert!(node.drained() && node.reason() == reason, "{}", node.reason());

        // `sinfo` prints twenty characters by default, the complete reason with the format in the docs.
        let shown = |words: &[&str]| cluster.alice().run(words)?.ok();
        assert!(shown(&["sinfo", "-hR"])?.starts_with("railgate: gpu-lost@3 "));
        let page = include_str!("../../../docs/oncall.md");
        assert!(page.contains("sinfo -R -o '%120E %19H %N'"));
        let line = shown(&["sinfo", "-hR", "-o", "%120E %19H %N"])?;
        assert!(line.starts_with(&format!("{reason:<120} ")) && line.trim_end().ends_with(" gn1"), "{line}");
        let ignored = cluster.alice().env("SINFO_FORMAT", "%120E %19H %N").run(&["sinfo", "-hR"])?.ok()?;
        assert!(
            ignored.starts_with("railgate: gpu-lost@3 "),
            "the page says that it does nothing: {ignored}"
        );

        cluster.hardware("gn1")?.heal()?;
        // A check run that started before must not drain the node that is resumed now.
        rounds(2)?;
        readmit(&[])?.ok()?;
        rounds(2)?;
        assert!(!cluster.node("gn1")?.drained());
        Ok(())
    })
}
