//! Checks that the compiler runs, in `const` blocks of generic functions: it can compute with sizes there, though not
//! in types. A failed one is a compile error whose text is made here, with the numbers in it.

type Extent = Option<usize>;

/// Text put together by the compiler, which has no `format!`. What does not fit is cut off.
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

/// How many dimensions are unknown.
pub(super) const fn unknown(dims: &[Extent]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < dims.len() {
        n += dims[i].is_none() as usize;
        i += 1;
    }
    n
}

/// The compiler knows all dimensions.
#[track_caller]
pub(super) const fn all_known(op: &str, dims: &[Extent]) {
    Text::new(op).str("the sizes of ").dims(dims).str(" must all be known here").demand(unknown(dims) == 0);
}

/// A reshape keeps the number of elements, and has at most one dimension to find out.
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

/// A layer that flattens says how many elements all axes but the first have.
#[track_caller]
pub(super) const fn flat_size(op: &str, from: &[Extent], size: usize) {
    if let Some((_, rest)) = from.split_first()
        && let Some(n) = count(rest)
    {
        let text = Text::new(op).str("the axes of ").dims(from).str(" behind the first have ").num(n);
        text.str(" elements, but the type says ").num(size).demand(n == size);
    }
}

/// Shapes of one rank that agree where both are known.
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

/// NumPy's rule: aligned at the last axis, equal or 1, where both are known.
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

/// Elements `start..start + len` lie in an axis.
#[track_caller]
pub(super) const fn range_in(op: &str, axis: usize, size: Extent, start: usize, len: usize) {
    if let Some(size) = size {
        let text = Text::new(op).str("elements ").num(start).str("..").num(start + len);
        text.str(" do not lie in axis ").num(axis).str(" of ").num(size).demand(start + len <= size);
    }
}

/// An index lies in an axis.
#[track_caller]
pub(super) const fn index_in(op: &str, axis: usize, size: Extent, index: usize) {
    if let Some(size) = size {
        let text = Text::new(op).str("index ").num(index).str(" is outside axis ").num(axis);
        text.str(" of ").num(size).demand(index < size);
    }
}

/// An order of axes names each one once.
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

/// Joined along an axis, sizes add up.
#[track_caller]
pub(super) const fn sum_of(op: &str, axis: usize, a: Extent, b: Extent, out: Extent) {
    if let (Some(a), Some(b), Some(out)) = (a, b, out) {
        let text = Text::new(op).num(a).str(" and ").num(b).str(" elements of axis ").num(axis).str(" make ");
        text.num(a + b).str(", but the type says ").num(out).demand(a + b == out);
    }
}

/// An axis that windows slide along.
pub(super) struct Sliding {
    pub size: Extent,
    pub kernel: Extent,
    pub stride: usize,
    pub padding: usize,
}

impl Sliding {
    /// The number of places a window can take is the one a type says.
    #[track_caller]
    pub(super) const fn gives(&self, op: &str, axis: &str, out: Extent) {
        let Sliding { stride, padding, .. } = *self;
        Text::new(op).str("a stride must be at least 1").demand(stride > 0);
        if let (Some(size), Some(kernel)) = (self.size, self.kernel) {
            let text = Text::new(op).str(axis).str(" ").num(size).str(" with kernel ").num(kernel);
            let text = text.str(", stride ").num(stride).str(" and padding ").num(padding);
            if size + 2 * padding < kernel || kernel == 0 {
                text.str(" has no place for a window").demand(false);
            } else if let Some(out) = out {
                let n = (size + 2 * padding - kernel) / stride + 1;
                text.str(" becomes ").num(n).str(", but the type says ").num(out).demand(n == out);
            }
        }
    }
}
