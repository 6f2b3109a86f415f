//! Kernels of a device: modules from memory, disk or the compiler, and launches.
//!
//! Callers look up a [`Kernel`] once and launch it many times. A launch uses no map: the handle carries everything that
//! a launch checks. Modules stay loaded until the device is closed, so every handle stays valid.

#![allow(unsafe_code)]

use super::args::Args;
use super::cache::Key;
use super::context::{Cuda, code, lock, read, write};
use super::cubin;
use super::driver::{Handle, OUT_OF_MEMORY, attribute};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::room_for_a_thread;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Dynamic plus static shared memory that a kernel may use without permission.
const SHARED_BY_DEFAULT: u32 = 48 << 10;
/// A module to compile: its name and its text. Texts are static, so that a loaded one is found by its address.
pub type Source = (String, &'static str);

/// A loaded module.
pub(super) struct Module {
    source: &'static str,
    handle: Handle,
    /// Names of all kernels it has.
    names: Vec<String>,
    /// The kernels that were looked up.
    kernels: HashMap<String, Kernel>,
}

/// Data that most launches do not need.
pub(super) struct KernelInfo {
    name: String,
    /// Dynamic shared memory allowed so far.
    allowed: u32,
}

/// A kernel ready to launch: a small handle, valid for the [`Cuda`] it came from.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    function: Handle,
    context: u32,
    index: u32,
    /// Dynamic shared memory that needs no permission.
    plain_shared: u32,
    /// Number and bytes of the parameters, if the driver tells.
    params: Option<(u32, u32)>,
}

/// A text that was to be compiled.
pub(super) enum Made {
    /// A thread compiles it, before anybody wants it.
    UnderWay,
    /// Compiled before anybody wanted it.
    Ready(Vec<u8>),
    /// The rest is up to whoever wants it.
    Over,
}

/// How long callers waited until kernels could be launched, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// For the compiler.
    pub compile: Duration,
    /// For the disk cache and for the driver, which loads modules.
    pub load: Duration,
    /// While graphs were captured and instantiated.
    pub capture: Duration,
}

/// The parts of a [`Preparation`] in nanoseconds.
#[derive(Default)]
pub(super) struct Waited {
    compile: AtomicU64,
    load: AtomicU64,
    pub(super) capture: AtomicU64,
}

/// Adds the time until it is dropped.
pub(super) struct Clock<'a>(&'a AtomicU64, Instant);

impl Clock<'_> {
    pub(super) fn of(total: &AtomicU64) -> Clock<'_> {
        Clock(total, Instant::now())
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Whether two texts are equal.
fn same(a: &'static str, b: &'static str) -> bool {
    std::ptr::eq(a, b) || a == b
}

/// Threads that compile at a time.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A thread of its own for `work`, or none if there is no room for one.
fn spawn_scoped<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    work: impl FnOnce() -> T + Send + 's,
) -> Option<ScopedJoinHandle<'s, T>> {
    room_for_a_thread().then(|| std::thread::Builder::new().spawn_scoped(scope, work).ok())?
}

impl Module {
    /// The driver's object.
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

/// Kernels.
impl Cuda {
    /// The kernel `name` of the module `module` with source `source`: from memory, else from the disk
    /// cache, else compiled. Two sources under one module name are two modules.
    pub fn kernel(&self, module: &str, source: &'static str, name: &str) -> Result<Kernel> {
        self.good()?;
        if let Some(kernel) = self.find(module, source, |found| found.kernels.get(name).copied()).flatten() {
            return Ok(kernel);
        }
        self.outside(&format!("cuda kernel {name}"))?;
        let _building = lock(&self.building);
        self.build(&[(module, source)])?;
        let _turn = self.enter()?;
        let handle = self.find(module, source, |found| found.handle).ok_or_else(|| {
            Error::new("cuda kernel", ErrorKind::Internal { what: "a built module is not among the modules" })
        })?;
        let kernel = self.noted(self.resolve(handle, name)).map_err(|error| {
            Error::new(
                format!("cuda:{} kernel {name} of module {module}", self.ordinal()),
                error.kind().clone(),
            )
        })?;
        let mut modules = write(&self.modules);
        let found =
            modules.get_mut(module).and_then(|all| all.iter_mut().find(|one| same(one.source, source)));
        if let Some(found) = found {
            // Another thread may have inserted it first; both handles are valid.
            found.kernels.insert(name.to_string(), kernel);
        }
        Ok(kernel)
    }

