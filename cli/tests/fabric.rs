//! `railgate fabric --file`: exit codes and messages about names and truncated input.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Output};

const SWITCH: &str =
    "Switch\t36 \"S-0000000000000001\"\t\t# \"MF0;leaf-1:MQM9700/U1\" enhanced port 0 lid 1 lmc 0\n";

/// Input with one leaf switch and HCAs of these names.
fn text(names: &[&str]) -> String {
    let line = |(at, name): (usize, &&str)| {
        format!("[{}]\t\"H-{:016x}\"[1](0) \t\t# \"{name}\" lid 2 4xNDR\n", at + 1, at + 16)
    };
    let record = |(at, name): (usize, &&str)| {
        let (port, guid) = (at + 1, at + 16);
        format!(
            "Ca\t1 \"H-{guid:016x}\"\t\t# \"{name}\"\n\
             [1](0) \t\"S-0000000000000001\"[{port}]\t\t# lid 2 lmc 0 \"MF0;leaf-1:MQM9700/U1\" lid 1 4xNDR\n"
        )
    };
    let lines: String = names.iter().enumerate().map(line).collect();
    let records: String = names.iter().enumerate().map(record).collect();
    format!("{SWITCH}{lines}\n{records}")
}

fn fabric(dir: &Path, text: &str, words: &[&str]) -> (Option<i32>, String, String) {
    std::fs::write(dir.join("net"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    let Output { status, stdout, stderr } =
        command.current_dir(dir).args(["fabric", "--file", "net"]).args(words).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn exit_codes_and_messages_for_good_and_bad_input() {
    let place = tempfile::tempdir().unwrap();
    let run = |text: &str, words: &[&str]| fabric(place.path(), text, words);
    let mixed = text(&["gn1 HCA-1", "gn2 HCA-1", "gn3 HCA-1", "controller mlx5_0"]);
    let (code, out, _) = run(&mixed, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("leaf-1: controller,gn[1-3] (4 nodes, "), "{out}");

    // Input truncated before the HCAs' records.
    let (cut, _) = mixed.split_once("\n\nCa").unwrap();
    let (code, out, _) = run(cut, &[]);
    assert_eq!(code, Some(3), "{out}");
    assert!(out.contains("Incomplete: 4 devices without a record"), "{out}");
    let (code, out, _) = run(cut, &["--format", "topology-block"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("# INCOMPLETE: ibnetdiscover's output lacks the records of 4 devices"), "{out}");

    let shared = text(&[
        "gn1 mlx5_0",
        "localhost mlx5_0",
        "localhost mlx5_0",
        "MT4129 ConnectX7   Mellanox Technologies",
    ]);
    let (code, out, _) = run(&shared, &[]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("2 HCAs are called 'localhost mlx5_0', so several hosts are called localhost; "),
        "{out}"
    );
    assert!(out.contains("1 HCA without a node's name (rdma-ndd sets it): MT4129 ConnectX7"), "{out}");
    let (_, out, _) = run(&shared, &["--format", "topology-tree"]);
    assert!(out.contains("# HCAs that belong to no node: 3; railgate fabric names them\n"), "{out}");
    assert!(out.contains("SwitchName=leaf-1 Nodes=gn1\n"), "{out}");

    let (code, out, err) = run(&text(&["localhost HCA-1", "localhost HCA-1"]), &[]);
    assert_eq!((code, out.as_str()), (Some(3), ""));
    assert!(
        err.contains("no node with a port on one of 1 switches") && err.contains("called localhost"),
        "{err}"
    );

    let report = "CA   139  1 0x0000000000000101 4x NDR - SW     1  1 0x0000000000000001 ( 'gn1 mlx5_0' - 'leaf-0' )\n";
    let (code, _, err) = run(report, &[]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("net: line 1: a ports report, as -p writes it; want ibnetdiscover without -p"),
        "{err}"
    );
}
