//! Convolutions as methods of values.

use super::Var;
use dittograd_numerics::error::{Error, Result};
use dittograd_ops::conv::{Conv, ConvTranspose, ConvWindow, Sizes};

macro_rules! ranked {
    ($($conv:ident $transpose:ident $rank:literal $sizes:literal $($example:expr)?;)*) => {$(
        #[doc = concat!("[`Var::conv`] over images `(N, Cin, ", $sizes, ")`, one stride and padding for all axes.")]
        $(#[doc = $example])?
        #[track_caller]
        pub fn $conv(
            self,
            kernel: Var<'s>,
            bias: Option<Var<'s>>,
            stride: usize,
            padding: usize,
        ) -> Result<Var<'s>> {
            self.conv(kernel, bias, ConvWindow::plain($rank)?.stride(stride).padding(padding))
        }

        #[doc = concat!("[`Var::conv_transpose`] over images `(N, Cin, ", $sizes, ")`, one stride, padding and \
            output padding for all axes.")]
        #[track_caller]
        pub fn $transpose(
            self,
            kernel: Var<'s>,
            bias: Option<Var<'s>>,
            stride: usize,
            padding: usize,
            output_padding: usize,
        ) -> Result<Var<'s>> {
            let window = ConvWindow::plain($rank)?.stride(stride).padding(padding);
            self.conv_transpose(kernel, bias, window, &[output_padding; $rank])
        }
    )*};
}

