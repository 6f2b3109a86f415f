//! Products with named axes, lowered to permutations, sums and batched matrix products.

use super::{Session, Var};
use dittograd_numerics::error::shown_name as shown;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::matmul::Bmm;

/// The name of an axis. Letters stand for themselves; the axes of an ellipsis count down from [`DOTS`], starting with
/// the last one.
type Label = u32;
const DOTS: Label = 0x0011_0100;

#[track_caller]
fn wrong(why: String) -> Error {
    Error::argument("einsum", "equation", why)
}

/// The labels of one operand, or of the result, whose rank is unknown: then an ellipsis stands for `dots` axes.
#[track_caller]
fn labels(term: &str, rank: Option<usize>, dots: usize) -> Result<Vec<Label>> {
    if term.matches("...").count() > 1 {
        return Err(wrong(format!("`{}` has `...` more than once", shown(term))));
    }
    let letters = term.replace("...", "").chars().filter(|c| *c != ' ').count();
    let dots = match rank {
        Some(rank) if term.contains("...") => rank.checked_sub(letters).ok_or_else(|| {
            wrong(format!("`{}` names {letters} axes of a value of rank {rank}", shown(term)))
        })?,
        Some(rank) if rank != letters => {
            return Err(wrong(format!("`{}` names {letters} axes of a value of rank {rank}", shown(term))));
        }
        _ => dots,
    };
    let mut out = Vec::new();
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("...") {
            out.extend((1..=dots as Label).rev().map(|i| DOTS - i));
            rest = behind;
            continue;
        }
        match c {
            ' ' => {}
            c if c.is_ascii_alphabetic() => out.push(c as Label),
            c => {
                let (c, term) = (shown(&c.to_string()), shown(term));
                return Err(wrong(format!("`{c}` in `{term}` is neither a letter nor `...`")));
            }
        }
        rest = &rest[c.len_utf8()..];
    }
    Ok(out)
}

/// The positions of the first two axes with the same name.
fn twice(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|j| labels[..j].iter().position(|l| *l == labels[j]).map(|i| (i, j)))
}

/// A value with a name for each axis.
#[derive(Clone)]
struct Named<'s> {
    v: Var<'s>,
    labels: Vec<Label>,
}

impl<'s> Named<'s> {
    #[track_caller]
    fn size(&self, label: Label) -> Result<Option<usize>> {
        let at = self.labels.iter().position(|l| *l == label);
        at.map(|at| self.v.shape().map(|s| s.dims()[at])).transpose()
    }

