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

/// Which instructions depend on which, and use which requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    /// For each instruction, all that it depends on, directly or not, as bits.
    before: Vec<Vec<u64>>,
    /// For each request, who writes and who uses it.
    users: Vec<Users>,
}

#[derive(Clone, Debug, Default)]
struct Users {
    writers: Vec<usize>,
    all: Vec<usize>,
}

impl Flow {
    /// Appends an instruction that reads and writes these requests.
    pub fn push(&mut self, reads: &[usize], writes: &[usize]) {
        let now = self.before.len();
        let most = reads.iter().chain(writes).max().map_or(0, |m| m + 1);
        self.users.resize(self.users.len().max(most), Users::default());
        let mut before = vec![0u64; now / 64 + 1];
        let waits = reads.iter().flat_map(|&r| &self.users[r].writers);
        for &m in waits.chain(writes.iter().flat_map(|&r| &self.users[r].all)) {
            before[m / 64] |= 1 << (m % 64);
            before.iter_mut().zip(&self.before[m]).for_each(|(a, b)| *a |= b);
        }
        self.before.push(before);
        writes.iter().for_each(|&r| self.users[r].writers.push(now));
        reads.iter().chain(writes).for_each(|&r| self.users[r].all.push(now));
    }

    /// Whether instruction `n` depends on all that use request `r`.
    fn is_after(&self, n: usize, r: usize) -> bool {
        let depends = |&m: &usize| self.before[n].get(m / 64).is_some_and(|bits| bits >> (m % 64) & 1 == 1);
        self.users.get(r).is_none_or(|users| users.all.iter().all(depends))
    }
}

/// Words that a block may be longer for instructions to run side by side, besides a part of its length: 32 MiB.
const ROOM: usize = 1 << 23;
const PART: usize = 32;

/// As [`place`], for a device that runs instructions side by side where their memory allows it: memory is not given on at once
/// to an instruction that does not depend on those who used it, as it would have to wait for them. It is after as many
/// instructions as there is memory for.
pub(crate) fn place_apart(requests: &[Request], flow: &Flow) -> Places {
    let close = place(requests);
    let room = close.size + close.size / PART + ROOM;
    for lag in [64, 32, 16, 8, 4, 2] {
        let apart = |a: usize, b: usize| {
            let (a, b) = if requests[a].to < requests[b].from { (a, b) } else { (b, a) };
            requests[b].from - requests[a].to <= lag && !flow.is_after(requests[b].from, a)
        };
        let places = place_with(requests, apart);
        if places.size <= room {
            return places;
        }
    }
    close
}

/// Finds places, so that requests that are needed at the same time do not overlap.
pub(crate) fn place(requests: &[Request]) -> Places {
    place_with(requests, |_, _| false)
}

