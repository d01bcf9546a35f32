//! Evidence that a hung job supplies itself, through NCCL's RAS and PyTorch's flight recorder: valid, forged, and endless.

use anyhow::Result;
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};
use railgate_tests::hang::RANK;
use railgate_tests::poll;

use crate::guard::{CONFIG, until_named, with_gpm};
use crate::training::{MINUTE, one_line, samplers};

/// Stands in for NCCL and PyTorch in each task, as `$SAYS` has it: a release of NCCL whose recorded answers are sent, with PyTorch's
/// record for 2.28.9; `nothing`; `lies`; `torn` (an answer that ends early); `mute` (NCCL that accepts and does not reply).
const LIBRARIES: &str = r#"#!/usr/bin/python3
import os, pickle, socket, sys, time
rank, says = os.environ.pop("SLURM_PROCID"), os.environ["SAYS"]
recorded = "/usr/local/share/ras." + says
replies = open(recorded if os.path.exists(recorded) else "/usr/local/share/ras.2.28.9", "rb").read().split(b"\n", 3)
if says == "torn":
    replies[-1] = replies[-1][:-200]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
dump = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank
def serve():
    host, port = os.environ["NCCL_RAS_ADDR"].split(":")
    with socket.create_server((host, int(port))) as server:
        client, _ = server.accept()
        commands = client.makefile("rb")
        while says == "mute" and commands.readline():
            pass
        for reply in replies:
            commands.readline()
            client.sendall(reply + b"\n")
        while says == "lies":
            client.sendall(b'{"communicators": [' * 10000)
        client.close()
class Calls:
    def __reduce__(self):
        return (os.system, ("touch ~/called",))
if rank == "0" and says != "nothing" and os.fork() == 0:
    serve()
    os._exit(0)
if says == "lies":
    # The first rank's pipe leads to a file of its own, the other's record calls a program; and processes come and go.
    if rank == "0":
        open(os.path.expanduser("~/precious"), "w").write("as it was")
        os.symlink(os.path.expanduser("~/precious"), pipe)
    for _ in range(30):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
if not os.path.lexists(pipe):
    os.mkfifo(pipe)
if says == "2.28.9" or says == "lies" and rank == "1":
    open(pipe).readline()
    frames = [{"name": "all_reduce", "filename": "/opt/lib/python3.12/site-packages/torch/distributed/d.py", "line": 3068},
              {"name": "step", "filename": "/home/a/train.py", "line": 87}]
    entry = {"frames": frames, "process_group": ("0", "default_pg"), "collective_seq_id": 7, "is_p2p": False,
             "profiling_name": "nccl:all_reduce", "input_sizes": [[16]], "input_dtypes": ["Float"], "state": "scheduled"}
    record = {"version": "2.10", "entries": [Calls() if says == "lies" else entry]}
    with open(dump, "wb") as file:
        pickle.dump(record, file, 2)
"#;
/// What NCCL answers to the commands before the one for JSON, and then what this release has answered.
macro_rules! recorded {
    ($answer:literal) => {
        concat!(
            "SERVER PROTOCOL 2\nOK\nOK\n",
            include_str!(concat!("../../../crates/stacks/src/ras/answers/", $answer, ".json"))
        )
    };
}

/// Recorded conversations, and what the report says of each.
const RECORDED: [(&str, &str, &str); 4] = [
    // 2.27 has no JSON: the whole conversation.
    (
        "2.27.7",
        include_str!("../../../crates/stacks/src/ras/answers/2.27.7-rank-gone.txt"),
        "no answer: this release of NCCL has no JSON",
    ),
    (
        "2.28.9",
        recorded!("2.28.9-rank-gone"),
        "rank 1 of the 2 in communicator 366e9b51f4946a81 (process 893 on 192.0.2.2) does not answer",
    ),
    (
        "2.29.7",
        recorded!("2.29.7-rank-gone"),
        "rank 1 of the 2 in communicator 4ce474ef2008a649 (process 24453 on 192.0.2.2) does not answer",
    ),
    (
        "2.30.7",
        recorded!("2.30.7-rank-behind"),
        "rank 1 of the 2 in communicator c146d6aceaccf3f6 (process 24113 on 192.0.2.2) has called AllReduce 140 times, others 141 \
         times",
    ),
];
/// Answers that are none, and what the report says of each.
const MALFORMED: [(&str, &str); 3] = [
    ("lies", "no answer: "),
    ("torn", "no answer: the answer of RAS: EOF while parsing"),
    ("mute", "no answer: no reply to CLIENT PROTOCOL 2 in time"),
];

