//! Attention of several heads with all options of PyTorch's function. `nn::MultiheadAttention` of the library has other parameters and does
//! not compute its weights as a value.

use dittograd::error::Result;
use dittograd::session::Var;

/// What multi-head attention is given beside queries, keys and values `(length, N, size)`.
pub struct Heads<'s> {
    pub count: usize,
    /// The weights `(size, size)` of queries, keys and values, and the shifts `(size)`.
    pub weights: [Var<'s>; 3],
    pub biases: [Option<Var<'s>>; 3],
    pub out: (Var<'s>, Option<Var<'s>>),
    /// One more key and value for all samples, `(1, 1, size)`.
    pub more: Option<(Var<'s>, Var<'s>)>,
    /// Whether there is one more key of zeros, with a value of zeros.
    pub zero: bool,
    pub dropout: f64,
    /// Added to the scores: `(n, m)` or `(N · heads, n, m)`.
    pub mask: Option<Var<'s>>,
    /// `(N, m)`: added to the scores of all queries.
    pub padding: Option<Var<'s>>,
}

fn projected<'s>(x: Var<'s>, weight: Var<'s>, bias: Option<Var<'s>>) -> Result<Var<'s>> {
    match bias {
        Some(bias) => x.linear(weight, bias),
        None => x.matmul_with(weight, false, true),
    }
}

impl<'s> Heads<'s> {
    /// The attention's outputs `(n, N, …)` and its weights `(N, heads, n, m)`.
    pub fn attend(self, query: Var<'s>, key: Var<'s>, value: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let (s, [wq, wk, wv], [bq, bk, bv]) = (query.session(), self.weights, self.biases);
        let (q, mut k, mut v) =
            (projected(query, wq, bq)?, projected(key, wk, bk)?, projected(value, wv, bv)?);
        let shape = q.shape()?;
        let (n, size) = (shape.dims()[0], shape.last());
        let samples = shape.dims()[1];
        let (all, part) = (samples * self.count, size / self.count);
        if let Some((key, value)) = self.more {
            let of_all = |x: Var<'s>| x.expand(&[1, samples, size]);
            (k, v) = (s.concat(&[k, of_all(key)?], 0)?, s.concat(&[v, of_all(value)?], 0)?);
        }
        if self.zero {
            let zeros = s.zeros(&[1, samples, size])?;
            (k, v) = (s.concat(&[k, zeros], 0)?, s.concat(&[v, zeros], 0)?);
        }
        let m = k.shape()?.dims()[0];
        let split = |x: Var<'s>, length: usize| x.reshape(&[length, all, part])?.swap_axes(0, 1);
        let mut scores =
            split(q, n)?.scale(1.0 / (part as f64).sqrt())?.matmul_with(split(k, m)?, false, true)?;
        // The keys that were added are open to all.
        let longer = |mask: Var<'s>| mask.pad(-1, 0, m - mask.shape()?.last());
        if let Some(mask) = self.mask {
            scores = scores.add(longer(mask)?)?;
        }
        if let Some(padding) = self.padding {
            let closed =
                longer(padding)?.reshape(&[samples, 1, 1, m])?.expand(&[samples, self.count, 1, m])?;
            scores = scores.add(closed.reshape(&[all, 1, m])?)?;
        }
        let mut weights = scores.softmax()?;
        if self.dropout > 0.0 {
            weights = weights.dropout(self.dropout)?;
        }
        let joined = weights.bmm(split(v, m)?)?.swap_axes(0, 1)?.reshape(&[n, samples, size])?;
        Ok((projected(joined, self.out.0, self.out.1)?, weights.reshape(&[samples, self.count, n, m])?))
    }
}
