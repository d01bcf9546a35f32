//! Structures found in `ibnetdiscover` outputs of real sites, in files written for these tests.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fmt::Write as _;

use railgate_fabric::{Analysis, BadDiscovery, Fabric, FaultKind, Kind, Options, analyse, parse, table};

/// Own port, peer (`S-` or `H-` and GUID), peer's port, peer's name, rate.
type Cable = (usize, String, usize, String, String);

/// A fabric in the format of `ibnetdiscover`: cables of switches, then the records of the HCAs.
#[derive(Default)]
struct Text {
    switches: Vec<(String, Vec<Cable>)>,
    /// GUID, name, switch and its port, rate.
    hcas: Vec<(usize, String, usize, usize, String)>,
}

impl Text {
    /// Adds HCAs by name, all on one switch, ports from 1.
    fn leaf(mut self, name: &str, hcas: &[&str]) -> Self {
        let leaf = self.switches.len() + 1;
        let mut ports = Vec::new();
        for (at, hca) in hcas.iter().enumerate() {
            let guid = 0x100 * leaf + at + 1;
            ports.push((at + 1, format!("H-{guid:016x}"), 1, (*hca).to_owned(), "4xNDR".to_owned()));
            self.hcas.push((guid, (*hca).to_owned(), leaf, at + 1, "4xNDR".to_owned()));
        }
        self.switches.push((name.to_owned(), ports));
        self
    }

    /// One text per record: switches, then HCAs.
    fn records(&self) -> Vec<String> {
        let mut records = Vec::new();
        for (at, (name, ports)) in self.switches.iter().enumerate() {
            let guid = at + 1;
            let mut text = format!(
                "vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x{guid:x}\nswitchguid=0x{guid:x}({guid:x})\n"
            );
            let _ = writeln!(
                text,
                "Switch\t65 \"S-{guid:016x}\"\t\t# \"{name}\" enhanced port 0 lid {guid} lmc 0"
            );
            for (port, peer, peer_port, name, rate) in ports {
                let _ = writeln!(text, "[{port}]\t\"{peer}\"[{peer_port}](0) \t\t# \"{name}\" lid 9 {rate}");
            }
            records.push(text);
        }
        for (guid, name, leaf, port, rate) in &self.hcas {
            records.push(format!(
                "vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x{guid:x}\ncaguid=0x{guid:x}\nCa\t1 \"H-{guid:016x}\"\t\t# \"{name}\"\n\
                 [1]({guid:x}) \t\"S-{leaf:016x}\"[{port}]\t\t# lid 9 lmc 0 \"leaf\" lid {leaf} {rate}\n"
            ));
        }
        records
    }

    fn text(&self) -> String {
        let head = "#\n# Topology file: generated on Mon Jan  5 10:00:00 2026\n#\n# Initiated from node 01 port 01\n\n";
        head.to_owned() + &self.records().join("\n")
    }

    fn look(&self) -> Analysis {
        look(&self.text())
    }
}

fn look(text: &str) -> Analysis {
    analyse(&parse(text).unwrap(), &Options::default())
}

fn nodes(analysis: &Analysis) -> Vec<&str> {
    analysis.units.iter().flat_map(|unit| &unit.nodes).map(String::as_str).collect()
}

fn faults(analysis: &Analysis) -> Vec<&str> {
    analysis.faults.iter().map(|fault| fault.text.as_str()).collect()
}

fn said(analysis: &Analysis) -> String {
    table(analysis, &|names| names.join(",")).to_string()
}

#[test]
fn a_node_with_another_name_for_its_only_card_has_no_missing_link() {
    let names = ["gn1 HCA-1", "gn2 HCA-1", "gn3 HCA-1", "gn4 HCA-1", "controller mlx5_0"];
    let analysis = Text::default().leaf("ib0", &names).look();
    assert!(faults(&analysis).is_empty(), "{:?}", faults(&analysis));
    assert_eq!(nodes(&analysis), ["controller", "gn1", "gn2", "gn3", "gn4"]);
    let unit = &analysis.units[0];
    assert_eq!(unit.rails.iter().map(|rail| rail.hca.as_str()).collect::<Vec<_>>(), ["HCA-1"]);
    assert!(!unit.by_rail);
}

