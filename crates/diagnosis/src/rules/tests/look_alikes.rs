//! Jobs that look like those of a rule from outside, and are not.

use railgate_model::GpuCounters;
use railgate_node_report::phases::Training;

use super::*;

/// Changes the figures of each GPU while the job trained, by its place.
fn with(mut nodes: Vec<NodeReport>, change: fn(usize, &mut GpuCounters<f64>)) -> Vec<NodeReport> {
    let gpus = &mut training(&mut nodes).gpus;
    gpus.iter_mut().enumerate().for_each(|(place, gpu)| change(place, &mut gpu.counters));
    nodes
}

fn training(nodes: &mut [NodeReport]) -> &mut Training {
    nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap().training.as_mut().unwrap()
}

fn words(rule: &str, nodes: &[NodeReport]) -> Vec<String> {
    find(rule, nodes, &Rules::DEFAULT).into_iter().map(|found| found.what).collect()
}

/// Layers of one model on two GPUs: the process that both GPUs list is the same.
#[test]
fn gpus_that_one_process_drives_may_work_in_turn() {
    let mut nodes = with_host(0.9, 0.0, 0.0, true);
    assert_eq!((words("pauses", &nodes).len(), words("host-bound", &nodes).len()), (1, 0));
    training(&mut nodes).host.cpu_cores = Reading::Known(1.0);
    assert_eq!(words("pauses", &nodes), [""; 0]);
    let [one] = &words("host-bound", &nodes)[..] else { panic!("{nodes:?}") };
    assert!(one.contains("one process drives 2 GPUs: they may work in turn"), "{one}");
    // JAX drives all GPUs from one process as well, at the same time.
    let mut together = with(nodes, |_, counters| counters.graphics_percent = Reading::Known(58.0));
    training(&mut together).host.cpu_cores = Reading::Known(1.0);
    assert_eq!(words("pauses", &together).len(), 1);
}

/// Training on one GPU, and a server on another one that generates text for it.
#[test]
fn gpus_of_two_processes_may_work_in_turn() {
    let asleep = |percent: f64| {
        let mut nodes = with_host(0.1, 0.0, 0.0, true);
        for gpu in &mut training(&mut nodes).gpus {
            gpu.counters.graphics_percent = Reading::Known(percent);
        }
        words("pauses", &nodes).concat()
    };
    assert!(
        asleep(54.0).ends_with("or a person, or work in turn for each other, as training and generation"),
        "{}",
        asleep(54.0)
    );
    assert!(
        asleep(57.0).ends_with("requests, input, storage, another process or a person"),
        "{}",
        asleep(57.0)
    );
    assert!(asleep(54.0).starts_with("each GPU runs no kernel for "), "{}", asleep(54.0));
}

/// The processes' CPU time is that of the training, and rests that fill whole samples are no part of it.
#[test]
fn what_processes_do_in_long_rests_is_not_known() {
    let mut nodes = with_host(0.9, 0.0, 0.0, true);
    let said = |nodes: &[NodeReport]| words("pauses", nodes).concat();
    assert!(said(&nodes).contains("the processes compute on the CPU meanwhile"), "{}", said(&nodes));
    let phases = nodes[0].usage.as_mut().unwrap().phases.as_mut().unwrap();
    let steady = phases.list.pop().unwrap();
    let idle = railgate_node_report::phases::Phase { kind: PhaseKind::Idle, ..steady };
    phases.list.extend([steady, idle, steady, idle, steady, idle, steady]);
    assert!(said(&nodes).contains(": evaluation, saving, input, requests, the start"), "{}", said(&nodes));
}

/// Logits that are copied to the host in each step, where the processor works on them.
#[test]
fn copies_in_each_step_are_no_save() {
    let nodes = with(saves_silently(), |_, counters| {
        (counters.paused_percent, counters.pauses_per_minute) = (Reading::Known(50.0), Reading::Known(20.0));
    });
    assert_eq!(words("saving", &nodes).len(), 1);
    let nodes = with(nodes, |_, counters| {
        (counters.paused_percent, counters.pauses_per_minute) = (Reading::Known(12.0), Reading::Known(15.0));
    });
    assert_eq!(words("saving", &nodes), [""; 0]);
    let nodes = with(nodes, |_, counters| {
        (counters.paused_percent, counters.pauses_per_minute) = (Reading::Known(0.0), Reading::Known(0.0));
    });
    assert_eq!(words("saving", &nodes), [""; 0]);
}

