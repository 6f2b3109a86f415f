//! Attention in digits: the contract, written plainly, and all that computes it.

use super::{MODES, PROPERTIES, devices, have_properties, run, same};
use dittograd::device::cpu::simd::Simd;
use dittograd::numerics::digits::{self, Digits};
use dittograd::numerics::rng::Stream;
use dittograd::numerics::{Numerics, functions, sum};
use dittograd::ops::{AnyOp, Attr, Attrs};
use dittograd::prelude::*;
use dittograd_check::{Sample, SampleIn, Subject};
use std::f64::consts::LOG2_E;

const BLOCK: usize = 64;

/// What the numbers of an operand are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    Ordinary,
    /// Scores far apart, so that most weights vanish.
    Large,
    /// Among ordinary rows, some of zeros, huge and tiny numbers, and single numbers that are not finite.
    Odd,
}

/// A batch of attentions.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, heads of keys, and query heads of each.
    heads: [usize; 3],
    n: usize,
    m: usize,
    d: usize,
    dv: usize,
    causal: bool,
    scale: Option<f64>,
    /// With a mask `(batch, 1, n, m)`.
    masked: bool,
    values: Values,
}

const fn case(heads: [usize; 3], [n, m, d, dv]: [usize; 4]) -> Case {
    Case { heads, n, m, d, dv, causal: false, scale: None, masked: false, values: Values::Ordinary }
}

impl Case {
    const fn causal(self) -> Case {
        Case { causal: true, ..self }
    }

    const fn masked(self) -> Case {
        Case { masked: true, ..self }
    }

    const fn scale(self, scale: f64) -> Case {
        Case { scale: Some(scale), ..self }
    }

    const fn values(self, values: Values) -> Case {
        Case { values, ..self }
    }
}

/// Sizes at the edges of blocks, heads of all sizes, heads that share keys, so that a block has queries of two of them, and all masks.
const CASES: [Case; 16] = [
    case([1, 1, 1], [32, 32, 32, 32]),
    case([2, 1, 1], [63, 65, 32, 40]),
    case([1, 1, 1], [65, 63, 40, 32]).causal(),
    case([1, 2, 1], [127, 129, 64, 64]).causal(),
    case([1, 1, 2], [129, 127, 128, 64]).causal(),
    case([1, 2, 3], [40, 200, 32, 33]).causal(),
    case([1, 1, 1], [200, 64, 64, 128]).masked(),
    case([2, 1, 2], [65, 129, 64, 32]).causal().masked().scale(-0.3),
    case([1, 1, 1], [64, 128, 64, 64]).scale(-0.125),
    case([1, 1, 1], [33, 200, 65, 64]).scale(1e-20),
    case([3, 1, 1], [64, 64, 64, 64]).causal().values(Values::Large),
    case([1, 1, 2], [70, 190, 96, 64]).masked().values(Values::Large),
    case([1, 1, 1], [129, 129, 64, 64]).values(Values::Odd),
    case([1, 1, 1], [129, 129, 64, 48]).causal().values(Values::Odd),
    case([2, 1, 1], [65, 127, 32, 64]).masked().values(Values::Odd),
    case([1, 2, 2], [200, 200, 32, 32]).causal().masked().values(Values::Odd).scale(-1.0),
];

/// The same of attentions that do not take part.
const OTHERS: [Case; 4] = [
    case([1, 1, 3], [31, 64, 32, 32]),
    case([1, 1, 1], [64, 31, 32, 32]).causal(),
    case([1, 1, 1], [64, 64, 31, 32]),
    case([1, 1, 1], [64, 64, 32, 129]),
];

/// The inputs of an attention and of its gradient, as the ops take them.
struct Data {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Option<Tensor>,
    dy: Tensor,
}

fn tensor(dims: &[usize], f: impl FnMut(usize) -> f32) -> Tensor {
    Tensor::from_fn(Shape::new(dims).unwrap(), f)
}

/// Words of a part of a packed value.
fn padded(words: usize) -> usize {
    words.next_multiple_of(4)
}

impl Case {
    fn lists(&self) -> usize {
        self.heads[0] * self.heads[1]
    }

