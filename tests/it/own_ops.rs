//! Ops that are not in the library's list: they are trained, compiled, written as text and checked as those of the list are.

use crate::support::{data, device, f, t};
use dittograd::device::{DType, Meta};
use dittograd::graph::Graph;
use dittograd::ops::{CudaKernel, Custom, Io, Op, Recorder, Val, register};
use dittograd::prelude::*;
use dittograd::scalar::{Real, Scalar};
use dittograd_check::{self as check, Bound, Cases, Property, Reject, Sample, SampleIn, Subject};

#[path = "../../examples/14_own_op.rs"]
#[allow(dead_code)]
mod example;
use example::{RoundThrough, SecondDifference, train};

impl Cases for SecondDifference {
    fn samples() -> Vec<Sample> {
        let shapes = [&[1][..], &[0], &[7], &[3, 0], &[2, 3], &[33, 65], &[2, 3, 256]];
        let sample = |d: &&[usize]| {
            Sample::new(Custom::new(SecondDifference).unwrap(), vec![SampleIn::any(Shape::new(d).unwrap())])
        };
        shapes.iter().map(sample).collect()
    }

    fn rejects() -> Vec<Reject> {
        let reject = |ins| Reject::new(Custom::new(SecondDifference).unwrap(), ins, "Argument");
        let indices = Meta { dtype: DType::U32, ..f(&[3]) };
        vec![reject(vec![]), reject(vec![f(&[2]), f(&[2])]), reject(vec![f(&[])]), reject(vec![indices])]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 0.0, terms: 2.0 }
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }
}

#[test]
fn an_own_op_is_held_to_every_property() {
    let subject = Subject::of::<SecondDifference>().unwrap();
    let mut devices = check::cpu_devices().unwrap();
    let gpu = check::gpu();
    devices.extend(gpu.as_ref().map(|g| g.1.clone()));
    for property in Property::ALL {
        let each: Vec<&[Device]> =
            if property.is_per_device() { devices.chunks(1).collect() } else { vec![&devices] };
        for on in each {
            let report = property.check(&subject, on).unwrap_or_else(|failure| panic!("{failure}"));
            println!("{report}");
            assert!(report.cases > 0, "{report}");
        }
    }
}

/// A kernel that is not what the definition says.
#[derive(Clone, Debug, PartialEq)]
struct Wrong;

impl Op for Wrong {
    const NAME: &'static str = "wrong_negation";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(ins[0])
    }

    fn cpu(&self, run: dittograd::ops::CpuRun<'_>) {
        run.out.copy_from_slice(run.ins[0]);
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        Ok(ins[0].num()?.map(|x| -x))
    }
}

impl Cases for Wrong {
    fn samples() -> Vec<Sample> {
        vec![Sample::new(Custom::new(Wrong).unwrap(), vec![SampleIn::any(Shape::new(&[5]).unwrap())])]
    }

    fn rejects() -> Vec<Reject> {
        Vec::new()
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

#[test]
fn the_checks_find_a_wrong_kernel_and_a_missing_rule() {
    let subject = Subject::of::<Wrong>().unwrap();
    let failure = check::forward(&subject, &device()).unwrap_err().to_string();
    assert!(failure.starts_with("wrong_negation::forward failed"), "{failure}");
    let failure = check::gradient(&subject).unwrap_err().to_string();
    assert!(failure.contains("it has no rule; give it `vjp`"), "{failure}");
}

/// A device whose driver is ours: everything but the kernels themselves is as on a GPU.
fn fake() -> Device {
    Device::from_cuda(dittograd::device::cuda::fake::Fake::computing(1, 1 << 26).open_at(0).unwrap())
}

#[test]
fn own_ops_train_to_one_fingerprint_eager_and_compiled_on_every_device() {
    let gpu = check::gpu();
    let want = train(&device(), false).unwrap();
    let devices =
        check::all_cpus().unwrap().iter().cloned().chain([fake()]).chain(gpu.as_ref().map(|g| g.1.clone()));
    for d in devices {
        for is_compiled in [false, true] {
            assert_eq!(train(&d, is_compiled).unwrap(), want, "{d}, compiled {is_compiled}");
        }
    }
}

#[test]
fn a_program_with_an_own_op_is_read_from_its_text() {
    let d = device();
    let graph =
        Graph::trace(&d, &[f(&[2, 4])], |s, x| Ok(vec![s.custom(&SecondDifference, &[x[0].exp()?])?]))
            .unwrap();
    let text = graph.text().unwrap();
    assert!(text.contains("second_difference"), "{text}");
    register::<SecondDifference>().unwrap();
    let read = Graph::parse(&text).unwrap();
    assert_eq!(read.text().unwrap(), text);
    let x: AnyTensor<f32> = t(&[2, 4], &[0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -2.0, 0.25]).into();
    assert_eq!(read.run(&d, std::slice::from_ref(&x)).unwrap(), graph.run(&d, &[x]).unwrap());
    // One that cannot be read says what it lacks, and one that nobody registered what it is not.
    let e = Graph::parse(&text.replace("second_difference", "nobodys_op")).unwrap_err().to_string();
    assert!(e.contains("`nobodys_op` is not an op"), "{e}");
    register::<RoundThrough>().unwrap();
    let e = Graph::parse(&text.replace("second_difference", "round_through")).unwrap_err().to_string();
    assert!(e.contains("give it `attrs` and `from_attrs`"), "{e}");
}

#[test]
fn other_numbers_than_float32() {
    let s = Session::eager(&Device::host::<f64>());
    let x = s.variable(&Tensor::new(&[3], vec![0.25f64, 1.5, -3.0]).unwrap()).unwrap();
    let y = s.custom(&SecondDifference, &[x]).unwrap();
    assert_eq!(y.value::<f64>().unwrap().data(), [1.0, -5.75, 7.5]);
    assert_eq!(s.grad(y.sum().unwrap(), &[x]).unwrap()[0].value::<f64>().unwrap().data(), [-1.0, 0.0, -1.0]);
}

macro_rules! named {
    ($type:ident, $name:literal) => {
        #[derive(Clone, Debug, PartialEq)]
        struct $type;

        impl Op for $type {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                Ok(ins[0])
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                Ok(ins[0].num()?.clone())
            }
        }
    };
}
named!(Taken, "relu");
named!(NoName, "My Op");
named!(Twice, "second_difference");
named!(Plain, "plain_copy");

#[test]
fn names_that_cannot_be() {
    let refused = |e: Result<Custom>, what: &str| {
        let e = e.unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    };
    register::<SecondDifference>().unwrap();
    refused(Custom::new(Taken), "`relu` is an op of the library");
    refused(Custom::new(NoName), "`My Op` is no name");
    refused(Custom::new(Twice), "`second_difference` is the name of another type of op");
}

#[test]
fn what_an_op_does_not_have_is_named() {
    let s = Session::eager(&device());
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    let y = s.custom(&Plain, &[x]).unwrap();
    assert_eq!(data(y), [1.0, 2.0]);
    let e = y.sum().unwrap().backward().unwrap_err().to_string();
    assert!(e.contains("plain_copy") && e.contains("give it `vjp`"), "{e}");
    let s = Session::eager(&fake());
    let e = s.custom(&Plain, &[s.input(&t(&[2], &[1.0, 2.0])).unwrap()]).unwrap_err().to_string();
    assert!(e.contains("plain_copy") && e.contains("give it `cuda_kernel`"), "{e}");
}

/// A rule that gives other gradients than there are inputs, or of another shape.
#[derive(Clone, Debug, PartialEq)]
struct BadRule {
    count: usize,
}

impl Op for BadRule {
    const NAME: &'static str = "bad_rule";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta { shape: Shape::SCALAR, ..ins[0] })
    }

