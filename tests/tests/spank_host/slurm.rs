//! Slurm's side: its state, and the functions that the plugin expects in the program that loads it.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

pub(crate) type OptionCallback = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
pub(crate) type Hook = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;

pub(crate) const LOCAL: u32 = 1;
pub(crate) const REMOTE: u32 = 2;
pub(crate) const ALLOCATOR: u32 = 3;
pub(crate) const SLURMD: u32 = 4;
pub(crate) const JOB_SCRIPT: u32 = 5;

pub(crate) const BATCH: u32 = 0xffff_fffb;
pub(crate) const EXTERN: u32 = 0xffff_fffc;

pub(crate) const ESPANK_ERROR: c_int = 3000;
pub(crate) const ESPANK_ENV_NOEXIST: c_int = 3004;
pub(crate) const ESPANK_NOSPACE: c_int = 3005;

/// State that Slurm would have.
#[derive(Default)]
pub(crate) struct Slurm {
    pub(crate) context: u32,
    pub(crate) step: u32,
    pub(crate) task: u32,
    pub(crate) env: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) control: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) options: BTreeMap<String, (c_int, OptionCallback)>,
    pub(crate) log: Vec<String>,
    /// Every function returns an error.
    pub(crate) broken: bool,
}

static SLURM: Mutex<Option<Slurm>> = Mutex::new(None);

pub(crate) fn slurm<T>(work: impl FnOnce(&mut Slurm) -> T) -> T {
    work(SLURM.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

pub(crate) fn bytes(text: *const c_char) -> Vec<u8> {
    // SAFETY: the plugin passes C strings, as Slurm requires.
    unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
}

#[unsafe(no_mangle)]
extern "C" fn spank_context() -> u32 {
    slurm(|slurm| if slurm.broken { 0 } else { slurm.context })
}

/// Variadic in Slurm. The plugin only asks for items with one pointer argument, which is passed like this.
#[unsafe(no_mangle)]
unsafe extern "C" fn spank_get_item(_: *mut c_void, item: u32, out: *mut u32) -> c_int {
    const JOB_ID: u32 = 2;
    const STEP_ID: u32 = 3;
    const TASK_ID: u32 = 11;
    let value = slurm(|slurm| match item {
        _ if slurm.broken => None,
        JOB_ID => Some(7),
        STEP_ID => Some(slurm.step),
        TASK_ID => Some(slurm.task),
        _ => None,
    });
    match value {
        Some(value) => {
            // SAFETY: the plugin reads these items into a u32.
            unsafe { *out = value };
            0
        }
        None => ESPANK_ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn spank_getenv(
    _: *mut c_void,
    name: *const c_char,
    out: *mut c_char,
    room: c_int,
) -> c_int {
    let Some(value) = slurm(|slurm| if slurm.broken { None } else { slurm.env.get(&bytes(name)).cloned() })
    else {
        return if slurm(|slurm| slurm.broken) { ESPANK_ERROR } else { ESPANK_ENV_NOEXIST };
    };
    if value.len() >= usize::try_from(room).unwrap() {
        return ESPANK_NOSPACE;
    }
    // SAFETY: the value and its NUL fit.
    unsafe {
        ptr::copy_nonoverlapping(value.as_ptr().cast(), out, value.len());
        *out.add(value.len()) = 0;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn spank_setenv(_: *mut c_void, name: *const c_char, value: *const c_char, _: c_int) -> c_int {
    slurm(|slurm| {
        if slurm.broken {
            return ESPANK_ERROR;
        }
        slurm.env.insert(bytes(name), bytes(value));
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn spank_unsetenv(_: *mut c_void, name: *const c_char) -> c_int {
    slurm(|slurm| {
        if slurm.broken {
            return ESPANK_ERROR;
        }
        slurm.env.remove(&bytes(name));
        0
    })
}

#[unsafe(no_mangle)]
extern "C" fn spank_job_control_setenv(
    _: *mut c_void,
    name: *const c_char,
    value: *const c_char,
    _: c_int,
) -> c_int {
    slurm(|slurm| {
        if slurm.broken {
            return ESPANK_ERROR;
        }
        slurm.control.insert(bytes(name), bytes(value));
        0
    })
}

#[repr(C)]
struct SpankOption {
    name: *const c_char,
    arginfo: *const c_char,
    usage: *const c_char,
    has_arg: c_int,
    val: c_int,
    cb: Option<OptionCallback>,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn spank_option_register(_: *mut c_void, option: *const SpankOption) -> c_int {
    // SAFETY: the plugin passes a pointer to one option.
    let option = unsafe { &*option };
    if slurm(|slurm| slurm.broken) || option.name.is_null() || option.usage.is_null() {
        return ESPANK_ERROR;
    }
    assert_eq!(option.has_arg, 1);
    let name = String::from_utf8(bytes(option.name)).unwrap();
    slurm(|slurm| slurm.options.insert(name, (option.val, option.cb.unwrap())));
    0
}

#[unsafe(no_mangle)]
extern "C" fn spank_strerror(_: u32) -> *const c_char {
    c"as the test wants it".as_ptr()
}

fn logged(level: &str, format: *const c_char, text: *const c_char) {
    assert_eq!(bytes(format), b"%s", "the format must be a constant");
    slurm(|slurm| slurm.log.push(format!("{level}: {}", String::from_utf8_lossy(&bytes(text)))));
}

macro_rules! loggers {
    ($($name:ident $level:literal)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name(format: *const c_char, text: *const c_char) {
            logged($level, format, text);
        })*
        /// Nothing in this program calls them; the table keeps the linker from removing them.
        #[used]
        static LOGGERS: [extern "C" fn(*const c_char, *const c_char); 7] = [$($name),*];
    };
}

loggers! {
    slurm_error "error" slurm_info "info" slurm_verbose "verbose" slurm_debug "debug" slurm_debug2 "debug2"
    slurm_debug3 "debug3" slurm_spank_log "user"
}

struct Exported(#[expect(dead_code, reason = "only kept")] [*const c_void; 8]);
// SAFETY: the pointers are never dereferenced.
unsafe impl Sync for Exported {}
#[used]
static EXPORTED: Exported = Exported([
    spank_context as *const c_void,
    spank_get_item as *const c_void,
    spank_getenv as *const c_void,
    spank_setenv as *const c_void,
    spank_unsetenv as *const c_void,
    spank_job_control_setenv as *const c_void,
    spank_option_register as *const c_void,
    spank_strerror as *const c_void,
]);
