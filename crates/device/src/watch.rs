//! Who holds memory. While a device is watched, every buffer is counted by what it was allocated for: the op and the
//! shape. This names the values that pile up from step to step, and the largest ones when memory runs out.

use super::{Device, MemoryStats};
use dittograd_numerics::error::readable_bytes;
use dittograd_numerics::shape::Shape;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Consecutive steps of growing live memory that cause a warning.
const GROWING_STEPS: u64 = 20;
/// The most holders that a message names.
const MAX_NAMED_HOLDERS: usize = 5;

/// Live buffers that were allocated for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The op whose value or workspace they are, or another purpose.
    pub what: &'static str,
    /// The shape of each.
    pub shape: Shape,
    /// Number of buffers.
    pub count: usize,
    /// Total bytes.
    pub bytes: usize,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.shape)?;
        if self.count != 1 {
            write!(f, " x {}", self.count)?;
        }
        write!(f, " {}", readable_bytes(self.bytes))
    }
}

/// The memory of one step, from the end of the previous step to its own end. A step ends with `Session::reset` or with
/// a compiled step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Number of steps so far, this one included.
    pub step: u64,
    /// Bytes live at its end.
    pub live: usize,
    /// Peak of live bytes during it.
    pub peak: usize,
    /// Buffers allocated in it.
    pub allocs: u64,
    /// Buffers freed in it.
    pub frees: u64,
}

impl fmt::Display for StepMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (live, peak) = (readable_bytes(self.live), readable_bytes(self.peak));
        write!(f, "step {}: live {live}, peak {peak}, ", self.step)?;
        write!(f, "{} allocations, {} frees", self.allocs, self.frees)
    }
}

/// The memory of a device: now, in the last step, and by holder. Steps and holders are known only while it is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// The counters.
    pub now: MemoryStats,
    /// The last step that ended while the device was watched.
    pub step: Option<StepMemory>,
    /// Live buffers that were allocated while the device was watched, largest first.
    pub holders: Vec<Holder>,
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = &self.step {
            write!(f, "{step}; now ")?;
        }
        write!(f, "{}{}", self.now, largest(&self.holders))
    }
}

/// The first few holders, as the end of a sentence.
fn largest(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return String::new();
    }
    let named: Vec<String> = holders.iter().take(MAX_NAMED_HOLDERS).map(Holder::to_string).collect();
    let more = if holders.len() > MAX_NAMED_HOLDERS { ", …" } else { "" };
    format!("; largest: {}{more}", named.join(", "))
}

/// Where warnings go.
pub(super) type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// The watch's data of a device. Turning the watch off only stops new entries, so that buffers counted here are still
/// removed when they are freed.
#[derive(Default)]
pub(super) struct Watch {
    sink: Option<Sink>,
    places: HashMap<(&'static str, Shape), u32>,
    holders: Vec<Holder>,
    /// Peak of live bytes since the last step ended.
    peak: usize,
    /// The counters at the end of the last step.
    before: MemoryStats,
    last: Option<StepMemory>,
    growth: Growth,
}

/// Consecutive steps that ended with more live memory than the step before.
#[derive(Default)]
struct Growth {
    steps: u64,
    warn_at: u64,
    /// Live bytes before the first of them, in total and by holder.
    live: usize,
    bytes: Vec<usize>,
}

impl Watch {
    pub(super) fn start(&mut self, stats: MemoryStats, sink: Sink) {
        self.sink = Some(sink);
        (self.peak, self.before, self.last) = (stats.live, stats, None);
        self.rest(stats.live);
    }

    pub(super) fn stop(&mut self) {
        self.sink = None;
    }

    /// Counts a buffer if the watch is on. Pass the result to [`Watch::freed`].
    pub(super) fn allocated(
        &mut self,
        what: &'static str,
        shape: &Shape,
        bytes: usize,
        live: usize,
    ) -> Option<u32> {
        self.sink.as_ref()?;
        self.peak = self.peak.max(live);
        let next = self.holders.len() as u32;
        let place = *self.places.entry((what, *shape)).or_insert(next);
        if place == next {
            self.holders.push(Holder { what, shape: *shape, count: 0, bytes: 0 });
        }
        let holder = self.holders.get_mut(place as usize)?;
        holder.count += 1;
        holder.bytes += bytes;
        Some(place)
    }

    pub(super) fn freed(&mut self, place: Option<u32>, bytes: usize) {
        if let Some(holder) = place.and_then(|p| self.holders.get_mut(p as usize)) {
            holder.count -= 1;
            holder.bytes -= bytes;
        }
    }