    /// Rows of a list.
    fn rows(&self) -> usize {
        self.heads[2] * self.n
    }

    fn data(&self, seed: u64) -> Data {
        let mut stream = Stream::new(seed, 0);
        let [batch, shared, group] = self.heads;
        let mut draw = |dims: [usize; 4], factor: f32| {
            let width = dims[3];
            tensor(&dims, |at| {
                let x = stream.range(-1.0, 1.0) * factor;
                match (self.values, at / width % 67, at % width) {
                    (Values::Odd, 3, _) => 0.0,
                    (Values::Odd, 5, _) => x * 1e37,
                    (Values::Odd, 7, _) => x * 1e-36,
                    (Values::Odd, 11, 5) => f32::NAN,
                    (Values::Odd, 13, 9) => f32::INFINITY,
                    _ => x,
                }
            })
        };
        let spread = if self.values == Values::Large { 20.0 } else { 1.0 };
        let q = draw([batch, shared * group, self.n, self.d], spread);
        let k = draw([batch, shared, self.m, self.d], spread);
        let v = draw([batch, shared, self.m, self.dv], 1.0);
        let rows = self.lists() * self.rows();
        let words = padded(rows * self.dv) + 2 * padded(rows);
        let dy = tensor(&[words], |_| stream.range(-1.0, 1.0));
        // Some queries have no key at all, some none in a block.
        let open = |at: usize| {
            let (i, j) = (at / self.m % self.n, at % self.m);
            let blocked = i % 19 == 4 || i % 19 == 5 && j < BLOCK || (at * 7919 % 1009).is_multiple_of(5);
            f32::from(u8::from(!blocked))
        };
        let mask = self.masked.then(|| tensor(&[batch, 1, self.n, self.m], open));
        Data { q, k, v, mask, dy }
    }

    fn op(&self, name: &str) -> AnyOp {
        let mut all = vec![("causal".to_string(), Attr::Bool(self.causal))];
        all.extend(self.scale.map(|scale| ("scale".to_string(), Attr::Num(scale))));
        AnyOp::from_name(name, &Attrs(all)).unwrap()
    }

    /// The value, and of it the gradients.
    fn run(&self, device: &Device, data: &Data) -> [Vec<f32>; 2] {
        let mut ins = vec![&data.q, &data.k, &data.v];
        ins.extend(&data.mask);
        let y = run(device, &self.op("attention"), &ins);
        let packed = tensor(&[y.len()], |at| y[at]);
        ins.extend([&packed, &data.dy]);
        let back = run(device, &self.op("attention_bwd"), &ins);
        [y, back]
    }

    /// The same by the contract.
    fn defined(&self, digits: Digits, data: &Data) -> [Vec<f32>; 2] {
        let rows = self.rows();
        let mut parts: [Vec<f32>; 6] = Default::default();
        let all = self.lists() * rows;
        let dl = &data.dy.data()[padded(all * self.dv)..];
        for z in 0..self.lists() {
            let part =
                |t: &Tensor, rows: usize, width: usize| t.data()[z * rows * width..][..rows * width].to_vec();
            let list = List {
                case: *self,
                digits,
                mask: data.mask.as_ref().map(|mask| part_of(mask, z / self.heads[1], self.n * self.m)),
                q: part(&data.q, rows, self.d),
                k: part(&data.k, self.m, self.d),
                v: part(&data.v, self.m, self.dv),
            };
            let results = list.forward();
            let dy = part(&data.dy, rows, self.dv);
            let gradients = list.backward(&results, &dy, &dl[z * rows..][..rows]);
            for (to, from) in parts.iter_mut().zip(results.into_iter().chain(gradients)) {
                to.extend(from);
            }
        }
        let pack = |parts: &[Vec<f32>]| {
            let mut packed = Vec::new();
            for part in parts {
                packed.extend(part);
                packed.resize(padded(packed.len()), 0.0);
            }
            packed
        };
        [pack(&parts[..3]), pack(&parts[3..])]
    }
}

fn part_of(t: &Tensor, i: usize, len: usize) -> Vec<f32> {
    t.data()[i * len..][..len].to_vec()
}