/// As [`place`], and so that those do not overlap of which `apart` says so. Two ways are tried, as the best one depends on the
/// program: the largest first, and in the order of time.
fn place_with(requests: &[Request], apart: impl Fn(usize, usize) -> bool) -> Places {
    let bound = most_at_once(requests);
    let mut by_size: Vec<usize> = (0..requests.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(requests[i].size()), requests[i].from, i));
    let mut by_time: Vec<usize> = (0..requests.len()).collect();
    by_time.sort_by_key(|&i| (requests[i].from, std::cmp::Reverse(requests[i].size()), i));
    let tries = [by_size, by_time].map(|order| in_order(requests, &order, &apart));
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
fn in_order(
    requests: &[Request],
    order: &[usize],
    apart: &impl Fn(usize, usize) -> bool,
) -> (Vec<usize>, usize) {
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
            if (other.from > r.to || other.to < r.from) && !apart(i, j) {
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
    use dittograd_numerics::rng::Stream;

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

    /// A chain, beside each link of which something else is computed of it, as gradients of weights are.
    fn with_branches(links: usize, words: usize) -> (Vec<Request>, Flow) {
        let (mut requests, mut flow) = (Vec::new(), Flow::default());
        for i in 0..links {
            let now = 2 * i;
            requests.push(Request { words, from: now, to: now + 2 });
            requests.push(Request { words: words / 4, from: now + 1, to: now + 1 });
            let before: Vec<usize> = i.checked_sub(1).map(|b| 2 * b).into_iter().collect();
            flow.push(&before, &[2 * i]);
            flow.push(&[2 * i], &[2 * i + 1]);
        }
        (requests, flow)
    }

    #[test]
    fn what_is_independent_has_memory_of_its_own_where_there_is_room() {
        let overlaps = |p: &Places, r: &[Request], a: usize, b: usize| {
            p.starts[a] < p.starts[b] + r[b].words && p.starts[b] < p.starts[a] + r[a].words
        };
        // A link of the chain does not depend on the branch before it, so it must not get its memory.
        let false_waits = |p: &Places, r: &[Request]| {
            let pairs = (0..r.len()).flat_map(|a| (a + 1..r.len().min(a + 8)).map(move |b| (a, b)));
            pairs.filter(|&(a, b)| a % 2 == 1 && r[a].to < r[b].from && overlaps(p, r, a, b)).count()
        };
        let (requests, flow) = with_branches(20, 1024);
        let (close, apart) = (place(&requests), place_apart(&requests, &flow));
        assert!(false_waits(&close, &requests) > 10);
        assert_eq!(false_waits(&apart, &requests), 0);
        assert!(close.size < apart.size && apart.bound == close.bound);
        // Without room it stays as it was, or nearly.
        let (requests, flow) = with_branches(200, 1 << 26);
        let (close, apart) = (place(&requests), place_apart(&requests, &flow));
        assert!(apart.size <= close.size + close.size / PART + ROOM, "{} {}", apart.size, close.size);
        // A chain alone waits for itself: nothing is to be had by more memory.
        let chain: Vec<Request> = (0..10).map(|i| Request { words: 64, from: i, to: i + 1 }).collect();
        let mut flow = Flow::default();
        flow.push(&[], &[0]);
        (1..10).for_each(|i| flow.push(&[i - 1], &[i]));
        assert_eq!(place_apart(&chain, &flow), place(&chain));
    }

    #[test]
    fn a_chain_takes_two_places() {
        let chain: Vec<Request> = (0..10).map(|i| Request { words: 64, from: i, to: i + 1 }).collect();
        assert_eq!(place(&chain).size, 128);
        assert_eq!(place(&chain).bound, 128);
        assert_eq!(place(&[]), Places { starts: vec![], size: 0, bound: 0 });
    }

    #[test]
    fn the_better_of_two_orders_is_taken() {
        let list = |all: &[(usize, usize, usize)]| -> Vec<Request> {
            all.iter().map(|&(words, from, to)| Request { words, from, to }).collect()
        };
        // In the order of time these take 512 words, and as they are listed too.
        assert_eq!(place(&list(&[(192, 2, 3), (64, 3, 4), (256, 4, 4)])).size, 320);
        // The largest first, these take 576.
        assert_eq!(place(&list(&[(256, 3, 3), (192, 2, 5), (256, 0, 1), (128, 1, 2)])).size, 448);
    }

    #[test]
    fn memory_is_given_on_to_who_waits_anyway() {
        // Instruction 2 reads what 0 and 1 wrote; 3 reads that and depends on all, 4 on nobody.
        let mut flow = Flow::default();
        flow.push(&[], &[0]);
        flow.push(&[], &[1]);
        flow.push(&[0, 1], &[2]);
        flow.push(&[2], &[3]);
        flow.push(&[], &[4]);
        for (n, r, after) in
            [(3, 0, true), (3, 1, true), (2, 0, false), (4, 0, false), (4, 3, false), (3, 9, true)]
        {
            assert_eq!(flow.is_after(n, r), after, "{n} {r}");
        }
        // Two ways to depend on one instruction are as good as one.
        flow.push(&[2, 3], &[5]);
        assert!(flow.is_after(5, 0) && flow.is_after(5, 1) && !flow.is_after(5, 4));
        let at = |words, from, to| Request { words, from, to };
        let requests = [at(64, 0, 2), at(64, 1, 2), at(64, 2, 5), at(64, 3, 5), at(64, 4, 4), at(64, 5, 5)];
        let (close, apart) = (place(&requests), place_apart(&requests, &flow));
        // Those of 0 and 1 are free at 3, which waits for both, but 4 would have to wait for what it takes.
        assert_eq!((close.size, apart.size), (192, 256));
        assert!(apart.starts[3] < 128 && apart.starts[4] >= 128, "{apart:?}");
    }

    /// Where everything lies is the same on all machines. `DITTOGRAD_BLESS=1` accepts another plan.
    #[test]
    fn the_same_requests_have_the_same_places() {
        let mut s = Stream::new(5, 5);
        let mut lines = String::new();
        for round in 0..80 {
            // From blocks of a few words to such that there is no room to make longer.
            let unit = [1, 1 << 10, 1 << 18, 1 << 22][round % 4];
            let (mut requests, mut flow): (Vec<Request>, _) = (Vec::new(), Flow::default());
            for now in 0..s.below(150) {
                let made = requests.len();
                let reads: Vec<usize> =
                    (0..s.below(3).min(made)).map(|_| made - 1 - s.below(made.min(9))).collect();
                reads.iter().for_each(|&r| requests[r].to = now);
                requests.push(Request { words: s.below(9) * unit, from: now, to: now });
                flow.push(&reads, &[made]);
            }
            if let Some(r) = requests.first_mut() {
                r.to = usize::MAX;
            }
            for p in [place(&requests), place_apart(&requests, &flow)] {
                let hash = blake3::hash(format!("{:?}", p.starts).as_bytes()).to_hex();
                lines += &format!(
                    "{} requests: {} of {} words, {}\n",
                    requests.len(),
                    p.bound,
                    p.size,
                    &hash[..16]
                );
            }
        }
        let path = format!("{}/../../tests/snapshots/places.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("DITTOGRAD_BLESS").is_some() {
            return std::fs::write(path, lines).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), lines);
    }
}
