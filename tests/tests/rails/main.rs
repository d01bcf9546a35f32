//! Results of `rails` for whole machines, and of its topology validator for files that NCCL itself has parsed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a fixture that cannot be read is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

mod machines;
mod topologies;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares a text with the stored one; `REWRITE=1` stores it instead.
fn same_as_stored(path: &Path, text: &str) -> bool {
    if std::env::var_os("REWRITE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    if stored != text {
        eprintln!("{} differs from the current output:\n{text}", path.display());
    }
    stored == text
}
