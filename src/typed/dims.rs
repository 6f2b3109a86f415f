//! Dimensions and shapes as types, and relations between them.

/// A dimension: [`Size`], [`Dyn`], or your own type for a size that is known only at run time but must not be confused
/// with another.
///
/// ```compile_fail
/// use dittograd::typed::{Size, Dim, Typed};
/// struct Batch;
/// struct Time;
/// impl Dim for Batch { const SIZE: Option<usize> = None; }
/// impl Dim for Time { const SIZE: Option<usize> = None; }
/// fn add<'s>(x: Typed<'s, (Batch, Size<8>)>, y: Typed<'s, (Time, Size<8>)>) {
///     x.add(y); // shapes do not fit: `(Time, Size<8>)` does not broadcast to `(Batch, Size<8>)`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dimension",
    note = "dimensions are `Size<N>`, `Dyn`, and types of your own that implement `Dim`"
)]
pub trait Dim {
    /// The size, if the compiler knows it.
    const SIZE: Option<usize>;
}

/// A dimension of `N` elements.
#[derive(Clone, Copy, Debug)]
pub struct Size<const N: usize>;

/// A dimension whose size is known only at run time.
#[derive(Clone, Copy, Debug)]
pub struct Dyn;

impl<const N: usize> Dim for Size<N> {
    const SIZE: Option<usize> = Some(N);
}

impl Dim for Dyn {
    const SIZE: Option<usize> = None;
}

/// A shape: a tuple of up to ten dimensions, outermost first. `()` is the shape of a scalar.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    note = "a shape is a tuple of up to ten dimensions, such as `(Dyn, Size<4>)`, or an alias such as `Rank2<3, 4>`"
)]
pub trait Dims: Sized + Broadcast<Self> {
    /// The sizes, where the compiler knows them.
    const DIMS: &'static [Option<usize>];
}

/// A shape that has an axis `A`, counted from the outermost, 0.
#[diagnostic::on_unimplemented(
    message = "the shape `{Self}` has no axis {A}",
    note = "axes are counted from 0, outermost first"
)]
pub trait HasAxis<const A: usize>: Dims {
    /// The dimension at that axis.
    type Dim: Dim;
    /// The shape without that axis.
    type Without: Dims;
    /// The shape with another dimension at that axis.
    type With<D: Dim>: Dims;
}

/// A shape whose last dimension is `D`.
#[diagnostic::on_unimplemented(
    message = "the last dimension of `{Self}` is not `{D}`",
    label = "needs a last dimension `{D}`"
)]
pub trait EndsIn<D: Dim>: Dims {
    /// All dimensions but the last.
    type Lead: Dims;
    /// The shape with another last dimension.
    type With<E: Dim>: Dims;
}

/// A shape that a dimension can be appended to.
#[diagnostic::on_unimplemented(message = "the shape `{Self}` has no room for another axis")]
pub trait Push: Dims {
    /// The shape followed by `D`.
    type With<D: Dim>: Dims;
}

/// A shape that a new axis `A` can be inserted into.
#[diagnostic::on_unimplemented(
    message = "the shape `{Self}` cannot have a new axis {A}",
    note = "axes are counted from 0, outermost first; a shape has up to ten"
)]
pub trait Insert<const A: usize>: Dims {
    /// The shape with `D` at that axis.
    type With<D: Dim>: Dims;
}

/// A shape of at least two axes.
#[diagnostic::on_unimplemented(message = "the shape `{Self}` has no two axes to exchange")]
pub trait Transpose: Dims {
    /// The shape with its last two axes exchanged.
    type Output: Dims;
}

/// A shape that is `S`, or the last axes of `S`, so that it broadcasts to `S`.
#[diagnostic::on_unimplemented(
    message = "shapes do not fit: `{Self}` does not broadcast to `{S}`",
    label = "must have the shape `{S}`, or its last axes",
    note = "`expand` repeats along axes of one element, `retype` checks dynamic dimensions at run time"
)]
pub trait Broadcast<S> {}

/// A shape whose last `N` axes, up to eight, are pooled to those of `Y`. All others stay.
#[diagnostic::on_unimplemented(
    message = "pooling the last {N} axes of `{Self}` does not give `{Y}`",
    note = "both shapes have the same axes before the last {N}"
)]
pub trait Pooled<const N: usize, Y>: Dims {}

