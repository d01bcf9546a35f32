use railgate_model::{GpuField, UnixMillis};

/// Fields sampled of one device: a list of named numbers. Files name their fields, so that places may change.
pub trait Field: Copy + Sized + 'static {
    /// Fields in the order of their places, at most 64.
    const ALL: &'static [Self];
    /// Place of the field.
    fn place(self) -> usize;
    /// Name in the file's head and in tables: `tensor_percent`.
    fn name(self) -> &'static str;
    /// Whether a folded sample keeps the minimum and the maximum of the field.
    fn has_spread(self) -> bool {
        true
    }
    /// Whether the field counts from the start of the sampler, so that its last value is the total.
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

impl Field for GpuField {
    const ALL: &'static [Self] = GpuField::ALL;

    fn place(self) -> usize {
        usize::from(self as u8)
    }

    fn name(self) -> &'static str {
        GpuField::name(self)
    }

    /// No report has the extremes of the others.
    fn has_spread(self) -> bool {
        self.is_reported()
    }
}

fields! {
    /// Fields of an RDMA port.
    RailField {
        /// Bytes per second sent.
        Tx = "tx_bytes_s",
        /// Bytes per second received.
        Rx = "rx_bytes_s",
        /// Errors since the start of the sampler.
        Errors = "errors",
        /// Packets sent again since the start of the sampler.
        Retransmits = "retransmits",
        /// Congestion marks since the start of the sampler.
        Congestion = "congestion_marks",
        /// Ticks per second with data to send and no credits.
        XmitWait = "xmit_wait_s",
    }
}

fields! {
    /// Fields of the job's cgroup.
    HostField {
        /// Busy CPU cores.
        Cpu = "cpu_cores",
        /// Memory in use, MiB.
        Memory = "memory_mib",
        /// Percent of the time in which a task waited for the CPU.
        CpuPressure = "cpu_pressure_percent",
        /// Percent of the time in which a task waited for memory.
        MemoryPressure = "memory_pressure_percent",
        /// Percent of the time in which a task waited for I/O.
        IoPressure = "io_pressure_percent",
        /// Bytes per second read.
        IoRead = "io_read_bytes_s",
        /// Bytes per second written.
        IoWrite = "io_write_bytes_s",
    }
}

/// One value of a sample, over its duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Mean.
    pub mean: f32,
    /// Minimum of the folded samples; equal to the mean in a sample that is not folded.
    pub min: f32,
    /// Maximum of the folded samples.
    pub max: f32,
}

/// Values of one device by field; `None` is unknown.
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
    /// Value of a field, if known.
    pub fn get(&self, field: F) -> Option<Value> {
        self.values.get(field.place()).copied().flatten()
    }

    /// Mean of a field, if known.
    pub fn mean(&self, field: F) -> Option<f64> {
        self.get(field).map(|value| value.mean.into())
    }

    /// Sets a field; a number that is not finite counts as unknown.
    pub fn set(&mut self, field: F, value: Option<Value>) {
        let sound = |value: &Value| [value.mean, value.min, value.max].iter().all(|part| part.is_finite());
        if let Some(place) = self.values.get_mut(field.place()) {
            *place = value.filter(sound);
        }
    }

    /// Sets a field from a single reading.
    #[expect(clippy::cast_possible_truncation, reason = "seven digits are more than any sensor has")]
    pub fn put(&mut self, field: F, value: Option<f64>) {
        self.set(field, value.map(|value| value as f32).map(|mean| Value { mean, min: mean, max: mean }));
    }

    /// Whether all fields are unknown.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }
}

/// State of the job that its figures depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Running.
    #[default]
    Running,
    /// Suspended: neither running nor idle.
    Suspended,
    /// The user had asked the sampler not to access the GPUs, so nothing is known of them.
    Yielded,
}

/// Figures of this node over a period: five seconds, or a minute folded into one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Beginning of the period.
    pub start: UnixMillis,
    /// Duration, seconds.
    pub seconds: f32,
    /// Number of samples folded into it; 1 if it is not folded.
    pub folded: u16,
    /// State during the whole period.
    pub state: State,
    /// One entry per GPU, in the order of the head.
    pub gpus: Vec<Values<GpuField>>,
    /// One entry per RDMA port, in the order of the head.
    pub rails: Vec<Values<RailField>>,
    /// The job's cgroup.
    pub host: Values<HostField>,
}

impl Sample {
    /// End of the period.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    pub fn end(&self) -> UnixMillis {
        self.start.saturating_add((f64::from(self.seconds) * 1000.0).round() as u64)
    }
}
