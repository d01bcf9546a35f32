//! The file of a fleet's history: what it keeps, and what it refuses.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use railgate_fleet::{Event, Source, What};
use railgate_fleet_store::{Reader, StoreError, Taken, Writer};
use tempfile::TempDir;

const T: u64 = 1_795_651_200_000;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.db");
    (dir, path)
}

fn event(number: u64) -> Event {
    let node = format!("n{:03}", number % 100);
    Event {
        id: format!("resume-{number}"),
        time: T + number * 1000,
        source: Source::Root,
        what: What::Resumed { node },
    }
}

fn events(numbers: std::ops::Range<u64>) -> Vec<Event> {
    numbers.map(event).collect()
}

fn open(path: &Path) -> Writer {
    Writer::open(path, "ctld1", T).unwrap()
}

fn all(path: &Path) -> Vec<Event> {
    Reader::open(path).unwrap().events(0, u64::MAX).unwrap()
}

#[test]
fn what_was_taken_in_is_there_once_after_reopening() {
    let (_dir, path) = place();
    let mut writer = open(&path);
    assert_eq!(writer.take_in(&events(0..300), T).unwrap(), Taken { new: 300, ..Taken::default() });
    assert_eq!(writer.take_in(&events(200..400), T).unwrap(), Taken { new: 100, known: 100, conflicting: 0 });
    // A reader while the writer has the file open.
    assert_eq!(all(&path), events(0..400));
    drop(writer);
    assert_eq!(all(&path), events(0..400));
    let writer = open(&path);
    assert_eq!(writer.events(T + 5000, T + 7000).unwrap(), events(5..8));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_same_of_two_contents_counts_in_any_order() {
    let other = Event { time: T + 99, ..event(1) };
    let mut kept = Vec::new();
    for order in [[event(1), other.clone()], [other, event(1)]] {
        let (_dir, path) = place();
        let mut writer = open(&path);
        for one in &order {
            writer.take_in(std::slice::from_ref(one), T).unwrap();
        }
        kept.push(writer.events(0, u64::MAX).unwrap());
        assert_eq!(writer.take_in(&order, T).unwrap().conflicting, 1);
    }
    assert_eq!(kept[0], kept[1]);
}

#[test]
fn a_second_process_of_this_machine_is_refused() {
    let (_dir, path) = place();
    let first = open(&path);
    let refused = Writer::open(&path, "ctld1", T).unwrap_err();
    assert!(matches!(refused, StoreError::Held { .. }), "{refused}");
    drop(first);
    open(&path);
}

/// Another controller has no lock on this machine: the lock file is replaced to play it.
#[test]
fn another_controller_waits_for_the_lease_and_then_fences_the_first() {
    let (_dir, path) = place();
    let mut first = open(&path);
    first.take_in(&events(0..10), T).unwrap();
    fs::remove_file(path.with_file_name("fleet.db.lock")).unwrap();
    let refused = Writer::open(&path, "ctld2", T + 60_000).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("{}: ctld1 writes this history", path.canonicalize().unwrap().display())
    );
    fs::remove_file(path.with_file_name("fleet.db.lock")).unwrap();
    let mut second = Writer::open(&path, "ctld2", T + 10 * 60_000).unwrap();
    second.take_in(&events(10..20), T + 10 * 60_000).unwrap();
    let late = first.take_in(&events(20..30), T + 10 * 60_000).unwrap_err();
    assert!(matches!(late, StoreError::LeaseLost { .. }), "{late}");
    assert!(matches!(first.forget_before(u64::MAX, T), Err(StoreError::LeaseLost { .. })));
    drop(first);
    // The end of the first one does not end the lease of the second.
    second.take_in(&events(20..21), T + 10 * 60_000).unwrap();
    assert_eq!(all(&path), events(0..21));
}

#[test]
fn old_events_can_be_forgotten() {
    let (_dir, path) = place();
    let mut writer = open(&path);
    writer.take_in(&events(0..50), T).unwrap();
    assert_eq!(writer.forget_before(T + 40_000, T).unwrap(), 40);
    assert_eq!(writer.events(0, u64::MAX).unwrap(), events(40..50));
}

#[test]
fn a_backup_of_an_open_history_can_be_restored() {
    let (dir, path) = place();
    let mut writer = open(&path);
    writer.take_in(&events(0..500), T).unwrap();
    let copy = dir.path().join("copy.db");
    writer.backup(&copy).unwrap();
    writer.take_in(&events(500..600), T).unwrap();
    assert_eq!(all(&copy), events(0..500));
    // Again, over the old one.
    writer.backup(&copy).unwrap();
    drop(writer);
    fs::write(&path, b"no database at all, but some text that is long enough").unwrap();
    assert!(matches!(Writer::open(&path, "ctld1", T), Err(StoreError::Damaged { .. })));
    fs::rename(&copy, &path).unwrap();
    let mut writer = Writer::open(&path, "ctld2", T).unwrap();
    writer.take_in(&events(600..601), T).unwrap();
    assert_eq!(all(&path), events(0..601));
    assert!(!dir.path().join("copy.db.new").exists());
}

