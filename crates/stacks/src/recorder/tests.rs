use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Of rank 1 of two, which waits in another group than rank 0; PyTorch 2.11.
const DIFFERENT_ORDER: &[u8] = include_bytes!("2.11-different-order.pickle");

#[test]
fn the_operation_that_did_not_complete_is_told_with_its_place() {
    assert_eq!(
        what(DIFFERENT_ORDER).unwrap(),
        "in all_reduce number 2 of group 2, 16777216 Float, called as all_reduce (hangs.py:87), not completed"
    );
}

#[test]
fn other_records_are_refused_or_told_as_they_are() {
    // An empty list, an empty record, an object that would have to be made, and half a record.
    let empty = b"\x80\x02}q\x00X\x07\x00\x00\x00entriesq\x01]q\x02s.";
    assert_eq!(what(empty).unwrap(), "with no operation recorded");
    for pickle in
        [&b""[..], b"\x80\x02]q\x00.", b"\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03."]
    {
        assert!(what(pickle).is_err(), "{pickle:?}");
    }
    assert!(what(&DIFFERENT_ORDER[..DIFFERENT_ORDER.len() / 2]).is_err());
}

fn order(dir: &Path) -> RecorderOrder {
    RecorderOrder { pipe: dir.join("fr-"), dump: dir.join("fr-dump-"), uid: 0, gid: 0, ranks: vec![0, 1] }
}

#[test]
fn only_ranks_that_listen_are_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let order = order(dir.path());
    assert_eq!(record(&order, Duration::from_secs(60)), []);
    // A file, a link to a pipe, and a pipe without a reader.
    std::fs::write(dir.path().join("fr-0.pipe"), "").unwrap();
    let other = dir.path().join("other");
    mkfifo(&other, Mode::S_IRWXU).unwrap();
    symlink(&other, dir.path().join("fr-1.pipe")).unwrap();
    assert_eq!(record(&order, Duration::from_secs(60)), []);
    assert_eq!(std::fs::read(dir.path().join("fr-0.pipe")).unwrap(), b"");
}

#[test]
fn a_record_is_read_when_it_is_complete_and_newer_than_the_question() {
    let dir = tempfile::tempdir().unwrap();
    let order = RecorderOrder { ranks: vec![1], ..order(dir.path()) };
    let (pipe, dump) = (dir.path().join("fr-1.pipe"), dir.path().join("fr-dump-1"));
    std::fs::write(&dump, DIFFERENT_ORDER).unwrap();
    let old = SystemTime::now() - Duration::from_secs(100);
    std::fs::File::open(&dump).unwrap().set_modified(old).unwrap();
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // PyTorch opens its pipe for reading and does not wait for a writer.
    let mut reader = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&pipe).unwrap();
    assert_eq!(record(&order, Duration::from_millis(300)), [], "an old record does not count");
    let half = dump.clone();
    let writes = std::thread::spawn(move || {
        std::fs::write(&half, &DIFFERENT_ORDER[..1000]).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        std::fs::write(&half, DIFFERENT_ORDER).unwrap();
    });
    let found = record(&order, Duration::from_secs(60));
    writes.join().unwrap();
    assert_eq!((found.len(), found[0].rank), (1, 1));
    let mut heard = String::new();
    reader.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "1\n1\n");
}
