//! Compares the table with sources: `RAILGATE_KERNEL_SOURCE` names one or more unpacked kernel trees, separated by `:`,
//! `RAILGATE_NVIDIA_SOURCE` a checkout of NVIDIA's open-gpu-kernel-modules, and `RAILGATE_MLNX_OFED_SOURCE` an unpacked
//! mlnx-ofa_kernel.

use std::path::{Path, PathBuf};

use railgate_model::kernel_lines::{Format, Lead, NEWEST, Release, Source, rows};

/// `VERSION` and `PATCHLEVEL` in the `Makefile` of the tree.
fn release(tree: &Path) -> Release {
    let makefile = std::fs::read_to_string(tree.join("Makefile")).unwrap();
    let value = |key: &str| {
        let line = makefile.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
        line.unwrap().trim().parse().unwrap()
    };
    (value("VERSION"), value("PATCHLEVEL"))
}

/// The string literals of a C file; adjacent ones are concatenated.
fn literals(source: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut rest = source;
    let mut glued = false;
    while let Some(begin) = rest.find('"') {
        let between = &rest[..begin];
        glued = glued && between.trim().is_empty();
        let inner = &rest[begin + 1..];
        let mut escaped = false;
        let end = inner.find(|letter| {
            let ends = !escaped && (letter == '"' || letter == '\n');
            escaped = !escaped && letter == '\\';
            ends
        });
        let Some(end) = end else { break };
        let literal = &inner[..end];
        match all.last_mut().filter(|_| glued) {
            Some(last) => last.push_str(literal),
            None => all.push(literal.to_owned()),
        }
        glued = true;
        rest = &inner[end + 1..];
    }
    all
}

/// The fixed texts between two `|`, in order. The source has either `0x` or `%#x`.
fn fragments(piece: &str) -> Vec<String> {
    let piece = piece.replace("0x{hex}", "{hex}");
    let mut words: Vec<String> = piece.split(['{', '}']).step_by(2).map(str::to_owned).collect();
    words.retain(|words| !words.is_empty());
    words
}

fn has(literals: &[String], piece: &str) -> bool {
    let fragments = fragments(piece);
    literals.iter().any(|literal| {
        let mut rest = literal.as_str();
        fragments.iter().all(|fragment| match rest.split_once(fragment.as_str()) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    })
}

fn read(tree: &Path, files: &[&str]) -> Vec<String> {
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(tree.join(file)).ok());
    texts.flat_map(|text| literals(&text)).collect()
}

/// The pieces of a format that no format string of the kernel matches.
fn missing(tree: &Path, format: &Format, file: &str) -> Vec<String> {
    let own = read(tree, &[file]);
    // A piece without a letter is a separator, and `\x0a` is how /dev/kmsg escapes the `\n` of the source.
    let pieces =
        format.text.split('|').filter(|piece| piece.contains(char::is_alphabetic) && *piece != "\\x0a");
    let words = pieces.filter(|piece| !fragments(piece).is_empty());
    // Values of the format's `%s`: a level, a kind of error, a program.
    let elsewhere = ["error", "critical", "I/O", "critical medium", "nfs", "lockd", "NVRM: "];
    let unknown = words.filter(|piece| !elsewhere.contains(piece)).filter(|piece| !has(&own, piece));
    let mut missing: Vec<String> = unknown.map(|piece| format!("{file}: {piece}")).collect();
    if let Lead::Text(helper) = format.lead
        && !read(tree, helper.files).iter().any(|literal| literal.contains(helper.wording))
    {
        missing.push(format!("{}: {}", helper.files.join(", "), helper.wording));
    }
    missing
}

#[test]
fn the_kernel_source_has_every_format() {
    let Some(trees) = std::env::var_os("RAILGATE_KERNEL_SOURCE") else {
        return eprintln!("skipped: RAILGATE_KERNEL_SOURCE names no unpacked kernel source");
    };
    let trees: Vec<PathBuf> = std::env::split_paths(&trees).collect();
    let mut all_missing = Vec::new();
    for tree in trees {
        let release = release(&tree);
        let (mut checked, mut missing_here) = (0, Vec::new());
        for format in rows().flat_map(|row| row.formats.iter().chain(row.over)) {
            let Source::Linux { file, since, until } = format.source else { continue };
            if (since..=until).contains(&release) {
                checked += 1;
                missing_here.extend(missing(&tree, format, file));
            }
        }
        println!("{}: {checked} formats of Linux {}.{}", tree.display(), release.0, release.1);
        all_missing
            .extend(missing_here.into_iter().map(|what| format!("{}.{}: {what}", release.0, release.1)));
    }
    assert!(all_missing.is_empty(), "{all_missing:#?}");
}

#[test]
fn the_nvidia_driver_source_has_every_format() {
    let Some(tree) = std::env::var_os("RAILGATE_NVIDIA_SOURCE") else {
        return eprintln!("skipped: RAILGATE_NVIDIA_SOURCE names no checkout of open-gpu-kernel-modules");
    };
    let mut all_missing = Vec::new();
    for format in rows().flat_map(|row| row.formats) {
        if let Source::Nvidia(file) = format.source {
            all_missing.extend(missing(Path::new(&tree), format, file));
        }
    }
    assert!(all_missing.is_empty(), "{all_missing:#?}");
}

/// MLNX_OFED prints the same texts as the newest kernel.
#[test]
fn the_mlnx_ofed_source_has_every_mlx5_format() {
    let Some(tree) = std::env::var_os("RAILGATE_MLNX_OFED_SOURCE") else {
        return eprintln!("skipped: RAILGATE_MLNX_OFED_SOURCE names no unpacked mlnx-ofa_kernel");
    };
    let mut all_missing = Vec::new();
    let mut checked = 0;
    for format in rows().flat_map(|row| row.formats) {
        let Source::Linux { file, until, .. } = format.source else { continue };
        if file.starts_with("drivers/net/ethernet/mellanox/") && until == NEWEST {
            checked += 1;
            // That tree only has the helpers of mlx5.
            let mut missing = missing(Path::new(&tree), format, file);
            missing.retain(|what| !what.starts_with("net/core/") && !what.starts_with("drivers/base/"));
            all_missing.extend(missing);
        }
    }
    println!("{}: {checked} formats of mlx5", Path::new(&tree).display());
    assert!(all_missing.is_empty(), "{all_missing:#?}");
}

#[test]
fn every_format_has_a_source() {
    for format in rows().flat_map(|row| row.formats.iter().chain(row.over)) {
        let source = match format.source {
            Source::Linux { file, .. } | Source::Nvidia(file) => file,
            Source::Reported(place) => place,
        };
        assert!(!source.is_empty(), "{}", format.text);
    }
}

#[test]
fn string_literals_and_fragments_are_extracted() {
    let source = "pr_err(KERN_ERR \"one \"\n\t\"two %s\\n\", x); y(\"three \\\"%d\\\"\");";
    assert_eq!(literals(source), ["one two %s\\n", "three \\\"%d\\\""]);
    assert!(has(&literals(source), "one two {word}"));
    assert!(has(&literals(source), "one {text}wo"));
    assert!(!has(&literals(source), "two {word} one"));
    assert!(!has(&literals(source), "two three"));
}
