//! NCCL's profiler plugin, from the site's policy to the report. A test program stands in for NCCL: it loads the plugins named in
//! its environment and runs fifty collectives.

use anyhow::{Context as _, Result};
use railgate_node_report::comm::Share;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::training::played_nccl;
use serde_json::Value;

use crate::templates::filled;
use crate::training::{MINUTE, one_line, report};

const OURS: &str = "/usr/lib/railgate/libnccl-profiler-railgate.so";

/// Arguments: NCCL's release as a number, and `crash` to end with a crash.
const PROGRAM: &str = r#"
import ctypes as c, os, signal, struct, sys
plugin = os.environ.get("NCCL_PROFILER_PLUGIN", "none")
print("has", plugin, "kept", os.environ.get("RAILGATE_KEPT", "nothing"))
if not plugin.startswith("/usr/lib/railgate/"):
    sys.exit(0)
os.environ["RAILGATE_TEST_NCCL"] = sys.argv[1]
nccl, plugin = c.CDLL("/shared/libnccl.so"), c.CDLL(plugin)
table = (c.c_void_p * 6).in_dll(plugin, "ncclProfiler_v5")
out, integer, handle = c.POINTER(c.c_void_p), c.POINTER(c.c_int), c.c_void_p()
init = c.CFUNCTYPE(c.c_int, out, c.c_uint64, integer, c.c_char_p, c.c_int, c.c_int, c.c_int, c.c_void_p)(table[1])
start = c.CFUNCTYPE(c.c_int, c.c_void_p, out, c.c_char_p)(table[2])
context, mask = c.c_void_p(), c.c_int()
init(c.byref(context), 0xabc, c.byref(mask), b"dp", 1, 2, 1, c.cast(nccl.playedLog, c.c_void_p))
names = [c.create_string_buffer(name) for name in (b"AllReduce", b"ncclFloat32", b"RING", b"SIMPLE")]
func, datatype, ring, simple = map(c.addressof, names)
for number in range(50):
    coll = struct.pack("QQi4xQQQQQi4xQBB6xQQQ", 2, 0, 1, number, func, 0, 0, 256, 0, datatype, 4, 16, ring, simple, 0)
    start(context, c.byref(handle), coll)
if sys.argv[-1] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
"#;

fn job(cluster: &Cluster, node: &str, words: &[&str], call: &str) -> Result<(u32, String)> {
    let words = [&["-w", node, "--gres=gpu:1", "-o", "log.%j"], words].concat();
    let id = cluster.alice().sbatch(&words, &format!("#!/bin/bash\n{call}\n"))?;
    cluster.wait_job(id, &["COMPLETED", "FAILED"], MINUTE)?;
    Ok((id, cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default()))
}

fn communication(cluster: &Cluster, id: u32) -> Result<Value> {
    let text = cluster.alice().run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
    let mut report: Value = serde_json::from_str(&text)?;
    Ok(report["attempts"][0]["nodes"][0]["communication"].take())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn site_policy_and_user_settings_decide_about_the_profiler() -> Result<()> {
    let of = |share: &str| format!("[stats]\nnccl_profiler = '{share}'\n");
    let cluster = Builder::new(3).config_of("gn1", &of("all"))?.config_of("gn2", &of("off"))?;
    cluster.config_of("gn3", &of("50%"))?.test(|cluster| {
        played_nccl(&cluster.path("ctl", "/shared/libnccl.so")?)?;
        cluster.write("ctl", "/shared/nccl.py", PROGRAM)?;
        let call = "srun python3 /shared/nccl.py 22809";
        let has = |plugin: &str| format!("has {plugin} kept ");

        let (id, log) = job(cluster, "gn1", &[], call)?;
        assert!(log.contains(&has(OURS)), "{log}");
        let found = communication(cluster, id)?;
        let row = &found["collectives"][0];
        assert_eq!((row["op"].as_str(), row["calls"].as_u64()), (Some("AllReduce"), Some(50)), "{found}");
        assert_eq!(found["processes"][0]["nccl"], "2.28.9", "{found}");

        // In a release that crashes with profilers, the plugin is loaded but requests no events from NCCL.
        let (id, _) = job(cluster, "gn1", &[], "srun python3 /shared/nccl.py 23003")?;
        let found = communication(cluster, id)?;
        assert_eq!(found["collectives"].as_array().map(Vec::len), Some(0), "{found}");
        assert!(found["processes"][0]["limit"].as_str().is_some_and(|why| why.contains("crash")), "{found}");

        // A plugin that the user sets is kept, and so is the user's setting of none.
        let own = format!("export NCCL_PROFILER_PLUGIN=/shared/mine.so; {call}");
        let (id, log) = job(cluster, "gn1", &[], &own)?;
        assert!(log.contains(&has("/shared/mine.so")) && log.contains("NCCL_PROFILER_PLUGIN"), "{log}");
        assert_eq!(communication(cluster, id)?, Value::Null);
        let (_, log) = job(cluster, "gn1", &["--railgate-profiler=off"], call)?;
        assert!(log.contains(&has("none")), "{log}");

        // After a task has crashed, the report mentions that the plugin was loaded.
        let (id, _) = job(cluster, "gn1", &[], &format!("{call} crash"))?;
        let text = one_line(&report(&cluster.alice(), id)?);
        assert!(
            text.contains("a task crashed (signal 11); railgate's NCCL profiler plugin was loaded in 1 of"),
            "{text}"
        );
        assert_eq!(communication(cluster, id)?["collectives"][0]["calls"], 50);

        // If the site does not enable it, users can request it, as the templates do.
        let (_, log) = job(cluster, "gn2", &[], call)?;
        assert!(log.contains(&has("none")), "{log}");
        let template = filled(cluster, "torchrun-single", &["nodes=1"])?;
        let alice = cluster
            .alice()
            .env("TRAIN", "python3 /shared/nccl.py 22809")
            .env("CHECKPOINTS", "/home/rgalice/kept");
        let id = alice.sbatch(&["-w", "gn2", "--gres=gpu:1", "-c1", "-o", "template.log"], &template)?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        let log = cluster.output("/home/rgalice/template.log").unwrap_or_default();
        assert!(log.contains(&has(OURS)), "{log}");

        // For a share of the jobs: all nodes choose the same jobs.
        let half = Share::try_from("50%".to_owned()).ok().context("a share")?;
        let ids: Vec<(u32, String)> =
            (0..6).map(|_| job(cluster, "gn3", &[], call)).collect::<Result<_>>()?;
        for (id, log) in ids {
            assert!(log.contains(&has(if half.takes(id) { OURS } else { "none" })), "{id}: {log}");
        }
        Ok(())
    })
}