/// A shape that a kernel of shape `K` convolves to shape `Y` along its last `N` axes, up to eight: `(batch, in, sizes…)` with
/// `(out, in, kernel…)` to `(batch, out, sizes…)`, all with or without the batch.
#[diagnostic::on_unimplemented(
    message = "`{Self}` with a kernel `{K}` does not give `{Y}`",
    note = "`(batch, in, sizes…)` or `(in, sizes…)` and a kernel `(out, in, kernel…)` give `(batch, out, sizes…)` or `(out, sizes…)`"
)]
pub trait Convolved<const N: usize, K, Y>: Dims {
    /// Channels of this shape.
    type In: Dim;
    /// Channels of `Y`.
    type Out: Dim;
}

/// Which axis of a broadcast value each axis of the result reads: a tuple of [`Axis`](super::Axis) and [`NewAxis`], one for
/// each axis of the result, such as `(NewAxis, Axis<0>)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a map of axes",
    note = "a map of axes is a tuple of `Axis::<I>` and `NewAxis`, one for each axis of the result"
)]
pub trait AxisEntries {
    /// The axis that each axis of the result reads, if any.
    const MAP: &'static [Option<usize>];
}

/// One entry of [`AxisEntries`].
pub trait AxisEntry {
    /// The axis that is read, if any.
    const FROM: Option<usize>;
}

/// An axis of a broadcast result along which the value is repeated, in the place of an axis: see [`AxisEntries`].
#[derive(Clone, Copy, Debug)]
pub struct NewAxis;

impl AxisEntry for NewAxis {
    const FROM: Option<usize> = None;
}

impl<const I: usize> AxisEntry for super::Axis<I> {
    const FROM: Option<usize> = Some(I);
}

macro_rules! shapes {
    ($(($($i:literal $d:ident),*))*) => {$(
        impl<$($d: Dim),*> Dims for ($($d,)*) {
            const DIMS: &'static [Option<usize>] = &[$($d::SIZE),*];
        }
        impl<$($d: AxisEntry),*> AxisEntries for ($($d,)*) {
            const MAP: &'static [Option<usize>] = &[$($d::FROM),*];
        }
        axes! { [] $($i $d),* }
    )*};
}

/// Impls for one axis, axis by axis. The axes before it are in brackets.
macro_rules! axes {
    ([$($lead:ident)*]) => {
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim),*> Broadcast<($($lead,)*)> for () {}
    };
    ([$($lead:ident)*] $i:literal $d:ident $(, $j:literal $rest:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* $d: Dim, $($rest: Dim),*> HasAxis<$i> for ($($lead,)* $d, $($rest,)*) {
            type Dim = $d;
            type Without = ($($lead,)* $($rest,)*);
            type With<X: Dim> = ($($lead,)* X, $($rest,)*);
        }
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* $d: Dim, $($rest: Dim),*> Broadcast<($($lead,)* $d, $($rest,)*)> for ($d, $($rest,)*) {}
        axes! { [$($lead)* $d] $($j $rest),* }
    };
}

/// Impls for the last axes. The axes before them are in brackets.
macro_rules! ends {
    ($([$($lead:ident)*])*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* Z: Dim> EndsIn<Z> for ($($lead,)* Z,) {
            type Lead = ($($lead,)*);
            type With<X: Dim> = ($($lead,)* X,);
        }
        impl<$($lead: Dim,)*> Push for ($($lead,)*) {
            type With<X: Dim> = ($($lead,)* X,);
        }
    )*};
}

/// Impls for new axes, position by position. The dimensions before it are in brackets.
macro_rules! inserts {
    ([$($lead:ident)*] $i:literal) => {
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim),*> Insert<$i> for ($($lead,)*) {
            type With<X: Dim> = ($($lead,)* X,);
        }
    };
    ([$($lead:ident)*] $i:literal $d:ident $j:literal $($rest:ident $k:literal)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* $d: Dim, $($rest: Dim),*> Insert<$i> for ($($lead,)* $d, $($rest,)*) {
            type With<X: Dim> = ($($lead,)* X, $d, $($rest,)*);
        }
        inserts! { [$($lead)* $d] $j $($rest $k)* }
    };
}

macro_rules! transposes {
    ($([$($lead:ident)*])*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* Y: Dim, Z: Dim> Transpose for ($($lead,)* Y, Z) {
            type Output = ($($lead,)* Z, Y);
        }
    )*};
}

