//! `tests/spank_host/slurm.rs` exports functions of Slurm's to the plugin that it loads.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-tests=-rdynamic");
}
