//! Kernel log lines as real machines printed them. Each line passes through the live reader, NVIDIA's Xid catalogue and the table
//! of kernel lines, and must get its recorded verdict (`tests/kernel-lines/README.md`). Lines that a user's program can cause must
//! not drain a node.

#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use railgate_gate::{GateConfig, Memory, Seen, judge, kernel_line_judgement};
use railgate_model::xid_catalogue::{self, lookup, nvlink5_line};
use railgate_model::{
    Fitness, KernelLine, KernelLog, Part, PciAddress, Phase, Profile, Reading, Severity, Snapshot,
    SxidSeverity, kernel_lines,
};
use railgate_probe::readers::kernel_log_read;

/// Files of a collection. `formats` is made from format strings, not from logs.
const FILES: [&str; 5] = ["xid", "switch", "kernel", "harmless", "formats"];

/// One line of a collection.
struct Row {
    /// File and line, for messages.
    place: String,
    file: &'static str,
    /// Whether a user's program can cause the line.
    by_user: bool,
    verdict: String,
    text: String,
}

/// Reads the collection in a folder.
fn collection(folder: &Path) -> Vec<Row> {
    let path = |name: &str| folder.join(format!("{name}.tsv"));
    let text = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let sources = text("sources");
    let sources: BTreeSet<&str> =
        sources.lines().map(|line| line.split_once('\t').map_or(line, |(key, _)| key)).collect();
    let mut rows = Vec::new();
    for file in FILES {
        for (at, line) in text(file).lines().enumerate() {
            let place = format!("{}:{}", path(file).display(), at + 1);
            let fields: Vec<&str> = line.splitn(4, '\t').collect();
            assert_eq!(fields.len(), 4, "{place}: want a source, a cause, a verdict and a line between tabs");
            let (source, cause, verdict, text) = (fields[0], fields[1], fields[2], fields[3].to_owned());
            assert!(sources.contains(source), "{place}: source '{source}' is not in sources.tsv");
            assert!(["user", "machine"].contains(&cause), "{place}: cause '{cause}'");
            rows.push(Row { place, file, by_user: cause == "user", verdict: verdict.to_owned(), text });
        }
    }
    rows
}

/// The collection of this repository, and the raw one that the environment variable names.
fn collections() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernel-lines");
    match std::env::var_os("RAILGATE_KERNEL_LINES") {
        Some(raw) => vec![own, raw.into()],
        None => {
            eprintln!("skipped: raw lines, RAILGATE_KERNEL_LINES is not set to a folder");
            vec![own]
        }
    }
}

/// A log with these records, one second apart.
fn read<'a>(texts: impl IntoIterator<Item = &'a str>, boot_id: &str) -> KernelLog {
    let mut records = String::new();
    for (seq, text) in texts.into_iter().enumerate() {
        writeln!(records, "3,{seq},{},-;{text}", (seq + 1) * 1_000_000).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), records).unwrap();
    kernel_log_read(file.path(), None, boot_id).unwrap()
}

/// For example `0000:61:00`.
fn place(address: Option<PciAddress>) -> String {
    let address = address.map_or_else(String::new, |address| address.to_string());
    address.strip_suffix(".0").unwrap_or(&address).to_owned()
}

/// Immediate action in the catalogue; `?` if it has no row for the numbers of an NVLink 5 line.
fn action(code: u32, text: &str) -> String {
    let Some(xid) = lookup(code) else { return "UNKNOWN".to_owned() };
    if (144..=150).contains(&code) {
        let row = nvlink5_line(code, text).and_then(|line| line.decode());
        return row.map_or_else(|| "?".to_owned(), |row| row.immediate.to_string());
    }
    xid.immediate.map_or_else(|| "NONE".to_owned(), |bucket| bucket.to_string())
}

fn of_table(line: &KernelLine) -> Option<String> {
    use kernel_lines::KernelPart::{Name, Node, Pci};
    let found = kernel_lines::recognise(&line.text)?;
    let part = match found.part {
        Node => String::new(),
        Pci(address) => format!(" {address}"),
        Name(name) => format!(" {name}"),
    };
    Some(format!("line {}{part}", found.id))
}

