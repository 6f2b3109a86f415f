//! Compile-time checks in `const` blocks of generic functions, which can compute with sizes where types cannot. A
//! failed check is a compile error whose text, with the numbers in it, is built here.

pub(super) type Extent = Option<usize>;

/// A text built at compile time, where there is no `format!`. What does not fit is cut off.
struct Text {
    bytes: [u8; 200],
    len: usize,
}

impl Text {
    const fn new(op: &str) -> Text {
        Text { bytes: [0; 200], len: 0 }.str(op).str(": ")
    }

    const fn str(mut self, s: &str) -> Text {
        let (s, mut i) = (s.as_bytes(), 0);
        while i < s.len() && self.len < self.bytes.len() {
            self.bytes[self.len] = s[i];
            (self.len, i) = (self.len + 1, i + 1);
        }
        self
    }

    const fn num(self, n: usize) -> Text {
        let digit = [b'0' + (n % 10) as u8];
        let digit = match str::from_utf8(&digit) {
            Ok(digit) => digit,
            Err(_) => "?",
        };
        if n < 10 { self.str(digit) } else { self.num(n / 10).str(digit) }
    }

    /// `[3, ?]`: unknown dimensions are question marks.
    const fn dims(self, dims: &[Extent]) -> Text {
        let (mut text, mut i) = (self.str("["), 0);
        while i < dims.len() {
            text = if i > 0 { text.str(", ") } else { text };
            text = match dims[i] {
                Some(n) => text.num(n),
                None => text.str("?"),
            };
            i += 1;
        }
        text.str("]")
    }

    #[track_caller]
    const fn demand(&self, holds: bool) {
        let (text, _) = self.bytes.split_at(self.len);
        match str::from_utf8(text) {
            Ok(text) => assert!(holds, "{}", text),
            Err(_) => assert!(holds),
        }
    }
}

/// The number of elements, if all dimensions are known.
pub(super) const fn count(dims: &[Extent]) -> Extent {
    let (mut n, mut i) = (1, 0);
    while i < dims.len() {
        match dims[i] {
            Some(d) => n *= d,
            None => return None,
        }
        i += 1;
    }
    Some(n)
}

/// Number of unknown dimensions.
pub(super) const fn unknown(dims: &[Extent]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < dims.len() {
        n += dims[i].is_none() as usize;
        i += 1;
    }
    n
}

/// All dimensions must be known.
#[track_caller]
pub(super) const fn all_known(op: &str, dims: &[Extent]) {
    Text::new(op).str("the sizes of ").dims(dims).str(" must all be known here").demand(unknown(dims) == 0);
}

/// A reshape keeps the number of elements, and has at most one dimension to infer.
#[track_caller]
pub(super) const fn same_count(op: &str, from: &[Extent], to: &[Extent]) {
    let text = Text::new(op).dims(from).str(" cannot become ").dims(to);
    if let (Some(n), Some(m)) = (count(from), count(to)) {
        text.str(": they have ").num(n).str(" and ").num(m).str(" elements").demand(n == m);
    } else {
        let text = text.str(": at most one dimension can be found out; reshape the untyped value");
        text.demand(unknown(to) <= 1);
    }
}

/// A flatten layer's size must be the product of all axes but the first.
#[track_caller]
pub(super) const fn flat_size(op: &str, from: &[Extent], size: usize) {
    if let Some((_, rest)) = from.split_first()
        && let Some(n) = count(rest)
    {
        let text = Text::new(op).str("the axes of ").dims(from).str(" behind the first have ").num(n);
        text.str(" elements, but the type says ").num(size).demand(n == size);
    }
}

/// Shapes of one rank must agree where both are known.
#[track_caller]
pub(super) const fn compatible(op: &str, from: &[Extent], to: &[Extent]) {
    let mut agree = from.len() == to.len();
    let mut i = 0;
    while agree && i < from.len() {
        if let (Some(n), Some(m)) = (from[i], to[i]) {
            agree = n == m;
        }
        i += 1;
    }
    Text::new(op).dims(from).str(" cannot be ").dims(to).demand(agree);
}

