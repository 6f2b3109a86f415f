//! Shapes in types: what compiles gives the bits of the untyped form, what must not compile says why.

use crate::support::{device, t};
use dittograd::data;
use dittograd::numerics::rng::Stream;
use dittograd::ops::conv::{ConvWindow, Sizes};
use dittograd::ops::layout::AxisMap;
use dittograd::prelude::*;
use dittograd::torchlean::*;
use dittograd::typed::{
    AvgPool2d, Axis, Build, Cons, Conv2d, Dim, Dyn, Each, Flatten, Groups, Heads, Kernel, Labels, LayerNorm,
    Linear, Matrix, MaxPool2d, Module, NewAxis, Nil, OutputPadding, Padding, Param, Rank2, Rank3, Rank4,
    Rank8, Relu, Rows, Scalar, Size, Stride, TList, TListOf, Times, ToMean, ToSum, Typed, Vector, tlist,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Numbers between -1 and 1, others for every shape.
fn numbers<'s>(s: &'s Session, dims: &[usize]) -> Var<'s> {
    let mut stream = Stream::new(dims.iter().fold(7, |h, &d| h * 31 + d as u64), 0);
    s.input(&Tensor::from_fn(Shape::new(dims).unwrap(), |_| stream.range(-1.0, 1.0))).unwrap()
}

/// A typed value and an untyped one have the same shape and bits.
fn same<S: dittograd::typed::Dims>(typed: Typed<'_, S>, untyped: Var<'_>) {
    let (typed, untyped) = (typed.value::<f32>().unwrap(), untyped.value::<f32>().unwrap());
    assert_eq!(typed.shape(), untyped.shape());
    let bits = |t: &Tensor<f32>| t.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&typed), bits(&untyped));
}

#[test]
fn methods_give_what_the_untyped_ones_give() {
    let d = device();
    let s = Session::eager(&d);
    let (a, b, row, one) = (numbers(&s, &[3, 4]), numbers(&s, &[4, 2]), numbers(&s, &[4]), numbers(&s, &[]));
    let x: Matrix<3, 4> = a.typed().unwrap();
    let y: Matrix<4, 2> = b.typed().unwrap();
    let r: Vector<4> = row.typed().unwrap();
    let c: Scalar = one.typed().unwrap();
    same(x.tanh().unwrap(), a.tanh().unwrap());
    same(x.clamp(-0.5, 0.5).unwrap(), a.clamp(-0.5, 0.5).unwrap());
    same(x.mul(x).unwrap(), a.mul(a).unwrap());
    same(x.sub(r).unwrap(), a.sub(row).unwrap());
    same(x.add(c).unwrap(), a.add(one).unwrap());
    same(x.where_(r, c).unwrap(), a.where_(row, one).unwrap());
    same(x.matmul(y).unwrap(), a.matmul(b).unwrap());
    same(x.transpose().unwrap(), a.transpose().unwrap());
    same(x.permute::<1, 0>().unwrap(), a.permute(&[1, 0]).unwrap());
    same(x.sum().unwrap(), a.sum().unwrap());
    same(x.mean().unwrap(), a.mean().unwrap());
    same(x.sum_axis::<0>().unwrap(), a.sum_axes(&[0]).unwrap());
    same(x.mean_axis::<1>().unwrap(), a.mean_axes(&[1]).unwrap());
    same(x.amax::<1>().unwrap(), a.amax(&[1], false).unwrap());
    same(x.amin::<0>().unwrap(), a.amin(&[0], false).unwrap());
    same(x.logsumexp::<1>().unwrap(), a.logsumexp(&[1], false).unwrap());
    same(x.softmax().unwrap(), a.softmax().unwrap());
    same(x.log_softmax().unwrap(), a.log_softmax().unwrap());
    same(x.softmax_axis::<0>().unwrap(), a.softmax_axis(0).unwrap());
    same(x.log_softmax_axis::<0>().unwrap(), a.log_softmax_axis(0).unwrap());
    same(x.reshape::<Rank3<2, 3, 2>>().unwrap(), a.reshape(&[2, 3, 2]).unwrap());
    same(x.narrow::<1, 1, 2>().unwrap(), a.narrow(1, 1, 2).unwrap());
    same(x.select::<0, 2>().unwrap(), a.select(0, 2).unwrap());
    same(x.mse(x.relu().unwrap()).unwrap(), a.mse(a.relu().unwrap()).unwrap());
    same(x.rms_norm(r, 1e-6).unwrap(), a.rms_norm(1, Some(row), 1e-6).unwrap());
    same(x.layer_norm(r, r, 1e-5).unwrap(), a.layer_norm(1, Some(row), Some(row), 1e-5).unwrap());
    same(r.expand::<Rank2<5, 4>>().unwrap(), row.broadcast_vec_to_rows(5).unwrap());
    let joined: Matrix<6, 4> = x.concat(x, Axis::<0>).unwrap();
    same(joined, a.concat(a, 0).unwrap());
    assert_eq!(
        x.argmax::<1>().unwrap().indices().unwrap(),
        a.argmax(&[1], false).unwrap().indices().unwrap()
    );
    let dropped = x.dropout(0.0).unwrap().detach().unwrap();
    same(dropped, a);
    let (p, q) = (numbers(&s, &[2, 3, 4]), numbers(&s, &[2, 4, 5]));
    let (bp, bq): (Typed<Rank3<2, 3, 4>>, Typed<Rank3<2, 4, 5>>) = (p.typed().unwrap(), q.typed().unwrap());
    same(bp.bmm(bq).unwrap(), p.bmm(q).unwrap());
    same(bp.permute::<2, 0, 1>().unwrap(), p.permute(&[2, 0, 1]).unwrap());
    let (w, bias) = (numbers(&s, &[6, 4]), numbers(&s, &[6]));
    let (tw, tb): (Matrix<6, 4>, Vector<6>) = (w.typed().unwrap(), bias.typed().unwrap());
    same(bp.linear(tw, tb).unwrap(), p.linear(w, bias).unwrap());
    let tokens = s.labels(&Tensor::new(&[2, 2], vec![1u32, 0, 5, 1]).unwrap()).unwrap();
    let index: Typed<Rank2<2, 2>, u32> = tokens.typed().unwrap();
    let rows: Typed<Rank3<2, 2, 4>> = tw.embedding(index).unwrap();
    same(rows, w.embedding(tokens).unwrap());
    let heads = numbers(&s, &[2, 2, 3, 4]);
    let h: Typed<Rank4<2, 2, 3, 4>> = heads.typed().unwrap();
    let options = AttentionOptions { causal: true, ..Default::default() };
    same(h.attention(h, h, options).unwrap(), heads.attention(heads, heads, options).unwrap());
}

