//! Shape rules are total: any op on any inputs answers with a shape or an error, never a panic; and where
//! the answer is a shape, the kernel fills a value of that shape.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, DType, Device, Meta};
use dittograd::error::ErrorKind;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp};
use dittograd::shape::Shape;
use dittograd::tensor::Tensor;

fn random_meta(s: &mut Stream) -> Meta {
    const DIMS: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 5, 33];
    let rank = s.below(6);
    let dims: Vec<usize> = (0..rank).map(|_| DIMS[s.below(DIMS.len())]).collect();
    let shape = Shape::new(&dims).unwrap();
    if s.below(6) == 0 { Meta::u32(shape) } else { Meta::f32(shape) }
}

/// Metas near those of a sample, so that some of them fit: one is replaced, dropped, doubled or kept.
fn mutated(metas: &[Meta], s: &mut Stream) -> Vec<Meta> {
    let mut metas = metas.to_vec();
    let at = s.below(metas.len().max(1));
    match s.below(5) {
        0 if at < metas.len() => metas[at] = random_meta(s),
        1 if at < metas.len() => drop(metas.remove(at)),
        2 => metas.push(random_meta(s)),
        3 => metas = (0..s.below(4)).map(|_| random_meta(s)).collect(),
        _ => {}
    }
    metas
}

#[test]
fn any_inputs_give_a_shape_or_an_error() {
    let d = Device::cpu_with(2, Simd::best()).unwrap();
    let mut s = Stream::new(77, 0);
    let (mut fitted, mut refused) = (0, 0);
    for name in AnyOp::NAMES {
        let samples = AnyOp::samples(name);
        for _ in 0..150 {
            let sample = &samples[s.below(samples.len())];
            let metas: Vec<Meta> = sample.ins.iter().map(|i| i.meta()).collect();
            let metas = mutated(&metas, &mut s);
            let Ok(out) = sample.op.shape(&metas) else {
                refused += 1;
                continue;
            };
            if out.shape.numel() > 20_000 || metas.iter().any(|m| m.shape.numel() > 20_000) {
                continue;
            }
            let buffers: Vec<AnyBuffer> = metas
                .iter()
                .map(|m| match m.dtype {
                    DType::F32 => {
                        let t = Tensor::from_fn(m.shape, |_| s.range(-1.0, 1.0));
                        AnyBuffer::upload(&d, &t).unwrap()
                    }
                    DType::U32 => AnyBuffer::upload_indices(&d, &Tensor::full(m.shape, 0)).unwrap(),
                })
                .collect();
            let ins: Vec<&AnyBuffer> = buffers.iter().collect();
            let value = ops::apply(&d, &sample.op, &ins);
            // No index lies in an axis without elements.
            if matches!(&value, Err(e) if matches!(e.kind(), ErrorKind::Index { .. })) {
                refused += 1;
                continue;
            }
            let value = value.unwrap_or_else(|e| panic!("{:?} on {metas:?}: {e}", sample.op));
            assert_eq!(value.meta(), out, "{:?} on {metas:?}", sample.op);
            fitted += 1;
        }
    }
    assert!(fitted > 1500 && refused > 1500, "{fitted} fitted, {refused} refused");
    assert_eq!(d.memory().live, 0);
}
