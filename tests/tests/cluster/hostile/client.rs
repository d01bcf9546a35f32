//! A plugin that an attacker loads into sbatch: it passes arbitrary values to the scripts that Slurm runs as root. The test
//! compiles it for the release of the cluster.
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

/// Arguments are `NAME=FILE`; the value is the file's content.
///
/// # Safety
/// Slurm calls it with a valid handle and valid arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    spank: *mut c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    for index in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: the index is below the number of arguments that Slurm passes.
        let argument = unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy().into_owned();
        let Some((name, file)) = argument.split_once('=') else { continue };
        let Ok(value) = std::fs::read(file) else { continue };
        let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) else { continue };
        // SAFETY: all three pointers are valid, and Slurm copies the texts.
        unsafe { spank_job_control_setenv(spank, name.as_ptr(), value.as_ptr(), 1) };
    }
    0
}
