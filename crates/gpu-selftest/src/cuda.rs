//! The CUDA driver, loaded at run time: contexts, memory, streams and events that end with their values.
//!
//! A context belongs to the thread that made it. Calls that can hang have no deadline here: the process that starts this program has one.
#![expect(unsafe_code, reason = "the driver's interface is C")]

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use railgate_model::PciAddress;

fn said(call: &str) -> impl Fn(DriverError) -> String + '_ {
    move |why| {
        let text = |told: Result<&CStr, DriverError>| told.map(|text| text.to_string_lossy().into_owned());
        let (name, what) = (text(why.error_name()), text(why.error_string()));
        format!(
            "{call}: {} ({})",
            what.unwrap_or_default(),
            name.unwrap_or_else(|_| "unknown error".to_owned())
        )
    }
}

/// The loaded driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driver(());

/// A GPU, or a MIG device, that the driver shows to this process.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    device: sys::CUdevice,
    pub(crate) pci: PciAddress,
    /// NVML's, once it is known: the thread of the GPU asks, since NVML may hang.
    pub(crate) uuid: OnceLock<String>,
    /// `NVIDIA H200`.
    pub(crate) name: String,
    pub(crate) multiprocessors: u32,
    /// Compute capability, 90 for 9.0.
    pub(crate) capability: u32,
}

impl Driver {
    /// Loads libcuda and initialises it.
    pub(crate) fn load() -> Result<Self, String> {
        // SAFETY: loading a library runs its constructors; libcuda's have no precondition.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcuda.so.1 cannot be loaded: no NVIDIA driver is installed here".to_owned());
        }
        result::init().map_err(said("cuInit"))?;
        Ok(Driver(()))
    }

    /// All devices that this process may use.
    pub(crate) fn devices(self) -> Result<Vec<Device>, String> {
        let count = result::device::get_count().map_err(said("cuDeviceGetCount"))?;
        (0..count).map(device).collect()
    }
}

fn device(ordinal: c_int) -> Result<Device, String> {
    let device = result::device::get(ordinal).map_err(said("cuDeviceGet"))?;
    // SAFETY: the device is one that the driver returned.
    let attribute =
        |which| unsafe { result::device::get_attribute(device, which) }.map_err(said("cuDeviceGetAttribute"));
    let number = |which| attribute(which).map(|value| u32::try_from(value).unwrap_or_default());
    let [domain, bus, slot] = [
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    ]
    .map(number);
    let byte = |value: u32| u8::try_from(value).map_err(|_| format!("PCI address with {value}"));
    let pci = PciAddress { domain: domain?, bus: byte(bus?)?, device: byte(slot?)?, function: 0 };
    Ok(Device {
        device,
        pci,
        uuid: OnceLock::new(),
        name: result::device::get_name(device).map_err(said("cuDeviceGetName"))?,
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        capability: 10 * number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    })
}

/// The primary context of a device, current in this thread.
#[derive(Debug)]
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

impl Context {
    pub(crate) fn of(device: &Device) -> Result<Self, String> {
        // SAFETY: the device is one that the driver returned.
        let context = unsafe { result::primary_ctx::retain(device.device) }
            .map_err(said("cuDevicePrimaryCtxRetain"))?;
        let context = Context { device: device.device, context };
        context.enter()?;
        Ok(context)
    }

    /// Makes this context the current one of the thread.
    pub(crate) fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained until it is dropped.
        unsafe { result::ctx::set_current(self.context) }.map_err(said("cuCtxSetCurrent"))
    }

    /// Free bytes of the device, and all of them.
    pub(crate) fn memory(&self) -> Result<(usize, usize), String> {
        result::mem_get_info().map_err(said("cuMemGetInfo"))
    }

    pub(crate) fn free_bytes(&self) -> Result<usize, String> {
        self.memory().map(|(free, _)| free)
    }

    /// Device memory, not initialised.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer<'_>, String> {
        if bytes == 0 {
            return Err("too little of its memory is free".to_owned());
        }
        // SAFETY: the buffer is only read by kernels and copies after one of them has written it.
        let at = unsafe { result::malloc_sync(bytes) }.map_err(said("cuMemAlloc"))?;
        Ok(Buffer { at, bytes, context: self })
    }

    /// Page-locked host memory, filled with zeros by this thread, so that it lies on the node of the thread's cores.
    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned<'_>, String> {
        // SAFETY: the memory is initialised below, before anything reads it.
        let at = unsafe { result::malloc_host(bytes, 0) }.map_err(said("cuMemHostAlloc"))?;
        // SAFETY: the driver returned this many bytes.
        unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        Ok(Pinned { at, bytes, context: PhantomData })
    }

    pub(crate) fn stream(&self) -> Result<Stream<'_>, String> {
        let stream =
            result::stream::create(result::stream::StreamKind::Default).map_err(said("cuStreamCreate"))?;
        Ok(Stream { stream, context: self })
    }

    /// Compiles PTX for this device.
    pub(crate) fn module(&self, ptx: &str) -> Result<Module<'_>, String> {
        let text = CString::new(ptx).map_err(|_| "PTX with a zero byte".to_owned())?;
        // SAFETY: the text ends with a zero byte and lives until the call returns.
        let module =
            unsafe { result::module::load_data(text.as_ptr().cast()) }.map_err(said("cuModuleLoadData"))?;
        Ok(Module { module, context: PhantomData })
    }

    /// Whether this device may access the memory of `other`; it can from then on.
    pub(crate) fn reach(&self, other: &Context) -> Result<bool, String> {
        let mut can: c_int = 0;
        // SAFETY: both devices are ones that the driver returned, and the result has a place.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) }
            .result()
            .map_err(said("cuDeviceCanAccessPeer"))?;
        if can == 0 {
            return Ok(false);
        }
        self.enter()?;
        // SAFETY: the other context is retained as long as it is borrowed, and longer: primary contexts are released at the end.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => code.result().map(|()| true).map_err(said("cuCtxEnablePeerAccess")),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once. An error leaves the context to the end of the process.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct Buffer<'c> {
    at: sys::CUdeviceptr,
    bytes: usize,
    context: &'c Context,
}

