//! The work of streams: queued, or recorded by a capture. It runs when somebody waits for it.
#![allow(unsafe_code)]

use super::Launch;
use super::codes::{ILLEGAL_ADDRESS, INVALID_HANDLE};
use super::state::{FIRST_ADDRESS, Outcome, State};
use crate::cuda::driver::{Handle, HostMemory, INVALID_VALUE, Work};
use std::ptr;

/// One operation of a stream.
#[derive(Clone)]
pub(super) enum Node {
    Upload { dst: u64, src: Handle, bytes: usize },
    Launch(Launch),
    Copy { dst: u64, src: u64, bytes: usize },
    Fill { dst: u64, word: u32, count: usize },
    Work(Work),
}

/// A captured operation, and the numbers (from 1) of those it waits for.
pub(super) type Captured = (Node, Vec<usize>);

impl State {
    /// Queues a node, or records it if the stream captures.
    pub fn submit(&mut self, stream: Handle, node: Node) -> Outcome {
        let device = self.stream(stream)?.device;
        let (dst, bytes) = match node {
            Node::Upload { dst, bytes, .. } => (dst, bytes),
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
            Node::Launch(_) | Node::Work(_) => (0, 0),
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
        Ok(())
    }

    /// Runs the queue up to operation number `until`.
    pub fn drain(&mut self, stream: Handle, until: u64) -> Outcome {
        loop {
            let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            if found.done >= until {
                return Ok(());
            }
            let Some(node) = found.queue.pop_front() else { return Ok(()) };
            found.done += 1;
            let device = found.device;
            self.execute(device, node).map_err(|_| ILLEGAL_ADDRESS)?;
        }
    }

    /// Runs everything queued anywhere.
    pub fn drain_all(&mut self) {
        let streams: Vec<Handle> = self.streams.keys().copied().collect();
        for stream in streams {
            // An operation on freed memory is dropped.
            while self.drain(stream, u64::MAX).is_err() {}
        }
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
            Node::Copy { dst, src, bytes } => {
                let data = self.range(device, src, bytes)?.to_vec();
                self.range(device, dst, bytes)?.copy_from_slice(&data);
            }
            Node::Fill { dst, word, count } => {
                let words = self.range(device, dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)?;
                words.chunks_exact_mut(4).for_each(|slot| slot.copy_from_slice(&word.to_ne_bytes()));
            }
            Node::Work(work) => work(&mut OnDevice(self, device)).ok_or(INVALID_VALUE)?,
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
