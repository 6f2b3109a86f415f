//! Convolutions in modes `fast` and `turbo`: the contract once more, by plain loops, and the bits of every way to compute it.

use crate::support::{device, f, fractions};
use dittograd::device::AnyBuffer;
use dittograd::device::cpu::simd::Simd;
use dittograd::device::cuda::Cuda;
use dittograd::device::cuda::fake::Fake;
use dittograd::graph::{Graph, Passes};
use dittograd::nn;
use dittograd::numerics::Numerics;
use dittograd::numerics::digits::{self, Digits, exponent, finish, magnitude, term};
use dittograd::numerics::rng::Stream;
use dittograd::ops::conv::{Conv, ConvKernelGrad, ConvTranspose, ConvWindow, Sizes};
use dittograd::ops::{self, AnyOp, AnyTensor};
use dittograd::prelude::*;

const MODES: [(Numerics, Digits); 2] = [(Numerics::Fast, Digits::Three), (Numerics::Turbo, Digits::Two)];

/// A convolution: images, groups, channels of a group in and out, and of each axis its size, kernel, stride, padding and dilation.
struct Case {
    images: usize,
    groups: usize,
    channels: [usize; 2],
    axes: &'static [[usize; 5]],
}

const fn case(images: usize, groups: usize, channels: [usize; 2], axes: &'static [[usize; 5]]) -> Case {
    Case { images, groups, channels, axes }
}

/// Strides, padding, dilation, groups, one to three axes, channels and positions around the edges of tiles, several runs of images,
/// and images of more than a run.
const CASES: [Case; 29] = [
    case(2, 1, [33, 34], &[[9, 3, 1, 1, 1], [17, 3, 1, 1, 1]]),
    case(3, 1, [64, 64], &[[8, 3, 1, 1, 1], [8, 3, 1, 1, 1]]),
    case(2, 1, [5, 65], &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]]),
    case(1, 1, [70, 31], &[[12, 5, 1, 0, 1], [13, 3, 1, 2, 1]]),
    case(2, 1, [20, 18], &[[13, 3, 2, 1, 1], [14, 4, 3, 2, 1]]),
    case(2, 1, [17, 16], &[[15, 3, 1, 2, 2], [16, 2, 2, 3, 3]]),
    case(2, 3, [16, 15], &[[6, 3, 1, 1, 1], [11, 3, 1, 1, 1]]),
    case(3, 2, [7, 40], &[[10, 1, 1, 0, 1], [10, 1, 1, 0, 1]]),
    case(2, 1, [40, 24], &[[131, 7, 1, 3, 1]]),
    case(1, 2, [12, 9], &[[300, 4, 3, 5, 2]]),
    case(1, 1, [9, 10], &[[5, 3, 1, 1, 1], [6, 2, 2, 0, 1], [7, 3, 1, 1, 2]]),
    case(5, 1, [6, 8], &[[32, 3, 1, 1, 1], [32, 3, 1, 1, 1]]),
    case(1, 1, [6, 5], &[[50, 3, 1, 1, 1], [47, 3, 1, 1, 1]]),
    // Taps that skip, so that some positions are reached by none.
    case(2, 1, [8, 8], &[[21, 2, 2, 0, 2], [9, 3, 3, 2, 2]]),
    // Strides whose classes of positions are computed together, and such that have too many classes or axes.
    case(3, 1, [70, 66], &[[12, 3, 2, 1, 1], [8, 3, 2, 1, 1]]),
    case(2, 2, [20, 34], &[[60, 5, 3, 2, 1]]),
    case(2, 1, [17, 18], &[[12, 4, 3, 1, 1], [9, 3, 3, 0, 1]]),
    case(1, 1, [9, 10], &[[4, 3, 2, 1, 1], [6, 2, 2, 0, 1], [8, 3, 2, 1, 1]]),
    // Taps that read lines of multiples of four: whole ones, few and many.
    case(2, 1, [20, 33], &[[10, 3, 1, 0, 1], [16, 3, 1, 0, 1]]),
    case(2, 1, [18, 20], &[[6, 2, 1, 1, 1], [20, 8, 1, 5, 1]]),
    case(2, 1, [18, 20], &[[44, 9, 1, 4, 1]]),
    // Single taps that skip, of lines that fill 16 places and of such that do not.
    case(2, 1, [20, 70], &[[14, 1, 2, 0, 1], [14, 1, 2, 0, 1]]),
    case(2, 1, [20, 33], &[[9, 1, 3, 0, 1], [33, 1, 2, 0, 1]]),
    case(3, 1, [12, 17], &[[8, 1, 2, 1, 1], [10, 3, 2, 1, 1]]),
    // Every other element of whole lines, with taps between and without.
    case(2, 1, [18, 20], &[[5, 3, 2, 1, 1], [28, 3, 2, 1, 1]]),
    case(2, 1, [20, 33], &[[6, 1, 2, 0, 1], [28, 1, 2, 0, 1]]),
    case(2, 1, [9, 34], &[[5, 2, 2, 0, 1], [35, 2, 2, 0, 1]]),
    // Rows of a transposed kernel that are long: two together, and one alone.
    case(1, 1, [21, 1056], &[[3, 1, 1, 0, 1], [2, 1, 1, 0, 1]]),
    case(1, 1, [19, 90], &[[6, 5, 1, 2, 1], [5, 5, 1, 2, 1]]),
];

