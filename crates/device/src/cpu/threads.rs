//! A fork-join thread pool for kernels that last microseconds.
//!
//! A run is published as one packed word, `state` = (epoch, workers inside, open). Workers poll it for half a
//! millisecond before they sleep. So back-to-back kernels fork in about a microsecond, and an idle process costs
//! nothing. A worker enters a run by adding itself to that word while it is open. The caller closes the word once all
//! tasks are taken, and waits only for the workers inside, so a worker that was never scheduled delays nobody. A thread
//! that is about to sleep and one that would wake it read each other's word, so all changes of these words are
//! `SeqCst`: with weaker orders miri finds runs in which each misses the other. Which thread runs which task is not
//! determined: kernels must not depend on it.
#![allow(unsafe_code)]

use dittograd_numerics::environment;
use dittograd_numerics::reserve::room_for_a_thread;
use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a thread spins without giving up its core, and how long it polls in total before it sleeps.
const SPIN: Duration = Duration::from_micros(15);
const POLL: Duration = Duration::from_micros(500);

// The parts of `Shared::state`.
const OPEN: u64 = 1;
const INSIDE: u64 = 2;
const INSIDE_MASK: u64 = 0xffff_fffe;
const EPOCH: u64 = 1 << 32;

/// The payload of a task's panic.
type Payload = Box<dyn Any + Send>;

/// One run. It lives on the caller's stack while `Pool::run` blocks. It is aligned so that the counter has its cache
/// lines to itself.
#[repr(align(128))]
struct Job<'a> {
    next: AtomicUsize,
    tasks: usize,
    task: &'a (dyn Fn(usize) + Sync),
    panics: Mutex<Vec<(usize, Payload)>>,
}

impl Job<'_> {
    /// Takes tasks until none is left. Never unwinds: panics of tasks are kept for the caller.
    fn work(&self) {
        let mut current = 0;
        loop {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                loop {
                    current = self.next.fetch_add(1, Relaxed);
                    if current >= self.tasks {
                        return;
                    }
                    (self.task)(current);
                }
            }));
            match outcome {
                Ok(()) => return,
                Err(payload) => lock(&self.panics).push((current, payload)),
            }
        }
    }
}

/// What the workers and the pool's handle share.
struct Shared {
    /// Epoch of the newest run in the high half, then the number of workers inside it, then whether it is
    /// open.
    state: AtomicU64,
    /// The newest run; valid for those counted inside `state`.
    job: AtomicPtr<Job<'static>>,
    /// Set while some caller owns the pool.
    busy: AtomicBool,
    /// Set once, by the drop of the pool.
    quit: AtomicBool,
    /// Whether polling pays off: false if there are more threads than cores.
    poll: bool,
    /// Number of workers asleep or about to sleep, and where they sleep.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
    /// Whether the caller sleeps until the last worker leaves, and where.
    waiting: AtomicBool,
    chair: Mutex<()>,
    left: Condvar,
}

