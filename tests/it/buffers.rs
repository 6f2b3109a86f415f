//! Values as memory of a device: copies that stay there.

use crate::support::{device, t};
use dittograd::HostDevice;
use dittograd::device::AnyBuffer;
use dittograd::device::cuda::fake::Fake;
use dittograd::error::ErrorKind;
use dittograd::prelude::*;
use dittograd::scalar::Ratio;

/// The copy of a value has memory of its own, the same elements, shape and type, on every device.
#[test]
fn copies_have_memory_of_their_own() {
    let fake = Fake::new();
    for d in [device(), Device::from_cuda(fake.open().unwrap()), Device::host::<f64>()] {
        let whole = AnyBuffer::upload(&d, &t(&[2, 3], &[1.0, -0.0, f32::NAN, 4.0, 5.0, 6.0])).unwrap();
        let row = whole.part(3, Shape::new(&[3]).unwrap()).unwrap();
        let index =
            AnyBuffer::upload_indices(&d, &Tensor::new(&[3], vec![7u32, u32::MAX, 0]).unwrap()).unwrap();
        let empty = AnyBuffer::zeros(&d, Shape::new(&[0, 2]).unwrap()).unwrap();
        for value in [&whole, &row, &index, &empty] {
            let copy = value.copy().unwrap();
            assert_eq!((copy.meta(), copy.bound()), (value.meta(), value.bound()));
            assert!(!copy.buffer().shares(value.buffer()) && copy.buffer().device().same(&d));
            assert_eq!(copy.to_string(), value.to_string(), "{d}");
        }
        let copy = whole.copy().unwrap();
        let bits = |b: &AnyBuffer| {
            b.to_tensor::<f32>().unwrap().data().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(bits(&copy), bits(&whole));
        whole.buffer().release();
        assert_eq!(copy.to_tensor::<f32>().unwrap().data()[3..], [4.0, 5.0, 6.0]);
        assert_eq!(*whole.copy().unwrap_err().kind(), ErrorKind::Released);
        d.fail_allocation(Some(1), false);
        assert!(matches!(copy.copy().unwrap_err().kind(), ErrorKind::OutOfMemory { .. }));
    }
}

#[test]
fn copies_on_cuda_are_one_call_that_nobody_waits_for() {
    let fake = Fake::new();
    let d = Device::from_cuda(fake.open().unwrap());
    let value = AnyBuffer::upload(&d, &t(&[4], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    let copies = || {
        let calls = fake.calls_by_symbol();
        let of = |part: &str| calls.iter().filter(|c| c.0.contains(part)).map(|c| c.1).sum::<u64>();
        (of("MemcpyDtoD"), of("MemcpyHtoD") + of("MemcpyDtoH"), fake.waits())
    };
    let before = copies();
    let copy = value.copy().unwrap();
    let same = value.to_device(&d).unwrap();
    assert_eq!(copies(), (before.0 + 2, before.1, before.2));
    assert_eq!(
        (copy.buffer().download().unwrap(), same.buffer().download().unwrap()),
        (vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0])
    );
}

/// Numbers of other types are copied as they are, not by way of `f64`.
#[test]
fn exact_fractions_are_copied_exactly() {
    let d = Device::host::<Ratio>();
    let third = Tensor::new(&[1], vec![Ratio::new(1, 3)]).unwrap();
    let value = AnyBuffer::upload(&d, &third).unwrap();
    assert_eq!(value.copy().unwrap().to_tensor::<Ratio>().unwrap(), third);
    assert_eq!(value.to_device(&Device::host::<Ratio>()).unwrap().to_tensor::<Ratio>().unwrap(), third);
}

/// Reductions have one order, on every device and in every mode.
#[test]
fn reductions_are_always_deterministic() {
    let fake = Fake::new();
    for d in [device(), Device::from_cuda(fake.open().unwrap()), Device::host::<f64>()] {
        assert!(d.deterministic_reductions() && dittograd::torchlean::get_deterministic_reductions(&d));
        for on in [true, false] {
            assert!(dittograd::torchlean::set_deterministic_reductions_checked(&d, on));
        }
    }
}