    fn vjp(&self, _: &mut dyn Recorder, _: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(dy); self.count])
    }

    fn reference<T: Scalar>(&self, _: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        Ok(Tensor::scalar(T::c(1.0)))
    }
}

#[test]
fn a_rule_that_does_not_fit_is_named() {
    let s = Session::eager(&device());
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    for (count, says) in [(2, "`vjp` gave 2 gradients for 1 inputs"), (1, "a gradient of another shape")] {
        let e = s.custom(&BadRule { count }, &[x]).unwrap().backward_retain().unwrap_err().to_string();
        assert!(e.starts_with("bad_rule: ") && e.contains(says), "{e}");
    }
    assert_eq!(CudaKernel::for_each("", "f", 1 << 32), None);
}

#[test]
fn a_formula_is_one_op_with_a_gradient() {
    let s = Session::eager(&device());
    let x = s.variable(&t(&[2, 3], &[0.5, -1.0, 2.0, 0.0, 1.0, -3.0])).unwrap();
    let b = s.variable(&t(&[3], &[1.0, 2.0, -1.0])).unwrap();
    let formula = s.pointwise(&[x, b], |v| v[0].tanh() * v[1]).unwrap();
    let composed = x.tanh().unwrap().mul(b).unwrap();
    assert_eq!(data(formula), data(composed));
    for of in [x, b] {
        let grad = |y: Var<'_>| data(s.grad(y.sum().unwrap(), &[of]).unwrap()[0]);
        let (got, want) = (grad(formula), grad(composed));
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?} {want:?}");
    }
    let wide = s.input(&t(&[2], &[1.0, 2.0])).unwrap();
    let e = s.pointwise(&[x, wide], |v| v[0] + v[1]).unwrap_err().to_string();
    assert!(e.contains("[2, 3]") && e.contains("[2]"), "{e}");
}

#[test]
fn kernels_compile() {
    let nvrtc = match dittograd::device::cuda::Nvrtc::open() {
        Ok(nvrtc) => nvrtc,
        Err(why) => {
            eprintln!("skipped: compiling the kernels of own ops: {why}");
            return;
        }
    };
    let metas = [f(&[4, 33])];
    let gpu =
        dittograd::ops::Gpu { sm_count: 132, shared: 227 << 10, numerics: Default::default(), hopper: true };
    for op in [Custom::new(SecondDifference).unwrap(), Custom::new(RoundThrough).unwrap()] {
        let op = dittograd::ops::AnyOp::from(op);
        let modules = op.cuda_modules(&metas, &gpu);
        assert_eq!(modules.len(), 1);
        for (name, source) in modules {
            nvrtc.compile(&name, source, "sm_90").unwrap();
        }
    }
    let wrong = CudaKernel::for_each("this is no kernel", "f", 3).unwrap();
    assert!(nvrtc.compile("wrong", Box::leak(wrong.source.into_boxed_str()), "sm_90").is_err());
}
