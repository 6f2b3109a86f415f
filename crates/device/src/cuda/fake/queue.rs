//! The work of streams: queued, or recorded by a capture. It runs when somebody waits for it.
#![allow(unsafe_code)]

use super::Launch;
use super::codes::{ILLEGAL_ADDRESS, INVALID_HANDLE};
use super::state::{FIRST_ADDRESS, Outcome, State};
use crate::cuda::driver::{Handle, HostMemory, INVALID_VALUE, Work};
use std::ptr;
use std::sync::Arc;

/// One operation of a stream.
#[derive(Clone)]
pub(super) enum Node {
    Upload {
        dst: u64,
        src: Handle,
        bytes: usize,
    },
    Download {
        dst: Handle,
        src: u64,
        bytes: usize,
    },
    /// Waits until so many operations of another stream have run.
    Wait {
        stream: Handle,
        position: u64,
    },
    /// Something that another library queued.
    Foreign(Arc<dyn Foreign>),
    Launch(Launch),
    Copy {
        dst: u64,
        src: u64,
        bytes: usize,
    },
    Fill {
        dst: u64,
        word: u32,
        count: usize,
    },
    Work(Work),
}

/// An operation that another library queues on a stream. The stream stops at it until it is over.
pub trait Foreign: Send + Sync {
    /// Does what can be done now. Returns whether it is over; `None` if it accesses memory outside all allocations.
    fn advance(&self, memory: &mut dyn HostMemory) -> Option<bool>;
}

/// A captured operation, and the numbers (from 1) of those it waits for.
pub(super) type Captured = (Node, Vec<usize>);

impl State {
    /// Queues a node, or records it if the stream captures.
    pub fn submit(&mut self, stream: Handle, node: Node) -> Outcome {
        let device = self.stream(stream)?.device;
        let (dst, bytes) = match node {
            Node::Upload { dst, bytes, .. } => (dst, bytes),
            Node::Download { src, bytes, .. } => (src, bytes),
            Node::Copy { dst, src, bytes } => {
                self.range(device, src, bytes)?;
                if dst.abs_diff(src) < bytes as u64 {
                    return Err(INVALID_VALUE);
                }
                (dst, bytes)
            }
            Node::Fill { dst, count, .. } if dst % 4 == 0 => {
                (dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)
            }
            Node::Fill { .. } => return Err(INVALID_VALUE),
            Node::Launch(_) | Node::Work(_) | Node::Wait { .. } | Node::Foreign(_) => (0, 0),
        };
        if bytes > 0 {
            self.range(device, dst, bytes)?;
        }
        let stream = self.stream(stream)?;
        match &mut stream.capture {
            Some(capture) => {
                let after: Vec<usize> = stream.after.iter().map(|n| n.0.addr()).collect();
                let waits = after.len() as u64;
                capture.nodes.push((node, after));
                stream.after = vec![Handle(ptr::without_provenance_mut(capture.nodes.len()))];
                self.waits += waits;
            }
            None => stream.queue.push_back(node),
        }
        self.shuffle()
    }

    /// Runs the queue up to operation number `until`. Returns whether it came so far: it stops at an operation that waits for
    /// what no queue here can bring about.
    pub fn drain(&mut self, stream: Handle, until: u64) -> Outcome<bool> {
        loop {
            let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            if found.done >= until {
                return Ok(true);
            }
            let Some(node) = found.queue.front().cloned() else { return Ok(true) };
            let device = found.device;
            let ran = match node {
                // A stream that is gone has nothing left to wait for.
                Node::Wait { stream: other, .. } if !self.streams.contains_key(&other) => Ok(true),
                Node::Wait { stream: other, position } => self.drain(other, position),
                Node::Foreign(work) => work.advance(&mut OnDevice(self, device)).ok_or(ILLEGAL_ADDRESS),
                node => self.execute(device, node).map(|()| true).map_err(|_| ILLEGAL_ADDRESS),
            };
            if ran == Ok(false) {
                return Ok(false);
            }
            let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            found.queue.pop_front();
            found.done += 1;
            ran?;
        }
    }

    /// Runs everything queued anywhere that can run.
    pub fn drain_all(&mut self) {
        for stream in self.streams_in_order() {
            // An operation on freed memory is dropped.
            while self.drain(stream, u64::MAX).is_err() {}
        }
    }

    fn streams_in_order(&self) -> Vec<Handle> {
        let mut streams: Vec<Handle> = self.streams.keys().copied().collect();
        streams.sort_by_key(|stream| stream.0.addr());
        streams
    }

    /// If streams run in a random order: runs some of what some of them have queued.
    fn shuffle(&mut self) -> Outcome {
        let Some(seed) = &mut self.order else { return Ok(()) };
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let draw = *seed >> 33;
        let streams = self.streams_in_order();
        let stream = streams[draw as usize % streams.len()];
        let until = self.streams[&stream].done + (draw >> 8) % 4;
        self.drain(stream, until).map(drop)
    }