    fn largest(&self) -> Vec<Holder> {
        let mut all: Vec<Holder> = self.holders.iter().filter(|h| h.count > 0).copied().collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.what.cmp(b.what)));
        all
    }

    /// Growth ended: later steps are compared with what is live now.
    fn rest(&mut self, live: usize) {
        let bytes = self.holders.iter().map(|h| h.bytes).collect();
        self.growth = Growth { steps: 0, warn_at: GROWING_STEPS, live, bytes };
    }

    /// Records the end of a step. Returns a warning and its sink if one is due.
    fn end_step(&mut self, stats: MemoryStats) -> Option<(Sink, String)> {
        let sink = self.sink.clone()?;
        self.last = Some(StepMemory {
            step: self.last.map_or(0, |s| s.step) + 1,
            live: stats.live,
            peak: self.peak,
            allocs: stats.allocs - self.before.allocs,
            frees: stats.frees - self.before.frees,
        });
        let grew = stats.live > self.before.live;
        (self.peak, self.before) = (stats.live, stats);
        if !grew {
            self.rest(stats.live);
            return None;
        }
        self.growth.steps += 1;
        if self.growth.steps < self.growth.warn_at {
            return None;
        }
        // Double the interval, so that warnings stay few.
        self.growth.warn_at *= 2;
        Some((sink, self.warning(stats.live)))
    }

    fn warning(&self, live: usize) -> String {
        let Growth { steps, live: start, bytes, .. } = &self.growth;
        let each = live.saturating_sub(*start) / *steps as usize;
        let more =
            |(i, h): (usize, &Holder)| (h.bytes.saturating_sub(bytes.get(i).copied().unwrap_or(0)), *h);
        let most = self.holders.iter().enumerate().map(more).max_by_key(|m| m.0);
        let from = match most {
            Some((more, h)) if more > 0 => {
                format!(", most of it from {} {} ({} more)", h.what, h.shape, readable_bytes(more))
            }
            _ => String::new(),
        };
        format!(
            "live memory grew for {steps} steps in a row: +{} each{from}; buffers and gradients kept across \
             Session::reset stay alive: drop them, or keep numbers from item() or value()",
            readable_bytes(each)
        )
    }
}

impl Device {
    /// Watches this device's memory from now on: buffers are counted by what they were allocated for, steps are
    /// measured, and growth over many steps causes a warning on stderr. `DITTOGRAD_WATCH=1` turns it on from the start.
    /// When off, it costs nothing.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// device.watch();
    /// let session = Session::eager(&device);
    /// let x = session.full(&[4, 8], 1.0)?;
    /// let y = x.matmul_with(x, false, true)?;
    /// let report = device.memory_report();
    /// assert_eq!((report.holders[0].what, report.holders[0].bytes), ("full", 128));
    /// println!("{report}"); // live 192 B, peak 192 B, …; largest: full [4, 8] 128 B, matmul [4, 4] 64 B
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self) {
        self.watch_with(|warning| eprintln!("dittograd: {warning}"));
    }

    /// Like [`Device::watch`], with warnings given to a function.
    pub fn watch_with(&self, warn: impl Fn(&str) + Send + Sync + 'static) {
        let mut state = self.0.memory.lock();
        let stats = state.stats;
        state.watch.start(stats, Arc::new(warn));
        self.0.memory.watched.store(true, Ordering::Relaxed);
    }

    /// Ends [`Device::watch`].
    pub fn unwatch(&self) {
        self.0.memory.lock().watch.stop();
        self.0.memory.watched.store(false, Ordering::Relaxed);
    }

    /// The state of this device's memory. While it is watched, also the last step and the holders, largest first.
    pub fn memory_report(&self) -> MemoryReport {
        let now = self.memory();
        let state = self.0.memory.lock();
        MemoryReport { now, step: state.watch.last, holders: state.watch.largest() }
    }

    /// Tells a watched device that a step ended. `Session::reset` and `TrainStep` do this; call it in a loop that uses
    /// neither.
    pub fn end_step(&self) {
        if !self.0.memory.watched.load(Ordering::Relaxed) {
            return;
        }
        let warning = {
            let mut state = self.0.memory.lock();
            let stats = state.stats;
            state.watch.end_step(stats)
        };
        // The lock is released: the function may query the device.
        if let Some((warn, text)) = warning {
            warn(&text);
        }
    }

    /// The largest holders, or how to learn of them: for out-of-memory errors.
    pub(super) fn holders_in_words(&self) -> String {
        let report = self.memory_report();
        let hint = match self.0.memory.watched.load(Ordering::Relaxed) {
            true => "",
            false => "; DITTOGRAD_WATCH=1 or Device::watch() shows what holds it",
        };
        format!("{}{}{hint}", report.now, largest(&report.holders))
    }
}