/// One list of keys and the queries of all heads that share it.
struct List {
    case: Case,
    digits: Digits,
    mask: Option<Vec<f32>>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl List {
    fn is_open(&self, row: usize, key: usize) -> bool {
        let i = row % self.case.n;
        (!self.case.causal || key <= i)
            && self.mask.as_ref().is_none_or(|mask| mask[i * self.case.m + key] != 0.0)
    }

    fn scale(&self) -> f64 {
        self.case.scale.unwrap_or(1.0 / (self.case.d as f64).sqrt())
    }

    fn factor(&self) -> f32 {
        ((self.scale().abs() * LOG2_E) as f32).max(f32::from_bits(1))
    }

    /// `a`, which is `(m, k)` or, transposed, `(k, m)`, times `b`, which is `(k, n)` or `(n, k)`.
    fn product(&self, [m, n, k]: [usize; 3], transposed: [bool; 2], a: &[f32], b: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; m * n];
        digits::product(self.digits, [m, n, k], transposed, a, b, &mut out);
        out
    }

    /// A score for each row and key.
    fn scores(&self) -> Vec<f32> {
        let Case { m, d, .. } = self.case;
        let all = self.product([self.case.rows(), m, d], [false, true], &self.q, &self.k);
        if self.scale() < 0.0 { all.iter().map(|s| -s).collect() } else { all }
    }

    /// Outputs, logarithms and largest scores.
    fn forward(&self) -> [Vec<f32>; 3] {
        let (Case { m, dv, .. }, rows, c) = (self.case, self.case.rows(), self.factor());
        let s = self.scores();
        let (mut top, mut total) = (vec![f32::NEG_INFINITY; rows], vec![0.0f32; rows]);
        let mut acc = vec![0.0f32; rows * dv];
        for j0 in (0..m).step_by(BLOCK) {
            let count = BLOCK.min(m - j0);
            let mut w = vec![0.0f32; rows * count];
            let mut best = vec![None; rows];
            for i in 0..rows {
                for j in (0..count).filter(|j| self.is_open(i, j0 + j)) {
                    let (s, max) = (s[i * m + j0 + j], best[i].unwrap_or(f32::NEG_INFINITY));
                    best[i] = Some(if s > max { s } else { max });
                }
                let Some(best) = &mut best[i] else { continue };
                *best += 0.0;
                for j in (0..count).filter(|j| self.is_open(i, j0 + j)) {
                    w[i * count + j] = functions::weight((s[i * m + j0 + j] - *best) * c);
                }
            }
            let r = self.product([rows, dv, count], [false; 2], &w, &self.v[j0 * dv..][..count * dv]);
            for i in 0..rows {
                let Some(best) = best[i] else { continue };
                let next = if best > top[i] { best } else { top[i] };
                let (a, b) = (functions::weight((top[i] - next) * c), functions::weight((best - next) * c));
                let mut lanes = [0.0f32; 4];
                for j in 0..count {
                    lanes[j % 8 / 2] += w[i * count + j];
                }
                let sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
                total[i] = total[i].mul_add(a, sum * b);
                top[i] = next;
                for at in i * dv..(i + 1) * dv {
                    acc[at] = r[at].mul_add(b, acc[at] * a);
                }
            }
        }
        let mut logs = vec![0.0; rows];
        for i in 0..rows {
            let is_zero = total[i] == 0.0;
            for x in &mut acc[i * dv..(i + 1) * dv] {
                *x = if is_zero { 0.0 } else { *x * (1.0 / total[i]) };
            }
            logs[i] = if is_zero { 0.0 } else { functions::log(total[i]) * LOG2_E as f32 };
            top[i] = if is_zero {
                0.0
            } else if total[i].is_nan() {
                total[i]
            } else {
                top[i]
            };
        }
        [acc, logs, top]
    }

