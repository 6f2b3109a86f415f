//! Methods that are made of several ops, against PyTorch in float64: `tests/golden/composed.py` writes the file that is
//! read here. Values and gradients are computed in f64, and on the devices as float32 can.

use crate::support::{data, device, t};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::numerics::canonical_bits;
use dittograd::prelude::*;
use dittograd::session::{AttentionOptions, MatrixNorm, PadMode, Spacing};
use dittograd_check::gpu;
use serde_json::Value;

/// The values of a case, by its name.
fn values<'s>(s: &'s Session, name: &str, v: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
    let x = v[0];
    let other = || v[1];
    let inf = f64::INFINITY;
    let columns = |smallest| MatrixNorm::Columns { smallest };
    let rows = |smallest| MatrixNorm::Rows { smallest };
    let one = match name {
        "frac" => x.frac(),
        "sinc" | "sinc_small" => x.sinc(),
        "floor_divide" | "floor_divide_infinite" => x.floor_divide(other()),
        "remainder" => x.remainder(other()),
        "fmod" => x.fmod(other()),
        "logaddexp2" | "logaddexp2_ends" => x.logaddexp2(other()),
        "xlog1py" | "xlog1py_ends" => x.xlog1py(other()),
        "entr" | "entr_ends" => x.entr(),
        "heaviside" => x.heaviside(other()),
        "nan_to_num" => x.nan_to_num(0.5, Some(8.0), Some(-8.0)),
        "isinf" => x.isinf(),
        "isfinite" => x.isfinite(),
        "isposinf" => x.isposinf(),
        "isneginf" => x.isneginf(),
        "isnan" => x.isnan(),
        "signbit" => x.signbit(),
        "logical_not" => x.logical_not(),
        "logical_and" => x.logical_and(other()),
        "logical_or" => x.logical_or(other()),
        "logical_xor" => x.logical_xor(other()),
        "logit" | "logit_ends" => x.logit(None),
        "logit_eps" => x.logit(Some(0.25)),
        "rsub" => x.rsub(0.5, other()),
        "deg2rad" => x.deg2rad(),
        "rad2deg" => x.rad2deg(),
        "ldexp" => x.ldexp(other()),
        "polygamma0" => x.polygamma(0),
        "polygamma1" => x.polygamma(1),
        "polygamma2" | "polygamma2_negative" => x.polygamma(2),
        "polygamma3" | "polygamma3_negative" => x.polygamma(3),
        "polygamma4" | "polygamma4_negative" => x.polygamma(4),
        "mvlgamma" => x.mvlgamma(5),
        "frexp" | "frexp_ends" => return x.frexp().map(|(m, e)| vec![m, e]),
        "spherical_bessel_j0" => x.spherical_bessel_j0(),
        "lgamma_negative" => x.lgamma(),
        "digamma_negative" => x.digamma(),
        "ndtr" => x.ndtr(),
        "log_ndtr" => x.log_ndtr(),
        "clamp_min" => x.clamp_min(0.5),
        "clamp_max" => x.clamp_max(0.5),
        "where_or" => x.where_or(other(), -1.5),
        "addcmul" => x.addcmul(0.5, v[1], v[2]),
        "addcdiv" => x.addcdiv(0.5, v[1], v[2]),
        "lerp_by" => x.lerp_by(v[1], v[2]),
        "isclose_False" => x.isclose(other(), 1.0 / 512.0, 1.0 / 4096.0, false),
        "isclose_True" => x.isclose(other(), 1.0 / 512.0, 1.0 / 4096.0, true),
        "softsign" => x.softsign(),
        "softshrink" => x.softshrink(0.5),
        "hardshrink" => x.hardshrink(0.5),
        "tanhshrink" => x.tanhshrink(),
        "threshold" => x.threshold(0.5, -3.0),
        "selu" => x.selu(),
        "celu" => x.celu(1.5),
        "glu" => x.glu(1),
        "prelu" | "prelu_one" | "prelu_infinite" => x.prelu(other()),
        "softplus_with" => x.softplus_with(2.0, 3.0),
        "pdist" => x.pdist(3.0),
        "pdist_of_one_row" => x.pdist(2.0),
        "rrelu" => x.rrelu(0.125, 0.375),
        "softmin" => x.softmin(0),
        "addmm" => x.addmm(v[1], v[2], 0.5, 2.0),
        "baddbmm" => x.baddbmm(v[1], v[2], 0.5, 2.0),
        "addbmm" => x.addbmm(v[1], v[2], 0.5, 2.0),
        "addmv" => x.addmv(v[1], v[2], 0.5, 2.0),
        "addr" => x.addr(v[1], v[2], 0.5, 2.0),
        "mv" => x.mv(other()),
        "inner" => x.inner(other()),
        "tensordot_axes" => x.tensordot_axes(other(), &[0, -1], &[2, 0]),
        "kron" => x.kron(other()),
        "cross" => x.cross(other(), -2),
        "multi_dot" => s.multi_dot(v),
        "block_diag" => s.block_diag(v),
        "matrix_norm_axes" => x.matrix_norm(columns(false), [2, 0], true),
        "einsum_one" => s.einsum("ij,jk->ik", v),
        "einsum_one_kept" => s.einsum("bij,bjk->bik", v),
        "tensordot_one" => x.tensordot(other(), 2),
        "vander_matrix" => s.vander(x, 3, true),
        "matrix_norm_fro" => x.matrix_norm(MatrixNorm::Frobenius, [-2, -1], false),
        "matrix_norm_columns" => x.matrix_norm(columns(false), [-2, -1], false),
        "matrix_norm_columns_smallest" => x.matrix_norm(columns(true), [-2, -1], false),
        "matrix_norm_rows" => x.matrix_norm(rows(false), [-2, -1], false),
        "matrix_norm_rows_smallest" => x.matrix_norm(rows(true), [-2, -1], false),
        "renorm" => x.renorm(2.0, 1, 2.0),
        "renorm_ends" => x.renorm(2.0, 0, 2.0),
        "pairwise_distance" => x.pairwise_distance(other(), 2.0, 0.0078125, false),
        "dist" => x.dist(other(), 3.0),
        "cdist_0" => x.cdist(other(), 0.0),
        "cdist_1" => x.cdist(other(), 1.0),
        "cdist_2" => x.cdist(other(), 2.0),
        "cdist_3" => x.cdist(other(), 3.0),
        "cdist_half" => x.cdist(other(), 0.5),
        "cdist_inf" => x.cdist(other(), inf),
        "norm_0" => x.norm(0.0, &[0, 2], false),
        "norm_1" => x.norm(1.0, &[0, -1], false),
        "norm_2" => x.norm(2.0, &[0, -1], false),
        "norm_3" => x.norm(3.0, &[0, -1], false),
        "norm_half" => x.norm(0.5, &[0, -1], false),
        "norm_inf" => x.norm(inf, &[0, -1], false),
        "norm_minus_inf" => x.norm(-inf, &[0, -1], false),
        "norm_minus_1" => x.norm(-1.0, &[0, -1], false),
        "norm_3_of_zeros" => x.norm(3.0, &[1], false),
        "cosine_similarity" => x.cosine_similarity(other(), 1, 1e-8),
        "hstack" | "hstack_vectors" => s.hstack(v),
        "vstack" => s.vstack(v),
        "dstack" => s.dstack(v),
        "column_stack" => s.column_stack(v),
        "broadcast_tensors" => return s.broadcast_tensors(v),
        "meshgrid" => return s.meshgrid(v, false),
        "meshgrid_xy" => return s.meshgrid(v, true),
        "cartesian_prod" => s.cartesian_prod(v),
        "flatten_axes" => x.flatten_axes(1, -2),
        "unflatten" => x.unflatten(-1, &[2, -1]),
        "tensor_split" => return x.tensor_split(-1, 3),
        "split_at" => return x.split_at(1, &[2, 5]),
        "hsplit" => return x.hsplit(2),
        "vsplit" => return x.vsplit(2),
        "dsplit" => return x.dsplit(2),
        "unbind" => return x.unbind(-1),
        "view" => x.view(&[-1, 4]),
        "expand_keep" => x.expand(&[2, -1, 4]),
        "movedim_axes" => x.movedim_axes(&[0, -1], &[1, 0]),
        "roll_axes" => x.roll_axes(&[0, -1], &[1, -2]),
        "unfold" => x.unfold(1, 3, 2),
        "combinations" => x.combinations(3, false),
        "combinations_again" => x.combinations(2, true),
        "select_scatter" => x.select_scatter(other(), 1, -1),
        "slice_scatter" => x.slice_scatter(other(), 1, 1, 6, 2),
        "take_along_broadcast" => {
            let index = s.indices(&Tensor::new(&[2, 3, 2], vec![2, 0, 1, 3, 0, 0, 1, 1, 2, 2, 3, 0])?)?;
            x.take_along_axis(2, index)
        }
        "pad_replicate_front" => x.pad_mode(&[-1, 2], PadMode::Replicate),
        "pad_replicate_end" => x.pad_mode(&[2, -2], PadMode::Replicate),
        "pad_replicate_all" => x.pad_mode(&[-3, 4], PadMode::Replicate),
        "normalize_1" => x.normalize(1.0, 1, 0.5),
        "normalize_3" => x.normalize(3.0, 1, 0.5),
        "normalize_inf" => x.normalize(inf, 1, 0.5),
        "bilinear" | "bilinear_plain" => x.bilinear(v[1], v[2], v.get(3).copied()),
        "fractional_max_pool" | "fractional_max_pool_3" => {
            let (kernel, sizes, samples): (&[usize], &[usize], _) = match name {
                "fractional_max_pool" => {
                    (&[2, 3], &[3, 2], t(&[3, 2], &[0.125, 0.75, 0.5, 0.25, 0.875, 0.0]))
                }
                _ => (&[2; 3], &[2, 1, 3], t(&[2, 3], &[0.125, 0.75, 0.375, 0.5, 0.25, 0.625])),
            };
            let (y, at) = x.fractional_max_pool(kernel, sizes, Some(s.constant(&samples)?))?;
            return Ok(vec![y, at.to_float()?]);
        }
        "attention_broadcast" | "attention_broadcast_keys" => {
            x.attention(v[1], v[2], AttentionOptions::default())
        }
        "logspace" => s.logspace(-1.5, 2.0, 6, 3.0)?.add(x.scale(0.0)?),
        "tile" => x.tile(&[2]),
        "repeat_interleave_by" => x.repeat_interleave_by(1, &[2, 0, 3]),
        "atleast" => return Ok(vec![x.atleast_1d()?, x.atleast_2d()?, x.atleast_3d()?]),
        "squeeze_all" => x.squeeze_all(),
        "squeeze_axes" => x.squeeze_axes(&[0, 1, -1]),
        "negative_axes" => {
            let by_name = [x.sum_axes(&[-1])?, x.swap_axes(-1, 0)?, x.select(-2, -1)?, x.unsqueeze(-1)?];
            return Ok([&by_name[..], &[x.softmax_axis(-2)?, x.cumsum(-1)?]].concat());
        }
        "nansum" => x.nansum(&[1], false),
        "nanmean" => x.nanmean(&[1], false),
        "count_nonzero" => x.count_nonzero(&[1]),
        "all" => x.all(&[1], false),
        "any" => x.any(&[1], false),
        "aminmax" => return x.aminmax(&[1], false).map(|(a, b)| vec![a, b]),
        "var_corrected" => x.var_corrected(&[1], 1.5, false),
        "std_corrected" => x.std_corrected(&[1], 1.5, false),
        "std_corrected_large" => x.std_corrected(&[0], 0.5, false),
        "corrected_none_left" | "corrected_one" | "corrected_equal" => {
            return Ok(vec![x.var_corrected(&[0], 2.5, false)?, x.std_corrected(&[0], 2.5, false)?]);
        }
        "sum_to_size" => x.sum_to_size(&[3, 1]),
        "var_mean" => return x.var_mean(&[1], 1, false).map(|(a, b)| vec![a, b]),
        "std_mean" => return x.std_mean(&[0, 1], 1, false).map(|(a, b)| vec![a, b]),
        "cov" | "cov_vector" | "cov_row" => x.cov(1),
        "cov_weights_3" | "cov_weights_1" => x.cov_weighted(1, None, Some(other())),
        "cov_repeats_3" | "cov_repeats_1" => x.cov_weighted(0, Some(other()), None),
        "cov_both_3" | "cov_both_1" => x.cov_weighted(2, Some(v[1]), Some(v[2])),
        "cov_none_left" => x.cov_weighted(9, Some(other()), None),
        "corrcoef" => x.corrcoef(),
        "diff" => x.diff(2, 0),
        "gradient" => x.gradient(0.5, 1),
        "gradient_edge" => x.gradient_with(Spacing::Step(0.5), 1, 2),
        "gradient_edge_of_3" => x.gradient_with(Spacing::Step(-2.0), 0, 2),
        "trapezoid" => x.trapezoid(None, 0.5, 0),
        "trapezoid_x" => x.trapezoid(Some(other()), 1.0, 0),
        "cumulative_trapezoid" => x.cumulative_trapezoid(None, 0.5, 1),
        "cumulative_trapezoid_x" => x.cumulative_trapezoid(Some(other()), 1.0, 1),
        "vander" => s.vander(x, 4, false),
        "vander_increasing" => s.vander(x, 3, true),
        _ => {
            let (method, k) = name.rsplit_once('_').unwrap();
            let k: i64 = k.parse().unwrap();
            match method {
                "gradient_places_1" | "gradient_places_2" => {
                    let order = if method.ends_with('1') { 1 } else { 2 };
                    x.gradient_with(Spacing::Places(other().flatten()?), 1, order)
                }
                "rot90" => x.rot90(k, 0, 2),
                "diag_vector" | "diag_matrix" => x.diag(k),
                "diagflat" => x.diagflat(k),
                "diagonal_scatter" => x.diagonal_scatter(other(), k, 2, 0),
                "diag_embed" => x.diag_embed(k, -2, -1),
                "diag_embed_axes" => x.diag_embed(k, 0, 2),
                _ => panic!("{name} has no line here"),
            }
        }
    };
    Ok(vec![one?])
}