#[test]
fn reductions_scans_and_masks_give_what_the_untyped_ones_give() {
    let d = device();
    let s = Session::eager(&d);
    let (a, row) = (numbers(&s, &[3, 4]), numbers(&s, &[4]));
    let (x, r): (Matrix<3, 4>, Vector<4>) = (a.typed().unwrap(), row.typed().unwrap());
    same(x.prod().unwrap(), a.prod().unwrap());
    same(x.prod_axis::<0>().unwrap(), a.prod_dim(&[0], false).unwrap());
    same(x.var::<1>(1).unwrap(), a.var(&[1], 1, false).unwrap());
    same(x.std::<0>(0).unwrap(), a.std(&[0], 0, false).unwrap());
    same(x.norm::<1>(2.0).unwrap(), a.norm(2.0, &[1], false).unwrap());
    same(x.normalize::<1>(1e-12).unwrap(), a.normalize(2.0, 1, 1e-12).unwrap());
    same(x.cumsum::<0>().unwrap(), a.cumsum(0).unwrap());
    same(x.cumsum_with::<1>(true, true).unwrap(), a.cumsum_with(1, true, true).unwrap());
    same(x.cumprod::<1>().unwrap(), a.cumprod(1).unwrap());
    let least = (x.argmin::<0>().unwrap(), a.argmin(&[0], false).unwrap());
    assert_eq!(least.0.indices().unwrap(), least.1.indices().unwrap());
    same(x.gt(r).unwrap(), a.gt(row).unwrap());
    let (m, mask) = (x.gt(r).unwrap(), a.gt(row).unwrap());
    same(x.masked_fill(m, -1.0).unwrap(), a.masked_fill(mask, -1.0).unwrap());
    same(x.masked_softmax(m).unwrap(), a.masked_softmax(mask).unwrap());
    same(x.masked_softmax(m.to_index().unwrap()).unwrap(), a.masked_softmax(mask).unwrap());
    same(x.maximum(r).unwrap(), a.maximum(row).unwrap());
    same(x.minimum(r).unwrap(), a.minimum(row).unwrap());
    same(x.lerp(0.25, x.ones_like().unwrap()).unwrap(), a.lerp(0.25, a.ones_like().unwrap()).unwrap());
    same(x.hardtanh().unwrap().relu6().unwrap().isnan().unwrap(), a.zeros_like().unwrap());
    let (p, h) = (numbers(&s, &[2, 5, 4]), numbers(&s, &[2, 4]));
    let (y, h0): (Typed<Rank3<2, 5, 4>>, Matrix<2, 4>) = (p.typed().unwrap(), h.typed().unwrap());
    same(y.selective_scan(r, y, h0).unwrap(), p.selective_scan(row, p, h).unwrap());
    let (q, w) = (numbers(&s, &[2, 5, 3]), numbers(&s, &[4, 3]));
    let (bc, aw): (Typed<Rank3<2, 5, 3>>, Matrix<4, 3>) = (q.typed().unwrap(), w.typed().unwrap());
    same(y.selective_ssm(y, aw, bc, bc).unwrap(), p.selective_ssm(p, w, q, q).unwrap());
}

#[test]
fn layouts_give_what_the_untyped_ones_give() {
    let d = device();
    let s = Session::eager(&d);
    let a = numbers(&s, &[3, 4]);
    let x: Matrix<3, 4> = a.typed().unwrap();
    same(x.unsqueeze::<1>().unwrap().squeeze::<1>().unwrap(), a);
    let column: Typed<Rank2<3, 1>> = x.amax::<1>().unwrap().unsqueeze::<1>().unwrap();
    same(column.expand_as(x).unwrap(), a.amax(&[1], true).unwrap().expand(&[3, 4]).unwrap());
    let both: Typed<Rank3<3, 2, 4>> = Typed::stack([x, x], Axis::<1>).unwrap();
    same(both, s.stack(&[a, a], 1).unwrap());
    let (left, right): (Matrix<3, 1>, Matrix<3, 3>) = x.split(Axis::<1>).unwrap();
    let parts = a.split(1, &[1, 3]).unwrap();
    same(left, parts[0]);
    same(right, parts[1]);
    let [top, bottom]: [Matrix<3, 2>; 2] = x.chunk(Axis::<1>).unwrap();
    same(top, a.narrow(1, 0, 2).unwrap());
    same(bottom, a.narrow(1, 2, 2).unwrap());
    let tiled: Matrix<6, 4> = x.repeat(Axis::<0>, Times::<2>).unwrap();
    same(tiled, a.repeat(&[2, 1]).unwrap());
    let each: Matrix<3, 12> = x.repeat_interleave(Axis::<1>, Times::<3>).unwrap();
    same(each, a.repeat_interleave(1, 3).unwrap());
    let wide: Matrix<3, 7> = x.pad(Axis::<1>, Padding::<1>, Padding::<2>, 0.5).unwrap();
    same(wide, a.pad_with(1, 1, 2, 0.5).unwrap());
    same(x.flip::<0>().unwrap().roll::<1>(-1).unwrap(), a.flip(&[0]).unwrap().roll(1, -1).unwrap());
    same(x.tril(1).unwrap().triu(-1).unwrap(), a.tril(1).unwrap().triu(-1).unwrap());
    let t5 = numbers(&s, &[2, 1, 3, 1, 2]);
    let five: Typed<(Size<2>, Size<1>, Size<3>, Size<1>, Size<2>)> = t5.typed().unwrap();
    same(five.permute::<4, 2, 0, 1, 3>().unwrap(), t5.permute(&[4, 2, 0, 1, 3]).unwrap());
    // Indices have layouts too.
    let labels: Typed<Rank2<2, 3>, u32> =
        s.labels(&Tensor::new(&[2, 3], vec![0u32, 1, 2, 3, 4, 5]).unwrap()).unwrap().typed().unwrap();
    let flat: Labels<6> = labels.transpose().unwrap().reshape().unwrap();
    assert_eq!(flat.indices().unwrap().data(), [0, 3, 1, 4, 2, 5]);
    // Dynamic sizes are found out, or compared.
    let any: Typed<(Size<3>, Dyn)> = x.retype().unwrap();
    let (left, right): (Matrix<3, 3>, Typed<(Size<3>, Dyn)>) = any.split(Axis::<1>).unwrap();
    assert_eq!((left.shape().unwrap().dims()[1], right.shape().unwrap().dims()[1]), (3, 1));
    let wrong: Result<(Matrix<3, 3>, Matrix<3, 2>)> = any.split(Axis::<1>);
    assert!(wrong.is_err());
    let long: Result<(Matrix<3, 5>, Typed<(Size<3>, Dyn)>)> = any.split(Axis::<1>);
    assert!(long.is_err());
    let halves: [Typed<(Size<3>, Dyn)>; 2] = any.chunk(Axis::<1>).unwrap();
    assert_eq!(halves[1].shape().unwrap().dims(), [3, 2]);
    let thirds: Result<[Typed<(Size<3>, Dyn)>; 3]> = any.chunk(Axis::<1>);
    assert!(thirds.is_err());
    let wrong: Result<Matrix<3, 9>> = any.repeat(Axis::<1>, Times::<2>);
    assert!(wrong.is_err());
    let wrong: Result<Matrix<3, 5>> = any.pad(Axis::<1>, Padding::<1>, Padding::<1>, 0.0);
    assert!(wrong.is_err());
}

