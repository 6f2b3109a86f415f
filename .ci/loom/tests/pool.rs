//! Models of the pool's life. Loom runs each in every order of its threads with at most two or three switches away from a
//! thread that could go on (`LOOM_MAX_PREEMPTIONS=4` for more), and lets every load see each value that its order allows.
//! It reports a lost wake-up as a deadlock, and memory that two threads use with no order between them as a violation.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use dittograd_loom::threads::Pool;
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

/// Runs the model in all orders with at most so many switches.
fn all_orders(switches: usize, model: impl Fn() + Send + Sync + 'static) {
    let orders = std::sync::Arc::new(AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(switches);
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        model();
    });
    println!("{} orders", orders.load(Relaxed));
}

/// Plain memory: loom panics if two threads use it without an order between them and one of them writes.
struct Plain(UnsafeCell<usize>);

// SAFETY: all threads of a model are one, and loom watches every use.
unsafe impl Sync for Plain {}

impl Plain {
    fn new(value: usize) -> Plain {
        Plain(UnsafeCell::new(value))
    }

    fn get(&self) -> usize {
        // SAFETY: as for `Sync`; the pointer does not leave the closure.
        self.0.with(|value| unsafe { *value })
    }

    fn set(&self, value: usize) {
        // SAFETY: as for `Sync`; the pointer does not leave the closure.
        self.0.with_mut(|place| unsafe { *place = value });
    }
}

/// One run: each task runs once, sees what the caller wrote before and is seen by the caller after.
fn run(pool: &Pool, tasks: usize) {
    let input = Plain::new(0);
    let output: Vec<Plain> = (0..tasks).map(|_| Plain::new(0)).collect();
    input.set(7);
    pool.run(tasks, |i| output[i].set(output[i].get() + input.get() + i));
    input.set(0);
    assert!(output.iter().enumerate().all(|(i, value)| value.get() == 7 + i));
}

/// One run whose tasks wait for each other, so that it ends only if as many threads come.
fn meet(pool: &Pool, tasks: usize) {
    let (arrived, all) = (Mutex::new(0), Condvar::new());
    pool.run(tasks, |_| {
        let mut arrived = arrived.lock().unwrap();
        *arrived += 1;
        if *arrived == tasks {
            all.notify_all();
        }
        while *arrived < tasks {
            arrived = all.wait(arrived).unwrap();
        }
    });
}

#[test]
fn a_pool_goes_before_its_workers_sleep_and_after() {
    all_orders(3, || drop(Pool::new(3)));
}

#[test]
fn two_runs() {
    all_orders(3, || {
        let pool = Pool::new(2);
        run(&pool, 2);
        run(&pool, 3);
    });
}

#[test]
fn two_workers() {
    all_orders(2, || run(&Pool::new(3), 3));
}

#[test]
fn a_worker_wakes() {
    all_orders(3, || {
        let pool = Pool::new(2);
        meet(&pool, 2);
        meet(&pool, 2);
    });
}

#[test]
fn both_workers_wake() {
    all_orders(2, || meet(&Pool::new(3), 3));
}

#[test]
fn nested_runs() {
    all_orders(3, || {
        let pool = Pool::new(2);
        pool.run(2, |_| run(&pool, 2));
    });
}

#[test]
fn two_callers() {
    all_orders(3, || {
        let pool = Arc::new(Pool::new(2));
        let other = Arc::clone(&pool);
        let caller = loom::thread::spawn(move || run(&other, 2));
        run(&pool, 2);
        caller.join().unwrap();
    });
}

#[test]
fn a_panic_arrives_and_the_pool_goes_on() {
    all_orders(3, || {
        let pool = Pool::new(2);
        let last = Plain::new(0);
        let tasks = |i| if i < 2 { resume_unwind(Box::new(i)) } else { last.set(i) };
        let thrown = catch_unwind(AssertUnwindSafe(|| pool.run(3, tasks)));
        // Of two panics it is the one of the lowest index, and the task after them ran nevertheless.
        assert_eq!(thrown.unwrap_err().downcast_ref::<usize>(), Some(&0));
        assert_eq!(last.get(), 2);
        meet(&pool, 2);
    });
}
