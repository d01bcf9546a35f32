//! What the tests of the pages need: a browser, and the rules of axe-core.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{build, packages, steps};

/// The package that contains axe-core, 4.12.1. Only that file is used, so it is installed without its dependencies.
const PACKAGE: &str = "axe-playwright-python==0.1.8";
const FILE: &str = "axe_playwright_python/axe.min.js";

/// Installs both if missing. Returns axe-core's file; without it, and without the browser, the tests are skipped with a message.
pub(super) fn prepare() -> Option<PathBuf> {
    if let Err(why) = packages::need(&packages::BROWSER) {
        println!("no browser: {why:#}");
        return None;
    }
    axe().inspect_err(|why| println!("no axe-core: {why:#}")).ok()
}

fn axe() -> Result<PathBuf> {
    let tools = build::folder(false)?.with_file_name("axe");
    if let Some(file) = file(&tools) {
        return Ok(file);
    }
    packages::need(&packages::VENV)?;
    println!("installing {PACKAGE}");
    steps::run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&tools))?;
    steps::run(Command::new(tools.join("bin/pip")).args(["install", "-q", "--no-deps", PACKAGE]))?;
    file(&tools).context("the package has no axe-core")
}

/// A venv has one directory for its version of Python.
fn file(tools: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(tools.join("lib")).ok()?;
    versions
        .flatten()
        .map(|version| version.path().join("site-packages").join(FILE))
        .find(|file| file.exists())
}