#[test]
fn a_node_with_another_card_number_has_no_missing_link() {
    let analysis =
        Text::default().leaf("ib0", &["gn1 mlx5_0", "gn2 mlx5_0", "gn3 mlx5_0", "login mlx5_2"]).look();
    assert!(faults(&analysis).is_empty(), "{:?}", faults(&analysis));
}

/// Nodes with one card on each of `leafs` leaf switches; `hca` names the card.
fn by_rail(nodes: usize, leafs: usize, hca: impl Fn(usize, usize) -> Option<String>) -> Text {
    let mut text = Text::default();
    for leaf in 0..leafs {
        let names: Vec<String> = (1..=nodes).filter_map(|node| hca(node, leaf)).collect();
        text = text.leaf(&format!("leaf-{leaf}"), &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

#[test]
fn nodes_of_two_naming_styles_are_compared_within_each() {
    let named = |node, leaf| {
        let lacks = (node, leaf) == (2, 3) || (node, leaf) == (7, 1);
        let name =
            if node > 4 { format!("gn{node} mlx5_{leaf}") } else { format!("gn{node} HCA-{}", leaf + 1) };
        (!lacks).then_some(name)
    };
    let analysis = by_rail(8, 4, named).look();
    assert_eq!(
        faults(&analysis),
        [
            "gn2 HCA-4 port 1 has no link, should be on leaf-3 (rail 3)",
            "gn7 mlx5_1 port 1 has no link, should be on leaf-1 (rail 1)"
        ]
    );
    assert_eq!(analysis.units.len(), 1);
    assert!(analysis.units[0].by_rail);
    let rails: Vec<usize> = analysis.switches.iter().flat_map(|switch| switch.rails.clone()).collect();
    assert_eq!(rails, [0, 1, 2, 3]);
}

#[test]
fn a_card_renamed_on_one_node_stays_on_its_rail() {
    let named = |node, leaf| {
        Some(if (node, leaf) == (3, 2) {
            "gn3 mlx5_7".to_owned()
        } else {
            format!("gn{node} HCA-{}", leaf + 1)
        })
    };
    assert!(faults(&by_rail(5, 4, named).look()).is_empty());
}

#[test]
fn with_an_unnamed_card_on_the_leaf_a_missing_link_is_undecided() {
    let named = |node, leaf| {
        Some(if (node, leaf) == (3, 2) {
            "MT4129 ConnectX7   Mellanox Technologies".to_owned()
        } else {
            format!("gn{node} mlx5_{leaf}")
        })
    };
    let analysis = by_rail(5, 4, named).look();
    assert_eq!(analysis.faults.len(), 1);
    assert_eq!(analysis.faults[0].kind, FaultKind::Undecided);
    assert_eq!(
        faults(&analysis),
        [
            "gn3 mlx5_2 port 1 has no link, should be on leaf-2 (rail 2); 1 HCA there without a node's name may be it"
        ]
    );
}

#[test]
fn a_description_of_one_word_is_a_host_name() {
    let analysis = Text::default().leaf("isr", &["gn3", "gn4", "gn5"]).look();
    assert_eq!(nodes(&analysis), ["gn3", "gn4", "gn5"]);
    assert_eq!(analysis.ports[0].hca, "");
    assert!(said(&analysis).contains("  0     -    1     isr\n"), "{}", said(&analysis));

    let named = |node, _| Some(format!("gn{node}"));
    let mut unlinked = by_rail(3, 1, named);
    unlinked
        .switches
        .push(("other".into(), vec![(1, "H-0000000000000909".into(), 1, "gn9".into(), String::new())]));
    assert_eq!(nodes(&unlinked.look()).len(), 4);
}

#[test]
fn a_name_that_several_hosts_share_is_not_a_node() {
    let names = [
        "gn1 mlx5_0",
        "gn2 mlx5_0",
        "localhost mlx5_0",
        "localhost mlx5_0",
        "localhost mlx5_1",
        "spare",
        "spare",
    ];
    let analysis = Text::default().leaf("ib0", &names).look();
    assert_eq!(nodes(&analysis), ["gn1", "gn2"]);
    let shared: Vec<_> =
        analysis.shared.iter().map(|shared| (shared.name.as_str(), shared.guids.len())).collect();
    assert_eq!(shared, [("localhost", 3), ("spare", 2)]);
    let said = said(&analysis);
    assert!(
        said.contains(
            "2 HCAs are called 'localhost mlx5_0', so several hosts are called localhost; 3 HCAs belong to no node: \
             H-0000000000000103, H-0000000000000104, H-0000000000000105\n"
        ),
        "{said}"
    );
    assert!(said.contains("2 HCAs are called 'spare', so several hosts are called spare; "), "{said}");

    let one = Text::default().leaf("ib0", &["gn1 mlx5_0", "localhost.localdomain mlx5_0"]).look();
    assert_eq!(nodes(&one), ["gn1"]);
    assert_eq!(one.shared[0].text, "localhost.localdomain is the name of any host without one of its own");
}

#[test]
fn default_descriptions_of_vendors_are_not_nodes() {
    let names = [
        "gn1 mlx5_0",
        "MT4129 ConnectX7   Mellanox Technologies",
        "Mellanox Technologies Aggregation Node",
        "OmniPath",
        "QLogic Infiniband HCA gn7",
        "HFI",
        "'gn8 ib0'",
        "gn9 \"mlx5_0\"",
        "gn9 mlx5_0 # old",
        "",
    ];
    let analysis = Text::default().leaf("ib0", &names).look();
    assert_eq!(nodes(&analysis), ["gn1"]);
    // All but the aggregation node.
    assert_eq!(analysis.unnamed.len(), 8);
    assert!(analysis.unnamed.contains(&"gn9 mlx5_0 # old (H-0000000000000109)".to_owned()));
}

#[test]
fn a_name_map_takes_precedence_over_the_record_of_the_card() {
    let text = Text::default().leaf("ib0", &["gn1 mlx5_0", "gn2 mlx5_0"]).text();
    let text = text.replace("# \"gn2 mlx5_0\"\n", "# \"MT4129 ConnectX7   Mellanox Technologies\"\n");
    assert_eq!(nodes(&look(&text)), ["gn1", "gn2"]);
}

#[test]
fn switches_of_a_director_are_distinguished_by_slot() {
    let text = Text::default()
        .leaf("MF0;core:MCS8500/L01/U1", &["gn1 mlx5_0"])
        .leaf("MF0;core:MCS8500/L02/U1", &["gn2 mlx5_0"]);
    let analysis = text.look();
    let names: Vec<&str> = analysis.switches.iter().map(|switch| switch.name.as_str()).collect();
    assert_eq!(names, ["core-L01-U1", "core-L02-U1"]);
}

fn rate_of(tail: &str) -> Option<u32> {
    let text = format!(
        "Switch\t36 \"S-1\"\t\t# \"leaf\" base port 0 lid 1 lmc 0\n[1]\t\"H-2\"[1](3) \t\t# \"gn1 mlx5_0\" lid 4{tail}\n"
    );
    parse(&text).unwrap().links[0].mbps
}

#[test]
fn every_link_width_and_speed_is_parsed() {
    let rates = [
        (" 1xSDR", Some(2_500)),
        (" 4xDDR", Some(20_000)),
        (" 4xFDR10", Some(40_000)),
        (" 12xQDR", Some(120_000)),
        (" 2xHDR", Some(100_000)),
        (" 2xNDR", Some(200_000)),
        (" 4xXDR", Some(800_000)),
        (" 8xEDR s=4 w=2 v=4 e=2", Some(200_000)),
        (" 4x???", None),
        (" ?????", None),
        (" slot 3", None),
        ("", None),
    ];
    for (tail, rate) in rates {
        assert_eq!(rate_of(tail), rate, "{tail}");
    }
}

fn small() -> Text {
    Text::default()
        .leaf("leaf-0", &["gn1 mlx5_0", "gn2 mlx5_0"])
        .leaf("leaf-1", &["gn1 mlx5_1", "gn2 mlx5_1"])
}

/// The parts of a fabric that must not depend on the format of the text.
fn same(text: &str) -> Fabric {
    let mut fabric = parse(text).unwrap();
    fabric.errors = 0;
    fabric
}

#[test]
fn line_ends_lids_options_and_noise_do_not_change_the_fabric() {
    let text = small().text();
    let plain = same(&text);
    let show = "DR path slid 0; dlid 0; 0,1 -> new Switch {0000000000000001} portnum 0 lid 0-0 \"\"\n";
    let failed = "src/query_smp.c:195; umad (DR path slid 0; dlid 0; 0,1,1,31 Attr 0x11:0) bad status 110; Connection timed out\n";
    let variants = [
        ("CRLF", text.replace('\n', "\r\n")),
        ("byte order mark", format!("\u{feff}{text}")),
        ("prompt", format!("[root@head ~]# ibnetdiscover\n{text}[root@head ~]# \n")),
        ("--show", format!("{show}{text}")),
        ("error", format!("{failed}{text}")),
        ("error inside", text.replacen("vendid", &format!("{failed}vendid"), 3)),
        ("no LID", text.replace("lid 9", "lid ").replace("lmc 0", "lmc 3")),
        ("LID below 0", text.replace("lid 9", "lid -1")),
        ("--full", text.replace("4xNDR", "4xNDR s=4 w=2 v=4 e=8")),
        ("--max_hops", format!("# Reported max hops discovered: 3\n# Total MADs used: 99\n{text}")),
        (
            "--grouping",
            format!("\nChassis 1 (guid 0x1)\nHostname: gn1\n\n# Spine Nodes\n{text}\nNon-Chassis Nodes\n"),
        ),
        ("external ports", text.replace("[1]\t", "[1][ext 5]\t").replace("\"[2]", "\"[2][ext 7]")),
        ("no system image", text.replace("sysimgguid=", "# ")),
        ("indented", text.replace('\n', "\n    ")),
        (
            "loopback plug",
            text.replace(
                "\n[1]\t\"H",
                "\n[60]\t\"S-0000000000000001\"[60]\t\t# \"leaf-0\" lid 1 4xNDR\n[1]\t\"H",
            )
            .replacen("\n[60]\t\"S-0000000000000001\"[60]", "\n[61]\t\"S-0000000000000001\"[61]", 1)
            .replace("\n[60]\t\"S-0000000000000001\"[60]\t\t# \"leaf-0\" lid 1 4xNDR", ""),
        ),
    ];
    for (what, text) in variants {
        assert_eq!(same(&text), plain, "{what}");
    }
    let errors = look(&format!("ibwarn: [812] mad_rpc: timed out\n{failed}{text}"));
    assert_eq!(errors.errors, 2);
    assert!(
        said(&errors).contains("ibnetdiscover reported 2 errors: devices that did not answer are missing\n")
    );
}

#[test]
fn an_output_of_old_versions_without_speeds_is_parsed() {
    let text = small().text().replace(" 4xNDR", "");
    let analysis = look(&text);
    assert_eq!(analysis.tiers[0].down_gbps, None);
    assert_eq!(analysis.tiers[0].down_links, 4);
}

#[test]
fn cables_listed_on_one_side_or_both_give_the_same_fabric() {
    let text = small();
    let (records, whole) = (text.records(), text.look());
    let switches = look(&records[..2].join("\n"));
    assert_eq!(switches.unrecorded.len(), 4);
    assert_eq!((&switches.ports, &switches.units), (&whole.ports, &whole.units));
    let hcas = look(&records[2..].join("\n"));
    assert_eq!(hcas.ports.len(), whole.ports.len());
    assert_eq!(hcas.unrecorded, ["S-0000000000000001", "S-0000000000000002"]);
}

#[test]
fn a_truncated_text_gives_no_missing_link() {
    let named = |node, leaf| Some(format!("gn{node} mlx5_{leaf}"));
    let whole = by_rail(4, 3, named);
    let mut whole_text = whole.text();
    // A cable between the leaf switches, so that the record of the first names the second.
    whole_text = whole_text.replacen(
        "[1]\t",
        "[40]\t\"S-0000000000000003\"[40]\t\t# \"leaf-2\" lid 3 4xNDR\n[1]\t",
        1,
    );
    assert!(faults(&look(&whole_text)).is_empty());
    let analysis = look(&whole_text[..whole_text.find("switchguid=0x3(").unwrap()]);
    assert!(said(&analysis).contains("Incomplete: 9 devices without a record, so cables may be missing: "));
    // Truncated anywhere, the text gives an error or a part of the fabric, but never a port without a link or on a
    // wrong switch.
    let mut parts = 0;
    for at in 0..whole_text.len() {
        if let Ok(fabric) = parse(&whole_text[..at]) {
            parts += 1;
            let analysis = analyse(&fabric, &Options::default());
            let wrong = analysis.faults.iter().find(|fault| fault.kind != FaultKind::Undecided);
            assert!(wrong.is_none(), "{at}: {wrong:?}");
        }
    }
    assert!(parts > 100);
}

#[test]
fn loops_of_a_switch_do_not_count_in_any_tier() {
    let text = small().text().replacen(
        "[1]\t",
        "[50]\t\"S-0000000000000001\"[51]\t\t# \"leaf-0\" lid 1 4xEDR\n[51]\t\"S-0000000000000001\"[50]\t\t# \"leaf-0\" lid 1 4xEDR\n[1]\t",
        1,
    );
    assert_eq!(parse(&text).unwrap().links.len(), 5);
    assert_eq!(look(&text).tiers[0].up_links, 0);
}

#[test]
fn routers_are_neither_leaf_switches_nor_nodes() {
    let text = small().text()
        + "\nvendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x77\nrtguid=0x77\nRt\t2 \"R-0000000000000077\"\t\t# \"MF0;edge:Q3400_RA/U1/RT\"\n\
           [2](78) \t\"S-0000000000000002\"[33]\t\t# lid 9 lmc 0 \"leaf-1\" lid 2 1xXDR\n";
    let fabric = parse(&text).unwrap();
    assert_eq!(fabric.devices.iter().filter(|device| device.kind == Kind::Router).count(), 1);
    assert_eq!(nodes(&look(&text)), ["gn1", "gn2"]);
}

#[test]
fn outputs_of_other_tools_are_rejected_by_name() {
    let why = |text: &str| parse(text).unwrap_err().to_string();
    let ports =
        "CA   139  1 0x0000000000000101 4x NDR - SW     1  1 0x0000000000000001 ( 'gn1 mlx5_0' - 'leaf-0' )";
    assert!(why(ports).starts_with("line 1: a ports report, as -p writes it"), "{}", why(ports));
    let list = "Switch\t : 0x0000000000000001 ports 36 devid 0xd2f2 vendid 0x2c9 \"leaf-0\"";
    assert!(why(list).starts_with("line 1: a list of devices without cables"), "{}", why(list));
    assert!(why("discover failed").starts_with("line 1: neither a device nor a port: 'discover failed'"));
    // After the first device, a line with another format is damaged and may have been a cable.
    let broken = small().text().replacen("[2]\t", "2]\t", 1);
    assert!(matches!(parse(&broken), Err(BadDiscovery::Line { .. })));
}