impl Buffer<'_> {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn at(&self) -> sys::CUdeviceptr {
        self.at
    }

    /// Copies numbers to the beginning, and waits for it.
    pub(crate) fn put<T: Number>(&self, from: &[T]) -> Result<(), String> {
        self.holds(size_of_val(from))?;
        // SAFETY: the buffer is as long, and numbers of any bits are valid.
        unsafe { result::memcpy_htod_sync(self.at, from) }.map_err(said("cuMemcpyHtoD"))
    }

    /// Copies numbers from the beginning, and waits for it.
    pub(crate) fn get<T: Number>(&self, count: usize) -> Result<Vec<T>, String> {
        let mut to = vec![T::default(); count];
        self.holds(size_of_val(to.as_slice()))?;
        // SAFETY: the buffer is as long, and numbers of any bits are valid.
        unsafe { result::memcpy_dtoh_sync(&mut to, self.at) }.map_err(said("cuMemcpyDtoH"))?;
        Ok(to)
    }

    pub(crate) fn clear(&self) -> Result<(), String> {
        // SAFETY: exactly the buffer is written.
        unsafe { result::memset_d8_sync(self.at, 0, self.bytes) }.map_err(said("cuMemsetD8"))
    }

    /// Repeats the first `bytes` to the end.
    pub(crate) fn repeat(&self, bytes: usize) -> Result<(), String> {
        self.holds(bytes)?;
        let mut written = bytes;
        while written > 0 && written < self.bytes {
            let next = written.min(self.bytes - written);
            let to = self.at + u64::try_from(written).unwrap_or(u64::MAX);
            // SAFETY: both parts lie in the buffer, and the second begins where the first ends.
            unsafe { result::memcpy_dtod_sync(to, self.at, next) }.map_err(said("cuMemcpyDtoD"))?;
            written += next;
        }
        Ok(())
    }

    pub(crate) fn holds(&self, bytes: usize) -> Result<(), String> {
        if bytes > self.bytes { Err(format!("{bytes} bytes do not fit into {}", self.bytes)) } else { Ok(()) }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; freeing waits for kernels that use it. The context outlives the buffer.
        let _ = unsafe { result::free_sync(self.at) };
    }
}

/// Types of which all bits are valid values.
pub(crate) trait Number: Copy + Default {}
impl Number for u8 {}
impl Number for i32 {}
impl Number for u64 {}

/// Page-locked host memory, for copies.
#[derive(Debug)]
pub(crate) struct Pinned<'c> {
    at: *mut c_void,
    bytes: usize,
    context: PhantomData<&'c Context>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once.
        let _ = unsafe { result::free_host(self.at) };
    }
}

/// An order of work. Dropping it waits for its end.
#[derive(Debug)]
pub(crate) struct Stream<'c> {
    stream: sys::CUstream,
    context: &'c Context,
}

/// What is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer<'a> {
    ToDevice(&'a Pinned<'a>, &'a Buffer<'a>),
    ToHost(&'a Buffer<'a>, &'a Pinned<'a>),
    /// Inside one GPU.
    Within(&'a Buffer<'a>, &'a Buffer<'a>),
    /// From one GPU to another.
    Peer(&'a Buffer<'a>, &'a Buffer<'a>),
}