/// A fixed set of threads that run the tasks of one kernel at a time. Shared by reference between threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads (at least one): the caller of [`Pool::run`] and `threads - 1` workers. If the system
    /// refuses to start a thread, the pool is smaller, which changes no result.
    pub fn new(threads: usize) -> Pool {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            busy: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            poll: threads <= cores,
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            waiting: AtomicBool::new(false),
            chair: Mutex::new(()),
            left: Condvar::new(),
        });
        let mut workers = Vec::new();
        for index in 1..threads {
            if !room_for_a_thread() {
                break;
            }
            let shared = Arc::clone(&shared);
            match thread::Builder::new().name(format!("pool-{index}")).spawn(move || shared.worker()) {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Pool { shared, workers }
    }

    /// The number of threads that can work at once, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// How many of `items` one task should take, a multiple of `unit`: a few tasks per thread, so that uneven threads
    /// balance, but at least `least` items, so that a task is worth handing over.
    pub fn share(&self, items: usize, least: usize, unit: usize) -> usize {
        (items / (4 * self.threads())).max(least).next_multiple_of(unit.max(1))
    }

    /// Calls `f` with each of `0..tasks` exactly once, on any thread, and returns when all calls have returned.
    ///
    /// The calls are made inline, in order, if there is only one task or the pool is busy (a nested run, or a run of
    /// another thread). If calls panic, the panic of the lowest index resumes in the caller once the run has ended, and
    /// the pool stays usable.
    pub fn run(&self, tasks: usize, f: impl Fn(usize) + Sync) {
        self.run_tasks(tasks, &f);
    }

    /// Apart from `run`, so that it is compiled once, not for every kernel.
    fn run_tasks(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let _strict = environment::enter();
        if tasks <= 1 || self.workers.is_empty() || self.shared.busy.swap(true, Acquire) {
            (0..tasks).for_each(f);
            return;
        }
        let job = Job { next: AtomicUsize::new(0), tasks, task: f, panics: Mutex::new(Vec::new()) };
        self.shared.open(&job);
        job.work();
        self.shared.close();
        self.shared.busy.store(false, Release);
        let panics = job.panics.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, payload)) = panics.into_iter().min_by_key(|(index, _)| *index) {
            resume_unwind(payload);
        }
    }

    /// Cuts `out` into pieces of `chunk` elements (the last may be shorter) and calls `f(index, piece)` for
    /// each in parallel. `chunk` must not be zero.
    pub fn chunks_mut<T: Send>(&self, out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let cut = Cut::new(out, chunk);
        self.run(cut.pieces(), |index| {
            // SAFETY: `run` calls with each index below `pieces()` once, and `out` stays borrowed until it
            // ends.
            f(index, unsafe { cut.piece(index) });
        });
    }

    /// Like [`Pool::chunks_mut`], for two slices with their own piece lengths. The first slice determines the number of
    /// pieces; where the other is shorter, its pieces are shorter or empty.
    pub fn pairs_mut<T: Send>(
        &self,
        a: (&mut [T], usize),
        b: (&mut [T], usize),
        f: impl Fn(usize, &mut [T], &mut [T]) + Sync,
    ) {
        let cuts = (Cut::new(a.0, a.1), Cut::new(b.0, b.1));
        self.run(cuts.0.pieces(), |index| {
            // SAFETY: `run` calls with each index once, and both stay borrowed until it ends.
            f(index, unsafe { cuts.0.piece(index) }, unsafe { cuts.1.piece(index) });
        });
    }

    /// Like [`Pool::chunks_mut`], for three slices. The first one determines the number of pieces; where another is
    /// shorter, its pieces are shorter or empty.
    pub fn chunks3_mut<T: Send>(
        &self,
        slices: [&mut [T]; 3],
        chunk: usize,
        f: impl Fn(usize, [&mut [T]; 3]) + Sync,
    ) {
        let cuts = slices.map(|slice| Cut::new(slice, chunk));
        self.run(cuts[0].pieces(), |index| {
            // SAFETY: `run` calls with each index once, and all three stay borrowed until it ends.
            f(index, cuts.each_ref().map(|cut| unsafe { cut.piece(index) }));
        });
    }

    /// Calls `f(index, pieces)` for each of `0..tasks` in parallel, with piece `index` of each slice. Slice `i` is cut
    /// into pieces of `sizes[i]` elements; the last piece ends where the slice does. A size of zero gives empty pieces
    /// of an empty slice.
    pub fn pieces_mut<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        sizes: [usize; N],
        tasks: usize,
        f: impl Fn(usize, [&mut [T]; N]) + Sync,
    ) {
        let mut sizes = sizes.into_iter();
        let cuts = slices.map(|slice| Cut::new(slice, sizes.next().unwrap_or(1).max(1)));
        self.run(tasks, |index| {
            // SAFETY: `run` calls with each index once, and all slices stay borrowed until it ends.
            f(index, cuts.each_ref().map(|cut| unsafe { cut.piece(index) }));
        });
    }
}

