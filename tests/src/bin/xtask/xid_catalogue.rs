//! Generates the tables of NVIDIA's Xid catalogue from its spreadsheet, and the names of SXids from the switch driver's header.
//! Neither file is part of the tree; only codes, identifiers, bit masks and action buckets are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_model::xid_catalogue::{Bucket, Family, Origin, Pattern, Reach};

use super::workbook::{Row, Workbook};

/// `cargo xtask xid-catalogue`
#[derive(Debug, clap::Args)]
pub(super) struct Catalogue {
    /// A local copy of Xid-Catalog.xlsx
    path: PathBuf,
    /// Compare with the tree and write nothing
    #[arg(long)]
    check: bool,
}

/// `cargo xtask sxid-names`
#[derive(Debug, clap::Args)]
pub(super) struct Names {
    /// Releases of the driver, oldest first, each with a local copy of its header: 595.45.04=ctrl_dev_nvswitch.h
    #[arg(value_name = "RELEASE=PATH", required = true, value_parser = release)]
    headers: Vec<(String, PathBuf)>,
    /// Compare with the tree and write nothing
    #[arg(long)]
    check: bool,
}

fn release(argument: &str) -> Result<(String, PathBuf)> {
    let (release, path) = argument.split_once('=').context("want RELEASE=PATH")?;
    Ok((release.to_owned(), path.into()))
}

pub(super) fn catalogue(arguments: &Catalogue) -> Result<()> {
    let book = Workbook::open(&arguments.path)?;
    let text = facts(&book, &arguments.path)?;
    settle("generated.rs", &text, arguments.check)
}

pub(super) fn names(arguments: &Names) -> Result<()> {
    let mut names: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for (_, path) in &arguments.headers {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let before = names.len();
        for (name, code) in text.lines().filter_map(|line| line.split_once('=')) {
            let name = name.trim().strip_prefix("NVSWITCH_ERR_HW_");
            let digits: String = code.trim().chars().take_while(char::is_ascii_digit).collect();
            if let (Some(name), Ok(code)) = (name, digits.parse()) {
                names.entry(code).or_default().insert(name.to_owned());
            }
        }
        ensure!(names.len() > before || before > 0, "{}: no NVSWITCH_ERR_HW_ in it", path.display());
    }
    let releases: Vec<&str> = arguments.headers.iter().map(|(release, _)| release.as_str()).collect();
    let mut text = format!(
        "//! Names of SXids in the NVSwitch driver. Generated: `cargo xtask sxid-names RELEASE=PATH…`. Do not edit.\n//!\n\
         //! From `src/common/nvswitch/interface/ctrl_dev_nvswitch.h` of NVIDIA's open kernel modules\n//! {}.\n\
         //! Codes that these name differently are left out.\n\n\
         /// By code, without `NVSWITCH_ERR_HW_`.\npub(super) const NAMES: &[(u32, &str)] = &[\n",
        releases.join(", ")
    );
    for (code, names) in names {
        if let (1, Some(name)) = (names.len(), names.first()) {
            writeln!(text, "    ({code}, {name:?}),")?;
        }
    }
    text.push_str("];\n");
    settle("sxid_names.rs", &text, arguments.check)
}

/// Writes a generated file, or compares it with the one in the tree.
fn settle(name: &str, text: &str, check: bool) -> Result<()> {
    let path = super::build::workspace().join("crates/model/src/xid_catalogue").join(name);
    let shown = path.display();
    if !check {
        fs::write(&path, text).with_context(|| shown.to_string())?;
        println!("{shown}: written");
        return Ok(());
    }
    let present = fs::read_to_string(&path).with_context(|| shown.to_string())?;
    let differs = present.lines().zip(text.lines()).position(|(here, made)| here != made);
    match differs {
        Some(line) => bail!("{shown}:{}: differs from the generated text", line + 1),
        None if present != text => bail!("{shown}: length differs from the generated text"),
        None => println!("{shown}: up to date"),
    }
    Ok(())
}