/// Pooling of `$n` axes, with their sizes before and after. The axes before them are in brackets, those that may follow these
/// come last.
macro_rules! pooled {
    ($n:literal ($($x:ident $y:ident)*) [$($lead:ident)*] $($more:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($lead: Dim,)* $($x: Dim, $y: Dim),*> Pooled<$n, ($($lead,)* $($y,)*)> for ($($lead,)* $($x,)*) {}
        pooled! { @ $n ($($x $y)*) [$($lead)*] $($more)* }
    };
    (@ $n:literal $sizes:tt [$($lead:ident)*]) => {};
    (@ $n:literal $sizes:tt [$($lead:ident)*] $next:ident $($more:ident)*) => {
        pooled! { $n $sizes [$($lead)* $next] $($more)* }
    };
}

/// Convolutions along `$n` axes, with their sizes before, in the kernel, and after.
macro_rules! convolved {
    ($($n:literal ($($x:ident $k:ident $y:ident)*))*) => {$(
        #[diagnostic::do_not_recommend]
        impl<I: Dim, O: Dim, $($x: Dim, $k: Dim, $y: Dim),*> Convolved<$n, (O, I, $($k,)*), (O, $($y,)*)> for (I, $($x,)*) {
            type In = I;
            type Out = O;
        }
        #[diagnostic::do_not_recommend]
        impl<B: Dim, I: Dim, O: Dim, $($x: Dim, $k: Dim, $y: Dim),*>
            Convolved<$n, (O, I, $($k,)*), (B, O, $($y,)*)> for (B, I, $($x,)*)
        {
            type In = I;
            type Out = O;
        }
    )*};
}

shapes! {
    () (0 A) (0 A, 1 B) (0 A, 1 B, 2 C) (0 A, 1 B, 2 C, 3 D) (0 A, 1 B, 2 C, 3 D, 4 E)
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F) (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G)
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H) (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H, 8 I)
    (0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H, 8 I, 9 J)
}
ends! {
    [] [A] [A B] [A B C] [A B C D] [A B C D E] [A B C D E F] [A B C D E F G] [A B C D E F G H] [A B C D E F G H I]
}
inserts! { [] 0 }
inserts! { [] 0 A 1 }
inserts! { [] 0 A 1 B 2 }
inserts! { [] 0 A 1 B 2 C 3 }
inserts! { [] 0 A 1 B 2 C 3 D 4 }
inserts! { [] 0 A 1 B 2 C 3 D 4 E 5 }
inserts! { [] 0 A 1 B 2 C 3 D 4 E 5 F 6 }
inserts! { [] 0 A 1 B 2 C 3 D 4 E 5 F 6 G 7 }
inserts! { [] 0 A 1 B 2 C 3 D 4 E 5 F 6 G 7 H 8 }
inserts! { [] 0 A 1 B 2 C 3 D 4 E 5 F 6 G 7 H 8 I 9 }
transposes! {
    [] [A] [A B] [A B C] [A B C D] [A B C D E] [A B C D E F] [A B C D E F G] [A B C D E F G H]
}
pooled! { 1 (P0 Q0) [] A B C D E F G H I }
pooled! { 2 (P0 Q0 P1 Q1) [] A B C D E F G H }
pooled! { 3 (P0 Q0 P1 Q1 P2 Q2) [] A B C D E F G }
pooled! { 4 (P0 Q0 P1 Q1 P2 Q2 P3 Q3) [] A B C D E F }
pooled! { 5 (P0 Q0 P1 Q1 P2 Q2 P3 Q3 P4 Q4) [] A B C D E }
pooled! { 6 (P0 Q0 P1 Q1 P2 Q2 P3 Q3 P4 Q4 P5 Q5) [] A B C D }
pooled! { 7 (P0 Q0 P1 Q1 P2 Q2 P3 Q3 P4 Q4 P5 Q5 P6 Q6) [] A B C }
pooled! { 8 (P0 Q0 P1 Q1 P2 Q2 P3 Q3 P4 Q4 P5 Q5 P6 Q6 P7 Q7) [] A B }
convolved! {
    1 (P0 K0 Q0)
    2 (P0 K0 Q0 P1 K1 Q1)
    3 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2)
    4 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2 P3 K3 Q3)
    5 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2 P3 K3 Q3 P4 K4 Q4)
    6 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2 P3 K3 Q3 P4 K4 Q4 P5 K5 Q5)
    7 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2 P3 K3 Q3 P4 K4 Q4 P5 K5 Q5 P6 K6 Q6)
    8 (P0 K0 Q0 P1 K1 Q1 P2 K2 Q2 P3 K3 Q3 P4 K4 Q4 P5 K5 Q5 P6 K6 Q6 P7 K7 Q7)
}
