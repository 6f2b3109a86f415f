//! The models: names and shapes of their parameters, outputs and gradients as PyTorch's, eager and compiled steps with
//! the same bits.

use super::support::{data, device, t};
use dittograd::nn::{Activation, Sampling};
use dittograd::prelude::*;
use dittograd_check::gpu;
use serde_json::Value;

/// Element `i` of tensor `k`, as in `tests/golden/models.py`.
pub(super) fn fill(dims: &[usize], k: usize) -> Tensor<f32> {
    let one = |i: usize| ((37 * i + i * i / 7 + 11 * k) % 101) as f32 - 50.0;
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| one(i) / 128.0)
}

fn whole(dims: &[usize], k: usize, below: usize) -> Tensor<u32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| ((5 * i + i * i / 3 + k) % below) as u32)
}

/// A model or layer with tiny sizes, its input, and its target; `fill` makes one of the output's shape where none is given.
pub(super) struct Case {
    pub(super) net: Box<Net>,
    pub(super) x: Data,
    pub(super) y: Option<Data>,
}

pub(super) type Net = dyn for<'s> Fn(Var<'s>) -> Result<Var<'s>>;

const MODELS: [&str; 10] =
    ["mlp", "cnn", "fno1d", "gpt", "fno2d", "resnet", "vit", "vit_mean", "autoencoder", "mamba"];

const LAYERS: [&str; 25] = [
    "linear_without_bias",
    "conv1d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "batch_norm1d",
    "batch_norm2d",
    "batch_norm3d",
    "batch_norm_twice",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "attention",
    "attention_causal",
    "attention_cross",
    "encoder_layer",
    "encoder_layer_first",
    "rnn",
    "gru",
    "lstm",
    "lstm_from",
    "sinusoidal",
    "learnt",
    "sequential",
];

fn names() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain(LAYERS).chain(super::nn_arguments::LAYERS)
}

fn net(module: impl Forward + 'static) -> Box<Net> {
    Box::new(move |x| module.forward(x))
}

/// Outputs and last states of a recurrent layer, one behind the other.
pub(super) fn flat<'s>(values: &[Var<'s>]) -> Result<Var<'s>> {
    let parts = values.iter().map(|v| v.flatten()).collect::<Result<Vec<_>>>()?;
    parts[0].session().concat(&parts, 0)
}

pub(super) fn times(x: &Tensor<f32>, by: f32) -> Tensor<f32> {
    Tensor::from_fn(x.shape(), |i| by * x.data()[i])
}

