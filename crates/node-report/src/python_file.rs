//! Files that frames of Python name.

/// Whether a file is the user's, not one of Python or of an installed package.
pub fn is_own(file: &str) -> bool {
    const OTHERS: [&str; 8] = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python",
        "/lib64/python",
        "<frozen",
        "<string>",
        "/bin/torchrun",
        "/bin/accelerate",
    ];
    // Frames of Cython have the paths of the build.
    let is_built = file.ends_with(".pyx") || file.ends_with(".pxi");
    !is_built && !OTHERS.iter().any(|other| file.contains(other)) && !file.ends_with("/bin/deepspeed")
}

/// The last part of a path: directories hold names of users.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
