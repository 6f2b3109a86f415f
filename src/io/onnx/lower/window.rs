//! Convolutions and pools: what moves a window over the last axes.

use super::super::proto::{Attribute, Type, Value};
use super::Lowering;
use super::nodes::{around, ints};
use super::op::Place;
use crate::error::Result;
use crate::ops::conv::ConvWindow;
use crate::ops::pool::PoolWindow;

impl Lowering<'_> {
    /// A convolution, or with the sizes of its value a transposed one.
    pub(super) fn conv(
        &mut self,
        place: &Place<'_>,
        ins: &[Value],
        window: &ConvWindow,
        size: Option<&[u32]>,
    ) -> Value {
        if ins[1].numel() == 0 {
            // Without channels there is nothing but the bias.
            let value = self.zeros(place.out.shape.dims());
            let dims = [&[ins.get(2).map_or(1, Value::numel)], &vec![1; ins[1].rank() - 2][..]].concat();
            let bias = ins.get(2).map(|bias| self.reshape(bias, &dims));
            return bias.map_or(value.clone(), |bias| self.binary("Add", &value, &bias));
        }
        let wide = |s: &[u32]| s.iter().map(|x| i64::from(*x)).collect::<Vec<i64>>();
        let (w, axes) = (&ins[1], ins[1].rank() - 2);
        // The batch axis may be absent.
        let batched = if ins[0].rank() == w.rank() {
            ins[0].clone()
        } else {
            self.reshape(&ins[0], &[&[1], &ins[0].dims[..]].concat())
        };
        let [stride, padding, dilation] =
            [&window.stride, &window.padding, &window.dilation].map(|s| wide(s.get()));
        let kernel = ints(&w.dims[2..]);
        let mut attributes = vec![];
        if let Some(size) = size {
            let rest = (0..axes).map(|a| {
                let least = (batched.dims[2 + a] as i64 - 1) * stride[a] - 2 * padding[a]
                    + dilation[a] * (kernel[a] - 1)
                    + 1;
                i64::from(size[a]) - least
            });
            attributes.push(("output_padding", Attribute::Ints(rest.collect())));
        }
        attributes.extend([
            ("kernel_shape", Attribute::Ints(kernel)),
            ("strides", Attribute::Ints(stride)),
            ("pads", Attribute::Ints([&padding[..], &padding].concat())),
            ("dilations", Attribute::Ints(dilation)),
            ("group", Attribute::Int(window.groups as i64)),
        ]);
        let out = place.out.shape.dims();
        let dims = if ins[0].rank() == w.rank() { out.to_vec() } else { [&[1], out].concat() };
        let all: Vec<&Value> = [&batched].into_iter().chain(&ins[1..]).collect();
        let op = if size.is_some() { "ConvTranspose" } else { "Conv" };
        let value = self.node(op, &all, attributes, Type::F32, &dims);
        self.reshape(&value, out)
    }

    pub(super) fn pool(
        &mut self,
        place: &Place<'_>,
        op: &'static str,
        x: &Value,
        window: &PoolWindow,
        more: Option<(&'static str, Attribute)>,
    ) -> Result<Value> {
        let axes = window.kernel.len();
        if axes > 3 {
            return Err(place.none("ONNX runtimes pool at most three axes"));
        }
        if (0..axes).any(|a| window.padding[a] >= window.kernel[a]) {
            return Err(place.none("ONNX has no padding as wide as the window; pad the value first"));
        }
        let four = self.pooled(x, axes);
        let pads = [&window.padding[..], &window.padding].concat();
        let lists = [
            ("kernel_shape", &window.kernel),
            ("strides", &window.stride),
            ("dilations", &window.dilation),
            ("pads", &pads),
        ];
        let mut attributes: Vec<_> = lists.map(|(name, all)| (name, Attribute::Ints(ints(all)))).into();
        attributes.extend(more);
        let out = place.out.shape.dims();
        let dims = [&four.dims[..2], &out[out.len() - axes..]].concat();
        let value = self.node(op, &[&four], attributes, Type::F32, &dims);
        Ok(self.reshape(&value, out))
    }

    /// The value with two axes before those that are pooled.
    fn pooled(&mut self, x: &Value, axes: usize) -> Value {
        let (lead, sizes) = x.dims.split_at(x.rank() - axes);
        if lead.len() == 2 {
            return x.clone();
        }
        let dims = [&[lead.iter().product(), 1], sizes].concat();
        self.reshape(x, &dims)
    }

    /// Means of boxes that together are the whole value.
    pub(super) fn adaptive_avg_pool(&mut self, x: &Value, sizes: &[usize]) -> Value {
        // The mean of a box is that of means along its sides: a product with a matrix of them along each axis.
        let first = x.rank() - sizes.len();
        let mut x = x.clone();
        for (axis, m) in (first..).zip(sizes) {
            let (mut dims, n) = (x.dims.clone(), x.dims[axis]);
            dims[axis] = *m;
            let cells = |o: usize| o * n / m..((o + 1) * n).div_ceil(*m);
            let share = |at: usize| {
                let cells = cells(at / n);
                if cells.contains(&(at % n)) { (1.0 / cells.len() as f64) as f32 } else { 0.0 }
            };
            let means = self.numbers(&[*m, n], &(0..m * n).map(share).collect::<Vec<_>>());
            let three = self.reshape(&x, &around(&x.dims, axis..axis + 1));
            let y = self.matmul(&means, &three);
            x = self.reshape(&y, &dims);
        }
        x
    }
}