impl Case {
    /// As it is in training, or after it.
    fn new(name: &str, p: &mut Params, dropout: f64, eval: bool) -> Case {
        let of = |net: Box<Net>, x: Data, y: Option<Data>| Case { net, x, y };
        let small = |dims: &[usize]| Data::Num(fill(dims, 90));
        let large = |dims: &[usize], by: f32| Data::Num(times(&fill(dims, 90), by));
        let labels = |dims: &[usize], k: usize, below: usize| Some(Data::Idx(whole(dims, k, below)));
        let window = |axes: usize| ConvWindow::plain(axes).unwrap();
        let recurrent = |layers: usize, bidirectional: bool| nn::RecurrentConfig {
            inputs: 3,
            hidden: 4,
            layers,
            bidirectional,
            ..nn::RecurrentConfig::default()
        };
        let norm = |layer: nn::BatchNorm| if eval { layer.eval() } else { layer };
        match name {
            "mlp" => of(net(Mlp::new(p, &[5, 7, 3]).unwrap()), small(&[4, 5]), labels(&[4], 1, 3)),
            "cnn" => {
                let config = CnnConfig { channels: 2, image: [6, 5], widths: [3, 4, 5], classes: 3 };
                of(net(Cnn::new(p, config).unwrap()), small(&[2, 2, 6, 5]), labels(&[2], 1, 3))
            }
            "fno1d" => {
                let config = Fno1dConfig { inputs: 2, outputs: 1, width: 4, modes: 3, layers: 2, hidden: 5 };
                of(net(Fno1d::new(p, config).unwrap()), large(&[2, 9, 2], 8.0), None)
            }
            "gpt" => {
                let config = GptConfig { vocab: 7, context: 5, width: 4, heads: 2, layers: 2, dropout };
                let x = Data::Idx(whole(&[3, 4], 0, 7));
                of(net(Gpt::new(p, config).unwrap()), x, labels(&[3, 4], 3, 7))
            }
            "fno2d" => {
                let modes = [2, 3];
                let config = Fno2dConfig { inputs: 2, outputs: 1, width: 3, modes, layers: 2, hidden: 4 };
                of(net(Fno2d::new(p, config).unwrap()), large(&[2, 6, 5, 2], 8.0), None)
            }
            "resnet" => {
                let config = ResNetConfig { channels: 2, depth: 8, width: 2, classes: 3 };
                let model = ResNet::new(p, config).unwrap();
                let model = if eval { model.eval() } else { model };
                of(net(model), large(&[3, 2, 8, 6], 4.0), labels(&[3], 1, 3))
            }
            "vit" | "vit_mean" => {
                let config = VitConfig {
                    channels: 2,
                    image: [6, 4],
                    patch: [3, 2],
                    width: 4,
                    heads: 2,
                    layers: 2,
                    hidden: 6,
                    classes: 3,
                    pool: if name == "vit" { nn::VitPool::Class } else { nn::VitPool::Mean },
                    dropout,
                };
                of(net(Vit::new(p, config).unwrap()), large(&[2, 2, 6, 4], 4.0), labels(&[2], 1, 3))
            }
            "autoencoder" => {
                let config = AutoencoderConfig { channels: 2, image: [8, 4], widths: vec![3, 4], latent: 3 };
                of(net(Autoencoder::new(p, config).unwrap()), small(&[2, 2, 8, 4]), None)
            }
            "mamba" => {
                let config = MambaConfig { vocab: 7, width: 6, layers: 2, state: 3, conv: 3, expand: 2 };
                let x = Data::Idx(whole(&[3, 5], 0, 7));
                of(net(Mamba::new(p, config).unwrap()), x, labels(&[3, 5], 3, 7))
            }
            "linear_without_bias" => {
                of(net(Linear::without_bias(p, "layer", 3, 4).unwrap()), small(&[2, 3]), None)
            }
            "conv1d" => {
                let window = window(1).padding(2).dilation(2).groups(2);
                let layer = nn::Conv1d::without_bias(p, "layer", 4, 6, [3], window).unwrap();
                of(net(layer), small(&[2, 4, 7]), None)
            }
            "conv3d" => {
                let layer = nn::Conv3d::new(p, "layer", 2, 3, [2, 1, 3], window(3).padding(1)).unwrap();
                of(net(layer), small(&[1, 2, 2, 3, 2]), None)
            }
            "conv_transpose1d" => {
                let window = window(1).stride(2).padding(1);
                let layer = nn::ConvTranspose1d::new(p, "layer", 3, 4, [3], window, [1]).unwrap();
                of(net(layer), small(&[2, 3, 5]), None)
            }
            "conv_transpose2d" => {
                let window = window(2).stride(2).padding(1).groups(2);
                let layer =
                    nn::ConvTranspose2d::without_bias(p, "layer", 4, 6, [3, 2], window, [0, 0]).unwrap();
                of(net(layer), small(&[2, 4, 3, 4]), None)
            }
            "conv_transpose3d" => {
                let layer = nn::ConvTranspose3d::new(p, "layer", 2, 3, [2, 2, 2], window(3), [0; 3]).unwrap();
                of(net(layer), small(&[1, 2, 2, 3, 2]), None)
            }
            "batch_norm1d" => {
                of(net(norm(nn::BatchNorm::new(p, "layer", 3).unwrap())), large(&[5, 3], 4.0), None)
            }
            "batch_norm2d" => {
                of(net(norm(nn::BatchNorm::new(p, "layer", 3).unwrap())), large(&[2, 3, 4, 5], 4.0), None)
            }
            "batch_norm3d" => {
                let layer = norm(nn::BatchNorm::new(p, "layer", 2).unwrap());
                of(net(layer), large(&[2, 2, 2, 3, 2], 4.0), None)
            }
            "batch_norm_twice" => {
                let layer = norm(nn::BatchNorm::new(p, "layer", 3).unwrap());
                let twice = nn::Sequential::new().then(layer.clone()).then(layer);
                of(net(twice), large(&[2, 3, 4, 5], 4.0), None)
            }
            "group_norm" => {
                of(net(nn::GroupNorm::new(p, "layer", 2, 4).unwrap()), large(&[2, 4, 3, 2], 4.0), None)
            }
            "instance_norm" => {
                of(net(nn::InstanceNorm::affine(p, "layer", 3).unwrap()), large(&[2, 3, 3, 4], 4.0), None)
            }
            "rms_norm" => of(net(nn::RmsNorm::new(p, "layer", 5, 1e-6).unwrap()), small(&[2, 3, 5]), None),
            "attention" | "attention_causal" => {
                let causal = name == "attention_causal";
                let layer = nn::MultiheadAttention::new(p, "layer", 6, 2, causal).unwrap();
                of(net(layer), large(&[2, 5, 6], 4.0), None)
            }
            "attention_cross" => {
                let layer = nn::MultiheadAttention::new(p, "layer", 6, 2, false).unwrap();
                let memory = times(&fill(&[2, 3, 6], 92), 4.0);
                let cross =
                    nn::Lambda::new("cross", move |x| layer.forward_to(x, x.session().constant(&memory)?));
                of(net(cross), large(&[2, 5, 6], 4.0), None)
            }
            "encoder_layer" | "encoder_layer_first" => {
                let norm_first = name == "encoder_layer_first";
                let activation = if norm_first { Activation::GeluErf } else { Activation::Relu };
                let config = nn::TransformerConfig {
                    width: 6,
                    heads: 2,
                    hidden: 8,
                    dropout,
                    activation,
                    norm_first,
                    causal: false,
                };
                let layer = nn::TransformerEncoderLayer::new(p, "layer", config).unwrap();
                of(net(layer), large(&[2, 5, 6], 4.0), None)
            }
            "rnn" => {
                let layer = nn::Rnn::new(p, "layer", recurrent(1, false)).unwrap();
                let run = nn::Lambda::new("rnn", move |x| {
                    let (out, last) = layer.forward(x, None)?;
                    flat(&[out, last])
                });
                of(net(run), small(&[2, 5, 3]), None)
            }
            "gru" => {
                let layer = nn::Gru::new(p, "layer", recurrent(2, true)).unwrap();
                let run = nn::Lambda::new("gru", move |x| {
                    let (out, last) = layer.forward(x, None)?;
                    flat(&[out, last])
                });
                of(net(run), small(&[2, 5, 3]), None)
            }
            "lstm" => {
                let layer = nn::Lstm::new(p, "layer", recurrent(2, true)).unwrap();
                let run = nn::Lambda::new("lstm", move |x| {
                    let (out, [h, c]) = layer.forward(x, None)?;
                    flat(&[out, h, c])
                });
                of(net(run), small(&[2, 5, 3]), None)
            }
            "lstm_from" => {
                let layer = nn::Lstm::new(p, "layer", recurrent(2, false)).unwrap();
                let from = [fill(&[2, 2, 4], 92), fill(&[2, 2, 4], 93)];
                let run = nn::Lambda::new("lstm", move |x| {
                    let s = x.session();
                    let from = [s.constant(&from[0])?, s.constant(&from[1])?];
                    let (out, [h, c]) = layer.forward(x, Some(from))?;
                    flat(&[out, h, c])
                });
                of(net(run), small(&[2, 5, 3]), None)
            }
            "sinusoidal" => {
                let linear = Linear::new(p, "layer", 5, 5).unwrap();
                let both = nn::Sequential::new().then(nn::SinusoidalPositions).then(linear);
                of(net(both), small(&[2, 4, 5]), None)
            }
            "learnt" => {
                of(net(nn::LearntPositions::new(p, "layer", 6, 5, 0.02).unwrap()), small(&[2, 4, 5]), None)
            }
            "sequential" => {
                let layers: Vec<Box<dyn Forward>> = vec![
                    Box::new(Linear::new(p, "layer.0", 3, 4).unwrap()),
                    Box::new(Activation::Silu),
                    Box::new(nn::Residual::new(Linear::new(p, "layer.2.inner", 4, 4).unwrap())),
                    Box::new(Activation::Sigmoid),
                    Box::new(nn::Lambda::new("flatten", |x| x.flatten_from(1))),
                ];
                of(net(nn::Sequential::from(layers)), large(&[2, 3, 3], 4.0), None)
            }
            _ => super::nn_arguments::case(name, p, dropout, eval),
        }
    }