#[test]
fn losses_have_the_shape_of_their_reduction() {
    use dittograd::ops::loss::Reduction;
    let d = device();
    let s = Session::eager(&d);
    let (a, b) = (numbers(&s, &[3, 4]), numbers(&s, &[3, 4]).sigmoid().unwrap());
    let (x, t): (Matrix<3, 4>, Matrix<3, 4>) = (a.typed().unwrap(), b.typed().unwrap());
    same(x.mse_loss(t, Each).unwrap(), a.mse_loss(b, Reduction::None).unwrap());
    same(x.l1_loss(t, ToSum).unwrap(), a.l1_loss(b, Reduction::Sum).unwrap());
    same(x.huber_loss(t, 0.5, ToMean).unwrap(), a.huber_loss(b, 0.5, Reduction::Mean).unwrap());
    same(x.smooth_l1_loss(t, 0.5, Each).unwrap(), a.smooth_l1_loss(b, 0.5, Reduction::None).unwrap());
    same(t.bce(t, ToMean).unwrap(), b.bce(b, Reduction::Mean).unwrap());
    same(x.bce_with_logits(t, Each).unwrap(), a.bce_with_logits(b, Reduction::None).unwrap());
    same(x.kl_div(t, ToSum).unwrap(), a.kl_div(b, Reduction::Sum).unwrap());
    let (labels, weights) =
        (s.labels(&Tensor::new(&[3], vec![3u32, 0, 2]).unwrap()).unwrap(), numbers(&s, &[4]).abs().unwrap());
    let (l, w): (Labels<3>, Vector<4>) = (labels.typed().unwrap(), weights.typed().unwrap());
    let options = LabelLoss {
        weight: Some(weights),
        ignore: Some(2),
        label_smoothing: 0.1,
        reduction: Reduction::None,
        axis: None,
    };
    let each: Vector<3> = x.cross_entropy_loss(l, Some(w), Some(2), 0.1, Each).unwrap();
    same(each, a.cross_entropy_loss(labels, options).unwrap());
    let sum: Scalar = x.nll_loss(l, None, Some(0), ToSum).unwrap();
    let options = LabelLoss { ignore: Some(0), reduction: Reduction::Sum, ..Default::default() };
    same(sum, a.nll_loss(labels, options).unwrap());
    same(x.nll(l, None).unwrap(), a.nll(labels, None).unwrap());
}

