//! Prints rank files as lines of words, for scripts: `cargo run -p railgate-rankfile --example show FILE…`.

use std::fs;

use railgate_rankfile::{ALGORITHMS, DATATYPES, OPERATIONS, PROTOCOLS, RankFile};

fn main() {
    for path in std::env::args().skip(1) {
        let read = fs::read(&path).map_err(|why| why.to_string());
        match read.and_then(|bytes| RankFile::parse(&bytes).map_err(|why| why.to_string())) {
            Ok(file) => show(&path, &file),
            Err(why) => println!("bad {path}: {why}"),
        }
    }
}

fn show(path: &str, file: &RankFile) {
    let mode = file.mode.map_or("?", railgate_rankfile::Mode::as_str);
    println!(
        "file {path} pid={} api={} nccl={:?} mode={mode} limit={:?} duty={} expired={} stray={} lost={} captured={} \
         api_only={} panics={} nonsense={}",
        file.pid,
        file.api,
        file.nccl,
        file.limit.as_str(),
        file.duty,
        file.expired,
        file.stray,
        file.cells_lost,
        file.captured,
        file.api_only,
        file.panics,
        file.nonsense
    );
    for comm in &file.comms {
        println!(
            "comm {} {:016x} rank={} ranks={} nodes={} ops={} begun={} done={} done_op={} destroyed={} to_itself={}",
            comm.index,
            comm.hash,
            comm.rank,
            comm.ranks,
            comm.nodes,
            comm.ops,
            comm.begun,
            comm.done,
            comm.done_op,
            comm.destroyed,
            comm.to_itself
        );
    }
    for cell in &file.cells {
        let name = |table: &[&'static str], at: u8| table.get(usize::from(at)).copied().unwrap_or("?");
        println!(
            "cell comm={} op={} type={} algo={} proto={} class={} calls={} bytes={} timed={} timed_bytes={} sum_ns={} \
             min_ns={} max_ns={} spaced={} spaced_bytes={} spaced_ns={}",
            cell.key.comm,
            name(OPERATIONS, cell.key.op),
            name(DATATYPES, cell.key.datatype),
            name(ALGORITHMS, cell.key.algorithm),
            name(PROTOCOLS, cell.key.protocol),
            cell.key.class,
            cell.calls,
            cell.bytes,
            cell.timed,
            cell.timed_bytes,
            cell.sum_ns,
            cell.min_ns.unwrap_or(0),
            cell.max_ns,
            cell.spaced,
            cell.spaced_bytes,
            cell.spaced_ns
        );
    }
}