/// Two GPUs that exchange data: the kernels of the second one run for 60 % of the time.
fn one_is_idle() -> Vec<NodeReport> {
    let busy = [95.0, 40.0, 15.0, 20.0];
    let mut nodes = silent_phases(&[(PhaseKind::StartUp, 15), (PhaseKind::Steady, 60)], busy, busy);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        gpu.counters.nvlink_tx_bytes_s = flat(3e9);
    }
    with(nodes, |place, counters| {
        if place == 1 {
            counters.graphics_percent = Reading::Known(60.0);
        }
    })
}

/// `DataParallel`, or layers that are split unevenly: the GPU with less work waits without a kernel of NCCL.
#[test]
fn a_gpu_with_less_work_is_no_straggler() {
    let [one] = &words("sleeping-rank", &one_is_idle())[..] else { panic!() };
    assert!(one.contains(" GPU 1 arrives late in every step"), "{one}");
    let less = with(one_is_idle(), |place, counters| {
        if place == 1 {
            counters.sm_percent = Reading::Known(20.0);
        }
    });
    assert_eq!(words("sleeping-rank", &less), [""; 0]);
    // One that generates text for those that train has other work.
    let another = with(one_is_idle(), |place, counters| {
        if place == 1 {
            (counters.tensor_percent, counters.dram_percent) = (Reading::Known(4.0), Reading::Known(23.0));
        }
    });
    assert_eq!(words("sleeping-rank", &another), [""; 0]);
}

/// One rank evaluates now and then, on a site without NCCL's plugin.
#[test]
fn a_rank_that_pauses_is_not_late_in_every_step() {
    let pauses = with(one_is_idle(), |place, counters| {
        let of_second = if place == 1 { (30.0, 12.0) } else { (1.0, 0.5) };
        (counters.paused_percent, counters.pauses_per_minute) =
            (Reading::Known(of_second.0), Reading::Known(of_second.1));
    });
    let [one] = &find("sleeping-rank", &pauses, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.what.contains(" GPU 1 pauses now and then, 1.5 s at a time"), "{one:?}");
    assert_eq!(one.fix, Some(by_id("pausing-rank").unwrap().fix));
    // Small kernels would be the other GPU's, which wait.
    assert_eq!(words("launch-bound", &pauses), [""; 0]);
}

/// The power cap was in force while the job trained, for a twentieth of a run that began with a long start-up.
#[test]
fn a_long_start_up_does_not_hide_the_power_cap() {
    let rules = set("slow-clock", "capped_below_percent", &json!(17.0));
    let mut nodes = capped();
    assert_eq!(find("slow-clock", &nodes, &rules), []);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        let Reading::Known(throttled) = &mut gpu.throttled else { panic!("{gpu:?}") };
        throttled.over_s *= 40.0;
    }
    assert_eq!(find("slow-clock", &nodes, &rules), []);
}

/// A program on its only core, which it also uses while it waits for kernels.
#[test]
fn a_core_that_the_gpus_own_process_uses_is_no_loader() {
    let own = |cpu: f64, others: f64, is_known: bool| {
        let mut nodes = with_host(cpu, 0.0, others, true);
        if !is_known {
            nodes = with(nodes, |_, counters| counters.process_cpu_percent = Reading::Unsupported);
        }
        let host = &mut nodes[0].usage.as_mut().unwrap().host;
        host.cpus_allowed = Reading::Known(2.0 * (cpu + others));
        words("input-bound", &nodes)
    };
    // Eight threads may be loaders (tf.data, DALI), or an optimizer on the CPU. One that computes all the time waits for no loader.
    for (cpu, others) in [(1.0, 0.0), (8.0, 0.0), (1.0, 1.0)] {
        assert_eq!(own(cpu, others, true), [""; 0], "{cpu} {others}");
    }
    assert_eq!(own(1.0, 0.0, false), [""; 0]);
    let [one] = &own(1.0, 1.0, false)[..] else { panic!() };
    assert!(one.contains("100 % of the job's cores are busy"), "{one}");
}

/// Loaders that run ahead of a program that computes between its kernels: one of them often waits for the disk.
#[test]
fn a_process_that_computes_does_not_wait_for_disks() {
    let of = |cpu: f64| {
        let mut nodes = with_host(cpu, 0.0, 0.2, true);
        training(&mut nodes).host.io_pressure_percent = Reading::Known(31.0);
        words("input-bound", &nodes)
    };
    assert_eq!(of(0.95), [""; 0]);
    let [one] = &of(0.4)[..] else { panic!() };
    assert!(one.contains("waits for disks 31 % of the time"), "{one}");
}

