//! What the checks run these ops on.

use super::{Conv, ConvKernelGrad, ConvTranspose, ConvWindow, Geometry, Sizes};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, pick};
use crate::dims;
use dittograd_device::Meta;
use dittograd_device::cpu::conv::MAX_AXES;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::{K_CHUNK, Numerics};

/// Sizes that are known to be fine, for samples and rejects.
pub(super) fn sizes(of: &[usize]) -> Sizes {
    Sizes::new(of).unwrap_or(Sizes { at: [0; MAX_AXES], len: 1 })
}

pub(super) fn window(stride: &[usize], padding: &[usize], dilation: &[usize], groups: usize) -> ConvWindow {
    ConvWindow { stride: sizes(stride), padding: sizes(padding), dilation: sizes(dilation), groups }
}

/// A convolution for samples: batch (`None` for none), channels in and out, and per axis (input, kernel, stride,
/// padding, dilation).
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) batch: Option<usize>,
    pub(super) channels: [usize; 2],
    pub(super) groups: usize,
    pub(super) axes: Vec<[usize; 5]>,
    pub(super) bias: bool,
}

impl Case {
    pub(super) fn window(&self) -> ConvWindow {
        let of = |i: usize| self.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
        window(&of(2), &of(3), &of(4), self.groups)
    }
}

/// A bound for sums of `k` terms and a bias.
pub(super) fn sum_bound(k: usize) -> Bound {
    Bound { ulps: 1.0, terms: (k.min(K_CHUNK) + k / K_CHUNK + 2) as f64 }
}

impl Cases for Conv {
    fn samples() -> Vec<Sample> {
        cases().iter().flat_map(Case::convs).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Case::random(stream).convs().into_iter().last()
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |stride: usize, padding: usize, dilation: usize, groups| Conv {
            window: window(&[stride], &[padding], &[dilation], groups),
        };
        let op = w(1, 0, 1, 1);
        let two = Conv { window: window(&[1, 1], &[0, 0], &[1, 1], 1) };
        let far = u32::MAX as usize;
        vec![
            Reject::new(op, vec![f(&[2, 3, 4])], "Arity"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[2]), f(&[2])], "Arity"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[3, 2])], "Rank"),
            Reject::new(op, vec![f(&[4]), f(&[2, 3, 2])], "Rank"),
            Reject::new(op, vec![f(&[1, 1, 3, 4]), f(&[2, 3, 2])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 2, 2])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[3])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[2, 1])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), Meta::u32(dims(&[2, 3, 2]))], "DType"),
            // A kernel larger than the padded input, or of no size, or windows that do not move.
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 5])], "Argument"),
            Reject::new(w(1, 1, 2, 1), vec![f(&[2, 3, 4]), f(&[2, 3, 4])], "Argument"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 0])], "Argument"),
            Reject::new(op, vec![f(&[2, 3, 0]), f(&[2, 3, 1])], "Argument"),
            Reject::new(w(0, 0, 1, 1), vec![f(&[2, 3, 4]), f(&[2, 3, 2])], "Argument"),
            Reject::new(w(1, 0, 0, 1), vec![f(&[2, 3, 4]), f(&[2, 3, 2])], "Argument"),
            Reject::new(w(1, 0, 1, 0), vec![f(&[2, 3, 4]), f(&[2, 3, 2])], "Argument"),
            Reject::new(w(1, 0, 1, 2), vec![f(&[2, 3, 4]), f(&[2, 1, 2])], "Argument"),
            Reject::new(w(1, 0, 1, 3), vec![f(&[2, 3, 4]), f(&[2, 1, 2])], "Argument"),
            Reject::new(w(1, far, 1, 1), vec![f(&[2, 3, 4]), f(&[2, 3, 2])], "Argument"),
            Reject::new(w(1, 0, far, 1), vec![f(&[2, 3, 4]), f(&[2, 3, 3])], "Argument"),
            Reject::new(two, vec![f(&[2, 3, 4]), f(&[2, 3, 2])], "Argument"),
            Reject::new(
                Conv { window: window(&[1, 1], &[1 << 20, 1 << 20], &[1, 1], 1) },
                vec![f(&[1, 1, 4, 4]), f(&[1, 1, 1, 1])],
                "TooLarge",
            ),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // In the images and in the kernel, a bias going with either.
        match ins.len() {
            3 => vec![vec![0, 2], vec![1, 2]],
            _ => vec![vec![0], vec![1]],
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(g.channels_in * g.taps()))
    }

    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let g = self.of(ins).ok()?;
        Some((g.forward_digits(numerics)?, g.channels_in * g.taps()))
    }
}

