//! Burgers' equation, the usual first problem of neural operators: from an initial field to the field later.

use super::Dataset;
use super::fft::{Complex, RealFft};
use super::make::{parallel, stream};
use crate::error::{Error, Result};
use crate::numerics::environment;
use std::f64::consts::{SQRT_2, TAU};

const SET: u64 = 0x6275_7267;
/// Default viscosity.
const VISCOSITY: f64 = 0.1;
/// Waves of an initial field, the same for all grids, so that fields are the same on all grids.
const WAVES: usize = 85;
/// Finest allowed grid.
const MAX_GRID: usize = 8192;
/// In one step at the field's largest speed, a wave of the shortest length turns by at most this angle. The method
/// alone would not be stable with such steps, but viscosity damps these waves.
const TURN: f64 = 4.0;
/// Times that get the same number of steps: a field changes fastest in the beginning.
const STAGES: [f64; 4] = [0.1, 0.15, 0.25, 0.5];
/// Fewest steps of a stage.
const STEPS: f64 = 64.0;

/// `samples` solutions of `u_t + u u_x = 0.1 u_xx`, periodic on `[0, 1)`. Inputs `(N, grid, 2)` are the initial field
/// and the position `x`; targets `(N, grid, 1)` are the field at time 1. See [`burgers_with`].
#[track_caller]
pub fn burgers(seed: u64, samples: usize, grid: usize) -> Result<Dataset> {
    burgers_with(VISCOSITY, seed, samples, grid)
}

/// [`burgers`] with another viscosity from 0.001 to 10. A small one makes steeper fields and takes longer.
///
/// Initial fields are normal draws with mean 0 and covariance `625 (-Δ + 25)^-2`, without the constant part (the mean
/// of a field never changes), up to the 85th wave. They are solved in f64 on at least 256 points by a pseudo-spectral
/// method with the 2/3 rule against aliasing, an integrating factor and fourth-order Runge–Kutta steps. The same sample
/// on another `grid`, a power of two from 4 to 8192, is the same field at other points.
#[track_caller]
pub fn burgers_with(viscosity: f64, seed: u64, samples: usize, grid: usize) -> Result<Dataset> {
    let _strict = environment::enter();
    if !(0.001..=10.0).contains(&viscosity) {
        return Err(Error::argument("burgers", "viscosity", format!("got {viscosity}, use 0.001 to 10")));
    }
    if !grid.is_power_of_two() || !(4..=MAX_GRID).contains(&grid) {
        let why = format!("got {grid}, use a power of two from 4 to {MAX_GRID}");
        return Err(Error::argument("burgers", "grid", why));
    }
    let (x, y) = parallel("burgers", samples, &[grid, 2], &[grid, 1], || {
        let mut solver = Solver::new(viscosity);
        let mut wide = RealFft::new(grid.max(solver.points));
        let mut field = vec![0.0; grid.max(solver.points)];
        let step = field.len() / grid;
        move |i, x: &mut [f32], y: &mut [f32]| {
            solver.start(seed, i);
            wide.inverse(&solver.now, &mut field);
            for (j, (x, u)) in x.chunks_exact_mut(2).zip(field.iter().step_by(step)).enumerate() {
                x.copy_from_slice(&[*u as f32, j as f32 / grid as f32]);
            }
            let steps = solver.steps();
            solver.run(steps);
            wide.inverse(&solver.now, &mut field);
            y.iter_mut().zip(field.iter().step_by(step)).for_each(|(y, u)| *y = *u as f32);
        }
    })?;
    Dataset::new("burgers", x, y, None)
}

/// A field as waves `c[k]` of `Σ_k c[k] e^(2πi kx)`, and the scratch to advance it in time.
struct Solver {
    viscosity: f64,
    points: usize,
    fft: RealFft,
    now: Complex,
    field: Vec<f64>,
    square: Complex,
    /// The four slopes, and the field they are evaluated at.
    slopes: [Complex; 4],
    at: Complex,
    /// The factor by which viscosity damps every wave in half a step.
    decay: Vec<f64>,
}

impl Solver {
    fn new(viscosity: f64) -> Solver {
        // The steepest fronts are a few times as wide as the viscosity.
        let points = ((2.56 / viscosity) as usize).next_power_of_two().max(256);
        // Below a third of the points, so that the square of a wave does not alias onto any of them.
        let zeros = || Complex::zeros((points - 1) / 3 + 1);
        Solver {
            viscosity,
            points,
            fft: RealFft::new(points),
            now: zeros(),
            field: vec![0.0; points],
            square: zeros(),
            slopes: [zeros(), zeros(), zeros(), zeros()],
            at: zeros(),
            decay: vec![0.0; zeros().re.len()],
        }
    }