impl Case {
    fn size(&self, of: fn(&[usize; 5]) -> usize) -> Vec<usize> {
        self.axes.iter().map(of).collect()
    }

    fn window(&self) -> ConvWindow {
        let of = |i: usize| Sizes::new(&self.axes.iter().map(|a| a[i]).collect::<Vec<_>>()).unwrap();
        ConvWindow { stride: of(2), padding: of(3), dilation: of(4), groups: self.groups }
    }

    /// Dimensions of input, kernel and output.
    fn dims(&self) -> [Vec<usize>; 3] {
        let [a, c] = self.channels;
        let output = |l: &[usize; 5]| (l[0] + 2 * l[3] - (l[1] - 1) * l[4] - 1) / l[2] + 1;
        [
            [vec![self.images, self.groups * a], self.size(|l| l[0])].concat(),
            [vec![self.groups * c, a], self.size(|l| l[1])].concat(),
            [vec![self.images, self.groups * c], self.size(output)].concat(),
        ]
    }

    /// The operations, and which of (input, kernel, output) they read: the first two of each, and make: the third.
    fn ops(&self) -> [(AnyOp, [usize; 3]); 3] {
        let (window, sizes) = (self.window(), |of| Sizes::new(&self.size(of)).unwrap());
        [
            (Conv { window }.into(), [0, 1, 2]),
            (ConvTranspose { window, size: sizes(|l| l[0]) }.into(), [2, 1, 0]),
            (ConvKernelGrad { window, size: sizes(|l| l[1]) }.into(), [2, 0, 1]),
        ]
    }

    /// Calls `f` with the places in input, kernel and output of every product.
    fn products(&self, mut f: impl FnMut([usize; 3])) {
        let [x, w, y] = self.dims().map(|d| d[2..].iter().product::<usize>());
        let mut inside = Vec::new();
        meet(self.axes, &self.dims()[2][2..], [0; 3], &mut inside);
        let [a, c] = self.channels;
        for image in 0..self.images {
            for group in 0..self.groups {
                for (a_, c_) in (0..a).flat_map(|i| (0..c).map(move |o| (i, o))) {
                    let from = [
                        ((image * self.groups + group) * a + a_) * x,
                        ((group * c + c_) * a + a_) * w,
                        ((image * self.groups + group) * c + c_) * y,
                    ];
                    inside.iter().for_each(|at| f([0, 1, 2].map(|i| from[i] + at[i])));
                }
            }
        }
    }

    /// What shares a scale with element `at` of operand `operand` in the sums of op `op`: the number of the scale.
    fn scale(&self, op: usize, operand: usize, at: usize) -> usize {
        let dims = self.dims();
        let plane = dims[operand][2..].iter().product::<usize>();
        let ([a, c], g) = (self.channels, self.groups);
        let run = digits::conv_run(dims[2][2..].iter().product());
        let (line, channels) = (at / plane, if operand == 0 { a } else { c });
        match (op, operand) {
            (0, 1) => line / a,
            (1, 1) => line / a / c * a + line % a,
            (2, _) => line / (g * channels) / run * g * channels + line % (g * channels),
            _ => line / channels,
        }
    }