fn facts(book: &Workbook, path: &Path) -> Result<String> {
    let file = path.file_name().context("a file name")?.to_string_lossy();
    let output = Command::new("sha256sum").arg(path).output().context("sha256sum")?;
    let sum = String::from_utf8(output.stdout)?;
    let sum = sum.split_whitespace().next().context("sha256sum prints nothing")?;
    let mut text = format!(
        "//! Facts of NVIDIA's Xid catalogue, by Xid. Generated: `cargo xtask xid-catalogue Xid-Catalog.xlsx`. Do not edit.\n\n\
         use super::facts::Bucket::*;\nuse super::facts::Family::{{A100, B100, Gb200, H100}};\n\
         use super::facts::Origin::{{Fw, Hw, HwSw, Sw, Unknown}};\nuse super::facts::Reach::{{Fatal, LinkFatal, NonFatal}};\n\
         use super::facts::{{Edition, Facts, Nvlink5Row, Pattern, Promotion, SetsXid154}};\n\n\
         /// The spreadsheet that the rows were made from.\npub const EDITION: Edition = Edition {{\n    file: {file:?},\n    \
         modified: {:?},\n    sha256: {sum:?},\n}};\n\n\
         /// Sheet \"Xids\", by code.\npub(super) const FACTS: &[Facts] = &[\n",
        book.modified()?
    );
    let rows = book.sheet("Xids")?;
    headers(
        &rows,
        &[("B", "Code"), ("C", "Mnemonic"), ("E", "A100"), ("F", "H100"), ("G", "B100"), ("H", "GB200")],
    )?;
    headers(&rows, &[("I", "Immediate Action"), ("J", "Investigatory Action"), ("K", "154 linkage")])?;
    let mut codes = BTreeMap::new();
    for row in rows.iter().skip(1) {
        let code: u32 = cell(row, "B")?.parse().context("column B")?;
        let made = xid(code, row).with_context(|| format!("Xid {code}"))?;
        ensure!(codes.insert(code, made).is_none(), "Xid {code} has two rows");
    }
    text.extend(codes.into_values());
    text.push_str("];\n\n/// Sheet \"Xid 144-150 Decode\", in its order.\npub(super) const NVLINK5: &[Nvlink5Row] = &[\n");
    let rows = book.sheet("Xid 144-150 Decode")?;
    headers(&rows, &[("A", "Xid"), ("B", "Subcode"), ("C", "V1"), ("D", "V2"), ("E", "Error Status")])?;
    headers(&rows, &[("F", "Resolution Bucket"), ("G", "V1"), ("H", "V2"), ("I", "Action 2")])?;
    headers(&rows, &[("J", "Investigatory Action"), ("K", "Severity"), ("L", "HW/SW")])?;
    for (number, row) in rows.iter().enumerate().skip(1) {
        text.push_str(&nvlink5(row).with_context(|| format!("Xid 144-150 Decode, row {}", number + 1))?);
    }
    text.push_str("];\n");
    Ok(text)
}

/// Fails if the spreadsheet's columns are not those expected.
fn headers(rows: &[Row], want: &[(&str, &str)]) -> Result<()> {
    let header = rows.first().context("an empty sheet")?;
    for (column, word) in want {
        let found = header.get(*column).map_or("", String::as_str);
        ensure!(found.contains(word), "column {column} is '{found}', want '…{word}…'");
    }
    Ok(())
}

fn cell<'a>(row: &'a Row, column: &str) -> Result<&'a str> {
    row.get(column).map(String::as_str).with_context(|| format!("column {column} is empty"))
}

fn xid(code: u32, row: &Row) -> Result<String> {
    let families = [("E", Family::A100), ("F", Family::H100), ("G", Family::B100), ("H", Family::Gb200)];
    let mut used = Vec::new();
    for (column, family) in families {
        match cell(row, column)? {
            "YES" => used.push(format!("{family:?}")),
            "NO" => {}
            other => bail!("column {column} is '{other}', want YES or NO"),
        }
    }
    let action = |column: &str| match row.get(column) {
        Some(text) => bucket(text).map(|bucket| format!("Some({bucket:?})")),
        None => Ok("None".to_owned()),
    };
    let sets_154 = match row.get("K") {
        None => "None".to_owned(),
        Some(text) if text.starts_with("yes") => "Some(SetsXid154::Always)".to_owned(),
        Some(text) => {
            let release = text.rsplit_once('R').map(|(_, number)| number.parse::<u32>());
            let Some(Ok(release)) = release else { bail!("column K is '{text}', want '… R565'") };
            format!("Some(SetsXid154::SinceDriver({release}))")
        }
    };
    Ok(format!(
        "    Facts {{ code: {code}, mnemonic: {:?}, families: &[{}], immediate: {}, investigatory: {}, sets_154: {sets_154} }},\n",
        cell(row, "C")?,
        used.join(", "),
        action("I")?,
        action("J")?,
    ))
}