    fn loss<'s>(&self, out: Var<'s>, y: Option<&Var<'s>>) -> Result<Var<'s>> {
        match y {
            Some(y) => out.cross_entropy(*y),
            None => out.mse(out.session().constant(&fill(out.shape()?.dims(), 91))?),
        }
    }

    fn batch(&self) -> Vec<Batch<'_>> {
        [Some(&self.x), self.y.as_ref()].into_iter().flatten().map(Data::batch).collect()
    }
}

/// Numbers or indices.
pub(super) enum Data {
    Num(Tensor<f32>),
    Idx(Tensor<u32>),
}

impl Data {
    /// As a value, of which gradients can be asked if it is numbers.
    fn var<'s>(&self, s: &'s Session) -> Var<'s> {
        match self {
            Data::Num(t) => s.variable(t).unwrap(),
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

/// Parameters that are trained, and those that are not.
fn kinds(params: &Params) -> [Vec<&Param>; 2] {
    let (trained, others) = params.iter().partition(|p| p.trainable());
    [trained, others]
}

fn list<'a>(golden: &'a Value, key: &str) -> &'a [Value] {
    golden[key].as_array().map_or(&[], |v| v)
}

fn like_pytorch(device: &Device, tolerance: f64) {
    for name in names() {
        let golden = golden(name);
        let mut params = Params::new(device, 1);
        let case = Case::new(name, &mut params, 0.0, false);
        let [trained, others] = kinds(&params);
        for (k, p) in trained.iter().enumerate() {
            p.set(&fill(p.shape().dims(), k)).unwrap();
        }
        let session = Session::eager(device);
        let x = case.x.var(&session);
        let out = (case.net)(x).unwrap();
        let y = case.y.as_ref().map(|y| y.var(&session));
        let loss = case.loss(out, y.as_ref()).unwrap();
        agree(name, out.value::<f64>().unwrap().data(), &numbers(&golden["out"]), tolerance);
        agree(name, loss.value::<f64>().unwrap().data(), &[golden["loss"].as_f64().unwrap()], tolerance);
        let grads = loss.backward().unwrap();
        for (p, want) in trained.iter().zip(list(&golden, "params")) {
            let got = grads.param(p).unwrap().to_tensor::<f64>().unwrap();
            let label = format!("{name} {} on {device}", p.name());
            agree(&label, got.data(), &numbers(&want["grad"]), tolerance);
        }
        if let Data::Num(_) = case.x {
            let got = grads.var(x).unwrap().to_tensor::<f64>().unwrap();
            agree(&format!("{name} x on {device}"), got.data(), &numbers(&golden["x_grad"]), tolerance);
        }
        // Running statistics change when the step ends.
        session.reset();
        for (p, want) in others.iter().zip(list(&golden, "running")) {
            let got = p.get::<f64>().unwrap();
            agree(
                &format!("{name} {} on {device}", p.name()),
                got.data(),
                &numbers(&want["value"]),
                tolerance,
            );
        }
        if !others.is_empty() {
            let mut again = Params::new(device, 1);
            let eval = Case::new(name, &mut again, 0.0, true);
            for (to, from) in again.iter().zip(params.iter()) {
                to.set_from(&from.buffer()).unwrap();
            }
            let out = (eval.net)(eval.x.var(&session)).unwrap();
            let label = format!("{name} after training on {device}");
            agree(&label, out.value::<f64>().unwrap().data(), &numbers(&golden["eval"]), tolerance);
            let before = again.fingerprint();
            session.reset();
            assert_eq!(again.fingerprint(), before, "{label}");
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
    for name in names() {
        let golden = golden(name);
        let mut params = Params::new(&device(), 1);
        Case::new(name, &mut params, 0.0, false);
        let [trained, others] = kinds(&params);
        let dims = |p: &Param| p.shape().dims().iter().map(|&d| d as u64).collect();
        let got: Vec<(&str, Vec<u64>)> = trained.iter().map(|p| (p.name(), dims(p))).collect();
        let shape = |v: &Value| v.as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        let want: Vec<(&str, Vec<u64>)> = list(&golden, "params")
            .iter()
            .map(|v| (v["name"].as_str().unwrap(), shape(&v["shape"])))
            .collect();
        // The order too: it is what initial draws depend on.
        assert_eq!(got, want, "{name}");
        let got: Vec<&str> = others.iter().map(|p| p.name()).collect();
        let want: Vec<&str> = list(&golden, "running").iter().map(|v| v["name"].as_str().unwrap()).collect();
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
    // The published 0.27 million of ResNet-20, with the running statistics.
    let resnet =
        |depth| count(&|p| drop(ResNet::new(p, ResNetConfig { depth, ..ResNetConfig::default() }).unwrap()));
    assert_eq!(resnet(20), 272_474 + 2 * 688 + 2 * 96);
    assert!(resnet(8) < resnet(14) && resnet(14) < resnet(20));
    assert_eq!(count(&|p| drop(Fno2d::new(p, Fno2dConfig::default()).unwrap())), 2_368_001);
}

fn fingerprint(d: &Device, name: &str, dropout: f64, compiled: bool) -> String {
    let mut params = Params::new(d, 3);
    let case = Case::new(name, &mut params, dropout, false);
    if compiled {
        let mut step =
            TrainStep::new(&params, Optimizer::adamw(0.01), |v| case.loss((case.net)(v[0])?, v.get(1)))
                .seeded(6);
        for _ in 0..5 {
            step.run(&case.batch()).unwrap();
        }
    } else {
        let session = Session::eager_seeded(d, 6);
        let mut optimizer = Optimizer::adamw(0.01);
        for _ in 0..5 {
            let y = case.y.as_ref().map(|y| y.var(&session));
            let loss = case.loss((case.net)(case.x.var(&session)).unwrap(), y.as_ref()).unwrap();
            optimizer.step(&params, loss.backward().unwrap()).unwrap();
            session.reset();
        }
    }
    params.fingerprint().unwrap()
}

/// With and without dropout, where there is any.
fn steps() -> impl Iterator<Item = (&'static str, f64)> {
    let dropped = [
        "gpt",
        "vit",
        "encoder_layer",
        "encoder_layer_first",
        "decoder_layer",
        "encoder",
        "transformer",
        "lstm_projected",
        "attention_dropout",
    ];
    names().map(|n| (n, 0.0)).chain(dropped.map(|n| (n, 0.25)))
}

#[test]
fn eager_and_compiled_steps_have_the_same_bits() {
    let d = device();
    for (name, dropout) in steps() {
        assert_eq!(fingerprint(&d, name, dropout, false), fingerprint(&d, name, dropout, true), "{name}");
    }
    assert_ne!(fingerprint(&d, "gpt", 0.25, true), fingerprint(&d, "gpt", 0.0, true));
}

#[test]
fn cuda_steps_have_the_bits_of_the_cpu() {
    if let Some((_turn, gpu)) = gpu() {
        for (name, dropout) in steps() {
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
    let window = ConvWindow::plain(2).unwrap();
    says(Linear::new(p, "a", 0, 3), "use at least 1");
    says(nn::Conv2d::new(p, "b", 3, 4, [3, 0], window), "use at least 1");
    says(nn::Conv2d::new(p, "c", 3, 4, [3, 3], window.groups(2)), "do not divide");
    says(nn::LayerNorm::new(p, "d", 0), "use at least 1");
    says(nn::Embedding::new(p, "e", 0, 2, 1.0), "use at least 1");
    says(nn::CausalSelfAttention::new(p, "f", 6, 4, 0.02), "4 heads do not divide a width of 6");
    says(nn::CausalSelfAttention::new(p, "f", usize::MAX, 1, 0.02), "");
    says(nn::SpectralConv1d::new(p, "g", 2, 2, 0), "use at least 1");
    says(nn::Dropout::new(1.5), "0 to 1");
    says(nn::Dropout::new(f64::NAN), "0 to 1");
    says(Cnn::new(p, CnnConfig { image: [3, 8], ..CnnConfig::default() }), "at least 4 by 4");
    says(Cnn::new(p, CnnConfig { classes: 0, ..CnnConfig::default() }), "use at least 1");
    says(Fno1d::new(p, Fno1dConfig { layers: 0, ..Fno1dConfig::default() }), "layers: got 0, use 1 to 4096");
    let config = GptConfig { vocab: 7, context: 4, width: 4, heads: 2, layers: 1, dropout: 0.0 };
    says(Gpt::new(p, GptConfig { heads: 3, ..config }), "do not divide");
    says(Gpt::new(p, GptConfig { dropout: 1.5, ..config }), "0 to 1");

    says(nn::ConvTranspose2d::new(p, "h", 3, 4, [3, 3], window.groups(2), [0, 0]), "do not divide");
    says(nn::BatchNorm::new(p, "i", 0), "use at least 1");
    says(nn::GroupNorm::new(p, "j", 3, 4), "3 do not divide 4 channels");
    says(nn::MultiheadAttention::new(p, "k", 6, 4, false), "4 heads do not divide a width of 6");
    says(nn::SpectralConv2d::new(p, "l", 2, 2, [0, 1]), "use at least 1");
    let recurrent = nn::RecurrentConfig { inputs: 3, hidden: 4, ..nn::RecurrentConfig::default() };
    says(nn::Gru::new(p, "m", nn::RecurrentConfig { hidden: 0, ..recurrent }), "use at least 1");
    says(ResNet::new(p, ResNetConfig { depth: 18, ..ResNetConfig::default() }), "8, 14, 20");
    says(Vit::new(p, VitConfig { patch: [5, 4], ..VitConfig::default() }), "do not divide an image");
    let auto = AutoencoderConfig::default();
    says(Autoencoder::new(p, AutoencoderConfig { image: [30, 28], ..auto.clone() }), "multiples of 4");
    says(Autoencoder::new(p, AutoencoderConfig { widths: vec![], ..auto.clone() }), "at least 1");
    says(Autoencoder::new(p, AutoencoderConfig { widths: vec![1; 64], ..auto }), "fewer");
    says(Mamba::new(p, MambaConfig { state: 0, ..MambaConfig::default() }), "use at least 1");

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
    let gru = nn::Gru::new(&mut p, "gru", recurrent).unwrap();
    says(gru.forward(s.ones(&[2, 5]).unwrap(), None), "(N, T, F)");
    says(gru.forward(s.ones(&[2, 5, 4]).unwrap(), None), "(N, T, 3)");
    says(gru.forward(s.ones(&[2, 0, 3]).unwrap(), None), "at least 1");
    let state = s.ones(&[2, 1, 4]).unwrap();
    says(gru.forward(s.ones(&[2, 5, 3]).unwrap(), Some(state)), "layers times directions");
    let places = nn::LearntPositions::new(&mut p, "places", 3, 4, 0.02).unwrap();
    says(places.forward(s.ones(&[1, 4, 4]).unwrap()), "longer than the 3 places");
    let attention = nn::MultiheadAttention::new(&mut p, "attention", 4, 2, false).unwrap();
    let [two, three] = [s.ones(&[2, 3, 4]).unwrap(), s.ones(&[3, 3, 4]).unwrap()];
    says(attention.forward_to(two, three), "leading axes");
    says(net.last(s.labels(&whole(&[2, 0], 0, 7)).unwrap()), "1 or more");
    let vit = Vit::new(&mut p, VitConfig { layers: 1, ..VitConfig::default() }).unwrap();
    says(vit.forward(s.ones(&[1, 3, 32, 28]).unwrap()), "8 by 7 patches");
    // Nothing to do is nothing wrong.
    let none = net.forward(s.labels(&whole(&[2, 0], 0, 7)).unwrap()).unwrap();
    assert_eq!(none.shape().unwrap().dims(), [2, 0, 7]);
    let none = block.forward(s.input(&fill(&[0, 3, 4], 0)).unwrap()).unwrap();
    assert_eq!(none.shape().unwrap().dims(), [0, 3, 4]);
}

fn t_u32(dims: &[usize], data: &[u32]) -> Tensor<u32> {
    Tensor::new(dims, data.to_vec()).unwrap()
}

/// A count of steps beside a weight that is trained.
fn counted(d: &Device) -> (Params, Param, Param) {
    let mut params = Params::new(d, 1);
    let w = params.ones("w", &[2]).unwrap();
    let n = params.zeros("n", &[2]).unwrap();
    n.set_trainable(false);
    (params, w, n)
}

#[test]
fn what_a_step_assigns_is_there_after_it() {
    let d = device();
    let (params, w, n) = counted(&d);
    let s = Session::eager(&d);
    let next = |s: &Session| {
        let seen = s.param(&n).unwrap();
        s.assign(&n, (seen + s.param(&w).unwrap()).unwrap()).unwrap();
    };
    let value = |p: &Param| p.get::<f32>().unwrap().into_data();
    next(&s);
    // Within the step the new value is read, and the parameter is as before.
    assert_eq!(data(s.param(&n).unwrap()), [1.0, 1.0]);
    assert_eq!(value(&n), [0.0, 0.0]);
    next(&s);
    // The gradient's own values are those the step began with; the update comes first, the assignment after it.
    let loss = s.param(&w).unwrap().mul(s.param(&n).unwrap()).unwrap().sum().unwrap();
    Optimizer::sgd(0.5).step(&params, loss.backward().unwrap()).unwrap();
    assert_eq!((value(&w), value(&n)), (vec![0.0, 0.0], vec![0.0, 0.0]));
    s.reset();
    assert_eq!(value(&n), [2.0, 2.0]);
    // The end of a session is the end of its step.
    let s = Session::eager(&d);
    s.assign(&n, s.param(&w).unwrap()).unwrap();
    drop(s);
    assert_eq!(value(&n), [0.0, 0.0]);
    // A scope frees what was computed in it, not what was assigned.
    let s = Session::inference(&d);
    for _ in 0..3 {
        s.scope(|| {
            s.assign(&n, (s.param(&n)? + 1.0)?)?;
            s.param(&w)
        })
        .unwrap();
    }
    s.reset();
    assert_eq!(value(&n), [3.0, 3.0]);
    // Two change places: what is assigned are the values the step began with.
    let (a, b) = (params.get("w").unwrap(), &n);
    a.set_trainable(false);
    let s = Session::eager(&d);
    let both = [s.param(a).unwrap(), s.param(b).unwrap()];
    s.assign(a, both[1]).unwrap();
    s.assign(b, both[0]).unwrap();
    s.reset();
    assert_eq!((value(a), value(b)), (vec![3.0, 3.0], vec![0.0, 0.0]));
}

#[test]
fn compiled_steps_assign_too() {
    let d = device();
    for metrics in [false, true] {
        let (params, w, n) = counted(&d);
        let step = |v: &[Var<'_>], w: &Param, n: &Param| -> Result<()> {
            let s = v[0].session();
            s.assign(n, (s.param(n)? + s.param(w)?)?)
        };
        let (w2, n2) = (w.clone(), n.clone());
        let mut train = TrainStep::new(&params, Optimizer::sgd(0.25), |v| {
            step(v, &w, &n)?;
            (v[0].session().param(&w)? * v[0])?.sum()
        });
        if metrics {
            train = train.metrics(move |v| {
                step(v, &w2, &n2)?;
                Ok(vec![v[0].session().param(&n2)?])
            });
        }
        let x = t(&[2], &[1.0, 2.0]);
        for _ in 0..3 {
            train.run(&[(&x).into()]).unwrap();
        }
        // 1 + 0.75 + 0.5 and 1 + 0.5 + 0: the weights each step began with.
        assert_eq!(n.get::<f32>().unwrap().data(), [2.25, 1.5]);
        if metrics {
            assert_eq!(train.metric(0).unwrap().data(), [2.25, 1.5]);
        }
    }
}

#[test]
fn assignments_that_make_no_sense_are_errors() {
    let d = device();
    let (_params, w, n) = counted(&d);
    let s = Session::eager(&d);
    let says = |got: Result<()>, words: &str| {
        let text = got.expect_err("an error").to_string();
        assert!(text.contains(words), "{text}");
    };
    says(s.assign(&w, s.ones(&[2]).unwrap()), "freeze it");
    says(s.assign(&n, s.ones(&[3]).unwrap()), "another shape");
    says(s.assign(&n, s.labels(&t_u32(&[2], &[1, 2])).unwrap()), "f32");
    let other = Session::eager(&d);
    says(s.assign(&n, other.ones(&[2]).unwrap()), "session");
    // A program has nowhere to put it.
    let mut f = s.compile(|s, x| {
        s.assign(&n, x[0])?;
        Ok(vec![x[0]])
    });
    says(f.call(&[t(&[2], &[1.0, 2.0]).into()]).map(drop), "TrainStep");
    // Batch norm: a single value has no variance, other channels are none.
    let mut params = Params::new(&d, 1);
    let norm = nn::BatchNorm::new(&mut params, "bn", 2).unwrap();
    says(norm.forward(s.ones(&[1, 2]).unwrap()).map(drop), "at least 2");
    says(norm.forward(s.ones(&[4, 3]).unwrap()).map(drop), "channels");
    assert!(norm.eval().forward(s.ones(&[1, 2]).unwrap()).is_ok());
}

#[test]
fn running_statistics_are_used_after_training() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let net = ResNet::new(&mut params, ResNetConfig { channels: 1, depth: 8, width: 2, classes: 3 }).unwrap();
    let (x, y) = (fill(&[4, 1, 8, 8], 90), whole(&[4], 1, 3));
    let mut step =
        TrainStep::new(&params, Optimizer::adamw(0.01), |v| net.forward(v[0])?.cross_entropy(v[1]));
    for _ in 0..3 {
        step.run(&[(&x).into(), (&y).into()]).unwrap();
    }
    let eval = net.eval();
    let s = Session::inference(&d);
    let one = |x: &Tensor<f32>| data(eval.forward(s.input(x).unwrap()).unwrap());
    // An image's output does not depend on the others of its batch.
    let all = one(&x);
    let first = Tensor::new(&[1, 1, 8, 8], x.data()[..64].to_vec()).unwrap();
    assert_eq!(one(&first), all[..3]);
    let before = params.fingerprint().unwrap();
    s.reset();
    assert_eq!(params.fingerprint().unwrap(), before);
    assert_eq!(params.iter().filter(|p| !p.trainable()).count(), 2 * 9);
}

#[test]
fn tokens_are_drawn_from_a_seed() {
    let d = device();
    let mut params = Params::new(&d, 5);
    let config = GptConfig { vocab: 7, context: 6, width: 8, heads: 2, layers: 2, dropout: 0.5 };
    let net = Gpt::new(&mut params, config).unwrap();
    for p in params.iter().filter(|p| p.shape().rank() == 2) {
        // Weights of more than the usual size, so that tokens differ.
        p.set(&times(&p.get::<f32>().unwrap(), 20.0)).unwrap();
    }
    let sampling = |temperature, top_k, seed| Sampling { temperature, top_k, seed };
    let draw = |s| net.generate(&[1, 2, 3], 12, s).unwrap();
    let hot = draw(sampling(1.5, None, 3));
    assert_eq!(hot, [4, 5, 2, 5, 6, 1, 6, 5, 1, 3, 3, 5]);
    assert_eq!(draw(sampling(1.5, None, 3)), hot);
    assert_ne!(draw(sampling(1.5, None, 4)), hot);
    // One candidate, no temperature, or next to none: the largest number.
    let greedy = draw(Sampling::GREEDY);
    assert_eq!(draw(sampling(1.5, Some(1), 3)), greedy);
    assert_eq!(draw(sampling(1e-6, None, 3)), greedy);
    let s = Session::inference(&d);
    let eval = net.eval();
    let mut tokens = vec![1, 2, 3];
    for want in greedy {
        let seen = &tokens[tokens.len().saturating_sub(6)..];
        let seen = s.labels(&t_u32(&[seen.len()], seen)).unwrap();
        let all = eval.forward(seen).unwrap();
        let last = eval.last(seen).unwrap();
        assert_eq!(data(last), data(all)[data(all).len() - 7..]);
        assert_eq!(last.argmax(&[0], false).unwrap().indices().unwrap().data(), [want]);
        tokens.push(want);
    }
    // Other threads, other instructions.
    let scalar = Device::cpu_with(1, dittograd::device::cpu::simd::Simd::Scalar).unwrap();
    params.to(&scalar).unwrap();
    assert_eq!(net.generate(&[1, 2, 3], 12, sampling(1.5, None, 3)).unwrap(), hot);

    let says = |got: Result<Vec<u32>>, words: &str| {
        let text = got.expect_err("an error").to_string();
        assert!(text.contains(words), "{text}");
    };
    says(net.generate(&[], 1, Sampling::GREEDY), "at least one token");
    says(net.generate(&[7], 1, Sampling::GREEDY), "7");
    says(net.generate(&[1], 1, sampling(-1.0, None, 0)), "temperature");
    says(net.generate(&[1], 1, sampling(1.0, Some(0), 0)), "top_k");
    assert!(net.generate(&[1], 0, Sampling::GREEDY).unwrap().is_empty());

    let mut params = Params::new(&d, 5);
    let config = MambaConfig { vocab: 7, width: 8, layers: 2, state: 4, conv: 3, expand: 2 };
    let net = Mamba::new(&mut params, config).unwrap();
    let tokens = net.generate(&[1, 2, 3], 5, sampling(1.5, Some(4), 3)).unwrap();
    assert_eq!(tokens, [2, 3, 1, 6, 6]);
    // Places see only those before them.
    let s = Session::inference(&d);
    let run = |x: &[u32]| data(net.forward(s.labels(&t_u32(&[x.len()], x)).unwrap()).unwrap());
    assert_eq!(run(&[1, 2, 3, 4, 5])[..21], run(&[1, 2, 3])[..]);
}

#[test]
fn draws_follow_the_softmax() {
    // Weights 1 : 2 : 0 : 4, and the last two alone.
    let numbers = [0.0f32, 2f32.ln(), f32::NEG_INFINITY, 4f32.ln()];
    let count = |top_k| {
        let mut counts = [0.0f64; 4];
        for step in 0..70_000 {
            let sampling = Sampling { temperature: 1.0, top_k, seed: 9 };
            counts[sampling.draw(&numbers, step).unwrap() as usize] += 1.0 / 10_000.0;
        }
        counts
    };
    let near = |got: [f64; 4], want: [f64; 4]| {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.06), "{got:?}")
    };
    near(count(None), [1.0, 2.0, 0.0, 4.0]);
    near(count(Some(2)), [0.0, 7.0 / 3.0, 0.0, 14.0 / 3.0]);
    let draw = |numbers: &[f32]| Sampling::GREEDY.draw(numbers, 0);
    assert_eq!(draw(&[1.0, 3.0, 3.0]).unwrap(), 1);
    assert_eq!(draw(&[-0.0, 0.0]).unwrap(), 0);
    assert!(draw(&[1.0, f32::NAN]).unwrap_err().to_string().contains("token 1 is NaN"));
    assert!(draw(&[]).unwrap_err().to_string().contains("no token"));
    assert!(draw(&[f32::NEG_INFINITY]).is_err());
}

#[test]
fn configs_are_read_as_they_are_written() {
    fn check<C>(config: C)
    where
        C: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<C>(&text).unwrap(), config, "{text}");
        let more = text.replacen('{', "{\"colour\":1,", 1);
        let error = serde_json::from_str::<C>(&more).unwrap_err().to_string();
        assert!(error.contains("unknown field `colour`"), "{error}");
    }
    check(MlpConfig::default());
    check(CnnConfig::default());
    check(Fno1dConfig::default());
    check(Fno2dConfig::default());
    check(GptConfig::default());
    check(ResNetConfig::default());
    check(VitConfig::default());
    check(AutoencoderConfig::default());
    check(MambaConfig::default());
    check(nn::RecurrentConfig::default());
    check(nn::TransformerConfig::default());
    check(Sampling::default());
}