    /// The value of an op by the contract.
    fn reference(&self, which: Digits, op: usize, ins: [&Tensor; 2], bias: Option<&Tensor>) -> Vec<f32> {
        let [first, second, out] = self.ops()[op].1;
        let dims = self.dims();
        let operands = [first, second].map(|o| (o, ins[usize::from(o != first)].data()));
        let scales = operands.map(|(operand, data)| {
            let mut largest = std::collections::BTreeMap::new();
            for (at, x) in data.iter().enumerate() {
                let max: &mut u32 = largest.entry(self.scale(op, operand, at)).or_default();
                *max = (*max).max(magnitude(*x));
            }
            largest
                .into_iter()
                .map(|(scale, max)| (scale, exponent(max)))
                .collect::<std::collections::BTreeMap<_, _>>()
        });
        let integers = [0, 1].map(|i| {
            let (operand, data) = operands[i];
            let scale = |at| scales[i][&self.scale(op, operand, at)].map_or(0.0, |e| which.scale(e));
            data.iter().enumerate().map(|(at, x)| Digits::integer(*x, scale(at))).collect::<Vec<_>>()
        });
        let runs =
            if op == 2 { self.images.div_ceil(digits::conv_run(dims[2][2..].iter().product())) } else { 1 };
        let image = [0, 2].map(|i| dims[i][1..].iter().product::<usize>());
        let len = dims[out].iter().product::<usize>();
        let mut sum = vec![0.0; len];
        for run in 0..runs {
            let size = digits::conv_run(dims[2][2..].iter().product());
            let mut totals = vec![0i64; len];
            // Any element of either operand that an output of this run sums says what its scales are.
            let mut met = vec![None; len];
            self.products(|at| {
                if op == 2 && at[2] / image[1] / size != run {
                    return;
                }
                totals[at[out]] += term(which, integers[0][at[first]], integers[1][at[second]]);
                met[at[out]] = Some([at[first], at[second]]);
            });
            for (at, sum) in sum.iter_mut().enumerate() {
                let e = match met[at] {
                    Some(met) => [0, 1].map(|i| scales[i][&self.scale(op, [first, second][i], met[i])]),
                    None => self.scales_of_padding(op, out, at, run, &scales),
                };
                let result = match e {
                    [Some(ea), Some(eb)] => finish(totals[at], which.total_exponent(ea, eb)),
                    _ => f32::NAN,
                };
                *sum = if run == 0 { result } else { *sum + result };
            }
        }
        let plane = dims[out][2..].iter().product::<usize>();
        for (at, y) in sum.iter_mut().enumerate() {
            *y += bias.map_or(-0.0, |bias| bias.data()[at / plane % dims[out][1]]);
        }
        sum
    }

    /// The scales of an output that only meets padding. One that no tap reaches because of the stride is a sum of nothing.
    fn scales_of_padding(
        &self,
        op: usize,
        out: usize,
        at: usize,
        run: usize,
        scales: &[std::collections::BTreeMap<usize, Option<i32>>; 2],
    ) -> [Option<i32>; 2] {
        let dims = self.dims();
        let plane = dims[out][2..].iter().product::<usize>();
        let ([a, c], g, line) = (self.channels, self.groups, at / plane);
        let mut rest = at % plane;
        let is_reached = self.axes.iter().rev().all(|l| {
            let x = rest % l[0];
            rest /= l[0];
            op != 1 || (0..l[1]).any(|t| (x + l[3]).abs_diff(t * l[4]).is_multiple_of(l[2]))
        });
        if !is_reached {
            return [Some(0); 2];
        }
        let of = match op {
            0 => [line / c, line % (g * c)],
            1 => [line / a, line % (g * a)],
            _ => [run * g * c + line / a, run * g * a + line / a / c * a + line % a],
        };
        [0, 1].map(|i| scales[i][&of[i]])
    }

    /// Inputs; with `odd`, some images and channels are of zeros, huge, tiny or not finite.
    fn draw(&self, odd: bool, seed: u64) -> [Tensor; 3] {
        let mut stream = Stream::new(seed, 0);
        [0, 1, 2].map(|i| {
            let dims = self.dims();
            let plane = dims[i][2..].iter().product::<usize>();
            let shape = Shape::new(&dims[i]).unwrap();
            Tensor::from_fn(shape, |at| {
                let line = at / plane;
                let factor = match line % 23 {
                    _ if !odd => 1.0,
                    3 => 0.0,
                    6 => 1e20,
                    7 => 1e-30,
                    11 if i == 1 && at % plane == 0 => f32::NAN,
                    4 if i != 1 && line < dims[i][1] && at % plane == 1 => f32::INFINITY,
                    _ => 1.0,
                };
                stream.range(-1.0, 1.0) * factor
            })
        })
    }
}

/// The places inside a channel of input, kernel and output that meet.
fn meet(axes: &[[usize; 5]], outputs: &[usize], at: [usize; 3], all: &mut Vec<[usize; 3]>) {
    let Some((l, rest)) = axes.split_first() else { return all.push(at) };
    for (o, t) in (0..outputs[0]).flat_map(|o| (0..l[1]).map(move |t| (o, t))) {
        let i = o * l[2] + t * l[4];
        if i >= l[3] && i - l[3] < l[0] {
            meet(
                rest,
                &outputs[1..],
                [at[0] * l[0] + i - l[3], at[1] * l[1] + t, at[2] * outputs[0] + o],
                all,
            );
        }
    }
}