    /// Gradients of queries, keys and values.
    fn backward(&self, [o, logs, tops]: &[Vec<f32>; 3], dy: &[f32], dl: &[f32]) -> [Vec<f32>; 3] {
        let (Case { n, m, d, dv, .. }, rows, c) = (self.case, self.case.rows(), self.factor());
        let (s, dp) = (self.scores(), self.product([rows, m, dv], [false, true], dy, &self.v));
        let (mut p, mut ds) = (vec![0.0f32; rows * m], vec![0.0f32; rows * m]);
        for i in 0..rows {
            let row = i * dv..(i + 1) * dv;
            let dot = sum::chunk([&dy[row.clone()], &o[row]], |[a, b]| a * b);
            let delta = dl[i].mul_add(-(LOG2_E as f32), dot);
            for at in (0..m).filter(|&j| self.is_open(i, j)).map(|j| i * m + j) {
                p[at] = functions::weight((s[at] - tops[i]).mul_add(c, -logs[i]));
                ds[at] = p[at] * (dp[at] - delta);
            }
        }
        let (mut dq, mut dk, mut dv_out) = (vec![0.0; rows * d], vec![0.0; m * d], vec![0.0; m * dv]);
        let add = |to: &mut [f32], from: Vec<f32>| to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
        for r0 in (0..rows).step_by(BLOCK).rev() {
            let count = BLOCK.min(rows - r0);
            let latest = (r0..r0 + count).map(|i| i % n).max().unwrap();
            for j0 in (0..m).step_by(BLOCK).filter(|&j0| !self.case.causal || j0 <= latest) {
                let keys = BLOCK.min(m - j0);
                let tile = |x: &[f32]| -> Vec<f32> {
                    (r0..r0 + count).flat_map(|i| x[i * m + j0..][..keys].to_vec()).collect()
                };
                let (p, ds) = (tile(&p), tile(&ds));
                let turned = [true, false];
                let of_v = self.product([keys, dv, count], turned, &p, &dy[r0 * dv..][..count * dv]);
                add(&mut dv_out[j0 * dv..], of_v);
                add(
                    &mut dk[j0 * d..],
                    self.product([keys, d, count], turned, &ds, &self.q[r0 * d..][..count * d]),
                );
                // Key blocks come in increasing order for each block of queries.
                add(
                    &mut dq[r0 * d..],
                    self.product([count, d, keys], [false; 2], &ds, &self.k[j0 * d..][..keys * d]),
                );
            }
        }
        let scale = self.scale() as f32;
        dq.iter_mut().chain(&mut dk).for_each(|x| *x *= scale);
        [dq, dk, dv_out]
    }
}

/// CPUs of every SIMD level with one to three threads, and a GPU if there is one, in mode `strict`, and what they are.
fn everywhere() -> (Option<impl Drop>, Vec<(String, Device)>) {
    let (turn, all) = devices();
    let levels = Simd::all_available().into_iter().flat_map(|simd| [1, 2, 3].map(|threads| (threads, simd)));
    let cpus = levels.map(|(threads, simd)| {
        (format!("{simd}, {threads} threads"), Device::cpu_with(threads, simd).unwrap())
    });
    (turn, cpus.chain(all.into_iter().skip(1).map(|gpu| (gpu.to_string(), gpu))).collect())
}

#[test]
fn attention_is_that_of_the_contract() {
    let (_turn, all) = everywhere();
    for (c, case) in CASES.iter().enumerate() {
        let data = case.data(c as u64);
        for (mode, digits) in MODES {
            let [y, gradients] = case.defined(digits, &data);
            let odd = case.values == Values::Odd;
            assert!(odd == (y.iter().chain(&gradients).any(|x| x.is_nan())), "{case:?}");
            for (name, device) in &all {
                let device = device.in_mode(mode).unwrap();
                let what = format!("{case:?} on {name} in mode {mode}");
                let got = case.run(&device, &data);
                same(&got[0], &y, &what);
                same(&got[1], &gradients, &format!("gradients of {what}"));
            }
        }
    }
}

