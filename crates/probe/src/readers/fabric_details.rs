use std::path::Path;

use railgate_fsutil::{ReadError, read};
use railgate_model::{Gid, HcaDetails, Interface, LinkLayer, PortDetails, Reading};

use crate::sysfs;

/// A table is assumed to end after this many empty entries in a row, because each read is a firmware command.
const EMPTY_AT_THE_END: usize = 4;

/// Maximum number of entries read from a table.
const MOST_PLACES: usize = 64;

/// Reads further values from the device's directory, and its interfaces in `class/net`.
pub(super) fn hca_details(at: &Path, netdevs: &[String], sysfs_root: &Path) -> HcaDetails {
    let interface = |name: &String| {
        let at = sysfs_root.join("class/net").join(name);
        Interface {
            name: name.clone(),
            state: sysfs::text(&at.join("operstate")),
            mtu: sysfs::parsed(&at.join("mtu"), "an MTU", |text| text.parse().ok()),
            port: sysfs::parsed(&at.join("dev_port"), "a port", |text| text.parse().ok()),
        }
    };
    HcaDetails {
        board: sysfs::text(&at.join("board_id")),
        interfaces: netdevs.iter().map(interface).collect(),
    }
}

/// Reads the tables of a port: partition keys for InfiniBand, GIDs for Ethernet.
pub(super) fn port_details(at: &Path, layer: &Reading<LinkLayer>) -> PortDetails {
    let none = PortDetails::default();
    match layer {
        Reading::Known(LinkLayer::InfiniBand) => PortDetails { pkeys: pkeys(&at.join("pkeys")), ..none },
        Reading::Known(LinkLayer::Ethernet) => PortDetails { gids: gids(at), ..none },
        _ => none,
    }
}

fn pkeys(at: &Path) -> Reading<Vec<u16>> {
    table(at, |text| {
        let key = sysfs::hex(text).and_then(|key| u16::try_from(key).ok())?;
        Some((key != 0).then_some(key))
    })
    .map(|found| found.into_iter().map(|(_, key)| key).collect())
}

fn gids(at: &Path) -> Reading<Vec<Gid>> {
    let zero = |text: &str| text.chars().all(|c| matches!(c, '0' | ':'));
    let found = table(&at.join("gids"), |text| Some((!zero(text)).then(|| text.to_owned())));
    found.map(|found| {
        let attributes = at.join("gid_attrs");
        let gid = |(place, gid): (u32, String)| Gid {
            index: place,
            gid,
            kind: attribute(&attributes.join("types").join(place.to_string())),
            interface: attribute(&attributes.join("ndevs").join(place.to_string())),
        };
        found.into_iter().map(gid).collect()
    })
}

/// Reads an entry. The kernel returns EINVAL or ENODEV for an empty one; it may have become empty just now.
fn attribute(path: &Path) -> Reading<String> {
    match sysfs::attribute(path) {
        Ok(text) => Reading::Known(text),
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENODEV)) => Reading::Unsupported,
        Err(error) => sysfs::failure(&error),
    }
}

/// The entries of a table that are not empty. `parse` returns `None` for text that it cannot parse and `Some(None)` for
/// an empty entry.
fn table<T>(at: &Path, parse: impl Fn(&str) -> Option<Option<T>>) -> Reading<Vec<(u32, T)>> {
    let names = match read::names(at) {
        Ok(names) => names,
        Err(error) => return sysfs::failure(&error),
    };
    let (mut found, mut empty) = (Vec::new(), 0);
    for name in names.iter().take(MOST_PLACES) {
        let Ok(place) = name.parse::<u32>() else { continue };
        let path = at.join(name);
        let entry = sysfs::attribute(&path).and_then(|text| {
            parse(&text).ok_or_else(|| ReadError::odd(&path, &text, "an entry of this table"))
        });
        match entry {
            Ok(Some(entry)) => {
                found.push((place, entry));
                empty = 0;
            }
            Ok(None) => empty += 1,
            Err(error) if error.is_absent() => empty += 1,
            Err(error) => return Reading::Failed(error.to_string()),
        }
        if empty == EMPTY_AT_THE_END {
            break;
        }
    }
    Reading::Known(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        dir
    }

    #[test]
    fn empty_entries_between_partition_keys_are_skipped() {
        let dir = folder(&[
            ("pkeys/0", "0x7fff"),
            ("pkeys/1", "0x0000"),
            ("pkeys/2", "0x8123"),
            ("pkeys/10", "0x0000"),
        ]);
        let details = port_details(dir.path(), &Reading::Known(LinkLayer::InfiniBand));
        assert_eq!(details.pkeys, Reading::Known(vec![0x7fff, 0x8123]));
        assert_eq!(details.gids, Reading::Unsupported);
        let odd = folder(&[("pkeys/0", "keys")]);
        assert!(matches!(pkeys(&odd.path().join("pkeys")), Reading::Failed(why) if why.contains("'keys'")));
        assert_eq!(pkeys(&odd.path().join("none")), Reading::Unsupported);
    }

    #[test]
    fn gids_are_read_with_their_type() {
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
        let v4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001";
        let dir = folder(&[
            ("gids/0", "fe80:0000:0000:0000:9a03:9bff:fe5e:8f2a"),
            ("gids/1", zero),
            ("gids/3", v4),
            ("gid_attrs/types/0", "IB/RoCE v1"),
            ("gid_attrs/types/3", "RoCE v2"),
            ("gid_attrs/ndevs/3", "ens24np0"),
        ]);
        let details = port_details(dir.path(), &Reading::Known(LinkLayer::Ethernet));
        let Reading::Known(gids) = details.gids else { panic!() };
        let rows: Vec<_> = gids.iter().map(|gid| (gid.index, gid.kind.known().map(String::as_str))).collect();
        assert_eq!(rows, [(0, Some("IB/RoCE v1")), (3, Some("RoCE v2"))]);
        assert_eq!((&gids[0].interface, &gids[1].gid), (&Reading::Unsupported, &v4.to_owned()));
    }

    #[test]
    fn the_interfaces_of_a_device_are_read() {
        let dir = folder(&[
            ("class/net/ib0/operstate", "up"),
            ("class/net/ib0/mtu", "4092"),
            ("dev/board_id", "MT_0838"),
        ]);
        let names = ["ib0".to_owned(), "gone".to_owned()];
        let details = hca_details(&dir.path().join("dev"), &names, dir.path());
        assert_eq!(details.board, Reading::Known("MT_0838".to_owned()));
        assert_eq!(details.interfaces[0].mtu, Reading::Known(4092));
        assert_eq!(details.interfaces[1].state, Reading::Unsupported);
    }
}