#[test]
fn indices_products_norms_and_transforms_give_what_the_untyped_ones_give() {
    let d = device();
    let s = Session::eager(&d);
    let indices = |dims: &[usize], values: Vec<u32>| s.indices(&Tensor::new(dims, values).unwrap()).unwrap();
    let (a, row) = (numbers(&s, &[3, 4]), numbers(&s, &[4]));
    let (x, r): (Matrix<3, 4>, Vector<4>) = (a.typed().unwrap(), row.typed().unwrap());
    let i = indices(&[2], vec![2, 0]);
    let index: Labels<2> = i.typed().unwrap();
    let rows: Matrix<2, 4> = x.index_select(index, Axis::<0>).unwrap();
    same(rows, a.index_select(0, i).unwrap());
    let far = indices(&[2], vec![9, 1]);
    let columns: Matrix<3, 2> = x.index_select_or_zero(far.typed::<Labels<2>>().unwrap(), Axis::<1>).unwrap();
    same(columns, a.index_select_or_zero(1, far).unwrap());
    same(
        x.index_add(index, rows, Axis::<0>).unwrap(),
        a.index_add(0, i, a.index_select(0, i).unwrap()).unwrap(),
    );
    let each = indices(&[3, 1], vec![3, 0, 1]);
    let own: Typed<Rank2<3, 1>, u32> = each.typed().unwrap();
    let taken = x.take_along_axis(own, Axis::<1>).unwrap();
    same(taken, a.take_along_axis(1, each).unwrap());
    same(
        x.scatter_add(own, taken, Axis::<1>).unwrap(),
        a.scatter_add(1, each, a.take_along_axis(1, each).unwrap()).unwrap(),
    );
    same(x.scatter_add_row::<2>(r).unwrap(), a.scatter_add_row(2, row).unwrap());
    same(
        r.scatter_add_vec::<1>(r.sum().unwrap()).unwrap(),
        row.scatter_add_vec(1, row.sum().unwrap()).unwrap(),
    );
    same(index.one_hot::<5>().unwrap(), i.one_hot(5).unwrap());

    let p = numbers(&s, &[2, 5, 4]);
    let y: Typed<Rank3<2, 5, 4>> = p.typed().unwrap();
    let w = numbers(&s, &[4, 6]);
    let m: Matrix<4, 6> = w.typed().unwrap();
    let product: Typed<Rank3<2, 5, 6>> = y.matmul(m).unwrap();
    same(product, p.matmul(w).unwrap());
    same(r.matmul(m).unwrap(), row.matmul(w).unwrap());
    same(y.mv(r).unwrap(), p.matmul(row).unwrap());
    same(r.mv(r).unwrap(), row.matmul(row).unwrap());
    let (f, five) = (numbers(&s, &[3, 5]), numbers(&s, &[5]));
    let (t, wc): (Matrix<3, 5>, Vector<5>) = (f.typed().unwrap(), five.typed().unwrap());
    let along: Typed<Rank3<2, 3, 4>> = y.axis_matmul(t).unwrap();
    same(along, p.axis_matmul(f).unwrap());
    same(y.trace().unwrap(), p.trace().unwrap());

    let (g, b) = (Some(five), Some(five));
    same(y.batch_norm(wc, wc, 1e-5).unwrap(), p.batch_norm(g, b, 1e-5).unwrap());
    same(y.instance_norm(wc, wc, 1e-5).unwrap(), p.instance_norm(g, b, 1e-5).unwrap());
    same(y.group_norm(Groups::<5>, wc, wc, 1e-5).unwrap(), p.group_norm(5, g, b, 1e-5).unwrap());
    let ((mean, var), (m0, v0)) = (y.moments().unwrap(), p.moments().unwrap());
    same(mean, m0);
    same(y.batch_norm_eval(mean, var, wc, wc, 1e-5).unwrap(), p.batch_norm_eval(m0, v0, g, b, 1e-5).unwrap());

    let modes: Typed<(Size<2>, Size<5>, Size<3>, Size<2>)> = y.rfft().unwrap();
    same(modes, p.rfft().unwrap());
    let back: Typed<Rank3<2, 5, 4>> = modes.irfft().unwrap();
    same(back, p.rfft().unwrap().irfft(4).unwrap());
    let k = numbers(&s, &[3, 4, 2]);
    let kernel: Typed<Rank3<3, 4, 2>> = k.typed().unwrap();
    same(y.spectral_conv1d(kernel, kernel).unwrap(), p.spectral_conv1d(k, k).unwrap());
    let (q, k) = (numbers(&s, &[1, 4, 6, 2]), numbers(&s, &[2, 2, 3, 2, 3]));
    let plane: Typed<Rank4<1, 4, 6, 2>> = q.typed().unwrap();
    let kernel: Typed<(Size<2>, Size<2>, Size<3>, Size<2>, Size<3>)> = k.typed().unwrap();
    same(plane.spectral_conv2d(kernel, kernel).unwrap(), q.spectral_conv2d(k, k).unwrap());
    let any: Typed<(Dyn, Dyn)> = x.retype().unwrap();
    let wrong: Result<Typed<(Dyn, Size<4>, Size<2>)>> = any.rfft();
    assert!(wrong.is_err());
}

#[test]
fn heads_may_be_shared_and_rows_turned() {
    let d = device();
    let s = Session::eager(&d);
    let options = AttentionOptions::default();
    let (q, k, v) = (numbers(&s, &[2, 4, 3, 6]), numbers(&s, &[2, 2, 5, 6]), numbers(&s, &[2, 2, 5, 3]));
    let queries: Typed<Rank4<2, 4, 3, 6>> = q.typed().unwrap();
    let (keys, values): (Typed<Rank4<2, 2, 5, 6>>, Typed<Rank4<2, 2, 5, 3>>) =
        (k.typed().unwrap(), v.typed().unwrap());
    same(queries.attention(keys, values, options).unwrap(), q.attention(k, v, options).unwrap());
    same(queries.rope(1e4, 1, false).unwrap(), q.rope(1e4, 1, false).unwrap());
    // The same numbers as rows with heads inside.
    let all = Typed::stack([queries, queries, queries], Axis::<2>).unwrap();
    let heads = q.permute(&[0, 2, 1, 3]).unwrap();
    let mixed = heads.attention(heads, heads, options).unwrap();
    same(all.self_attention(options).unwrap(), mixed.permute(&[0, 2, 1, 3]).unwrap());
    let (x, w, o) = (numbers(&s, &[2, 3, 4]), numbers(&s, &[4, 6]), numbers(&s, &[6, 4]));
    let (tx, tw, to): (Typed<Rank3<2, 3, 4>>, Matrix<4, 6>, Matrix<6, 4>) =
        (x.typed().unwrap(), w.typed().unwrap(), o.typed().unwrap());
    same(
        tx.multi_head_attention([tw, tw, tw], to, Heads::<2>, options).unwrap(),
        x.multi_head_attention([w, w, w, o], 2, options).unwrap(),
    );
}

#[test]
fn tensors_are_made_and_differentiated_with_their_shapes() {
    let d = device();
    let s = Session::eager(&d);
    let x = Matrix::<2, 3>::full(&s, 2.0).unwrap().tracked().unwrap();
    let slope: Matrix<2, 3> = x.square().unwrap().sum().unwrap().grad(x).unwrap();
    same(slope, s.full(&[2, 3], 4.0).unwrap());
    let second = slope.mul(x).unwrap().sum().unwrap().grad(x).unwrap();
    same(second, s.full(&[2, 3], 8.0).unwrap());
    let other = Session::eager(&d);
    same(Vector::<9>::normal(&s, 1.0, 2.0).unwrap(), other.normal(&[9], 1.0, 2.0).unwrap());
    assert_eq!(Vector::<3>::ones(&s).unwrap().sum().unwrap().item().unwrap(), 3.0);
}

