//! Convolutions: golden numbers, the adjoint identity, the order of summation word for word, and the methods.

use crate::support::{fractions, t};
use dittograd::device::cpu::simd::Simd;
use dittograd::ops::conv::{Conv, ConvKernelGrad, ConvTranspose, ConvWindow, Sizes};
use dittograd::ops::{AnyOp, SampleIn};
use dittograd::prelude::*;
use dittograd_check::{Case, Values};

fn count(dims: &[usize]) -> Tensor<f32> {
    let mut n = 0.0;
    Tensor::from_fn(Shape::new(dims).unwrap(), |_| {
        n += 1.0;
        n
    })
}

fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{got:?} {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{got:?} {want:?}");
    }
}

/// Value and gradients (input, kernel, bias) for the upstream gradient 1, 2, 3, ….
fn run(
    [x, w, b]: [&Tensor<f32>; 3],
    f: impl for<'s> Fn(Var<'s>, Var<'s>, Var<'s>) -> Result<Var<'s>>,
) -> [Vec<f32>; 4] {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    let s = Session::eager(&device);
    let [x, w, b] = [x, w, b].map(|t| s.variable(t).unwrap());
    let y = f(x, w, b).unwrap();
    let g = s.input(&count(y.shape().unwrap().dims())).unwrap();
    let grads = y.mul(g).unwrap().sum().unwrap().backward_retain().unwrap();
    let grad = |v| grads.var(v).unwrap().to_tensor::<f32>().unwrap().data().to_vec();
    [y.value::<f32>().unwrap().data().to_vec(), grad(x), grad(w), grad(b)]
}

#[test]
fn golden_conv2d() {
    let w = t(&[2, 1, 2, 2], &[1.0, -1.0, 0.5, 2.0, -0.5, 1.0, 0.25, -2.0]);
    let [y, dx, dw, db] =
        run([&count(&[1, 3, 3]), &w, &t(&[2], &[0.1, 0.2])], |x, w, b| x.conv2d(w, Some(b), 2, 1));
    close(&y, &[2.1, 7.1, 10.1, 21.1, -1.8, -5.3, -9.8, -12.3]);
    close(&dw, &[20.0, 36.0, 36.0, 64.0, 40.0, 76.0, 76.0, 144.0]);
    close(&db, &[10.0, 26.0]);
    close(&dx, &[-8.0, 2.5, -8.0, 4.0, 0.0, 4.0, -8.0, 4.0, -8.0]);
}

