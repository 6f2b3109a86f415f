//! Every operation that TorchLean has is there under a recognisable name. That the methods exist is checked by the compiler.

use crate::support::{device, fractions};
use dittograd::ops::AnyOp;
use dittograd::ops::conv::ConvWindow;
use dittograd::ops::layout::AxisMap;
use dittograd::prelude::*;
use dittograd::session::AttentionOptions;
use dittograd::torchlean::*;

macro_rules! methods {
    ($($name:literal $method:ident $op:ident;)*) => {{
        $(let _ = Var::$method;)*
        [$($name),*].len()
    }};
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
