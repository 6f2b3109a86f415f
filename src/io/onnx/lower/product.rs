//! Matrix products.

use super::super::proto::{Type, Value};
use super::Lowering;
use super::nodes::flag;

impl Lowering<'_> {
    pub(super) fn product(&mut self, ins: &[Value], ta: bool, tb: bool) -> Value {
        let (a, b) = (self.turned(&ins[0], ta), self.turned(&ins[1], tb));
        self.matmul(&a, &b)
    }

    /// `x wᵀ + b` of all rows.
    pub(super) fn linear(&mut self, [x, w, b]: [&Value; 3], dims: &[usize]) -> Value {
        if w.numel() == 0 {
            return self.expand(b, dims);
        }
        let rows = x.dims[..x.rank() - 1].iter().product();
        let rows = self.reshape(x, &[rows, w.dims[1]]);
        let y = [rows.dims[0], w.dims[0]];
        let y = self.node("Gemm", &[&rows, w, b], vec![flag("transB", true)], Type::F32, &y);
        self.reshape(&y, dims)
    }
}