#[test]
fn smaller_attention_is_as_in_strict() {
    let (_turn, all) = devices();
    for (c, case) in OTHERS.iter().enumerate() {
        let data = case.data(c as u64);
        for (strict, (mode, _)) in all.iter().flat_map(|d| MODES.map(|mode| (d, mode))) {
            let [want, got] = [strict.clone(), strict.in_mode(mode).unwrap()].map(|d| case.run(&d, &data));
            same(&got[0], &want[0], &format!("{case:?}"));
            same(&got[1], &want[1], &format!("gradients of {case:?}"));
        }
    }
    // The sizes of the contract, whatever checks include.
    let rows = |n, m, d, dv| Digits::of_attention(Numerics::Turbo, n, m, d, dv);
    for (n, m, d, dv) in [(128, 4096, 32, 128), (4096, 128, 128, 32)] {
        assert_eq!(rows(n, m, d, dv), Some(Digits::Two));
        assert_eq!(Digits::of_attention(Numerics::Strict, n, m, d, dv), None);
        assert_eq!(Digits::of_attention(Numerics::Tf32, n, m, d, dv), None);
    }
    assert_eq!([rows(128, 128, 31, 64), rows(128, 128, 64, 129)], [None; 2]);
}

/// Lists `(batch, heads, n, d)` inside the rows of a layer: part `part` of `parts`, `(batch, n, parts, heads, d)`.
fn inside(lists: &[&[f32]], [batch, heads, n, d]: [usize; 4]) -> Tensor {
    let parts = lists.len();
    tensor(&[batch, n, parts, heads, d], |at| {
        let (c, head, part) = (at % d, at / d % heads, at / d / heads % parts);
        let (i, b) = (at / d / heads / parts % n, at / d / heads / parts / n);
        lists[part][((b * heads + head) * n + i) * d + c]
    })
}

#[test]
fn self_attention_is_attention() {
    let (_turn, all) = everywhere();
    let cases = [
        case([2, 3, 1], [65, 65, 32, 32]).causal(),
        case([1, 2, 1], [129, 129, 64, 64]).scale(-0.2),
        case([1, 2, 1], [64, 64, 40, 40]).causal().values(Values::Odd),
    ];
    for (c, case) in cases.iter().enumerate() {
        let data = case.data(c as u64);
        let sizes = [case.heads[0], case.heads[1], case.n, case.d];
        let words = sizes.iter().product::<usize>();
        let qkv = inside(&[data.q.data(), data.k.data(), data.v.data()], sizes);
        for (mode, digits) in MODES {
            let [y, gradients] = case.defined(digits, &data);
            let want_y = [inside(&[&y[..words]], sizes).data(), &y[padded(words)..]].concat();
            let [dq, dk, dv] = [0, 1, 2].map(|part| &gradients[part * padded(words)..][..words]);
            let want = inside(&[dq, dk, dv], sizes);
            let dy = [inside(&[&data.dy.data()[..words]], sizes).data(), &data.dy.data()[padded(words)..]]
                .concat();
            let dy = tensor(&[dy.len()], |at| dy[at]);
            for (name, device) in &all {
                let device = device.in_mode(mode).unwrap();
                let what = format!("{case:?} on {name} in mode {mode}");
                let got = run(&device, &case.op("self_attention"), &[&qkv]);
                same(&got, &want_y, &what);
                let packed = tensor(&[got.len()], |at| got[at]);
                let got = run(&device, &case.op("self_attention_bwd"), &[&qkv, &packed, &dy]);
                same(&got, want.data(), &format!("gradients of {what}"));
            }
        }
    }
}

/// Outputs and gradients in f64, with the factors of all products rounded by `round`.
fn in_f64(case: &Case, data: &Data, round: impl Fn(f64) -> f64) -> [Vec<f64>; 4] {
    let Case { n, m, d, dv, .. } = *case;
    let [q, k, v, dy] = [&data.q, &data.k, &data.v, &data.dy]
        .map(|t| t.data().iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(&a, &b)| round(a) * round(b)).sum::<f64>();
    let scale = case.scale.unwrap_or(1.0 / (d as f64).sqrt());
    let mut out = [vec![0.0; n * dv], vec![0.0; n * d], vec![0.0; m * d], vec![0.0; m * dv]];
    for i in 0..n {
        let (q, dy) = (&q[i * d..][..d], &dy[i * dv..][..dv]);
        let keys = if case.causal { m.min(i + 1) } else { m };
        let s: Vec<f64> = (0..keys).map(|j| dot(q, &k[j * d..][..d]) * scale).collect();
        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let w: Vec<f64> = s.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = w.iter().sum();
        for j in 0..keys {
            (0..dv).for_each(|c| out[0][i * dv + c] += round(w[j]) * round(v[j * dv + c]) / total);
        }
        let delta: f64 = dy.iter().zip(&out[0][i * dv..]).map(|(a, b)| a * b).sum();
        for j in 0..keys {
            let p = w[j] / total;
            let ds = p * (dot(dy, &v[j * dv..][..dv]) - delta);
            for c in 0..d {
                out[1][i * d + c] += round(ds) * round(k[j * d + c]) * scale;
                out[2][j * d + c] += round(ds) * round(q[c]) * scale;
            }
            (0..dv).for_each(|c| out[3][j * dv + c] += round(p) * round(dy[c]));
        }
    }
    out
}

