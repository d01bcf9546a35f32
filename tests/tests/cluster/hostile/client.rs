//! What an attacker loads into their own sbatch: hands any value to the scripts that Slurm runs as root. Compiled by
//! the test, for the release that the cluster runs.
#![crate_type = "cdylib"]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_name: [u8; 8] = *b"hostile\0";
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static plugin_version: u32 = 0;

unsafe extern "C" {
    fn spank_job_control_setenv(
        spank: *mut c_void,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
}

/// Arguments: `NAME=FILE`, the value is what the file holds.
///
/// # Safety
/// Slurm calls it with a handle and arguments that are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    spank: *mut c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    for index in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: Slurm says how many there are.
        let argument = unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy().into_owned();
        let Some((name, file)) = argument.split_once('=') else { continue };
        let Ok(value) = std::fs::read(file) else { continue };
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
        // SAFETY: all three are valid, and Slurm copies them.
        unsafe { spank_job_control_setenv(spank, name.as_ptr(), value.as_ptr(), 1) };
    }
    0
}
