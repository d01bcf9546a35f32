use railgate_model::{Host, LinkLayer, Part, Reading, Snapshot};
use railgate_rails::{rail_map, topology};

use super::*;
use railgate_rails::testing::{flat_machine, switches, wired_profile};

fn host(snapshot: &mut Snapshot) -> &mut Host {
    match &mut snapshot.host {
        Part::Read { data, .. } => data,
        other => panic!("{other:?}"),
    }
}

/// Checks a good file after `change`, for its own machine and for all releases.
fn after(change: impl Fn(&str) -> String) -> TopologyCheck {
    let flat = flat_machine();
    let map = rail_map(&flat, &wired_profile());
    let good = topology(&map, &flat).unwrap();
    let changed = change(&good);
    assert_ne!(changed, good, "nothing was changed");
    check_topology(changed.as_bytes(), None, Some((&flat, &map)))
}

fn lines(check: &TopologyCheck) -> Vec<String> {
    let line = |p: &TopologyProblem| {
        let effect = serde_json::to_value(p.effect).unwrap();
        format!("{}:{} {} {}", p.line, p.column, effect.as_str().unwrap(), p.what)
    };
    check.problems.iter().map(line).collect()
}

#[test]
fn a_written_file_is_right_on_its_machine() {
    let flat = flat_machine();
    for (machine, map) in [
        (flat.clone(), rail_map(&flat, &wired_profile())),
        (switches(4, 2, 1), rail_map(&switches(4, 2, 1), None)),
        (switches(2, 2, 2), rail_map(&switches(2, 2, 2), None)),
    ] {
        let text = topology(&map, &machine).unwrap();
        for machine in [None, Some((&machine, &map))] {
            let check = check_topology(text.as_bytes(), None, machine);
            assert!(check.accepted && check.unknown.is_empty());
            assert_eq!(lines(&check), [""; 0], "{text}");
        }
    }
}

#[test]
fn each_mistake_has_its_effect() {
    let first_bridge = "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\"";
    for (from, to, says) in [
        ("  <cpu", "\t<cpu", "2:1 refused a tab where '<' should be"),
        ("numaid=\"0\" ", "", "2:3 refused <cpu> has no numaid"),
        (" modelid=\"143\"", "", "2:3 refused <cpu> has familyid and no modelid"),
        (" class=\"0x060400\"", "", "3:5 refused bridge ffff:ff:01.0 has no class"),
        (
            "0x060400",
            "0x020000",
            "3:5 refused bridge ffff:ff:01.0 has class 0x020000: NCCL treats it as a device and ignores its contents",
        ),
        ("busid=\"ffff:ff:01.0\" ", "", "3:5 refused <pci> has no busid: NCCL crashes"),
        (first_bridge, "<nic/><pci busid=\"ffff:ff:01.0\" class=\"0x060400\"", ""),
        (
            "32.0 GT/s PCIe",
            "32.0 GT/s",
            "3:5 misled link_speed '32.0 GT/s' of ffff:ff:01.0 is none that NCCL knows: it takes 8 GT/s",
        ),
        ("arch=\"x86_64\"", "arch=\"x64\"", "2:3 misled arch 'x64' is none that NCCL knows"),
        ("affinity=\"0000ffff\"", "affinity=\"0-15\"", "2:3 misled affinity '0-15' names no CPU"),
        (
            "affinity=\"0000ffff\"",
            "affinity=\"ffff0000\"",
            "2:3 misled affinity of <cpu> 0 has no CPU of that NUMA node (0-15)",
        ),
        (
            "affinity=\"0000ffff\"",
            "affinity=\"00000fff\"",
            "2:3 note affinity of <cpu> 0: the machine has 0-15",
        ),
        ("<cpu numaid", "<cpu keep=\"1\" numaid", "2:3 misled attribute keep of <cpu> is NCCL's own mark"),
        ("vendor=\"GenuineIntel\"", "vendor=\"Intel\"", "2:3 misled vendor 'Intel' is none that NCCL knows"),
    ] {
        let check = after(|good| good.replacen(from, to, 1));
        if says.is_empty() {
            assert!(check.problems.is_empty(), "{:?}", lines(&check));
            continue;
        }
        assert_eq!(lines(&check), [says], "{from} -> {to}");
        assert_eq!(check.accepted, !says.contains("refused"));
    }
}

