//! Another health check beside railgate, called by it with `--then`: each keeps its own drains and leaves the other's alone.
//! And what `sinfo` shows of them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

const MINUTE: Duration = Duration::from_secs(60);

/// As LBNL's node health check marks nodes: it keeps a note that is not its own, writing it once more, and takes back its own
/// alone. `RAILGATE_NHC` names a checkout of the real one, which then takes its place.
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
fn a_node_health_check_beside_railgate_keeps_its_drains_and_railgate_its_own() -> Result<()> {
    let builder = Builder::new(1).slurm_conf("HealthCheckInterval", "2");
    let builder = builder.config("breaker = { max_percent = 100.0, partition_max_percent = 100.0 }")?;
    builder.test(|cluster| {
        let sh = |node: &str, script: &str| cluster.root().on(node).run(&["sh", "-ec", script])?.ok();
        install_nhc(cluster)?;
        cluster.write("gn1", "/etc/railgate/periodic.sh", PERIODIC)?;
        // So many runs from now on: what stands then has stood against both.
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

        // Its drain, and a fault of ours comes: the reason stays, and railgate says whose node it is.
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
        assert!(cluster.alice().run(&["railgate", "nodes"])?.ok()?.contains("railgate holds 0 of "));

        // It takes its own drain back; the next look finds ours.
        sh("gn1", "rm /run/nhc.fault")?;
        let ours =
            |reason: &str| reason.starts_with("railgate: gpu-lost@3: 0000:61:00.0 off bus, Xid 79; reboot [");
        let node = cluster.wait_node("gn1", "railgate's", MINUTE, |node| ours(node.reason()))?;
        let reason = node.reason().to_owned();
        // A fault of its own comes, and goes: our words stay.
        sh("gn1", "touch /run/nhc.fault")?;
        rounds(2)?;
        sh("gn1", "rm /run/nhc.fault")?;
        rounds(2)?;
        let node = cluster.node("gn1")?;
        assert!(node.drained() && node.reason() == reason, "{}", node.reason());

        // What people see of it: by default twenty characters, by the page's line all of them.
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
        // A check that looked before that must not drain what is given back now.
        rounds(2)?;
        readmit(&[])?.ok()?;
        rounds(2)?;
        assert!(!cluster.node("gn1")?.drained());
        Ok(())
    })
}
