//! The one door to memory against a model of it: which blocks are alive, and what is in them.

use super::choices::{Choices, said};
use dittograd::device::cpu::simd::Simd;
use dittograd::device::{Buffer, Device};
use dittograd::error::ErrorKind;

/// A block as it should be.
struct Block {
    bytes: usize,
    alive: bool,
    handles: usize,
}

/// A handle: a part of a block that was filled with one number, or with nothing in particular.
struct Handle {
    buffer: Buffer,
    block: usize,
    filled: Option<f32>,
}

pub fn allocator(data: &[u8]) {
    let device = Device::cpu_with(1, Simd::best()).expect("a CPU");
    let mut c = Choices::new(data);
    let (mut blocks, mut handles): (Vec<Block>, Vec<Handle>) = (Vec::new(), Vec::new());
    let (mut limit, mut fail): (Option<usize>, Option<(u64, bool)>) = (None, None);
    let (mut allocs, mut frees, mut peak) = (0, 0, 0);
    device.set_checks(c.flag());
    while !c.is_empty() {
        let live = |blocks: &[Block]| blocks.iter().filter(|b| b.alive).map(|b| b.bytes).sum::<usize>();
        match c.below(10) {
            0..=2 => {
                let huge = limit.is_some() && c.below(16) == 15;
                let words = if huge { c.size() } else { c.below(2000) };
                let fill = c.flag().then(|| c.byte() as f32).filter(|_| words < 5000);
                let made = match fill {
                    Some(x) => Buffer::upload(&device, &vec![x; words]),
                    None => device.alloc(words),
                };
                let bytes = words.saturating_mul(4);
                let beyond = limit.is_some_and(|l| bytes > 0 && live(&blocks).saturating_add(bytes) > l);
                let mut told = false;
                if !beyond
                    && bytes > 0
                    && bytes <= isize::MAX as usize
                    && let Some((left, lasting)) = fail
                {
                    let left = left.saturating_sub(1);
                    told = left == 0;
                    fail = if told && !lasting { None } else { Some((left, lasting)) };
                }
                match made {
                    Ok(buffer) => {
                        assert!(!beyond && !told, "an allocation that should have failed");
                        assert_eq!((buffer.len(), buffer.is_released()), (words, false));
                        allocs += u64::from(words > 0);
                        blocks.push(Block { bytes, alive: true, handles: 1 });
                        handles.push(Handle { buffer, block: blocks.len() - 1, filled: fill });
                    }
                    Err(e) => {
                        said(&e);
                        let large = matches!(e.kind(), ErrorKind::TooLarge { .. });
                        let full = matches!(e.kind(), ErrorKind::OutOfMemory { .. });
                        assert!(large || (full && (beyond || told)), "{e}");
                    }
                }
            }
            3 if !handles.is_empty() => {
                let of = &handles[c.below(handles.len())];
                let (start, words) = (c.size(), c.size());
                let fits = start.checked_add(words).is_some_and(|end| end <= of.buffer.len());
                match of.buffer.part(start, words) {
                    Ok(buffer) => {
                        assert!(fits && buffer.shares(&of.buffer) && buffer.len() == words);
                        blocks[of.block].handles += 1;
                        let (block, filled) = (of.block, of.filled);
                        handles.push(Handle { buffer, block, filled });
                    }
                    Err(e) => assert!(!fits, "{e}"),
                }
            }
            4 | 5 if !handles.is_empty() => {
                let gone = handles.swap_remove(c.below(handles.len()));
                let block = &mut blocks[gone.block];
                block.handles -= 1;
                if block.handles == 0 && block.alive {
                    block.alive = false;
                    frees += u64::from(block.bytes > 0);
                }
            }
            6 if !handles.is_empty() => {
                let of = &handles[c.below(handles.len())];
                let block = &mut blocks[of.block];
                assert_eq!(of.buffer.release(), block.alive && block.bytes > 0);
                frees += u64::from(block.alive && block.bytes > 0);
                block.alive = false;
                assert!(of.buffer.is_released());
            }
            7 if !handles.is_empty() => {
                let of = &handles[c.below(handles.len())];
                let words = of.buffer.download();
                assert_eq!(words.is_ok(), blocks[of.block].alive);
                if let (Ok(words), Some(x)) = (words, of.filled) {
                    assert!(words.iter().all(|w| *w == x), "somebody wrote into this block");
                }
            }
            8 => match c.below(5) {
                0 => {
                    let kept = device.memory().cached;
                    assert_eq!(device.collect().ok(), Some(kept));
                    assert_eq!(device.memory().cached, 0);
                }
                1 => {
                    limit = c.flag().then(|| c.below(65536));
                    device.limit_memory(limit);
                }
                2 => {
                    fail = c.flag().then(|| (1 + c.below(5) as u64, c.flag()));
                    device.fail_allocation(fail.map(|f| f.0), fail.is_some_and(|f| f.1));
                }
                3 => device.set_checks(c.flag()),
                _ => drop(device.memory().to_string()),
            },
            _ => {
                let (a, b) = (c.below(handles.len().max(1)), c.below(handles.len().max(1)));
                if let (Some(a), Some(b)) = (handles.get(a), handles.get(b)) {
                    assert_eq!(a.buffer.shares(&b.buffer), a.block == b.block);
                }
            }
        }
        let stats = device.memory();
        peak = peak.max(live(&blocks));
        assert_eq!((stats.live, stats.allocs, stats.frees), (live(&blocks), allocs, frees));
        assert!(stats.peak >= stats.live && stats.peak <= peak, "peak {} is not {peak}", stats.peak);
    }
    drop(handles);
    let stats = device.memory();
    assert_eq!((stats.live, stats.allocs, device.broken_guards()), (0, stats.frees, 0));
}