/// Combined verdict of the live reader, the catalogue and the table.
fn verdict(text: &str) -> String {
    let log = read([text], "this");
    let xids = log
        .xids()
        .into_iter()
        .map(|xid| format!("xid {} {} {}", xid.code, place(xid.gpu), action(xid.code, &xid.text)));
    let sxids = log.sxids().into_iter().map(|sxid| {
        let severity = match sxid.severity {
            SxidSeverity::Fatal => "fatal",
            SxidSeverity::NonFatal => "nonfatal",
            SxidSeverity::Correctable => "correctable",
            SxidSeverity::Unstated => "unsaid",
        };
        format!("sxid {} {} {severity}", sxid.code, place(sxid.switch))
    });
    let all: Vec<String> = xids.chain(sxids).chain(log.lines.iter().filter_map(of_table)).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(" and ") }
}

#[test]
fn every_line_gets_its_recorded_verdict() {
    let mut wrong = Vec::new();
    for folder in collections() {
        let rows = collection(&folder);
        let known = wrong.len();
        wrong.extend(
            rows.iter()
                .map(|row| (row, verdict(&row.text)))
                .filter(|(row, got)| row.verdict != *got)
                .map(|(row, got)| format!("{}: want {}, got {got}: {}", row.place, row.verdict, row.text)),
        );
        let filled = rows.iter().filter(|row| row.file == "formats").count();
        let printed = rows.len() - filled;
        let count = wrong.len() - known;
        println!("{}: {printed} lines of logs, {filled} of formats, {count} wrong", folder.display());
        assert!(printed >= 400, "{printed}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every code of the catalogue is known, and the collection contains each code that current GPUs report.
#[test]
fn no_code_of_the_catalogue_is_unknown() {
    let own = collections().remove(0);
    let codes: BTreeSet<u32> = collection(&own)
        .iter()
        .filter(|row| !row.verdict.ends_with(" UNKNOWN"))
        .filter_map(|row| row.verdict.strip_prefix("xid ")?.split(' ').next()?.parse().ok())
        .collect();
    assert!(codes.iter().all(|code| lookup(*code).is_some_and(|xid| xid.in_catalogue)));
    let reported = xid_catalogue::all().filter(|xid| !xid.families.is_empty());
    let missing: Vec<u32> = reported.map(|xid| xid.code).filter(|code| !codes.contains(code)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Lines that a user can cause are marked, also where the machine's NVML would confirm them.
#[test]
fn lines_a_user_can_cause_are_marked() {
    let marked = |verdict: &str| {
        let words: Vec<&str> = verdict.split(' ').collect();
        match words.as_slice() {
            ["xid", code, ..] => lookup(code.parse().unwrap()).is_none_or(|xid| xid.raisable),
            ["line", id, ..] => kernel_line_judgement(id).unwrap().raisable,
            _ => true,
        }
    };
    let rows = collection(&collections().remove(0));
    let not: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row.by_user && !marked(&row.verdict))
        .map(|row| row.verdict.as_str())
        .collect();
    assert!(not.is_empty(), "{not:?}");
}

/// Every kind of line, every code and every fatal error drains at its first occurrence.
fn strictest(rows: &[Row]) -> GateConfig {
    let word = |row: &Row, kind: &str| {
        row.verdict.strip_prefix(kind).and_then(|rest| rest.split(' ').next()).map(ToOwned::to_owned)
    };
    let fail = |names: BTreeSet<String>| -> toml::Table {
        names.into_iter().map(|name| (name, "fail".into())).collect()
    };
    let xids = rows.iter().filter_map(|row| word(row, "xid ")).collect();
    let sxids = rows.iter().filter_map(|row| word(row, "sxid ")).collect();
    let ids = kernel_lines::ids().map(ToOwned::to_owned).collect();
    let table = toml::toml! {
        strikes = 1
        new_checks = "act"
        [prolog]
        warn = "report"
        [checks.gpu-xid]
        unknown_code = "fail"
        [checks.gpu-sxid]
        fatal = "fail"
        [checks.kmsg]
    };
    let mut table = table;
    for (check, key, names) in
        [("gpu-xid", "codes", xids), ("gpu-sxid", "codes", sxids), ("kmsg", "lines", ids)]
    {
        let settings = table["checks"][check].as_table_mut().unwrap();
        settings.insert(key.to_owned(), fail(names).into());
    }
    table.try_into().unwrap()
}

/// A healthy machine, and one whose NVML has no recovery action (before R570) and so neither confirms nor denies an error.
fn machines() -> (Profile, [Snapshot; 2]) {
    let (profile, _) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
    let healthy = railgate_simulate::simulated(&profile, &[]);
    let mut silent = healthy.clone();
    if let Part::Read { data, .. } = &mut silent.gpus {
        for gpu in &mut data.gpus {
            gpu.recovery_action = Reading::Unsupported;
        }
    }
    (profile, [healthy, silent])
}

/// Failing findings of a prolog, an epilog and a periodic check, one minute apart.
fn failures(profile: &Profile, healthy: &Snapshot, config: &GateConfig, texts: &[&str]) -> Vec<String> {
    let log = read(texts.iter().copied(), &healthy.boot_id);
    let mut now = Snapshot { kernel_log: Part::Read { data: log, took_ms: 1.0 }, ..healthy.clone() };
    let mut memory = Memory::default();
    let mut failed = Vec::new();
    for phase in [Phase::Prolog, Phase::Epilog, Phase::Periodic] {
        let before = Some(healthy);
        let seen = Seen { phase, now: &now, before, job: None, profile: Some(profile), memory: &memory };
        let verdict = judge(config, &seen);
        let findings = verdict.findings.iter().chain(&verdict.shadow);
        failed.extend(
            findings
                .filter(|one| one.severity == Severity::Fail)
                .map(|one| format!("{phase}: {}: {}", one.subject(), one.what)),
        );
        if verdict.fitness == Fitness::Unfit && failed.is_empty() {
            failed.push(format!("{phase}: unfit"));
        }
        memory.strike(&now, &verdict);
        now.taken += 60_000;
    }
    failed
}

/// The same line with the address of a GPU of the simulated machine: errors of absent GPUs are ignored.
fn of_this_machine(text: &str) -> String {
    let known =
        |rest: &str| rest.split_once(')').map(|(_, rest)| format!("NVRM: Xid (PCI:0000:61:00){rest}"));
    text.strip_prefix("NVRM: Xid (").and_then(known).unwrap_or_else(|| text.to_owned())
}

#[test]
fn lines_a_user_can_cause_drain_no_node() {
    let mut drained = Vec::new();
    for folder in collections() {
        let rows = collection(&folder);
        let config = strictest(&rows);
        let texts: Vec<(&Row, String)> =
            rows.iter().filter(|row| row.by_user).map(|row| (row, of_this_machine(&row.text))).collect();
        assert!(texts.len() > 200, "{}", texts.len());
        let known = drained.len();
        let (profile, machines) = machines();
        for healthy in machines {
            for (row, text) in &texts {
                let failures = failures(&profile, &healthy, &config, &[text.as_str(); 3]);
                drained.extend(failures.first().map(|failure| format!("{}: {failure}: {text}", row.place)));
            }
            let all: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
            drained.extend(
                failures(&profile, &healthy, &config, &all).first().map(|one| format!("together: {one}")),
            );
        }
        let count = drained.len() - known;
        println!("{}: {} lines that a user can cause, {count} drain", folder.display(), texts.len());
    }
    assert!(drained.is_empty(), "{}", drained.join("\n"));
}

/// The configuration is strict enough: lines of real faults drain once the driver repeats them.
#[test]
fn lines_of_real_faults_drain_the_node() {
    let rows = collection(&collections().remove(0));
    let config = strictest(&rows);
    let (profile, [_, silent]) = machines();
    for kind in FAULTS {
        let text = rows.iter().find(|row| !row.by_user && row.verdict.starts_with(kind)).map(|row| &row.text);
        let text = of_this_machine(text.unwrap());
        assert!(!failures(&profile, &silent, &config, &[text.as_str(); 3]).is_empty(), "{kind}: {text}");
    }
}

const FAULTS: [&str; 12] = [
    "xid 46 ",
    "xid 62 ",
    "xid 119 ",
    "xid 120 ",
    "sxid 12028 ",
    "sxid 20034 ",
    "line mlx5-health ",
    "line pcie-fatal ",
    "line memory-uncorrected ",
    "line disk-error ",
    "line fs-error ",
    "line nvme-timeout ",
];