    #[track_caller]
    fn sizes(&self, labels: &[Label]) -> Result<Vec<usize>> {
        Ok(labels.iter().map(|l| self.size(*l)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Takes diagonals until each name occurs once: of two axes with one name, the elements whose indices along both
    /// are equal.
    #[track_caller]
    fn diagonal(mut self) -> Result<Named<'s>> {
        while let Some((i, j)) = twice(&self.labels) {
            let shape = self.v.shape()?;
            if shape.dims()[i] != shape.dims()[j] {
                return Err(wrong(format!("axes {i} and {j} of shape {shape} have one name but two sizes")));
            }
            self.v = self.v.diagonal_in_place(0, i, j)?;
            self.labels.remove(j);
        }
        Ok(self)
    }

    /// Sums over all axes that `keep` rejects.
    #[track_caller]
    fn summed(self, keep: impl Fn(Label) -> bool) -> Result<Named<'s>> {
        let gone: Vec<usize> = (0..self.labels.len()).filter(|&i| !keep(self.labels[i])).collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let v = self.v.sum_axes(&gone)?;
        Ok(Named { v, labels: self.labels.into_iter().filter(|l| keep(*l)).collect() })
    }

    /// Without the axes of one element of which the other has more: that element counts for all of them.
    #[track_caller]
    fn narrower(self, other: &Named<'s>) -> Result<Named<'s>> {
        let mut kept = Vec::new();
        for &l in &self.labels {
            if self.size(l)? != Some(1) || other.size(l)?.is_none_or(|n| n == 1) {
                kept.push(l);
            }
        }
        if kept.len() == self.labels.len() {
            return Ok(self);
        }
        Ok(Named { v: self.v.reshape(&self.sizes(&kept)?)?, labels: kept })
    }

    /// Permutes the axes.
    #[track_caller]
    fn ordered(self, labels: &[Label]) -> Result<Named<'s>> {
        if self.labels == labels {
            return Ok(self);
        }
        let order: Vec<usize> =
            labels.iter().filter_map(|l| self.labels.iter().position(|x| x == l)).collect();
        Ok(Named { v: self.v.permute(&order)?, labels: labels.to_vec() })
    }
}

fn without(labels: &[Label], drop: impl Fn(Label) -> bool) -> Vec<Label> {
    labels.iter().copied().filter(|l| !drop(*l)).collect()
}

/// The product of two values, summed over the axes that both have and that are not in `keep`. One element along an axis
/// stands for as many as the other value has. The result has the other
/// axes, in the order of `keep` as far as a single product gives it.
#[track_caller]
fn product<'s>(a: Named<'s>, b: Named<'s>, keep: &[Label]) -> Result<Named<'s>> {
    for &l in &a.labels {
        if let (Some(x), Some(y)) = (a.size(l)?, b.size(l)?)
            && x != y
            && x != 1
            && y != 1
        {
            let (left, right) = (a.v.shape()?, b.v.shape()?);
            let l = char::from_u32(l).unwrap_or('…');
            return Err(wrong(format!("axis {l} is {x} long in shape {left} and {y} in {right}")));
        }
    }
    let (a, b) = (a.clone().narrower(&b)?, b.narrower(&a)?);
    // Sum over axes that only one operand has and nobody wants.
    let a = a.clone().summed(|l| keep.contains(&l) || b.labels.contains(&l))?;
    let b = b.clone().summed(|l| keep.contains(&l) || a.labels.contains(&l))?;
    let shared = |l: &Label| a.labels.contains(l) && b.labels.contains(l);
    let batch: Vec<Label> = keep.iter().copied().filter(shared).collect();
    let inner: Vec<Label> = a.labels.iter().copied().filter(|l| shared(l) && !keep.contains(l)).collect();
    let (m, n) = (without(&a.labels, |l| shared(&l)), without(&b.labels, |l| shared(&l)));
    if inner.is_empty() {
        // Nothing to sum: every element is a single product.
        let all = [&batch[..], &m, &n].concat();
        let (ba, bb) = (a.sizes(&batch)?, b.sizes(&batch)?);
        let left = [&ba[..], &a.sizes(&m)?, &vec![1; n.len()]].concat();
        let right = [&bb[..], &vec![1; m.len()], &b.sizes(&n)?].concat();
        let a = a.ordered(&[&batch[..], &m].concat())?.v.reshape(&left)?;
        let b = b.ordered(&[&batch[..], &n].concat())?.v.reshape(&right)?;
        return Ok(Named { v: a.mul(b)?, labels: all });
    }
    let (sb, sm, sn) = (a.sizes(&batch)?, a.sizes(&m)?, b.sizes(&n)?);
    let count = |sizes: &[usize]| sizes.iter().product::<usize>();
    let k = count(&a.sizes(&inner)?);
    // A product reads its last two axes in either order, so an operand that has one of these layouts is not copied.
    let matrix = |x: Named<'s>, outer: &[Label], first: bool| -> Result<(Var<'s>, bool)> {
        let (plain, turned) = ([&batch[..], outer, &inner].concat(), [&batch[..], &inner, outer].concat());
        let rows = count(&x.sizes(outer)?);
        let (want, swap) = if x.labels == turned { (turned, true) } else { (plain, false) };
        let dims = if swap { [count(&sb), k, rows] } else { [count(&sb), rows, k] };
        Ok((x.ordered(&want)?.v.reshape(&dims)?, swap == first))
    };
    // The left operand is transposed if k comes first, the right one if it comes last.
    let (left, ta) = matrix(a.clone(), &m, true)?;
    let (right, tb) = matrix(b.clone(), &n, false)?;
    let session = a.v.session;
    // With the operands swapped, the columns come first; the sums are the same.
    let flipped = [&batch[..], &n, &m].concat();
    if *keep == *flipped && keep != [&batch[..], &m, &n].concat() {
        let v = session.apply(Bmm { ta: !tb, tb: !ta }, &[right, left])?;
        return Ok(Named { v: v.reshape(&[&sb[..], &sn, &sm].concat())?, labels: flipped });
    }
    let v = session.apply(Bmm { ta, tb }, &[left, right])?;
    Ok(Named { v: v.reshape(&[&sb[..], &sm, &sn].concat())?, labels: [&batch[..], &m, &n].concat() })
}

