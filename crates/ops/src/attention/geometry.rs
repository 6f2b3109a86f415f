//! What an attention is given, checked: its sizes, how its mask is read, and how products become scores.

use crate::{Attr, Attrs, mismatch};
use dittograd_device::{DType, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use std::f64::consts::LOG2_E;

/// Keys of a block of the online softmax.
pub(super) const KEY_BLOCK: usize = 64;

/// The largest size of a head.
pub const MAX_HEAD: usize = 256;

/// The most rows of a list, so that kernels count them in 32 bits.
pub(super) const MAX_ROWS: usize = 1 << 30;

/// The most axes before the last two of a value.
pub(super) const LEADING_AXES: usize = MAX_RANK - 2;

/// How a mask is read: one stride per leading axis of the queries, aligned at the last of [`LEADING_AXES`], then per
/// query and per key; 0 where the mask is repeated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaskView {
    pub(super) dims: [usize; LEADING_AXES],
    pub(super) strides: [usize; LEADING_AXES],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl MaskView {
    /// Where the mask of query `i` of head `head` (all leading axes as one) starts.
    pub(super) fn at(&self, mut head: usize, i: usize) -> usize {
        let mut at = i * self.row;
        for (&d, &s) in self.dims.iter().zip(&self.strides).rev() {
            at += head % d * s;
            head /= d;
        }
        at
    }
}

/// The sizes of one attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// Lists of keys: the leading axes of the keys as one.
    pub(super) batch: usize,
    /// Query heads that share a list of keys.
    pub(super) group: usize,
    /// Queries of a head.
    pub(super) n: usize,
    /// Keys.
    pub(super) m: usize,
    /// Size of queries and keys.
    pub(super) d: usize,
    /// Size of values.
    pub(super) dv: usize,
    pub(super) mask: Option<MaskView>,
    /// Heads that lie inside the rows of a linear layer, as in [`SelfAttention`](super::SelfAttention); 0 where each list is dense.
    pub(super) heads: usize,
}

impl Geometry {
    pub(super) fn of(op: &'static str, [q, k, v]: [Shape; 3], mask: Option<Shape>) -> Result<Geometry> {
        for s in [q, k, v] {
            if s.rank() < 2 {
                return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: s }));
            }
        }
        let rank = q.rank();
        fn lead(s: &Shape) -> &[usize] {
            &s.dims()[..s.rank() - 2]
        }
        if k.rank() != rank {
            return Err(mismatch(op, "ranks of queries and keys differ", q, k));
        }
        let (ql, kl) = (lead(&q), lead(&k));
        if v.rank() != rank || lead(&v) != kl || v.dims()[rank - 2] != k.dims()[rank - 2] {
            return Err(mismatch(op, "keys and values differ in more than their last size", k, v));
        }
        let group = match (ql.split_last(), kl.split_last()) {
            (Some((&heads, ql)), Some((&shared, kl))) => {
                let divides = if shared == 0 { heads == 0 } else { heads % shared == 0 };
                if ql != kl || !divides {
                    return Err(mismatch(op, "leading sizes of queries and keys differ", q, k));
                }
                heads.checked_div(shared).unwrap_or(1)
            }
            _ => 1,
        };
        let (n, d) = (q.dims()[rank - 2], q.last());
        let (m, dv) = (k.dims()[rank - 2], v.last());
        if k.last() != d {
            return Err(mismatch(op, "sizes of queries and keys differ", q, k));
        }
        if m.max(n.saturating_mul(group.max(1))) > MAX_ROWS {
            return Err(Error::new(op, ErrorKind::TooLarge { dims: vec![group, n, m] }));
        }
        let mask = mask.map(|mask| MaskView::of(op, mask, q, m)).transpose()?;
        Ok(Geometry { batch: kl.iter().product(), group, n, m, d, dv, mask, heads: 0 })
    }

    /// Errors if heads are too large for the kernels. The composed form has heads of any size.
    pub(super) fn with_kernels(self, op: &'static str) -> Result<Geometry> {
        let head = self.d.max(self.dv);
        if head > MAX_HEAD {
            let why = format!(
                "is {head}, at most {MAX_HEAD} fits the kernels: use more heads, or products and a softmax"
            );
            return Err(Error::argument(op, "head size", why));
        }
        Ok(self)
    }

    /// The digits that it is computed in, if it is.
    pub(super) fn digits(&self, numerics: Numerics) -> Option<Digits> {
        let digits = Digits::of_attention(numerics, self.n, self.m, self.d, self.dv);
        digits.filter(|_| self.batch * self.rows() > 0)
    }

    /// Where the queries (0), keys (1) or values (2) of list `z` begin, and the words from row to row.
    pub(super) fn input_rows(&self, part: usize, z: usize) -> (usize, usize) {
        if self.heads == 0 {
            let (rows, width) = [(self.rows(), self.d), (self.m, self.d), (self.m, self.dv)][part];
            return (z * rows * width, width);
        }
        let narrow = self.heads * self.d;
        (z / self.heads * self.n * 3 * narrow + part * narrow + z % self.heads * self.d, 3 * narrow)
    }

    /// The same of the outputs.
    pub(super) fn output_rows(&self, z: usize) -> (usize, usize) {
        if self.heads == 0 {
            return (z * self.rows() * self.dv, self.dv);
        }
        let narrow = self.heads * self.d;
        (z / self.heads * self.n * narrow + z % self.heads * self.d, narrow)
    }

    /// Rows of a list.
    pub(super) fn rows(&self) -> usize {
        self.group * self.n
    }
}