    /// Builds and loads every module that is not loaded yet, compiling several at a time, and looks up their kernels,
    /// so that they can be launched in a capture.
    pub fn compile_all(&self, sources: &[Source]) -> Result<()> {
        self.good()?;
        self.outside("cuda compile")?;
        {
            let _building = lock(&self.building);
            let wanted: Vec<(&str, &'static str)> =
                sources.iter().map(|(name, source)| (name.as_str(), *source)).collect();
            self.build(&wanted)?;
        }
        for (module, source) in sources {
            for name in self.find(module, source, |found| found.names.clone()).unwrap_or_default() {
                self.kernel(module, source, &name)?;
            }
        }
        Ok(())
    }

    /// Runs `run`. Meanwhile modules that it will probably want are compiled on as many threads as there are cores, in
    /// the order of `sources`, which are asked for one by one. Whoever wants a kernel of one that is under way waits
    /// for that one only; a module that is rejected is compiled again by whoever wants it, who gets the error. When
    /// `run` returns, no further module is begun, and all threads have ended. Without threads this is `run` alone.
    pub fn compile_ahead<T>(
        &self,
        sources: impl Iterator<Item = Source> + Send,
        run: impl FnOnce() -> T,
    ) -> T {
        /// Also if `run` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (sources, stopped) = (Mutex::new(sources), AtomicBool::new(false));
        let work = || {
            while !stopped.load(Ordering::Relaxed) {
                let Some((module, source)) = lock(&sources).next() else { return };
                self.compile_one_ahead(&module, source);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..cores() {
                spawn_scoped(scope, work);
            }
            let _stop = Stop(&stopped);
            run()
        })
    }

    /// Compiles a module that nobody waits for, unless it is there.
    fn compile_one_ahead(&self, module: &str, source: &'static str) {
        /// Whatever happens, nobody waits in vain.
        struct Begun<'a>(&'a Cuda, Key, Made);
        impl Drop for Begun<'_> {
            fn drop(&mut self) {
                lock(&self.0.ahead).insert(self.1, std::mem::replace(&mut self.2, Made::Over));
                self.0.made.notify_all();
            }
        }
        let key = Key::new(source, &self.arch);
        if self.find(module, source, |_| ()).is_some() {
            return;
        }
        match lock(&self.ahead).entry(key) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => place.insert(Made::UnderWay),
        };
        let mut begun = Begun(self, key, Made::Over);
        let is_stored = self.cache.as_ref().is_some_and(|cache| cache.load(key).is_some());
        if !is_stored && let Ok(cubin) = self.compile_one(module, source) {
            begun.2 = Made::Ready(cubin);
        }
    }

    /// The cubin of a module that somebody waits for: one that was compiled ahead, or is under way, or compiled now.
    fn cubin(&self, module: &str, source: &str) -> Result<Vec<u8>> {
        let key = Key::new(source, &self.arch);
        let is_under_way = |ahead: &mut HashMap<Key, Made>| matches!(ahead.get(&key), Some(Made::UnderWay));
        let ahead = self.made.wait_while(lock(&self.ahead), is_under_way);
        // From now on nobody else begins with it.
        let made = ahead.unwrap_or_else(PoisonError::into_inner).insert(key, Made::Over);
        match made {
            Some(Made::Ready(cubin)) => Ok(cubin),
            _ => self.compile_one(module, source),
        }
    }

    /// The cubin of a text that was compiled before anybody wanted it.
    fn ready(&self, key: Key) -> Option<Vec<u8>> {
        let mut ahead = lock(&self.ahead);
        let made = ahead.get_mut(&key).filter(|made| matches!(made, Made::Ready(_)))?;
        match std::mem::replace(made, Made::Over) {
            Made::Ready(cubin) => Some(cubin),
            _ => None,
        }
    }

    /// Looks into a loaded module. Texts usually have the same address; otherwise they are compared completely.
    fn find<T>(&self, module: &str, source: &'static str, look: impl FnOnce(&Module) -> T) -> Option<T> {
        let modules = read(&self.modules);
        modules.get(module)?.iter().find(|found| same(found.source, source)).map(look)
    }

    /// Loads those of `wanted` that are not loaded. All are tried; the first error is returned.
    fn build(&self, wanted: &[(&str, &'static str)]) -> Result<()> {
        let mut missing: Vec<(&str, &'static str)> = Vec::new();
        for &(module, source) in wanted {
            if self.find(module, source, |_| ()).is_none() && !missing.contains(&(module, source)) {
                missing.push((module, source));
            }
        }
        let mut outcome = Ok(());
        let mut fail = |result: Result<()>| {
            if outcome.is_ok() {
                outcome = result;
            }
        };
        let mut to_compile = Vec::new();
        for &(module, source) in &missing {
            let key = Key::new(source, &self.arch);
            if let Some(cubin) = self.ready(key) {
                fail(self.load(module, source, &cubin));
                continue;
            }
            let stored = {
                let _clock = Clock::of(&self.waited.load);
                self.cache.as_ref().and_then(|cache| cache.load(key))
            };
            match stored.map(|cubin| self.load(module, source, &cubin)) {
                Some(Ok(())) => {
                    self.from_disk.fetch_add(1, Ordering::Relaxed);
                }
                // This driver does not accept the cubin, perhaps because of a later NVRTC: compile it again.
                Some(Err(error)) if self.poisoned() || code(&error) == Some(OUT_OF_MEMORY) => {
                    fail(Err(error))
                }
                Some(Err(_)) | None => to_compile.push((module, source)),
            }
        }
        let cubins = {
            let _clock = Clock::of(&self.waited.compile);
            self.compile(&to_compile)
        };
        for (&(module, source), cubin) in to_compile.iter().zip(cubins) {
            fail(cubin.and_then(|cubin| self.load(module, source, &cubin)));
        }
        outcome
    }

    /// Compiles modules on as many threads as there are cores, and stores the cubins on disk.
    fn compile(&self, jobs: &[(&str, &str)]) -> Vec<Result<Vec<u8>>> {
        // NVRTC reads one text at a time and does the rest side by side. So texts that take long should be read first:
        // those with the most loops to unroll.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by_cached_key(|&at| Reverse(jobs[at].1.matches("#pragma unroll").count()));
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { return done };
                let (module, source) = jobs[at];
                done.push((at, self.cubin(module, source)));
            }
        };
        let lost =
            || Err(Error::new("cuda compile", ErrorKind::Internal { what: "a compiling thread died" }));
        let mut results: Vec<Result<Vec<u8>>> = jobs.iter().map(|_| lost()).collect();
        std::thread::scope(|scope| {
            // This thread works too. If helper threads cannot be started, it works alone.
            let helpers: Vec<_> =
                (1..cores().min(jobs.len())).filter_map(|_| spawn_scoped(scope, work)).collect();
            let mut done = work();
            done.extend(helpers.into_iter().filter_map(|helper| helper.join().ok()).flatten());
            for (at, result) in done {
                results[at] = result;
            }
        });
        results
    }

    fn compile_one(&self, module: &str, source: &str) -> Result<Vec<u8>> {
        // The compiler folds constants with the host's arithmetic.
        let _strict = environment::enter();
        let cubin = self.compiler.compile(module, source, &self.arch)?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        if let Some(cache) = &self.cache {
            cache.store(Key::new(source, &self.arch), self.compiler.version()?, &cubin);
        }
        Ok(cubin)
    }

    fn load(&self, module: &str, source: &'static str, cubin: &[u8]) -> Result<()> {
        let names = cubin::kernels(cubin).ok_or_else(|| {
            let what = "a compiled module that is no ELF file";
            Error::new(format!("cuda module {module}"), ErrorKind::Internal { what })
        })?;
        let _turn = self.enter()?;
        let _clock = Clock::of(&self.waited.load);
        // SAFETY: the bytes are a compiler's output, direct or from a file whose hash was checked.
        let handle = self.with_room(|| unsafe { self.driver.module_load(cubin) }).map_err(|error| {
            Error::new(format!("cuda:{} module {module}", self.ordinal()), error.kind().clone())
        })?;
        let loaded = Module { source, handle, names, kernels: HashMap::new() };
        write(&self.modules).entry(module.to_string()).or_default().push(loaded);
        Ok(())
    }

    fn resolve(&self, module: Handle, name: &str) -> Result<Kernel> {
        let _clock = Clock::of(&self.waited.load);
        let function = self.driver.module_function(module, name)?;
        // Load it now: otherwise the driver does it at the first launch, which may be in a capture.
        self.driver.function_load(function)?;
        let fixed = self.driver.function_get(function, attribute::FUNCTION_SHARED)?.max(0) as u32;
        let params = self.driver.function_params(function)?;
        let mut kernels = write(&self.kernels);
        let index = kernels.len() as u32;
        let plain_shared = SHARED_BY_DEFAULT.saturating_sub(fixed);
        kernels.push(KernelInfo { name: name.to_string(), allowed: plain_shared });
        let params = params.map(|(count, bytes)| (count as u32, bytes as u32));
        Ok(Kernel { function, context: self.id, index, plain_shared, params })
    }

    /// Launches `kernel` on `grid` blocks of `block` threads with `shared` bytes of dynamic shared memory.
    /// A grid without blocks does nothing.
    pub fn launch(&self, kernel: Kernel, grid: [u32; 3], block: u32, shared: u32, args: &Args) -> Result<()> {
        let _turn = self.enter()?;
        let extent = args.extent();
        let fits = kernel.params.is_none_or(|(count, bytes)| (count as usize, bytes as usize) == extent);
        if kernel.context != self.id || !fits || args.wrong().is_some() {
            return Err(self.refused(kernel, args));
        }
        if grid.contains(&0) {
            return Ok(());
        }
        if shared > kernel.plain_shared {
            self.allow_shared(kernel, shared)?;
        }
        let launched = self.driver.launch(kernel.function, grid, block, shared, self.stream, args.packed());
        self.launches.fetch_add(1, Ordering::Relaxed);
        match self.noted(launched) {
            Ok(()) => Ok(()),
            Err(error) => Err(Error::new(self.title(kernel), error.kind().clone())),
        }
    }

    #[cold]
    fn refused(&self, kernel: Kernel, args: &Args) -> Error {
        if kernel.context != self.id {
            return Error::argument("cuda launch", "kernel", "belongs to another device");
        }
        let why = match (args.wrong(), kernel.params) {
            (Some(wrong), _) => wrong.to_string(),
            (None, params) => {
                let (count, bytes) = params.unwrap_or_default();
                let (got, got_bytes) = args.extent();
                format!("got {got} arguments of {got_bytes} bytes, the kernel takes {count} of {bytes} bytes")
            }
        };
        Error::argument(self.title(kernel), "args", why)
    }

    #[cold]
    fn title(&self, kernel: Kernel) -> String {
        let kernels = read(&self.kernels);
        let name = kernels.get(kernel.index as usize).map_or("?", |info| &info.name);
        format!("cuda:{} kernel {name}", self.ordinal())
    }

    /// Permits more shared memory than the default, once per kernel and size.
    fn allow_shared(&self, kernel: Kernel, shared: u32) -> Result<()> {
        let index = kernel.index as usize;
        if read(&self.kernels).get(index).is_some_and(|info| info.allowed >= shared) {
            return Ok(());
        }
        let value = i32::try_from(shared).unwrap_or(i32::MAX);
        self.noted(self.driver.function_set(kernel.function, attribute::FUNCTION_DYNAMIC_SHARED, value))
            .map_err(|error| Error::new(self.title(kernel), error.kind().clone()))?;
        if let Some(info) = write(&self.kernels).get_mut(index) {
            info.allowed = info.allowed.max(shared);
        }
        Ok(())
    }

    /// Kernels launched so far, including captured ones. Replays of graphs are not counted.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// How long callers have waited for kernels so far. What was compiled ahead counts only if somebody waited for it.
    pub fn preparation(&self) -> Preparation {
        let of = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        let Waited { compile, load, capture } = &self.waited;
        Preparation { compile: of(compile), load: of(load), capture: of(capture) }
    }

    /// Modules compiled so far.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Modules loaded from the disk cache so far.
    pub fn loaded_from_disk(&self) -> u64 {
        self.from_disk.load(Ordering::Relaxed)
    }
}