fn nvlink5(row: &Row) -> Result<String> {
    let code: u32 = cell(row, "A")?.parse().context("column A")?;
    let unit = cell(row, "B")?;
    let (unit_v1, unit_v2) = unit.split_once('/').unwrap_or((unit, unit));
    let statuses = row.get("E").map_or("", String::as_str).split('/').filter(|status| !status.is_empty());
    let statuses = statuses.map(|status| {
        let number = status.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        Ok(format!("0x{:08x}", number.with_context(|| format!("error status '{status}'"))?))
    });
    let statuses: Vec<String> = statuses.collect::<Result<_>>()?;
    let reach = match cell(row, "K")?.trim_end_matches(['*', '?']) {
        "Non-fatal" => Reach::NonFatal,
        "Link Fatal" => Reach::LinkFatal,
        "Fatal" => Reach::Fatal,
        other => bail!("severity '{other}'"),
    };
    let origin = match cell(row, "L")? {
        "HW" => Origin::Hw,
        "SW" => Origin::Sw,
        "HW/SW" => Origin::HwSw,
        "FW" => Origin::Fw,
        "NA" => Origin::Unknown,
        other => bail!("origin '{other}'"),
    };
    let promotion = match row.get("I") {
        None => "None".to_owned(),
        Some(action) => format!(
            "Some(Promotion {{ v1: {}, v2: {}, immediate: {:?} }})",
            pattern(cell(row, "G")?)?,
            pattern(cell(row, "H")?)?,
            bucket(action)?
        ),
    };
    Ok(format!(
        "    Nvlink5Row {{ code: {code}, unit_v1: {unit_v1:?}, unit_v2: {unit_v2:?}, v1: {}, v2: {}, statuses: &[{}], \
         reach: {reach:?}, origin: {origin:?}, immediate: {:?}, promotion: {promotion}, investigatory: {:?} }},\n",
        pattern(cell(row, "C")?)?,
        pattern(cell(row, "D")?)?,
        statuses.join(", "),
        bucket(cell(row, "F")?)?,
        bucket(cell(row, "J")?)?,
    ))
}

/// Parses 32 bits, for example `------000000----------0000100001`, in which `-` is not significant.
fn pattern(text: &str) -> Result<String> {
    ensure!(text.len() == 32 && text.chars().all(|c| matches!(c, '-' | '0' | '1')), "bits '{text}'");
    let number =
        |bit: fn(char) -> bool| text.chars().fold(0_u32, |number, c| number << 1 | u32::from(bit(c)));
    let Pattern { mask, bits } = Pattern { mask: number(|c| c != '-'), bits: number(|c| c == '1') };
    Ok(format!("Pattern {{ mask: 0x{mask:08x}, bits: 0x{bits:08x} }}"))
}

fn bucket(text: &str) -> Result<Bucket> {
    // Two cells spell a bucket differently from the sheet "Resolution Buckets".
    let text = match text {
        "Solo: RESTART_FM Not Solo: IGNORE (follow other Xid)" => "WORKFLOW_XID_45",
        "INVESTIGATE_SW/USER" => "INVESTIGATE_SW_USER",
        text => text,
    };
    let known = Bucket::ALL.iter().find(|(_, name)| *name == text);
    known.map(|(bucket, _)| *bucket).with_context(|| format!("'{text}' is no known resolution bucket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[(&str, &str)]) -> Row {
        cells.iter().map(|(column, text)| ((*column).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_row_becomes_facts() {
        let mut cells = vec![("B", "48"), ("C", "ECC"), ("E", "YES"), ("F", "NO"), ("G", "NO"), ("H", "YES")];
        cells.extend([("I", "RESET_GPU"), ("K", "CUDA 12.7; GPU driver R565")]);
        let made = xid(48, &row(&cells)).unwrap();
        let want = "    Facts { code: 48, mnemonic: \"ECC\", families: &[A100, Gb200], immediate: Some(ResetGpu), investigatory: None, sets_154: Some(SetsXid154::SinceDriver(565)) },\n";
        assert_eq!(made, want);
        cells.push(("I", "RESET_EVERYTHING"));
        assert!(xid(48, &row(&cells)).unwrap_err().to_string().contains("RESET_EVERYTHING"));
        cells.extend([("I", "IGNORE"), ("F", "MAYBE")]);
        assert!(xid(48, &row(&cells)).unwrap_err().to_string().contains("column F is 'MAYBE'"));
    }

    #[test]
    fn bits_become_a_mask() {
        let made = pattern("------000000---------10011000010").unwrap();
        assert_eq!(made, "Pattern { mask: 0x03f007ff, bits: 0x000004c2 }");
        assert!(pattern("0101").is_err() && pattern(&"x".repeat(32)).is_err());
    }

    #[test]
    fn moved_columns_are_refused() {
        let error = headers(&[row(&[("B", "Mnemonic")])], &[("B", "Code")]).unwrap_err();
        assert_eq!(error.to_string(), "column B is 'Mnemonic', want '…Code…'");
    }
}
