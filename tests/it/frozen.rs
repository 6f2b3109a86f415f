//! The bits of every op, frozen: a change of any of them is a change of the contract, for which there are
//! `NUMERICS_VERSION` and `NUMERICS.md`. To accept one, run the test with `DITTOGRAD_BLESS=1` and commit what it wrote.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, Device};
use dittograd::numerics::NUMERICS_VERSION;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, RefIn};

/// Elements above which a sample is left to the other tests.
const MOST: usize = 1 << 15;

/// A hash of the values of all samples of an op: FNV over their words, a NaN being one word.
fn hash(device: &Device, name: &str) -> u64 {
    let (mut stream, mut hash) = (Stream::new(2024, 5), 0xcbf2_9ce4_8422_2325u64);
    let mut add = |word: u32| hash = (hash ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    for sample in AnyOp::samples(name) {
        let ins = ops::draw(&sample.ins, &mut stream);
        if ins.iter().any(|i| i.meta().shape.numel() > MOST) {
            continue;
        }
        let upload = |i: &RefIn<f32>| match i {
            RefIn::Num(t) => AnyBuffer::upload(device, t).unwrap(),
            RefIn::Idx(t) => AnyBuffer::upload_indices(device, t).unwrap(),
        };
        let buffers: Vec<AnyBuffer> = ins.iter().map(upload).collect();
        let value = ops::apply(device, &sample.op, &buffers.iter().collect::<Vec<_>>()).unwrap();
        value.shape().dims().iter().for_each(|&d| add(d as u32));
        match value.to_indices() {
            Ok(indices) => indices.data().iter().for_each(|&i| add(i)),
            Err(_) => {
                let numbers = value.to_tensor::<f32>().unwrap();
                let bits = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
                numbers.data().iter().for_each(|x| add(bits(x)));
            }
        }
    }
    hash
}

#[test]
fn no_bit_of_any_op_changes() {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    let path = format!("{}/tests/golden/bits.txt", env!("CARGO_MANIFEST_DIR"));
    let lines = AnyOp::NAMES.iter().map(|name| format!("{name} {:016x}\n", hash(&device, name)));
    let text = format!("numerics {NUMERICS_VERSION}\n{}", lines.collect::<String>());
    if std::env::var_os("DITTOGRAD_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<&str> = text.lines().filter(|line| !want.lines().any(|w| w == *line)).collect();
    assert!(
        changed.is_empty() && want.lines().count() == text.lines().count(),
        "other bits than in {path}: {changed:?}; if that is meant, it is a new NUMERICS_VERSION, a line in NUMERICS.md \
         and DITTOGRAD_BLESS=1"
    );
}