#[test]
fn a_missing_device_is_reported_with_its_effect() {
    let check = after(|good| good.replacen("busid=\"0101:00:00.0\"", "busid=\"0101:00:00.0\" ", 1));
    assert!(lines(&check)[0].ends_with("a space too many: NCCL takes it for an attribute without a name"));
    assert_eq!(check.worst(), Some(Effect::Note));

    let check = after(|good| good.replacen("0001:00:00.0", "0001:00:00.A", 1));
    assert_eq!(
        lines(&check),
        [
            "0:0 misled GPU 0 (0001:00:00.0) is not in the file: NCCL places it by itself",
            "0:0 refused GPU 0 (0001:00:00.0) is not in the file: NCCL treats it as a GPU of another host and fails at start",
            "4:7 ignored busid '0001:00:00.A' is not like 0000:9b:00.0, lower case: NCCL finds no device with it",
        ]
    );

    let check = after(|good| good.replacen("0001:00:00.0", "0009:00:00.0", 1));
    let all = lines(&check);
    assert!(all.contains(&"4:7 misled GPU 0009:00:00.0 is not on this machine".to_owned()), "{all:?}");
}

/// As observed with four H200s of a virtual machine and NCCL 2.21.5, 2.28.9 and 2.30.7.
#[test]
fn in_some_releases_a_gpu_missing_in_the_file_splits_the_host() {
    let mut flat = flat_machine();
    let good = topology(&rail_map(&flat, &wired_profile()), &flat).unwrap();
    if let Part::Read { data, .. } = &mut flat.pci {
        data.devices.iter_mut().for_each(|device| device.numa_node = Reading::Unsupported);
    }
    let map = rail_map(&flat, &wired_profile());
    let accepts =
        |text: &str, version| check_topology(text.as_bytes(), Some(version), Some((&flat, &map))).accepted;
    let without = good.replacen("0001:00:00.0", "0001:00:00.A", 1);
    for (version, accepted) in [
        (NcclVersion::new(2, 20, 5), true),
        (NcclVersion::new(2, 21, 5), false),
        (NcclVersion::new(2, 26, 6), false),
        (NcclVersion::new(2, 27, 3), true),
        (NcclVersion::new(2, 30, 7), true),
    ] {
        assert!(accepts(&good, version));
        assert_eq!(accepts(&without, version), accepted, "{version:?}");
    }
    // None of the devices exists, so no host of the file remains.
    let foreign = (1..=4)
        .fold(good, |text, k| text.replace(&format!("\"{k:04x}:00:00.0"), &format!("\"000{k}:00:00.A")));
    assert!(accepts(&foreign, NcclVersion::new(2, 21, 5)));
}

#[test]
fn gpus_under_the_wrong_bridge_are_reported() {
    let check = after(|good| {
        good.replacen("0001:00:00.0", "keep", 1).replacen("0002:00:00.0", "0001:00:00.0", 1).replacen(
            "keep",
            "0002:00:00.0",
            1,
        )
    });
    assert_eq!(
        lines(&check),
        [
            "4:7 misled GPU 1 is nearer to mlx5_3 than to mlx5_2, the HCA of its rail",
            "8:7 misled GPU 0 is nearer to mlx5_2 than to mlx5_3, the HCA of its rail",
        ]
    );
    let flat = |good: &str| -> String {
        good.lines()
            .filter(|line| !line.contains("0x060400") && *line != "    </pci>")
            .map(|l| format!("{l}\n"))
            .collect()
    };
    let check = after(flat);
    assert_eq!(check.problems.len(), 4);
    assert!(
        lines(&check)[0].ends_with("share no bridge: NCCL does not use GPUDirect"),
        "{:?}",
        lines(&check)
    );
}