impl Stream<'_> {
    pub(crate) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    pub(crate) fn wait(&self) -> Result<(), String> {
        // SAFETY: the stream exists until it is dropped.
        unsafe { result::stream::synchronize(self.stream) }.map_err(said("cuStreamSynchronize"))
    }

    /// Starts to fill a buffer with one word. The caller waits before it drops the buffer; dropping the stream waits too.
    pub(crate) fn fill(&self, what: &Buffer<'_>, word: u32) -> Result<(), String> {
        // SAFETY: whole words of the buffer are written, which is freed only after the work that uses it.
        unsafe { sys::cuMemsetD32Async(what.at, word, what.bytes / 4, self.stream) }
            .result()
            .map_err(said("cuMemsetD32Async"))
    }

    /// Starts a copy of `bytes`. The caller waits before it drops what is copied; dropping the stream waits too.
    pub(crate) fn copy(&self, what: Transfer<'_>, bytes: usize) -> Result<(), String> {
        let fits = |one: usize, other: usize| {
            if bytes <= one.min(other) {
                Ok(())
            } else {
                Err(format!("{bytes} bytes are more than a buffer has"))
            }
        };
        match what {
            Transfer::ToDevice(from, to) => {
                fits(from.bytes, to.bytes)?;
                // SAFETY: both ends have these bytes. Page-locked memory and buffers are freed only after the work that uses them.
                unsafe { sys::cuMemcpyHtoDAsync_v2(to.at, from.at, bytes, self.stream) }
                    .result()
                    .map_err(said("cuMemcpyHtoDAsync"))
            }
            Transfer::ToHost(from, to) => {
                fits(from.bytes, to.bytes)?;
                // SAFETY: as above.
                unsafe { sys::cuMemcpyDtoHAsync_v2(to.at, from.at, bytes, self.stream) }
                    .result()
                    .map_err(said("cuMemcpyDtoHAsync"))
            }
            Transfer::Within(from, to) => {
                fits(from.bytes, to.bytes)?;
                // SAFETY: as above, and two buffers do not overlap.
                unsafe { sys::cuMemcpyDtoDAsync_v2(to.at, from.at, bytes, self.stream) }
                    .result()
                    .map_err(said("cuMemcpyDtoDAsync"))
            }
            Transfer::Peer(from, to) => {
                fits(from.bytes, to.bytes)?;
                let (of_from, of_to) = (from.context.context, to.context.context);
                // SAFETY: as above, and both contexts are retained.
                unsafe { result::memcpy_peer_async(of_to, to.at, of_from, from.at, bytes, self.stream) }
                    .map_err(said("cuMemcpyPeerAsync"))
            }
        }
    }

    /// Seconds that the work of `start` takes on the device.
    pub(crate) fn timed(&self, start: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
        let (first, last) = (Event::new()?, Event::new()?);
        first.record(self)?;
        start()?;
        last.record(self)?;
        self.wait()?;
        // SAFETY: both events exist, and have been recorded in this stream.
        let ms = unsafe { result::event::elapsed(first.0, last.0) }.map_err(said("cuEventElapsedTime"))?;
        Ok(f64::from(ms) / 1000.0)
    }

    /// Seconds of the fastest of so many runs. A run that another GPU's thread holds up in the driver is longer than the card takes.
    pub(crate) fn fastest(&self, times: u32, start: impl Fn() -> Result<(), String>) -> Result<f64, String> {
        (0..times).try_fold(f64::INFINITY, |least, _| Ok(least.min(self.timed(&start)?)))
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: created once, destroyed once, after its work has ended.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::stream::destroy(self.stream);
        }
    }
}

struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, String> {
        result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map(Event).map_err(said("cuEventCreate"))
    }

    fn record(&self, stream: &Stream<'_>) -> Result<(), String> {
        // SAFETY: both exist until they are dropped.
        unsafe { result::event::record(self.0, stream.stream) }.map_err(said("cuEventRecord"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Compiled kernels.
#[derive(Debug)]
pub(crate) struct Module<'c> {
    module: sys::CUmodule,
    context: PhantomData<&'c Context>,
}

impl Module<'_> {
    /// A kernel by its name. It must not be used after the module is dropped.
    pub(crate) fn function(&self, name: &str) -> Result<sys::CUfunction, String> {
        let name_c = CString::new(name).map_err(|_| "name with a zero byte".to_owned())?;
        // SAFETY: the module is loaded.
        unsafe { result::module::get_function(self.module, name_c) }.map_err(said(name))
    }

    /// Lets a kernel without shared memory run beside one with much. A multiprocessor divides its memory between cache and shared
    /// memory for the first of them, and again only when it is idle.
    pub(crate) fn leaves_shared_memory(&self, name: &str) -> Result<(), String> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the module is loaded; the value is a percentage.
        unsafe { result::function::set_function_attribute(self.function(name)?, attribute, 100) }
            .map_err(said("cuFuncSetAttribute"))
    }
}

impl Drop for Module<'_> {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Ends the process at once. The driver's handlers at exit would free what threads that are still in the driver use, or wait for a thread
/// that hangs.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: it takes a number and does not return.
    unsafe { nix::libc::_exit(code) }
}

/// Starts a kernel.
///
/// # Safety
/// The arguments are those of the kernel, in type and order, and what they point to is as long as the kernel expects until its end.
pub(crate) unsafe fn launch(
    function: sys::CUfunction,
    (grid, block): ((u32, u32), u32),
    stream: &Stream<'_>,
    arguments: &mut [*mut c_void],
) -> Result<(), String> {
    let (grid, block): ((c_uint, c_uint, c_uint), _) = ((grid.0, grid.1, 1), (block, 1, 1));
    // SAFETY: the function belongs to a loaded module; the arguments are the caller's promise.
    unsafe { result::launch_kernel(function, grid, block, 0, stream.raw(), arguments) }
        .map_err(said("cuLaunchKernel"))
}