/// One image without a batch, and kernels, strides and paddings of each axis.
#[test]
fn windows_have_sizes_of_their_own_along_each_axis() {
    let d = device();
    let s = Session::eager(&d);
    let (x, k, b) = (numbers(&s, &[3, 9, 8]), numbers(&s, &[5, 3, 3, 2]), numbers(&s, &[5]));
    let (tx, tk): (Typed<Rank3<3, 9, 8>>, Typed<Rank4<5, 3, 3, 2>>) =
        (x.typed().unwrap(), k.typed().unwrap());
    let tb: Vector<5> = b.typed().unwrap();
    let window = |stride: &[usize], padding: &[usize]| ConvWindow {
        stride: Sizes::new(stride).unwrap(),
        padding: Sizes::new(padding).unwrap(),
        ..ConvWindow::plain(stride.len()).unwrap()
    };
    let y: Typed<Rank3<5, 5, 9>> =
        tx.conv2d(tk, Some(tb), (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<1>)).unwrap();
    same(y, x.conv(k, Some(b), window(&[2, 1], &[1, 1])).unwrap());
    let any: Typed<Rank3<5, 5, 9>> = tx.conv(tk, Some(tb), (Stride::<2>, Stride::<1>), Padding::<1>).unwrap();
    same(any, y.into_untyped());
    let (back, untyped) = (numbers(&s, &[5, 2, 2, 3]), window(&[2, 1], &[1, 0]));
    let tback: Typed<Rank4<5, 2, 2, 3>> = back.typed().unwrap();
    let more = (OutputPadding::<1>, OutputPadding::<0>);
    let z: Typed<Rank3<2, 9, 11>> = y
        .conv_transpose2d(tback, None, (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<0>), more)
        .unwrap();
    same(z, y.into_untyped().conv_transpose(back, None, untyped, &[1, 0]).unwrap());
    let any: Typed<Rank3<2, 9, 11>> = y
        .conv_transpose(tback, None, (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<0>), more)
        .unwrap();
    same(any, z.into_untyped());
    // Pools of one image, of a batch, and of any axes at the end; the smooth one with any padding.
    let (kernel, stride, padding) =
        ((Kernel::<3>, Kernel::<2>), (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<0>));
    let y: Typed<Rank3<3, 5, 7>> = tx.max_pool2d_pad(kernel, stride, padding).unwrap();
    same(y, x.max_pool(&[3, 2], &[2, 1], &[1, 0]).unwrap());
    let y: Typed<Rank3<3, 4, 7>> = tx.avg_pool2d(kernel, stride).unwrap();
    same(y, x.avg_pool(&[3, 2], &[2, 1], &[0, 0], true).unwrap());
    let y: Typed<Rank3<3, 5, 7>> = tx.avg_pool(kernel, stride, padding, false).unwrap();
    same(y, x.avg_pool(&[3, 2], &[2, 1], &[1, 0], false).unwrap());
    let y: Typed<Rank3<3, 8, 17>> =
        tx.smooth_max_pool2d_pad(kernel, stride, (Padding::<4>, Padding::<5>), 2.0).unwrap();
    same(y, x.smooth_max_pool(&[3, 2], &[2, 1], &[4, 5], 2.0).unwrap());
    let loose: Typed<(Dyn, Dyn, Size<8>)> = tx.retype().unwrap();
    let y: Typed<(Dyn, Size<5>, Size<7>)> = loose.max_pool2d_pad(kernel, stride, padding).unwrap();
    same(y, x.max_pool(&[3, 2], &[2, 1], &[1, 0]).unwrap());
    let wrong: Result<Typed<(Dyn, Size<6>, Size<7>)>> = loose.max_pool2d_pad(kernel, stride, padding);
    assert!(wrong.unwrap_err().to_string().contains("its type says [?, 6, 7]"));
}

/// Shapes of many axes, up to the eight that windows slide along, with and without a batch.
#[test]
#[allow(clippy::type_complexity)] // ten axes, spelt out
fn shapes_have_up_to_ten_axes() {
    let d = device();
    let s = Session::eager(&d);
    let x = numbers(&s, &[1, 2, 2, 1, 2, 3, 1, 2, 1, 4]);
    type S1 = Size<1>;
    type S2 = Size<2>;
    type S3 = Size<3>;
    let tx: Typed<(S1, S2, S2, S1, S2, S3, S1, S2, S1, Size<4>)> = x.typed().unwrap();
    let (k1, k2) = (Kernel::<1>, Kernel::<2>);
    let kernel = (k2, k1, k1, k2, k1, k2, k1, k2);
    let (p0, p1) = (Padding::<0>, Padding::<1>);
    let y: Typed<(S1, S2, S3, S1, S2, S2, S1, S1, S1, Size<5>)> =
        tx.max_pool(kernel, Stride::<1>, (p1, p0, p0, p0, p0, p0, p0, p1)).unwrap();
    same(y, x.max_pool(&[2, 1, 1, 2, 1, 2, 1, 2], &[1; 8], &[1, 0, 0, 0, 0, 0, 0, 1]).unwrap());
    let w = numbers(&s, &[3, 2, 2, 1, 1, 2, 1, 2, 1, 2]);
    let tw: Typed<(S3, S2, S2, S1, S1, S2, S1, S2, S1, S2)> = w.typed().unwrap();
    let y: Typed<(S1, S3, S1, S1, S2, S2, S1, S1, S1, S3)> = tx.conv(tw, None, Stride::<1>, p0).unwrap();
    same(y, x.conv(w, None, ConvWindow::plain(8).unwrap()).unwrap());
    let one: Typed<(S3, S1, S1, S2, S2, S1, S1, S1, S3)> =
        tx.select::<0, 0>().unwrap().conv(tw, None, Stride::<1>, p0).unwrap();
    same(one, y.select::<0, 0>().unwrap().into_untyped());
    // Eight axes in everything that names them.
    let x = numbers(&s, &[1, 2, 1, 3, 1, 2, 1, 2]);
    let tx: Typed<Rank8<1, 2, 1, 3, 1, 2, 1, 2>> = x.typed().unwrap();
    let turned: Typed<Rank8<2, 1, 2, 1, 3, 1, 2, 1>> = tx.permute::<7, 0, 5, 2, 3, 4, 1, 6>().unwrap();
    same(turned, x.permute(&[7, 0, 5, 2, 3, 4, 1, 6]).unwrap());
    same(tx.transpose().unwrap(), x.transpose().unwrap());
    same(tx.sum_axis::<5>().unwrap(), x.sum_axes(&[5]).unwrap());
    same(tx.unsqueeze::<8>().unwrap().squeeze::<8>().unwrap(), x);
    same(tx.add(tx.select::<0, 0>().unwrap()).unwrap(), x.add(x).unwrap());
    let flat: Vector<24> = tx.reshape().unwrap();
    same(flat, x.flatten().unwrap());
    same(tx.mv(Vector::<2>::ones(&s).unwrap()).unwrap(), x.matmul(s.ones(&[2]).unwrap()).unwrap());
}