#[test]
fn a_device_that_contains_others_hides_them() {
    let check = after(|good| {
        good.replacen("<pci busid=\"0001:00:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>", "", 1)
            .replacen("<pci busid=\"0104:00:00.0\" class=\"0x020700\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>",
                "<pci busid=\"0104:00:00.0\" class=\"0x020700\"><pci busid=\"0001:00:00.0\"/></pci>", 1)
    });
    assert!(!check.accepted);
    assert_eq!(
        lines(&check).last().map(String::as_str),
        Some("5:7 refused 0104:00:00.0 is mlx5_3 and contains other devices: NCCL never reads them")
    );
}

#[test]
fn branches_without_a_device_are_dropped_unread() {
    let extra = "<cpu><pci busid=\"ffff:f0:01.0\"><pci busid=\"0077:00:00.0\" class=\"0x030200\"/></pci></cpu></system>";
    let check = after(|good| good.replacen("</system>", extra, 1));
    assert!(check.accepted);
    assert_eq!(lines(&check), ["20:32 note GPU 0077:00:00.0 is not on this machine"]);
    let alone = check_topology(format!("<system version=\"1\">{extra}").as_bytes(), None, None);
    assert!(!alone.accepted, "without a machine every device may be there");
}

#[test]
fn links_and_counts_in_a_dump_are_checked() {
    let gpu = |inside: &str| {
        let inside = inside.to_owned();
        move |good: &str| {
            good.replacen(
                "<pci busid=\"0001:00:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>",
                &format!("<pci busid=\"0001:00:00.0\">{inside}</pci>"),
                1,
            )
        }
    };
    assert!(after(gpu("<gpu dev=\"0\"/>")).accepted);
    assert!(!after(gpu("<gpu dev=\"-1\"/>")).accepted);
    assert!(after(gpu("<gpu><nvlink tclass=\"0x068000\" count=\"18\"/></gpu>")).accepted);
    assert!(!after(gpu("<gpu><nvlink tclass=\"0x068000\"/></gpu>")).accepted);
    assert!(!after(gpu("<gpu><nvlink count=\"18\"/></gpu>")).accepted);
    assert!(!after(gpu("<gpu><c2c count=\"1\"/></gpu>")).accepted);
}

#[test]
fn problems_of_some_releases_name_them() {
    let check = after(|good| good.replacen("version=\"1\"", "version='1'", 1));
    let refused: Vec<_> = check.problems.iter().filter(|p| p.effect == Effect::Refused).collect();
    assert!(refused.iter().all(|p| p.nccl.iter().all(|name| ["before 2.21", "2.21 to 2.26"].contains(name))));
    assert!(!refused.is_empty() && !check.accepted);
    let flat = flat_machine();
    let map = rail_map(&flat, &wired_profile());
    let text = topology(&map, &flat).unwrap().replacen("version=\"1\"", "version='1'", 1);
    let now = check_topology(text.as_bytes(), Some(NcclVersion::new(2, 28, 9)), Some((&flat, &map)));
    assert!(now.problems.is_empty());
    let old = check_topology(text.as_bytes(), Some(NcclVersion::new(2, 21, 5)), Some((&flat, &map)));
    assert!(!old.accepted && old.problems.iter().all(|problem| problem.nccl.is_empty()));
}

#[test]
fn an_empty_file_is_reported() {
    for text in ["", "<!-- later -->\n", "<other></other>"] {
        let check = check_topology(text.as_bytes(), None, None);
        assert!(check.accepted);
        assert_eq!(check.problems[0].effect, Effect::Ignored);
    }
}

#[test]
fn a_file_without_space_for_added_elements_is_reported() {
    let check = after(|good| {
        let pci = |cpu: u32| (0..25).map(move |k| format!("<pci busid=\"{cpu:04x}:{k:02x}:00.0\"/>"));
        let more: String =
            (2..10).map(|cpu| format!("<cpu>{}</cpu>", pci(cpu).collect::<String>())).collect();
        good.replacen("</system>", &format!("{more}</system>"), 1)
    });
    let all = lines(&check);
    assert!(all[0].starts_with("0:0 misled 222 elements leave too little room"), "{all:?}");
    assert!(check.accepted);
}

