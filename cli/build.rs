//! Builds every file of `sbatch-templates/` into the program, so that adding a template means adding one file.
#![expect(clippy::disallowed_macros, reason = "cargo reads what it prints")]

use std::fs;
use std::path::{Path, PathBuf};
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../sbatch-templates");
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut files: Vec<PathBuf> =
        fs::read_dir(&dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut rows = String::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "sbatch")) {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        rows.push_str(&format!(
            "({name:?}, include_str!({:?})),\n",
            file.canonicalize()?.display().to_string()
        ));
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("templates.rs");
    fs::write(out, format!("&[\n{rows}]\n"))?;
    Ok(())
}
