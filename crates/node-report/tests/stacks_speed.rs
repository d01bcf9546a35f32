//! Time to group the stacks of the largest job, printed and not judged: `docs/performance.md` has the figures.

use std::time::{Duration, Instant};

use railgate_node_report::stacks::{Frame, Groups, NativeFrame, NativeStack, RankStack, Stacks, text};

const TORCH: &str = "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py";

fn stack(rank: u32) -> RankStack {
    let file = if rank == 4_000 { "data.py" } else { "train.py" };
    let frames = (0..64).map(|at| match at {
        40.. => Frame::new("main", &format!("/home/a/{file}"), 88),
        _ => Frame::new("_exception_logger.<locals>.all_reduce", TORCH, at),
    });
    let native = (0..16).map(|at| NativeFrame {
        function: Some("cudaDeviceSynchronize".to_owned()).filter(|_| at % 4 == 3),
        object: "/opt/env/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12".to_owned(),
        address: 2_277_627 + at,
    });
    let native = NativeStack { frames: native.collect(), cut: None };
    let python = Some(frames.collect());
    RankStack { rank, state: Some('S'), python, native: Some(native), ..RankStack::default() }
}

#[test]
#[ignore = "a measurement: cargo test --release -p railgate-node-report --test stacks_speed -- --ignored --nocapture"]
fn time_to_group_1024_nodes_with_8_ranks_of_64_frames() {
    let (mut groups, mut reading, mut grouping, mut bytes) =
        (Groups::default(), Duration::ZERO, Duration::ZERO, 0);
    for node in 0..1024 {
        let ranks = (0..8).map(|local| stack(node * 8 + local)).collect();
        let file = serde_json::to_vec(&Stacks { ranks, ..Stacks::default() }).unwrap();
        bytes += file.len();
        let begun = Instant::now();
        let read = serde_json::from_slice::<Stacks>(&file).unwrap().bounded();
        reading += begun.elapsed();
        let begun = Instant::now();
        for stack in &read.ranks {
            groups.add(&format!("gn{node}"), stack);
        }
        grouping += begun.elapsed();
    }
    let begun = Instant::now();
    let line = text(&groups.finish());
    grouping += begun.elapsed();
    let (reading, grouping) = (reading.as_secs_f64(), grouping.as_secs_f64());
    println!("{line}");
    println!("{} MB of files: read in {reading:.2} s, grouped in {grouping:.3} s", bytes / 1_000_000);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
}
