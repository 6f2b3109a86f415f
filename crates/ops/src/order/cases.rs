//! What the checks run these ops on.

use super::{ArgSort, RunningExtremum, SearchSorted, TopK};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims, sample};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

/// Shapes around the edges of what a warp, a block, a task and the ways of the kernels take.
const SHAPES: [&[usize]; 15] = [
    &[0],
    &[1],
    &[7],
    &[3, 0],
    &[0, 4],
    &[5, 33],
    &[2, 3, 64],
    &[300, 5],
    &[4, 513],
    &[3, 1024],
    &[2, 1025],
    &[3, 4096],
    &[2, 4097],
    &[20_000],
    &[40_000],
];

fn rejects_of_lines(op: impl Into<crate::AnyOp> + Copy) -> Vec<Reject> {
    let (f, u) = (Meta::f32(dims(&[3])), Meta::u32(dims(&[3])));
    vec![
        Reject::new(op, vec![], "Arity"),
        Reject::new(op, vec![f, f], "Arity"),
        Reject::new(op, vec![u], "DType"),
        Reject::new(op, vec![Meta::f32(dims(&[]))], "Rank"),
        Reject::new(op, vec![Meta::f32(dims(&[0, u32::MAX as usize]))], "Argument"),
    ]
}

impl Cases for ArgSort {
    fn samples() -> Vec<Sample> {
        let both = |d| [false, true].map(|descending| sample(ArgSort { descending }, &[d]));
        SHAPES.into_iter().flat_map(both).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(sample(ArgSort { descending: stream.below(2) == 0 }, &[&lines(stream)]))
    }

    fn rejects() -> Vec<Reject> {
        rejects_of_lines(ArgSort { descending: false })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

/// A random shape, with its longest axis last where that is a long one.
fn lines(stream: &mut Stream) -> Vec<usize> {
    let mut d = edge_dims(1, 3, stream);
    if d[0] > 100_000 {
        d.reverse();
    }
    d
}

impl Cases for TopK {
    fn samples() -> Vec<Sample> {
        let each = |d: &'static [usize]| {
            let n = d[d.len() - 1];
            let counts = [0, 1, 10, 65, n / 2, n];
            counts
                .into_iter()
                .filter(move |k| *k <= n)
                .enumerate()
                .map(move |(i, k)| sample(TopK { k, largest: i % 2 == 0 }, &[d]))
        };
        let mut all: Vec<Sample> = SHAPES.into_iter().flat_map(each).collect();
        all.push(sample(TopK { k: 10, largest: true }, &[&[3, 32_000]]));
        all.extend([10, 2000].map(|k| sample(TopK { k, largest: true }, &[&[131_073]])));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let d = lines(stream);
        let n = d[d.len() - 1];
        let most = if stream.below(2) == 0 { n.min(20) } else { n };
        let k = stream.below(most + 1);
        Some(sample(TopK { k, largest: stream.below(2) == 0 }, &[&d]))
    }

    fn rejects() -> Vec<Reject> {
        let mut all = rejects_of_lines(TopK { k: 1, largest: true });
        all.push(Reject::new(TopK { k: 4, largest: true }, vec![Meta::f32(dims(&[2, 3]))], "Argument"));
        all
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for RunningExtremum {
    fn samples() -> Vec<Sample> {
        let both = |d| [false, true].map(|largest| sample(RunningExtremum { largest }, &[d]));
        SHAPES.into_iter().flat_map(both).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(sample(RunningExtremum { largest: stream.below(2) == 0 }, &[&lines(stream)]))
    }

    fn rejects() -> Vec<Reject> {
        rejects_of_lines(RunningExtremum { largest: true })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for SearchSorted {
    fn samples() -> Vec<Sample> {
        let shapes: [(&[usize], &[usize]); 11] = [
            (&[0], &[3]),
            (&[1], &[]),
            (&[5], &[7]),
            (&[8], &[2, 9]),
            (&[33], &[5, 4, 3]),
            (&[3, 8], &[3, 5]),
            (&[2, 3, 1], &[2, 3, 40]),
            (&[2, 0], &[2, 3]),
            (&[4, 5], &[4, 0]),
            (&[1000], &[3000]),
            (&[2, 5000], &[2, 3000]),
        ];
        let both =
            |(lists, values)| [false, true].map(|right| sample(SearchSorted { right }, &[lists, values]));
        shapes.into_iter().flat_map(both).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let values = edge_dims(1, 3, stream);
        let mut lists = values.clone();
        let last = lists.len() - 1;
        lists[last] = 1 + stream.below(200);
        if stream.below(2) == 0 || lists.iter().product::<usize>() > crate::cases::VOLUME {
            lists = vec![lists[last]];
        }
        let ins = vec![SampleIn::any(dims(&lists)), SampleIn::any(dims(&values))];
        Some(Sample::new(SearchSorted { right: stream.below(2) == 0 }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = SearchSorted { right: false };
        vec![
            Reject::new(op, vec![f(&[3])], "Arity"),
            Reject::new(op, vec![f(&[3]), u(&[3])], "DType"),
            Reject::new(op, vec![u(&[3]), f(&[3])], "DType"),
            Reject::new(op, vec![f(&[]), f(&[3])], "Rank"),
            Reject::new(op, vec![f(&[2, 3]), f(&[3, 3])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3]), f(&[3])], "Shapes"),
            Reject::new(op, vec![f(&[0, u32::MAX as usize]), f(&[0, 3])], "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}
