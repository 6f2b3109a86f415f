//! Layout: slicing, joining, permuting and repeating.

use super::assert::{self, unknown};
use super::{Axis, AxisEntries, Dim, Dims, Element, HasAxis, Insert, Padding, Size, Times, Transpose, Typed};
use crate::error::Result;
use crate::ops::layout::AxisMap;
use crate::session::Var;
use crate::shape::Shape;

/// Layout.
impl<'s, S: Dims, E: Element> Typed<'s, S, E> {
    /// The same elements with another shape of as many elements. One dimension of it may be dynamic and is inferred.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Matrix, Rank3, Rows, Vector};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let flat: Vector<12> = x.reshape()?;
    /// let cut = flat.reshape::<Rank3<2, 3, 2>>()?;
    /// let pairs: Rows<2> = cut.reshape()?;
    /// assert_eq!(pairs.shape()?.dims(), [6, 2]);
    /// // x.reshape::<Rank2<2, 5>>() does not compile:
    /// // reshape: [3, 4] cannot become [2, 5]: they have 12 and 10 elements
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn reshape<T: Dims>(self) -> Result<Typed<'s, T, E>> {
        const { assert::same_count("reshape", S::DIMS, T::DIMS) };
        let all = self.shape()?.numel();
        let known: usize = T::DIMS.iter().flatten().product();
        let found = all.checked_div(known).unwrap_or(0);
        let dims: Vec<usize> = T::DIMS.iter().map(|d| d.unwrap_or(found)).collect();
        Ok(Typed::trust(self.var.reshape(&dims)?))
    }

    /// Broadcasts to another shape by NumPy's rule: along axes of one element, and along new axes in front. The
    /// compiler must know all sizes of that shape.
    #[track_caller]
    pub fn expand<T: Dims>(self) -> Result<Typed<'s, T, E>> {
        const { assert::broadcasts("expand", S::DIMS, T::DIMS) };
        const { assert::all_known("expand", T::DIMS) };
        let dims: Vec<usize> = T::DIMS.iter().copied().flatten().collect();
        Ok(Typed::trust(self.var.broadcast_to(Shape::new(&dims)?)?))
    }

    /// [`Typed::expand`] to the shape of another tensor, whose sizes the compiler need not know.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::Rows;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Rows<4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let largest = x.amax::<1>()?.unsqueeze::<1>()?; // (Dyn, Size<1>)
    /// assert_eq!((x - largest.expand_as(x)?)?.sum()?.item()?, 0.0);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn expand_as<T: Dims, F: Element>(self, other: Typed<'s, T, F>) -> Result<Typed<'s, T, E>> {
        const { assert::broadcasts("expand_as", S::DIMS, T::DIMS) };
        Ok(Typed::trust(self.var.broadcast_to(other.shape()?)?))
    }

    /// Broadcasts to another shape by a map that says which axis each axis of the result reads: [`Var::broadcast_axes`]. The
    /// compiler must know all sizes of that shape.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Matrix, NewAxis, Vector};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Vector<3> = session.full(&[3], 1.0)?.typed()?;
    /// let rows: Matrix<2, 3> = x.broadcast_axes((NewAxis, Axis::<0>))?;
    /// let columns: Matrix<3, 2> = x.broadcast_axes((Axis::<0>, NewAxis))?;
    /// // As Matrix<2, 4> the first does not compile:
    /// // broadcast_axes: axis 0 of [3] does not broadcast to axis 1 of [2, 4]
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn broadcast_axes<T: Dims, M: AxisEntries>(self, _: M) -> Result<Typed<'s, T, E>> {
        const { assert::axis_map("broadcast_axes", S::DIMS, M::MAP, T::DIMS) };
        const { assert::all_known("broadcast_axes", T::DIMS) };
        let dims: Vec<usize> = T::DIMS.iter().copied().flatten().collect();
        Ok(Typed::trust(self.var.broadcast_axes(Shape::new(&dims)?, AxisMap::new(M::MAP)?)?))
    }

    /// Inserts an axis of one element.
    #[track_caller]
    pub fn unsqueeze<const AXIS: usize>(self) -> Result<Typed<'s, S::With<Size<1>>, E>>
    where
        S: Insert<AXIS>,
    {
        Ok(Typed::trust(self.var.unsqueeze(AXIS)?))
    }

    /// Removes an axis of one element. Use [`Typed::select`] if the compiler does not know its size.
    #[track_caller]
    pub fn squeeze<const AXIS: usize>(self) -> Result<Typed<'s, S::Without, E>>
    where
        S: HasAxis<AXIS, Dim = Size<1>>,
    {
        Ok(Typed::trust(self.var.squeeze(AXIS)?))
    }

    /// Swaps the last two axes.
    #[track_caller]
    pub fn transpose(self) -> Result<Typed<'s, S::Output, E>>
    where
        S: Transpose,
    {
        Ok(Typed::trust(self.var.transpose()?))
    }

    /// Elements `START..START + LEN` of an axis.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::Matrix;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let columns: Matrix<3, 2> = x.narrow::<1, 1, 2>()?;
    /// // x.narrow::<1, 3, 2>() does not compile: narrow: elements 3..5 do not lie in axis 1 of 4
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn narrow<const AXIS: usize, const START: usize, const LEN: usize>(
        self,
    ) -> Result<Typed<'s, S::With<Size<LEN>>, E>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::range_in("narrow", AXIS, S::Dim::SIZE, START, LEN) };
        Ok(Typed::trust(self.var.narrow(AXIS, START, LEN)?))
    }

    /// Element `INDEX` of an axis; the axis is dropped.
    #[track_caller]
    pub fn select<const AXIS: usize, const INDEX: usize>(self) -> Result<Typed<'s, S::Without, E>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::index_in("select", AXIS, S::Dim::SIZE, INDEX) };
        Ok(Typed::trust(self.var.select(AXIS, INDEX)?))
    }

    /// Concatenates this value and another along an axis. The caller names the sum of their sizes.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Matrix};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let a: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let b: Matrix<2, 4> = session.full(&[2, 4], 2.0)?.typed()?;
    /// let both: Matrix<5, 4> = a.concat(b, Axis::<0>)?;
    /// // As Matrix<6, 4> it does not compile: concat: 3 and 2 elements of axis 0 make 5, but the type says 6
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn concat<const AXIS: usize, D: Dim, N: Dim>(
        self,
        other: Typed<'s, S::With<D>, E>,
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<N>, E>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::sum_of("concat", AXIS, &[S::Dim::SIZE, D::SIZE], N::SIZE) };
        Typed::trust_if(const { unknown(&[S::Dim::SIZE, D::SIZE]) == 0 }, self.var.concat(other.var, AXIS)?)
    }

    /// Stacks tensors of one shape along a new axis.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Rank3, Rows, Size, Typed};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Rows<4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let three: Typed<(typed::Dyn, Size<3>, Size<4>)> = Typed::stack([x, x, x], Axis::<1>)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn stack<const AXIS: usize, const N: usize>(
        values: [Self; N],
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<Size<N>>, E>>
    where
        S: Insert<AXIS>,
    {
        const { assert::some("stack", N) };
        let session = values[0].session();
        Ok(Typed::trust(session.stack(&values.map(Var::from), AXIS)?))
    }

    /// Splits an axis into two pieces. The caller names their sizes; one may be dynamic and is inferred.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Matrix};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let (a, b): (Matrix<3, 1>, Matrix<3, 3>) = x.split(Axis::<1>)?;
    /// // As Matrix<3, 1> and Matrix<3, 2> they do not compile:
    /// // split: 1 and 2 elements of axis 1 make 3, but the type says 4
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::type_complexity)] // two tensors
    #[track_caller]
    pub fn split<const AXIS: usize, M: Dim, N: Dim>(
        self,
        _: Axis<AXIS>,
    ) -> Result<(Typed<'s, S::With<M>, E>, Typed<'s, S::With<N>, E>)>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::sum_of("split", AXIS, &[M::SIZE, N::SIZE], S::Dim::SIZE) };
        const { assert::one_known("split", M::SIZE, N::SIZE) };
        let size = self.shape()?.dims()[AXIS];
        let rest = |known: Option<usize>| size.saturating_sub(known.unwrap_or(0));
        let sizes = [M::SIZE.unwrap_or(rest(N::SIZE)), N::SIZE.unwrap_or(rest(M::SIZE))];
        let parts = self.var.split(AXIS, &sizes)?;
        Ok((Typed::trust(parts[0]), Typed::trust(parts[1])))
    }

    /// Splits an axis into equal pieces. The caller names how many.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Rows};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Rows<12> = session.full(&[5, 12], 1.0)?.typed()?;
    /// let [q, k, v]: [Rows<4>; 3] = x.chunk(Axis::<1>)?;
    /// // As [Rows<5>; 3] they do not compile: chunk: 3 times 5 elements of axis 1 make 15, but the type says 12
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn chunk<const AXIS: usize, const N: usize, P: Dim>(
        self,
        _: Axis<AXIS>,
    ) -> Result<[Typed<'s, S::With<P>, E>; N]>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::times("chunk", AXIS, N, P::SIZE, S::Dim::SIZE) };
        let even = self.shape()?.dims()[AXIS].checked_div(N).unwrap_or(0);
        let parts = self.var.split(AXIS, &[P::SIZE.unwrap_or(even); N])?;
        Ok(std::array::from_fn(|i| Typed::trust(parts[i])))
    }

    /// Repeats the whole axis: [`Var::repeat`]. The caller names the resulting size.
    #[track_caller]
    pub fn repeat<const AXIS: usize, const T: usize, N: Dim>(
        self,
        _: Axis<AXIS>,
        _: Times<T>,
    ) -> Result<Typed<'s, S::With<N>, E>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::times("repeat", AXIS, T, S::Dim::SIZE, N::SIZE) };
        let mut times = vec![1; S::DIMS.len()];
        times[AXIS] = T;
        Typed::trust_if(const { S::Dim::SIZE.is_some() }, self.var.repeat(&times)?)
    }

    /// Repeats each element of an axis: [`Var::repeat_interleave`]. The caller names the resulting size.
    #[track_caller]
    pub fn repeat_interleave<const AXIS: usize, const T: usize, N: Dim>(
        self,
        _: Axis<AXIS>,
        _: Times<T>,
    ) -> Result<Typed<'s, S::With<N>, E>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::times("repeat_interleave", AXIS, T, S::Dim::SIZE, N::SIZE) };
        Typed::trust_if(const { S::Dim::SIZE.is_some() }, self.var.repeat_interleave(AXIS, T)?)
    }

    /// Reverses an axis.
    #[track_caller]
    pub fn flip<const AXIS: usize>(self) -> Result<Self>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.flip(&[AXIS])?))
    }

    /// Shifts the elements of an axis by `shift` places towards its end, cyclically: [`Var::roll`].
    #[track_caller]
    pub fn roll<const AXIS: usize>(self, shift: i64) -> Result<Self>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.roll(AXIS, shift)?))
    }
}

