//! Devices and their memory. All tensor memory, on the host and on a GPU, comes through one door,
//! [`Device::alloc`], so that counting, fault injection, poisoning and guard words are in one place.

pub mod bundle;
pub mod cpu;
pub mod cuda;
mod flips;
mod host;
mod memory;
mod profile;
pub mod sums;
mod watch;

pub use dittograd_numerics::error::readable_bytes;
pub use dittograd_numerics::tensor::{DType, Meta};
pub use flips::Flips;
pub use host::{Kernels, Numbers, to_words};
pub use memory::{AnyBuffer, Buffer, MemoryStats};
pub use memory::{ReadSet, WriteGuard, emptied, with_host_words};
pub use profile::OpTime;
pub use watch::{Holder, MemoryReport, StepMemory};

use cpu::simd::{LEVELS, Simd};
use cpu::threads::Pool;
use cuda::Cuda;
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A place where tensors live and operations run. A clone is another handle of the same device. `Device::cpu()` called
/// twice gives two devices with separate memory counters. Their buffers may be mixed freely, since both are host
/// memory.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Backend,
    memory: memory::Memory,
    profile: profile::Profile,
}

/// The implementation of a device.
#[doc(hidden)]
pub enum Backend {
    /// Threads and SIMD.
    Cpu(Cpu),
    /// A GPU.
    Cuda(Arc<Cuda>),
    /// References of ops, in a number type other than float32.
    Host(Box<dyn host::Numbers>),
}

/// The CPU's thread pool and SIMD level.
#[doc(hidden)]
pub struct Cpu {
    /// Its threads.
    pub pool: Pool,
    /// Its SIMD level.
    pub simd: Simd,
    /// How it computes products.
    pub numerics: Numerics,
    /// Its faults, in tests.
    pub flips: Flips,
}

/// Values that `DITTOGRAD_WATCH` can have.
const WATCH_VALUES: &str = "0 or 1";

/// The value of an environment variable, if it is set and not empty.
fn env<T: FromStr>(name: &'static str, want: &'static str) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => value
            .parse()
            .map(Some)
            .map_err(|_| Error::new("environment", ErrorKind::Env { name, value: value.clone(), want })),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => {
            let value = value.to_string_lossy().into_owned();
            Err(Error::new("environment", ErrorKind::Env { name, value, want }))
        }
    }
}

/// The mode set by the environment.
fn wanted_mode() -> Result<Numerics> {
    Ok(env::<Numerics>("DITTOGRAD_NUMERICS", dittograd_numerics::MODES)?.unwrap_or_default())
}

impl Device {
    /// The CPU with the threads of `DITTOGRAD_THREADS` (default: all cores) and the SIMD level of
    /// `DITTOGRAD_SIMD` (default: the best there is). Neither changes any result.
    pub fn cpu() -> Result<Device> {
        let threads = match env::<usize>("DITTOGRAD_THREADS", "a number from 1 to 1024")? {
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        let simd = env::<Simd>("DITTOGRAD_SIMD", LEVELS)?.unwrap_or_else(Simd::best);
        Device::cpu_with(threads, simd)
    }

    /// The CPU with a given number of threads and SIMD level.
    pub fn cpu_with(threads: usize, simd: Simd) -> Result<Device> {
        if !(1..=1024).contains(&threads) {
            return Err(Error::argument("device", "threads", format!("got {threads}, use 1 to 1024")));
        }
        if !simd.available() {
            return Err(Error::argument("device", "simd", format!("this processor has no {simd}")));
        }
        Device::cpu_in_mode(threads, simd, wanted_mode()?)
    }

    /// The CPU in a given mode, whatever the environment says.
    #[doc(hidden)]
    pub fn cpu_in_mode(threads: usize, simd: Simd, numerics: Numerics) -> Result<Device> {
        if numerics == Numerics::Tf32 {
            let why = "mode tf32 needs a CUDA device, the CPU has strict, fast and turbo";
            return Err(Error::unsupported("device", why));
        }
        Device::open(Backend::Cpu(Cpu { pool: Pool::new(threads), simd, numerics, flips: Flips::default() }))
    }

    /// The CUDA device of the given ordinal.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Device::open(Backend::Cuda(Cuda::open(ordinal, wanted_mode()?)?))
    }

    /// Host memory with numbers of type `T`. `kernels` computes the ops; the layer that knows ops supplies it.
    #[doc(hidden)]
    pub fn of_numbers<T: Scalar>(kernels: Kernels) -> Device {
        Device::new(Backend::Host(host::numbers::<T>(kernels)))
    }

    /// A device over an opened CUDA context, which may be a fake one in tests.
    #[doc(hidden)]
    pub fn from_cuda(cuda: Arc<Cuda>) -> Device {
        Device::new(Backend::Cuda(cuda))
    }

    /// The device named by `DITTOGRAD_DEVICE`; without it, a GPU if there is a usable one, otherwise the CPU. The
    /// choice does not change any result.
    pub fn best() -> Result<Device> {
        if let Some(name) = env::<String>("DITTOGRAD_DEVICE", "cpu, cuda or cuda:N")? {
            return Device::parse(&name);
        }
        match Device::cuda(0) {
            Ok(gpu) => Ok(gpu),
            Err(_) => Device::cpu(),
        }
    }