/// A listener of another user on the port of the job's RAS.
fn listen(cluster: &Cluster, node: &str, job: u32) -> Result<()> {
    let port = 20_000 + job % 8_000;
    let script = format!(
        "import socket, time\ns = socket.create_server(('localhost', {port}))\nprint('listens', flush=True)\n\
         while True:\n c, _ = s.accept()\n c.sendall(b'SERVER PROTOCOL 2\\n')\n time.sleep(1)"
    );
    let shell = format!("setsid python3 -c \"{script}\" < /dev/null > /tmp/listener.{job} 2>&1 & echo");
    cluster.bob().on(node).run(&["sh", "-c", &shell])?.ok()?;
    poll::until(MINUTE, "the other user to listen", || {
        let said = cluster.bob().on(node).run(&["cat", &format!("/tmp/listener.{job}")])?.both();
        Ok(said.contains("listens").then_some(()))
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn evidence_from_a_hung_job_is_reported_and_cannot_do_harm() -> Result<()> {
    let config = format!("{CONFIG}[rails]\nflight_recorder = true\n");
    let builder = Builder::new(8)
        .config(&config)?
        .file("/usr/local/bin/rank", RANK)
        .file("/usr/local/bin/libraries", LIBRARIES);
    let builder = RECORDED.iter().fold(builder, |builder, (release, text, _)| {
        builder.file(format!("/usr/local/share/ras.{release}"), text)
    });
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let mut jobs = Vec::new();
        let mut submit = |says: &str| -> Result<u32> {
            let node = format!("gn{}", jobs.len() + 1);
            let words = ["-N1", "-n2", "-w", &node, "--gres=gpu:2", "-o", "log.%j"];
            let all_wait = alice.clone().env("PLAY", "waits").env("QUIT", "none").env("SAYS", says);
            let id = all_wait.sbatch(&words, "srun sh -c 'libraries & exec rank'")?;
            jobs.push((node, id));
            Ok(id)
        };
        let silent = submit("nothing")?;
        let recorded = RECORDED.map(|(release, ..)| submit(release));
        let malformed = MALFORMED.map(|(kind, _)| submit(kind));
        let recorded: Vec<u32> = recorded.into_iter().collect::<Result<_>>()?;
        let malformed: Vec<u32> = malformed.into_iter().collect::<Result<_>>()?;
        listen(cluster, "gn1", silent)?;
        for (_, id) in &jobs {
            let said = until_named(cluster, *id)?;
            assert!(said.contains("all 2 GPUs wait; possible causes: operations in a different order"), "{said}");
        }
        let says = |id: u32, part: &str| {
            poll::until(2 * MINUTE, &format!("'{part}' in the report of job {id}"), || {
                let text = one_line(&alice.run(&["railgate", "report", &id.to_string(), "--live"])?.ok()?);
                Ok(Some(text).filter(|text| text.contains(part)))
            })
        };
        for ((release, _, sentence), id) in RECORDED.iter().zip(&recorded) {
            let text = says(*id, &format!(" RAS {sentence}"))?;
            assert!(text.contains("STACKS") && !text.contains("process information not found"), "{release}: {text}");
            let of_pytorch = " RECORDED 2 ranks in all_reduce number 7 of group 0 (default_pg), 16 Float, called as all_reduce \
                              (train.py:87), not completed";
            if *release == "2.28.9" {
                says(*id, of_pytorch)?;
                let other = one_line(&cluster.bob().run(&["railgate", "report", &id.to_string(), "--live"])?.both());
                assert!(!other.contains("RECORDED") && !other.contains(" RAS rank"), "{other}");
            }
        }
        let text = says(silent, " RAS no answer: the program on port ")?;
        assert!(text.contains("not of the job's owner") && !text.contains("RECORDED"), "{text}");
        for ((kind, sentence), id) in MALFORMED.iter().zip(&malformed) {
            let text = says(*id, &format!(" RAS {sentence}"))?;
            assert!(text.contains("STACKS") && !text.contains("RECORDED"), "{kind}: {text}");
        }
        assert_eq!(cluster.read(CONTROLLER, "/home/rgalice/precious")?, "as it was");
        assert!(cluster.read(CONTROLLER, "/home/rgalice/called").is_err(), "the record was run");
        for (node, id) in &jobs {
            assert_eq!(samplers(cluster, node, Some(*id))?.len(), 1, "{node}");
            alice.run(&["scancel", &id.to_string()])?.ok()?;
        }
        for (node, id) in &jobs {
            cluster.wait_job(*id, &["CANCELLED"], MINUTE)?;
            cluster.wait_node(node, "idle", MINUTE, |node| node.state().starts_with("IDLE"))?;
            assert!(!cluster.node(node)?.drained(), "{node}: {}", cluster.node(node)?.reason());
        }
        Ok(())
    })
}
