//! Links so that the library is never unloaded: NCCL closes it while the process ends, when other threads may still
//! hold one of its strings.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
