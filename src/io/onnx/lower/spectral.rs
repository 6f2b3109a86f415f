//! Fourier transforms as products with tables, and what is done with their modes.

use super::super::proto::Value;
use super::Lowering;
use super::nodes::around;
use super::op::Place;
use crate::error::Result;
use crate::ops::Op;
use crate::ops::spectral::DftTable;

/// Longest line whose transform is written as a product with a table, which has the square of so many elements.
const MAX_LINE: usize = 4096;

/// The plain and the weighted table, one after the other, each number rounded to float32.
pub(super) fn tables(op: &DftTable) -> Result<Vec<f32>> {
    Ok(op.reference::<f64>(&[])?.data().iter().map(|x| *x as f32).collect())
}

impl Lowering<'_> {
    /// The plain table of a transform, or the weighted one.
    fn table(&mut self, n: usize, modes: usize, weighted: bool) -> Result<Value> {
        let op = DftTable { n, low: modes, high: 0, complex: false };
        let both = tables(&op)?;
        let (plain, scaled) = both.split_at(2 * modes * n);
        Ok(self.numbers(&[2 * modes, n], if weighted { scaled } else { plain }))
    }

    /// Modes of the transform of a line, if it is not too long for a table.
    fn line(&self, place: &Place<'_>, n: usize) -> Result<usize> {
        if n <= MAX_LINE {
            return Ok(n / 2 + 1);
        }
        Err(place.none(&format!(
            "its line of {n} points is longer than {MAX_LINE}; use spectral_conv, which keeps few modes"
        )))
    }

    /// A spectrum times complex weights, with any axes before it.
    pub(super) fn modes(&mut self, ins: &[Value], adjoint: bool, dims: &[usize]) -> Value {
        let (lead, last) = ins[0].dims.split_at(ins[0].rank() - 3);
        let four = [&[lead.iter().product()], last].concat();
        let x = self.reshape(&ins[0], &four);
        let y = self.mode_mix(&x, [&ins[1], &ins[2]], adjoint);
        self.reshape(&y, dims)
    }

    /// A spectrum (batch, 2, modes, c) times complex weights (modes, c, o), mode by mode.
    fn mode_mix(&mut self, x: &Value, [re, im]: [&Value; 2], adjoint: bool) -> Value {
        let x = self.transpose(x, &[1, 2, 0, 3]);
        let (xr, xi) = (self.entry(&x, 0), self.entry(&x, 1));
        let (re, mut im) = (self.turned(re, adjoint), self.turned(im, adjoint));
        if adjoint {
            im = self.unary("Neg", &im);
        }
        let mut both = Vec::new();
        for (a, b, op) in [(&re, &im, "Sub"), (&im, &re, "Add")] {
            let (first, second) = (self.matmul(&xr, a), self.matmul(&xi, b));
            let sum = self.binary(op, &first, &second);
            let dims = [&[1], &sum.dims[..]].concat();
            both.push(self.reshape(&sum, &dims));
        }
        let both = self.concat(&both.iter().collect::<Vec<_>>(), 0);
        self.transpose(&both, &[2, 0, 1, 3])
    }

    /// To the lowest modes, times weights, and back.
    pub(super) fn spectral_conv(&mut self, ins: &[Value], dims: &[usize]) -> Result<Value> {
        let rank = ins[0].rank();
        let [batch, n, c] = around(&ins[0].dims, rank - 2..rank - 1);
        let (modes, o) = (ins[1].dims[0], ins[1].dims[2]);
        if modes == 0 {
            return Ok(self.zeros(dims));
        }
        let (plain, weighted) = (self.table(n, modes, false)?, self.table(n, modes, true)?);
        let x = self.reshape(&ins[0], &[batch, n, c]);
        let x = self.matmul(&plain, &x);
        let x = self.reshape(&x, &[batch, 2, modes, c]);
        let z = self.mode_mix(&x, [&ins[1], &ins[2]], false);
        let z = self.reshape(&z, &[batch, 2 * modes, o]);
        let back = self.turned(&weighted, true);
        let y = self.matmul(&back, &z);
        Ok(self.reshape(&y, dims))
    }

    /// The transform of each line.
    pub(super) fn rfft(&mut self, place: &Place<'_>, x: &Value, scaled: bool) -> Result<Value> {
        let line = place.metas[0].shape;
        let (rows, n) = (line.rows(), line.last());
        let modes = self.line(place, n)?;
        let table = self.table(n, modes, scaled)?;
        let table = self.turned(&table, true);
        let x = self.reshape(x, &[rows, n]);
        let x = self.matmul(&x, &table);
        let x = self.reshape(&x, &[rows, 2, modes]);
        let x = self.turned(&x, true);
        Ok(self.reshape(&x, place.out.shape.dims()))
    }

    /// The way back, to lines of `n` points.
    pub(super) fn irfft(&mut self, place: &Place<'_>, x: &Value, n: usize, scaled: bool) -> Result<Value> {
        let modes = self.line(place, n)?;
        let table = self.table(n, modes, scaled)?;
        let rows = x.numel() / (2 * modes);
        let x = self.reshape(x, &[rows, modes, 2]);
        let x = self.turned(&x, true);
        let x = self.reshape(&x, &[rows, 2 * modes]);
        let x = self.matmul(&x, &table);
        Ok(self.reshape(&x, place.out.shape.dims()))
    }
}
