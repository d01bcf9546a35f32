//! Summaries of a native stack.

use super::{NativeFrame, NativeStack};
use crate::python_file::name;

/// Libraries of the system. Their functions only wait on behalf of their callers.
const SYSTEM: [&str; 8] = ["libc.so", "libc-", "ld-", "libpthread", "librt.", "librt-", "libm.so", "["];

/// Describes a program without a Python stack by the library function that its own code called: `in MPI_Allreduce (called by solve in
/// heat)`. A program's own code is in a file that is not a library (`.so`).
pub(super) fn place(stack: &NativeStack) -> Option<String> {
    let own = |frame: &NativeFrame| !frame.object.is_empty() && !is_library(frame);
    match stack.frames.iter().position(own) {
        Some(0) => {
            stack.frames.iter().filter(|frame| own(frame)).find_map(named).map(|text| format!("in {text}"))
        }
        Some(at) => {
            let (caller, inner) = (stack.frames.get(at)?, stack.frames.get(..at)?);
            let called = inner.iter().rev().find_map(|frame| frame.function.as_deref())?;
            let program = name(&caller.object);
            Some(match &caller.function {
                Some(caller) => format!("in {called} (called by {caller} in {program})"),
                None => format!("in {called} (called by {program})"),
            })
        }
        None => stack.frames.iter().find_map(named).map(|text| format!("in {text}")),
    }
}

/// Returns the library function in which a Python function waits: `cudaStreamSynchronize (libcudart.so)`. Returns `None` for functions of
/// Python and of the system, because the Python stack and the kernel function already show them.
pub(super) fn library_call(stack: &NativeStack) -> Option<String> {
    let is_system = |frame: &NativeFrame| SYSTEM.iter().any(|known| name(&frame.object).starts_with(known));
    let is_python = |frame: &NativeFrame| {
        let function = frame.function.as_deref().unwrap_or_default();
        function.starts_with("Py")
            || function.starts_with("_Py")
            || name(&frame.object).starts_with("libpython")
    };
    let foreign = |frame: &&NativeFrame| is_library(frame) && !is_system(frame) && !is_python(frame);
    stack.frames.iter().filter(foreign).find_map(named)
}

fn is_library(frame: &NativeFrame) -> bool {
    let name = name(&frame.object);
    name.contains(".so") || name.starts_with('[')
}

fn named(frame: &NativeFrame) -> Option<String> {
    Some(format!("{} ({})", frame.function.as_ref()?, without_version(name(&frame.object))))
}

/// `libcuda.so` of `libcuda.so.580.159.04`
fn without_version(library: &str) -> &str {
    library.find(".so.").and_then(|at| library.get(..at + ".so".len())).unwrap_or(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[(&str, &str)]) -> NativeStack {
        let frame = |(function, object): &(&str, &str)| NativeFrame {
            function: Some((*function).to_owned()).filter(|name| !name.is_empty()),
            object: (*object).to_owned(),
            address: 1,
        };
        NativeStack { frames: frames.iter().map(frame).collect(), cut: None }
    }

    const LIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    const CUDA: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
    const RUNTIME: &str = "/opt/env/lib/libcudart.so.12";

    #[test]
    fn a_program_is_named_by_what_its_own_code_called() {
        let inside =
            [("poll", LIBC), ("", "/opt/mpi/libopen-pal.so.80"), ("MPI_Allreduce", "/opt/mpi/libmpi.so.40")];
        let with = |own: &[(&str, &str)]| place(&stack(&[&inside, own].concat()));
        assert_eq!(
            with(&[("solve", "/home/a/heat"), ("main", "/home/a/heat"), ("", LIBC)]).as_deref(),
            Some("in MPI_Allreduce (called by solve in heat)")
        );
        assert_eq!(with(&[("", "/home/a/heat")]).as_deref(), Some("in MPI_Allreduce (called by heat)"));
        assert_eq!(with(&[]).as_deref(), Some("in poll (libc.so)"), "the program was not reached");
        assert_eq!(place(&stack(&[("spin", "/home/a/heat")])).as_deref(), Some("in spin (heat)"));
        assert_eq!(place(&stack(&[("", CUDA), ("", "")])), None);
    }

    #[test]
    fn a_python_function_is_completed_by_the_librarys_function() {
        let sync =
            [("", CUDA), ("", CUDA), ("cudaStreamSynchronize", RUNTIME), ("c10::Scalar", "/opt/libtorch.so")];
        let call = library_call(&stack(&sync));
        assert_eq!(call.as_deref(), Some("cudaStreamSynchronize (libcudart.so)"));
        let sleep = [
            ("clock_nanosleep", LIBC),
            ("", "/usr/bin/python3.11"),
            ("PyObject_Vectorcall", "/usr/bin/python3.11"),
        ];
        assert_eq!(library_call(&stack(&sleep)), None);
    }
}
