//! The native stack of a process's main thread: which functions of the program and of libraries such as NCCL and CUDA it is in.
//!
//! Needs no other program and no separate symbol files: the unwind tables are in the process's memory, the names in its files.

mod memory;
mod names;
mod objects;
mod registers;
mod unwind;

use std::path::Path;

use nix::unistd::Pid;
use railgate_child::trace_any;
use railgate_node_report::stacks::{MOST_FRAMES, NativeFrame, NativeStack};
use railgate_probe::JobMember;

use crate::access::{self, Access};
use memory::Memory;
use names::Files;
use objects::Objects;
use registers::{blocked, paused};
use unwind::{NO_REGISTER, Walk, walk};

/// Prefix of the CPython function that runs Python code. Its callers are in the Python stack.
const INTERPRETER: &str = "_PyEval_EvalFrame";
const STACK_MOVED: &str = "its stack changed while it was read";

/// The functions of the main thread, innermost first.
pub(crate) fn stack(member: &mut JobMember, pid: u32) -> Result<NativeStack, String> {
    let id = Pid::from_raw(i32::try_from(pid).map_err(|why| why.to_string())?);
    // Retries only if the stack changed, so that a thread is stopped at most once.
    access::read(member, pid, |why| why != STACK_MOVED, |_, access| read(id, access))
}

fn read(pid: Pid, access: Access) -> Result<NativeStack, String> {
    let mut memory = Memory::new(pid);
    let mut objects = Objects::new(pid).map_err(|why| format!("its memory map: {why}"))?;
    let files = Files::new(pid);
    let without_pause = match blocked(pid)? {
        Some(now) if now.registers.counter() == Some(0) => return Err("its main thread has ended".to_owned()),
        Some(before) => {
            let found = walk(before.registers.clone(), &memory, &mut objects, MOST_FRAMES);
            let is_still = blocked(pid)?.as_ref() == Some(&before);
            match before.continues() {
                true => Some(found).filter(|found| is_still && found.cut != Some(NO_REGISTER)),
                false if is_still => Some(found),
                false => return Err(STACK_MOVED.to_owned()),
            }
        }
        None => None,
    };
    let found = match without_pause {
        Some(found) => found,
        None => walk(paused(pid, &mut memory)?, &memory, &mut objects, MOST_FRAMES),
    };
    // Drops the capability while files are opened, because the job chooses their paths.
    let set = |traces: bool| match access {
        Access::Any => trace_any(traces).map_err(|why| why.to_string()),
        Access::Own => Ok(()),
    };
    set(false)?;
    let named = named(&found, &objects, &files);
    set(true)?;
    Ok(named)
}

/// Adds the names of functions. Omits frames outside the innermost call of the Python interpreter.
fn named(walk: &Walk, objects: &Objects, files: &Files) -> NativeStack {
    let mut frames: Vec<NativeFrame> = walk
        .places
        .iter()
        .map(|place| {
            let object = place.object.and_then(|index| objects.get(index));
            let path = object.map_or(Path::new(""), |object| &object.path);
            let address = object.map_or(place.address, |object| object.in_file(place.address));
            NativeFrame { object: path.display().to_string(), address, ..NativeFrame::default() }
        })
        .collect();
    let mut indices: Vec<usize> = walk.places.iter().filter_map(|place| place.object).collect();
    indices.sort_unstable();
    indices.dedup();
    for index in indices {
        let Some(object) = objects.get(index) else { continue };
        let of_it = |at: &usize| walk.places.get(*at).is_some_and(|place| place.object == Some(index));
        let places: Vec<usize> = (0..frames.len()).filter(of_it).collect();
        let addresses: Vec<u64> = places.iter().filter_map(|at| Some(frames.get(*at)?.address)).collect();
        for (at, name) in places.into_iter().zip(files.names(object, &addresses)) {
            if let Some(frame) = frames.get_mut(at) {
                frame.function = name;
            }
        }
    }
    let is_interpreter =
        |frame: &NativeFrame| frame.function.as_ref().is_some_and(|name| name.starts_with(INTERPRETER));
    let cut = match frames.iter().position(is_interpreter) {
        Some(at) => {
            frames.truncate(at);
            None
        }
        None => walk.cut.map(str::to_owned),
    };
    NativeStack { frames, cut }.bounded()
}