#[test]
fn with_unread_parts_the_file_is_not_called_right() {
    let mut flat = flat_machine();
    let map = rail_map(&flat, &wired_profile());
    let text = topology(&map, &flat).unwrap();
    flat.gpus = Part::Silent { after_ms: 8000.0 };
    let map = rail_map(&flat, &wired_profile());
    let check = check_topology(text.as_bytes(), None, Some((&flat, &map)));
    assert!(check.accepted);
    assert_eq!(check.unknown, ["GPUs: no answer in 8.0 s"]);
}

#[test]
fn the_numa_node_of_a_device_is_compared_with_the_machine() {
    let bare = switches(2, 1, 1);
    let map = rail_map(&bare, None);
    let text = topology(&map, &bare).unwrap().replacen("numaid=\"0\"", "numaid=\"9\"", 1);
    let check = check_topology(text.as_bytes(), None, Some((&bare, &map)));
    assert_eq!(
        lines(&check),
        [
            "4:7 misled GPU 0 is on NUMA node 0, the file has 9",
            "5:7 misled mlx5_0 is on NUMA node 0, the file has 9"
        ]
    );
    let mut other = bare.clone();
    host(&mut other).cpu = Reading::Known(("AuthenticAMD".to_owned(), 25, 17));
    let map = rail_map(&other, None);
    let text = topology(&map, &other).unwrap().replace(" familyid=\"25\"", "").replace(" modelid=\"17\"", "");
    assert!(check_topology(text.as_bytes(), None, Some((&other, &map))).problems.is_empty());
}

#[test]
fn a_gpu_of_another_socket_is_not_under_the_switch_of_its_hca() {
    let mut bare = switches(2, 2, 1);
    if let Part::Read { data, .. } = &mut bare.fabric {
        data.hcas.truncate(1);
    }
    let map = rail_map(&bare, None);
    assert_eq!(map.gpus.iter().map(|gpu| gpu.rail).collect::<Vec<_>>(), [Some(0); 4]);
    let text = topology(&map, &bare).unwrap();
    assert_eq!(
        text.matches("0x060400").count(),
        3,
        "one with the HCA, one for each GPU of the other socket:\n{text}"
    );
    assert!(check_topology(text.as_bytes(), None, Some((&bare, &map))).problems.is_empty());
    // A file that contradicts this is reported.
    let lie =
        text.replacen("0000:13:00.0\" class=\"0x020700", "0000:77:00.0\" class=\"0x020700", 1).replacen(
            "busid=\"0000:24:00.0\" class=\"0x030200\"",
            "busid=\"0000:13:00.0\" class=\"0x020700\"/><pci busid=\"0000:24:00.0\"",
            1,
        );
    let check = check_topology(lie.as_bytes(), None, Some((&bare, &map)));
    assert!(
        lines(&check).iter().any(|line| line.contains("share a bridge in the file, but not on the machine")),
        "{lie}"
    );
}

#[test]
fn a_contradictory_wiring_gives_no_file() {
    let mut flat = flat_machine();
    if let Part::Read { data, .. } = &mut flat.pci {
        for (k, device) in data.devices.iter_mut().enumerate() {
            device.numa_node = Reading::Known(u32::from(k == 0));
        }
    }
    if let Part::Read { data, .. } = &mut flat.fabric {
        data.hcas.iter_mut().for_each(|hca| hca.numa_node = Reading::Known(0));
    }
    let why = topology(&rail_map(&flat, &wired_profile()), &flat).unwrap_err().to_string();
    assert!(why.starts_with("the machine profile wires GPU 0 to mlx5_3, and on the machine they"), "{why}");
}

/// Bridges and HCAs of two switches, as in a cloud's file for a machine with a visible PCI tree: no class, no GPU.
fn bridges_and_hcas(root: &str) -> String {
    let cpu = |numa: u32, bus: &str, hca: &str| {
        format!(
            "  <cpu numaid=\"{numa}\">\n    <pci busid=\"{root}:{bus}:00.0\">\n      <pci busid=\"{hca}\" \
             link_speed=\"32 GT/s\" link_width=\"16\"/>\n    </pci>\n  </cpu>\n"
        )
    };
    format!(
        "<system version=\"1\">\n{}{}</system>\n",
        cpu(0, "11", "0000:13:00.0"),
        cpu(1, "21", "0000:23:00.0")
    )
}