impl Pool {
    /// Each slice holds lists of `rows` rows, one list after another; `widths` are the widths of the rows. Calls
    /// `f(list, row, count, pieces)` in parallel for each tile of up to `tile` rows of a list, with that tile of each
    /// slice. A tile does not continue into the next list. `tile` must not be zero.
    pub fn tiles_mut<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        widths: [usize; N],
        [lists, rows, tile]: [usize; 3],
        f: impl Fn(usize, usize, usize, [&mut [T]; N]) + Sync,
    ) {
        let mut widths = widths.into_iter();
        let cuts = slices.map(|slice| Cut::new(slice, widths.next().unwrap_or(1).max(1)));
        let tiles = rows.div_ceil(tile);
        self.run(lists * tiles, |index| {
            let (list, row) = (index / tiles, index % tiles * tile);
            let (first, count) = (list * rows + row, tile.min(rows - row));
            // SAFETY: `run` calls with each index once, tiles have no rows in common, and all slices stay borrowed
            // until it ends.
            f(list, row, count, cuts.each_ref().map(|cut| unsafe { cut.pieces_from(first, count) }));
        });
    }

    /// Like [`Pool::tiles_mut`], with the same rows of all lists in one task: calls `f(row, count, bands)` in parallel for
    /// each tile of up to `tile` rows, with these rows of each list of each slice. `tile` must not be zero.
    pub fn bands_mut<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        widths: [usize; N],
        [rows, tile]: [usize; 2],
        f: impl Fn(usize, usize, [Band<'_, T>; N]) + Sync,
    ) {
        let mut widths = widths.into_iter();
        let cuts = slices.map(|slice| Cut::new(slice, widths.next().unwrap_or(1).max(1)));
        self.run(rows.div_ceil(tile), |index| {
            let (first, count) = (index * tile, tile.min(rows - index * tile));
            f(first, count, cuts.each_ref().map(|cut| Band { cut, rows, first, count }));
        });
    }

    /// A pool with only the calling thread.
    #[doc(hidden)]
    pub fn alone() -> &'static Pool {
        static ALONE: OnceLock<Pool> = OnceLock::new();
        ALONE.get_or_init(|| Pool::new(1))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        // Taking the lock orders the flag before or after a worker's last check of it; either way the worker wakes.
        drop(lock(&self.shared.bed));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Workers do not unwind, so the result of joining is of no interest.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a run. The caller owns `busy`, and calls `close` before `job` is dropped.
    fn open(&self, job: &Job<'_>) {
        self.job.store(std::ptr::from_ref(job).cast_mut().cast(), Relaxed);
        // Nobody is inside and the word is closed, so only the owner of `busy` can change it.
        let epoch = self.state.load(Relaxed) & !(EPOCH - 1);
        self.state.store(epoch.wrapping_add(EPOCH) | OPEN, SeqCst);
        // Either this load sees a sleeper, or the sleeper checks `state` later and sees the run.
        let sleepers = self.sleepers.load(SeqCst);
        if sleepers > 0 {
            drop(lock(&self.bed));
            for _ in 0..sleepers.min(job.tasks - 1) {
                self.wake.notify_one();
            }
        }
    }

    /// Closes the run to further workers and waits until those inside have left.
    fn close(&self) {
        let inside = |state: u64| state & INSIDE_MASK != 0;
        if !inside(self.state.fetch_and(!OPEN, SeqCst)) {
            return;
        }
        if self.poll_until(|| !inside(self.state.load(Acquire))) {
            return;
        }
        let mut chair = lock(&self.chair);
        self.waiting.store(true, SeqCst);
        while inside(self.state.load(SeqCst)) {
            chair = self.left.wait(chair).unwrap_or_else(PoisonError::into_inner);
        }
        self.waiting.store(false, SeqCst);
    }

    /// The main loop of a worker.
    fn worker(&self) {
        let mut seen = 0;
        loop {
            if !self.poll_until(|| self.news(seen, Acquire)) {
                let mut bed = lock(&self.bed);
                self.sleepers.fetch_add(1, SeqCst);
                while !self.news(seen, SeqCst) {
                    bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, SeqCst);
            }
            if self.quit.load(SeqCst) {
                return;
            }
            let state = self.state.load(Relaxed);
            if state & OPEN == 0 {
                continue;
            }
            // A success acquires what `open` released, even through other workers' changes of the same word.
            if self.state.compare_exchange(state, state + INSIDE, SeqCst, Relaxed).is_err() {
                continue;
            }
            seen = state >> 32;
            // SAFETY: this thread is counted inside a run that was open, and `close` does not return, so that
            // `Pool::run` keeps the job and all it borrows alive, until the count is given back below. A
            // `Job` is shared between threads only by reference, and its parts are all `Sync`.
            let job = unsafe { &*self.job.load(Relaxed) };
            // A task may have changed the floating-point environment.
            environment::set_strict();
            job.work();
            let state = self.state.fetch_sub(INSIDE, SeqCst) - INSIDE;
            if state & (INSIDE_MASK | OPEN) == 0 && self.waiting.load(SeqCst) {
                drop(lock(&self.chair));
                self.left.notify_one();
            }
        }
    }

    /// Whether a worker that last worked on epoch `seen` has something to do.
    fn news(&self, seen: u64, order: std::sync::atomic::Ordering) -> bool {
        let state = self.state.load(order);
        (state & OPEN != 0 && state >> 32 != seen) || self.quit.load(SeqCst)
    }

    /// Polls for a while; returns whether the condition came true.
    fn poll_until(&self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        if !self.poll {
            return false;
        }
        let start = Instant::now();
        loop {
            for _ in 0..8 {
                std::hint::spin_loop();
                if ready() {
                    return true;
                }
            }
            let spent = start.elapsed();
            if spent > POLL {
                return false;
            }
            if spent > SPIN {
                thread::yield_now();
            }
        }
    }
}