/// Layout of numbers.
impl<'s, S: Dims> Typed<'s, S> {
    /// Pads an axis with `A` elements `value` in front and `B` at the end. The caller names the resulting size.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Matrix, Padding};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let wide: Matrix<3, 7> = x.pad(Axis::<1>, Padding::<1>, Padding::<2>, 0.0)?;
    /// // As Matrix<3, 8> it does not compile: pad: 1, 4 and 2 elements of axis 1 make 7, but the type says 8
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pad<const AXIS: usize, const A: usize, const B: usize, N: Dim>(
        self,
        _: Axis<AXIS>,
        _: Padding<A>,
        _: Padding<B>,
        value: f64,
    ) -> Result<Typed<'s, S::With<N>>>
    where
        S: HasAxis<AXIS>,
    {
        const { assert::sum_of("pad", AXIS, &[Some(A), S::Dim::SIZE, Some(B)], N::SIZE) };
        Typed::trust_if(const { S::Dim::SIZE.is_some() }, self.var.pad_with(AXIS, A, B, value)?)
    }

    /// The lower triangle of the matrices in the last two axes: [`Var::tril`].
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Result<Self>
    where
        S: Transpose,
    {
        Ok(Typed::trust(self.var.tril(diagonal)?))
    }

    /// The upper triangle of the matrices in the last two axes: [`Var::triu`].
    #[track_caller]
    pub fn triu(self, diagonal: i64) -> Result<Self>
    where
        S: Transpose,
    {
        Ok(Typed::trust(self.var.triu(diagonal)?))
    }
}