    /// The initial field of sample `i`.
    fn start(&mut self, seed: u64, i: usize) {
        let mut stream = stream(seed, SET, i);
        self.now.re.fill(0.0);
        self.now.im.fill(0.0);
        for k in 1..=WAVES {
            let wave = TAU * k as f64;
            // √2 (a cos - b sin) is half a wave and half its conjugate.
            let size = 25.0 / (wave * wave + 25.0) * (SQRT_2 / 2.0);
            self.now.re[k] = size * f64::from(stream.normal());
            self.now.im[k] = size * f64::from(stream.normal());
        }
    }

    /// Steps per stage that are enough for the field. Its speed never exceeds the initial one, nor `1 / 2t` at time
    /// `t`.
    fn steps(&mut self) -> usize {
        self.fft.inverse(&self.now, &mut self.field);
        let speed = self.field.iter().fold(0.0f64, |m, u| m.max(u.abs()));
        let turns = |(i, time): (usize, &f64)| {
            let begin: f64 = STAGES[..i].iter().sum();
            speed.min(0.5 / begin) * time
        };
        let most = STAGES.iter().enumerate().map(turns).fold(0.0, f64::max);
        (most * TAU * self.now.re.len() as f64 / TURN).ceil().max(STEPS) as usize
    }

    /// Advances the field to time 1, with this many steps per stage.
    fn run(&mut self, steps: usize) {
        for stage in STAGES {
            let time = stage / steps as f64;
            for (k, d) in self.decay.iter_mut().enumerate() {
                let wave = TAU * k as f64;
                *d = libm::exp(-0.5 * time * self.viscosity * wave * wave);
            }
            for _ in 0..steps {
                self.step(time);
            }
        }
    }

    /// `-½ time (u²)_x` of the field `at`, into a slope.
    fn slope(&mut self, which: usize, time: f64) {
        self.fft.inverse(&self.at, &mut self.field);
        self.field.iter_mut().for_each(|u| *u *= *u);
        self.fft.forward(&self.field, &mut self.square);
        let scale = -0.5 * time * TAU / self.points as f64;
        let (out, square) = (&mut self.slopes[which], &self.square);
        for k in 0..square.re.len() {
            let factor = scale * k as f64;
            (out.re[k], out.im[k]) = (-factor * square.im[k], factor * square.re[k]);
        }
    }

    /// Sets `at` to a formula of the decay, the field and the slopes, for real and imaginary parts.
    fn set(&mut self, f: impl Fn(f64, f64, [f64; 4]) -> f64) {
        let Solver { now, slopes: [a, b, c, d], at, decay, .. } = self;
        for (k, &e) in decay.iter().enumerate() {
            at.re[k] = f(e, now.re[k], [a.re[k], b.re[k], c.re[k], d.re[k]]);
            at.im[k] = f(e, now.im[k], [a.im[k], b.im[k], c.im[k], d.im[k]]);
        }
    }

