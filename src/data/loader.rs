//! Batches prepared ahead of time on a background thread.

use super::{Batches, Samples};
use crate::error::{Error, Result, shown};
use crate::numerics::environment::set_strict;
use crate::reserve::room_for_a_thread;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

/// The most batches that may wait.
pub const MAX_AHEAD: usize = 1 << 12;

/// Characters of a panic's message that an error shows.
const MESSAGE: usize = 200;

/// The batches from a step on, prepared by one background thread while earlier ones are in use. They are the same, in
/// the same order, as those of [`Batches::batch`]. An error (or a panic, as an error) is returned once and ends the
/// iteration. Dropping the loader stops the thread and waits for it.
#[derive(Debug)]
pub struct Loader<T = Samples> {
    /// `None` once the loader is being dropped, which tells the thread to stop.
    receiver: Option<Receiver<Result<T>>>,
    thread: Option<JoinHandle<()>>,
    step: u64,
}

impl Loader {
    /// Starts at `step`, with up to `ahead` batches waiting (at least one, at most [`MAX_AHEAD`]).
    #[track_caller]
    pub fn new(mut batches: Batches, step: u64, ahead: usize) -> Result<Loader> {
        Loader::with(step, ahead, move |step| batches.batch(step))
    }

    /// The same for any function of the step, for example one that reads files.
    #[track_caller]
    pub fn with(
        step: u64,
        ahead: usize,
        make: impl FnMut(u64) -> Result<Samples> + Send + 'static,
    ) -> Result<Loader> {
        Loader::of(step, ahead, make)
    }
}

impl<T: Send + 'static> Loader<T> {
    /// The same for a function that makes something else.
    #[track_caller]
    pub(crate) fn of(
        step: u64,
        ahead: usize,
        mut make: impl FnMut(u64) -> Result<T> + Send + 'static,
    ) -> Result<Loader<T>> {
        // The slots for them are allocated at once.
        if ahead > MAX_AHEAD {
            return Err(Error::argument("loader", "ahead", format!("got {ahead}, use at most {MAX_AHEAD}")));
        }
        let (sender, receiver) = sync_channel(ahead.max(1));
        let work = move || {
            set_strict();
            for step in step..=u64::MAX {
                let batch =
                    catch_unwind(AssertUnwindSafe(|| make(step))).unwrap_or_else(|p| Err(panicked(step, p)));
                let failed = batch.is_err();
                if sender.send(batch).is_err() || failed {
                    return;
                }
            }
        };
        if !room_for_a_thread() {
            return Err(Error::argument("loader", "thread", "could not start: there is no memory for it"));
        }
        let thread = Builder::new().name("dittograd-loader".into()).spawn(work);
        let thread =
            thread.map_err(|e| Error::argument("loader", "thread", format!("could not start: {e}")))?;
        Ok(Loader { receiver: Some(receiver), thread: Some(thread), step })
    }

    /// The step whose batch comes next.
    pub fn step(&self) -> u64 {
        self.step
    }
}

/// The error for a function that panicked instead of preparing the batch of a step.
#[cold]
#[track_caller]
fn panicked(step: u64, payload: Box<dyn Any + Send>) -> Error {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "it did not say why",
    };
    let why = format!("the function that makes batches panicked at step {step}: {}", shown(text, MESSAGE));
    Error::argument("loader", "make", why)
}

impl<T> Iterator for Loader<T> {
    type Item = Result<T>;

    /// The batch of the next step, as soon as it is ready; `None` after an error.
    fn next(&mut self) -> Option<Result<T>> {
        let batch = self.receiver.as_ref()?.recv().ok();
        if matches!(batch, Some(Ok(_))) {
            self.step = self.step.saturating_add(1);
        }
        batch
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread's function was already returned as an error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spirals;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn batches_come_as_asked_for_directly() {
        let data = spirals(1, 103, 2).unwrap();
        for (start, ahead) in [(0, 1), (7, 3), (25, 0)] {
            let mut direct = Batches::new(data.clone(), 10, 9).unwrap();
            let loader = Loader::new(direct.clone(), start, ahead).unwrap();
            for (i, got) in loader.take(30).enumerate() {
                assert_eq!(got.unwrap(), direct.batch(start + i as u64).unwrap());
            }
        }
    }

    #[test]
    fn errors_are_passed_on_and_end_it() {
        let batch = spirals(1, 4, 2).unwrap().take(&[0, 1]).unwrap();
        let mut loader = Loader::with(5, 2, move |step| match step {
            8 => Err(Error::argument("test", "step", "is 8")),
            _ => Ok(batch.clone()),
        })
        .unwrap();
        for step in 5..8 {
            assert_eq!(loader.step(), step);
            assert!(loader.next().unwrap().is_ok());
        }
        assert!(loader.next().unwrap().unwrap_err().to_string().contains("is 8"));
        assert!(loader.next().is_none() && loader.next().is_none());
        assert_eq!(loader.step(), 8);
    }

    #[test]
    fn a_panic_is_an_error_and_ends_it() {
        let batch = spirals(1, 4, 2).unwrap().take(&[0, 1]).unwrap();
        let says = |panic: fn(u64), message: &str| {
            let batch = batch.clone();
            let mut loader = Loader::with(0, 1, move |step| {
                (step == 2).then(|| panic(step));
                Ok(batch.clone())
            })
            .unwrap();
            assert!(loader.by_ref().take(2).all(|b| b.is_ok()));
            let error = loader.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("panicked at step 2") && error.contains(message), "{error}");
            assert!(loader.next().is_none() && loader.next().is_none());
            assert_eq!(loader.step(), 2);
        };
        says(|_| panic!("no such file"), "no such file");
        says(|step| panic!("step {step} is\nodd"), "step 2 is\\nodd");
        says(|_| std::panic::panic_any(7), "did not say why");
    }

    #[test]
    fn it_stays_within_bounds_and_stops_when_dropped() {
        let made = Arc::new(AtomicU64::new(0));
        let batch = spirals(1, 4, 2).unwrap().take(&[0]).unwrap();
        let counter = made.clone();
        let mut loader = Loader::with(0, 2, move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(batch.clone())
        })
        .unwrap();
        for asked in 1..20 {
            loader.next().unwrap().unwrap();
            // Two batches wait, and one is being prepared.
            assert!(made.load(Ordering::SeqCst) <= asked + 3);
        }
        drop(loader);
        let end = made.load(Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(made.load(Ordering::SeqCst), end, "the thread has ended");
        assert_eq!(Arc::strong_count(&made), 1);
    }

    #[test]
    fn the_last_step_there_is_ends_it() {
        let batch = spirals(1, 4, 2).unwrap().take(&[0]).unwrap();
        let loader = Loader::with(u64::MAX, 1, move |_| Ok(batch.clone())).unwrap();
        assert_eq!(loader.count(), 1);
    }
}