    /// Whether queued work may use memory from `address` on.
    pub fn is_used(&self, device: i32, address: u64) -> bool {
        let Some(memory) = self.allocations.get(&address) else { return false };
        let holds = |at: u64| (address..address + memory.bytes.len() as u64).contains(&at);
        let uses = |node: &Node| match *node {
            Node::Upload { dst, .. } | Node::Fill { dst, .. } => holds(dst),
            Node::Download { src, .. } => holds(src),
            Node::Copy { dst, src, .. } => holds(dst) || holds(src),
            Node::Wait { .. } => false,
            Node::Launch(_) | Node::Work(_) | Node::Foreign(_) => true,
        };
        self.streams.values().any(|s| s.device == device && s.queue.iter().any(uses))
    }

    /// Runs an operation.
    fn execute(&mut self, device: i32, node: Node) -> Outcome {
        match node {
            Node::Launch(launch) => {
                self.check_addresses(device, &launch.args)?;
                self.launches.push(launch);
            }
            Node::Upload { dst, src, bytes } => {
                if !self.is_pinned(src, bytes) {
                    return Err(INVALID_VALUE);
                }
                // SAFETY: the range is in pinned memory that was not freed. Tests check that nobody writes it now.
                let data = unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) };
                self.range(device, dst, bytes)?.copy_from_slice(data);
            }
            Node::Download { dst, src, bytes } => {
                if !self.is_pinned(dst, bytes) {
                    return Err(INVALID_VALUE);
                }
                let data = self.range(device, src, bytes)?.as_ptr();
                // SAFETY: the range is in pinned memory that was not freed, and no part of device memory. Tests check that
                // nobody looks at it now.
                unsafe { dst.0.cast::<u8>().copy_from_nonoverlapping(data, bytes) };
            }
            Node::Copy { dst, src, bytes } => {
                let data = self.range(device, src, bytes)?.to_vec();
                self.range(device, dst, bytes)?.copy_from_slice(&data);
            }
            Node::Fill { dst, word, count } => {
                let words = self.range(device, dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)?;
                words.chunks_exact_mut(4).for_each(|slot| slot.copy_from_slice(&word.to_ne_bytes()));
            }
            Node::Work(work) => work(&mut OnDevice(self, device)).ok_or(INVALID_VALUE)?,
            // Those are not of one device, or not at once: `drain` runs them.
            Node::Wait { .. } | Node::Foreign(_) => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    /// Refuses arguments that look like addresses but are in no allocation. The end of an allocation is allowed: it is
    /// the address of an empty part.
    fn check_addresses(&self, device: i32, args: &[u8]) -> Outcome {
        for word in args.chunks_exact(8) {
            let address = u64::from_ne_bytes(word.try_into().map_err(|_| INVALID_VALUE)?);
            if !(FIRST_ADDRESS..self.address).contains(&address) {
                continue;
            }
            let found = self.allocations.range(..=address).next_back();
            let is_there = found.is_some_and(|(&start, memory)| {
                memory.device == device && address - start <= memory.bytes.len() as u64
            });
            if !is_there {
                return Err(ILLEGAL_ADDRESS);
            }
        }
        Ok(())
    }
}

/// The memory of one device.
struct OnDevice<'a>(&'a mut State, i32);

impl HostMemory for OnDevice<'_> {
    fn words(&mut self, address: u64, count: usize) -> Option<Vec<f32>> {
        if count == 0 {
            return Some(Vec::new());
        }
        let bytes = self.0.range(self.1, address, count.checked_mul(4)?).ok()?;
        Some(bytes.chunks_exact(4).map(|w| f32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect())
    }

    fn set_words(&mut self, address: u64, words: &[f32]) -> Option<()> {
        if words.is_empty() {
            return Some(());
        }
        let bytes = self.0.range(self.1, address, words.len() * 4).ok()?;
        bytes.chunks_exact_mut(4).zip(words).for_each(|(b, w)| b.copy_from_slice(&w.to_ne_bytes()));
        Some(())
    }
}

/// The nodes of a graph in the most unexpected order that its dependencies allow: always the last node that is ready.
pub(super) fn unexpected_order(nodes: &[Captured]) -> Vec<Node> {
    let mut order = Vec::with_capacity(nodes.len());
    let mut is_done = vec![false; nodes.len()];
    let is_ready = |is_done: &[bool], i: usize| {
        !is_done[i] && nodes[i].1.iter().all(|&n| is_done.get(n.wrapping_sub(1)).copied().unwrap_or(true))
    };
    while let Some(next) = (0..nodes.len()).rev().find(|&i| is_ready(&is_done, i)) {
        is_done[next] = true;
        order.push(nodes[next].0.clone());
    }
    order
}
