//! Initial values of parameters. Draws are made on the device from the parameters' seed, one random call for each
//! parameter, and have the same bits on every device.

use super::{Param, Params};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::{AnyBuffer, Backend};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::collected;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::random::{Normal, Uniform};

/// Which side of a weight the variance is kept on, by Kaiming's initialisers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Inputs of an output: values keep their size going forward.
    In,
    /// Outputs of an input: gradients keep theirs going back.
    Out,
}

/// Inputs of an output and outputs of an input of a weight `[out, in, spatial…]`.
#[track_caller]
fn fans(op: &str, dims: &[usize]) -> Result<(f64, f64)> {
    let shape = Shape::new(dims)?;
    let [out, inner, spatial @ ..] = dims else {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: shape }));
    };
    if shape.numel() == 0 {
        return Err(Error::argument(op, "dims", format!("{shape} has no elements, so there is no fan")));
    }
    let field: usize = spatial.iter().product();
    Ok(((inner * field) as f64, (out * field) as f64))
}

#[track_caller]
fn check_gain(op: &'static str, gain: f64) -> Result<()> {
    if gain >= 0.0 && gain.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, "gain", format!("got {gain}, use a finite number that is not negative")))
}

impl Params {
    /// A parameter of zeros.
    #[track_caller]
    pub fn zeros(&mut self, name: &str, dims: &[usize]) -> Result<Param> {
        self.full(name, dims, 0.0)
    }

    /// A parameter of ones.
    #[track_caller]
    pub fn ones(&mut self, name: &str, dims: &[usize]) -> Result<Param> {
        self.full(name, dims, 1.0)
    }

    /// A parameter with every element `value`.
    #[track_caller]
    pub fn full(&mut self, name: &str, dims: &[usize], value: f64) -> Result<Param> {
        let _strict = environment::enter();
        let value = AnyBuffer::full(self.device(), self.room(name, dims)?, value as f32)?;
        self.add(name, value)
    }

    /// A parameter drawn uniformly from `[lo, hi)`, on the device: `lo + u (hi - lo)`. The draws depend on
    /// the seed and on how many parameters came before, not on the device.
    #[track_caller]
    pub fn uniform(&mut self, name: &str, dims: &[usize], lo: f64, hi: f64) -> Result<Param> {
        let _strict = environment::enter();
        if !(lo.is_finite() && hi.is_finite() && lo <= hi) {
            return Err(Error::argument("parameter", "range", format!("{lo}..{hi} is not a range")));
        }
        let shape = self.room(name, dims)?;
        let draw = Uniform { shape, seed: self.seed(), counter: self.len() as u64 };
        let u = dittograd_ops::apply(self.device(), &draw.into(), &[])?;
        let scale = Pointwise::trace(1, |x| vec![Expr::c(lo) + x[0] * Expr::c(hi - lo)]);
        let value = dittograd_ops::apply(self.device(), &Map::new(scale, shape).into(), &[&u])?;
        self.add(name, value)
    }

    #[track_caller]
    fn normals(&self, shape: Shape, mean: f64, std: f64) -> Result<AnyBuffer> {
        let _strict = environment::enter();
        let (mean, std) = (mean as f32, std as f32);
        let draw = Normal { shape, seed: self.seed(), counter: self.len() as u64, mean, std };
        dittograd_ops::apply(self.device(), &draw.into(), &[])
    }

    /// A parameter of normal draws, on the device; as those of [`Params::uniform`] they depend on the seed and on
    /// how many parameters came before.
    #[track_caller]
    pub fn normal(&mut self, name: &str, dims: &[usize], mean: f64, std: f64) -> Result<Param> {
        if std < 0.0 {
            return Err(Error::argument("parameter", "std", format!("got {std}, which is below 0")));
        }
        let value = self.normals(self.room(name, dims)?, mean, std)?;
        self.add(name, value)
    }

