//! Arbitrary text as a configuration or a machine profile: it is either accepted, and then survives a round trip, or
//! refused with a position.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use railgate_runner::{Config, Loaded};

static PROFILES: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = PathBuf::from(format!("/dev/shm/railgate-fuzz-profiles-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("memory");
    place
});

fuzz_target!(|text: &str| {
    let lines = 1 + text.matches('\n').count();
    match Loaded::parse(Path::new("railgate.toml"), text, "gn1") {
        Ok(loaded) => {
            assert!(loaded.origins.values().all(|at| at.line >= 1 && at.line <= lines));
            loaded.listing().expect("what was read can be listed");
            let again = serde_json::to_string(&loaded.config).expect("plain data");
            let _ = serde_json::from_str::<Config>(&again).map_err(|why| panic!("{why}: {again}"));
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in &problems {
                assert!(problem.line().is_none_or(|line| line >= 1 && line <= lines + 1));
                assert!(!problem.message().is_empty());
                let _ = problem.to_string();
            }
        }
    }
    std::fs::write(PROFILES.join("site.toml"), text).expect("memory");
    let _ = railgate_profiles::load("site", std::slice::from_ref(&*PROFILES)).map_err(|why| why.to_string());
});