macro_rules! permutes {
    ($([$($d:ident)*] $shape:ty, $($i:ident)*;)*) => {$(
        impl<'s, E: Element, $($d: Dim),*> Typed<'s, $shape, E> {
            /// Permutes the axes. The arguments name, for each axis of the result, where it is now.
            ///
            /// `x.permute::<1, 2, 0>()` moves the first axis to the end.
            #[allow(clippy::type_complexity)] // the new order, spelt out
            #[track_caller]
            pub fn permute<$(const $i: usize),*>(
                self,
            ) -> Result<Typed<'s, ($(<$shape as HasAxis<$i>>::Dim,)*), E>>
            where
                $($shape: HasAxis<$i>,)*
            {
                const { assert::permutation("permute", &[$($i),*]) };
                Ok(Typed::trust(self.var.permute(&[$($i),*])?))
            }
        }
    )*};
}

permutes! {
    [A B] (A, B), I J;
    [A B C] (A, B, C), I J K;
    [A B C D] (A, B, C, D), I J K L;
    [A B C D F] (A, B, C, D, F), I J K L M;
    [A B C D F G] (A, B, C, D, F, G), I J K L M N;
    [A B C D F G H] (A, B, C, D, F, G, H), I J K L M N P;
    [A B C D F G H O] (A, B, C, D, F, G, H, O), I J K L M N P Q;
    [A B C D F G H O U] (A, B, C, D, F, G, H, O, U), I J K L M N P Q R;
    [A B C D F G H O U V] (A, B, C, D, F, G, H, O, U, V), I J K L M N P Q R S;
}