impl Cases for ConvTranspose {
    fn samples() -> Vec<Sample> {
        cases().iter().flat_map(Case::transposes).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Case::random(stream).transposes().into_iter().last()
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |stride: usize, padding: usize, size: usize, groups| ConvTranspose {
            window: window(&[stride], &[padding], &[1], groups),
            size: sizes(&[size]),
        };
        let op = w(2, 0, 8, 1);
        let y = f(&[2, 3, 4]);
        vec![
            Reject::new(op, vec![y], "Arity"),
            Reject::new(op, vec![y, f(&[3, 2])], "Rank"),
            Reject::new(op, vec![f(&[1, 2, 3, 4]), f(&[3, 2, 2])], "Rank"),
            Reject::new(op, vec![y, f(&[2, 2, 2])], "Shapes"),
            Reject::new(op, vec![y, f(&[3, 2, 2]), f(&[3])], "Shapes"),
            Reject::new(op, vec![y, Meta::u32(dims(&[3, 2, 2]))], "DType"),
            // Sizes whose convolution is not the input: one too few, and an output padding of a whole stride.
            Reject::new(w(2, 0, 7, 1), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(2, 0, 10, 1), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(2, 5, 0, 1), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(0, 0, 8, 1), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(2, 0, 8, 2), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(2, 0, 8, usize::MAX), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(w(2, 0, 8, 0), vec![y, f(&[3, 2, 2])], "Argument"),
            Reject::new(ConvTranspose { size: sizes(&[8, 8]), ..op }, vec![y, f(&[3, 2, 2])], "Argument"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // In the images and in the kernel, a bias going with either.
        match ins.len() {
            3 => vec![vec![0, 2], vec![1, 2]],
            _ => vec![vec![0], vec![1]],
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(g.channels_out * g.taps()))
    }

    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let g = self.of(ins).ok()?;
        Some((g.transposed_digits(numerics)?, g.channels_out * g.taps()))
    }
}

impl Cases for ConvKernelGrad {
    fn samples() -> Vec<Sample> {
        cases().iter().flat_map(Case::kernel_grads).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Case::random(stream).kernel_grads().into_iter().last()
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |size: &[usize], groups| ConvKernelGrad {
            window: window(&[1], &[0], &[1], groups),
            size: sizes(size),
        };
        let op = w(&[2], 1);
        vec![
            Reject::new(op, vec![f(&[2, 3, 4])], "Arity"),
            Reject::new(op, vec![f(&[2, 3, 3]), f(&[2, 3, 4]), f(&[2])], "Arity"),
            Reject::new(op, vec![f(&[3]), f(&[2, 3, 4])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 3]), f(&[4])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 3]), f(&[1, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[3, 3]), f(&[2, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 3]), Meta::u32(dims(&[2, 3, 4]))], "DType"),
            Reject::new(w(&[5], 1), vec![f(&[2, 3, 1]), f(&[2, 3, 4])], "Argument"),
            Reject::new(w(&[0], 1), vec![f(&[2, 3, 5]), f(&[2, 3, 4])], "Argument"),
            Reject::new(w(&[2], 2), vec![f(&[2, 3, 3]), f(&[2, 3, 4])], "Argument"),
            Reject::new(w(&[2, 2], 1), vec![f(&[2, 3, 3]), f(&[2, 3, 4])], "Argument"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(g.images() * g.outputs()))
    }

    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let g = self.of(ins).ok()?;
        Some((g.kernel_grad_digits(numerics)?, g.images() * g.outputs()))
    }
}