/// Loaders on all cores of the job: more of them add nothing.
#[test]
fn loaders_that_use_all_cores_need_cores() {
    let mut nodes = loaders();
    let fix = |nodes: &[NodeReport]| find("input-bound", nodes, &Rules::DEFAULT)[0].fix.unwrap();
    assert!(fix(&nodes).starts_with("data loaders: as many workers as the job has cores"));
    let host = &mut nodes[0].usage.as_mut().unwrap().host;
    host.cpus_allowed = Reading::Known(host.cpu_cores.known().unwrap().mean);
    assert!(fix(&nodes).starts_with("all cores of the job are busy: ask for more cores"));
}

/// Python that makes the input of small kernels looks like Python that launches them.
#[test]
fn a_busy_thread_is_to_be_looked_at_first() {
    let nodes = with(with_host(0.9, 0.0, 0.0, true), |_, counters| {
        (counters.paused_percent, counters.sm_percent) = (Reading::Known(0.0), Reading::Known(8.0));
    });
    let [one] = &find("launch-bound", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.fix.is_some_and(|fix| fix.contains("py-spy") && fix.contains("prepares input")), "{one:?}");
}

/// The kernel counts waits for reads and for writes together: a program may flush its results, or read its input.
#[test]
fn waits_for_disks_are_for_input_or_for_files_that_are_written() {
    let of = |memory: f64| {
        let mut nodes = with_host(0.4, 0.0, 0.2, true);
        let host = &mut training(&mut nodes).host;
        host.io_pressure_percent = Reading::Known(31.0);
        host.memory_pressure_percent = Reading::Known(memory);
        let [one] = &find("input-bound", &nodes, &Rules::DEFAULT)[..] else { panic!() };
        (one.what.clone(), one.fix.unwrap())
    };
    let (what, fix) = of(0.0);
    assert!(what.ends_with("the GPUs probably wait for input, or for files that the job writes"), "{what}");
    assert!(fix.contains("/proc/PID/io") && fix.contains("write less often"), "{fix}");
    // A data set that is mapped into less memory than it has.
    let (what, fix) = of(40.0);
    assert!(
        what.ends_with("; a process waits for memory 40 % of the time") && fix.contains("--mem"),
        "{what}: {fix}"
    );
}

