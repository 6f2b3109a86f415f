//! Embeddings: rows of a table at indices, and bags of them.

use super::Var;
use super::scatter::Reduce;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::tensor::Tensor;

/// Options of an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EmbeddingOptions {
    /// The row that gets no gradient.
    pub padding_idx: Option<u32>,
    /// Rows with a larger Euclidean norm are scaled down to it. The table itself stays as it is, and the factor has no gradient.
    pub max_norm: Option<f64>,
}

/// # Embeddings
impl<'s> Var<'s> {
    /// [`Var::embedding`] with options.
    #[track_caller]
    pub fn embedding_with(self, index: Var<'s>, options: EmbeddingOptions) -> Result<Var<'s>> {
        const NAME: &str = "embedding";
        let mut rows = self.embedding(index)?;
        let last = rows.shape()?.rank() - 1;
        if let Some(most) = options.max_norm {
            if most.is_nan() || most < 0.0 {
                return Err(Error::argument(NAME, "max_norm", format!("is {most}, use 0 or more")));
            }
            let norm = rows.detach()?.norm(2.0, &[last], true)?;
            let most = norm.full_like(most)?;
            let factor = norm.gt(most)?.where_(most.div(norm.add_scalar(1e-7)?)?, norm.ones_like()?)?;
            rows = rows.mul(factor)?;
        }
        match options.padding_idx {
            Some(padding) => {
                self.is_padding(NAME, index, padding)?.unsqueeze(last)?.where_(rows.detach()?, rows)
            }
            None => Ok(rows),
        }
    }

    /// Where indices of rows of this table are `padding`.
    #[track_caller]
    fn is_padding(self, op: &'static str, index: Var<'s>, padding: u32) -> Result<Var<'s>> {
        let rows = self.dim(op, 0)?;
        if padding as usize >= rows {
            let why = format!("is {padding}, the table has {rows} rows");
            return Err(Error::argument(op, "padding_idx", why));
        }
        index.eq(self.session.indices(&Tensor::new(&[1], vec![padding])?)?)
    }

    /// Bags of rows of this table `(V, C)`, reduced to a row each by [`Reduce::Sum`], [`Reduce::Mean`] or [`Reduce::Amax`]. With
    /// indices `(bags, n)` each row of them is a bag. With a vector of indices, `offsets` are the positions where the bags begin, in
    /// increasing order and from 0. A bag without rows gives zeros. `weights`, for sums only, has a factor for each index.
    #[track_caller]
    pub fn embedding_bag(
        self,
        index: Var<'s>,
        offsets: Option<Var<'s>>,
        reduce: Reduce,
        weights: Option<Var<'s>>,
    ) -> Result<Var<'s>> {
        self.embedding_bag_with(index, offsets, reduce, weights, EmbeddingOptions::default())
    }

    /// [`Var::embedding_bag`] with options. Rows at `padding_idx` do not count in their bags.
    #[track_caller]
    pub fn embedding_bag_with(
        self,
        index: Var<'s>,
        offsets: Option<Var<'s>>,
        reduce: Reduce,
        weights: Option<Var<'s>>,
        options: EmbeddingOptions,
    ) -> Result<Var<'s>> {
        const NAME: &str = "embedding_bag";
        if reduce == Reduce::Prod || reduce == Reduce::Amin {
            return Err(Error::argument(NAME, "reduce", "use Sum, Mean or Amax"));
        }
        if weights.is_some() && reduce != Reduce::Sum {
            return Err(Error::argument(NAME, "weights", "are factors of sums; use Reduce::Sum"));
        }
        let shape = index.shape()?;
        let mut rows = self.embedding_with(index, EmbeddingOptions { padding_idx: None, ..options })?;
        if let Some(weights) = weights {
            if weights.shape()? != shape {
                let why = "there must be a weight for each index";
                let kind = ErrorKind::Shapes { why, left: weights.shape()?, right: shape };
                return Err(Error::new(NAME, kind));
            }
            rows = rows.mul(weights.unsqueeze(shape.rank())?)?;
        }
        let whole = shape.rank() == 2 && options.padding_idx.is_none();
        match (shape.rank(), offsets) {
            (2, None) if whole && shape.dims()[1] == 0 => return rows.sum_axes(&[1]),
            (2, None) if whole => {
                return match reduce {
                    Reduce::Mean => rows.mean_axes(&[1]),
                    Reduce::Amax => rows.amax(&[1], false),
                    _ => rows.sum_axes(&[1]),
                };
            }
            (2, None) | (1, Some(_)) => {}
            (1, None) => return Err(Error::argument(NAME, "offsets", "are needed for a vector of indices")),
            (2, Some(_)) => {
                return Err(Error::argument(NAME, "offsets", "are for a vector of indices, not for rows"));
            }
            _ => return Err(Error::new(NAME, ErrorKind::Rank { want: "1 or 2", got: shape })),
        }
        let count = shape.numel();
        if count > 1 << f32::MANTISSA_DIGITS {
            let why = format!("{count} indices, at most 2^24 can be counted");
            return Err(Error::argument(NAME, "index", why));
        }
        let (mut bag, bags) = match offsets {
            // The bag of a position is the last one that begins at or before it.
            Some(offsets) => {
                let positions = self.session.arange(0.0, count as f64, 1.0)?;
                let begun = offsets.to_float()?.searchsorted(positions, true)?;
                (begun.to_float()?.add_scalar(-1.0)?, offsets.vector(NAME)?)
            }
            None => {
                let bags = shape.dims()[0];
                let row = self.session.arange(0.0, bags as f64, 1.0)?.unsqueeze(1)?;
                (row.expand(shape.dims())?.reshape(&[count])?, bags)
            }
        };
        // Padding goes to a bag of its own, which is dropped.
        let mut all = bags.max(1);
        if let Some(padding) = options.padding_idx {
            let is_padding = self.is_padding(NAME, index.reshape(&[count])?, padding)?;
            bag = bag.masked_fill(is_padding, bags as f64)?;
            all = bags + 1;
        }
        let width = self.shape()?.last();
        let bag = bag.to_index_below(all as u32)?;
        let zeros = self.session.zeros(&[if options.padding_idx.is_some() { all } else { bags }, width])?;
        let reduced = zeros.index_reduce(0, bag, rows.reshape(&[count, width])?, reduce, false)?;
        if options.padding_idx.is_some() { reduced.narrow(0, 0, bags) } else { Ok(reduced) }
    }
}