fn run(device: &Device, op: &AnyOp, ins: &[&Tensor]) -> Vec<f32> {
    let ins: Vec<AnyBuffer> = ins.iter().map(|t| AnyBuffer::upload(device, t).unwrap()).collect();
    ops::apply(device, op, &ins.iter().collect::<Vec<_>>()).unwrap().buffer().download().unwrap()
}

fn same(got: &[f32], want: &[f32], what: &str) {
    let differs = |(a, b): (&f32, &f32)| !dittograd::numerics::same_bits(*a, *b);
    let first = got.iter().zip(want).position(differs);
    let values = first.map(|at| (got[at], want[at]));
    assert!(got.len() == want.len() && first.is_none(), "{what}: output {first:?}: {values:?}");
}

/// CPUs of every level and some numbers of threads, and a GPU if there is one.
fn devices() -> (Option<impl Drop>, Vec<Device>) {
    digits::include_small_products();
    let (turn, gpu) = dittograd_check::gpu().unzip();
    let levels = Simd::all_available().into_iter().enumerate();
    let cpus = levels.map(|(i, simd)| Device::cpu_with([1, 3, 2][i % 3], simd).unwrap());
    (turn, cpus.chain(gpu).collect())
}

#[test]
fn they_are_those_of_the_contract() {
    let (_turn, devices) = devices();
    for (number, case) in CASES.iter().enumerate() {
        for odd in [false, true] {
            let tensors = case.draw(odd, number as u64);
            for (which, (op, [first, second, out])) in case.ops().iter().enumerate() {
                let bias = fractions(&case.dims()[*out][1..2], 37);
                let bias = (which < 2 && number % 2 == 0).then_some(&bias);
                let ins: Vec<&Tensor> =
                    [&tensors[*first], &tensors[*second]].into_iter().chain(bias).collect();
                let as_strict = run(&device(), op, &ins);
                for (mode, digits) in MODES {
                    let want = case.reference(digits, which, [ins[0], ins[1]], bias);
                    assert_eq!(odd, want.iter().any(|x| x.is_nan()), "case {number} op {which}");
                    assert!(want != as_strict, "case {number} op {which}: as in strict");
                    for device in &devices {
                        let got = run(&device.in_mode(mode).unwrap(), op, &ins);
                        same(&got, &want, &format!("{device} {mode}: case {number} op {which} {odd}"));
                    }
                }
            }
        }
    }
}

/// Too few channels, and more terms than a sum may have.
#[test]
fn others_are_as_in_strict() {
    let (_turn, devices) = devices();
    let plain = [[9, 3, 1, 1, 1], [9, 3, 1, 1, 1]];
    let axes: &'static [[usize; 5]] = Box::leak(Box::new(plain));
    for case in [case(2, 1, [4, 64], axes), case(2, 1, [64, 4], axes), case(2, 8, [2, 3], axes)] {
        let tensors = case.draw(false, 5);
        for (op, [first, second, _]) in case.ops() {
            let ins = [&tensors[first], &tensors[second]];
            let want = run(&device(), &op, &ins);
            for (device, (mode, _)) in devices.iter().flat_map(|d| MODES.map(|mode| (d, mode))) {
                same(&run(&device.in_mode(mode).unwrap(), &op, &ins), &want, &format!("{device} {mode}"));
            }
        }
    }
}

/// Trains two convolutions, the second one with a stride, for a few steps: a fingerprint.
fn trained(device: &Device, compiled: bool) -> String {
    let mut params = Params::new(device, 3);
    let window = ConvWindow::plain(2).unwrap().padding(1);
    let first = nn::Conv::new(&mut params, "first", 6, 20, [3, 3], window).unwrap();
    let second = nn::Conv::new(&mut params, "second", 20, 33, [3, 3], window.stride(2)).unwrap();
    let (x, y) = (fractions(&[3, 6, 12, 11], 7919), fractions(&[3, 33, 6, 6], 104_729));
    let mut optimizer = Optimizer::adamw(0.01);
    if compiled {
        let mut step = TrainStep::new(&params, optimizer, |v| {
            second.forward(first.forward(v[0])?.gelu()?)?.relu()?.mse(v[1])
        });
        for _ in 0..3 {
            step.run(&[(&x).into(), (&y).into()]).unwrap();
        }
    } else {
        let session = Session::eager(device);
        for _ in 0..3 {
            let hidden = first.forward(session.input(&x).unwrap()).unwrap().gelu().unwrap();
            let out = second.forward(hidden).unwrap().relu().unwrap();
            let loss = out.mse(session.input(&y).unwrap()).unwrap();
            optimizer.step(&params, loss.backward().unwrap()).unwrap();
            session.reset();
        }
    }
    params.fingerprint().unwrap()
}