fn numbers(v: &Value) -> Vec<f64> {
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap());
    v.as_array().unwrap().iter().map(number).collect()
}

fn tensor(v: &Value) -> Tensor<f64> {
    let dims: Vec<usize> =
        v["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    Tensor::new(&dims, numbers(&v["data"])).unwrap()
}

fn list(v: &Value) -> &[Value] {
    v.as_array().unwrap()
}

/// What differs. Errors are relative to the largest element: an element that cancels has no digits of its own.
fn differs(what: &str, got: &[f64], want: &[f64], within: f64) -> Option<String> {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().filter(|w| w.is_finite()).fold(1e-3, |m: f64, w| m.max(w.abs()));
    let is_other = |(g, w): (&f64, &f64)| {
        let same = g == w || (g.is_nan() && w.is_nan());
        !(same || (g - w).abs() <= within * size)
    };
    let at = got.iter().zip(want).position(is_other)?;
    Some(format!("{what} at {at} is {}, PyTorch has {}", got[at], want[at]))
}

fn follows_pytorch(device: &Device, within: f64) {
    let mut wrong = Vec::new();
    for line in include_str!("../golden/composed.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap();
        let s = Session::eager(device);
        let ins: Vec<Var<'_>> = list(&case["ins"]).iter().map(|i| s.variable(&tensor(i)).unwrap()).collect();
        let ys = values(&s, name, &ins).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ys.len(), list(&case["ys"]).len(), "{name}");
        let mut loss = s.zeros(&[]).unwrap();
        for (i, (y, want)) in ys.iter().zip(list(&case["ys"])).enumerate() {
            let want = tensor(want);
            assert_eq!(y.shape().unwrap(), want.shape(), "{name}");
            let got = y.value::<f64>().unwrap();
            wrong.extend(differs(&format!("{name}: y{i}"), got.data(), want.data(), within));
            let dy = Tensor::with_shape(want.shape(), numbers(&case["dys"][i])).unwrap();
            loss = (loss + y.mul(s.constant(&dy).unwrap()).unwrap().sum().unwrap()).unwrap();
        }
        if list(&case["dx"]).iter().all(Value::is_null) {
            continue;
        }
        let grads = loss.backward().unwrap_or_else(|e| panic!("{name}: {e}"));
        for (i, (v, want)) in ins.iter().zip(list(&case["dx"])).enumerate().filter(|(_, (_, w))| !w.is_null())
        {
            let want = numbers(want);
            let got = grads.var(*v).map(|g| g.to_tensor::<f64>().unwrap().into_data());
            let got = got.unwrap_or_else(|| vec![0.0; want.len()]);
            wrong.extend(differs(&format!("{name}: dx{i}"), &got, &want, within));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn methods_follow_pytorch() {
    // Constants of formulas are float32 numbers on every device.
    follows_pytorch(&Device::host::<f64>(), 4e-7);
    follows_pytorch(&device(), 2e-5);
}

#[test]
fn cuda_methods_follow_pytorch() {
    if let Some((_turn, gpu)) = gpu() {
        follows_pytorch(&gpu, 2e-5);
    }
}

#[test]
fn compiled_methods_have_the_same_bits() {
    let d = device();
    for line in include_str!("../golden/composed.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap();
        let single = |v: &Value| {
            let x = tensor(v);
            AnyTensor::Num(Tensor::from_fn(x.shape(), |i| x.data()[i] as f32))
        };
        let ins: Vec<AnyTensor<f32>> = list(&case["ins"]).iter().map(single).collect();
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let graph = Graph::trace(&d, &metas, |s, v| values(s, name, v)).unwrap();
        let eager = graph.run(&d, &ins).unwrap();
        let compiled = graph.compile(&d).unwrap().call(&ins).unwrap();
        for (e, c) in eager.iter().zip(&compiled) {
            let bits = |t: &AnyTensor<f32>| {
                t.num().unwrap().data().iter().map(|x| canonical_bits(*x)).collect::<Vec<_>>()
            };
            assert_eq!(bits(e), bits(c), "{name}");
        }
    }
}

#[test]
fn bad_arguments_say_what_to_do() {
    let d = device();
    let s = Session::eager(&d);
    let (x, v) = (s.ones(&[2, 3]).unwrap(), s.ones(&[4]).unwrap());
    let all: Vec<(Result<Var<'_>>, &str)> = vec![
        (x.sum_axes(&[-3]), "axis: -3 lies before the first axis of [2, 3]; use -2 to 1"),
        (x.softmax_axis(-3), "use -2 to 1"),
        (x.unsqueeze(-4), "-4 lies before the first axis that [2, 3] can get"),
        (x.select(0, -3), "-3 lies before the first of the 2 elements of axis 0"),
        (s.scalar(1.0).unwrap().sum_axes(&[-1]), "a scalar has no axes"),
        (x.polygamma(35), "got 35, use 34 or less"),
        (x.mvlgamma(0), "is 0, use 1 or more"),
        (x.celu(0.0), "is 0, which x is divided by"),
        (x.glu(1), "axis 1 of [2, 3] has 3 elements, which are no two halves"),
        (x.prelu(v), "a weight has one element or one for each channel"),
        (x.addmm(v, v, 1.0, 1.0), "exactly 2"),
        (v.addmm(x, x.transpose().unwrap(), 1.0, 1.0), "broadcast"),
        (x.mv(v), "[2, 3] and [4]"),
        (s.multi_dot(&[x]), "there is one, give two or more"),
        (s.multi_dot(&[x, s.ones(&[2, 2, 2]).unwrap()]), "2, of the first and last also 1"),
        (s.block_diag(&[s.ones(&[2, 2, 2]).unwrap()]), "at most 2"),
        (x.tensordot_axes(v, &[0, 1], &[0]), "are no pairs"),
        (x.expand(&[-1, 2, 3]), "-1 is no size of axis 0"),
        (x.movedim_axes(&[0, 0], &[0, 1]), "[0, 0] to [0, 1] are not as many different ones of 2 axes"),
        (x.roll_axes(&[0], &[1, 2]), "2 are given for 1 axes"),
        (x.unfold(1, 4, 1), "4 elements every 1 do not fit axis 1 of 3"),
        (x.select_scatter(v, 0, 0), "the shape of what it replaces"),
        (x.select_scatter(v, 0, 2), "2 is none of the 2 elements of axis 0"),
        (x.slice_scatter(v, 1, 0, 4, 1), "0..4 in steps of 1 does not lie in an axis of 3"),
        (x.diagonal_scatter(v, 0, 0, 1), "the shape of what it replaces"),
        (x.multinomial(4, false), "is 4, there are 3 to draw"),
        (x.bilinear(v, v, None), "exactly 3"),
        (x.tensordot(x, 1), "tensordot: axes: axis 1 of [2, 3] has 3 elements and axis 0 of [2, 3] has 2"),
        (x.tensordot_axes(v, &[-1], &[0]), "axis 1 of [2, 3] has 3 elements and axis 0 of [4] has 4"),
        (x.matrix_norm(MatrixNorm::Frobenius, [0, -2], false), "axis 0 of [2, 3] is named as the rows and"),
        (x.cross(x, 0), "axis 0 of [2, 3] must have 3 elements"),
        (x.cdist(v, 2.0), "at least 2"),
        (x.cdist(s.ones(&[2, 4]).unwrap(), 2.0), "rows must have one length"),
        (v.matrix_norm(MatrixNorm::Frobenius, [-2, -1], false), "at least 2"),
        (x.norm(f64::NAN, &[0], false), "is NaN, use a number"),
        (x.unflatten(1, &[2, -1]), "[2, -1] is no way to cut axis 1 of 3 elements"),
        (x.flatten_axes(1, 0), "axis 1 comes after axis 0"),
        (x.rot90(1, 0, 0), "both are axis 0; name two"),
        (x.repeat_interleave_by(0, &[1]), "1 are given for the 2 elements of axis 0"),
        (s.ones(&[2, 2, 2]).unwrap().diag(0), "1 or 2"),
        (x.diag_embed(0, 1, 1), "axes 1 and 1 are no two of the 3 of the result"),
        (v.gradient(0.0, 0), "apart"),
        (v.gradient_with(Spacing::Step(1.0), 0, 3), "use 1 or 2"),
        (x.gradient_with(Spacing::Step(1.0), 0, 2), "3 or more for edge_order 2"),
        (x.gradient_with(Spacing::Places(v), 1, 1), "one place for each element"),
        (x.cov_weighted(1, None, Some(v)), "a weight for each observation"),
        (x.sum_to_size(&[2, 2]), "must broadcast to the value"),
        (x.sum_to_size(&[1, 2, 3]), "must broadcast to the value"),
        (x.trapezoid(Some(v), 1.0, 1), "one place for each element"),
        (s.ones(&[2, 2, 2]).unwrap().cov(1), "1 or 2"),
    ];
    for (got, want) in all {
        let error = got.err().unwrap_or_else(|| panic!("no error, but: {want}")).to_string();
        assert!(error.contains(want), "{error}, not {want}");
    }
    for (got, want) in
        [(x.hsplit(2), "equal pieces"), (v.vsplit(2), "at least 2"), (x.tensor_split(0, 0), "is 0")]
    {
        let error = got.unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn comparisons_of_whole_values() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.constant(&t(&[3], &[1.0, f32::NAN, f32::INFINITY])).unwrap();
    let y = s.constant(&t(&[3], &[1.000001, f32::NAN, f32::INFINITY])).unwrap();
    assert!(x.allclose(y, 1e-5, 1e-8, true).unwrap() && !x.allclose(y, 1e-5, 1e-8, false).unwrap());
    let z = s.constant(&t(&[3], &[1.0, -2.0, 3.0])).unwrap();
    assert!(z.equal(z).unwrap() && !z.equal(x).unwrap() && !z.equal(z.reshape(&[1, 3]).unwrap()).unwrap());
    assert_eq!(data(z.positive().unwrap()), [1.0, -2.0, 3.0]);
    assert_eq!(z.expand_as(s.zeros(&[2, 3]).unwrap()).unwrap().shape().unwrap().dims(), [2, 3]);
    assert_eq!(z.view_as(s.zeros(&[3, 1]).unwrap()).unwrap().shape().unwrap().dims(), [3, 1]);
}
