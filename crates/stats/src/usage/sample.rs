use railgate_model::UnixMillis;

/// What is sampled of one thing: a list of numbers with names. A field keeps its place for ever; new ones come last.
pub trait Field: Copy + Sized + 'static {
    /// In the order of their places, at most 32.
    const ALL: &'static [Self];
    /// Its place.
    fn place(self) -> usize;
    /// As it stands in the file's head and in tables: `tensor_percent`.
    fn name(self) -> &'static str;
    /// It counts from the sampler's beginning and only grows: its last value says all.
    fn grows(self) -> bool {
        matches!(self.name(), "energy_j" | "errors" | "retransmits" | "congestion_marks")
    }
}

macro_rules! fields {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $field,)* }

        impl Field for $name {
            const ALL: &'static [Self] = &[$($name::$field,)*];

            fn place(self) -> usize {
                usize::from(self as u8)
            }

            fn name(self) -> &'static str {
                match self {
                    $($name::$field => $text,)*
                }
            }
        }
    };
}

fields! {
    /// What is sampled of a GPU. Activities are percent over the sample's time.
    GpuField {
        /// Some context was busy.
        Graphics = "graphics_percent",
        /// SMs with at least one warp.
        Sm = "sm_percent",
        /// Warps resident.
        Occupancy = "occupancy_percent",
        /// Any tensor pipe.
        Tensor = "tensor_percent",
        /// Tensor pipe, double precision.
        Dfma = "dfma_percent",
        /// Tensor pipe, floating point below double.
        Hmma = "hmma_percent",
        /// Tensor pipe, integers.
        Imma = "imma_percent",
        /// Memory traffic, of the peak.
        Dram = "dram_percent",
        /// Double precision outside the tensor pipe.
        Fp64 = "fp64_percent",
        /// Single precision outside the tensor pipe.
        Fp32 = "fp32_percent",
        /// Half precision outside the tensor pipe.
        Fp16 = "fp16_percent",
        /// Bytes per second sent over PCIe.
        PcieTx = "pcie_tx_bytes_s",
        /// Bytes per second received over PCIe.
        PcieRx = "pcie_rx_bytes_s",
        /// Bytes per second sent over NVLink.
        NvlinkTx = "nvlink_tx_bytes_s",
        /// Bytes per second received over NVLink.
        NvlinkRx = "nvlink_rx_bytes_s",
        /// Time with any kernel, percent.
        AnyKernel = "any_kernel_percent",
        /// Time with any memory access, percent.
        MemoryBusy = "memory_busy_percent",
        /// SM clock, MHz.
        SmClock = "sm_clock_mhz",
        /// SM activity times SM clock while SMs worked: percent MHz.
        SmWork = "sm_percent_mhz",
        /// Tensor activity times SM clock as NVML reads it: percent MHz.
        TensorWork = "tensor_percent_mhz",
        /// Of that, what the clock counts for that was read while tensor kernels ran and SMs ran slower than it says.
        TensorWorkSlowed = "tensor_percent_slowed_mhz",
        /// Single precision activity times SM clock as NVML reads it: percent MHz.
        Fp32Work = "fp32_percent_mhz",
        /// Watts, read.
        Power = "power_w",
        /// Joules since the sampler began, by the energy counter.
        Energy = "energy_j",
        /// °C.
        Temperature = "temperature_c",
        /// MiB.
        MemoryUsed = "memory_used_mib",
        /// Share of the time under the power cap, percent.
        PowerCap = "power_cap_percent",
        /// Share of the time in hardware slowdown, percent.
        HwSlowdown = "hw_slowdown_percent",
        /// Share of the time at software's thermal limit, percent.
        SwThermal = "sw_thermal_percent",
        /// Share of the time at hardware's thermal limit, percent.
        HwThermal = "hw_thermal_percent",
        /// Share of the time under power brake, percent.
        PowerBrake = "power_brake_percent",
    }
}

fields! {
    /// What is sampled of an RDMA port.
    RailField {
        /// Bytes per second sent.
        Tx = "tx_bytes_s",
        /// Bytes per second received.
        Rx = "rx_bytes_s",
        /// Errors since the sampler began.
        Errors = "errors",
        /// Packets sent again since the sampler began.
        Retransmits = "retransmits",
        /// Marks of congestion since the sampler began.
        Congestion = "congestion_marks",
        /// Ticks with data and no credits per second.
        XmitWait = "xmit_wait_s",
    }
}

fields! {
    /// What is sampled of the job's cgroup.
    HostField {
        /// Cores busy.
        Cpu = "cpu_cores",
        /// MiB in use.
        Memory = "memory_mib",
        /// Percent of the time in which some task waited for the CPU.
        CpuPressure = "cpu_pressure_percent",
        /// Percent of the time in which some task waited for memory.
        MemoryPressure = "memory_pressure_percent",
        /// Percent of the time in which some task waited for I/O.
        IoPressure = "io_pressure_percent",
        /// Bytes per second read.
        IoRead = "io_read_bytes_s",
        /// Bytes per second written.
        IoWrite = "io_write_bytes_s",
    }
}

/// One value of a sample, over its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Mean.
    pub mean: f32,
    /// The lowest of the samples that were folded into this one; the mean itself in a sample that is none of several.
    pub min: f32,
    /// The highest.
    pub max: f32,
}

/// Values of one thing by field; `None` was not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Values<F> {
    values: Vec<Option<Value>>,
    of: std::marker::PhantomData<F>,
}

impl<F: Field> Default for Values<F> {
    fn default() -> Self {
        Values { values: vec![None; F::ALL.len()], of: std::marker::PhantomData }
    }
}

impl<F: Field> Values<F> {
    /// One field, where it is known.
    pub fn get(&self, field: F) -> Option<Value> {
        self.values.get(field.place()).copied().flatten()
    }

    /// Its mean.
    pub fn mean(&self, field: F) -> Option<f64> {
        self.get(field).map(|value| value.mean.into())
    }

    /// Sets a field; what is not a number is not known.
    pub fn set(&mut self, field: F, value: Option<Value>) {
        let sound = |value: &Value| [value.mean, value.min, value.max].iter().all(|part| part.is_finite());
        if let Some(place) = self.values.get_mut(field.place()) {
            *place = value.filter(sound);
        }
    }

    /// Sets a field that one sample has read.
    #[expect(clippy::cast_possible_truncation, reason = "seven digits are more than any sensor has")]
    pub fn put(&mut self, field: F, value: Option<f64>) {
        self.set(field, value.map(|value| value as f32).map(|mean| Value { mean, min: mean, max: mean }));
    }

    /// Nothing is known.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

/// What the job was doing, as far as it matters to what its numbers mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It ran.
    #[default]
    Running,
    /// It was suspended: neither run nor idle.
    Suspended,
    /// Its user had asked that the GPUs be left alone: nothing is known of them.
    Yielded,
}

/// What one stretch of time looked like on this node: five seconds, or a minute folded together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When it began.
    pub start: UnixMillis,
    /// How long it stands for, seconds.
    pub seconds: f32,
    /// How many samples are folded into it, 1 for a sample that is none of several.
    pub folded: u16,
    /// Of all of it.
    pub state: State,
    /// One entry per GPU, in the file head's order.
    pub gpus: Vec<Values<GpuField>>,
    /// One entry per RDMA port, in the file head's order.
    pub rails: Vec<Values<RailField>>,
    /// The job's cgroup.
    pub host: Values<HostField>,
}

impl Sample {
    /// When it ended.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    pub fn end(&self) -> UnixMillis {
        self.start.saturating_add((f64::from(self.seconds) * 1000.0).round() as u64)
    }
}
