//! A small Fourier transform in f64 for the solvers. Lengths are powers of two; its factors are computed once.

use std::f64::consts::TAU;

/// Complex numbers with separate real and imaginary parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Complex {
    pub(super) re: Vec<f64>,
    pub(super) im: Vec<f64>,
}

impl Complex {
    /// `n` zeros.
    pub(super) fn zeros(n: usize) -> Complex {
        Complex { re: vec![0.0; n], im: vec![0.0; n] }
    }
}

/// `e^(-2πi j/n)` as `(re, im)`.
fn turn(j: usize, n: usize) -> (f64, f64) {
    let angle = TAU * (j as f64 / n as f64);
    (libm::cos(angle), -libm::sin(angle))
}

/// A radix-4 (or radix-2) step. `rest` is the length of the transforms before it; there are `stride` of them,
/// interleaved.
struct Stage {
    radix: usize,
    rest: usize,
    stride: usize,
    /// For every position below `rest / radix`, its twiddle factors of powers 1 to 3.
    factors: Vec<[(f64, f64); 3]>,
}

/// Transforms of `n` real numbers, as `n / 2` complex ones.
pub(super) struct RealFft {
    half: usize,
    stages: Vec<Stage>,
    /// `e^(-2πi k/n)` for `k` up to `n / 2`.
    turns: Vec<(f64, f64)>,
    a: Complex,
    b: Complex,
    /// The numbers from 0 to `n / 2` of an inverse transform.
    pad: Complex,
}

impl RealFft {
    /// For `n` numbers, a power of two from 4.
    pub(super) fn new(n: usize) -> RealFft {
        let half = n / 2;
        let (mut stages, mut rest) = (Vec::new(), half);
        while rest > 1 {
            let radix = if rest % 4 == 0 { 4 } else { 2 };
            let factors =
                (0..rest / radix).map(|p| [turn(p, rest), turn(2 * p, rest), turn(3 * p, rest)]).collect();
            stages.push(Stage { radix, rest, stride: half / rest, factors });
            rest /= radix;
        }
        let turns = (0..=half).map(|k| turn(k, n)).collect();
        let zeros = || Complex::zeros(half);
        RealFft { half, stages, turns, a: zeros(), b: zeros(), pad: Complex::zeros(half + 1) }
    }

    /// `Σ_j u[j] e^(-2πi jk/n)` for `k` below the length of `out`, at most `n / 2`.
    pub(super) fn forward(&mut self, u: &[f64], out: &mut Complex) {
        let h = self.half;
        for (j, pair) in u.chunks_exact(2).enumerate() {
            (self.a.re[j], self.a.im[j]) = (pair[0], pair[1]);
        }
        complex(&self.stages, &mut self.a, &mut self.b);
        let z = &self.a;
        (out.re[0], out.im[0]) = (z.re[0] + z.im[0], 0.0);
        for k in 1..out.re.len().min(h) {
            let j = h - k;
            let (er, ei) = (0.5 * (z.re[k] + z.re[j]), 0.5 * (z.im[k] - z.im[j]));
            let (dr, di) = (0.5 * (z.re[k] - z.re[j]), 0.5 * (z.im[k] + z.im[j]));
            let (wr, wi) = self.turns[k];
            // -i (d w)
            out.re[k] = er + (dr * wi + di * wr);
            out.im[k] = ei - (dr * wr - di * wi);
        }
        if out.re.len() > h {
            (out.re[h], out.im[h]) = (z.re[0] - z.im[0], 0.0);
        }
    }

    /// `Σ_k c[k] e^(2πi jk/n)` over all `k` from above `-n/2` to `n/2`. Negative `k` are the conjugates of positive
    /// ones, and missing entries of `c` are 0.
    pub(super) fn inverse(&mut self, c: &Complex, u: &mut [f64]) {
        let h = self.half;
        let (known, pad) = (c.re.len(), &mut self.pad);
        pad.re[..known].copy_from_slice(&c.re);
        pad.im[..known].copy_from_slice(&c.im);
        pad.re[known..].fill(0.0);
        pad.im[known..].fill(0.0);
        let (re, im) = (&pad.re[..h + 1], &pad.im[..h + 1]);
        for (k, (wr, wi)) in self.turns[..h].iter().enumerate() {
            let (ar, ai, br, bi) = (re[k], im[k], re[h - k], im[h - k]);
            let (er, ei) = (ar + br, ai - bi);
            let (dr, di) = (ar - br, ai + bi);
            // o = d · conj(w); z = e + i o
            let (or, oi) = (dr * wr + di * wi, di * wr - dr * wi);
            self.a.re[k] = er - oi;
            self.a.im[k] = ei + or;
        }
        // With real and imaginary parts swapped, the forward transform is the inverse.
        std::mem::swap(&mut self.a.re, &mut self.a.im);
        complex(&self.stages, &mut self.a, &mut self.b);
        std::mem::swap(&mut self.a.re, &mut self.a.im);
        for (j, pair) in u.chunks_exact_mut(2).enumerate() {
            (pair[0], pair[1]) = (self.a.re[j], self.a.im[j]);
        }
    }
}

/// The forward transform of `a`, in order, with `b` as scratch (Stockham's algorithm, so no reordering is needed).
fn complex(stages: &[Stage], a: &mut Complex, b: &mut Complex) {
    for stage in stages {
        match (stage.radix, stage.stride) {
            (4, 1) => first_fours(stage, a, b),
            (4, _) => fours(stage, a, b),
            _ => twos(stage, a, b),
        }
        std::mem::swap(a, b);
    }
}

