//! Output of several releases of nccl-tests, with the formats of their sources at the tags v2.10.0, v2.13.0, v2.13.10, v2.17.9 and v2.19.6.

use crate::{AllReduce, Partial, SizeResult};

/// 2.10.0: no column `root`, and the largest error in the place of the wrong values.
const OLD: &str = r"
# nThread 1 nGpus 8 minBytes 536870912 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 
#
# Using devices
#   Rank  0 Pid  41077 on        gn1 device  0 [0x07] A100-SXM4-40GB
#   Rank  1 Pid  41077 on        gn1 device  1 [0x0f] A100-SXM4-40GB
#   Rank  2 Pid  21403 on        gn2 device  0 [0x07] A100-SXM4-40GB
#   Rank  3 Pid  21403 on        gn2 device  1 [0x0f] A100-SXM4-40GB
#
#                                                       out-of-place                       in-place          
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
   536870912     134217728     float     sum   4213.2  127.43  223.00  1e-06   4209.8  127.53  223.18  1e-06
  1073741824     268435456     float     sum   8365.7  128.35  224.61  1e-06   8360.1  128.44  224.76  1e-06
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 223.888 
#

";

/// 2.13.10: a column `root`, counts of wrong values, groups.
const COUNTS: &str = r"
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 1048576(bytes) warmup iters: 2 iters: 10 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 193812 on        gn1 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 188235 on        gn2 device  0 [0x18] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       
  1073741824     268435456     float     sum      -1    22102   48.58   48.58      0    22093   48.60   48.60      3
# Out of bounds values : 3 FAILED
# Avg bus bandwidth    : 48.5903 
#

";

/// 2.17.9: versions, and PCI addresses.
const VERSIONS: &str = r"
# nccl-tests version 2.17.9 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 1073741824 step: 1048576(bytes) warmup iters: 2 iters: 10 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid 193812 on        gn1 device  0 [0000:18:00] NVIDIA H200
#  Rank  1 Group  0 Pid 193812 on        gn1 device  1 [0000:2a:00] NVIDIA H200
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
  1073741824     268435456     float     sum      -1  3904.10  275.03  481.30       0  3899.41  275.36  481.88       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 481.59 
#
# Collective test concluded: all_reduce_perf
#
";

/// 2.19.6 with the options -I 1 and -T: columns of the iterations between those of both places, and a time stamp at the end. One count is
/// too large for its column.
const PER_ITERATION: &str = r"
# nccl-tests version 2.19.6 nccl-headers=22903 nccl-library=23007
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 193812 on        gn1 device  0 [0000:18:00] NVIDIA H200
#  Rank  1 Group  0 Pid 193812 on        gn1 device  1 [0000:2a:00] NVIDIA H200
#                                                              out-of-place (+ per-iteration)                                in-place (+ per-iteration)
#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)     (us)  (GB/s)  (GB/s)             (us)     (us)     (us)      (%)   %Y-%m-%d %H:%M:%S
  1073741824     268435456     float     sum      -1  3904.10  275.03  481.30  2e+06  3890.00  3921.00  3920.00     0.20  3899.41  275.36  481.88       0  3880.00  3911.00  3910.00     0.20 2026-11-26 12:00:00
";

fn sizes(found: &AllReduce) -> Vec<(u64, f64, Option<u64>)> {
    let of = |size: &SizeResult| (size.bytes, size.busbw_gb_s, size.wrong);
    found.sizes.iter().map(of).collect()
}

#[test]
fn each_release_is_read_by_its_own_heading() {
    const GIB: u64 = 1 << 30;
    let old = AllReduce::parse(OLD);
    assert_eq!(sizes(&old), [(GIB / 2, 223.00, Some(0)), (GIB, 224.61, Some(0))]);
    assert_eq!((old.ranks, old.hosts, old.nccl.as_deref(), old.partial(2, false)), (4, 2, None, None));
    let counts = AllReduce::parse(COUNTS);
    assert_eq!((sizes(&counts), counts.hosts), (vec![(GIB, 48.58, Some(3))], 2));
    let versions = AllReduce::parse(VERSIONS);
    assert_eq!((sizes(&versions), versions.ranks), (vec![(GIB, 481.30, Some(0))], 2));
    assert_eq!(versions.nccl.as_deref(), Some("2.28.9"));
    let newest = AllReduce::parse(PER_ITERATION);
    assert_eq!(
        (sizes(&newest), newest.nccl.as_deref()),
        (vec![(GIB, 481.30, Some(2_000_000))], Some("2.30.7"))
    );
}

#[test]
fn what_was_not_compared_is_not_right() {
    let without_check =
        VERSIONS.replace("481.30       0", "481.30     N/A").replace("481.88       0", "481.88     N/A");
    assert_eq!(AllReduce::parse(&without_check).sizes[0].wrong, None);
    // Before 2.13 only the sum over all sizes has a limit.
    let bad = AllReduce::parse(&OLD.replace("values : 0 OK", "values : 7 FAILED"));
    assert!(bad.sizes.iter().all(|size| size.wrong == Some(7)));
    let unchecked = OLD.replace("1e-06", "  N/A");
    assert!(AllReduce::parse(&unchecked).sizes.iter().all(|size| size.wrong.is_none()));
    let cut = OLD.split("# Out of bounds").next().unwrap();
    assert!(AllReduce::parse(cut).sizes.iter().all(|size| size.wrong.is_none()));
}

/// Without MPI each task is rank 0 of its own, and prints a table of its own.
#[test]
fn tasks_that_ran_alone_are_no_result_of_all_nodes() {
    let alone = VERSIONS.repeat(2).replacen("gn1", "gn2", 2);
    let found = AllReduce::parse(&alone);
    assert!(found.sizes.len() == 2 && found.partial(2, true) == Some(Partial::Alone), "{found:?}");
    assert_eq!(AllReduce::parse(VERSIONS).partial(2, false), Some(Partial::Alone));
    assert_eq!(AllReduce::parse(VERSIONS).partial(1, false), None);
    // Rows alone do not show where they were measured.
    assert_eq!(AllReduce::parse("8 2 float sum -1 1 1 1 0 1 1 1 0\n").partial(2, false), None);
}

/// srun ends all tasks if one fails: rank 0 may have listed a part of the ranks by then.
#[test]
fn a_list_that_was_cut_does_not_show_tasks_that_ran_alone() {
    let cut =
        AllReduce::parse("#  Rank  0 Group  0 Pid 1 on        gn1 device  0 [0000:18:00] NVIDIA H200\n");
    assert_eq!(cut.partial(2, true), Some(Partial::Cut));
    assert_eq!(AllReduce::parse("").partial(2, true), None);
}

#[test]
fn other_text_is_no_result() {
    for text in [
        "",
        "gn1: Test NCCL failure common.cu:1005 'unhandled cuda error'\n .. gn1 pid 4711: Test failure common.cu:891\n",
        "# size\n8 x\n",
        "8 2 float sum -1 1 1 inf 0 1 1 1 0\n8 2 float\n-1 2 float sum -1 1 1 1 0\n",
        "# nccl-tests version 9 nccl-headers=1 nccl-library=99999999999\n",
    ] {
        let found = AllReduce::parse(text);
        assert!(found.sizes.is_empty() && found.nccl.is_none(), "{text}: {found:?}");
    }
}