impl Case {
    /// Shapes of x, w, y and a bias for each side.
    pub(super) fn shapes(&self) -> Option<[Shape; 5]> {
        let of = |i: usize| self.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
        let g = Geometry::new("conv", &self.window(), self.batch, self.channels, &of(0), &of(1)).ok()?;
        let shapes = [g.input_shape(), g.kernel_shape(), g.output_shape()].map(Result::ok);
        let [x, w, y] = [shapes[0]?, shapes[1]?, shapes[2]?];
        Some([x, w, y, dims(&self.channels[1..]), dims(&self.channels[..1])])
    }

    pub(super) fn convs(&self) -> Vec<Sample> {
        let with = |[x, w, _, b, _]: [Shape; 5]| {
            let ins = [x, w, b].map(SampleIn::any)[..2 + usize::from(self.bias)].to_vec();
            Sample::new(Conv { window: self.window() }, ins)
        };
        self.shapes().map(with).into_iter().collect()
    }

    pub(super) fn transposes(&self) -> Vec<Sample> {
        let size = sizes(&self.axes.iter().map(|a| a[0]).collect::<Vec<_>>());
        let with = |[_, w, y, _, b]: [Shape; 5]| {
            let ins = [y, w, b].map(SampleIn::any)[..2 + usize::from(self.bias)].to_vec();
            Sample::new(ConvTranspose { window: self.window(), size }, ins)
        };
        self.shapes().map(with).into_iter().collect()
    }

    pub(super) fn kernel_grads(&self) -> Vec<Sample> {
        let size = sizes(&self.axes.iter().map(|a| a[1]).collect::<Vec<_>>());
        let with = |[x, _, y, _, _]: [Shape; 5]| {
            let ins = [y, x].map(SampleIn::any).to_vec();
            Sample::new(ConvKernelGrad { window: self.window(), size }, ins)
        };
        self.shapes().map(with).into_iter().collect()
    }

    /// A small random one: all kinds of windows, channels around the edges of tiles.
    pub(super) fn random(stream: &mut Stream) -> Case {
        loop {
            let rank = 1 + stream.below(3);
            let groups = pick(&[1, 1, 1, 2, 3, 16], stream);
            let most: &[usize] = if groups > 3 { &[1, 2] } else { &[1, 2, 3, 5, 8, 15, 17, 33, 65] };
            let channels = [groups * pick(most, stream), groups * pick(most, stream)];
            let axes: Vec<[usize; 5]> = (0..rank)
                .map(|_| {
                    let input =
                        pick(if rank == 1 { &[1, 9, 31, 64, 130] } else { &[1, 2, 4, 7, 8, 16, 19] }, stream);
                    let kernel = pick(&[1, 2, 3, 3, 5, 7], stream);
                    let stride = pick(&[1, 1, 2, 3], stream);
                    [input, kernel, stride, stream.below(kernel + 1), pick(&[1, 1, 2], stream)]
                })
                .collect();
            let batch = [None, Some(1), Some(2), Some(5)][stream.below(4)];
            let case = Case { batch, channels, groups, axes, bias: stream.below(2) == 0 };
            let Some([x, w, y, ..]) = case.shapes() else { continue };
            let work = y.numel() * w.numel() / (channels[1].max(1));
            if x.numel().max(y.numel()).max(w.numel()) <= 20_000 && work <= 600_000 {
                return case;
            }
        }
    }
}