#[test]
fn what_is_no_history_is_refused_and_left_as_it_is() {
    let (dir, path) = place();
    assert!(matches!(Reader::open(&path), Err(StoreError::Absent { .. })));
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = Writer::open(&path, "ctld1", T).unwrap_err().to_string();
    assert!(refused.ends_with("damaged (empty file); move it away and restore a backup"), "{refused}");
    fs::remove_file(&path).unwrap();
    let foreign = rusqlite_file(&path, "CREATE TABLE other (x)");
    assert!(matches!(Writer::open(&path, "ctld1", T), Err(StoreError::Foreign { .. })));
    assert_eq!(fs::read(&path).unwrap(), foreign);
    fs::remove_file(&path).unwrap();
    drop(open(&path));
    rusqlite_file(&path, "PRAGMA user_version = 99");
    let refused = Writer::open(&path, "ctld1", T).unwrap_err();
    assert!(matches!(refused, StoreError::Newer { found: 99, .. }), "{refused}");
    fs::rename(&path, dir.path().join("real.db")).unwrap();
    symlink(dir.path().join("real.db"), &path).unwrap();
    assert!(Writer::open(&path, "ctld1", T).is_err());
}

/// Changes a file by SQLite itself. Returns its content.
fn rusqlite_file(path: &Path, text: &str) -> Vec<u8> {
    rusqlite::Connection::open(path).unwrap().execute_batch(text).unwrap();
    fs::read(path).unwrap()
}

#[test]
fn a_path_that_others_can_change_is_refused() {
    let (dir, path) = place();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(Writer::open(&path, "ctld1", T), Err(StoreError::Untrusted(_))));
    assert!(!path.exists());
}

/// Each flipped byte is found, or changes nothing that is read.
#[test]
fn flipped_bytes_are_found_and_never_read_as_events() {
    let (_dir, path) = place();
    let mut writer = open(&path);
    writer.take_in(&events(0..200), T).unwrap();
    drop(writer);
    let good = fs::read(&path).unwrap();
    let (mut found, mut harmless) = (0, 0);
    // A prime step, so that all kinds of pages are met.
    for step in 0..250 {
        let at = (step * 7919 + 13) % good.len();
        let mut bad = good.clone();
        bad[at] ^= 0x5a;
        fs::write(&path, &bad).unwrap();
        let read = Writer::open(&path, "ctld1", T).and_then(|writer| writer.events(0, u64::MAX));
        match read {
            Ok(read) => {
                assert!(read == events(0..200), "byte {at}");
                harmless += 1;
            }
            Err(StoreError::Damaged { .. } | StoreError::Foreign { .. } | StoreError::Newer { .. }) => {
                found += 1
            }
            Err(why) => panic!("byte {at}: {why}"),
        }
    }
    assert!(found > 100, "{found} found, {harmless} harmless");
    fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(matches!(Writer::open(&path, "ctld1", T), Err(StoreError::Damaged { .. })));
    fs::write(&path, &good).unwrap();
    assert_eq!(all(&path), events(0..200));
}

/// A tmpfs of 1 MiB in a mount namespace of the thread, which ends with it.
#[test]
fn a_full_disk_loses_nothing_that_was_committed() {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().to_owned();
    let ran = std::thread::spawn(move || {
        if unshare(CloneFlags::CLONE_NEWNS).is_err() {
            return false;
        }
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        if mount(Some("small"), &small, Some("tmpfs"), MsFlags::empty(), Some("size=1m,mode=0700")).is_err() {
            return false;
        }
        let path = small.join("fleet.db");
        let mut writer = open(&path);
        let mut committed = 0;
        let refused = loop {
            match writer.take_in(&events(committed..committed + 100), T) {
                Ok(_) => committed += 100,
                Err(why) => break why,
            }
        };
        assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
        assert!(committed > 300, "{committed}");
        assert_eq!(writer.events(0, u64::MAX).unwrap(), events(0..committed));
        // Still full, for another process as well.
        drop(writer);
        assert_eq!(all(&path), events(0..committed));
        // With space again it continues.
        mount(none, &small, none, MsFlags::MS_REMOUNT, Some("size=8m")).unwrap();
        let mut writer = open(&path);
        writer.take_in(&events(committed..committed + 100), T).unwrap();
        drop(writer);
        assert_eq!(all(&path), events(0..committed + 100));
        true
    })
    .join()
    .unwrap();
    if !ran {
        eprintln!("not run: no mount namespaces here");
    }
}

