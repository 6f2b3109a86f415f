//! Attention and rotary embedding as methods of values.

use super::Var;
use dittograd_numerics::environment::{self, strict};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::attention::rope::{Rope, rope_table};
use dittograd_ops::attention::{Attention, AttentionMask, MAX_HEAD, SelfAttention, parts};
use dittograd_ops::layout::Slice;
use dittograd_ops::matmul::Bmm;

/// Mask, scale and method of an attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'s> {
    /// The query may attend to the key where the mask's magnitude is above 0. Broadcasts to `(…, heads, n, m)` by
    /// NumPy's rule; a mask `(batch…, n, m)` is shared by all heads.
    pub mask: Option<Var<'s>>,
    /// Added to the scaled scores; broadcasts as the mask does. A key with `-∞` is one that the query may not attend to.
    /// PyTorch's `attn_mask` of numbers.
    pub bias: Option<Var<'s>>,
    /// The probability with which each weight is dropped, 0 to 1. The others are scaled by `1 / (1 - dropout)`.
    pub dropout: f64,
    /// Whether query `i` attends only to keys up to `i`.
    pub causal: bool,
    /// Factor of the scores; by default `1 / sqrt(d)`.
    pub scale: Option<f64>,
    /// Whether to compute it by matrix products and a softmax, which store all scores, instead of block by block. The
    /// values are the same up to rounding. Heads of more than 256 elements are always computed so, as is attention with
    /// a bias or dropout.
    pub composed: bool,
}

impl AttentionOptions<'_> {
    /// Whether the attention is computed by products and a softmax.
    fn by_parts(&self) -> bool {
        self.composed || self.bias.is_some() || self.dropout != 0.0
    }
}

