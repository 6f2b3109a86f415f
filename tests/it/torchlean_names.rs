//! Every name that TorchLean's runtime has is documented with ours, and every operation is there under a recognisable name. That
//! the methods exist is checked by calls of all of them, and that the documented items do by rustdoc.

use crate::support::{device, fractions};
use dittograd::ops::AnyOp;
use dittograd::ops::conv::ConvWindow;
use dittograd::ops::layout::AxisMap;
use dittograd::prelude::*;
use dittograd::session::AttentionOptions;
use dittograd::torchlean::*;
use dittograd::typed::{
    Axis, Dims, Heads, Kernel, Labels, Matrix, NewAxis, OutputPadding, Padding, Rank2, Rank3, Rank4, Size,
    Stride, Typed, Vector,
};

macro_rules! methods {
    ($($name:literal $method:ident $op:ident;)*) => {
        [$($name),*].len()
    };
}

#[test]
fn every_known_name_has_a_method_and_an_op() {
    assert_eq!(dittograd::with_names!(methods), KNOWN.len());
    for (name, method, op) in KNOWN {
        assert!(AnyOp::NAMES.contains(op), "{name}: there is no op {op} for {method}");
    }
    let distinct: std::collections::BTreeSet<_> = KNOWN.iter().map(|k| k.0).collect();
    assert_eq!(distinct.len(), KNOWN.len());
}

