//! What every op refuses, made from its samples: inputs of the other element type, too few or too many of them, and shapes that
//! are off by a little. The kernels trust the shape rule, so what it lets pass must be computed as the definition says.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, DType, Device, Meta};
use dittograd::error::{Error, ErrorKind};
use dittograd::ops::{self, AnyOp, AnyTensor, Sample, layout};
use dittograd::shape::{MAX_RANK, Shape};
use dittograd::tensor::Tensor;

fn metas(sample: &Sample) -> Vec<Meta> {
    sample.ins.iter().map(|i| i.meta()).collect()
}

#[test]
fn an_input_of_the_other_type_is_refused_by_its_number() {
    for name in AnyOp::NAMES {
        for sample in AnyOp::samples(name) {
            let fit = metas(&sample);
            for i in 0..fit.len() {
                let mut wrong = fit.clone();
                wrong[i].dtype = if fit[i].dtype == DType::F32 { DType::U32 } else { DType::F32 };
                match sample.op.shape(&wrong) {
                    Err(e) => {
                        // Ops made of others may speak of the inputs of these, and a list of the first that differs.
                        let joined = ["fused", "concat"].contains(name);
                        let named =
                            matches!(e.kind(), ErrorKind::DType { input, .. } if *input == i || joined);
                        assert!(named, "{name}, input {i}: {e}");
                    }
                    // Some ops move elements of either type, and masks are numbers or marks.
                    Ok(meta) => {
                        let moved = i == 0 && meta.dtype == wrong[0].dtype;
                        let known =
                            |s: &Sample| s.ins.get(i).is_some_and(|m| m.meta().dtype == wrong[i].dtype);
                        assert!(moved || AnyOp::samples(name).iter().any(known), "{name}, input {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn too_few_and_too_many_inputs_are_refused() {
    // Ops that take any number of inputs, or as many as the op inside.
    const ANY: [&str; 3] = ["concat", "global_norm", "fused"];
    for name in AnyOp::NAMES.iter().filter(|n| !ANY.contains(n)) {
        let samples = AnyOp::samples(name);
        let arity = |e: Error| matches!(e.kind(), ErrorKind::Arity { .. });
        for sample in &samples {
            let fit = metas(sample);
            let least = samples.iter().map(|s| s.ins.len()).min().unwrap_or(0);
            let most = samples.iter().map(|s| s.ins.len()).max().unwrap_or(0);
            for count in 0..least.min(fit.len()) {
                if let Err(e) = sample.op.shape(&fit[..count]) {
                    assert!(arity(e.clone()), "{name} of {count}: {e}");
                } else {
                    // An input that may be left out.
                    assert!(count + 1 >= least, "{name} of {count}");
                }
            }
            let mut more = fit.clone();
            more.resize(most + 2, Meta::f32(Shape::SCALAR));
            let e = sample.op.shape(&more).expect_err(name);
            assert!(arity(e.clone()), "{name} of {}: {e}", more.len());
        }
    }
}

/// Shapes in which one size of one input is one more or one less. Where they are accepted, the value is that of the definition.
#[test]
fn sizes_that_are_off_by_one_are_refused_or_computed() {
    let d = Device::cpu_with(1, Simd::best()).unwrap();
    let (mut refused, mut computed) = (0, 0);
    for name in AnyOp::NAMES {
        for sample in AnyOp::samples(name) {
            let fit = metas(&sample);
            if fit.iter().any(|m| m.shape.numel() > 300) {
                continue;
            }
            for (i, axis) in (0..fit.len()).flat_map(|i| (0..fit[i].shape.rank()).map(move |a| (i, a))) {
                for more in [true, false] {
                    let mut dims = fit[i].shape.dims().to_vec();
                    let Some(size) = (if more { Some(dims[axis] + 1) } else { dims[axis].checked_sub(1) })
                    else {
                        continue;
                    };
                    dims[axis] = size;
                    let mut other = fit.clone();
                    other[i].shape = Shape::new(&dims).unwrap();
                    let Ok(meta) = sample.op.shape(&other) else {
                        refused += 1;
                        continue;
                    };
                    computed += 1;
                    let ins: Vec<AnyTensor<f32>> = other
                        .iter()
                        .map(|m| match m.dtype {
                            DType::F32 => Tensor::from_fn(m.shape, |k| 0.25 + (k % 5) as f32 * 0.125).into(),
                            DType::U32 => AnyTensor::Idx(Tensor::full(m.shape, 0)),
                        })
                        .collect();
                    let buffers: Vec<AnyBuffer> = ins
                        .iter()
                        .map(|i| match i {
                            AnyTensor::Num(t) => AnyBuffer::upload(&d, t).unwrap(),
                            AnyTensor::Idx(t) => AnyBuffer::upload_indices(&d, t).unwrap(),
                        })
                        .collect();
                    let got = ops::apply(&d, &sample.op, &buffers.iter().collect::<Vec<_>>());
                    let Ok(got) = got else { continue };
                    assert_eq!(got.meta(), meta, "{name} of {other:?}");
                    let want = sample.op.reference(&ins).unwrap();
                    assert_eq!(want.shape(), meta.shape, "{name} of {other:?}");
                }
            }
        }
    }
    assert!(refused > 1000 && computed > 1000, "{refused} refused, {computed} computed");
}

#[test]
fn shapes_of_the_most_axes_are_computed() {
    let d = Device::cpu_with(1, Simd::best()).unwrap();
    let shape = Shape::new(&[1, 2, 1, 2, 1, 1, 3, 1, 2, 1]).unwrap();
    assert_eq!(shape.rank(), MAX_RANK);
    let x = AnyBuffer::upload(&d, &Tensor::from_fn(shape, |i| i as f32)).unwrap();
    let back: Vec<usize> = (0..MAX_RANK).rev().collect();
    let turn = AnyOp::from(layout::Permute { order: back.clone() });
    let turned = ops::apply(&d, &turn, &[&x]).unwrap();
    assert_eq!(turned.shape().dims(), back.iter().map(|&a| shape.dims()[a]).collect::<Vec<_>>());
    let again = ops::apply(&d, &turn, &[&turned]).unwrap();
    assert_eq!(again.to_tensor::<f32>().unwrap(), x.to_tensor::<f32>().unwrap());
}