#[test]
fn golden_conv1d() {
    let x = t(&[2, 5], &[1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    let w = t(&[1, 2, 3], &[1.0, 0.0, -1.0, 0.5, 0.5, 0.5]);
    let [y, ..] = run([&x, &w, &t(&[1], &[0.25])], |x, w, b| x.conv1d(w, Some(b), 2, 1));
    close(&y, &[-3.25, -6.25, -0.25]);
}

#[test]
fn golden_transposes() {
    let w = t(&[1, 1, 3], &[1.0, 10.0, 100.0]);
    let [y, ..] =
        run([&count(&[1, 3]), &w, &t(&[1], &[0.5])], |x, w, b| x.conv_transpose1d(w, Some(b), 2, 1, 0));
    close(&y, &[10.5, 102.5, 20.5, 203.5, 30.5]);

    let [y, dx, dw, db] = run([&count(&[1, 2, 2]), &count(&[1, 1, 3, 3]), &t(&[1], &[0.0])], |x, w, b| {
        x.conv_transpose2d(w, Some(b), 2, 1, 0)
    });
    close(&y, &[5.0, 14.0, 10.0, 14.0, 36.0, 24.0, 15.0, 34.0, 20.0]);
    close(&dw, &[20.0, 36.0, 15.0, 36.0, 64.0, 26.0, 10.0, 16.0, 5.0]);
    close(&db, &[45.0]);
    close(&dx, &[94.0, 106.0, 106.0, 94.0]);

    let w = t(&[1, 2, 2, 2], &[1.0, -1.0, 0.5, 2.0, -0.5, 1.0, 0.25, -2.0]);
    let [y, ..] = run([&count(&[1, 2, 2]), &w, &t(&[2], &[0.1, 0.2])], |x, w, b| {
        x.conv_transpose2d(w, Some(b), 2, 0, 0)
    });
    let want = [1.1, -0.9, 2.1, -1.9, 0.6, 2.1, 1.1, 4.1, 3.1, -2.9, 4.1, -3.9, 1.6, 6.1, 2.1, 8.1];
    close(&y[..16], &want);
}

/// A transposed convolution's size is the paper's, where an input of one element with padding is the case that
/// is easily wrong.
#[test]
fn sizes_of_transposes() {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let s = Session::eager(&device);
    let x = s.input(&count(&[1, 1, 1])).unwrap();
    let w = s.input(&count(&[1, 1, 3])).unwrap();
    assert_eq!(x.conv_transpose1d(w, None, 1, 1, 0).unwrap().shape().unwrap().dims(), [1, 1, 1]);
    assert_eq!(x.conv_transpose1d(w, None, 3, 0, 2).unwrap().shape().unwrap().dims(), [1, 1, 5]);
    assert!(x.conv_transpose1d(w, None, 1, 2, 0).unwrap_err().to_string().contains("would become -1"));
    assert!(x.conv_transpose1d(w, None, 2, 1, 2).unwrap_err().to_string().contains("below the stride"));
    assert!(x.conv_transpose1d(w, None, 0, 0, 0).is_err());
    assert!(x.conv1d(w, None, 0, 0).is_err());
    assert!(x.conv1d(w, None, 1, 0).unwrap_err().to_string().contains("only 1"));
    let window = ConvWindow::plain(1).unwrap().padding(1).dilation(1).groups(1);
    assert_eq!(x.conv(w, None, window).unwrap().shape().unwrap().dims(), [1, 1, 1]);
    assert!(x.conv_transpose(w, None, window, &[0, 0]).is_err());
    assert!(ConvWindow::plain(0).is_err() && ConvWindow::plain(9).is_err() && Sizes::new(&[]).is_err());
}

/// The samples of an op with inputs of whole numbers.
fn whole(name: &str) -> Vec<Case> {
    let samples = AnyOp::samples(name);
    samples.iter().enumerate().map(|(i, s)| Case::draw(s, Values::Integers, i as u64)).collect()
}

fn numbers(case: &Case, i: usize) -> Tensor<f32> {
    case.ins[i].num().unwrap().clone()
}

fn dot(a: &Tensor<f32>, b: &Tensor<f32>) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.data().iter().zip(b.data()).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// ⟨conv(x, w), y⟩ = ⟨x, transpose(y, w)⟩ = ⟨w, kernel gradient(y, x)⟩: exact in whole numbers.
#[test]
fn adjoint() {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    for (at, case) in whole("conv").iter().enumerate() {
        let AnyOp::Conv(Conv { window }) = case.op else { panic!() };
        let (x, w) = (numbers(case, 0), numbers(case, 1));
        let apply = |op: AnyOp, ins: &[&Tensor<f32>]| {
            let s = Session::eager(&device);
            let ins: Vec<Var<'_>> = ins.iter().map(|t| s.input(t).unwrap()).collect();
            s.apply(op, &ins).unwrap().value::<f32>().unwrap()
        };
        let ax = apply(Conv { window }.into(), &[&x, &w]);
        let drawn = SampleIn::any(ax.shape());
        let sample = dittograd::ops::Sample::new(case.op.clone(), vec![drawn]);
        let y = numbers(&Case::draw(&sample, Values::Integers, 1000 + at as u64), 0);
        let rank = w.shape().rank() - 2;
        let spatial = |t: &Tensor<f32>| Sizes::new(&t.shape().dims()[t.shape().rank() - rank..]).unwrap();
        let at_y = apply(ConvTranspose { window, size: spatial(&x) }.into(), &[&y, &w]);
        let dw = apply(ConvKernelGrad { window, size: spatial(&w) }.into(), &[&y, &x]);
        assert_eq!(dot(&ax, &y), dot(&x, &at_y), "{case:?}");
        assert_eq!(dot(&ax, &y), dot(&w, &dw), "{case:?}");
    }
}

/// One axis as the contract has it.
#[derive(Clone, Copy)]
struct Line {
    x: usize,
    k: usize,
    y: usize,
    s: usize,
    p: usize,
    d: usize,
}

/// Adds products by the contract: chains of 1024 in order, chains added in order.
#[derive(Default)]
struct Chain {
    sum: Option<f32>,
    chain: f32,
    len: usize,
}

impl Chain {
    fn add(&mut self, a: f32, b: f32) {
        self.chain = a.mul_add(b, self.chain);
        self.len += 1;
        if self.len == 1024 {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.len > 0 {
            self.sum = Some(self.sum.map_or(self.chain, |s| s + self.chain));
        }
        (self.chain, self.len) = (0.0, 0);
    }

    fn done(mut self) -> f32 {
        self.close();
        self.sum.unwrap_or(0.0)
    }
}

fn digits(mut n: usize, sizes: impl DoubleEndedIterator<Item = usize>) -> Vec<usize> {
    let mut out: Vec<usize> = sizes
        .rev()
        .map(|s| {
            let digit = n % s;
            n /= s;
            digit
        })
        .collect();
    out.reverse();
    out
}

/// The three ops word for word as NUMERICS.md has them.
struct Contract {
    images: usize,
    groups: usize,
    channels: [usize; 2],
    lines: Vec<Line>,
}

impl Contract {
    fn new(window: &ConvWindow, x: &Shape, w: &Shape, y: &Shape) -> Contract {
        let rank = w.rank() - 2;
        let images = if x.rank() == rank + 2 { x.dims()[0] } else { 1 };
        let sizes = |s: &Shape| s.dims()[s.rank() - rank..].to_vec();
        let (x, k, y) = (sizes(x), sizes(w), sizes(y));
        let line = |a: usize| Line {
            x: x[a],
            k: k[a],
            y: y[a],
            s: window.stride.get()[a] as usize,
            p: window.padding.get()[a] as usize,
            d: window.dilation.get()[a] as usize,
        };
        Contract {
            images,
            groups: window.groups,
            channels: [w.dims()[1], w.dims()[0] / window.groups],
            lines: (0..rank).map(line).collect(),
        }
    }

    fn size(&self, of: fn(&Line) -> usize) -> usize {
        self.lines.iter().map(of).product()
    }

    /// For each output and tap, the element of a channel of x that the tap meets there; none is a zero of the padding.
    fn met(&self) -> Vec<Option<usize>> {
        let one = |o: usize, t: usize| {
            let (o, t) =
                (digits(o, self.lines.iter().map(|l| l.y)), digits(t, self.lines.iter().map(|l| l.k)));
            self.lines.iter().zip(o).zip(t).try_fold(0, |at, ((l, o), t)| {
                let i = (o * l.s + t * l.d).checked_sub(l.p)?;
                (i < l.x).then_some(at * l.x + i)
            })
        };
        let taps = self.size(|l| l.k);
        (0..self.size(|l| l.y) * taps).map(|i| one(i / taps, i % taps)).collect()
    }

    /// For each element of a channel of x and tap: nothing if the tap meets no whole step there, else the output, or `None` beyond y.
    fn reached(&self) -> Vec<Option<Option<usize>>> {
        let one = |i: usize, t: usize| {
            let (i, t) =
                (digits(i, self.lines.iter().map(|l| l.x)), digits(t, self.lines.iter().map(|l| l.k)));
            let steps: Vec<isize> = (self.lines.iter().zip(i).zip(t))
                .map(|((l, i), t)| (i + l.p) as isize - (t * l.d) as isize)
                .collect();
            if steps.iter().zip(&self.lines).any(|(o, l)| o.rem_euclid(l.s as isize) != 0) {
                return None;
            }
            Some(steps.iter().zip(&self.lines).try_fold(0, |at, (o, l)| {
                let o = usize::try_from(*o).ok()? / l.s;
                (o < l.y).then_some(at * l.y + o)
            }))
        };
        let taps = self.size(|l| l.k);
        (0..self.size(|l| l.x) * taps).map(|j| one(j / taps, j % taps)).collect()
    }

    fn conv(&self, x: &[f32], w: &[f32], b: Option<&[f32]>) -> Vec<f32> {
        let [ci, co] = self.channels;
        let (xs, ks, ys) = (self.size(|l| l.x), self.size(|l| l.k), self.size(|l| l.y));
        let (met, mut out) = (self.met(), Vec::new());
        for n in 0..self.images {
            for c in 0..self.groups * co {
                for o in 0..ys {
                    let mut chain = Chain::default();
                    for a in 0..ci {
                        let channel = (n * self.groups + c / co) * ci + a;
                        for t in 0..ks {
                            let v = met[o * ks + t].map_or(0.0, |at| x[channel * xs + at]);
                            chain.add(w[(c * ci + a) * ks + t], v);
                        }
                    }
                    let sum = chain.done();
                    out.push(b.map_or(sum, |b| sum + b[c]));
                }
            }
        }
        out
    }

    fn transpose(&self, y: &[f32], w: &[f32], b: Option<&[f32]>) -> Vec<f32> {
        let [ci, co] = self.channels;
        let (xs, ks, ys) = (self.size(|l| l.x), self.size(|l| l.k), self.size(|l| l.y));
        let (reached, mut out) = (self.reached(), Vec::new());
        for n in 0..self.images {
            for a in 0..self.groups * ci {
                let g = a / ci;
                for i in 0..xs {
                    let mut chain = Chain::default();
                    for c in g * co..(g + 1) * co {
                        for t in 0..ks {
                            // Only taps that meet the position at a whole step take part; those beyond y as zeros.
                            let Some(o) = reached[i * ks + t] else { continue };
                            let v = o.map_or(0.0, |o| y[(n * self.groups * co + c) * ys + o]);
                            chain.add(w[(c * ci + a % ci) * ks + t], v);
                        }
                    }
                    let sum = chain.done();
                    out.push(b.map_or(sum, |b| sum + b[a]));
                }
            }
        }
        out
    }

    fn kernel_grad(&self, y: &[f32], x: &[f32]) -> Vec<f32> {
        let [ci, co] = self.channels;
        let (xs, ks, ys) = (self.size(|l| l.x), self.size(|l| l.k), self.size(|l| l.y));
        let (met, mut out) = (self.met(), Vec::new());
        for c in 0..self.groups * co {
            for a in 0..ci {
                for t in 0..ks {
                    let mut chain = Chain::default();
                    for n in 0..self.images {
                        let channel = (n * self.groups + c / co) * ci + a;
                        for o in 0..ys {
                            let v = met[o * ks + t].map_or(0.0, |at| x[channel * xs + at]);
                            chain.add(y[(n * self.groups * co + c) * ys + o], v);
                        }
                    }
                    out.push(chain.done());
                }
            }
        }
        out
    }
}

/// The result of one of the three ops, from its definition alone.
fn by_contract(op: &AnyOp, ins: &[Tensor<f32>], shape: Shape) -> Vec<f32> {
    let (a, b) = (ins[0].shape(), ins[1].shape());
    let (left, right) = (ins[0].data(), ins[1].data());
    let bias = ins.get(2).map(Tensor::data);
    match op {
        AnyOp::Conv(op) => Contract::new(&op.window, &a, &b, &shape).conv(left, right, bias),
        AnyOp::ConvTranspose(op) => Contract::new(&op.window, &shape, &b, &a).transpose(left, right, bias),
        AnyOp::ConvKernelGrad(op) => Contract::new(&op.window, &b, &shape, &a).kernel_grad(left, right),
        _ => panic!(),
    }
}

/// Bits, all NaNs being one.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

fn apply(device: &Device, op: &AnyOp, ins: &[Tensor<f32>]) -> Tensor<f32> {
    let s = Session::eager(device);
    let vars: Vec<Var<'_>> = ins.iter().map(|t| s.input(t).unwrap()).collect();
    s.apply(op.clone(), &vars).unwrap().value::<f32>().unwrap()
}

/// Puts infinities and zeros of both signs among the numbers.
fn sprinkle(x: &mut [f32], from: usize) {
    for (j, x) in x.iter_mut().enumerate() {
        match (j * 7 + from) % 31 {
            0 => *x = f32::INFINITY,
            1 => *x = -0.0,
            2 | 3 => *x = 0.0,
            _ => {}
        }
    }
}

/// The bits of the contract, from its definition alone, with infinities and negative zeros among the numbers.
#[test]
fn contract() {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    for name in ["conv", "conv_transpose", "conv_kernel_grad"] {
        for (index, sample) in AnyOp::samples(name).iter().enumerate() {
            let case = Case::draw(sample, Values::Wide, index as u64);
            let mut ins: Vec<Tensor<f32>> = (0..case.ins.len()).map(|i| numbers(&case, i)).collect();
            if index % 3 == 0 {
                ins.iter_mut().enumerate().for_each(|(i, x)| sprinkle(x.data_mut(), i));
            }
            let got = apply(&device, &case.op, &ins);
            let want = by_contract(&case.op, &ins, got.shape());
            assert_eq!(bits(got.data()), bits(&want), "{name} {index} {:?}", case.op);
        }
    }
}

/// The same of convolutions with more channels than samples have, which the CPU computes in another way: at the edges of its
/// tiles and boxes, in one to three dimensions, with groups, strided, dilated, of more than one chunk; on every level and number
/// of threads.
#[test]
fn contract_of_many_channels() {
    // Images and kernel, stride, padding, dilation, groups.
    let shapes: [([&[usize]; 2], [usize; 4]); 15] = [
        ([&[3, 16, 10, 10], &[32, 16, 3, 3]], [1, 1, 1, 1]),
        ([&[5, 16, 7, 7], &[32, 16, 3, 3]], [1, 1, 1, 1]),
        ([&[1, 16, 9, 31], &[48, 16, 3, 3]], [1, 1, 1, 1]),
        ([&[2, 15, 13, 14], &[31, 15, 3, 3]], [1, 0, 1, 1]),
        ([&[2, 32, 12, 12], &[64, 16, 3, 3]], [1, 2, 2, 2]),
        ([&[1, 120, 6, 6], &[48, 120, 3, 3]], [1, 1, 1, 1]),
        ([&[2, 32, 6, 5], &[120, 32, 3, 3]], [1, 1, 1, 1]),
        ([&[2, 24, 150], &[48, 24, 7]], [1, 3, 1, 1]),
        ([&[1, 12, 3, 460], &[32, 12, 3, 5]], [1, 1, 1, 1]),
        ([&[1, 8, 5, 6, 7], &[32, 8, 3, 3, 3]], [1, 1, 1, 1]),
        ([&[2, 16, 30, 29], &[48, 16, 3, 3]], [2, 1, 1, 1]),
        ([&[1, 32, 9, 9], &[200, 32, 3, 3]], [2, 1, 1, 1]),
        ([&[4, 130, 7, 7], &[160, 130, 1, 1]], [1, 0, 1, 1]),
        ([&[4, 130, 13, 14], &[160, 130, 1, 1]], [2, 0, 1, 1]),
        ([&[3, 40, 20, 21], &[48, 40, 1, 1]], [1, 0, 1, 1]),
    ];
    for (index, ([x, w], [stride, padding, dilation, groups])) in shapes.into_iter().enumerate() {
        let rank = x.len() - 2;
        let sizes = |n: usize| Sizes::new(&vec![n; rank]).unwrap();
        let window =
            ConvWindow { stride: sizes(stride), padding: sizes(padding), dilation: sizes(dilation), groups };
        let some = |dims: &[usize], by: usize| {
            let mut x = fractions(dims, by);
            if index % 4 == 3 {
                sprinkle(x.data_mut(), by);
            }
            x
        };
        let (image, kernel, bias) = (some(x, 7919), some(w, 4099), some(&w[..1], 31));
        let forward: AnyOp = Conv { window }.into();
        let first = Device::cpu_with(1, Simd::best()).unwrap();
        let slope = some(apply(&first, &forward, &[image.clone(), kernel.clone()]).shape().dims(), 6007);
        let cases: [(AnyOp, Vec<Tensor<f32>>); 3] = [
            (forward, vec![image.clone(), kernel.clone(), bias]),
            (
                ConvTranspose { window, size: Sizes::new(&x[2..]).unwrap() }.into(),
                vec![slope.clone(), kernel],
            ),
            (ConvKernelGrad { window, size: Sizes::new(&w[2..]).unwrap() }.into(), vec![slope, image]),
        ];
        for (op, ins) in &cases {
            let want = bits(&by_contract(op, ins, apply(&first, op, ins).shape()));
            for device in dittograd_check::all_cpus().unwrap() {
                assert!(bits(apply(device, op, ins).data()) == want, "{index} {op:?} {device:?}");
            }
        }
    }
}
