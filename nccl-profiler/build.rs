//! Links so that the library is never unloaded: NCCL closes it with the last communicator, when its threads may still
//! execute code of it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