#[test]
fn broadcasts_follow_a_map_of_axes() {
    let d = device();
    let s = Session::eager(&d);
    let x = numbers(&s, &[3, 1]);
    let tx: Matrix<3, 1> = x.typed().unwrap();
    let y: Typed<Rank4<3, 2, 4, 5>> = tx.broadcast_axes((Axis::<0>, NewAxis, Axis::<1>, NewAxis)).unwrap();
    let map = AxisMap::new(&[Some(0), None, Some(1), None]).unwrap();
    same(y, x.broadcast_axes(Shape::new(&[3, 2, 4, 5]).unwrap(), map).unwrap());
    let one: Matrix<2, 3> = Typed::<()>::full(&s, 7.0).unwrap().broadcast_axes((NewAxis, NewAxis)).unwrap();
    same(one, s.full(&[2, 3], 7.0).unwrap());
    let index: Labels<3> = s.labels(&Tensor::new(&[3], vec![4u32, 5, 6]).unwrap()).unwrap().typed().unwrap();
    let rows: Typed<Rank2<2, 3>, u32> = index.broadcast_axes((NewAxis, Axis::<0>)).unwrap();
    assert_eq!(rows.indices().unwrap().data(), [4, 5, 6, 4, 5, 6]);
    // Sizes that only the value knows are checked when it is there.
    let loose: Rows<1> = tx.retype().unwrap();
    let e = loose.broadcast_axes::<Rank3<4, 1, 2>, _>((Axis::<0>, Axis::<1>, NewAxis)).unwrap_err();
    assert!(e.to_string().contains("sizes must be equal or 1"), "{e}");
}

#[test]
fn images_have_the_sizes_their_types_say() {
    let d = device();
    let s = Session::eager(&d);
    let (x, k, b) = (numbers(&s, &[2, 3, 9, 8]), numbers(&s, &[5, 3, 3, 2]), numbers(&s, &[5]));
    let (tx, tk): (Typed<Rank4<2, 3, 9, 8>>, Typed<Rank4<5, 3, 3, 2>>) =
        (x.typed().unwrap(), k.typed().unwrap());
    let tb: Vector<5> = b.typed().unwrap();
    let y: Typed<Rank4<2, 5, 5, 5>> = tx.conv2d(tk, Some(tb), Stride::<2>, Padding::<1>).unwrap();
    same(y, x.conv2d(k, Some(b), 2, 1).unwrap());
    let y: Typed<Rank4<2, 3, 4, 4>> = tx.max_pool2d(Kernel::<2>, Stride::<2>).unwrap();
    same(y, x.max_pool2d([2, 2], 2).unwrap());
    let y: Typed<Rank4<2, 3, 5, 4>> = tx.max_pool2d_pad(Kernel::<3>, Stride::<2>, Padding::<1>).unwrap();
    same(y, x.max_pool2d_pad([3, 3], 2, 1).unwrap());
    let y: Typed<Rank4<2, 3, 8, 7>> = tx.smooth_max_pool2d(Kernel::<2>, Stride::<1>, 3.0).unwrap();
    same(y, x.smooth_max_pool2d([2, 2], 1, 3.0).unwrap());
    let y: Typed<Rank4<2, 3, 4, 3>> = tx.adaptive_avg_pool2d().unwrap();
    same(y, x.adaptive_avg_pool(&[4, 3]).unwrap());
    same(tx.global_avg_pool().unwrap(), x.global_avg_pool(2).unwrap());
    same(tx.global_max_pool().unwrap(), x.global_max_pool(2).unwrap());
    let (k, l) = (numbers(&s, &[3, 5, 3, 2]), numbers(&s, &[2, 3, 7]));
    let (tk, tl): (Typed<Rank4<3, 5, 3, 2>>, Typed<Rank3<2, 3, 7>>) =
        (k.typed().unwrap(), l.typed().unwrap());
    let y: Typed<Rank4<2, 5, 18, 15>> =
        tx.conv_transpose2d(tk, Some(tb), Stride::<2>, Padding::<1>, OutputPadding::<1>).unwrap();
    same(y, x.conv_transpose2d(k, Some(b), 2, 1, 1).unwrap());
    let k = numbers(&s, &[4, 3, 2]);
    let tk: Typed<Rank3<4, 3, 2>> = k.typed().unwrap();
    let y: Typed<Rank3<2, 4, 6>> = tl.conv1d(tk, None, Stride::<1>, Padding::<0>).unwrap();
    same(y, l.conv1d(k, None, 1, 0).unwrap());
    let any: Typed<(Size<2>, Size<4>, Dyn)> = y.retype().unwrap();
    let back: Typed<Rank3<2, 3, 7>> =
        any.conv_transpose1d(tk, None, Stride::<1>, Padding::<0>, OutputPadding::<0>).unwrap();
    same(back, l.conv1d(k, None, 1, 0).unwrap().conv_transpose1d(k, None, 1, 0, 0).unwrap());
    let wrong: Result<Typed<Rank3<2, 3, 8>>> =
        any.conv_transpose1d(tk, None, Stride::<1>, Padding::<0>, OutputPadding::<0>);
    assert!(wrong.is_err());
    let (v, k) = (numbers(&s, &[1, 2, 3, 4, 5]), numbers(&s, &[2, 2, 2, 2, 2]));
    let volume: Typed<(Size<1>, Size<2>, Size<3>, Size<4>, Size<5>)> = v.typed().unwrap();
    let tk: Typed<(Size<2>, Size<2>, Size<2>, Size<2>, Size<2>)> = k.typed().unwrap();
    let y: Typed<(Size<1>, Size<2>, Size<2>, Size<3>, Size<4>)> =
        volume.conv3d(tk, None, Stride::<1>, Padding::<0>).unwrap();
    same(y, v.conv3d(k, None, 1, 0).unwrap());
    // Sizes the compiler does not know are checked when they are there.
    let any: Typed<(Size<2>, Size<3>, Dyn, Size<8>)> = tx.retype().unwrap();
    let y: Typed<(Size<2>, Size<3>, Dyn, Size<4>)> = any.avg_pool2d(Kernel::<2>, Stride::<2>).unwrap();
    same(y, x.avg_pool2d([2, 2], 2).unwrap());
    let wrong: Result<Typed<Rank4<2, 3, 5, 4>>> = any.avg_pool2d(Kernel::<2>, Stride::<2>);
    assert!(wrong.unwrap_err().to_string().contains("shape [2, 3, 4, 4], its type says [2, 3, 5, 4]"));
}

