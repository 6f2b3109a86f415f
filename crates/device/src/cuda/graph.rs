//! Graphs and timing.
//!
//! A capture belongs to one thread and has the device to itself: calls of other threads wait. Calls that cannot be
//! recorded are refused before the driver sees them, so that a refusal never spoils the capture.

use super::context::{Cuda, this_thread, write};
use super::driver::{Handle, event};
use super::kernels::Clock;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Graphs and timing.
impl Cuda {
    /// Records what `f` submits from this thread instead of running it. Launches, device copies and fills can be
    /// recorded. Calls that allocate, compile, move data to or from the host, or wait are refused. Calls of other
    /// threads on this device wait until `f` returns, so `f` must not wait for them. The memory that a graph uses must
    /// stay allocated for as long as the graph is launched.
    pub fn capture(self: &Arc<Self>, f: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        self.outside("cuda capture")?;
        self.good()?;
        let _clock = Clock::of(&self.waited.capture);
        let _alone = write(&self.turn);
        self.make_current()?;
        self.noted(self.driver.stream_begin_capture(self.stream))?;
        self.capturing.store(this_thread(), Ordering::Release);
        let scope = Capture(self);
        let outcome = f();
        let ended = scope.end();
        let graph = match (outcome, ended) {
            (Ok(()), ended) => ended?,
            (Err(error), Ok(graph)) => {
                self.settle(self.driver.graph_destroy(graph));
                return Err(error);
            }
            // The capture was lost to the same cause; `noted` has recorded what it means for the device.
            (Err(error), Err(_)) => return Err(error),
        };
        if graph.is_null() {
            return Err(Error::new(
                "cuda capture",
                ErrorKind::Internal { what: "the capture gave no graph" },
            ));
        }
        let nodes = self.noted(self.driver.graph_node_count(graph));
        let exec =
            nodes.and_then(|nodes| Ok((nodes, self.with_room(|| self.driver.graph_instantiate(graph))?)));
        let destroyed = self.noted(self.driver.graph_destroy(graph));
        match exec {
            Ok((nodes, exec)) => {
                let graph = CudaGraph { cuda: self.clone(), exec, nodes };
                destroyed.map(|()| graph)
            }
            Err(error) => {
                self.settle(destroyed);
                Err(error)
            }
        }
    }

    /// During a capture: the nodes that the next operation would wait for. `None` if the driver cannot tell; then
    /// operations run in order.
    #[doc(hidden)]
    pub fn captured(&self) -> Result<Option<Vec<Captured>>> {
        let nodes = self.noted(self.driver.stream_captured(self.stream))?;
        Ok(nodes.map(|nodes| nodes.into_iter().map(Captured).collect()))
    }

    /// During a capture: makes the next operation wait for these nodes, and for nothing else.
    #[doc(hidden)]
    pub fn capture_after(&self, nodes: &[Captured]) -> Result<()> {
        let mut nodes: Vec<Handle> = nodes.iter().map(|n| n.0).collect();
        self.noted(self.driver.stream_capture_after(self.stream, &mut nodes))
    }

    /// Device time in milliseconds of what `f` submits. Waits for it.
    pub fn time(&self, f: impl FnOnce() -> Result<()>) -> Result<f32> {
        let mark = |event: &Event<'_>| {
            let _turn = self.enter()?;
            self.noted(self.driver.event_record(event.handle, self.stream))
        };
        let (start, end) = {
            let _turn = self.enter_outside("cuda time")?;
            (Event::new(self)?, Event::new(self)?)
        };
        mark(&start)?;
        f()?;
        mark(&end)?;
        let _turn = self.enter()?;
        self.noted(self.driver.event_synchronize(end.handle))?;
        self.noted(self.driver.event_elapsed(start.handle, end.handle))
    }
}

/// An operation that was captured.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured(Handle);

/// A capture in progress. It also ends if the closure panics.
struct Capture<'a>(&'a Cuda);

impl Capture<'_> {
    fn end(self) -> Result<Handle> {
        let cuda = self.0;
        std::mem::forget(self);
        Capture::stop(cuda)
    }

    fn stop(cuda: &Cuda) -> Result<Handle> {
        cuda.capturing.store(0, Ordering::Release);
        cuda.noted(cuda.driver.stream_end_capture(cuda.stream))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        match Capture::stop(self.0) {
            Ok(graph) => self.0.settle(self.0.driver.graph_destroy(graph)),
            Err(error) => self.0.settle(Err(error)),
        }
    }
}

/// An event for timing.
struct Event<'a> {
    cuda: &'a Cuda,
    handle: Handle,
}

impl Event<'_> {
    fn new(cuda: &Cuda) -> Result<Event<'_>> {
        Ok(Event { cuda, handle: cuda.noted(cuda.driver.event_create(event::TIMED))? })
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        let current = self.cuda.make_current();
        let destroyed = self.cuda.driver.event_destroy(self.handle);
        self.cuda.settle(current);
        self.cuda.settle(destroyed);
    }
}

/// Recorded work that can be submitted as a whole, any number of times.
pub struct CudaGraph {
    cuda: Arc<Cuda>,
    exec: Handle,
    nodes: usize,
}

impl CudaGraph {
    /// Submits the recorded work once.
    pub fn launch(&self) -> Result<()> {
        let _turn = self.cuda.enter_outside("cuda graph launch")?;
        self.cuda.noted(self.cuda.driver.graph_launch(self.exec, self.cuda.stream))
    }

    /// Number of recorded operations.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // If the graph is still running, the driver frees it when it ends.
        let current = self.cuda.make_current();
        let destroyed = self.cuda.driver.graph_exec_destroy(self.exec);
        self.cuda.settle(current);
        self.cuda.settle(destroyed);
    }
}

impl fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaGraph({} nodes on {:?})", self.nodes, self.cuda)
    }
}
