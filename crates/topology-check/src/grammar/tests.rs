use super::*;

const NOW: NcclVersion = NcclVersion::new(2, 28, 9);

fn refused(text: &str) -> (usize, String) {
    let remark = read(text.as_bytes(), era(NOW)).unwrap_err();
    (remark.at, remark.what)
}

fn taken(text: &str) -> Tree {
    read(text.as_bytes(), era(NOW)).unwrap()
}

fn system(inside: &str) -> String {
    format!("<system version=\"1\">{inside}</system>")
}

#[test]
fn malformed_files_are_rejected_at_the_same_byte() {
    for (text, at, what) in [
        ("\t<system version=\"1\"/>", 0, "a tab where '<' should be"),
        ("<?xml version=\"1.0\"?>\n<system version=\"1\"/>", 19, "'?' where one space or '>' should be"),
        ("<system\nversion=\"1\"/>", 7, "a line's end where one space or '>' should be"),
        ("<system\tversion=\"1\"/>", 15, "'=' where the end of a name should be"),
        ("<system version=1/>", 16, "'1' where a quote should be"),
        ("<system/>", 0, "<system> has no version"),
        ("</system>", 0, "<system> has no version"),
        ("<system version=\"2\"/>", 0, "version '2' of <system>, 1 is the only one"),
        ("<system version=\"1\"><cpu></system></cpu>", 25, "</system> where </cpu> should be"),
        ("<system version=\"1\">", 20, "the file ends inside <system>"),
        ("<system version=\"1\"></system >", 28, "a space where '>' of a closing tag should be"),
        ("<system version=\"1\"/>x", 21, "'x' where '<' should be"),
        ("<!-- never ends -- >", 20, "the file ends inside a comment"),
        ("<!--a=b--><system version=\"1\"/>", 5, "'=' where the end of a name should be"),
        ("<extra>", 7, "the file ends inside an element that NCCL does not know"),
        ("<system version=\"1", 18, "the file ends inside a value"),
    ] {
        assert_eq!(refused(text), (at, what.to_owned()), "{text}");
    }
}

#[test]
fn odd_files_that_nccl_accepts_are_accepted() {
    for text in [
        "",
        "\r\n \n",
        "<!----><!-- a = b --><!--x--><system version=\"1\"/>",
        "<system version='1'/>",
        "<system version=\" 0x1 and more\" />",
        "<system  version=\"1\"/>",
        "<system version=\"1\"/ignored>",
        "<system version=\"1\"><unknown></anything></system>",
        // In C, a string ends at a zero byte.
        "<system\0 version=\"1\"></system\0x>",
    ] {
        taken(text);
    }
    let tree = taken("<system  version=\"1\" busid >\n</system>");
    assert_eq!(tree.odd.len(), 3, "{:?}", tree.odd);
    assert_eq!(tree.elements[0].get("version"), Some("1"));
}

#[test]
fn a_misplaced_element_is_skipped_with_its_children() {
    let tree = taken(&system("<pci><cpu/></pci><cpu><gpu/><nic><pci/><net><a><b/></a></net></nic></cpu>"));
    let kinds: Vec<Kind> = tree.elements.iter().map(|element| element.kind).collect();
    assert_eq!(kinds, [Kind::System, Kind::Cpu, Kind::Nic, Kind::Net]);
    let skipped: Vec<&str> = tree.skipped.iter().map(|remark| remark.what.as_str()).collect();
    assert_eq!(skipped, ["<pci> in <system>", "<gpu> in <cpu>", "<pci> in <nic>", "<a> in <net>"]);
}

#[test]
fn limits_of_names_attributes_depth_and_elements() {
    let attribute = |length: usize| format!("<system version=\"1\" name=\"{}\"/>", "a".repeat(length));
    taken(&attribute(253));
    assert_eq!(refused(&attribute(254)).1, "a value longer than 253 bytes");
    let old = era(NcclVersion::new(2, 26, 6));
    assert!(read(attribute(255).as_bytes(), old).is_ok());
    assert!(read(attribute(256).as_bytes(), old).is_err());

    taken(&system(&format!("<{}/>", "a".repeat(253))));
    assert_eq!(refused(&system(&format!("<{}/>", "a".repeat(254)))).1, "a name longer than 253 bytes");

    let cpus = |count: usize| system(&"<cpu/>".repeat(count));
    let pcis = |count: usize| system(&format!("<cpu>{}</cpu>", "<pci/>".repeat(count)));
    taken(&cpus(128));
    assert_eq!(refused(&cpus(129)).1, "more than 128 elements in one");
    let newest = era(NcclVersion::new(2, 30, 7));
    assert_eq!(read(pcis(253).as_bytes(), newest).unwrap().elements.len(), 255);
    assert_eq!(read(pcis(254).as_bytes(), newest).unwrap_err().what, "more than 255 elements");
    let oldest = era(NcclVersion::new(2, 18, 3));
    assert!(read(cpus(32).as_bytes(), oldest).is_ok());
    assert!(read(cpus(33).as_bytes(), oldest).is_err());

    let many: String = (0..17).map(|k| format!(" a{k}=\"\"")).collect();
    let tree = taken(&system(&format!("<cpu{many}/>")));
    assert_eq!(tree.elements[1].attributes.len(), 16);
    assert!(tree.odd[0].what.contains("has 17 attributes"));
    assert_eq!(refused(&"<a>".repeat(5000)).1, "nested more than 4096 deep");
}

#[test]
fn in_older_releases_every_value_ends_at_a_double_quote() {
    let text = "<system version='1' name=\"x\"/>";
    taken(text);
    let old = era(NcclVersion::new(2, 26, 6));
    assert!(read(text.as_bytes(), old).is_err());
    assert!(read(b"<system version=\"1\" name=\"x\"/>", old).is_ok());
}

#[test]
fn numbers_are_parsed_as_by_strtol() {
    for (text, value) in [
        ("1", 1),
        (" 12x", 12),
        ("0x1F", 31),
        ("010", 8),
        ("-1", -1),
        ("", 0),
        ("x", 0),
        ("0x", 0),
        ("99999999999999999999", i64::MAX),
    ] {
        assert_eq!(number(text), value, "{text}");
    }
}

#[test]
fn each_release_belongs_to_an_era() {
    for (version, name) in [
        ("2.18.3", "before 2.21"),
        ("2.22.3", "2.21 to 2.26"),
        ("2.28.9", "2.27 to 2.29.3"),
        ("2.40.0", "2.29.7 and later"),
    ] {
        assert_eq!(era(version.parse().unwrap()).name, name);
    }
}