#[test]
fn layers_of_a_small_convolutional_net_fit() {
    type Net = (
        (Conv2d<1, 4, 3, 10, 10, 1, 1>, Relu, MaxPool2d<2, 5, 5>),
        (Conv2d<4, 6, 3, 2, 2, 2>, AvgPool2d<2, 1, 1>, Flatten<6>),
        LayerNorm<6>,
        Linear<6, 3>,
    );
    let d = device();
    let mut params = Params::new(&d, 3);
    let net = Net::build(&mut params, "net").unwrap();
    let names: Vec<&str> = params.iter().map(|p| p.name()).collect();
    assert_eq!(names[..2], ["net.0.0.weight", "net.0.0.bias"]);
    assert_eq!(names[4..], ["net.2.weight", "net.2.bias", "net.3.weight", "net.3.bias"]);
    let s = Session::eager(&d);
    let x: Typed<(Dyn, Size<1>, Size<10>, Size<10>)> = numbers(&s, &[7, 1, 10, 10]).typed().unwrap();
    let y: Rows<3> = net.forward(x).unwrap();
    assert_eq!(y.shape().unwrap().dims(), [7, 3]);
    let grads = y.square().unwrap().sum().unwrap().backward().unwrap();
    assert!(params.iter().all(|p| grads.param(p).is_some()));
}