/// Some rows of each list of a slice of lists, which one task has to itself: see [`Pool::bands_mut`].
pub struct Band<'a, T> {
    cut: &'a Cut<'a, T>,
    rows: usize,
    first: usize,
    count: usize,
}

impl<T> Band<'_, T> {
    /// The rows of a list; none beyond the last list.
    pub fn list(&mut self, list: usize) -> &mut [T] {
        // SAFETY: the rows from `first` on of every list are this band's alone, since bands of a run have no rows in common and
        // `count` rows do not reach into the next list; and they are borrowed as the band is.
        unsafe { self.rows_of(list) }
    }

    /// The rows of one list to read and those of another to write.
    ///
    /// # Panics
    /// If both are the same list.
    pub fn read_and_write(&mut self, read: usize, write: usize) -> (&[T], &mut [T]) {
        assert!(read != write, "a list is read or written");
        // SAFETY: as in `list`; two lists have no rows in common.
        unsafe { (self.rows_of(read), self.rows_of(write)) }
    }

    /// # Safety
    /// No rows of this list are borrowed otherwise.
    #[allow(clippy::mut_from_ref)]
    unsafe fn rows_of(&self, list: usize) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { self.cut.pieces_from(list.saturating_mul(self.rows).saturating_add(self.first), self.count) }
    }
}

/// A slice cut into pieces that threads take by index.
struct Cut<'a, T> {
    start: *mut T,
    len: usize,
    chunk: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing a `Cut` only lets a thread take a piece of `T`s to itself (see `piece`), so `T: Send` is
// enough.
unsafe impl<T: Send> Sync for Cut<'_, T> {}

impl<'a, T> Cut<'a, T> {
    fn new(slice: &'a mut [T], chunk: usize) -> Self {
        assert!(chunk > 0, "a piece has at least one element");
        Cut { start: slice.as_mut_ptr(), len: slice.len(), chunk, borrow: PhantomData }
    }

    fn pieces(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// The piece of that index; empty from `pieces()` on.
    ///
    /// # Safety
    /// No two calls have the same index.
    #[allow(clippy::mut_from_ref)]
    unsafe fn piece(&self, index: usize) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { self.pieces_from(index, 1) }
    }

    /// `count` neighbouring pieces, as far as there are any.
    ///
    /// # Safety
    /// No two calls have a piece in common.
    #[allow(clippy::mut_from_ref)]
    unsafe fn pieces_from(&self, first: usize, count: usize) -> &mut [T] {
        let at = first.saturating_mul(self.chunk).min(self.len);
        let len = count.saturating_mul(self.chunk).min(self.len - at);
        // SAFETY: start and end are at most the slice's end, so the pieces are inside it; pieces of different
        // indices do not overlap, and the caller asks for each at most once.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// Locks even after a panic elsewhere: the guarded data is valid at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An address that threads share. Its users make sure that no two threads write the same elements.
#[derive(Clone, Copy)]
pub(crate) struct SharedPtr(pub *mut f32);

// SAFETY: only an address; each use of it says why it is sound.
unsafe impl Sync for SharedPtr {}

impl SharedPtr {
    /// The address `offset` floats on.
    pub fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn check(pool: &Pool, tasks: usize) {
        let hits: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
        pool.run(tasks, |i| {
            hits[i].fetch_add(1, Relaxed);
        });
        assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
    }

    #[test]
    fn every_index_once() {
        for threads in [1, 2, 3, 5, 8, 17] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 3, 7, 8, 64, 1000] {
                for _ in 0..20 {
                    check(&pool, tasks);
                }
            }
        }
    }