/// A call of the method on values of which it takes some.
fn call<'s>(s: &'s Session, method: &str) -> Option<Result<Var<'s>>> {
    let x = |dims: &[usize]| s.variable(&fractions(dims, 7919)).unwrap();
    let at = |index: &[u32]| s.labels(&Tensor::new(&[index.len()], index.to_vec()).unwrap()).unwrap();
    let (v, w, m) = (x(&[3]), x(&[3]), x(&[2, 3]));
    let window = || ConvWindow::plain(2).unwrap();
    // One image of one channel.
    let image = x(&[1, 1, 4, 4]);
    Some(match method {
        "abs" => v.abs(),
        "sqrt" => v.sqrt(),
        "exp" => v.exp(),
        "log" => v.log(),
        "inv" => v.inv(),
        "clamp" => v.clamp(-1.0, 1.0),
        "max" => v.max(w),
        "min" => v.min(w),
        "div" => v.div(w),
        "relu" => v.relu(),
        "add" => v.add(w),
        "sub" => v.sub(w),
        "mul" => v.mul(w),
        "scale" => v.scale(2.0),
        "copy" => v.copy(),
        "axpy" => v.axpy(2.0, w),
        "safe_log" => v.safe_log(1e-6),
        "sigmoid" => v.sigmoid(),
        "tanh" => v.tanh(),
        "softplus" => v.softplus(),
        "sum" => m.sum(),
        "sum_axes" => m.sum_axes(&[1]),
        "mean_axes" => m.mean_axes(&[1]),
        "amax" => m.amax(&[1], false),
        "flatten" => m.flatten(),
        "reshape" => m.reshape(&[3, 2]),
        "transpose2d" => m.transpose2d(),
        "swap_adjacent_at_depth" => m.swap_adjacent_at_depth(0),
        "transpose3d_first_to_last" => x(&[2, 3, 4]).transpose3d_first_to_last(),
        "transpose3d_last_to_first" => x(&[2, 3, 4]).transpose3d_last_to_first(),
        "transpose3d_last_two" => x(&[2, 3, 4]).transpose3d_last_two(),
        "broadcast_axes" => {
            v.broadcast_axes(Shape::new(&[2, 3]).unwrap(), AxisMap::new(&[None, Some(0)]).unwrap())
        }
        "broadcast_vec_to_rows" => v.broadcast_vec_to_rows(2),
        "broadcast_vec_to_cols" => v.broadcast_vec_to_cols(2),
        "broadcast_to" => v.broadcast_to(Shape::new(&[2, 3]).unwrap()),
        "detach" => v.detach(),
        "matmul" => m.matmul(x(&[3, 2])),
        "bmm" => x(&[2, 2, 3]).bmm(x(&[2, 3, 2])),
        "linear" => m.linear(x(&[4, 3]), x(&[4])),
        "mse" => v.mse(w),
        "concat" => v.concat(w, 0),
        "slice" => v.slice(0, 0, 2, 1),
        "narrow" => v.narrow(0, 1, 2),
        "gather_scalar" => v.gather_scalar(1),
        "gather_scalar_nat" => v.gather_scalar_nat(7),
        "gather_row" => m.gather_row(1),
        "gather_vec_nat" => v.gather_vec_nat(at(&[2, 9])),
        "gather_rows_nat" => m.gather_rows_nat(at(&[1, 9])),
        "scatter_add_vec" => v.scatter_add_vec(1, x(&[])),
        "scatter_add_row" => m.scatter_add_row(1, v),
        "scatter_add_nat" => v.scatter_add_nat(at(&[2, 9]), x(&[2])),
        "scatter_add_rows_nat" => m.scatter_add_rows_nat(at(&[1, 9]), m),
        "conv2d" => image.conv2d(x(&[1, 1, 2, 2]), None, 1, 0),
        "conv" => image.conv(x(&[1, 1, 2, 2]), None, window()),
        "conv_transpose2d" => image.conv_transpose2d(x(&[1, 1, 2, 2]), None, 1, 0, 0),
        "conv_transpose" => image.conv_transpose(x(&[1, 1, 2, 2]), None, window(), &[0, 0]),
        "max_pool2d" => image.max_pool2d([2, 2], 2),
        "max_pool2d_pad" => image.max_pool2d_pad([2, 2], 2, 1),
        "max_pool" => image.max_pool(&[2, 2], &[2, 2], &[0, 0]),
        "avg_pool2d" => image.avg_pool2d([2, 2], 2),
        "avg_pool2d_pad" => image.avg_pool2d_pad([2, 2], 2, 1),
        "avg_pool" => image.avg_pool(&[2, 2], &[2, 2], &[0, 0], true),
        "smooth_max_pool2d" => image.smooth_max_pool2d([2, 2], 2, 1.0),
        "smooth_max_pool2d_pad" => image.smooth_max_pool2d_pad([2, 2], 2, 1, 1.0),
        "smooth_max_pool" => image.smooth_max_pool(&[2, 2], &[2, 2], &[0, 0], 1.0),
        "layer_norm" => m.layer_norm(1, Some(v), Some(w), 1e-5),
        "batchnorm_channel_first" => m.batchnorm_channel_first(x(&[2]), x(&[2])),
        "softmax" => m.softmax(),
        "log_softmax" => m.log_softmax(),
        "masked_softmax" => {
            m.masked_softmax(s.labels(&Tensor::new(&[2, 3], vec![1, 0, 1, 1, 1, 0]).unwrap()).unwrap())
        }
        "multi_head_attention" => {
            x(&[3, 4]).multi_head_attention([x(&[4, 4]); 4], 2, AttentionOptions::default())
        }
        "attention" => x(&[2, 3, 4]).attention(x(&[2, 3, 4]), x(&[2, 3, 4]), AttentionOptions::default()),
        "spectral_conv1d" => x(&[8, 2]).spectral_conv1d(x(&[3, 2, 2]), x(&[3, 2, 2])),
        "rfft" => x(&[8]).rfft(),
        "irfft" => x(&[5, 2]).irfft(8),
        "selective_scan" => x(&[4, 3]).selective_scan(v, w, x(&[3])),
        "dropout" => v.dropout(0.5),
        _ => return None,
    })
}