#[test]
fn modules_switch_over_together() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let inner = nn::Sequential::new()
        .then(nn::BatchNorm::new(&mut params, "bn", 3).unwrap())
        .then(nn::Dropout::new(0.5).unwrap());
    let net = nn::Sequential::new().then(nn::Residual::new(inner));
    let x = fill(&[8, 3], 90);
    let s = Session::eager_seeded(&d, 1);
    let run = |net: &nn::Sequential| data(net.forward(s.input(&x).unwrap()).unwrap());
    assert_ne!(run(&net), run(&net));
    let eval = net.eval();
    assert_eq!(run(&eval), run(&eval));
    s.reset();
    let before = params.fingerprint().unwrap();
    run(&eval);
    s.reset();
    assert_eq!(params.fingerprint().unwrap(), before);
    run(&net);
    s.reset();
    assert_ne!(params.fingerprint().unwrap(), before);
    assert!(format!("{net:?}").contains("BatchNorm"));
}

#[test]
fn initial_steps_of_mamba_are_those_published() {
    let mut params = Params::new(&device(), 1);
    let config = MambaConfig { width: 64, layers: 1, ..MambaConfig::default() };
    Mamba::new(&mut params, config).unwrap();
    let bias = params.get("backbone.layers.0.mixer.dt_proj.bias").unwrap().get::<f64>().unwrap();
    let steps: Vec<f64> = bias.data().iter().map(|b| b.exp().ln_1p()).collect();
    assert!(steps.iter().all(|s| (0.00099..0.101).contains(s)), "{steps:?}");
    assert!(steps.iter().any(|s| *s < 0.003) && steps.iter().any(|s| *s > 0.03));
    let a = params.get("backbone.layers.0.mixer.A_log").unwrap().get::<f64>().unwrap();
    assert!((a.data()[17] - 2f64.ln()).abs() < 1e-6);
}