/// Weights and options of [`Var::multi_head_attention_to`]. All sizes are those of PyTorch's `F.multi_head_attention_forward`.
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadAttention<'s> {
    /// The number of heads, which divides the width.
    pub heads: usize,
    /// Weights `(width, features)` of the projections of queries, keys and values.
    pub weights: [Var<'s>; 3],
    /// Their biases `(width)`.
    pub biases: [Option<Var<'s>>; 3],
    /// Weight `(features, width)` of the projection of the outputs.
    pub out_weight: Var<'s>,
    /// Its bias `(features)`.
    pub out_bias: Option<Var<'s>>,
    /// One more key and value, `(width)`, of all samples and open to all queries: PyTorch's `bias_k` and `bias_v`.
    pub extra: Option<(Var<'s>, Var<'s>)>,
    /// Whether there is one more key of zeros, with a value of zeros: PyTorch's `add_zero_attn`.
    pub zero: bool,
    /// The probability with which each weight of the attention is dropped, 0 to 1.
    pub dropout: f64,
    /// Added to the scores: `(n, m)`, or `(N · heads, n, m)`. A key with `-∞` is one that the query may not attend to.
    pub bias: Option<Var<'s>>,
    /// Added to the scores of all queries: `(N, m)`, or `(m)` without samples. Keys that are padding have `-∞`.
    pub key_bias: Option<Var<'s>>,
}

/// # Attention
impl<'s> Var<'s> {
    /// Scaled dot-product attention of queries `(…, heads, n, d)` to keys `(…, heads, m, d)` and values
    /// `(…, heads, m, dv)`, whose leading axes broadcast. The result is the mean of the values, weighted by the softmax of `scale · q·k` over the
    /// keys that a query may attend to. A query without such keys gives zeros. Keys and values may have fewer heads,
    /// which neighbouring heads of the queries share (grouped-query attention).
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let (q, k) = (session.zeros(&[2, 4, 8])?, session.zeros(&[2, 4, 8])?); // (heads, n, d)
    /// let v = session.arange(0.0, 4.0, 1.0)?.reshape(&[1, 4, 1])?.expand(&[2, 4, 1])?;
    /// let y = q.attention(k, v, AttentionOptions { causal: true, ..Default::default() })?;
    /// assert_eq!(y.select(0, 0)?.flatten()?.to_string(), "[0.  0.5 1.  1.5]"); // means of the keys so far
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("scaled_dot_product_attention", "flash_attention"))]
    #[track_caller]
    pub fn attention(self, k: Var<'s>, v: Var<'s>, options: AttentionOptions<'s>) -> Result<Var<'s>> {
        let [this, k, v] = with_common_lead([self, k, v])?;
        if this.shape()? != self.shape()? {
            return this.attention(k, v, options);
        }
        let q = self.shape()?;
        let mut options = options;
        if let Some(mask) = options.mask {
            options.mask = Some(with_head_axis(mask, q)?);
        }
        if let Some(bias) = options.bias {
            options.bias = Some(with_head_axis(bias, q)?);
        }
        let op = Attention { causal: options.causal, scale: options.scale };
        let mut ins = vec![self, k, v];
        ins.extend(options.mask);
        if options.by_parts() || q.last().max(v.shape()?.last()) > MAX_HEAD {
            return self.composed(k, v, op, options);
        }
        let packed = self.session().apply(op, &ins)?;
        packed.outputs(parts(q, v.shape()?)[0])
    }

    /// The outputs, with the given shape, of a packed attention.
    #[track_caller]
    fn outputs(self, shape: Shape) -> Result<Var<'s>> {
        let part = Slice { axis: 0, start: 0, len: shape.numel(), step: 1 };
        self.session().apply(part, &[self])?.reshape(shape.dims())
    }

    /// Self-attention of every head: `(…, n, 3, heads, d)` to `(…, n, heads, d)`. Queries, keys and values are laid out
    /// as a linear layer writes them, and the heads' outputs as the next one reads them. The values are those of
    /// [`Var::attention`] on permuted axes, without the copies.
    #[track_caller]
    pub fn self_attention(self, options: AttentionOptions<'s>) -> Result<Var<'s>> {
        let op = SelfAttention { causal: options.causal, scale: options.scale };
        op.check(self.meta()?)?;
        let shape = self.shape()?;
        let (dims, rank) = (shape.dims(), shape.rank());
        if options.mask.is_some() || options.by_parts() || shape.last() > MAX_HEAD {
            // Without the axis of length 3, n and heads are the two axes before the last.
            let mut order: Vec<usize> = (0..rank - 1).collect();
            order.swap(rank - 4, rank - 3);
            let part = |i| self.select(rank - 3, i)?.permute(&order);
            return part(0)?.attention(part(1)?, part(2)?, options)?.permute(&order);
        }
        let outputs = Shape::new(&[&dims[..rank - 3], &dims[rank - 2..]].concat())?;
        self.session().apply(op, &[self])?.outputs(outputs)
    }

    /// The composed form: scores, masked softmax, product.
    #[track_caller]
    fn composed(
        self,
        k: Var<'s>,
        v: Var<'s>,
        op: Attention,
        options: AttentionOptions<'s>,
    ) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let AttentionOptions { mask, bias, dropout, .. } = options;
        let session = self.session();
        let (qs, ks, vs) = (self.meta()?, k.meta()?, v.meta()?);
        let metas: Vec<_> =
            [Ok(qs), Ok(ks), Ok(vs)].into_iter().chain(mask.map(|m| m.meta())).collect::<Result<_>>()?;
        op.check(&metas)?;
        let (qs, ks, vs) = (qs.shape, ks.shape, vs.shape);
        let (n, m, d) = (qs.dims()[qs.rank() - 2], ks.dims()[ks.rank() - 2], qs.last());
        let batch: usize = ks.dims()[..ks.rank() - 2].iter().product();
        let rows = qs.rows().checked_div(batch).unwrap_or(0);
        let (q3, k3, v3) = (
            self.reshape(&[batch, rows, d])?,
            k.reshape(&[batch, m, d])?,
            v.reshape(&[batch, m, vs.last()])?,
        );
        let scores = session.apply(Bmm { ta: false, tb: true }, &[q3, k3])?;
        let mut full = qs.dims().to_vec();
        full[qs.rank() - 1] = m;
        let full = Shape::new(&full)?;
        let scale = op.scale.unwrap_or_else(|| 1.0 / libm::sqrt(d.max(1) as f64));
        let mut weights = scores.reshape(full.dims())?.scale(scale)?;
        let mut open = None;
        if op.causal || mask.is_some() {
            open = Some(session.apply(AttentionMask { causal: op.causal, n, m }, mask.as_slice())?);
        }
        if let Some(bias) = bias {
            let fits = bias.shape()?.broadcast(&full).is_ok_and(|shape| shape == full);
            if !fits {
                let why = "the bias does not broadcast to the scores (…, heads, n, m)";
                let kind = ErrorKind::Shapes { why, left: bias.shape()?, right: full };
                return Err(Error::new("attention", kind));
            }
            weights = weights.add(bias)?;
            // A query that may attend to nothing gives zeros, also if it is the bias that says so.
            let allowed = bias.detach()?.ne(session.scalar(f64::NEG_INFINITY)?)?;
            open = Some(match open {
                Some(open) => open.mul(allowed)?,
                None => allowed,
            });
        }
        if m > 0 {
            weights = match open {
                Some(open) => weights.masked_softmax(open)?,
                None => weights.softmax()?,
            };
        }
        if dropout != 0.0 {
            weights = weights.dropout(dropout)?;
        }
        let out = weights.reshape(&[batch, rows, m])?.bmm(v3)?;
        out.reshape(parts(qs, vs)[0].dims())
    }

    /// Multi-head self-attention of `x (…, n, D)`. Queries, keys and values are `x Wq`, `x Wk` and `x Wv` with
    /// `W (D, P)`, split into `heads` heads of `P / heads` columns. The concatenated outputs of the heads are
    /// multiplied by `Wo (P, D)`.
    #[doc(alias = "MultiheadAttention")]
    #[track_caller]
    pub fn multi_head_attention(
        self,
        [wq, wk, wv, wo]: [Var<'s>; 4],
        heads: usize,
        options: AttentionOptions<'s>,
    ) -> Result<Var<'s>> {
        const NAME: &str = "multi_head_attention";
        let x = self.shape()?;
        if x.rank() < 2 {
            return Err(Error::new(NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let width = wq.shape()?.last();
        if heads == 0 || !width.is_multiple_of(heads) {
            let why = format!("{heads} heads do not divide {width} columns");
            return Err(Error::argument(NAME, "heads", why));
        }
        let rank = x.rank();
        let flat = self.reshape(&[x.rows(), x.last()])?;
        // (…, n, heads, size) and (…, heads, n, size) differ by a swap of two neighbouring axes.
        let mut split = x.dims()[..rank - 1].to_vec();
        split.extend([heads, width / heads]);
        let mut order: Vec<usize> = (0..rank + 1).collect();
        order.swap(rank - 2, rank - 1);
        let cut = |w: Var<'s>| flat.matmul(w)?.reshape(&split)?.permute(&order);
        let out = cut(wq)?.attention(cut(wk)?, cut(wv)?, options)?;
        let joined = out.permute(&order)?.reshape(&[x.rows(), width])?.matmul(wo)?;
        let mut dims = x.dims().to_vec();
        dims[rank - 1] = joined.shape()?.last();
        joined.reshape(&dims)
    }

    /// Multi-head attention of queries `(n, N, features)` to keys and values `(m, N, features)`, or all three without `N`, the samples.
    /// Returns the outputs `(n, N, features)` and the weights of the attention `(N, heads, n, m)`. It computes these as one value; where
    /// they are not wanted, [`Var::attention`] needs less memory. A query that may attend to no key gives NaN, as in PyTorch.
    #[doc(alias = "multi_head_attention_forward")]
    #[track_caller]
    pub fn multi_head_attention_to(
        self,
        key: Var<'s>,
        value: Var<'s>,
        options: MultiHeadAttention<'s>,
    ) -> Result<(Var<'s>, Var<'s>)> {
        const NAME: &str = "multi_head_attention_to";
        let (x, keys, values) = (self.shape()?, key.shape()?, value.shape()?);
        if x.rank() == 2 && keys.rank() == 2 && values.rank() == 2 {
            let key_bias = options.key_bias.map(|bias| bias.unsqueeze(0)).transpose()?;
            let options = MultiHeadAttention { key_bias, ..options };
            let (y, weights) = self.unsqueeze(1)?.multi_head_attention_to(
                key.unsqueeze(1)?,
                value.unsqueeze(1)?,
                options,
            )?;
            return Ok((y.squeeze(1)?, weights.squeeze(0)?));
        }
        let &[n, samples, _] = x.dims() else {
            return Err(Error::new(NAME, ErrorKind::Rank { want: "2 or 3", got: x }));
        };
        if keys.rank() != 3 || keys.dims()[1] != samples {
            let why = "keys must be (m, N, features) for queries (n, N, features)";
            return Err(Error::new(NAME, ErrorKind::Shapes { why, left: x, right: keys }));
        }
        if values.rank() != 3 || values.dims()[..2] != keys.dims()[..2] {
            let why = "there must be one value for each key";
            return Err(Error::new(NAME, ErrorKind::Shapes { why, left: keys, right: values }));
        }
        let MultiHeadAttention { heads, weights: [wq, wk, wv], biases: [bq, bk, bv], .. } = options;
        let (q, mut k, mut v) = (self.projected(wq, bq)?, key.projected(wk, bk)?, value.projected(wv, bv)?);
        let width = q.shape()?.last();
        if heads == 0 || !width.is_multiple_of(heads) {
            let why = format!("{heads} heads do not divide a width of {width}");
            return Err(Error::argument(NAME, "heads", why));
        }
        let own = keys.dims()[0];
        let row = [1, samples, width];
        if let Some((key, value)) = options.extra {
            (k, v) = (k.concat(key.expand(&row)?, 0)?, v.concat(value.expand(&row)?, 0)?);
        }
        if options.zero {
            let zeros = self.session().zeros(&row)?;
            (k, v) = (k.concat(zeros, 0)?, v.concat(zeros, 0)?);
        }
        let (m, all, size) = (k.shape()?.dims()[0], samples * heads, width / heads);
        // (length, N, width) to (N · heads, length, size).
        let split = |x: Var<'s>, length: usize| x.reshape(&[length, all, size])?.swap_axes(0, 1);
        let scale = strict(|| 1.0 / libm::sqrt(size.max(1) as f64));
        let mut scores = split(q, n)?.scale(scale)?.matmul_with(split(k, m)?, false, true)?;
        // Keys that were added are open to all.
        let longer = |bias: Var<'s>| bias.pad(-1, 0, m - own);
        if let Some(bias) = options.bias {
            let shape = bias.shape()?;
            if shape.dims() != [n, own] && shape.dims() != [all, n, own] {
                let why = format!("{shape} is neither ({n}, {own}) nor ({all}, {n}, {own})");
                return Err(Error::argument(NAME, "bias", why));
            }
            scores = scores.add(longer(bias)?)?;
        }
        if let Some(bias) = options.key_bias {
            let shape = bias.shape()?;
            if shape.dims() != [samples, own] {
                let why = format!("{shape} is not ({samples}, {own}), a number for each key");
                return Err(Error::argument(NAME, "key_bias", why));
            }
            let of_heads = longer(bias)?.reshape(&[samples, 1, 1, m])?.expand(&[samples, heads, 1, m])?;
            scores = scores.add(of_heads.reshape(&[all, 1, m])?)?;
        }
        let mut weights = scores.softmax()?;
        if options.dropout != 0.0 {
            weights = weights.dropout(options.dropout)?;
        }
        let joined = weights.bmm(split(v, m)?)?.swap_axes(0, 1)?.reshape(&[n, samples, width])?;
        let y = joined.projected(options.out_weight, options.out_bias)?;
        Ok((y, weights.reshape(&[samples, heads, n, m])?))
    }

    /// `x Wᵀ`, plus the bias if there is one.
    #[track_caller]
    fn projected(self, weight: Var<'s>, bias: Option<Var<'s>>) -> Result<Var<'s>> {
        match bias {
            Some(bias) => self.linear(weight, bias),
            None => self.matmul_with(weight, false, true),
        }
    }

    /// Rotary position embedding of `x (…, n, d)`: rotates pair `i` of row `p` by `(offset + p) base^(-2i/d)`. Pairs
    /// are `(i, i + d/2)`, or neighbours `(2i, 2i + 1)` if `interleaved`.
    #[doc(alias = "rotary_embedding")]
    #[track_caller]
    pub fn rope(self, base: f64, offset: usize, interleaved: bool) -> Result<Var<'s>> {
        let x = self.shape()?;
        if x.rank() < 2 {
            return Err(Error::new("rope", ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let table = rope_table(x.dims()[x.rank() - 2], x.last(), base, offset)?;
        let table = self.session().constant(&table)?;
        self.session().apply(Rope { interleaved, inverse: false }, &[self, table])
    }
}

/// Queries, keys and values with their leading axes broadcast, but for heads of queries that share keys and values. What does not
/// broadcast stays as it is, and the op says what is wrong.
#[track_caller]
fn with_common_lead(all: [Var<'_>; 3]) -> Result<[Var<'_>; 3]> {
    let [q, k, v] = [all[0].shape()?, all[1].shape()?, all[2].shape()?];
    fn split(s: &Shape) -> Option<(&[usize], &[usize])> {
        s.dims().split_at_checked(s.rank().checked_sub(2)?)
    }
    let (Some((ql, qm)), Some((kl, km)), Some((vl, vm))) = (split(&q), split(&k), split(&v)) else {
        return Ok(all);
    };
    if ql == kl && kl == vl {
        return Ok(all);
    }
    let Ok(shared) = Shape::new(kl)?.broadcast(&Shape::new(vl)?) else { return Ok(all) };
    let heads = |lead: &[usize]| lead.last().copied().unwrap_or(1);
    let (of_query, of_key) = (heads(ql), heads(shared.dims()));
    let is_shared = of_key > 0 && of_query > of_key && of_query.is_multiple_of(of_key);
    // Where heads share keys and values, the axes before them broadcast.
    let (mut left, mut right) = (ql.to_vec(), shared.dims().to_vec());
    if is_shared {
        left.pop();
        right.pop();
    }
    let Ok(lead) = Shape::new(&left)?.broadcast(&Shape::new(&right)?) else { return Ok(all) };
    let whole = |count: usize, matrix: &[usize]| {
        let own: &[usize] = if is_shared { &[count] } else { &[] };
        Shape::new(&[lead.dims(), own, matrix].concat())
    };
    Ok([
        all[0].broadcast_to(whole(of_query, qm)?)?,
        all[1].broadcast_to(whole(of_key, km)?)?,
        all[2].broadcast_to(whole(of_key, vm)?)?,
    ])
}

/// A mask `(batch…, n, m)` with an axis for the heads, for queries `(batch…, heads, n, d)`.
#[track_caller]
fn with_head_axis<'s>(mask: Var<'s>, q: Shape) -> Result<Var<'s>> {
    let m = mask.shape()?;
    let batch = q.rank().saturating_sub(3);
    if q.rank() > 3 && m.rank() + 1 == q.rank() && m.dims()[..batch] == q.dims()[..batch] {
        let mut dims = m.dims().to_vec();
        dims.insert(batch, 1);
        return mask.reshape(&dims);
    }
    Ok(mask)
}