impl MaskView {
    fn of(op: &'static str, mask: Shape, q: Shape, m: usize) -> Result<MaskView> {
        let mut all = q.dims().to_vec();
        all[q.rank() - 1] = m;
        let fits = mask.rank() <= all.len()
            && mask.dims().iter().rev().zip(all.iter().rev()).all(|(&a, &b)| a == 1 || a == b);
        if !fits {
            let why = "the mask does not broadcast to (…, queries, keys) for";
            return Err(mismatch(op, why, mask, q));
        }
        let strides = mask.strides();
        let stride = |from_end: usize| match mask.rank().checked_sub(from_end) {
            Some(axis) if mask.dims()[axis] != 1 => strides[axis],
            _ => 0,
        };
        let mut view =
            MaskView { dims: [1; LEADING_AXES], row: stride(2), column: stride(1), ..MaskView::default() };
        for from_end in 3..=q.rank() {
            view.dims[LEADING_AXES + 2 - from_end] = q.dims()[q.rank() - from_end].max(1);
            view.strides[LEADING_AXES + 2 - from_end] = stride(from_end);
        }
        Ok(view)
    }
}

/// How products of queries and keys become scores: the attributes that all ops here share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scoring {
    pub(super) causal: bool,
    pub(super) scale: Option<f64>,
}

impl Scoring {
    /// What scores are multiplied by; `1 / sqrt(d)` unless given.
    pub(super) fn scale(&self, d: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / libm::sqrt(d.max(1) as f64))
    }

    /// What a difference of scores is multiplied by to be an exponent of 2: never 0, so that it is that of equal scores alone.
    pub(super) fn factor(&self, d: usize) -> f32 {
        ((self.scale(d).abs() * LOG2_E) as f32).max(f32::from_bits(1))
    }

    /// Whether scores are the negative products of queries and keys.
    pub(super) fn flips(&self, d: usize) -> bool {
        self.scale(d) < 0.0
    }

    /// Checks `q, k, v` and the mask, if there is one input more than `without`, for the kernels.
    pub(super) fn geometry(&self, op: &'static str, ins: &[Meta], without: usize) -> Result<Geometry> {
        self.any_geometry(op, ins, without)?.with_kernels(op)
    }

    /// The same for heads of any size.
    pub(super) fn any_geometry(&self, op: &'static str, ins: &[Meta], without: usize) -> Result<Geometry> {
        if ins.len() != without && ins.len() != without + 1 {
            return Err(Error::new(op, ErrorKind::Arity { want: without, got: ins.len() }));
        }
        let masked = ins.len() > without;
        for i in (0..ins.len()).filter(|&i| !(masked && i == 3)) {
            crate::typed(op, ins, i, DType::F32)?;
        }
        if self.scale.is_some_and(|s| !s.is_finite()) {
            return Err(Error::argument(op, "scale", "is not finite"));
        }
        let mask = masked.then(|| ins[3].shape);
        Geometry::of(op, [ins[0].shape, ins[1].shape, ins[2].shape], mask)
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut all = vec![("causal", Attr::Bool(self.causal))];
        all.extend(self.scale.map(|s| ("scale", Attr::Num(s))));
        all
    }

    pub(super) fn from_attrs(attrs: &Attrs) -> Result<Scoring> {
        attrs.only(&["causal", "scale"])?;
        let scale = if attrs.get("scale").is_some() { Some(attrs.num("scale")?) } else { None };
        Ok(Scoring { causal: attrs.flag("causal")?, scale })
    }
}
