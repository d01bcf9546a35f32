//! `railgate doctor` on a correct installation, and on faulty ones.

use std::collections::BTreeSet;

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};

fn found(cluster: &Cluster, machine: &str) -> Result<(i32, BTreeSet<String>)> {
    let said = cluster.root().on(machine).run(&["railgate", "doctor", "--format", "json"])?;
    let diagnosis: serde_json::Value = serde_json::from_str(&said.stdout)?;
    let findings = diagnosis["findings"].as_array().into_iter().flatten();
    let wrong = findings.filter(|finding| finding["level"] != "note");
    let rules = wrong.filter_map(|finding| finding["rule"].as_str()).map(str::to_owned);
    Ok((said.code, rules.collect()))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn doctor_accepts_a_correct_installation_and_names_each_fault() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "3600");
    builder.slurm_conf("HealthCheckNodeState", "IDLE").test(|cluster| {
        for machine in ["gn1", "ctl"] {
            assert_eq!(found(cluster, machine)?, (0, BTreeSet::new()), "{machine}");
        }
        let said = cluster.root().on("gn1").run(&["railgate", "doctor"])?;
        assert!(
            said.stdout.contains("gn1: compute node, Slurm ") && said.stdout.contains("nothing is wrong")
        );
        assert!(said.stdout.contains("jobs are checked, and an unfit node is drained"), "{said}");
        let hints = cluster.root().on("gn1").run(&["railgate", "doctor", "--fix-hints"])?.ok()?;
        for line in
            ["PrologFlags=Alloc,Contain,DeferBatch\n", "JobFileAppend=1\n", "optional /usr/lib/railgate"]
        {
            assert!(hints.contains(line), "{hints}");
        }

        // All machines see faults in shared directories; only one sees those in its own.
        cluster.root().run(&["chmod", "0755", "/shared/railgate"])?.ok()?;
        cluster.root().run(&["chown", "root", "/var/lib/railgate/controller"])?.ok()?;
        cluster.root().run(&["rm", "/etc/slurm/epilog.d/95-railgate"])?.ok()?;
        cluster.write(
            "ctl",
            "/etc/slurm/plugstack.conf",
            "required /usr/lib/railgate/spank_railgate.so\n",
        )?;
        cluster.root().on("gn1").run(&["chmod", "0777", "/etc/railgate"])?.ok()?;
        let rules = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let both = ["report-dir"];
        assert_eq!(found(cluster, "ctl")?, (1, rules(&[&both[..], &["ledger"]].concat())));
        // The health check's script is in a directory that any user can write. So is the configuration, which is therefore
        // refused together with its setting of the report directory.
        let node = ["configuration", "epilog-hook", "plugstack", "owners", "periodic-check"];
        assert_eq!(found(cluster, "gn1")?, (1, rules(&node)));

        cluster.write("gn2", "/etc/railgate/railgate.toml", "[gate]\nmodus = 'enforce'\n")?;
        assert!(found(cluster, "gn2")?.1.contains("configuration"));
        cluster.stop_slurmctld()?;
        let (code, rules) = found(cluster, "ctl")?;
        assert!(code == 1 && rules.contains("slurm-answers"), "{rules:?}");
        Ok(())
    })
}