    #[test]
    fn tiles_cover_the_lists() {
        for (lists, rows, tile) in [(3, 7, 4), (1, 8, 4), (2, 3, 16), (4, 1, 1), (0, 5, 2), (5, 0, 2)] {
            let (mut a, mut b) = (vec![0; lists * rows * 3], vec![0; lists * rows]);
            let sizes = [lists, rows, tile];
            Pool::new(3).tiles_mut(
                [&mut a, &mut b, &mut []],
                [3, 1, 0],
                sizes,
                |list, row, count, [a, b, c]| {
                    assert_eq!((a.len(), b.len(), c.len()), (3 * count, count, 0));
                    assert!(row % tile == 0 && count <= tile && row + count <= rows);
                    a.iter_mut().enumerate().for_each(|(i, x)| *x += 1 + (list * rows + row) * 3 + i);
                    b.iter_mut().enumerate().for_each(|(i, x)| *x += 1 + list * rows + row + i);
                },
            );
            assert!(a.iter().chain(&b).all(|x| *x > 0));
            assert!(a.iter().enumerate().all(|(i, x)| *x == i + 1));
            assert!(b.iter().enumerate().all(|(i, x)| *x == i + 1));
        }
    }

    #[test]
    fn pieces_cover_the_slices() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for len in [0usize, 1, 5, 64, 1000] {
                for chunk in [1, 3, 64, 2000] {
                    let mut a = vec![usize::MAX; len];
                    pool.chunks_mut(&mut a, chunk, |i, piece| piece.fill(i));
                    assert!(a.iter().enumerate().all(|(at, &i)| i == at / chunk));
                    let (mut b, mut empty) = (vec![0; len / 2], []);
                    pool.chunks3_mut([&mut a, &mut b, &mut empty], chunk, |i, [a, b, empty]| {
                        assert!(b.len() <= a.len() && empty.is_empty());
                        a.fill(i + 1);
                        b.fill(i + 1);
                    });
                    let right = |x: &[usize]| x.iter().enumerate().all(|(at, &i)| i == at / chunk + 1);
                    assert!(right(&a) && right(&b));
                }
            }
        }
    }

    #[test]
    fn nested_runs_work_inline() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        pool.run(10, |_| {
            pool.run(10, |_| {
                pool.run(3, |_| {
                    count.fetch_add(1, Relaxed);
                });
            });
        });
        assert_eq!(count.load(Relaxed), 300);
        check(&pool, 100);
    }

    #[test]
    fn callers_on_many_threads() {
        for threads in [2, 4] {
            let pool = Pool::new(threads);
            thread::scope(|scope| {
                for caller in 0..8 {
                    let pool = &pool;
                    scope.spawn(move || {
                        for round in 0..300 {
                            check(pool, (caller * 7 + round) % 40);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads);
            for round in 0..20 {
                let thrown = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(50, |i| {
                        if i % 10 == 7 {
                            resume_unwind(Box::new(i + round));
                        }
                    });
                }));
                let payload = thrown.expect_err("the panic was lost");
                assert_eq!(payload.downcast_ref::<usize>(), Some(&(7 + round)));
                check(&pool, 100);
            }
            // A panic inside a nested run, and one with both callers and workers affected.
            assert!(
                catch_unwind(AssertUnwindSafe(
                    || pool.run(4, |_| pool.run(4, |_| resume_unwind(Box::new(()))))
                ))
                .is_err()
            );
            check(&pool, 100);
        }
    }

    /// Short enough for miri with many seeds: sleepers on both sides, and tasks that panic.
    #[test]
    fn few_runs_of_sleepers() {
        let pool = Pool::new(4);
        for round in 0..3 {
            let throws = |i: usize| {
                if i == 3 {
                    resume_unwind(Box::new(i + round));
                }
            };
            let thrown = catch_unwind(AssertUnwindSafe(|| pool.run(6, throws)));
            assert_eq!(thrown.expect_err("the panic was lost").downcast_ref::<usize>(), Some(&(3 + round)));
        }
    }

    #[test]
    fn many_tiny_runs() {
        // One pool with workers that poll and one with more threads than cores, whose workers sleep at once.
        for (threads, runs) in [(2, 100_000), (9, 2_000)] {
            let pool = Pool::new(threads);
            let count = AtomicUsize::new(0);
            for _ in 0..runs {
                pool.run(2, |_| {
                    count.fetch_add(1, Relaxed);
                });
            }
            assert_eq!(count.load(Relaxed), 2 * runs);
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            thread::sleep(POLL * 4);
            // Both tasks wait for each other, so this ends only if the worker wakes up.
            let arrived = AtomicUsize::new(0);
            pool.run(2, |_| {
                arrived.fetch_add(1, SeqCst);
                while arrived.load(SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_caller_sleeps_for_a_slow_task() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            let slow = AtomicUsize::new(0);
            pool.run(2, |i| {
                thread::sleep(Duration::from_millis(i as u64 * 5));
                slow.fetch_add(1, Relaxed);
            });
            assert_eq!(slow.load(Relaxed), 2);
        }
    }
}