    fn step(&mut self, time: f64) {
        self.set(|_, u, _| u);
        self.slope(0, time);
        self.set(|e, u, [a, ..]| e * (u + 0.5 * a));
        self.slope(1, time);
        self.set(|e, u, [_, b, ..]| e * u + 0.5 * b);
        self.slope(2, time);
        self.set(|e, u, [_, _, c, _]| e * (e * u + c));
        self.slope(3, time);
        self.set(|e, u, [a, b, c, d]| {
            e * (e * (u + a * (1.0 / 6.0)) + (b + c) * (1.0 / 3.0)) + d * (1.0 / 6.0)
        });
        std::mem::swap(&mut self.now, &mut self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;

    /// Relative distance of two lists of waves.
    fn distance(a: &Complex, b: &Complex) -> f64 {
        let (mut off, mut size) = (0.0, 0.0);
        for k in 0..a.re.len() {
            let (re, im) = (a.re[k] - b.re[k], a.im[k] - b.im[k]);
            off += re * re + im * im;
            size += b.re[k] * b.re[k] + b.im[k] * b.im[k];
        }
        (off / size).sqrt()
    }

    #[test]
    fn half_the_step_changes_nothing_that_matters() {
        for (viscosity, samples) in [(0.1, 6), (0.01, 2)] {
            for i in 0..samples {
                let mut solver = Solver::new(viscosity);
                solver.start(3, i);
                let (start, steps) = (solver.now.clone(), solver.steps());
                let mut solve = |steps| {
                    solver.now = start.clone();
                    solver.run(steps);
                    solver.now.clone()
                };
                let off = distance(&solve(steps), &solve(2 * steps));
                assert!(off < 1e-6, "viscosity {viscosity}, sample {i}: {off:e} in {steps} steps");
            }
        }
    }

    /// Cole and Hopf: `u = -2ν φ_x / φ`, where `φ` obeys the heat equation and is `e^(-∫u / 2ν)` at the start.
    #[test]
    fn solutions_are_the_exact_ones() {
        for (viscosity, samples) in [(0.1, 6), (0.02, 3)] {
            let n = 4096;
            let mut fft = RealFft::new(n);
            for i in 0..samples {
                let mut solver = Solver::new(viscosity);
                solver.start(5, i);
                let mut waves = Complex::zeros(n / 2);
                let mut field = vec![0.0; n];
                for k in 1..solver.now.re.len() {
                    let wave = TAU * k as f64;
                    (waves.re[k], waves.im[k]) = (solver.now.im[k] / wave, -solver.now.re[k] / wave);
                }
                fft.inverse(&waves, &mut field);
                field.iter_mut().for_each(|u| *u = libm::exp(-*u / (2.0 * viscosity)));
                fft.forward(&field, &mut waves);
                for k in 0..n / 2 {
                    let wave = TAU * k as f64;
                    let decay = libm::exp(-viscosity * wave * wave) / n as f64;
                    waves.re[k] *= decay;
                    waves.im[k] *= decay;
                }
                fft.inverse(&waves, &mut field);
                let mut slopes = waves.clone();
                for k in 0..n / 2 {
                    let wave = TAU * k as f64;
                    (slopes.re[k], slopes.im[k]) = (-wave * waves.im[k], wave * waves.re[k]);
                }
                let mut slope = vec![0.0; n];
                fft.inverse(&slopes, &mut slope);
                let exact: Vec<f64> =
                    slope.iter().zip(&field).map(|(s, f)| -2.0 * viscosity * s / f).collect();
                let steps = solver.steps();
                solver.run(steps);
                let mut got = vec![0.0; solver.points];
                solver.fft.inverse(&solver.now, &mut got);
                let (mut off, mut size) = (0.0, 0.0);
                for (g, e) in got.iter().zip(exact.iter().step_by(n / solver.points)) {
                    off += (g - e) * (g - e);
                    size += e * e;
                }
                let off = f64::sqrt(off / size);
                assert!(off < 1e-6, "viscosity {viscosity}, sample {i}: {off:e}");
            }
        }
    }

    #[test]
    fn bits_are_the_committed_ones() {
        let data = burgers(7, 4, 64).unwrap();
        assert_eq!(
            (hash(data.x()).as_str(), hash(data.y()).as_str()),
            ("26e5c6560f85eb9c", "97c79cdf64b5393a")
        );
    }

    #[test]
    fn a_sample_is_the_same_field_in_any_set() {
        let (few, many) = (burgers(2, 1, 16).unwrap(), burgers(2, 3, 32).unwrap());
        let numbers = |t: &crate::tensor::AnyTensor| t.num().unwrap().data().to_vec();
        let (few, many) = (numbers(few.x()), numbers(many.x()));
        assert!(few.chunks(2).zip(many.chunks(2).step_by(2)).all(|(a, b)| a == b));
        assert!(many[..64].chunks(2).enumerate().all(|(j, p)| p[1] == j as f32 / 32.0));
        let fine = numbers(burgers(2, 1, 1024).unwrap().x());
        assert!(few.chunks(2).zip(fine.chunks(2).step_by(64)).all(|(a, b)| (a[0] - b[0]).abs() < 1e-6));
        // The means of a field and of its solution are 0.
        let data = burgers(2, 2, 256).unwrap();
        assert!(numbers(data.y()).chunks(256).all(|u| u.iter().sum::<f32>().abs() < 1e-4));
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        assert!(burgers(1, 0, 64).is_err() && burgers(1, usize::MAX, 64).is_err());
        assert!(burgers(1, 1, 0).is_err() && burgers(1, 1, 65).is_err() && burgers(1, 1, 1 << 20).is_err());
        assert!(burgers_with(0.0, 1, 1, 64).is_err() && burgers_with(f64::NAN, 1, 1, 64).is_err());
    }
}