fn silent<T>() -> Part<T> {
    Part::Silent { after_ms: 8000.0 }
}

#[test]
fn a_real_bridge_needs_no_class_and_gets_its_gpus_from_the_kernel() {
    let machine = switches(2, 1, 1);
    let map = rail_map(&machine, None);
    let check = check_topology(bridges_and_hcas("0000").as_bytes(), None, Some((&machine, &map)));
    assert!(check.accepted && check.right() && check.unknown.is_empty(), "{check:?}");
    assert_eq!(
        lines(&check),
        [
            "0:0 note GPU 0 (0000:14:00.0) is not in the file: NCCL places it under 0000:11:00.0, as the kernel does",
            "0:0 note GPU 1 (0000:24:00.0) is not in the file: NCCL places it under 0000:21:00.0, as the kernel does"
        ]
    );
    let elsewhere = check_topology(bridges_and_hcas("0001").as_bytes(), None, Some((&machine, &map)));
    assert!(lines(&elsewhere).contains(&"3:5 refused bridge 0001:11:00.0 has no class".to_owned()));
}

#[test]
fn with_an_unread_pci_tree_properties_of_a_bridge_are_unknown() {
    for unread in [true, false] {
        let mut machine = switches(2, 1, 1);
        machine.pci = silent();
        if unread {
            machine.gpus = silent();
        }
        let map = rail_map(&machine, None);
        let check = check_topology(bridges_and_hcas("0000").as_bytes(), None, Some((&machine, &map)));
        assert!(check.accepted && check.right(), "{:?}", lines(&check));
        let bridge = "bridge 0000:11:00.0: the file has no class, link_speed, link_width; NCCL reads it from the kernel \
                      where the bridge exists";
        assert!(check.unknown.contains(&bridge.to_owned()), "{:?}", check.unknown);
        let gpu = "GPU 0 (0000:14:00.0) is not in the file: where NCCL places it depends on the PCI tree";
        assert_eq!(check.unknown.contains(&gpu.to_owned()), !unread, "{:?}", check.unknown);
        let hidden = bridges_and_hcas("0000").replace("11:00.0\">", "11:00.0\" class=\"0x020000\">");
        let check = check_topology(hidden.as_bytes(), None, Some((&machine, &map)));
        assert!(
            check.accepted && check.unknown.iter().any(|why| why.contains("the file has class 0x020000"))
        );
        // Domain ffff does not exist, and the rest of the file is judged as usual.
        let made_up = check_topology(bridges_and_hcas("ffff").as_bytes(), None, Some((&machine, &map)));
        assert!(!made_up.accepted, "{:?}", lines(&made_up));
        let broken = bridges_and_hcas("0000").replace(" numaid=\"0\"", "");
        assert!(!check_topology(broken.as_bytes(), None, Some((&machine, &map))).accepted);
    }
}

#[test]
fn devices_count_as_missing_only_if_the_machine_was_read() {
    let whole = switches(2, 1, 1);
    let map = rail_map(&whole, None);
    let text = topology(&map, &whole)
        .unwrap()
        .replace("0000:14:00.0", "0000:77:00.0")
        .replace("0000:13:00.0", "0000:78:00.0");
    let missed = |machine: &Snapshot| {
        let map = rail_map(machine, None);
        let check = check_topology(text.as_bytes(), None, Some((machine, &map)));
        let all = lines(&check);
        ["GPU 0000:77:00.0 is not on", "HCA 0000:78:00.0 is not on"]
            .map(|what| all.iter().any(|line| line.contains(what)))
    };
    assert_eq!(missed(&whole), [true, true]);
    assert_eq!(missed(&Snapshot { gpus: silent(), ..whole.clone() }), [false, true]);
    assert_eq!(missed(&Snapshot { fabric: silent(), ..whole.clone() }), [true, false]);
}

