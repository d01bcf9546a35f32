//! Converts `RAILGATE_SLURM_VERSION` to the number that Slurm compares when it loads the plugin.
#![expect(clippy::disallowed_macros, reason = "cargo reads what it prints")]

use std::env;
use std::fs;
use std::path::PathBuf;

/// The release in Debian 12.
const DEFAULT: &str = "22.05";

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=RAILGATE_SLURM_VERSION");
    let version = env::var("RAILGATE_SLURM_VERSION").unwrap_or_else(|_| DEFAULT.to_owned());
    let number = number(&version)
        .ok_or_else(|| format!("RAILGATE_SLURM_VERSION={version}: expected a release such as 22.05"))?;
    let out = PathBuf::from(env::var("OUT_DIR").map_err(|why| why.to_string())?).join("version.rs");
    fs::write(&out, format!("0x{number:06x}")).map_err(|why| format!("{}: {why}", out.display()))
}

/// Packs major, minor and micro into one byte each. Slurm compares the first two.
fn number(version: &str) -> Option<u32> {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u8>().ok());
    let (major, minor) = (parts.next()??, parts.next()??);
    let micro = parts.next().unwrap_or(Some(0))?;
    Some(u32::from(major) << 16 | u32::from(minor) << 8 | u32::from(micro))
}
