use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::Context as _;
use nix::sys::stat::Mode;
use nix::unistd::{Uid, User};
use railgate_fleet_page::{Facts, Names, html, users};
use railgate_fsutil::{Put, nofollow, put_at};
use railgate_slurm::{Client, hostlist};
use railgate_text::{Lines, Printable};

use super::Known;
use crate::Site;
use crate::output::{self, complain};

/// Values of Slurm's `PrivateData` with which users must not see the jobs or the use of others.
const PRIVATE: [&str; 3] = ["jobs", "users", "usage"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Audience {
    /// All users: without user names and job IDs where Slurm's PrivateData hides jobs, users or usage
    #[default]
    All,
    /// Admins: with user names and job IDs
    Admins,
}

pub(super) fn print(
    site: &Site,
    known: &Known,
    audience: Audience,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    let names = match audience {
        Audience::Admins => shown(known),
        Audience::All => match why_withheld(site)? {
            Some(why) => Names::Withheld { why },
            None => shown(known),
        },
    };
    let page = html(&Facts {
        history: &known.history,
        judgement: &known.judgement,
        settings: &known.settings,
        drains_lemons: known.drains_lemons,
        names: &names,
        host_list: |nodes| hostlist::compress(nodes),
        railgate: env!("CARGO_PKG_VERSION"),
    });
    match out {
        None => output::text(&Lines::kept(&page)),
        Some(file) => {
            let mode = if audience == Audience::Admins { 0o600 } else { 0o644 };
            write(file, &page, mode).with_context(|| Printable(file.display()).to_string())
        }
    }
}

fn shown(known: &Known) -> Names {
    let name = |uid: u32| Some((uid, User::from_uid(Uid::from_raw(uid)).ok()??.name));
    let users: BTreeMap<u32, String> =
        users(&known.history, &known.judgement).into_iter().filter_map(name).collect();
    Names::Shown { users }
}

/// Why a page for all users has no names; `None` if Slurm shows them to all users as well.
fn why_withheld(site: &Site) -> anyhow::Result<Option<String>> {
    let env = std::env::vars_os().collect();
    let private = match Client::new(&site.config()?.slurm, &env).config() {
        Ok(config) => config.get("PrivateData").cloned().ok_or_else(|| "it has no PrivateData".to_owned()),
        Err(why) => Err(why.to_string()),
    };
    Ok(match private {
        Ok(private) => {
            let words = private.split(',').map(str::trim);
            let hidden: Vec<&str> =
                words.filter(|word| PRIVATE.iter().any(|one| one.eq_ignore_ascii_case(word))).collect();
            (!hidden.is_empty()).then(|| format!("PrivateData of Slurm contains {}", hidden.join(", ")))
        }
        Err(why) => {
            complain!(
                "no user names and job IDs on the page: the configuration of Slurm could not be read: {why}"
            );
            Some("PrivateData of Slurm could not be read".to_owned())
        }
    })
}

/// Replaces a file without following a link: the directory can be one of a web server that others write as well.
fn write(file: &Path, page: &str, mode: u32) -> io::Result<()> {
    match std::fs::symlink_metadata(file) {
        Ok(found) if !found.is_file() => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "exists, and is not a regular file"));
        }
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    let name = file.file_name().and_then(OsStr::to_str);
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = nofollow::dir_at(nofollow::place(parent)?, ".")?;
    let how = Put { mode: Mode::from_bits_truncate(mode), sync: true, replace: true };
    put_at(dir.as_fd(), name, page.as_bytes(), how)
}