fn fours(stage: &Stage, x: &Complex, y: &mut Complex) {
    let (s, m) = (stage.stride, stage.rest / 4);
    let outs = y.re.chunks_exact_mut(4 * s).zip(y.im.chunks_exact_mut(4 * s));
    for ((p, [w1, w2, w3]), (re, im)) in stage.factors.iter().enumerate().zip(outs) {
        let [ar, br, cr, dr] = [0, 1, 2, 3].map(|i| &x.re[s * (p + i * m)..][..s]);
        let [ai, bi, ci, di] = [0, 1, 2, 3].map(|i| &x.im[s * (p + i * m)..][..s]);
        let (re0, re) = re.split_at_mut(s);
        let (re1, re) = re.split_at_mut(s);
        let (re2, re3) = re.split_at_mut(s);
        let (im0, im) = im.split_at_mut(s);
        let (im1, im) = im.split_at_mut(s);
        let (im2, im3) = im.split_at_mut(s);
        for q in 0..s {
            let inputs = [(ar[q], ai[q]), (br[q], bi[q]), (cr[q], ci[q]), (dr[q], di[q])];
            let [o0, o1, o2, o3] = four(inputs, w1, w2, w3);
            (re0[q], im0[q]) = o0;
            (re1[q], im1[q]) = o1;
            (re2[q], im2[q]) = o2;
            (re3[q], im3[q]) = o3;
        }
    }
}

/// The first stage, for which the inner loop of [`fours`] would run once.
fn first_fours(stage: &Stage, x: &Complex, y: &mut Complex) {
    let m = stage.rest / 4;
    let outs = y.re.chunks_exact_mut(4).zip(y.im.chunks_exact_mut(4));
    let [ar, br, cr, dr] = [0, 1, 2, 3].map(|i| &x.re[i * m..][..m]);
    let [ai, bi, ci, di] = [0, 1, 2, 3].map(|i| &x.im[i * m..][..m]);
    for ((p, [w1, w2, w3]), (re, im)) in stage.factors[..m].iter().enumerate().zip(outs) {
        let inputs = [(ar[p], ai[p]), (br[p], bi[p]), (cr[p], ci[p]), (dr[p], di[p])];
        for (i, o) in four(inputs, w1, w2, w3).into_iter().enumerate() {
            (re[i], im[i]) = o;
        }
    }
}

type Pair = (f64, f64);

/// The transform of four numbers; three results are multiplied by twiddle factors.
#[inline(always)]
fn four([a, b, c, d]: [Pair; 4], w1: &Pair, w2: &Pair, w3: &Pair) -> [Pair; 4] {
    let times = |u: Pair, w: &Pair| (u.0 * w.0 - u.1 * w.1, u.0 * w.1 + u.1 * w.0);
    let (s, m, t) = ((a.0 + c.0, a.1 + c.1), (a.0 - c.0, a.1 - c.1), (b.0 + d.0, b.1 + d.1));
    // i (b - d)
    let j = (d.1 - b.1, b.0 - d.0);
    [
        (s.0 + t.0, s.1 + t.1),
        times((m.0 - j.0, m.1 - j.1), w1),
        times((s.0 - t.0, s.1 - t.1), w2),
        times((m.0 + j.0, m.1 + j.1), w3),
    ]
}

fn twos(stage: &Stage, x: &Complex, y: &mut Complex) {
    let (s, m) = (stage.stride, stage.rest / 2);
    let outs = y.re.chunks_exact_mut(2 * s).zip(y.im.chunks_exact_mut(2 * s));
    for ((p, [w, ..]), (re, im)) in stage.factors.iter().enumerate().zip(outs) {
        let (a, b) = (s * p..s * (p + 1), s * (p + m)..s * (p + m + 1));
        let (ar, br, ai, bi) = (&x.re[a.clone()], &x.re[b.clone()], &x.im[a], &x.im[b]);
        let (re0, re1) = re.split_at_mut(s);
        let (im0, im1) = im.split_at_mut(s);
        for q in 0..s {
            (re0[q], im0[q]) = (ar[q] + br[q], ai[q] + bi[q]);
            let (ur, ui) = (ar[q] - br[q], ai[q] - bi[q]);
            (re1[q], im1[q]) = (ur * w.0 - ui * w.1, ur * w.1 + ui * w.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::rng::Stream;

    #[test]
    fn transforms_are_the_definition() {
        for n in [4usize, 8, 16, 32, 64, 128, 256] {
            let mut stream = Stream::new(1, n as u64);
            let u: Vec<f64> = (0..n).map(|_| f64::from(stream.uniform()) - 0.5).collect();
            let mut fft = RealFft::new(n);
            let mut c = Complex::zeros(n / 2 + 1);
            fft.forward(&u, &mut c);
            for k in 0..=n / 2 {
                let (mut re, mut im) = (0.0, 0.0);
                for (j, u) in u.iter().enumerate() {
                    let (a, b) = turn(j * k % n, n);
                    re += u * a;
                    im += u * b;
                }
                assert!((re - c.re[k]).abs() < 1e-12 && (im - c.im[k]).abs() < 1e-12, "{n} {k}");
            }
            let mut back = vec![0.0; n];
            fft.inverse(&c, &mut back);
            assert!(u.iter().zip(&back).all(|(u, b)| (u - b / n as f64).abs() < 1e-15 * n as f64), "{n}");
        }
    }
}
