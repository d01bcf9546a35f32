//! Rewrites links between pages from paths of the source tree to paths of a package.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

/// A part of a page.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'t> {
    Text(&'t str),
    /// `[text](to)`
    Link {
        text: &'t str,
        to: &'t str,
    },
}

/// Splits a page into text and links. Code is text.
fn pieces(page: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut inside = false;
    for line in page.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        if inside || fence {
            pieces.push(Piece::Text(line));
            continue;
        }
        // Every second part is inside backticks, thus code.
        for (number, part) in line.split_inclusive('`').enumerate() {
            if number % 2 == 1 { pieces.push(Piece::Text(part)) } else { in_prose(part, &mut pieces) }
        }
    }
    pieces
}

fn in_prose<'t>(mut rest: &'t str, pieces: &mut Vec<Piece<'t>>) {
    while let Some((open, close, end)) = next_link(rest) {
        pieces.push(Piece::Text(&rest[..open]));
        pieces.push(Piece::Link { text: &rest[open + 1..close], to: &rest[close + 2..end] });
        rest = &rest[end + 1..];
    }
    pieces.push(Piece::Text(rest));
}

/// Positions of `[`, `]` and `)` of the next link.
fn next_link(text: &str) -> Option<(usize, usize, usize)> {
    let close = text.find("](")?;
    let open = text[..close].rfind('[')?;
    let end = close + text[close..].find(')')?;
    Some((open, close, end))
}

/// Targets of a page's links.
#[cfg(test)]
pub(super) fn links(page: &str) -> Vec<String> {
    let to = |piece: &Piece<'_>| match piece {
        Piece::Link { to, .. } => Some((*to).to_owned()),
        Piece::Text(_) => None,
    };
    pieces(page).iter().filter_map(to).collect()
}

/// The page with its links rewritten for the path `place`. `places` maps files of the source tree to their paths in the package;
/// a link to a file that is not packaged becomes plain text.
pub(super) fn rewritten(
    page: &str,
    file: &Path,
    place: &Path,
    places: &BTreeMap<PathBuf, PathBuf>,
) -> Result<String> {
    let mut out = String::new();
    for piece in pieces(page) {
        let (text, to) = match piece {
            Piece::Text(text) => {
                out.push_str(text);
                continue;
            }
            Piece::Link { text, to } => (text, to),
        };
        let (path, anchor) =
            to.split_once('#').map_or((to, String::new()), |(path, at)| (path, format!("#{at}")));
        if path.is_empty() || path.contains("://") {
            out.push_str(&format!("[{text}]({to})"));
            continue;
        }
        let leads = file.parent().context("no directory")?.join(path);
        let leads = fs::canonicalize(&leads).with_context(|| format!("{}: {to}", file.display()))?;
        match places.iter().find(|(from, _)| fs::canonicalize(from).is_ok_and(|from| from == leads)) {
            Some((_, there)) => {
                let from_here = relative(place.parent().context("no directory")?, there);
                out.push_str(&format!("[{text}]({}{anchor})", from_here.display()));
            }
            None => out.push_str(text),
        }
    }
    Ok(out)
}

/// Relative path from an absolute directory to a file.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (from.components().collect(), to.components().collect());
    let same = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = from[same..].iter().map(|_| Component::ParentDir);
    up.chain(to[same..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_rewritten_to_paths_in_the_package() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path();
        fs::create_dir(source.join("docs")).unwrap();
        for name in ["README.md", "NOTES.md", "docs/a.md"] {
            fs::write(source.join(name), "").unwrap();
        }
        let doc = Path::new("/usr/share/doc/x");
        let places: BTreeMap<PathBuf, PathBuf> = [
            (source.join("README.md"), doc.join("README.md")),
            (source.join("docs/a.md"), Path::new("/usr/share/x/pages/a.md").to_owned()),
        ]
        .into();
        let page = "See [a](docs/a.md#top), [notes](NOTES.md), [web](https://e.org/x), `[b](docs/b.md)`.\n\
                    ```\n[c](docs/c.md)\n```\n";
        let written = rewritten(page, &source.join("README.md"), &doc.join("README.md"), &places).unwrap();
        assert_eq!(
            written,
            "See [a](../../x/pages/a.md#top), notes, [web](https://e.org/x), `[b](docs/b.md)`.\n\
             ```\n[c](docs/c.md)\n```\n"
        );
        assert!(rewritten("[d](docs/d.md)", &source.join("README.md"), doc, &places).is_err(), "a dead link");
    }
}