/// Writes batches until it is killed, and prints each that was committed. Only `a_killed_writer_loses_nothing` starts it.
#[test]
#[ignore = "the child of another test"]
fn child_that_writes() {
    let Some(path) = std::env::var_os("FLEET_STORE_CHILD") else { return };
    let mut writer = open(Path::new(&path));
    for batch in 0.. {
        writer.take_in(&events(batch * 20..batch * 20 + 20), T).unwrap();
        println!("committed {batch}");
    }
}

#[test]
fn a_killed_writer_loses_nothing() {
    use std::io::{BufRead, BufReader};
    for kill_after in [1, 5, 17] {
        let (_dir, path) = place();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_writes", "--ignored", "--nocapture"])
            .env("FLEET_STORE_CHILD", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let committed =
            lines.map_while(Result::ok).filter(|line| line.starts_with("committed")).nth(kill_after);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(committed.is_some());
        // The lease of the dead one is its own name's, and its lock ended with it.
        let writer = open(&path);
        let read = writer.events(0, u64::MAX).unwrap();
        assert!(read.len() >= (kill_after + 1) * 20 && read.len().is_multiple_of(20), "{}", read.len());
        assert_eq!(read, events(0..read.len() as u64));
    }
}

/// A log that is cut or damaged, which a crash between commit and checkpoint can leave, is read as far as it is whole.
#[test]
fn the_log_is_empty_after_each_intake() {
    let (dir, path) = place();
    let mut writer = open(&path);
    writer.take_in(&events(0..100), T).unwrap();
    assert_eq!(fs::metadata(dir.path().join("fleet.db-wal")).unwrap().len(), 0);
    // All is in the file itself.
    let file = fs::File::open(&path).unwrap();
    let mut content = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content.windows(9).any(|window| window == b"resume-99"));
}

/// `cargo test --release -p railgate-fleet-store -- --ignored --nocapture how_fast`
#[test]
#[ignore = "a measurement"]
fn how_fast() {
    let (_dir, path) = place();
    let mut writer = open(&path);
    let batches = 200;
    let begun = std::time::Instant::now();
    for batch in 0..batches {
        writer.take_in(&events(batch * 2000..batch * 2000 + 2000), T).unwrap();
    }
    let size = fs::metadata(&path).unwrap().len();
    println!("{} batches of 2,000 events: {:?}, {size} bytes", batches, begun.elapsed());
    drop(writer);
    let begun = std::time::Instant::now();
    println!("{} events read in {:?}", all(&path).len(), begun.elapsed());
}

#[test]
fn the_place_of_the_sources_is_kept_with_the_events_and_in_a_backup() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("fleet.db");
    let mut writer = Writer::open(&path, "ctld1", 1000).unwrap();
    assert_eq!(writer.intake().unwrap(), None);
    writer.take_in_from(&[], Some("first"), 1000).unwrap();
    writer.backup(&place.path().join("copy.db")).unwrap();
    writer.take_in_from(&[], Some("second"), 1000).unwrap();
    writer.take_in_from(&[], None, 1000).unwrap();
    assert_eq!(writer.intake().unwrap().as_deref(), Some("second"));
    drop(writer);
    let restored = Writer::open(&place.path().join("copy.db"), "ctld1", 1000).unwrap();
    assert_eq!(restored.intake().unwrap().as_deref(), Some("first"));
}

/// More rows than are parsed at once.
#[test]
fn many_events_are_read_by_time_and_id_and_the_first_damaged_one_is_named() {
    let (_dir, path) = place();
    // By id, 10000 stands before 9999, and two events share each time.
    let many: Vec<Event> =
        (0..12_000).map(|number| Event { time: T + number / 2, ..event(number) }).collect();
    open(&path).take_in(&many, T).unwrap();
    let mut sorted = many.clone();
    sorted.sort_by(|one, other| (one.time, &one.id).cmp(&(other.time, &other.id)));
    assert_eq!(all(&path), sorted);
    let some = Reader::open(&path).unwrap().events(T + 100, T + 4999).unwrap();
    assert_eq!(some, sorted[200..10_000]);
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute("UPDATE event SET checksum = x'00' WHERE id IN ('resume-2000', 'resume-9000')", []).unwrap();
    drop(file);
    let refused = Reader::open(&path).unwrap().events(0, u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("damaged (event resume-2000)"), "{refused}");
    // A value of another type is damage as well.
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute("UPDATE event SET body = x'00' WHERE id = 'resume-1000'", []).unwrap();
    drop(file);
    let refused = Reader::open(&path).unwrap().events(0, u64::MAX).unwrap_err().to_string();
    assert!(refused.contains("damaged (a row of events: Invalid type)"), "{refused}");
}