/// A number with 11 bits.
fn tf32(x: f64) -> f64 {
    let bits = (x as f32).to_bits();
    f64::from(f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff))
}

#[test]
fn errors_are_below_those_of_tf32() {
    let (_turn, all) = devices();
    for mut case in [case([1, 1, 1], [256, 256, 64, 64]), case([1, 1, 1], [200, 300, 32, 128]).causal()] {
        for values in [Values::Ordinary, Values::Large] {
            // Large scores, but not such that one weight is all.
            (case.values, case.scale) = (values, (values == Values::Large).then_some(0.01));
            let mut data = case.data(5);
            let words = padded(case.n * case.dv);
            data.dy =
                tensor(&[words + 2 * padded(case.n)], |at| if at < words { data.dy.data()[at] } else { 0.0 });
            let exact = in_f64(&case, &data, |x| x);
            let rounded = in_f64(&case, &data, tf32);
            for (device, (mode, _)) in all.iter().flat_map(|d| MODES.map(|mode| (d, mode))) {
                let [y, gradients] = case.run(&device.in_mode(mode).unwrap(), &data);
                let lens = [case.n * case.d, case.m * case.d, case.m * case.dv];
                let starts = [0, padded(lens[0]), padded(lens[0]) + padded(lens[1])];
                let got = [0, 1, 2].map(|i| gradients[starts[i]..][..lens[i]].to_vec());
                for (i, got) in std::iter::once(y[..case.n * case.dv].to_vec()).chain(got).enumerate() {
                    let size = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                    let norm = size(&mut exact[i].iter().copied());
                    let error = size(&mut got.iter().zip(&exact[i]).map(|(a, b)| f64::from(*a) - b)) / norm;
                    let tf32 = size(&mut rounded[i].iter().zip(&exact[i]).map(|(a, b)| a - b)) / norm;
                    println!("{mode} {values:?} {} result {i}: {error:.1e}, tf32 {tf32:.1e}", case.causal);
                    let limit = if mode == Numerics::Fast { tf32 / 64.0 } else { tf32 };
                    assert!(error < limit, "{case:?} {mode} result {i}: {error:e}, tf32 {tf32:e}");
                }
            }
        }
    }
}

#[test]
fn it_has_the_properties_of_ops() {
    have_properties(&subjects(), &PROPERTIES);
}

/// Attentions that take part.
fn subjects() -> Vec<Subject> {
    let num = |dims: &[usize]| SampleIn::Num(Shape::new(dims).unwrap(), (-1.0, 1.25));
    let cases = [case([1, 1, 1], [33, 65, 32, 40]).causal(), case([1, 1, 2], [40, 64, 32, 32]).scale(-0.1)];
    let plain = cases.map(|case| {
        let [batch, shared, group] = case.heads;
        let ins = [[shared * group, case.n, case.d], [shared, case.m, case.d], [shared, case.m, case.dv]];
        Sample::new(case.op("attention"), ins.map(|[h, n, d]| num(&[batch, h, n, d])).to_vec())
    });
    let inside = Sample::new(cases[0].op("self_attention"), vec![num(&[1, 66, 3, 2, 32])]);
    [("attention", plain.to_vec()), ("self_attention", vec![inside])]
        .map(|(name, samples)| Subject {
            name: name.to_string(),
            samples,
            drawn: Vec::new(),
            rejects: Vec::new(),
        })
        .to_vec()
}