/// # Convolution
impl<'s> Var<'s> {
    /// Convolution (cross-correlation) of images `(N, Cin, sizes…)` or one image `(Cin, sizes…)` with a kernel
    /// `(Cout, Cin / groups, kernel…)`: `y[c, o] = Σ_{a, κ} x[a, o·stride + κ·dilation − padding] · w[c, a, κ] + b[c]`,
    /// where elements beyond the input are zeros. Each axis has
    /// `⌊(in + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1` outputs; a kernel that reaches beyond the padded
    /// input is an error.
    #[track_caller]
    pub fn conv(self, kernel: Var<'s>, bias: Option<Var<'s>>, window: ConvWindow) -> Result<Var<'s>> {
        self.with_bias(Conv { window }, kernel, bias)
    }

    /// Transposed convolution of images `(N, Cin, sizes…)` or one image with a kernel `(Cin, Cout / groups, kernel…)`:
    /// the transpose of [`Var::conv`] with that window, plus a bias `(Cout)`. Each axis has
    /// `(in − 1)·stride − 2·padding + dilation·(kernel − 1) + 1 + output_padding` outputs; fewer than one, or an output
    /// padding that is below neither the stride nor the dilation, is an error.
    #[track_caller]
    pub fn conv_transpose(
        self,
        kernel: Var<'s>,
        bias: Option<Var<'s>>,
        window: ConvWindow,
        output_padding: &[usize],
    ) -> Result<Var<'s>> {
        const NAME: &str = "conv_transpose";
        let (x, w) = (self.shape()?, kernel.shape()?);
        let rank = w.rank().saturating_sub(2);
        let lists = [window.stride, window.padding, window.dilation];
        if rank == 0 || x.rank() < rank || lists.iter().any(|l| l.get().len() != rank) {
            // The op reports what is wrong.
            return self.with_bias(ConvTranspose { window, size: window.stride }, kernel, bias);
        }
        if output_padding.len() != rank {
            let why =
                format!("{output_padding:?} is given for {rank} spatial axes: one number per axis is needed");
            return Err(Error::argument(NAME, "output_padding", why));
        }
        let (mut size, mut beyond) = (Vec::new(), false);
        for (a, &extra) in output_padding.iter().enumerate() {
            let (n, k) = (x.dims()[x.rank() - rank + a], w.dims()[2 + a]);
            let [stride, padding, dilation] = lists.map(|l| l.get()[a] as usize);
            let wide = |x: usize| i128::try_from(x).unwrap_or(i128::MAX);
            if extra >= stride.max(dilation).max(1) {
                let why = format!(
                    "{extra} along axis {a} must be below the stride {stride} or the dilation {dilation}"
                );
                return Err(Error::argument(NAME, "output_padding", why));
            }
            beyond |= extra >= stride.max(1);
            let out = (wide(n) - 1) * wide(stride) - 2 * wide(padding)
                + wide(dilation) * (wide(k) - 1)
                + 1
                + wide(extra);
            match usize::try_from(out) {
                Ok(out) if out > 0 && n > 0 => size.push(out),
                _ => {
                    let why = format!(
                        "axis {a} of size {n} with kernel {k}, stride {stride} and padding {padding} would become \
                         {out}"
                    );
                    return Err(Error::argument(NAME, "padding", why));
                }
            }
        }
        if beyond {
            return self.cut_transpose(kernel, bias, window, &size);
        }
        self.with_bias(ConvTranspose { window, size: Sizes::new(&size)? }, kernel, bias)
    }

    /// A transposed convolution whose output padding is not below the stride: all of it, then cut or filled up to `size`.
    #[track_caller]
    fn cut_transpose(
        self,
        kernel: Var<'s>,
        bias: Option<Var<'s>>,
        window: ConvWindow,
        size: &[usize],
    ) -> Result<Var<'s>> {
        let rank = size.len();
        let padding = window.padding;
        let whole = self.conv_transpose(kernel, None, window.padding(0), &vec![0; rank])?;
        let shape = whole.shape()?;
        let mut y = whole;
        for (a, &want) in size.iter().enumerate() {
            let (axis, start) = (shape.rank() - rank + a, padding.get()[a] as usize);
            let have = shape.dims()[axis].saturating_sub(start).min(want);
            y = y.narrow(axis, start, have)?.pad(axis, 0, want - have)?;
        }
        let Some(bias) = bias else { return Ok(y) };
        let channels = y.shape()?.dims()[shape.rank() - rank - 1];
        y.add(bias.reshape(&[&[channels], &vec![1; rank][..]].concat())?)
    }

    /// [`Var::conv`] with as many zeros before and after each axis as given; `window.padding` comes on top of them.
    #[track_caller]
    pub fn conv_padded(
        self,
        kernel: Var<'s>,
        bias: Option<Var<'s>>,
        window: ConvWindow,
        pads: &[(usize, usize)],
    ) -> Result<Var<'s>> {
        let rank = self.shape()?.rank();
        let Some(at) = rank.checked_sub(pads.len()).filter(|_| window.padding.get().len() == pads.len())
        else {
            let why = format!("{pads:?} must have two numbers for each spatial axis");
            return Err(Error::argument("conv", "padding", why));
        };
        // What both sides have is the convolution's business.
        let both: Vec<usize> = pads
            .iter()
            .zip(window.padding.get())
            .map(|(&(before, after), &more)| before.min(after).saturating_add(more as usize))
            .collect();
        let mut x = self;
        for (a, &(before, after)) in pads.iter().enumerate().filter(|(_, (before, after))| before != after) {
            let both = before.min(after);
            x = x.pad(at + a, before - both, after - both)?;
        }
        x.conv(kernel, bias, ConvWindow { padding: Sizes::new(&both)?, ..window })
    }

    /// [`Var::conv`] of stride 1 whose output has the sizes of its input: PyTorch's `padding="same"`. Of an odd number of
    /// zeros, one more comes after than before. `window.padding` does not matter.
    #[track_caller]
    pub fn conv_same(self, kernel: Var<'s>, bias: Option<Var<'s>>, window: ConvWindow) -> Result<Var<'s>> {
        let w = kernel.shape()?;
        if window.stride.get().iter().any(|&s| s != 1) {
            let why = format!("{:?} given, and padding to the same size is for stride 1 only", window.stride);
            return Err(Error::argument("conv", "stride", why));
        }
        let taps = w.dims().get(2..).unwrap_or_default();
        let pads: Vec<(usize, usize)> = taps
            .iter()
            .zip(window.dilation.get())
            .map(|(&k, &d)| {
                let all = k.saturating_sub(1).saturating_mul(d as usize);
                (all / 2, all - all / 2)
            })
            .collect();
        self.conv_padded(kernel, bias, window.padding(0), &pads)
    }

    #[track_caller]
    fn with_bias(
        self,
        op: impl Into<dittograd_ops::AnyOp>,
        kernel: Var<'s>,
        bias: Option<Var<'s>>,
    ) -> Result<Var<'s>> {
        match bias {
            Some(bias) => self.session().apply(op, &[self, kernel, bias]),
            None => self.session().apply(op, &[self, kernel]),
        }
    }

    ranked! {
        conv1d conv_transpose1d 1 "L";
        conv2d conv_transpose2d 2 "H, W" r#"

```
# use dittograd::prelude::*;
# let session = Session::eager(&Device::cpu()?);
let images = session.ones(&[1, 1, 4, 4])?;
let kernel = session.ones(&[1, 1, 3, 3])?;
assert_eq!(images.conv2d(kernel, None, 1, 0)?.to_string(), "[[[[9. 9.]\n   [9. 9.]]]]");
# Ok::<(), Error>(())
```"#;
        conv3d conv_transpose3d 3 "D, H, W";
    }
}
