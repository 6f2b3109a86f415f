//! The memory plan: every computed value and workspace gets a place in one block, by lifetimes.

/// Words between places: 256 bytes, so that vector loads and the GPU see aligned addresses.
const ALIGN: usize = 64;

/// Words that are needed from one instruction to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub words: usize,
    pub from: usize,
    pub to: usize,
}

impl Request {
    fn size(&self) -> usize {
        self.words.div_ceil(ALIGN) * ALIGN
    }
}

/// Where everything lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Where each request starts.
    pub starts: Vec<usize>,
    /// Words of the block.
    pub size: usize,
    /// Words that are needed at the same time, at the worst instruction: no plan can do with less.
    pub bound: usize,
}

/// Finds places, so that requests that are needed at the same time do not overlap. Two ways are tried, as the best one
/// depends on the program: the largest first, and in the order of time.
pub(crate) fn place(requests: &[Request]) -> Places {
    let bound = most_at_once(requests);
    let mut by_size: Vec<usize> = (0..requests.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(requests[i].size()), requests[i].from, i));
    let mut by_time: Vec<usize> = (0..requests.len()).collect();
    by_time.sort_by_key(|&i| (requests[i].from, std::cmp::Reverse(requests[i].size()), i));
    let tries = [by_size, by_time].map(|order| in_order(requests, &order));
    let [first, second] = tries;
    let (starts, size) = if second.1 < first.1 { second } else { first };
    Places { starts, size, bound }
}

/// The most words that are needed at the same time.
fn most_at_once(requests: &[Request]) -> usize {
    let mut changes: Vec<(usize, isize)> = Vec::new();
    for r in requests {
        changes.push((r.from, r.size() as isize));
        changes.push((r.to.saturating_add(1), -(r.size() as isize)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    most as usize
}

/// Gives each request, in this order, the lowest place that is free all its time.
fn in_order(requests: &[Request], order: &[usize]) -> (Vec<usize>, usize) {
    let mut starts = vec![0; requests.len()];
    // What has a place, by where it starts.
    let mut placed: Vec<usize> = Vec::new();
    let mut size = 0;
    for &i in order {
        let r = requests[i];
        if r.words == 0 {
            continue;
        }
        let mut at = 0;
        for &j in &placed {
            let other = requests[j];
            if other.from > r.to || other.to < r.from {
                continue;
            }
            if starts[j] >= at + r.size() {
                break;
            }
            at = at.max(starts[j] + other.size());
        }
        starts[i] = at;
        size = size.max(at + r.size());
        let position = placed.partition_point(|&j| starts[j] < at);
        placed.insert(position, i);
    }
    (starts, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::rng::Stream;

    #[test]
    fn places_that_are_needed_together_never_overlap() {
        let mut s = Stream::new(1, 1);
        for round in 0..200 {
            let requests: Vec<Request> = (0..s.below(80))
                .map(|_| {
                    let from = s.below(50);
                    let to = if s.below(9) == 0 { usize::MAX } else { from + s.below(20) };
                    Request { words: s.below(1000), from, to }
                })
                .collect();
            let p = place(&requests);
            assert!(p.bound <= p.size && p.size <= requests.iter().map(Request::size).sum());
            for (i, a) in requests.iter().enumerate().filter(|(_, a)| a.words > 0) {
                assert_eq!(p.starts[i] % ALIGN, 0);
                assert!(p.starts[i] + a.words <= p.size);
                for (j, b) in requests.iter().enumerate().filter(|(j, b)| *j != i && b.words > 0) {
                    let apart = p.starts[i] + a.words <= p.starts[j] || p.starts[j] + b.words <= p.starts[i];
                    assert!(apart || a.to < b.from || b.to < a.from, "round {round}: {a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn a_chain_takes_two_places() {
        let chain: Vec<Request> = (0..10).map(|i| Request { words: 64, from: i, to: i + 1 }).collect();
        assert_eq!(place(&chain).size, 128);
        assert_eq!(place(&chain).bound, 128);
        assert_eq!(place(&[]), Places { starts: vec![], size: 0, bound: 0 });
    }
}