    /// Xavier's (Glorot's) uniform draws within `gain sqrt(6 / (fan_in + fan_out))` for a weight `[out, in, spatial…]`.
    #[track_caller]
    pub fn xavier_uniform(&mut self, name: &str, dims: &[usize], gain: f64) -> Result<Param> {
        let _strict = environment::enter();
        check_gain("xavier_uniform", gain)?;
        let (fan_in, fan_out) = fans("xavier_uniform", dims)?;
        let limit = gain * (6.0 / (fan_in + fan_out)).sqrt();
        self.uniform(name, dims, -limit, limit)
    }

    /// Xavier's normal draws of standard deviation `gain sqrt(2 / (fan_in + fan_out))`.
    #[track_caller]
    pub fn xavier_normal(&mut self, name: &str, dims: &[usize], gain: f64) -> Result<Param> {
        let _strict = environment::enter();
        check_gain("xavier_normal", gain)?;
        let (fan_in, fan_out) = fans("xavier_normal", dims)?;
        self.normal(name, dims, 0.0, gain * (2.0 / (fan_in + fan_out)).sqrt())
    }

    /// Kaiming's (He's) uniform draws within `gain sqrt(3 / fan)` for a weight `[out, in, spatial…]`. The gain of relu is
    /// `sqrt(2)`, that of leaky relu `sqrt(2 / (1 + slope^2))`, that of tanh 5/3, that of nothing 1.
    #[track_caller]
    pub fn kaiming_uniform(&mut self, name: &str, dims: &[usize], fan: Fan, gain: f64) -> Result<Param> {
        let _strict = environment::enter();
        check_gain("kaiming_uniform", gain)?;
        let (fan_in, fan_out) = fans("kaiming_uniform", dims)?;
        let fan = if fan == Fan::In { fan_in } else { fan_out };
        let limit = gain * (3.0 / fan).sqrt();
        self.uniform(name, dims, -limit, limit)
    }

    /// Kaiming's normal draws of standard deviation `gain / sqrt(fan)`.
    #[track_caller]
    pub fn kaiming_normal(&mut self, name: &str, dims: &[usize], fan: Fan, gain: f64) -> Result<Param> {
        let _strict = environment::enter();
        check_gain("kaiming_normal", gain)?;
        let (fan_in, fan_out) = fans("kaiming_normal", dims)?;
        let fan = if fan == Fan::In { fan_in } else { fan_out };
        self.normal(name, dims, 0.0, gain / fan.sqrt())
    }

    /// `gain` times a random matrix `[out, in spatial…]` whose shorter side is orthonormal. The normal draws are made on the
    /// device and orthogonalised on the host, vector by vector.
    #[track_caller]
    pub fn orthogonal(&mut self, name: &str, dims: &[usize], gain: f64) -> Result<Param> {
        let _strict = environment::enter();
        check_gain("orthogonal", gain)?;
        let shape = self.room(name, dims)?;
        let [rows, ..] = dims else {
            return Err(Error::new("orthogonal", ErrorKind::Rank { want: "at least 2", got: shape }));
        };
        if dims.len() < 2 {
            return Err(Error::new("orthogonal", ErrorKind::Rank { want: "at least 2", got: shape }));
        }
        let draws = self.normals(shape, 0.0, 1.0)?.to_tensor::<f32>()?.into_data();
        let columns = shape.numel().checked_div(*rows).unwrap_or(0);
        let orthogonal = |pool: &Pool, simd| orthogonal(pool, simd, draws, *rows, columns, gain as f32);
        let value = match self.device().backend() {
            Backend::Cpu(cpu) => orthogonal(&cpu.pool, cpu.simd),
            Backend::Cuda(_) | Backend::Host(_) => {
                let threads = std::thread::available_parallelism().map_or(1, usize::from);
                orthogonal(&Pool::new(threads), Simd::best())
            }
        }?;
        let value = AnyBuffer::upload(self.device(), &Tensor::with_shape(shape, value)?)?;
        self.add(name, value)
    }
}

