//! Hangs that show only over all nodes of a job: on each node by itself, ranks merely wait or merely rest.

use anyhow::Result;
use railgate_tests::cluster::Builder;
use railgate_tests::hang::RANK;
use railgate_tests::poll;

use crate::guard::{CONFIG, log, until_named, with_gpm};
use crate::training::{MINUTE, one_line};

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_whose_ranks_all_rest_is_named_by_the_jobs_first_node() -> Result<()> {
    let builder = Builder::new(4).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let submit = |nodes: &str, quit: &str| {
            let words = ["-N2", "-n4", "--ntasks-per-node=2", "-w", nodes, "--gres=gpu:2", "-o", "log.%j"];
            alice.clone().env("PLAY", "sleeps").env("QUIT", quit).sbatch(&words, "srun rank")
        };
        let (rests, broken) = (submit("gn[1-2]", "2,3")?, submit("gn[3-4]", "none")?);
        poll::until(MINUTE, "the ranks to work", || {
            Ok(log(cluster, broken).contains("at work").then_some(()))
        })?;
        cluster.hardware("gn4")?.inject("ib-port-down@mlx5_1")?;

        let said = until_named(cluster, rests)?;
        let what = "ranks 2 and 3 on gn2 are asleep (hrtimer_nanosleep) and compute nothing, and 2 GPUs wait";
        assert!(
            said.starts_with("railgate: the job has been hung on gn1 since ") && said.contains(what),
            "{said}"
        );
        let said = until_named(cluster, broken)?;
        assert!(said.contains("all 4 GPUs wait, and port mlx5_1:1 is DOWN on gn4"), "{said}");

        // The partial report that names it follows the line in the log; the stacks of both nodes are there, grouped.
        let why = poll::until(MINUTE, "the hang and the stacks", || {
            let text = one_line(&alice.run(&["railgate", "why", &rests.to_string()])?.ok()?);
            let both = ["; ranks 0-1 on gn1 in <module> (rank:", "; ranks 2-3 on gn2 in <module> (rank:"];
            let is_whole = |text: &String| {
                text.contains("ANSWER it has been hung since ") && both.iter().any(|part| text.contains(part))
            };
            Ok(Some(text).filter(is_whole))
        })?;
        assert!(why.contains(&format!("{what} (gn1) SIGN no GPU of the job's 2 nodes worked for ")), "{why}");
        assert!(
            why.contains("SIGN the GPUs of gn2 are idle, and its ranks neither compute nor transfer data"),
            "{why}"
        );

        // All go on, and the hang is over.
        for id in [rests, broken] {
            cluster.write("ctl", &format!("/home/rgalice/goes-on.{id}"), "")?;
        }
        cluster.wait_job(broken, &["COMPLETED"], MINUTE)?;
        alice.run(&["scancel", &rests.to_string()])?.ok()?;
        cluster.wait_job(rests, &["CANCELLED"], MINUTE)?;
        Ok(())
    })
}