/// What all three ops are sampled on: a plain case of each kind, nothing at all, one of everything, sums of
/// more than a chunk along each of the three sums, tile edges, and each rank.
pub(super) fn cases() -> Vec<Case> {
    let case = |batch, channels, groups, axes: &[[usize; 5]], bias| Case {
        batch,
        channels,
        groups,
        axes: axes.to_vec(),
        bias,
    };
    vec![
        case(None, [1, 1], 1, &[[5, 3, 1, 1, 1]], false),
        case(None, [2, 3], 1, &[[7, 3, 2, 1, 1]], true),
        case(Some(2), [3, 4], 1, &[[6, 3, 1, 1, 1], [5, 3, 1, 1, 1]], true),
        case(Some(2), [4, 6], 2, &[[7, 3, 2, 1, 1], [8, 2, 3, 0, 1]], false),
        // A pixel each, and taps that skip, which with a stride reach some positions not at all.
        case(Some(3), [5, 2], 1, &[[4, 1, 1, 0, 1], [4, 1, 1, 0, 1]], true),
        case(Some(1), [2, 2], 1, &[[9, 2, 2, 0, 2], [9, 3, 3, 2, 2]], true),
        case(Some(2), [2, 3], 1, &[[7, 2, 3, 1, 1]], true),
        case(Some(1), [1, 2], 1, &[[10, 3, 2, 3, 4]], false),
        // Padding wider than the kernel.
        case(Some(1), [1, 1], 1, &[[2, 1, 1, 2, 1], [1, 2, 2, 3, 1]], true),
        // Channels alone.
        case(Some(2), [6, 6], 6, &[[6, 3, 1, 1, 1], [7, 3, 1, 1, 1]], true),
        case(Some(1), [4, 8], 4, &[[6, 3, 2, 1, 1], [5, 3, 2, 1, 1]], false),
        case(Some(2), [17, 17], 17, &[[17, 3, 1, 1, 1]], true),
        case(Some(1), [10, 5], 5, &[[6, 3, 1, 2, 2], [7, 2, 2, 3, 1]], true),
        case(Some(1), [4, 4], 4, &[[3, 2, 1, 0, 1], [4, 3, 2, 1, 1], [5, 3, 1, 1, 1]], false),
        case(Some(2), [4, 4], 4, &[[23, 3, 1, 1, 1], [33, 3, 1, 1, 1]], false),
        // Nothing of one kind or the other.
        case(Some(0), [2, 3], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(2), [0, 3], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(2), [2, 0], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(1), [1, 1], 1, &[[0, 2, 1, 1, 1]], true),
        // Three to eight axes.
        case(Some(1), [2, 3], 1, &[[3, 2, 1, 0, 1], [4, 3, 2, 1, 1], [5, 2, 1, 1, 2]], true),
        case(Some(1), [1, 2], 1, &[[2, 2, 1, 1, 1], [3, 2, 2, 0, 1], [2, 1, 1, 0, 1], [4, 3, 1, 1, 1]], true),
        case(
            None,
            [2, 1],
            1,
            &[[2, 1, 1, 0, 1], [2, 2, 1, 0, 1], [2, 1, 1, 0, 1], [2, 2, 1, 1, 1], [3, 2, 2, 0, 1]],
            false,
        ),
        case(
            Some(1),
            [1, 2],
            1,
            &[
                [2, 2, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 1, 1],
                [2, 1, 2, 0, 1],
                [3, 2, 1, 0, 1],
            ],
            true,
        ),
        case(
            Some(2),
            [2, 2],
            2,
            &[
                [2, 2, 1, 1, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [3, 2, 2, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 0, 1],
                [2, 1, 1, 0, 1],
            ],
            true,
        ),
        case(
            Some(1),
            [2, 1],
            1,
            &[
                [2, 2, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [2, 2, 2, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 1, 1],
                [3, 2, 1, 0, 2],
                [2, 2, 1, 0, 1],
            ],
            true,
        ),
        // As many taps along one of eight axes as are still few.
        case(
            Some(1),
            [1, 1],
            1,
            &[
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [33, 30, 1, 2, 1],
            ],
            false,
        ),
        // FusedCode tiles of both devices.
        case(Some(1), [3, 33], 1, &[[9, 3, 1, 1, 1], [17, 3, 1, 1, 1]], true),
        case(Some(3), [17, 15], 1, &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]], true),
        case(Some(2), [4, 65], 1, &[[8, 1, 1, 0, 1], [8, 1, 1, 0, 1]], false),
        case(Some(1), [2, 3], 1, &[[1, 1, 1, 0, 1], [133, 4, 1, 2, 1]], true),
        // More than a chunk: of channels and taps either way, of positions, and of images.
        case(Some(1), [119, 2], 1, &[[3, 3, 1, 1, 1], [4, 3, 1, 1, 1]], true),
        case(Some(1), [2, 119], 1, &[[3, 3, 1, 1, 1], [4, 3, 2, 1, 1]], true),
        case(Some(1), [1, 2], 1, &[[34, 3, 1, 1, 1], [33, 3, 1, 1, 1]], false),
        case(Some(43), [2, 3], 1, &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]], false),
    ]
}
