//! The bits of every op, frozen: a change of any of them is a change of the contract, for which there are
//! `NUMERICS_VERSION` and `NUMERICS.md`. To accept one, run the test with `DITTOGRAD_BLESS=1` and commit what it wrote.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, Device};
use dittograd::numerics::NUMERICS_VERSION;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, AnyTensor, Sample};

/// Elements above which a sample is left to the other tests.
const MOST: usize = 1 << 15;

/// FNV over words.
pub(crate) struct Fnv(pub u64);

impl Fnv {
    pub(crate) fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, word: u32) {
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x0100_0000_01b3);
    }
}

/// A hash of the values of all samples of an op, a NaN being one word.
fn hash(device: &Device, name: &str) -> u64 {
    hash_of(device, AnyOp::samples(name))
}

fn hash_of(device: &Device, samples: Vec<Sample>) -> u64 {
    let (mut stream, mut hash) = (Stream::new(2024, 5), Fnv::new());
    let mut add = |word: u32| hash.add(word);
    for sample in samples {
        let ins = ops::draw(&sample.ins, &mut stream).unwrap();
        if ins.iter().any(|i| i.meta().shape.numel() > MOST) {
            continue;
        }
        let upload = |i: &AnyTensor<f32>| match i {
            AnyTensor::Num(t) => AnyBuffer::upload(device, t).unwrap(),
            AnyTensor::Idx(t) => AnyBuffer::upload_indices(device, t).unwrap(),
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
    hash.0
}

/// Compares lines with those of a file in `tests/golden`, or writes it.
pub(crate) fn check(file: &str, text: &str, what_to_do: &str) {
    let path = format!("{}/tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("DITTOGRAD_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let changed: Vec<&str> = text.lines().filter(|line| !want.lines().any(|w| w == *line)).collect();
    let same = changed.is_empty() && want.lines().count() == text.lines().count();
    assert!(same, "not as in {path}: {changed:?}; if that is meant, {what_to_do} and DITTOGRAD_BLESS=1");
}

#[test]
fn no_bit_of_any_op_changes() {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    let lines = AnyOp::NAMES.iter().map(|name| format!("{name} {:016x}\n", hash(&device, name)));
    let text = format!("numerics {NUMERICS_VERSION}\n{}", lines.collect::<String>());
    check("bits.txt", &text, "it is a new NUMERICS_VERSION, a line in NUMERICS.md");
}

/// Epilogues, prologues and reductions with both were three ops once; their bits are as they were.
#[test]
fn fused_ops_have_the_bits_of_the_ops_they_were() {
    let device = Device::cpu_with(2, Simd::best()).unwrap();
    let samples = AnyOp::samples("fused");
    let has = |s: &Sample, name| s.op.attrs().iter().any(|(n, _)| *n == name);
    let only_prologue = |s: &Sample| has(s, "prologue") && !has(s, "epilogue");
    let first = samples.iter().position(only_prologue).unwrap();
    let second = first + samples[first..].iter().position(|s| !only_prologue(s)).unwrap();
    // The last two are newer.
    let parts = [&samples[..first], &samples[first..second], &samples[second..samples.len() - 2]];
    let want = [0x8e4d_17f1_c986_e8bd, 0x309b_6569_5f8d_aeb7, 0x45ab_d434_9849_0458];
    assert_eq!(parts.map(|part| hash_of(&device, part.to_vec())), want);
}