simd_fn! {
    /// A chunk of a dot product by the row rule.
    fn dot_chunk(simd, x: &[f32], y: &[f32]) -> f32 {
        sum::chunk([x, y], |[x, y]| x * y)
    }
}

simd_fn! {
    /// `y - c x`, each element by one fma.
    fn take_off(simd, c: f32, x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = (-c).mul_add(*x, *y));
    }
}

fn dot(simd: Simd, x: &[f32], y: &[f32]) -> f32 {
    sum::row(x.len(), |r| dot_chunk(simd, &x[r.clone()], &y[r]))
}

/// Takes the part along each row of `q` off `v`, one row after the other.
fn take_off_all(simd: Simd, q: &[f32], v: &mut [f32]) {
    for u in q.chunks_exact(v.len()) {
        take_off(simd, dot(simd, u, v), u, v);
    }
}

/// Rows that are finished before all others have them taken off.
const PANEL: usize = 32;

/// Gram and Schmidt's way, twice over, on the rows or columns of a matrix, whichever are fewer. The second time has to wait
/// for the row before; the first time is done on all threads, for all later rows once a few are finished.
#[track_caller]
fn orthogonal(
    pool: &Pool,
    simd: Simd,
    a: Vec<f32>,
    rows: usize,
    columns: usize,
    gain: f32,
) -> Result<Vec<f32>> {
    let wide = rows <= columns;
    let (count, len) = (rows.min(columns), rows.max(columns));
    let transposed = |a: &[f32], rows: usize, columns: usize| {
        collected("orthogonal", (0..a.len()).map(|i| a[i % rows * columns + i / rows]))
    };
    let mut q = if wide { a } else { transposed(&a, rows, columns)? };
    for from in (0..count).step_by(PANEL) {
        let to = count.min(from + PANEL);
        for i in from..to {
            let (before, rest) = q.split_at_mut(i * len);
            let v = &mut rest[..len];
            take_off_all(simd, &before[from * len..], v);
            take_off_all(simd, before, v);
            let scale = 1.0 / dot(simd, v, v).sqrt();
            v.iter_mut().for_each(|x| *x *= scale);
        }
        let (done, rest) = q.split_at_mut(to * len);
        pool.chunks_mut(rest, len, |_, v| take_off_all(simd, &done[from * len..], v));
    }
    q.iter_mut().for_each(|x| *x *= gain);
    if wide { Ok(q) } else { transposed(&q, columns, rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, row by row.
    fn one_by_one(mut q: Vec<f32>, count: usize, len: usize) -> Vec<f32> {
        let simd = Simd::Scalar;
        for i in 0..count {
            for _ in 0..2 {
                for j in 0..i {
                    let (before, rest) = q.split_at_mut(i * len);
                    let (u, v) = (&before[j * len..(j + 1) * len], &mut rest[..len]);
                    take_off(simd, dot(simd, u, v), u, v);
                }
            }
            let v = &mut q[i * len..(i + 1) * len];
            let scale = 1.0 / dot(simd, v, v).sqrt();
            v.iter_mut().for_each(|x| *x *= scale);
        }
        q
    }

    #[test]
    fn panels_and_threads_change_no_bit() {
        let mut stream = dittograd_numerics::rng::Stream::new(3, 0);
        for (count, len) in [(1, 1), (5, 7), (32, 32), (33, 40), (70, 1100), (100, 100)] {
            let a: Vec<f32> = (0..count * len).map(|_| stream.range(-1.0, 1.0)).collect();
            let want = one_by_one(a.clone(), count, len);
            for (threads, simd) in [(1, Simd::Scalar), (1, Simd::best()), (3, Simd::best())] {
                let got = orthogonal(&Pool::new(threads), simd, a.clone(), count, len, 1.0).unwrap();
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&want), "{count} x {len} on {threads} threads");
            }
        }
        assert!(orthogonal(&Pool::new(2), Simd::best(), Vec::new(), 0, 5, 1.0).unwrap().is_empty());
    }
}
