//! Prints the collectives of rank files as JSON, for scripts: `cargo run -p railgate-node-report --example
//! collectives FILE…`.

use std::process::ExitCode;

use railgate_node_report::comm::gather;
use railgate_rankfile::RankFile;

fn main() -> ExitCode {
    let (mut files, mut unread) = (Vec::new(), Vec::new());
    for path in std::env::args().skip(1) {
        let read = std::fs::read(&path).map_err(|why| why.to_string());
        match read.and_then(|bytes| RankFile::parse(&bytes).map_err(|why| why.to_string())) {
            Ok(file) => files.push(file),
            Err(why) => unread.push(format!("{path}: {why}")),
        }
    }
    match serde_json::to_string(&gather(&files, unread)) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