/// NumPy's broadcasting rule: aligned at the last axis, equal or 1, where both are known.
#[track_caller]
pub(super) const fn broadcasts(op: &str, from: &[Extent], to: &[Extent]) {
    let mut fits = from.len() <= to.len();
    let mut i = 0;
    while fits && i < from.len() {
        if let (Some(n), Some(m)) = (from[i], to[to.len() - from.len() + i]) {
            fits = n == m || n == 1;
        }
        i += 1;
    }
    Text::new(op).dims(from).str(" does not broadcast to ").dims(to).demand(fits);
}

/// Elements `start..start + len` must lie in an axis.
#[track_caller]
pub(super) const fn range_in(op: &str, axis: usize, size: Extent, start: usize, len: usize) {
    if let Some(size) = size {
        let text = Text::new(op).str("elements ").num(start).str("..").num(start + len);
        text.str(" do not lie in axis ").num(axis).str(" of ").num(size).demand(start + len <= size);
    }
}

/// An index must lie in an axis.
#[track_caller]
pub(crate) const fn index_in(op: &str, axis: usize, size: Extent, index: usize) {
    if let Some(size) = size {
        let text = Text::new(op).str("index ").num(index).str(" is outside axis ").num(axis);
        text.str(" of ").num(size).demand(index < size);
    }
}

/// An order of axes must name each one once.
#[track_caller]
pub(super) const fn permutation(op: &str, order: &[usize]) {
    let mut i = 0;
    while i < order.len() {
        let mut j = 0;
        while j < i {
            Text::new(op).str("axis ").num(order[i]).str(" is named twice").demand(order[i] != order[j]);
            j += 1;
        }
        i += 1;
    }
}

/// In a concatenation, sizes must add up.
#[track_caller]
pub(super) const fn sum_of(op: &str, axis: usize, parts: &[Extent], whole: Extent) {
    let (mut text, mut sum, mut i) = (Text::new(op), 0, 0);
    while i < parts.len() {
        let Some(n) = parts[i] else { return };
        text = text.str(if i == 0 {
            ""
        } else if i + 1 < parts.len() {
            ", "
        } else {
            " and "
        });
        (text, sum, i) = (text.num(n), sum + n, i + 1);
    }
    if let Some(whole) = whole {
        let text = text.str(" elements of axis ").num(axis).str(" make ").num(sum);
        text.str(", but the type says ").num(whole).demand(sum == whole);
    }
}

/// `times` times the size of a part must be the whole size.
#[track_caller]
pub(super) const fn times(op: &str, axis: usize, times: usize, part: Extent, whole: Extent) {
    if let (Some(part), Some(whole)) = (part, whole) {
        let text = Text::new(op).num(times).str(" times ").num(part).str(" elements of axis ").num(axis);
        let text = text.str(" make ").num(times * part).str(", but the type says ").num(whole);
        text.demand(times * part == whole);
    }
}

/// There must be at least one operand.
#[track_caller]
pub(super) const fn some(op: &str, count: usize) {
    Text::new(op).str("there must be at least one value").demand(count > 0);
}

/// At least one of two sizes must be known.
#[track_caller]
pub(super) const fn one_known(op: &str, a: Extent, b: Extent) {
    Text::new(op).str("the size of one piece must be known here").demand(a.is_some() || b.is_some());
}

/// `by` must divide `n`.
#[track_caller]
pub(super) const fn divides(op: &str, n: Extent, what: &str, by: Extent, among: &str) {
    if let (Some(n), Some(by)) = (n, by) {
        let text = Text::new(op).num(n).str(" ").str(what).str(" do not divide evenly among ").num(by);
        text.str(" ").str(among).demand(if by == 0 { n == 0 } else { n % by == 0 });
    }
}

/// A value must be given once, or for every step: its rank must be one of these.
#[track_caller]
pub(super) const fn once_or_each(op: &str, name: &str, rank: usize, each: usize) {
    let text = Text::new(op).str(name).str(" must have the last axis of the value, or all of them");
    text.demand(rank == 1 || rank == each);
}

/// Number of modes of a line of real points: exactly as many as there are, or at most as many.
#[track_caller]
pub(super) const fn modes(op: &str, points: Extent, modes: Extent, all: bool) {
    if let (Some(points), Some(modes)) = (points, modes) {
        let there = points / 2 + 1;
        let text =
            Text::new(op).num(points).str(" points have ").num(there).str(" modes, but the type says ");
        text.num(modes).demand(modes == there || !all && modes < there);
    }
}

