use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::Scenario;

/// The name that drivers install and that the loader tries by default.
const INSTALLED: &str = "libnvidia-ml.so.1";

/// Path of the library that cargo built, relative to the running program (`target/<profile>/` or its `deps/`).
///
/// # Errors
/// The library does not exist: `cargo build -p nvml-sim` builds it.
pub fn built_library() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let places = program.ancestors().skip(1).take(3).flat_map(|dir| [dir.to_owned(), dir.join("deps")]);
    places.map(|dir| dir.join("libnvidia_ml.so")).find(|path| path.is_file()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "libnvidia_ml.so is not built (cargo build -p nvml-sim)")
    })
}

/// Puts a copy of the library and a scenario into a folder. Returns the library's path for `[source] nvml_library`.
///
/// # Errors
/// The library is not built, or the folder cannot be written.
pub fn install(dir: &Path, scenario: &Scenario) -> io::Result<PathBuf> {
    let library = dir.join(INSTALLED);
    fs::copy(built_library()?, &library)?;
    scenario.write(dir)?;
    Ok(library)
}