#[test]
fn what_comes_from_outside_is_checked_once() {
    let d = device();
    let s = Session::eager(&d);
    let x = numbers(&s, &[2, 3]);
    let message = |e: dittograd::error::Error| e.without_location().to_string();
    let e = message(x.typed::<Matrix<3, 2>>().unwrap_err());
    assert_eq!(e, "typed: shape: the value has shape [2, 3], its type says [3, 2]");
    assert!(message(x.typed::<Vector<6>>().unwrap_err()).contains("its type says [6]"));
    assert!(message(x.typed::<Rows<4>>().unwrap_err()).contains("its type says [?, 4]"));
    assert!(
        message(x.typed::<Typed<Rank2<2, 3>, u32>>().unwrap_err()).contains("holds f32 elements, needs u32")
    );
    let y = Matrix::<2, 3>::try_from(x).unwrap();
    assert_eq!(format!("{y:?}"), "Var(0 of epoch 0) of shape [2, 3]");
    assert_eq!(std::mem::size_of_val(&y), std::mem::size_of::<Var<'_>>());
    let back: Var<'_> = y.into();
    assert_eq!(back.shape().unwrap(), y.into_untyped().shape().unwrap());
    s.reset();
    assert!(message(y.relu().unwrap_err()).contains("epoch"));
}

#[test]
fn dynamic_dimensions_are_compared_at_run_time() {
    struct Batch;
    impl Dim for Batch {
        const SIZE: Option<usize> = None;
    }
    let d = device();
    let s = Session::eager(&d);
    let rows = |n: usize| -> Typed<'_, (Batch, Size<4>)> { numbers(&s, &[n, 4]).typed().unwrap() };
    let (three, one) = (rows(3), rows(1));
    assert_eq!(three.add(rows(3)).unwrap().shape().unwrap().dims(), [3, 4]);
    // The session would broadcast the single row.
    let e = three.add(one).unwrap_err().to_string();
    assert!(e.contains("dynamic dimensions differ") && e.contains("[3, 4]") && e.contains("[1, 4]"), "{e}");
    assert!(three.mse(one).is_err());
    let w: Matrix<4, 2> = numbers(&s, &[4, 2]).typed().unwrap();
    let out: Typed<(Batch, Size<2>)> = three.matmul(w).unwrap();
    let known: Matrix<3, 2> = out.retype().unwrap();
    assert!(out.retype::<Rank2<4, 2>>().is_err());
    let any: Rows<2> = known.retype().unwrap();
    let pairs: Rows<3> = any.reshape().unwrap();
    assert_eq!(pairs.shape().unwrap().dims(), [2, 3]);
    assert!(any.reshape::<Rank2<2, 2>>().is_err() && any.reshape::<(Dyn, Size<4>)>().is_err());
    assert!(three.narrow::<0, 2, 2>().is_err() && three.select::<0, 3>().is_err());
    let joined: Typed<(Dyn, Size<2>)> = any.concat(any, Axis::<0>).unwrap();
    assert_eq!(joined.shape().unwrap().dims(), [6, 2]);
    let wrong: Result<Matrix<5, 2>> = any.concat(any, Axis::<0>);
    assert!(wrong.is_err());
    let labels: Typed<(Batch,), u32> =
        s.labels(&Tensor::new(&[2], vec![0u32, 1]).unwrap()).unwrap().typed().unwrap();
    assert!(three.cross_entropy(labels).is_err());
}

#[test]
fn a_typed_net_trains_to_the_bits_of_the_untyped_one() {
    type Net = (Linear<2, 16>, Relu, Linear<16, 16>, Relu, Linear<16, 3>);
    let d = device();
    let data = data::spirals(7, 96, 3).unwrap();
    let mut plain = Params::new(&d, 7);
    let mlp = Mlp::new(&mut plain, &[2, 16, 16, 3]).unwrap();
    let mut step = TrainStep::new(&plain, Optimizer::adamw(1e-2), |v| mlp.forward(v[0])?.cross_entropy(v[1]));
    for _ in 0..5 {
        step.run(&[data.x().into(), data.y().into()]).unwrap();
    }
    // Eagerly.
    let mut params = Params::new(&d, 7);
    let net = Net::build(&mut params, "net").unwrap();
    let mut optimizer = Optimizer::adamw(1e-2);
    let s = Session::eager(&d);
    for _ in 0..5 {
        let x: Matrix<96, 2> = s.input(data.x().num().unwrap()).unwrap().typed().unwrap();
        let y: Labels<96> = s.labels(data.y().idx().unwrap()).unwrap().typed().unwrap();
        let loss = net.forward(x).unwrap().cross_entropy(y).unwrap();
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
        s.reset();
    }
    assert_eq!(params.fingerprint().unwrap(), plain.fingerprint().unwrap());
    // Compiled.
    let mut params = Params::new(&d, 7);
    let net = Net::build(&mut params, "net").unwrap();
    let mut step = TrainStep::new(&params, Optimizer::adamw(1e-2), |v| {
        let (x, y): (Matrix<96, 2>, Labels<96>) = (v[0].typed()?, v[1].typed()?);
        Ok(net.forward(x)?.cross_entropy(y)?.into_untyped())
    });
    for _ in 0..5 {
        step.run(&[data.x().into(), data.y().into()]).unwrap();
    }
    assert_eq!(params.fingerprint().unwrap(), plain.fingerprint().unwrap());
}

#[test]
fn lists_keep_every_element_and_its_type() {
    let list: TListOf![u8, char, &str] = tlist![1, 'b', "c"];
    assert_eq!((list.len(), Nil.len(), Nil.is_empty()), (3, 0, true));
    assert_eq!((*list.get::<0>(), *list.get::<1>(), *list.get::<2>()), (1, 'b', "c"));
    assert_eq!(list.snoc(4.5), tlist![1, 'b', "c", 4.5]);
    assert_eq!(list.append(Nil), list);
    assert_eq!(Nil.append(list), list);
    // Splitting takes apart what appending puts together, at every place.
    assert_eq!(list.split::<0>(), (Nil, list));
    assert_eq!(list.split::<3>(), (list, Nil));
    let (front, back) = list.split::<1>();
    assert_eq!((front, back), (tlist![1], tlist!['b', "c"]));
    assert_eq!(front.append(back), list);
    let nine = list.append(list).append(list);
    assert_eq!((nine.len(), *nine.get::<7>()), (9, 'b'));
}

#[test]
fn a_list_of_parameters_is_a_list_of_tensors_in_a_session() {
    type Weights<'s> = TListOf![Matrix<'s, 2, 5>, Vector<'s, 5>];
    fn model<'s>(x: Rows<'s, 2>, p: Weights<'s>) -> Result<Rows<'s, 5>> {
        x.matmul(*p.get::<0>())?.add(*p.get::<1>())
    }
    let d = device();
    let mut params = Params::new(&d, 1);
    let w = Param::<Rank2<2, 5>>::uniform(&mut params, "w", -1.0, 1.0).unwrap();
    let list: TListOf![Param<Rank2<2, 5>>, _] =
        tlist![w.clone(), Param::<(Size<5>,)>::ones(&mut params, "b").unwrap()];
    let s = Session::eager(&d);
    let x = s.input(&t(&[1, 2], &[1.0, 0.0])).unwrap();
    let y = model(x.typed().unwrap(), list.on(&s).unwrap()).unwrap();
    let first: Vec<f32> = w.untyped().get::<f32>().unwrap().data()[..5].iter().map(|v| v + 1.0).collect();
    assert_eq!(y.value::<f32>().unwrap().data(), first);
    let Cons { head, .. } = list.on(&s).unwrap();
    assert_eq!(head.shape().unwrap().dims(), [2, 5]);
}

/// The library that this test was linked with: of those that cargo left beside it, the newest that is not newer than the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let age = |path: &Path| path.metadata().unwrap().modified().unwrap();
    let built = std::fs::read_dir(test.parent().unwrap()).unwrap().map(|f| f.unwrap().path());
    let ours = built.filter(|f| {
        let name = f.file_name().unwrap().to_string_lossy();
        name.starts_with("libdittograd-") && name.ends_with(".rlib") && age(f) <= age(&test)
    });
    ours.max_by_key(|f| age(f)).expect("cargo has built the library for this test")
}

/// What the compiler says to a file: `check` stops before code is generated.
fn compile(file: &Path, library: &Path, check: bool) -> String {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file.file_stem().unwrap());
    let mut rustc = Command::new(std::env::var("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=lib", "--color=never"]);
    rustc.arg(if check { "--emit=metadata" } else { "--emit=obj" }).arg("-o").arg(out);
    rustc.arg("--extern").arg(format!("dittograd={}", library.display()));
    rustc.arg("-L").arg(format!("dependency={}", library.parent().unwrap().display()));
    String::from_utf8(rustc.arg(file).output().unwrap().stderr).unwrap()
}

/// The first line of each file of `tests/ui` says when it fails (`check`, `build`, or `fits`: never), and its lines
/// with `//~` what the compiler says then.
#[test]
fn mistakes_do_not_compile_and_the_compiler_says_what_is_wrong() {
    let library = library();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 40);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let when = text.lines().next().unwrap().strip_prefix("//@ ").unwrap();
        let said = compile(&file, &library, when == "check");
        let name = file.display();
        match when {
            "fits" => assert!(said.is_empty(), "{name}\n{said}"),
            "check" => {}
            "build" => {
                assert!(compile(&file, &library, true).is_empty(), "{name} fails earlier than it says")
            }
            _ => panic!("{name}: {when}?"),
        }
        assert!(when == "fits" || said.contains(&format!("--> {name}")), "{name} is not pointed at\n{said}");
        for sentence in text.lines().filter_map(|l| l.strip_prefix("//~ ")) {
            assert!(said.contains(sentence), "{name} does not say: {sentence}\n{said}");
        }
        assert!(said.lines().count() < 60, "{name} says too much:\n{said}");
    }
}