    /// The device called `cpu`, `cuda` or `cuda:N`.
    pub fn parse(name: &str) -> Result<Device> {
        match name.split_once(':') {
            None if name == "cpu" => Device::cpu(),
            None if name == "cuda" => Device::cuda(0),
            Some(("cuda", n)) if n.parse::<usize>().is_ok() => Device::cuda(n.parse().unwrap_or(0)),
            _ => Err(Error::argument(
                "device",
                "name",
                format!("`{name}` is not a device, use cpu, cuda or cuda:N"),
            )),
        }
    }

    /// A device with the settings of the environment.
    fn open(backend: Backend) -> Result<Device> {
        let watch = match env::<u8>("DITTOGRAD_WATCH", WATCH_VALUES)? {
            None | Some(0) => false,
            Some(1) => true,
            Some(n) => {
                let kind =
                    ErrorKind::Env { name: "DITTOGRAD_WATCH", value: n.to_string(), want: WATCH_VALUES };
                return Err(Error::new("environment", kind));
            }
        };
        let device = Device::new(backend);
        if watch {
            device.watch();
        }
        Ok(device)
    }

    fn new(backend: Backend) -> Device {
        Device(Arc::new(Inner { backend, memory: memory::Memory::default(), profile: Default::default() }))
    }

    /// The implementation.
    #[doc(hidden)]
    pub fn backend(&self) -> &Backend {
        &self.0.backend
    }

    /// The numerics mode of this device: set by [`Device::in_mode`], otherwise by `DITTOGRAD_NUMERICS` (default
    /// `strict`).
    pub fn numerics(&self) -> Numerics {
        match &self.0.backend {
            Backend::Cpu(cpu) => cpu.numerics,
            Backend::Cuda(cuda) => cuda.numerics(),
            Backend::Host(_) => Numerics::Strict,
        }
    }

    /// This device in another numerics mode: a separate handle with its own memory. Only CUDA has mode `tf32`, and devices of
    /// other numbers have only `strict`.
    pub fn in_mode(&self, numerics: Numerics) -> Result<Device> {
        match &self.0.backend {
            _ if numerics == self.numerics() => Ok(self.clone()),
            Backend::Cuda(cuda) => Device::open(Backend::Cuda(Cuda::open(cuda.ordinal(), numerics)?)),
            Backend::Cpu(cpu) => Device::cpu_in_mode(cpu.pool.threads(), cpu.simd, numerics),
            Backend::Host(numbers) => {
                let why =
                    format!("mode {numerics} is of float32, numbers of {} have only strict", numbers.name());
                Err(Error::unsupported("device", why))
            }
        }
    }

    /// Whether this is a CUDA device.
    pub fn is_cuda(&self) -> bool {
        matches!(self.0.backend, Backend::Cuda(_))
    }

    /// The CUDA context, if this is a CUDA device.
    #[doc(hidden)]
    pub fn as_cuda(&self) -> Option<&Arc<Cuda>> {
        match &self.0.backend {
            Backend::Cuda(cuda) => Some(cuda),
            Backend::Cpu(_) | Backend::Host(_) => None,
        }
    }

    /// Threads the device computes with; 1 for CUDA and for other number types.
    pub fn threads(&self) -> usize {
        match &self.0.backend {
            Backend::Cpu(cpu) => cpu.pool.threads(),
            Backend::Cuda(_) | Backend::Host(_) => 1,
        }
    }

    /// Whether both are handles of the same device.
    #[doc(hidden)]
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether reductions give the same bits at every run: yes, on every device and in every mode. Each has one order of its
    /// sums, and there is no faster variant to switch to.
    #[doc(alias = "are_deterministic_algorithms_enabled")]
    #[doc(alias = "use_deterministic_algorithms")]
    pub fn deterministic_reductions(&self) -> bool {
        true
    }

    /// Whether buffers of `other` can be used in operations on this device.
    pub fn accepts(&self, other: &Device) -> bool {
        match (&self.0.backend, &other.0.backend) {
            (Backend::Cpu(a), Backend::Cpu(b)) => a.numerics == b.numerics,
            (Backend::Cuda(a), Backend::Cuda(b)) => Arc::ptr_eq(a, b),
            (Backend::Host(a), Backend::Host(b)) => a.id() == b.id(),
            _ => false,
        }
    }

    /// Errors, with the name of `op`, unless `buffer` can be used on this device.
    #[doc(hidden)]
    pub fn check_accepts(&self, op: &str, buffer: &Buffer) -> Result<()> {
        if self.accepts(buffer.device()) {
            return Ok(());
        }
        let (want, got) = (self.to_string(), buffer.device().to_string());
        Err(Error::new(op, ErrorKind::Device { want, got }))
    }

    /// Errors if the device has become unusable, or with an error that waits to be reported.
    #[doc(hidden)]
    pub fn check_alive(&self) -> Result<()> {
        self.as_cuda().map_or(Ok(()), |cuda| cuda.good())
    }

    /// Waits until everything queued on the device has run. The CPU has no queue.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.backend {
            Backend::Cpu(_) | Backend::Host(_) => Ok(()),
            Backend::Cuda(cuda) => cuda.synchronize(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.backend {
            Backend::Cpu(_) => f.write_str("cpu")?,
            Backend::Cuda(cuda) => write!(f, "cuda:{}", cuda.ordinal())?,
            Backend::Host(numbers) => write!(f, "host {}", numbers.name())?,
        }
        match self.numerics() {
            Numerics::Strict => Ok(()),
            mode => write!(f, " in mode {mode}"),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({self})")
    }
}
