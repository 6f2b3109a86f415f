//! The models: names and shapes of their parameters, outputs and gradients as PyTorch's, eager and compiled steps with
//! the same bits.

use super::support::{data, device, t};
use super::table::gpu;
use dittograd::prelude::*;
use serde_json::Value;

/// Element `i` of tensor `k`, as in `tests/golden/models.py`.
fn fill(dims: &[usize], k: usize) -> Tensor<f32> {
    let one = |i: usize| ((37 * i + i * i / 7 + 11 * k) % 101) as f32 - 50.0;
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| one(i) / 128.0)
}

fn whole(dims: &[usize], k: usize, below: usize) -> Tensor<u32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| ((5 * i + i * i / 3 + k) % below) as u32)
}

/// Any of the models, with tiny sizes.
enum Net {
    Mlp(Mlp),
    Cnn(Box<Cnn>),
    Fno1d(Fno1d),
    Gpt(Gpt),
}

const NAMES: [&str; 4] = ["mlp", "cnn", "fno1d", "gpt"];

impl Net {
    fn new(name: &str, params: &mut Params, dropout: f64) -> Net {
        match name {
            "mlp" => Net::Mlp(Mlp::new(params, &[5, 7, 3]).unwrap()),
            "cnn" => {
                let config = CnnConfig { channels: 2, image: [6, 5], widths: [3, 4, 5], classes: 3 };
                Net::Cnn(Box::new(Cnn::new(params, config).unwrap()))
            }
            "fno1d" => {
                let config = Fno1dConfig { inputs: 2, outputs: 1, width: 4, modes: 3, layers: 2, hidden: 5 };
                Net::Fno1d(Fno1d::new(params, config).unwrap())
            }
            _ => {
                let config = GptConfig { vocab: 7, context: 5, width: 4, heads: 2, layers: 2, dropout };
                Net::Gpt(Gpt::new(params, config).unwrap())
            }
        }
    }

    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        match self {
            Net::Mlp(net) => net.forward(x),
            Net::Cnn(net) => net.forward(x),
            Net::Fno1d(net) => net.forward(x),
            Net::Gpt(net) => net.forward(x),
        }
    }

    fn loss<'s>(&self, out: Var<'s>, y: Var<'s>) -> Result<Var<'s>> {
        if let Net::Fno1d(_) = self { out.mse(y) } else { out.cross_entropy(y) }
    }
}

/// Inputs and targets.
enum Data {
    Num(Tensor<f32>),
    Idx(Tensor<u32>),
}

impl Data {
    fn of(name: &str) -> [Data; 2] {
        match name {
            "mlp" => [Data::Num(fill(&[4, 5], 90)), Data::Idx(whole(&[4], 1, 3))],
            "cnn" => [Data::Num(fill(&[2, 2, 6, 5], 90)), Data::Idx(whole(&[2], 1, 3))],
            "fno1d" => {
                let x = fill(&[2, 9, 2], 90);
                let x = Tensor::from_fn(x.shape(), |i| 8.0 * x.data()[i]);
                [Data::Num(x), Data::Num(fill(&[2, 9, 1], 91))]
            }
            _ => [Data::Idx(whole(&[3, 4], 0, 7)), Data::Idx(whole(&[3, 4], 3, 7))],
        }
    }

    fn var<'s>(&self, s: &'s Session) -> Var<'s> {
        match self {
            Data::Num(t) => s.input(t).unwrap(),
            Data::Idx(t) => s.labels(t).unwrap(),
        }
    }

    fn batch(&self) -> Batch<'_> {
        match self {
            Data::Num(t) => t.into(),
            Data::Idx(t) => t.into(),
        }
    }
}

fn golden(name: &str) -> Value {
    let all = include_str!("../golden/models.jsonl").lines();
    let all = all.map(|l| serde_json::from_str::<Value>(l).unwrap());
    all.into_iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no case {name}"))
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Errors relative to the largest element: one that cancels has no digits of its own.
fn agree(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(0.0, |m: f64, w| m.max(w.abs()));
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * size, "{what}: element {at} is {g}, PyTorch has {w}");
    }
}

fn like_pytorch(device: &Device, tolerance: f64) {
    for name in NAMES {
        let golden = golden(name);
        let mut params = Params::new(device, 1);
        let net = Net::new(name, &mut params, 0.0);
        for (k, p) in params.iter().enumerate() {
            p.set(&fill(p.shape().dims(), k)).unwrap();
        }
        let session = Session::eager(device);
        let [x, y] = Data::of(name);
        let out = net.forward(x.var(&session)).unwrap();
        let loss = net.loss(out, y.var(&session)).unwrap();
        agree(name, out.value::<f64>().unwrap().data(), &numbers(&golden["out"]), tolerance);
        agree(name, loss.value::<f64>().unwrap().data(), &[golden["loss"].as_f64().unwrap()], tolerance);
        let grads = loss.backward().unwrap();
        for (p, want) in params.iter().zip(golden["params"].as_array().unwrap()) {
            let got = grads.param(p).unwrap().to_tensor::<f64>().unwrap();
            let label = format!("{name} {} on {device}", p.name());
            agree(&label, got.data(), &numbers(&want["grad"]), tolerance);
        }
    }
}

