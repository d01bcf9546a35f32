//! The files of an imported configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use railgate_slurm::hostlist;

use super::nhc::Imported;
use super::nhc_line::Mask;
use super::nhc_map::{Effect, quoted};

/// Path below the directory, and text; one that begins with `#!` is executable.
pub(super) type File = (String, String);

/// Functions of the shell that the lines of a kind use.
const HELPERS: &[(&str, &str)] = &[
    (
        "memory",
        r#"# between LEAST GREATEST FIELD...: the sum of fields of /proc/meminfo, KiB
between() {
    low=$1 high=$2
    shift 2
    told=$(awk -v fields="$*" -v low="$low" -v high="$high" '
        BEGIN { count = split(fields, names, " "); for (i = 1; i <= count; i++) wanted[names[i] ":"] = 1 }
        $1 in wanted { sum += $2 }
        END {
            if (sum + 0 < low + 0) printf "%s: %d KiB, less than %d", fields, sum, low
            else if (high != "-" && sum + 0 > high + 0) printf "%s: %d KiB, more than %d", fields, sum, high
        }' /proc/meminfo)
    [ -z "$told" ] || bad "$told"
}
"#,
    ),
    (
        "space",
        r#"# space PATH k|i size|used|free min|max LIMIT: KiB or inodes, or percent of all
space() {
    told=$(df -P"$2" "$1" 2>&1 | awk -v path="$1" -v unit="$2" -v what="$3" -v side="$4" -v limit="$5" '
        NR == 2 {
            have = what == "size" ? $2 : what == "used" ? $3 : $4
            if (limit ~ /%$/) { if ($2 == 0) exit; have = 100 * have / $2; sign = "%" } else sign = unit == "i" ? " inodes" : " KiB"
            if (side == "min" ? have < limit + 0 : have > limit + 0)
                printf "%s: %s %d%s, %s %s", path, what, have, sign, side, limit
        }')
    [ -z "$told" ] || bad "$told"
}
"#,
    ),
    (
        "mounts",
        r#"# read_only PATH
read_only() {
    awk -v path="$1" '$2 == path { found = 1; fine = ("," $4 ",") ~ /,ro,/ } END { exit !(found && fine) }' /proc/mounts
}
"#,
    ),
    (
        "commands",
        r#"# run SECONDS COMMAND...: leaves what it said and its exit code
run() {
    seconds=$1
    shift
    code=0
    said=$(timeout "$seconds" "$@" 2>&1) || code=$?
}
"#,
    ),
    (
        "processes",
        r#"# load COLUMN LIMIT: of /proc/loadavg
load() {
    awk -v column="$1" -v limit="$2" '{ exit $column > limit }' /proc/loadavg || bad "load average above $2"
}
"#,
    ),
];

/// What an import writes.
///
/// # Errors
/// Values that TOML cannot hold.
pub(super) fn files(imported: &Imported, from: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut config = format!(
        "# From {} by `railgate import nhc`. Nothing here drains: railgate judges and reports.\n\
         # docs/install.md, \"From report to enforce\", is the way from here.\n",
        from.display()
    );
    let mut tables = String::new();
    let groups = imported.groups();
    let everybodys =
        groups.first().map(|(_, effects)| (settings(effects), profile(effects))).unwrap_or_default();
    for (index, (names, effects)) in groups.into_iter().enumerate() {
        let id = if index == 0 { "nhc".to_owned() } else { format!("nhc-{}", index + 1) };
        let mut table = settings(&effects);
        if index > 0 && table == everybodys.0 {
            table.clear();
        }
        if let Some(profile) =
            profile(&effects).filter(|own| index == 0 || everybodys.1.as_ref() != Some(own))
        {
            let text = toml::to_string(&profile)?;
            let about = "# What NHC was told of these machines. Better: `railgate profile record --id NAME` on a good node.\n";
            files.push((format!("profiles/{id}.toml"), format!("{about}{text}")));
            table.insert("profile".to_owned(), id.into());
        }
        if index == 0 {
            table.entry("gate").or_insert_with(|| toml::Table::new().into());
            if let Some(gate) = table.get_mut("gate").and_then(toml::Value::as_table_mut) {
                gate.insert("mode".to_owned(), "report".into());
            }
            write!(config, "\n{}", toml::to_string(&table)?)?;
        } else if !table.is_empty() {
            table.insert("names".to_owned(), hostlist::compress(&names).into());
            let mut outer = toml::Table::new();
            outer.insert("node".to_owned(), toml::Value::Array(vec![table.into()]));
            write!(tables, "\n{}", toml::to_string(&outer)?)?;
        }
    }
    files.insert(0, ("railgate.toml".to_owned(), config + &tables));
    files.extend(scripts(imported, from));
    files.extend(rest(imported, from));
    Ok(files)
}

/// Puts a value at a path of tables.
fn put(table: &mut toml::Table, path: &str, value: toml::Value) {
    match path.split_once('.') {
        None => drop(table.insert(path.to_owned(), value)),
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| toml::Table::new().into());
            if let Some(inner) = inner.as_table_mut() {
                put(inner, rest, value);
            }
        }
    }
}

