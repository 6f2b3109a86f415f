//! Marks in the work of a device, and the stream of transfers that run beside computing.
//!
//! Computing has one stream. Transfers that should not wait for all of it, nor it for them, run on a second one. A
//! [`Mark`] orders the two: an event, recorded on one stream, that the other stream or a host thread waits for. Calls here
//! may come from any thread. Those on the transfer stream take no turn (see [`Cuda::capture`]): they cannot end up in
//! the graph that another thread captures.

use super::context::{Cuda, lock};
use super::driver::{Handle, event};
use dittograd_numerics::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// The stream of transfers, and what belongs to it.
#[derive(Default)]
pub(super) struct Transfers {
    /// Made when it is first needed.
    pub(super) stream: Handle,
    /// Events of marks that are gone, to use again.
    pub(super) events: Vec<Handle>,
    /// Pinned memory that a copy may still use, though nobody could wait for it. It is freed when the device is closed.
    pub(super) abandoned: Vec<Handle>,
}

/// A point in the work of a device: reached when everything submitted before it has run. Clones are the same point.
#[derive(Clone)]
pub struct Mark(Arc<Event>);

struct Event {
    cuda: Arc<Cuda>,
    handle: Handle,
}

impl Drop for Event {
    fn drop(&mut self) {
        // A stream that waits for the event keeps waiting for this record of it, whatever is recorded next.
        lock(&self.cuda.transfers).events.push(self.handle);
    }
}

impl Mark {
    /// The device it is a point of.
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.0.cuda
    }

    /// Whether it has been reached.
    pub fn is_reached(&self) -> Result<bool> {
        let cuda = &self.0.cuda;
        cuda.enter_transfer("cuda mark")?;
        cuda.noted(cuda.driver.event_query(self.0.handle))
    }

    /// Waits on the calling thread until it is reached. Work submitted after the mark is not waited for.
    pub fn synchronize(&self) -> Result<()> {
        let cuda = &self.0.cuda;
        cuda.enter_transfer("cuda mark")?;
        cuda.noted(cuda.driver.event_synchronize(self.0.handle))
    }

    /// The event, for a stream of `cuda`. Refuses another device: its marks order nothing there.
    pub(super) fn event(&self, cuda: &Cuda) -> Result<Handle> {
        if std::ptr::eq(&*self.0.cuda, cuda) {
            return Ok(self.0.handle);
        }
        Err(Error::argument("cuda mark", "mark", format!("is one of {:?}, used on {cuda:?}", self.0.cuda)))
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark(on {:?})", self.0.cuda)
    }
}

/// Marks, and the transfer stream.
impl Cuda {
    /// A mark behind everything that was submitted to compute so far. Not possible while a graph is captured.
    pub fn mark(self: &Arc<Self>) -> Result<Mark> {
        let _turn = self.enter_outside("cuda mark")?;
        self.mark_on(self.stream)
    }

    /// Makes everything submitted to compute from now on wait for a mark. Not possible while a graph is captured.
    pub fn wait(&self, mark: &Mark) -> Result<()> {
        let _turn = self.enter_outside("cuda wait")?;
        let event = mark.event(self)?;
        self.noted(self.driver.stream_wait_event(self.stream, event))
    }

    /// Submits work to the transfer stream, behind the mark `after`: `f` gets the stream. The work may use these ranges of
    /// memory, each an address and its bytes, which must stay allocated until it is over. Returns the mark behind it.
    #[doc(hidden)]
    pub fn transfer<E: From<Error>>(
        self: &Arc<Self>,
        after: &Mark,
        ranges: &[(u64, usize)],
        f: impl FnOnce(Handle) -> Result<(), E>,
    ) -> Result<Mark, E> {
        self.enter_transfer("cuda transfer")?;
        let event = after.event(self)?;
        for &(address, bytes) in ranges.iter().filter(|range| range.1 > 0) {
            self.owned("cuda transfer", "range", address, bytes)?;
        }
        let stream = self.transfer_stream()?;
        self.noted(self.driver.stream_wait_event(stream, event))?;
        f(stream)?;
        Ok(self.mark_on(stream)?)
    }

    /// Waits until everything on the transfer stream has run.
    pub(super) fn synchronize_transfers(&self) -> Result<()> {
        let stream = lock(&self.transfers).stream;
        if stream.is_null() { Ok(()) } else { self.noted(self.driver.stream_synchronize(stream)) }
    }

    /// Begins a call on the transfer stream, or about an event.
    pub(super) fn enter_transfer(&self, op: &str) -> Result<()> {
        self.outside(op)?;
        self.good()?;
        self.make_current()
    }

    fn transfer_stream(&self) -> Result<Handle> {
        let mut transfers = lock(&self.transfers);
        if transfers.stream.is_null() {
            transfers.stream = self.noted(self.driver.stream_create())?;
        }
        Ok(transfers.stream)
    }

    pub(super) fn mark_on(self: &Arc<Self>, stream: Handle) -> Result<Mark> {
        let kept = lock(&self.transfers).events.pop();
        let handle = match kept {
            Some(handle) => handle,
            None => self.noted(self.driver.event_create(event::SLEEPING))?,
        };
        let mark = Mark(Arc::new(Event { cuda: self.clone(), handle }));
        self.noted(self.driver.event_record(handle, stream))?;
        Ok(mark)
    }
}