#[test]
fn outputs_and_gradients_are_those_of_pytorch() {
    like_pytorch(&device(), 1e-5);
    like_pytorch(&Device::host::<f64>(), 1e-6);
}

#[test]
fn cuda_has_the_outputs_and_gradients_of_pytorch() {
    if let Some((_turn, gpu)) = gpu() {
        like_pytorch(&gpu, 1e-5);
    }
}

#[test]
fn parameters_have_the_names_and_shapes_of_pytorch() {
    for name in NAMES {
        let golden = golden(name);
        let mut params = Params::new(&device(), 1);
        Net::new(name, &mut params, 0.0);
        let got: Vec<(&str, Vec<u64>)> =
            params.iter().map(|p| (p.name(), p.shape().dims().iter().map(|&d| d as u64).collect())).collect();
        let shape = |v: &Value| v.as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        let parts = golden["params"].as_array().unwrap().iter();
        let want: Vec<(&str, Vec<u64>)> =
            parts.map(|v| (v["name"].as_str().unwrap(), shape(&v["shape"]))).collect();
        // The order too: it is what initial draws depend on.
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn full_sizes_have_the_usual_numbers_of_parameters() {
    let d = device();
    let count = |make: &dyn Fn(&mut Params)| {
        let mut params = Params::new(&d, 1);
        make(&mut params);
        params.numel()
    };
    assert_eq!(count(&|p| drop(Cnn::new(p, CnnConfig::default()).unwrap())), 175_178);
    assert_eq!(count(&|p| drop(Fno1d::new(p, Fno1dConfig::default()).unwrap())), 549_569);
    let config = GptConfig { vocab: 65, context: 256, width: 384, heads: 6, layers: 6, dropout: 0.0 };
    assert_eq!(count(&|p| drop(Gpt::new(p, config).unwrap())), 10_770_816);
}

fn fingerprint(d: &Device, name: &str, dropout: f64, compiled: bool) -> String {
    let mut params = Params::new(d, 3);
    let net = Net::new(name, &mut params, dropout);
    let data = Data::of(name);
    if compiled {
        let mut step =
            TrainStep::new(&params, Optimizer::adamw(0.01), |v| net.loss(net.forward(v[0])?, v[1])).seeded(6);
        for _ in 0..3 {
            step.run(&[data[0].batch(), data[1].batch()]).unwrap();
        }
    } else {
        let session = Session::eager_seeded(d, 6);
        let mut optimizer = Optimizer::adamw(0.01);
        for _ in 0..3 {
            let loss = net.loss(net.forward(data[0].var(&session)).unwrap(), data[1].var(&session)).unwrap();
            optimizer.step(&params, loss.backward().unwrap()).unwrap();
            session.reset();
        }
    }
    params.fingerprint().unwrap()
}

#[test]
fn eager_and_compiled_steps_have_the_same_bits() {
    let d = device();
    for (name, dropout) in NAMES.map(|n| (n, 0.0)).into_iter().chain([("gpt", 0.25)]) {
        assert_eq!(fingerprint(&d, name, dropout, false), fingerprint(&d, name, dropout, true), "{name}");
    }
    assert_ne!(fingerprint(&d, "gpt", 0.25, true), fingerprint(&d, "gpt", 0.0, true));
}

#[test]
fn cuda_steps_have_the_bits_of_the_cpu() {
    if let Some((_turn, gpu)) = gpu() {
        for (name, dropout) in NAMES.map(|n| (n, 0.0)).into_iter().chain([("gpt", 0.25)]) {
            let want = fingerprint(&device(), name, dropout, true);
            assert_eq!(fingerprint(&gpu, name, dropout, false), want, "{name}, eager");
            assert_eq!(fingerprint(&gpu, name, dropout, true), want, "{name}, compiled");
        }
    }
}

#[test]
fn dropout_acts_in_training_only() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let config = GptConfig { vocab: 7, context: 5, width: 4, heads: 2, layers: 1, dropout: 0.5 };
    let net = Gpt::new(&mut params, config).unwrap();
    let s = Session::eager_seeded(&d, 2);
    let x = s.labels(&whole(&[2, 5], 0, 7)).unwrap();
    let run = |net: &Gpt| data(net.forward(x).unwrap());
    assert_ne!(run(&net), run(&net));
    let eval = net.eval();
    let calls = s.random_calls();
    let before = run(&eval);
    assert_eq!(run(&eval), before);
    assert_eq!(s.random_calls(), calls);
    // The same parameters, not copies.
    params.get("ln.bias").unwrap().set(&t(&[4], &[1.0, -1.0, 2.0, 0.5])).unwrap();
    let s = Session::inference(&d);
    let run = |net: &Gpt| data(net.forward(s.labels(&whole(&[2, 5], 0, 7)).unwrap()).unwrap());
    assert_eq!(run(&eval), run(&net.eval()));
    assert_ne!(run(&eval), before);
}

#[test]
fn places_see_only_those_before_them() {
    let d = device();
    let mut params = Params::new(&d, 5);
    let config = GptConfig { vocab: 7, context: 6, width: 8, heads: 2, layers: 2, dropout: 0.0 };
    let net = Gpt::new(&mut params, config).unwrap();
    let s = Session::inference(&d);
    let run = |tokens: &[u32]| {
        let tokens = Tensor::new(&[tokens.len()], tokens.to_vec()).unwrap();
        data(net.forward(s.labels(&tokens).unwrap()).unwrap())
    };
    let (long, other, short) = (run(&[1, 2, 3, 4, 5]), run(&[1, 2, 3, 6, 0]), run(&[1, 2, 3]));
    assert_eq!(long[..21], other[..21]);
    assert_eq!(long[..21], short[..]);
    assert_ne!(long[21..28], other[21..28]);
}

#[test]
fn bad_sizes_are_errors_that_say_so() {
    let d = device();
    fn says<T>(got: Result<T>, words: &str) {
        let text = got.err().expect("an error").to_string();
        assert!(text.contains(words), "{text}");
    }
    let p = &mut Params::new(&d, 1);
    let window = Window::plain(2).unwrap();
    says(Linear::new(p, "a", 0, 3), "use at least 1");
    says(nn::Conv2d::new(p, "b", 3, 4, [3, 0], window), "use at least 1");
    says(nn::Conv2d::new(p, "c", 3, 4, [3, 3], window.groups(2)), "do not divide");
    says(nn::LayerNorm::new(p, "d", 0), "use at least 1");
    says(nn::Embedding::new(p, "e", 0, 2, 1.0), "use at least 1");
    says(nn::CausalSelfAttention::new(p, "f", 6, 4, 0.02), "4 heads do not divide a width of 6");
    says(nn::CausalSelfAttention::new(p, "f", usize::MAX, 1, 0.02), "");
    says(nn::SpectralConv1d::new(p, "g", 2, 2, 0), "use at least 1");
    says(nn::Dropout::new(1.0), "below 1");
    says(nn::Dropout::new(f64::NAN), "below 1");
    says(Cnn::new(p, CnnConfig { image: [3, 8], ..CnnConfig::default() }), "at least 4 by 4");
    says(Cnn::new(p, CnnConfig { classes: 0, ..CnnConfig::default() }), "use at least 1");
    says(Fno1d::new(p, Fno1dConfig { layers: 0, ..Fno1dConfig::default() }), "use at least 1");
    let config = GptConfig { vocab: 7, context: 4, width: 4, heads: 2, layers: 1, dropout: 0.0 };
    says(Gpt::new(p, GptConfig { heads: 3, ..config }), "do not divide");
    says(Gpt::new(p, GptConfig { dropout: 1.5, ..config }), "below 1");

    let mut p = Params::new(&d, 1);
    let net = Gpt::new(&mut p, config).unwrap();
    let block = nn::Block::new(&mut p, "block", 4, 2, nn::Dropout::new(0.0).unwrap()).unwrap();
    let fno = Fno1d::new(&mut p, Fno1dConfig { width: 4, layers: 1, ..Fno1dConfig::default() }).unwrap();
    let s = Session::eager(&d);
    says(net.forward(s.labels(&whole(&[1, 5], 0, 7)).unwrap()), "longer than the context of 4");
    says(net.forward(s.labels(&Tensor::scalar(1)).unwrap()), "(…, length)");
    says(net.forward(s.labels(&t_u32(&[1, 2], &[1, 7])).unwrap()), "7");
    says(block.forward(s.input(&fill(&[2, 3, 5], 0)).unwrap()), "5");
    says(fno.forward(s.input(&fill(&[1, 9, 2], 0)).unwrap()), "modes");
    // Nothing to do is nothing wrong.
    let none = net.forward(s.labels(&whole(&[2, 0], 0, 7)).unwrap()).unwrap();
    assert_eq!(none.shape().unwrap().dims(), [2, 0, 7]);
    let none = block.forward(s.input(&fill(&[0, 3, 4], 0)).unwrap()).unwrap();
    assert_eq!(none.shape().unwrap().dims(), [0, 3, 4]);
}

fn t_u32(dims: &[usize], data: &[u32]) -> Tensor<u32> {
    Tensor::new(dims, data.to_vec()).unwrap()
}