impl Session {
    /// Einstein summation, for example `"bij,bjk->bik"`: axes with one letter are multiplied elementwise, and axes that
    /// are not in the result are summed over. An axis of one element counts as as many as another operand has. Without `->`, the result has the letters that occur once, in alphabetical
    /// order, after the axes of `...`. An ellipsis stands for any further axes, aligned at the last one. Operands are
    /// multiplied from left to right. A letter that occurs twice in one operand takes the diagonal: `"ii->"` is the
    /// trace.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(session.einsum("ij,kj->ik", &[x, x])?.to_string(), "[[ 5. 14.]\n [14. 50.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn einsum<'s>(&'s self, equation: &str, values: &[Var<'s>]) -> Result<Var<'s>> {
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != values.len() {
            let (left, count) = (shown(left), terms.len());
            return Err(wrong(format!("`{left}` has {count} operands, {} are given", values.len())));
        }
        let mut operands = Vec::new();
        for (term, &v) in terms.iter().zip(values) {
            operands.push(Named { v, labels: labels(term, Some(v.shape()?.rank()), 0)? });
        }
        let all: Vec<Label> = operands.iter().flat_map(|o| o.labels.iter().copied()).collect();
        let operands = operands.into_iter().map(Named::diagonal).collect::<Result<Vec<_>>>()?;
        let is_dots = |l: Label| (DOTS - 0x100..DOTS).contains(&l);
        let out = match right {
            Some(right) => {
                let dots = all.iter().filter(|l| is_dots(**l)).map(|l| DOTS - l).max().unwrap_or(0);
                let out = labels(right, None, dots as usize)?;
                if twice(&out).is_some() {
                    return Err(wrong(format!("`{}` names an axis of the result twice", shown(right))));
                }
                out
            }
            None => {
                let mut once: Vec<Label> = all
                    .iter()
                    .copied()
                    .filter(|l| is_dots(*l) || all.iter().filter(|x| *x == l).count() == 1)
                    .collect();
                once.sort_unstable_by_key(|&l| (!is_dots(l), l));
                once.dedup();
                once
            }
        };
        if let Some(l) = out.iter().find(|l| !all.contains(l)) {
            let name =
                char::from_u32(*l).filter(char::is_ascii_alphabetic).map_or("...".into(), String::from);
            let equation = shown(equation);
            return Err(wrong(format!("`{name}` of the result is in no operand of `{equation}`")));
        }
        let mut rest = operands.into_iter();
        let Some(mut sum) = rest.next() else { return Err(wrong("there are no operands".into())) };
        while let Some(next) = rest.next() {
            // Axes that later operands or the result need stay, in the result's order.
            let later = |l: &Label| out.contains(l) || rest.as_slice().iter().any(|o| o.labels.contains(l));
            let mut keep = out.clone();
            for l in sum.labels.iter().chain(&next.labels).filter(|l| later(l)) {
                if !keep.contains(l) {
                    keep.push(*l);
                }
            }
            keep.retain(|l| sum.labels.contains(l) || next.labels.contains(l));
            sum = product(sum, next, &keep)?;
        }
        Ok(sum.summed(|l| out.contains(&l))?.ordered(&out)?.v)
    }
}

/// # Products of other axes
impl<'s> Var<'s> {
    /// The dot product of two vectors, summed in the order of a matrix product.
    #[doc(alias = "vdot")]
    #[track_caller]
    pub fn dot(self, other: Var<'s>) -> Result<Var<'s>> {
        let (n, m) = (self.vector("dot")?, other.vector("dot")?);
        if n != m {
            let kind = ErrorKind::Shapes {
                why: "vectors must have one length",
                left: self.shape()?,
                right: other.shape()?,
            };
            return Err(Error::new("dot", kind));
        }
        self.session.einsum("i,i->", &[self, other])
    }

    /// All products of two vectors: `y[i, j] = a[i] b[j]`.
    #[doc(alias = "ger")]
    #[track_caller]
    pub fn outer(self, other: Var<'s>) -> Result<Var<'s>> {
        let (n, m) = (self.vector("outer")?, other.vector("outer")?);
        self.reshape(&[n, 1])?.mul(other.reshape(&[1, m])?)
    }

    /// The sum of products over the last `axes` axes of this value and the first `axes` of the other.
    #[track_caller]
    pub fn tensordot(self, other: Var<'s>, axes: usize) -> Result<Var<'s>> {
        let (a, b) = (self.shape()?, other.shape()?);
        if let Some(got) = [a, b].into_iter().find(|s| s.rank() < axes) {
            let why = format!("{axes} axes are to be summed over, the value {got} has fewer");
            return Err(Error::argument("tensordot", "axes", why));
        }
        let (first, last) = (a.rank() - axes, b.rank() - axes);
        let summed: Vec<usize> = (0..axes).collect();
        self.check_tensordot(other, &summed.iter().map(|i| first + i).collect::<Vec<_>>(), &summed)?;
        let named = |from: usize, n: usize| (from..from + n).map(|l| l as Label).collect::<Vec<_>>();
        let left = Named { v: self, labels: named(0, a.rank()) };
        let right = Named { v: other, labels: [named(first, axes), named(a.rank(), last)].concat() };
        let keep = [named(0, first), named(a.rank(), last)].concat();
        Ok(product(left, right, &keep)?.ordered(&keep)?.v)
    }

    /// Refuses to sum over axes of two values that are no pairs or differ in size.
    #[track_caller]
    pub(super) fn check_tensordot(self, other: Var<'s>, axes: &[usize], other_axes: &[usize]) -> Result<()> {
        let wrong = |why: String| Error::argument("tensordot", "axes", why);
        if axes.len() != other_axes.len() {
            return Err(wrong(format!("{axes:?} and {other_axes:?} are no pairs")));
        }
        let (left, right) = (self.shape()?, other.shape()?);
        for (&i, &j) in axes.iter().zip(other_axes) {
            let size = |axis: usize, shape: Shape| {
                let size = shape.dims().get(axis).copied();
                size.ok_or_else(|| Error::new("tensordot", ErrorKind::Axis { axis, shape }))
            };
            let (x, y) = (size(i, left)?, size(j, right)?);
            if x != y && x != 1 && y != 1 {
                let (i, j) = (format!("axis {i} of {left} has {x}"), format!("axis {j} of {right} has {y}"));
                return Err(wrong(format!(
                    "{i} elements and {j}; axes to sum over must have as many, or one"
                )));
            }
        }
        Ok(())
    }
}