#[test]
fn training_has_one_answer_in_each_mode() {
    let (_turn, devices) = devices();
    let mut all = vec![trained(&device(), true)];
    for (mode, _) in MODES {
        let want = trained(&device().in_mode(mode).unwrap(), false);
        for (device, compiled) in devices.iter().flat_map(|d| [(d, false), (d, true)]) {
            let got = trained(&device.in_mode(mode).unwrap(), compiled);
            assert_eq!(got, want, "{device} {mode} {compiled}");
        }
        all.push(want);
    }
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
}

/// Two convolutions with batch norm and a sum around the second, of images that an elementwise op makes: values and all gradients.
fn normed(device: &Device, [height, width]: [usize; 2]) -> (Params, Graph) {
    let mut params = Params::new(device, 3);
    let window = ConvWindow::plain(2).unwrap();
    let first = nn::Conv::new(&mut params, "first", 40, 40, [1, 1], window).unwrap();
    let second = nn::Conv::new(&mut params, "second", 40, 36, [3, 3], window.padding(1)).unwrap();
    let gain = params.uniform("gain", &[40, 1, 1], 0.5, 1.5).unwrap();
    let graph = Graph::trace_seeded(device, 4, &[f(&[3, 40, height, width])], |s, x| {
        let x = x[0].mul(s.param(&gain)?)?;
        let hidden = first.forward(x)?.batch_norm(None, None, 1e-5)?.add(x)?.relu()?;
        let out = second.forward(hidden)?;
        let leaves = params.iter().map(|p| s.param(p)).collect::<Result<Vec<_>>>()?;
        let mut all = s.grad(out.batch_norm(None, None, 1e-5)?.square()?.mean()?, &leaves)?;
        all.push(out);
        Ok(all)
    });
    (params, graph.unwrap())
}

/// Sizes of images: lines that are multiples of four or not, for a warp and for all of a block.
const SIZES: [[usize; 2]; 5] = [[6, 6], [7, 7], [12, 11], [32, 33], [33, 41]];

/// Who computes an image leaves the magnitudes of its channels: convolutions do not look for them again.
#[test]
fn magnitudes_are_left_for_convolutions() {
    digits::include_small_products();
    for (size, (mode, _)) in SIZES.iter().flat_map(|size| MODES.map(|mode| (*size, mode))) {
        let fake = Fake::computing(1, 1 << 30);
        let gpu = Cuda::with_driver(fake.driver(), 0, mode, fake.stub(), None).unwrap();
        let gpu = Device::from_cuda(gpu);
        let (_params, graph) = normed(&gpu, size);
        let x = AnyTensor::Num(fractions(&[3, 40, size[0], size[1]], 7919));
        graph.compile_with(&gpu, Passes::all()).unwrap().call(&[x]).unwrap();
        let launches = fake.launches();
        let count = |name: &str| launches.iter().filter(|l| l.name == name).count();
        let counts = ["ditto_conv_product", "ditto_conv_magnitudes"].map(count);
        assert_eq!(counts, [6, 0], "{size:?} {mode}");
    }
}

/// With magnitudes that were left, bits are those of the CPU, where each convolution finds them; also where some numbers are infinite or NaN.
#[test]
fn magnitudes_that_were_left_are_the_largest() {
    let (_turn, devices) = devices();
    for (size, (mode, _)) in SIZES.iter().flat_map(|size| MODES.map(|mode| (*size, mode))) {
        for odd in [None, Some(f32::INFINITY), Some(f32::NAN), Some(f32::MAX), Some(1e-41)] {
            let mut x = fractions(&[3, 40, size[0], size[1]], 7919);
            let at = x.data().len() / 2;
            odd.into_iter().for_each(|v| x.data_mut()[at] = v);
            let run = |device: &Device, passes: Passes| {
                let device = device.in_mode(mode).unwrap();
                let (_params, graph) = normed(&device, size);
                let mut compiled = graph.compile_with(&device, passes).unwrap();
                let values = compiled.call(&[AnyTensor::Num(x.clone())]).unwrap();
                values.iter().flat_map(|v| v.num().unwrap().data().to_vec()).collect::<Vec<f32>>()
            };
            let want = run(&device(), Passes::none());
            for device in &devices {
                same(&run(device, Passes::all()), &want, &format!("{device} {mode} {size:?} {odd:?}"));
            }
        }
    }
}
