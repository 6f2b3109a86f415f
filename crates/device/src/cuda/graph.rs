//! Graphs and timing: what is submitted between a begin and an end.
//!
//! A capture belongs to one thread and has the device to itself: calls of other threads wait, and what
//! cannot be recorded is refused before the driver sees it, so that a refusal never spoils the capture.

use super::context::{Cuda, this_thread, write};
use super::driver::Handle;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Graphs and timing.
impl Cuda {
    /// Records what `f` submits from this thread instead of running it. Launches, device copies and fills
    /// can be recorded; what allocates, compiles, moves data to or from the host or waits is refused.
    /// Other threads wait with their calls on this device until `f` returns, so `f` must not wait for
    /// them. The memory a graph works on must stay allocated for as long as the graph is launched.
    pub fn capture(self: &Arc<Self>, f: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        self.outside("cuda capture")?;
        self.good()?;
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
            // The capture was lost to the same cause; `noted` has seen whatever else it means.
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

    /// During a capture: what was captured last, as the next operation would wait for it; none where the driver cannot
    /// tell, and then operations wait for each other in order.
    #[doc(hidden)]
    pub fn captured(&self) -> Result<Option<Vec<Captured>>> {
        let nodes = self.noted(self.driver.stream_captured(self.stream))?;
        Ok(nodes.map(|nodes| nodes.into_iter().map(Captured).collect()))
    }

    /// During a capture: the next operation waits for these, and for nothing else.
    #[doc(hidden)]
    pub fn capture_after(&self, nodes: &[Captured]) -> Result<()> {
        let mut nodes: Vec<Handle> = nodes.iter().map(|n| n.0).collect();
        self.noted(self.driver.stream_capture_after(self.stream, &mut nodes))
    }

    /// Milliseconds that what `f` submits takes on the device. Waits for it.
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

/// A capture in progress, ended also when the closure panics.
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
        Ok(Event { cuda, handle: cuda.noted(cuda.driver.event_create(true))? })
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

/// Recorded work that can be submitted again as a whole.
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
        // One still running is freed by the driver when it ends.
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
