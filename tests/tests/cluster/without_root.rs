//! The command line as used by ordinary users.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::Builder;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn users_can_read_their_own_data_and_change_nothing() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "0");
    builder.test(|cluster| {
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let id = alice.sbatch(&["-N2", "--gres=gpu:8", "-o", "log"], "srun true")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        let id = id.to_string();

        let fit = alice.run(&["railgate", "check", "--simulate", "h100-sxm"])?;
        assert!(fit.code == 0 && fit.stdout.contains("fit"), "{fit}");
        let unfit = alice.run(&["railgate", "check", "--simulate", "h100-sxm:gpu-lost@3"])?;
        assert!(unfit.code == 1 && unfit.stdout.contains("gpu-lost@3"), "{unfit}");
        for words in [&["rails"][..], &["rails", "--simulate", "h100-sxm"], &["check"], &["snapshot"]] {
            let said = alice.clone().on("gn1").run(&[&["railgate"], words].concat())?;
            assert!(said.code == 0 && said.stdout.contains("mlx5_0") != (words == ["check"]), "{said}");
            // Not a word about the history, which only root may read.
            assert_eq!(said.stderr, "", "{said}");
        }

        let own = alice.run(&["railgate", "report", &id])?;
        assert!(own.code == 0 && own.stdout.contains("gn1") && own.stdout.contains("mlx5_0"), "{own}");
        alice.run(&["railgate", "report", &id, "--format", "html", "--out", "page.html"])?.ok()?;
        assert!(cluster.output("/home/rgalice/page.html").is_some_and(|page| page.contains("</html>")));
        for format in ["text", "json", "html"] {
            let other = bob.run(&["railgate", "report", &id, "--format", format])?;
            assert_eq!((other.code, other.stdout.as_str()), (3, ""), "{other}");
            assert!(
                other.stderr.contains("belongs to rgalice: its report is for them and for root"),
                "{other}"
            );
        }
        let place = format!("/shared/railgate/test/{id}");
        assert_ne!(bob.run(&["ls", &place])?.code, 0);
        assert_ne!(bob.clone().on("gn1").run(&["ls", "/var/lib/railgate/reports"])?.stdout, "gn1\n");

        // Commands that change something are refused.
        cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        for words in [&["check", "--drain"][..], &["pause", "--for", "1h"], &["resume"]] {
            let said = alice.clone().on("gn2").run(&[&["railgate"], words].concat())?;
            let refused = said.code == 2 && said.stderr.contains("ermission denied");
            let nothing_to_end = words == ["resume"] && said.code == 0;
            let kept_away = words == ["check", "--drain"] && said.stdout.contains("drain: nothing sent");
            assert!(refused || nothing_to_end || kept_away, "{said}");
        }
        assert!(!cluster.node("gn2")?.drained());
        assert!(cluster.read("gn2", "/var/lib/railgate/pause.json").is_err());
        Ok(())
    })
}