/// Of every name: the op that is named for it is on the tape once its method was called.
#[test]
fn every_known_name_records_its_op() {
    let mut wrong = Vec::new();
    for (name, method, op) in KNOWN {
        let s = Session::eager(&device());
        match call(&s, method) {
            None => wrong.push(format!("{name}: {method} is not called here")),
            Some(Err(e)) => wrong.push(format!("{name}: {method} gave {e}")),
            Some(Ok(_)) => {
                let recorded = s
                    .with_tape(|tape| {
                        let name = |i| tape.node(i).and_then(|n| n.name.clone());
                        Ok((0..tape.size()).filter_map(name).collect::<Vec<_>>())
                    })
                    .unwrap();
                if !recorded.iter().any(|r| r == op) {
                    wrong.push(format!("{name}: {method} records {recorded:?}, not {op}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same with shapes in types: one image without a batch for windows along two axes, and the same numbers as [`call`]
/// has.
fn typed_call<'s>(s: &'s Session, method: &str) -> Option<Result<Var<'s>>> {
    fn x<'s, S: Dims>(s: &'s Session) -> Typed<'s, S> {
        let dims: Vec<usize> = S::DIMS.iter().map(|d| d.unwrap()).collect();
        s.variable(&fractions(&dims, 7919)).unwrap().typed().unwrap()
    }
    fn at<'s, const N: usize>(s: &'s Session, index: [u32; N]) -> Labels<'s, N> {
        s.labels(&Tensor::new(&[N], index.to_vec()).unwrap()).unwrap().typed().unwrap()
    }
    let (v, w, m): (Vector<3>, Vector<3>, Matrix<2, 3>) = (x(s), x(s), x(s));
    let cube: Typed<Rank3<2, 3, 4>> = x(s);
    let image: Typed<Rank3<1, 4, 4>> = x(s);
    let kernel: Typed<Rank4<1, 1, 2, 2>> = x(s);
    let (k, s1, s2, p0, p1) = (Kernel::<2>, Stride::<1>, Stride::<2>, Padding::<0>, Padding::<1>);
    let options = AttentionOptions::default();
    fn plain<'s, S: Dims>(y: Result<Typed<'s, S>>) -> Result<Var<'s>> {
        y.map(Typed::into_untyped)
    }
    Some(match method {
        "abs" => plain(v.abs()),
        "sqrt" => plain(v.sqrt()),
        "exp" => plain(v.exp()),
        "log" => plain(v.log()),
        "inv" => plain(v.inv()),
        "clamp" => plain(v.clamp(-1.0, 1.0)),
        "max" => plain(v.max(w)),
        "min" => plain(v.min(w)),
        "div" => plain(v.div(w)),
        "relu" => plain(v.relu()),
        "add" => plain(v.add(w)),
        "sub" => plain(v.sub(w)),
        "mul" => plain(v.mul(w)),
        "scale" => plain(v.scale(2.0)),
        "copy" => plain(v.copy()),
        "axpy" => plain(v.axpy(2.0, w)),
        "safe_log" => plain(v.safe_log(1e-6)),
        "sigmoid" => plain(v.sigmoid()),
        "tanh" => plain(v.tanh()),
        "softplus" => plain(v.softplus()),
        "sum" => plain(m.sum()),
        "sum_axes" => plain(m.sum_axis::<1>()),
        "mean_axes" => plain(m.mean_axis::<1>()),
        "amax" => plain(m.amax::<1>()),
        "flatten" => plain::<(Size<6>,)>(m.reshape()),
        "reshape" => plain::<Rank2<3, 2>>(m.reshape()),
        "transpose2d" => plain(m.transpose()),
        "swap_adjacent_at_depth" => plain(m.permute::<1, 0>()),
        "transpose3d_first_to_last" => plain(cube.permute::<1, 2, 0>()),
        "transpose3d_last_to_first" => plain(cube.permute::<2, 0, 1>()),
        "transpose3d_last_two" => plain(cube.transpose()),
        "broadcast_axes" | "broadcast_vec_to_rows" => {
            plain::<Rank2<2, 3>>(v.broadcast_axes((NewAxis, Axis::<0>)))
        }
        "broadcast_vec_to_cols" => plain::<Rank2<3, 2>>(v.broadcast_axes((Axis::<0>, NewAxis))),
        "broadcast_to" => plain::<Rank2<2, 3>>(v.expand()),
        "detach" => plain(v.detach()),
        "matmul" => plain(m.matmul(x::<Rank2<3, 2>>(s))),
        "bmm" => plain(x::<Rank3<2, 2, 3>>(s).bmm(x::<Rank3<2, 3, 2>>(s))),
        "linear" => plain(m.linear(x::<Rank2<4, 3>>(s), x(s))),
        "mse" => plain(v.mse(w)),
        "concat" => plain::<(Size<6>,)>(v.concat(w, Axis::<0>)),
        "slice" => plain(v.narrow::<0, 0, 2>()),
        "narrow" => plain(v.narrow::<0, 1, 2>()),
        "gather_scalar" => plain(v.select::<0, 1>()),
        "gather_scalar_nat" => {
            plain(v.index_select_or_zero(at(s, [7]), Axis::<0>).and_then(|y| y.squeeze::<0>()))
        }
        "gather_row" => plain(m.select::<0, 1>()),
        "gather_vec_nat" => plain(v.index_select_or_zero(at(s, [2, 9]), Axis::<0>)),
        "gather_rows_nat" => plain(m.index_select_or_zero(at(s, [1, 9]), Axis::<0>)),
        "scatter_add_vec" => plain(TypedScatterAddVec::scatter_add_vec::<1>(v, x(s))),
        "scatter_add_row" => plain(TypedScatterAddRow::scatter_add_row::<1>(m, v)),
        "scatter_add_nat" => plain(v.index_add_or_skip(at(s, [2, 9]), x(s), Axis::<0>)),
        "scatter_add_rows_nat" => plain(m.index_add_or_skip(at(s, [1, 9]), m, Axis::<0>)),
        "conv2d" => plain::<Rank3<1, 3, 3>>(image.conv2d(kernel, None, s1, p0)),
        "conv" => plain::<Rank3<1, 3, 3>>(image.conv(kernel, None, s1, p0)),
        "conv_transpose2d" => {
            plain::<Rank3<1, 5, 5>>(image.conv_transpose2d(kernel, None, s1, p0, OutputPadding::<0>))
        }
        "conv_transpose" => {
            plain::<Rank3<1, 5, 5>>(image.conv_transpose(kernel, None, s1, p0, OutputPadding::<0>))
        }
        "max_pool2d" => plain::<Rank3<1, 2, 2>>(image.max_pool2d(k, s2)),
        "max_pool2d_pad" => plain::<Rank3<1, 3, 3>>(image.max_pool2d_pad(k, s2, p1)),
        "max_pool" => plain::<Rank3<1, 2, 2>>(image.max_pool((k, k), s2, p0)),
        "avg_pool2d" => plain::<Rank3<1, 2, 2>>(image.avg_pool2d(k, s2)),
        "avg_pool2d_pad" => plain::<Rank3<1, 3, 3>>(image.avg_pool2d_pad(k, s2, p1)),
        "avg_pool" => plain::<Rank3<1, 2, 2>>(image.avg_pool((k, k), s2, p0, true)),
        "smooth_max_pool2d" => plain::<Rank3<1, 2, 2>>(image.smooth_max_pool2d(k, s2, 1.0)),
        "smooth_max_pool2d_pad" => plain::<Rank3<1, 3, 3>>(image.smooth_max_pool2d_pad(k, s2, p1, 1.0)),
        "smooth_max_pool" => plain::<Rank3<1, 2, 2>>(image.smooth_max_pool((k, k), s2, p0, 1.0)),
        "layer_norm" => plain(m.layer_norm(v, w, 1e-5)),
        "batchnorm_channel_first" => {
            plain(TypedBatchnormChannelFirst::batchnorm_channel_first(m, x(s), x(s)))
        }
        "softmax" => plain(m.softmax()),
        "log_softmax" => plain(m.log_softmax()),
        "masked_softmax" => {
            let mask = s.labels(&Tensor::new(&[2, 3], vec![1, 0, 1, 1, 1, 0]).unwrap()).unwrap();
            plain(m.masked_softmax(mask.typed::<Typed<Rank2<2, 3>, u32>>().unwrap()))
        }
        "multi_head_attention" => {
            let w: Matrix<4, 4> = x(s);
            plain(x::<Rank2<3, 4>>(s).multi_head_attention([w; 3], w, Heads::<2>, options))
        }
        "attention" => {
            let q: Typed<Rank3<2, 3, 4>> = x(s);
            let q: Typed<Rank4<1, 2, 3, 4>> = q.unsqueeze::<0>().unwrap();
            plain(q.attention(q, q, options).and_then(|y| y.squeeze::<0>()))
        }
        "spectral_conv1d" => plain(x::<Rank2<8, 2>>(s).spectral_conv1d(x::<Rank3<3, 2, 2>>(s), x(s))),
        "rfft" => plain::<Rank2<5, 2>>(x::<(Size<8>,)>(s).rfft()),
        "irfft" => plain::<(Size<8>,)>(x::<Rank2<5, 2>>(s).irfft()),
        "selective_scan" => plain(x::<Rank2<4, 3>>(s).selective_scan(v, w, x(s))),
        "dropout" => plain(v.dropout(0.5)),
        _ => return None,
    })
}