/// The modes from both ends must fit in a line's spectrum.
#[track_caller]
pub(super) const fn both_ends(op: &str, points: Extent, modes: Extent) {
    if let (Some(points), Some(modes)) = (points, modes) {
        let text = Text::new(op).num(points).str(" points have no ").num(modes).str(" modes at either end");
        text.demand(2 * modes <= points);
    }
}

/// Padding must be at most half of the kernel, or windows could miss the input.
#[track_caller]
pub(super) const fn padding_in_half(op: &str, axis: &str, padding: usize, kernel: usize) {
    let text = Text::new(op).str(axis).str(" with padding ").num(padding).str(" and kernel ").num(kernel);
    text.str(": padding must be at most half of the kernel").demand(padding <= kernel / 2);
}

/// A map of axes must name each axis once, in order, and sizes must be equal or 1.
#[track_caller]
pub(super) const fn axis_map(op: &str, from: &[Extent], map: &[Option<usize>], to: &[Extent]) {
    let text = Text::new(op).str("the map has ").num(map.len()).str(" entries for a shape of ");
    text.num(to.len()).str(" axes").demand(map.len() == to.len());
    let (mut next, mut i) = (0, 0);
    while i < map.len() {
        if let Some(axis) = map[i] {
            let text = Text::new(op).str("the map names axis ").num(axis).str(" of ").dims(from);
            text.str(" where axis ").num(next).str(" is due").demand(axis == next && axis < from.len());
            if let (Some(n), Some(m)) = (from[axis], to[i]) {
                let text = Text::new(op)
                    .str("axis ")
                    .num(axis)
                    .str(" of ")
                    .dims(from)
                    .str(" does not broadcast to axis ");
                text.num(i).str(" of ").dims(to).demand(n == m || n == 1);
            }
            next += 1;
        }
        i += 1;
    }
    let text = Text::new(op).str("the map names ").num(next).str(" of the axes of ").dims(from);
    text.demand(next == from.len());
}

/// An axis that windows slide along.
pub(super) struct Sliding {
    pub size: Extent,
    pub kernel: Extent,
    pub stride: usize,
    pub padding: usize,
}

impl Sliding {
    const fn text(&self, op: &str, axis: &str, size: usize, kernel: usize) -> Text {
        let text = Text::new(op).str(axis).str(" ").num(size).str(" with kernel ").num(kernel);
        text.str(", stride ").num(self.stride)
    }

    /// The number of window positions must be the one in the type.
    #[track_caller]
    pub(super) const fn gives(&self, op: &str, axis: &str, out: Extent) {
        Text::new(op).str("a stride must be at least 1").demand(self.stride > 0);
        if let (Some(size), Some(kernel)) = (self.size, self.kernel) {
            let text = self.text(op, axis, size, kernel).str(" and padding ").num(self.padding);
            if size + 2 * self.padding < kernel || kernel == 0 {
                text.str(" has no place for a window").demand(false);
            } else if let Some(out) = out {
                let n = (size + 2 * self.padding - kernel) / self.stride + 1;
                text.str(" becomes ").num(n).str(", but the type says ").num(out).demand(n == out);
            }
        }
    }

    /// The reverse, for transposed convolutions: the windows must cover as many elements as the type says.
    #[track_caller]
    pub(super) const fn spans(&self, op: &str, axis: &str, more: usize, out: Extent) {
        let text = Text::new(op).str("an output padding of ").num(more).str(" must be below the stride ");
        text.num(self.stride).demand(more < self.stride);
        if let (Some(size), Some(kernel)) = (self.size, self.kernel) {
            let text = self.text(op, axis, size, kernel).str(", padding ").num(self.padding);
            let text = text.str(" and output padding ").num(more);
            let reach = if size == 0 { 0 } else { (size - 1) * self.stride + kernel + more };
            if reach <= 2 * self.padding {
                text.str(" leaves nothing").demand(false);
            } else if let Some(out) = out {
                let n = reach - 2 * self.padding;
                text.str(" becomes ").num(n).str(", but the type says ").num(out).demand(n == out);
            }
        }
    }
}