fn settings(effects: &[&Effect]) -> toml::Table {
    let mut table = toml::Table::new();
    let mut lists: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for effect in effects {
        match effect {
            Effect::List(path, word) => drop(lists.entry(path).or_default().insert(word)),
            Effect::Value(path, value) => put(&mut table, path, value.clone()),
            _ => {}
        }
    }
    for (path, words) in lists {
        put(&mut table, path, words.into_iter().collect::<Vec<_>>().into());
    }
    table
}

/// What the machine should have; `None` where NHC was told nothing of it.
fn profile(effects: &[&Effect]) -> Option<toml::Table> {
    let mut table = toml::Table::new();
    let mut ports: Vec<(Option<&str>, f64)> = Vec::new();
    for effect in effects {
        match effect {
            Effect::Profile(path, value) => put(&mut table, path, value.clone()),
            Effect::Port(device, rate) => ports.push((device.as_deref(), *rate)),
            _ => {}
        }
    }
    let rate = ports.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    if rate > 0.0 {
        put(&mut table, "fabric.link_layer", "infiniband".into());
        put(&mut table, "fabric.rate_gbps", rate.into());
        let named = |compute: bool| -> BTreeSet<&str> {
            let meant = ports.iter().filter(|(_, own)| (*own >= rate) == compute);
            meant.filter_map(|(device, _)| *device).collect()
        };
        let (compute, slower) = (named(true), named(false));
        if !compute.is_empty() {
            put(&mut table, "fabric.hcas", i64::try_from(compute.len()).unwrap_or(i64::MAX).into());
        }
        // Slower ones are storage or management.
        if !slower.is_empty() {
            put(&mut table, "fabric.exclude", slower.into_iter().collect::<Vec<_>>().into());
        }
    }
    if table.is_empty() {
        return None;
    }
    put(&mut table, "title", "as NHC was told".into());
    Some(table)
}

/// One check of the site's own for each kind.
fn scripts(imported: &Imported, from: &Path) -> Vec<File> {
    let mut bodies: BTreeMap<&str, String> = BTreeMap::new();
    for (line, became) in &imported.lines {
        let lines: Vec<&str> = became
            .effects
            .iter()
            .filter_map(
                |effect| if let Effect::Script(_, line) = effect { Some(line.as_str()) } else { None },
            )
            .collect();
        let Some(Effect::Script(kind, _)) = became.effects.first() else { continue };
        let body = bodies.entry(kind).or_default();
        let lines = lines.join("\n");
        let text = match &line.mask {
            Mask::Nodes(names) => {
                let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
                format!("case $RAILGATE_NODE in {})\n{lines}\n;;\nesac\n", names.join("|"))
            }
            Mask::All | Mask::NhcOnly => format!("{lines}\n"),
        };
        let _ = write!(body, "# line {}\n{text}", line.number);
    }
    bodies
        .into_iter()
        .map(|(kind, body)| {
            let helpers = HELPERS.iter().find(|(of, _)| *of == kind).map_or("", |(_, text)| text);
            let text = format!(
                "#!/bin/sh\n# From {} by `railgate import nhc`.\n\nfound=\nbad() {{ found=\"${{found:+$found; }}$*\"; }}\n{helpers}\n\
                 {body}\n[ -z \"$found\" ] || {{ echo \"$found\"; exit 2; }}\n",
                from.display()
            );
            (format!("checks.d/nhc-{kind}.sh"), text)
        })
        .collect()
}

/// What has no counterpart, for NHC itself.
fn rest(imported: &Imported, from: &Path) -> Vec<File> {
    let lines: Vec<&str> = imported
        .lines
        .iter()
        .filter(|(_, became)| became.effects.contains(&Effect::Rest))
        .map(|(line, _)| line.text.as_str())
        .collect();
    if lines.iter().all(|line| line.contains("|| export") || line.is_empty()) {
        return Vec::new();
    }
    let about = format!("# From {}: what has no counterpart in railgate.\n", from.display());
    let script = "#!/bin/sh\n# NHC for what has no counterpart in railgate. It marks no node here: railgate does that.\n\n\
                  [ -x /usr/sbin/nhc ] || { echo \"/usr/sbin/nhc is not installed\"; exit 3; }\n\
                  found=$(/usr/sbin/nhc -c /etc/railgate/nhc-rest.conf -l - -t 8 MARK_OFFLINE=0 2>&1) && exit 0\n\
                  echo \"$found\" | grep -m 1 ERROR || echo \"$found\" | tail -n 1\n\
                  exit 2\n";
    vec![
        ("nhc-rest.conf".to_owned(), format!("{about}{}\n", lines.join("\n"))),
        ("checks.d/nhc.sh".to_owned(), script.to_owned()),
    ]
}

/// Into a directory that is not there yet.
pub(super) fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    ensure!(!dir.exists(), "{}: exists already", dir.display());
    for (name, text) in files {
        let path = dir.join(name);
        let written =
            path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        written
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}

pub(super) fn next_steps(dir: &Path, files: &[File]) -> String {
    let dir = railgate_text::Printable(dir.display());
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "written to {dir}: {}\n\nnext:\n  railgate --config {dir}/railgate.toml config check\n  \
         cp -r {dir}/. /etc/railgate/        on every node, as root, beside or instead of what is there\n  \
         railgate check                      what it finds now; nothing drains until [gate] mode = \"enforce\"",
        names.join(", ")
    )
}