/// Of every name: with shapes in types it has the same bits.
#[test]
fn every_known_name_has_a_form_with_its_shapes_in_types() {
    let mut wrong = Vec::new();
    for (name, method, _) in KNOWN {
        let (s, other) = (Session::eager(&device()), Session::eager(&device()));
        match (typed_call(&s, method), call(&other, method)) {
            (Some(Ok(typed)), Some(Ok(plain))) => {
                let bits = |v: Var<'_>| {
                    v.value::<f32>().unwrap().data().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                let one_image = plain.shape().unwrap().dims().strip_prefix(&[1]).map(<[usize]>::to_vec);
                let shapes = (typed.shape().unwrap(), plain.shape().unwrap());
                if shapes.0 != shapes.1 && one_image.as_deref() != Some(shapes.0.dims()) {
                    wrong.push(format!("{name}: {method} has shape {}, not {}", shapes.0, shapes.1));
                } else if bits(typed) != bits(plain) {
                    wrong.push(format!("{name}: {method} has other bits"));
                }
            }
            (typed, _) => wrong.push(format!("{name}: {method} gives {typed:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The names of TorchLean's runtime, by module.
const NAMES: [(&str, &[&str]); 5] = [
    (
        "buffer",
        &[
            "setDeterministicReductionsRaw",
            "getDeterministicReductionsRaw",
            "setDeterministicReductionsCheckedRaw",
            "setDeterministicReductionsChecked",
            "setDeterministicReductions",
            "getDeterministicReductions",
            "allocatorLiveBytesRaw",
            "allocatorPeakBytesRaw",
            "allocatorAllocCountRaw",
            "allocatorFreeCountRaw",
            "allocatorDeviceFreeBytesRaw",
            "allocatorDeviceTotalBytesRaw",
            "AllocatorStats",
            "AllocatorStats.liveBytes",
            "AllocatorStats.peakBytes",
            "AllocatorStats.allocCount",
            "AllocatorStats.freeCount",
            "AllocatorStats.deviceFreeBytes",
            "AllocatorStats.deviceTotalBytes",
            "allocatorStatsWithToken",
            "allocatorStats",
            "mibString",
            "AllocatorStats.format",
            "ofFloatArray",
            "ofFloatArrayWithToken",
            "ofFloatArrayIO",
            "toFloatArray",
            "Buffer.size",
            "release",
            "releaseThen",
            "releaseManyThen",
            "WithWorkspace",
            "WithWorkspace.value",
            "WithWorkspace.workspace",
            "releaseWorkspaceThen",
            "releaseAllThen",
            "collectAllocatorRaw",
            "collectAllocator",
            "zeros",
            "full",
            "randUniform",
            "bernoulliMask",
            "abs",
            "absBwd",
            "sqrt",
            "sqrtBwd",
            "exp",
            "log",
            "inv",
            "clamp",
            "clampBwd",
            "max",
            "maxBwd",
            "min",
            "minBwd",
            "div",
            "relu",
            "reluBwd",
            "add",
            "sub",
            "mul",
            "scale",
            "Buffer.copy",
            "axpy",
            "Buffer.reduceSum",
            "Buffer.reduceMean",
        ],
    ),
    (
        "tape",
        &[
            "Result",
            "AnyBuffer",
            "AnyBuffer.s",
            "AnyBuffer.buf",
            "natToU32Checked",
            "AnyBuffer.numelU32",
            "AnyBuffer.zeros",
            "AnyBuffer.add",
            "Node",
            "Node.name",
            "Node.value",
            "Node.requires_grad",
            "Node.parents",
            "Node.cleanup",
            "Node.backward",
            "Tape",
            "Tape.nodes",
            "Tape.empty",
            "Tape.size",
            "getNode?",
            "getValue?",
            "addNode",
            "addNode_id",
            "size_addNode",
            "leaf",
            "requireValue",
            "requireGrad",
            "unary",
            "binary",
            "addGradAll",
            "backwardDenseFromStep",
            "backwardDenseFromLoop",
            "backwardDenseFrom",
            "backwardDenseAll",
        ],
    ),
    (
        "ops",
        &[
            "Ops.u32",
            "Ops.numelU32",
            "foldRowsColsLastAxis",
            "broadcastScalarToShape",
            "sigmoidBuf",
            "tanhBuf",
            "softplusBuf",
            "rowSoftmaxForward",
            "rowSoftmaxBwd",
            "rowLogSoftmaxForward",
            "rowLogSoftmaxBwd",
            "add",
            "sub",
            "mul",
            "scale",
            "abs",
            "sqrt",
            "clamp",
            "max",
            "min",
            "div",
            "relu",
            "exp",
            "log",
            "inv",
            "safeLog",
            "sigmoid",
            "tanh",
            "softplus",
            "sum",
            "flatten",
            "reshape",
            "transpose2d",
            "swapAdjacentAtDepth",
            "transpose3dFirstToLast",
            "transpose3dLastToFirst",
            "transpose3dLastTwo",
            "broadcastTo",
            "reduceSum",
            "reduceMean",
            "matmul",
            "bmm",
            "spectralConv1dRfft",
            "linear",
            "mseLoss",
            "concat1d",
            "concatVectors",
            "slice1d",
            "concatLeadingAxis",
            "sliceRange0",
            "gatherScalar",
            "gatherRow",
            "gatherScalarNat",
            "gatherVecNat",
            "gatherRowsNat",
            "scatterAddVec",
            "scatterAddRow",
            "conv2d",
            "convTranspose2d",
            "conv",
            "convTranspose",
            "maxPool2d",
            "maxPool2dPad",
            "maxPool",
            "smoothMaxPool2d",
            "smoothMaxPool2dPad",
            "smoothMaxPool",
            "avgPool2d",
            "avgPool2dPad",
            "avgPool",
            "layerNorm",
            "batchnormChannelFirst",
            "softmax",
            "logSoftmax",
            "multiHeadAttention",
        ],
    ),
    (
        "session",
        &[
            "TensorConv",
            "toAnyBuffer",
            "ofAnyBuffer",
            "toFloat",
            "axisMap",
            "Param",
            "syncParamCudaToHost",
            "setParamCudaValue",
            "setParamHostValue",
            "EagerSession",
            "EagerSession.opts",
            "EagerSession.tape",
            "EagerSession.cudaTape",
            "EagerSession.paramsByLeaf",
            "EagerSession.nats",
            "EagerSession.new",
            "releaseCudaBuffer",
            "releaseCudaAnyBuffer",
            "CudaGradMap",
            "releaseCudaTapeNonParamValues",
            "releaseCudaTapeAfterOptimizerStep",
            "releaseCudaAnyBufferArray",
            "releaseCudaGradMap",
            "checkCudaAnyBufferSize",
            "ownedCudaAnyBuffer",
            "collectCudaAllocator",
            "resetTape",
            "param",
            "getValue",
            "const",
            "detach",
            "randUniform",
            "bernoulliMask",
            "use",
            "input",
            "NatRef",
            "inputNat",
            "getNat",
            "setNat",
            "natVecToArray",
            "NatVecRef",
            "inputNatVec",
            "getNatVec",
            "setNatVec",
        ],
    ),
    (
        "compiled core",
        &[
            "GraphData",
            "TList",
            "compile",
            "compileAuxData",
            "outId",
            "checkedOutId",
            "backwardDenseAllFromOutput",
            "backwardDenseFromSeedCtx",
        ],
    ),
];

/// The names in the first column of the tables in the documentation of `torchlean`, with the rest of their rows.
fn documented() -> Vec<(String, String)> {
    let text = include_str!("../../src/torchlean.rs");
    let mut all = Vec::new();
    for row in text.lines().filter_map(|l| l.strip_prefix("//! | `")) {
        let (names, rest) = row.split_once("` | ").unwrap_or_else(|| panic!("{row}"));
        all.extend(names.split("`, `").map(|name| (name.to_string(), rest.to_string())));
    }
    all
}

/// Every name has a row in the documentation or is an operation in [`KNOWN`], and every row is about one of these names.
#[test]
fn every_name_is_documented_with_ours() {
    let rows = documented();
    let known = |name: &str| KNOWN.iter().any(|k| k.0 == name);
    for (module, names) in NAMES {
        for name in names {
            assert!(known(name) || rows.iter().any(|r| r.0 == *name), "{module}: {name} has no row");
        }
    }
    for (name, rest) in &rows {
        assert!(known(name) || NAMES.iter().any(|m| m.1.contains(&name.as_str())), "{name} is nobody's name");
        assert_eq!(rows.iter().filter(|r| r.0 == *name).count(), 1, "{name} has two rows");
        // What we have for it: an item that rustdoc finds, or words.
        assert!(rest.split(" | ").next().is_some_and(|ours| !ours.trim().is_empty()), "{name}: {rest}");
    }
}