#[test]
fn an_unknown_cpu_vendor_is_accepted() {
    let mut machine = switches(2, 1, 1);
    let map = rail_map(&machine, None);
    let text = topology(&map, &machine).unwrap();
    let text = text.replace(" vendor=\"GenuineIntel\"", "").replace(" modelid=\"143\"", "");
    assert!(!check_topology(text.as_bytes(), None, Some((&machine, &map))).accepted);
    machine.host = silent();
    let check = check_topology(text.as_bytes(), None, Some((&machine, &map)));
    assert!(check.accepted, "{:?}", lines(&check));
    assert!(
        check
            .unknown
            .iter()
            .any(|why| why.starts_with("the CPU's vendor: <cpu> has familyid and no modelid"))
    );
}

/// NCCL's own transport sets device and function to zero; aws-ofi-nccl passes the address of EFA devices unchanged.
#[test]
fn efa_devices_keep_device_and_function_numbers() {
    let mut machine = switches(2, 1, 1);
    let (Part::Read { data: fabric, .. }, Part::Read { data: pci, .. }) =
        (&mut machine.fabric, &mut machine.pci)
    else {
        panic!("{machine:?}");
    };
    for (bus, at) in [("0000:13", "0000:13:1b.0"), ("0000:23", "0000:23:1b.0")] {
        let device =
            pci.devices.iter_mut().find(|device| device.address.to_string().starts_with(bus)).unwrap();
        device.address = at.parse().unwrap();
        let hca =
            fabric.hcas.iter_mut().find(|hca| hca.pci.known().unwrap().to_string().starts_with(bus)).unwrap();
        hca.pci = Reading::Known(at.parse().unwrap());
        hca.name = format!("rdmap{}s27", u32::from_str_radix(&bus[5..], 16).unwrap());
        hca.ports[0].link_layer = Reading::Known(LinkLayer::Other("Unknown".to_owned()));
    }
    let map = rail_map(&machine, None);
    let efa = "<pci busid=\"0000:13:1b.0\" class=\"0x020000\"/>";
    let own = bridges_and_hcas("0000")
        .replace("<pci busid=\"0000:13:00.0\" link_speed=\"32 GT/s\" link_width=\"16\"/>", efa);
    let absent = |text: &str| {
        let check = check_topology(text.as_bytes(), None, Some((&machine, &map)));
        lines(&check).iter().filter(|line| line.contains("is not on this machine")).count()
    };
    assert_eq!(absent(&own), 0);
    assert_eq!(absent(&own.replace("13:1b.0", "13:1c.0")), 1);
    // A <net> with its name is the device, regardless of its address.
    let net = "<pci busid=\"0000:13:1c.0\" class=\"0x020000\"><nic><net name=\"rdmap19s27\"/></nic></pci>";
    assert_eq!(absent(&own.replace(efa, net)), 0);
    assert_eq!(absent(&own.replace(efa, &net.replace("rdmap19s27", "rdmap20s27"))), 1);
}

#[test]
fn elements_that_a_dump_already_has_are_not_counted_twice() {
    let check = after(|good| {
        let gpu = " link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"0\">";
        let links = "<nvlink target=\"0000:0a:00.0\" count=\"4\" tclass=\"0x068000\"/>".repeat(8);
        let good = good.replace(
            "class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"/>",
            &format!("class=\"0x030200\"{gpu}{links}</gpu></pci>"),
        );
        let spare: String = (0..20).map(|k| format!("<pci busid=\"0077:{k:02x}:00.0\"/>")).collect();
        let more: String = (2..10).map(|numa| format!("<cpu numaid=\"{numa}\">{spare}</cpu>")).collect();
        good.replacen("</system>", &format!("{more}</system>"), 1)
    });
    assert!(!lines(&check).iter().any(|line| line.contains("leave too little room")), "{:?}", lines(&check));
}

#[test]
fn a_link_without_a_width_counts_as_the_widest() {
    let check = after(|good| good.replacen("link_width=\"16\"", "link_width=\"0\"", 1));
    assert_eq!(lines(&check), ["3:5 note link_width '0' of ffff:ff:01.0: NCCL takes 16"]);
}