/// More loaders than cores wait for each other, and the GPUs' processes for them.
#[test]
fn loaders_that_wait_for_cores_are_no_lack_of_cores_of_the_program() {
    let mut nodes = loaders();
    training(&mut nodes).host.cpu_pressure_percent = Reading::Known(95.0);
    assert_eq!((words("input-bound", &nodes).len(), words("cpu-contention", &nodes).len()), (1, 0));
    // Cores are free: the loaders are bound to a few of them, and more loaders would not help.
    let [one] = &find("input-bound", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(
        one.what.ends_with("waits for a CPU core 95 % of the time, and 3.3 of 32 cores are in use"),
        "{one:?}"
    );
    assert!(one.fix.is_some_and(|fix| fix.contains("taskset") && !fix.contains("more loader")), "{one:?}");
    let host = &mut nodes[0].usage.as_mut().unwrap().host;
    let allowed = std::mem::replace(&mut host.cpus_allowed, Reading::Known(3.3));
    let [one] = &find("input-bound", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.fix.is_some_and(|fix| fix.starts_with("all cores of the job are busy")), "{one:?}");
    nodes[0].usage.as_mut().unwrap().host.cpus_allowed = allowed;
    // Without the times of the processes nothing tells the two apart.
    let nodes = with(nodes, |_, counters| counters.process_cpu_percent = Reading::Unsupported);
    assert_eq!((words("input-bound", &nodes).len(), words("cpu-contention", &nodes).len()), (0, 1));
}

/// A video is rendered, and encoders take the frames.
#[test]
fn other_processes_may_be_those_that_take_the_results() {
    let nodes = with(loaders(), |_, counters| counters.pcie_tx_bytes_s = Reading::Known(150e6));
    let [one] = &find("input-bound", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.what.ends_with("(encoders or writers of its results, or data loaders)"), "{}", one.what);
    assert!(one.fix.is_some_and(|fix| fix.contains("hand over results")), "{one:?}");
}

/// An agent waits for a service in each step, and then runs a few small kernels.
#[test]
fn small_kernels_do_not_hide_the_wait_that_is_most_of_the_time() {
    let mut nodes = with_host(0.25, 0.0, 0.0, true);
    nodes[0].usage.as_mut().unwrap().gpus.truncate(1);
    training(&mut nodes).gpus.truncate(1);
    let nodes = with(nodes, |_, counters| {
        counters.graphics_percent = Reading::Known(22.0);
        counters.sm_percent = Reading::Known(11.0);
        (counters.tensor_percent, counters.dram_percent) = (Reading::Known(4.0), Reading::Known(9.0));
        counters.paused_percent = Reading::Known(0.0);
    });
    assert_eq!(words("launch-bound", &nodes).len(), 1);
    let [one] = &words("host-bound", &nodes)[..] else { panic!() };
    assert!(one.contains("each GPU's process sleeps 75 % of it"), "{one}");
}

/// A build of the library without CUDA.
#[test]
fn a_job_that_computes_on_the_cpu_is_told_so() {
    let mut nodes = silent_phases(&[(PhaseKind::Idle, 3600)], [0.0; 4], [0.0; 4]);
    let since = Some(nodes[0].start);
    let usage = nodes[0].usage.as_mut().unwrap();
    usage.phases.as_mut().unwrap().training = None;
    for gpu in &mut usage.gpus {
        gpu.counters.memory_used_mib = flat(0.0);
        gpu.idle = Reading::Known(IdleTime { over_s: 3600.0, idle_s: 3600.0, since });
    }
    let usage = nodes[0].usage.as_mut().unwrap();
    // Its threads are more than its cores.
    usage.host.cpu_pressure_percent = flat(60.0);
    let [one] = &find("idle-gpus", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.fix.is_some_and(|fix| fix.starts_with("the job computes on the CPU")), "{one:?}");
    nodes[0].usage.as_mut().unwrap().host.cpu_cores = flat(0.1);
    let [one] = &find("idle-gpus", &nodes, &Rules::DEFAULT)[..] else { panic!() };
    assert!(one.fix.is_none_or(|fix| !fix.contains("on the CPU")), "{one:?}");
}

/// A notebook that its time limit ended stood as still as a hang.
#[test]
fn a_job_that_was_cut_off_may_have_been_out_of_use() {
    let mut nodes = silent_phases(
        &[(PhaseKind::Steady, 600), (PhaseKind::Tail, 600)],
        [45.0, 40.0, 15.0, 20.0],
        [90.0, 80.0, 30.0, 40.0],
    );
    let end = nodes[0].end.unwrap();
    nodes[0].usage.as_mut().unwrap().host.cpu_cores = flat(1.0);
    for gpu in &mut nodes[0].usage.as_mut().unwrap().gpus {
        gpu.counters.memory_used_mib = flat(4e4);
        gpu.idle = Reading::Known(IdleTime { over_s: 1200.0, idle_s: 600.0, since: Some(end - 600_000) });
    }
    let of = |outcome| {
        let facts = Facts::new(&nodes, Some(end), outcome, None);
        (by_id("idle-gpus").unwrap().find)(&facts).into_iter().filter_map(|one| one.fix).collect::<Vec<_>>()
    };
    let [fix] = &of(Outcome::CutOff)[..] else { panic!() };
    assert!(fix.contains("waited for a person or for requests"), "{fix}");
    let [fix] = &of(Outcome::Failed)[..] else { panic!() };
    assert!(fix.starts_with("check where the program stopped"), "{fix}");
}

/// Frames that one process decodes, filters on its GPU and encodes.
#[test]
fn one_gpu_sums_no_gradients_with_another() {
    let mut nodes = with_host(0.9, 0.0, 0.0, true);
    nodes[0].usage.as_mut().unwrap().gpus.truncate(1);
    training(&mut nodes).gpus.truncate(1);
    let nodes = with(nodes, |_, counters| {
        (counters.pcie_tx_bytes_s, counters.pcie_rx_bytes_s) = (Reading::Known(6e8), Reading::Known(6e8));
    });
    let [one] = &words("pauses", &nodes)[..] else { panic!() };
    assert!(
        one.contains("batches that it decodes and results that it encodes") && !one.contains("gradients"),
        "{one}"
    );
}
