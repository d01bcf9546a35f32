use std::collections::BTreeSet;

use super::*;
use crate::readers::kernel_log_read;

mod sources;

/// What a hole may hold in a record.
fn sample_of(hole: &str) -> &'static str {
    match hole {
        "int" => "7",
        "hex" => "1f",
        "word" => "rcu_preempt",
        "part" => "md127",
        "disk" => "nvme0n1",
        "host" => "storage1",
        "bdf" => "0000:5e:00.0",
        "name" => "kworker/u64:3",
        "text" => "some (0x8) text",
        "rest" => " and more",
        other => panic!("unknown hole {other}"),
    }
}

fn holes(text: &str) -> Vec<&str> {
    text.split('{').skip(1).map(|rest| rest.split_once('}').unwrap().0).collect()
}

fn filled(text: &str) -> String {
    holes(text)
        .into_iter()
        .fold(text.replace('|', ""), |text, hole| text.replacen(&format!("{{{hole}}}"), sample_of(hole), 1))
}

fn lead_of(format: &Format) -> &'static str {
    match format.lead {
        Lead::None => "",
        Lead::Text(helper) => helper.text,
        Lead::Process => "{name}: ",
    }
}

/// A record of this format, as the kernel writes it.
fn sample(format: &Format) -> String {
    filled(lead_of(format)) + &filled(format.text)
}

fn read(level: u8, text: &str) -> Vec<KernelLine> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{level},9,1000000,-;{text}\n")).unwrap();
    kernel_log_read(file.path(), None, "this").unwrap().lines
}

#[test]
fn every_format_passes_the_reader_and_gives_its_row() {
    for row in rows() {
        for format in row.formats {
            let text = sample(format);
            let lines = read(3, &text);
            let got = lines.first().map(|line| line.recognise());
            let named = [lead_of(format), format.text]
                .into_iter()
                .flat_map(holes)
                .find(|hole| matches!(*hole, "part" | "disk" | "host" | "bdf"));
            let part = match named {
                None => KernelPart::Node,
                Some("bdf") => KernelPart::Pci(sample_of("bdf").parse().unwrap()),
                Some(hole) => KernelPart::Name(sample_of(hole)),
            };
            assert_eq!(got, Some(Some(Recognised { id: row.id, part })), "{text}");
        }
        for format in row.over {
            let text = sample(format);
            let lines = read(6, &text);
            let got = lines.first().map(|line| taken_back(&line.text).map(|back| back.id));
            assert_eq!(got, Some(Some(row.id)), "{text}");
            assert_eq!(recognise(&text), None, "{text}");
        }
    }
}

#[test]
fn ids_and_leaders_are_each_listed_once() {
    let unique: BTreeSet<&str> = ids().collect();
    assert_eq!(unique.len(), ids().count());
    let leaders: BTreeSet<&str> = LEADERS.iter().map(|(leader, _)| *leader).collect();
    assert_eq!(leaders.len(), LEADERS.len());
    assert!(LEADERS.iter().all(|(_, reader)| !reader.is_empty()));
}

/// A hole that a process fills must not move the hole that names the part.
#[test]
fn the_part_stands_before_all_that_a_process_can_word() {
    for format in rows().flat_map(|row| row.formats.iter().chain(row.over)) {
        let lead = if format.lead == Lead::Process { "" } else { lead_of(format) };
        let holes: Vec<&str> = [lead, format.text].into_iter().flat_map(holes).collect();
        let free = holes.iter().position(|hole| matches!(*hole, "name" | "text" | "rest"));
        let names = holes.iter().rposition(|hole| matches!(*hole, "part" | "disk" | "host" | "bdf"));
        assert!(free.is_none_or(|free| names.is_none_or(|names| names < free)), "{}", format.text);
        assert!(holes.iter().filter(|hole| **hole == "text").count() < 2, "{}", format.text);
        assert!(!format.text.replace("}{rest}", "").contains("}{"), "{}: holes side by side", format.text);
    }
}

#[test]
fn a_drivers_harmless_state_is_not_its_fault() {
    let text = "mlx5_core 0000:5e:00.0: print_health_info:447:(pid 0): synd 0x10: High temperature";
    assert_eq!(read(3, text)[0].recognise().map(|known| known.id), Some("mlx5-health"));
    assert_eq!(read(6, text)[0].recognise(), None);
    let info = "mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): Health issue observed, \
                High temperature, severity(6) INFO:";
    assert_eq!(recognise(info), None);
}

/// The reader keeps the kernel's words and not the name, so that no name is taken for a driver's record.
#[test]
fn the_name_of_a_process_is_taken_from_a_record_that_begins_with_it() {
    let own = "attempt to access beyond end of device\\x0asda1: rw=0, sector=9, nr_sectors = 8 limit=4";
    for name in ["python3", "kworker/u203:1", "x[1]", "\\x0a\\x0a", "NVRM: GPU 1:0:0", "EXT4-fs (md0): "] {
        let lines = read(6, &format!("{name}: {own}"));
        assert_eq!(lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), [own], "{name}");
    }
    for refused in [
        "python3: attempt to access beyond end of device".to_owned(),
        format!("{}: {own}", "x".repeat(70)),
        format!("python3 {own}"),
        format!("NVRM: x: {own} x"),
        "a: attempt to access beyond end of device\\x0aloop0: rw=0, sector=9, nr_sectors = 8 limit=4"
            .to_owned(),
    ] {
        assert_eq!(read(6, &refused), [], "{refused}");
    }
}

/// What stands further on in a record is a user's.
#[test]
fn a_format_inside_another_record_is_nothing() {
    for format in rows().flat_map(|row| row.formats) {
        let text = sample(format);
        for outer in [
            format!("overlayfs: failed to resolve '{text}': -2"),
            format!("process '{text}' started with executable stack"),
            format!("x[77]: segfault at 0 ip 0 sp 0 error 4 in {text}[401000+1000]"),
            format!("Memory cgroup out of memory: Killed process 7 ({text}) total-vm:1kB"),
            format!("NVRM: Xid (PCI:0000:18:00): 13, pid=1, name={text}, Graphics Exception"),
        ] {
            for line in read(3, &outer) {
                assert_eq!(line.recognise(), None, "{outer}");
            }
        }
    }
}
