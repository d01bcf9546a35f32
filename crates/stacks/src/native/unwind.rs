//! Unwinds a stack with the tables that compilers write for exceptions.

use gimli::{CfaRule, EhFrame, Register, RegisterRule, UnwindContext, UnwindSection as _};

use super::memory::Memory;
use super::objects::Objects;
use super::registers::Registers;

/// Code address of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Address within the call instruction.
    pub(super) address: u64,
    /// Index of its object; `None` if the code is not from a file.
    pub(super) object: Option<usize>,
}

/// Result of unwinding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// Innermost first.
    pub(super) places: Vec<Place>,
    /// Why unwinding ended before the first function of the thread.
    pub(super) cut: Option<&'static str>,
}

const NO_TABLES: &str = "the code has no unwind tables";
/// The only reason that a pause of the thread can resolve.
pub(super) const NO_REGISTER: &str = "the kernel does not show the registers that lead to the caller";
const OTHER_RULE: &str =
    "the unwind tables use a rule that is not supported, for example for a signal handler";
const DAMAGED: &str = "the unwind tables or the stack cannot be followed";
const DEEP: &str = "the stack is deeper";

/// Unwinds at most `most` frames.
pub(super) fn walk(mut registers: Registers, memory: &Memory, objects: &mut Objects, most: usize) -> Walk {
    let mut places: Vec<Place> = Vec::new();
    let mut context = UnwindContext::new();
    let cut = loop {
        let Some(counter) = registers.counter().filter(|counter| *counter != 0) else { break None };
        // A call can be the last instruction of its function, so the return address may belong to the next one.
        let address = if places.is_empty() { counter } else { counter - 1 };
        let object = objects.at(address, memory);
        if places.len() == most {
            break Some(DEEP);
        }
        places.push(Place { address, object });
        match caller(&registers, address, object, places.len() == 1, memory, objects, &mut context) {
            Ok(Some(next)) => registers = next,
            Ok(None) => break None,
            Err(why) => break Some(why),
        }
    };
    Walk { places, cut }
}

/// Returns the registers of the caller, or `None` for the first function of the thread.
fn caller(
    now: &Registers,
    address: u64,
    object: Option<usize>,
    is_innermost: bool,
    memory: &Memory,
    objects: &Objects,
    context: &mut UnwindContext<usize>,
) -> Result<Option<Registers>, &'static str> {
    let object = object.and_then(|index| objects.get(index)).ok_or(NO_TABLES)?;
    let unwind = object.unwind().ok_or(NO_TABLES)?;
    let table = unwind.search.table().ok_or(NO_TABLES)?;
    let entry = table
        .fde_for_address(&unwind.frames, unwind.bases, address, EhFrame::cie_from_offset)
        .map_err(|_| NO_TABLES)?;
    let row = entry
        .unwind_info_for_address(&unwind.frames, unwind.bases, context, address)
        .map_err(|_| NO_TABLES)?;
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return Err(OTHER_RULE) };
    let base = now.get(usize::from(register.0)).ok_or(NO_REGISTER)?;
    // Stack pointer of the caller before the call.
    let frame = base.wrapping_add_signed(*offset);
    let stack = now.stack().ok_or(NO_REGISTER)?;
    if frame < stack || frame == stack && !is_innermost {
        return Err(DAMAGED);
    }
    let value = |number: usize| match row.register(Register(u16::try_from(number).ok()?)) {
        None => now.get(number).filter(|_| Registers::is_kept(number)),
        Some(RegisterRule::SameValue) => now.get(number),
        Some(RegisterRule::Offset(offset)) => memory.word(frame.wrapping_add_signed(offset)),
        Some(RegisterRule::ValOffset(offset)) => Some(frame.wrapping_add_signed(offset)),
        Some(RegisterRule::Register(other)) => now.get(usize::from(other.0)),
        _ => None,
    };
    let back = entry.cie().return_address_register();
    let counter = match row.register(back) {
        Some(RegisterRule::Undefined) => return Ok(None),
        // A function without calls keeps its return address in a register.
        None if is_innermost && cfg!(target_arch = "aarch64") => {
            now.get(usize::from(back.0)).ok_or(NO_REGISTER)?
        }
        None => return Err(DAMAGED),
        Some(_) => value(usize::from(back.0)).ok_or(DAMAGED)?,
    };
    let mut next = Registers::new(frame, counter);
    for number in 0..Registers::COUNT {
        next.set(number, value(number));
    }
    Ok(Some(next))
}
