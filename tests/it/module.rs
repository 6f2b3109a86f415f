//! `#[derive(Module)]`: modes and parameters of own structs and of all models.

use super::support::{data as values, device};
use dittograd::nn::{
    Activation, BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Embedding, GroupNorm, Gru, InstanceNorm,
    Lambda, LayerNorm, LearntPositions, Lstm, Mode, MultiheadAttention, RecurrentConfig, Residual, Rnn,
    Sequential, SinusoidalPositions, TransformerConfig, TransformerEncoderLayer, VitPool,
};
use dittograd::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

fn paths(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(path, _)| path).collect()
}

/// Adds noise in training; the mode is a field, and nothing else is written by hand.
#[derive(Clone, Debug, Module)]
struct Noise {
    deviation: f64,
    mode: Mode,
}

impl Forward for Noise {
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        match self.mode {
            Mode::Train => x + x.session().normal(x.shape()?.dims(), 0.0, self.deviation)?,
            Mode::Eval => Ok(x),
        }
    }
}

#[derive(Clone, Debug, Module)]
struct Pair<A, const N: usize>(A, [Param; N]);

#[derive(Clone, Debug, Module)]
enum Head {
    Linear(Linear),
    Scaled { r#in: Linear, gain: Param },
    None,
}

/// A field of every kind.
#[derive(Module)]
struct Everything<T, F: Fn() -> f32> {
    first: Linear,
    maybe: Option<Linear>,
    absent: Option<BatchNorm>,
    list: Vec<Pair<Noise, 2>>,
    array: [Head; 3],
    tuple: (Param, (Dropout,), ()),
    boxed: Box<Linear>,
    shared: Arc<Linear>,
    any: Arc<dyn Forward>,
    either: Box<dyn Forward>,
    deep: Vec<Option<Box<(T, u64)>>>,
    again: Linear,
    name: String,
    kind: Activation,
    window: ConvWindow,
    marker: PhantomData<Cell<u8>>,
    #[module(skip)]
    table: HashMap<String, Vec<f32>>,
    #[module(skip)]
    function: F,
}

#[test]
fn walks_through_fields_of_every_kind() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let mut made = 0;
    let mut linear = |params: &mut Params| {
        made += 1;
        Linear::without_bias(params, &format!("own{made}"), 2, 2).unwrap()
    };
    let noise = Noise { deviation: 1.0, mode: Mode::Train };
    let p = &mut params;
    let first = linear(p);
    let net = Everything {
        again: first.clone(),
        first,
        maybe: Some(linear(p)),
        absent: None,
        list: vec![Pair(noise.clone(), [p.zeros("a", &[2]).unwrap(), p.zeros("b", &[2]).unwrap()])],
        array: [
            Head::Linear(linear(p)),
            Head::Scaled { r#in: linear(p), gain: p.ones("gain", &[2]).unwrap() },
            Head::None,
        ],
        tuple: (p.zeros("c", &[2]).unwrap(), (Dropout::new(0.5).unwrap(),), ()),
        boxed: Box::new(linear(p)),
        shared: Arc::new(linear(p)),
        any: Arc::new(Sequential::new().then(noise.clone()).then(Residual::new(linear(p)))),
        either: Box::new(linear(p)),
        deep: vec![None, Some(Box::new((linear(p), 7)))],
        name: "net".into(),
        kind: Activation::Relu,
        window: ConvWindow::plain(2).unwrap(),
        marker: PhantomData,
        table: HashMap::from([("x".to_string(), vec![1.0])]),
        function: || 2.0,
    };
    let want = "first.weight maybe.weight list.0.1.0 list.0.1.1 array.0.weight array.1.in.weight array.1.gain tuple.0 \
                boxed.weight shared.weight any.1.weight either.weight deep.1.0.weight";
    assert_eq!(paths(&net).join(" "), want);
    // The parameters themselves, not copies, each once, in either mode.
    let ids = |net: &dyn Module| net.parameters().iter().map(Param::id).collect::<Vec<_>>();
    assert_eq!(ids(&net), ids(&net.eval()));
    assert_eq!(ids(&net).len(), params.len());

    let modes = |net: &Everything<Linear, _>| {
        let dropout = values(net.tuple.1.0.forward(Session::eager(&d).ones(&[64]).unwrap()).unwrap());
        let any = values(net.any.forward(Session::eager(&d).zeros(&[1, 2]).unwrap()).unwrap());
        (net.list[0].0.mode, dropout.contains(&0.0), any[0] != 0.0)
    };
    assert_eq!(modes(&net), (Mode::Train, true, true));
    let eval = net.eval();
    assert_eq!(modes(&eval), (Mode::Eval, false, false));
    assert_eq!(modes(&eval.eval()), modes(&eval));
    assert_eq!(modes(&eval.train()), modes(&net));
    // What is no module is kept.
    assert_eq!((eval.name.as_str(), eval.kind, eval.table["x"][0]), ("net", Activation::Relu, 1.0));
    assert_eq!((eval.window, (eval.function)()), (net.window, 2.0));
    assert!(matches!(eval.array, [Head::Linear(_), Head::Scaled { .. }, Head::None]));
    assert!(eval.absent.is_none() && eval.deep[0].is_none() && eval.deep[1].is_some());
}

/// All models and layers of one input, with dropout where they can have it.
type Nets = Vec<(Box<dyn Forward>, &'static [usize])>;

fn models(p: &mut Params) -> Nets {
    let window = ConvWindow::plain(2).unwrap();
    let transformer =
        TransformerConfig { width: 4, heads: 2, hidden: 4, dropout: 0.5, ..TransformerConfig::default() };
    let gpt = GptConfig { vocab: 7, context: 5, width: 4, heads: 2, layers: 2, dropout: 0.5 };
    let resnet = ResNetConfig { channels: 1, depth: 8, width: 2, classes: 3 };
    let vit = VitConfig {
        channels: 1,
        image: [4, 4],
        patch: [2, 2],
        width: 4,
        heads: 2,
        layers: 2,
        hidden: 4,
        classes: 3,
        pool: VitPool::Class,
        dropout: 0.5,
    };
    let fno1 = Fno1dConfig { inputs: 2, outputs: 1, width: 2, modes: 2, layers: 2, hidden: 2 };
    let fno2 = Fno2dConfig { inputs: 2, outputs: 1, width: 2, modes: [1, 1], layers: 2, hidden: 2 };
    let mamba = MambaConfig { vocab: 7, width: 4, layers: 2, state: 2, conv: 2, expand: 2 };
    let autoencoder = AutoencoderConfig { channels: 1, image: [4, 4], widths: vec![2], latent: 2 };
    let cnn = CnnConfig { channels: 1, image: [4, 4], widths: [2, 2, 2], classes: 3 };
    let block = nn::Block::new(p, "block", 4, 2, Dropout::new(0.5).unwrap()).unwrap();
    let sequential = Sequential::new()
        .then(BatchNorm::new(p, "sequential.0", 4).unwrap())
        .then(Residual::new(Dropout::new(0.5).unwrap()))
        .then(Lambda::new("relu", |x| x.relu()))
        .then(SinusoidalPositions)
        .then(Activation::Silu);
    let gpt = Gpt::new(&mut p.scope("gpt"), gpt).unwrap();
    let mamba = Mamba::new(&mut p.scope("mamba"), mamba).unwrap();
    let vit = Vit::new(&mut p.scope("vit"), vit).unwrap();
    let resnet = ResNet::new(&mut p.scope("resnet"), resnet).unwrap();
    let cnn = Cnn::new(&mut p.scope("cnn"), cnn).unwrap();
    let autoencoder = Autoencoder::new(&mut p.scope("autoencoder"), autoencoder).unwrap();
    let fno1d = Fno1d::new(&mut p.scope("fno1d"), fno1).unwrap();
    let fno2d = Fno2d::new(&mut p.scope("fno2d"), fno2).unwrap();
    let mlp = Mlp::new(&mut p.scope("mlp"), &[2, 3, 2]).unwrap();
    vec![
        (Box::new(gpt), &[]),
        (Box::new(mamba), &[]),
        (Box::new(vit), &[2, 1, 4, 4]),
        (Box::new(resnet), &[2, 1, 4, 4]),
        (Box::new(cnn), &[2, 1, 4, 4]),
        (Box::new(autoencoder), &[2, 1, 4, 4]),
        (Box::new(fno1d), &[1, 4, 2]),
        (Box::new(fno2d), &[1, 4, 4, 2]),
        (Box::new(mlp), &[2, 2]),
        (Box::new(TransformerEncoderLayer::new(p, "encoder", transformer).unwrap()), &[2, 3, 4]),
        (Box::new(MultiheadAttention::new(p, "attention", 4, 2, true).unwrap()), &[2, 3, 4]),
        (Box::new(block), &[2, 3, 4]),
        (Box::new(sequential), &[3, 4]),
        (Box::new(Conv2d::new(p, "conv", 1, 2, [3, 3], window).unwrap()), &[1, 1, 4, 4]),
        (
            Box::new(Conv1d::without_bias(p, "conv1d", 1, 2, [3], ConvWindow::plain(1).unwrap()).unwrap()),
            &[1, 1, 4],
        ),
        (
            Box::new(ConvTranspose2d::new(p, "transposed", 1, 2, [2, 2], window, [0, 0]).unwrap()),
            &[1, 1, 4, 4],
        ),
        (Box::new(GroupNorm::new(p, "group", 2, 4).unwrap()), &[2, 4, 3]),
        (Box::new(InstanceNorm::affine(p, "instance", 4).unwrap()), &[2, 4, 3]),
        (Box::new(LayerNorm::new(p, "layer", 4).unwrap()), &[2, 4]),
        (Box::new(nn::RmsNorm::new(p, "rms", 4, 1e-6).unwrap()), &[2, 4]),
        (Box::new(LearntPositions::new(p, "positions", 3, 4, 0.02).unwrap()), &[3, 4]),
        (Box::new(Embedding::new(p, "embedding", 7, 4, 1.0).unwrap()), &[]),
    ]
}

#[test]
fn of_every_model_have_all_its_parameters_and_both_modes() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let all = models(&mut params);
    let config = RecurrentConfig {
        inputs: 2,
        hidden: 3,
        layers: 2,
        bidirectional: true,
        ..RecurrentConfig::default()
    };
    let recurrent = (
        Rnn::new(&mut params, "rnn", config).unwrap(),
        Gru::new(&mut params, "gru", config).unwrap(),
        Lstm::new(&mut params, "lstm", config).unwrap(),
    );
    let mut found = recurrent.parameters();
    found.extend(all.iter().flat_map(|(net, _)| net.parameters()));
    let sorted = |mut ids: Vec<u64>| {
        ids.sort_unstable();
        ids
    };
    assert_eq!(sorted(found.iter().map(Param::id).collect()), sorted(params.iter().map(Param::id).collect()));

    // Zeros at first, which hide what is in front of them.
    let head = params.get("vit.heads.head.weight").unwrap();
    head.set(&Tensor::from_fn(head.shape(), |i| i as f32)).unwrap();
    // A layer's value, and how many draws it made.
    let run = |net: &dyn Forward, dims: &[usize]| {
        let s = Session::eager_seeded(&d, 3);
        let x = match dims {
            [] => s.labels(&Tensor::new(&[2, 3], vec![1u32, 2, 3, 4, 5, 6]).unwrap()).unwrap(),
            _ => s.input(&Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i % 5) as f32 - 1.5)).unwrap(),
        };
        (values(net.forward(x).unwrap()), s.random_calls())
    };
    let mut differ = 0;
    for (net, dims) in &all {
        let (train, eval) = (run(net.as_ref(), dims), run(net.eval().as_ref(), dims));
        assert_eq!(eval.1, 0, "{net:?} draws in evaluation");
        assert_eq!(run(net.eval().train().as_ref(), dims), train, "{net:?} is not back in training");
        differ += usize::from(train.0 != eval.0);
    }
    // Those with dropout or batch norm: Gpt, Vit, ResNet, the encoder layer, the block, and the Sequential.
    assert_eq!(differ, 6);
}

#[test]
fn paths_are_those_of_pytorch_where_fields_are_named_so() {
    let mut params = Params::new(&device(), 1);
    let net = Sequential::new()
        .then(Linear::new(&mut params, "0", 2, 3).unwrap())
        .then(Activation::Relu)
        .then(Sequential::new().then(BatchNorm::new(&mut params, "2.0", 3).unwrap()));
    let named = net.named_parameters();
    assert_eq!(named.len(), 6);
    for (path, param) in named {
        assert_eq!(path, param.name());
    }
}

#[test]
fn unfreezing_a_model_leaves_its_running_statistics() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let norm = BatchNorm::new(&mut params, "norm", 3).unwrap();
    params.iter().for_each(|p| p.set_trainable(false));
    assert!(params.iter().all(|p| !p.trainable()));
    params.iter().for_each(|p| p.set_trainable(true));
    let trained: Vec<&str> = params.iter().filter(|p| p.trainable()).map(Param::name).collect();
    assert_eq!(trained, ["norm.weight", "norm.bias"]);
    // A step trains and updates both kinds; in evaluation mode gradients do not flow to the statistics.
    let mean = || params.get("norm.running_mean").unwrap().get::<f32>().unwrap().data().to_vec();
    let x = Tensor::from_fn(Shape::new(&[4, 3]).unwrap(), |i| (i * i % 7) as f32);
    for (norm, moves) in [(norm.eval(), false), (norm, true)] {
        let before = (mean(), params.get("norm.bias").unwrap().get::<f32>().unwrap());
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| norm.forward(v[0])?.square()?.mean());
        step.run(&[(&x).into()]).unwrap();
        assert_eq!(mean() != before.0, moves);
        assert_ne!(params.get("norm.bias").unwrap().get::<f32>().unwrap(), before.1);
    }
}

#[test]
fn a_classifier_is_evaluated_by_its_labels() {
    let d = device();
    // Logits are the inputs themselves, which are not negative.
    let dataset = |dims: &[usize], x: &[f32], y: &[u32]| {
        let (x, y) = (Tensor::new(dims, x.to_vec()), Tensor::new(&dims[..dims.len() - 1], y.to_vec()));
        data::Dataset::new("own", x.unwrap(), y.unwrap(), Some(2)).unwrap()
    };
    let x = [0.0, 1.0, 2.0, 1.0, 0.0, 3.0, 5.0, 0.0];
    let loss = |right: f64, wrong: f64| (1.0 + (wrong - right).exp()).ln();
    let want = [loss(1.0, 0.0), loss(2.0, 1.0), loss(0.0, 3.0), loss(5.0, 0.0)];
    let ignored = data::IGNORE;
    for (dims, labels, loss, accuracy) in [
        (&[4, 2][..], [1, 0, 0, 0], want.iter().sum::<f64>() / 4.0, 0.75),
        (&[2, 2, 2], [1, 0, 0, 0], want.iter().sum::<f64>() / 4.0, 0.75),
        (&[2, 2, 2], [1, ignored, 0, ignored], (want[0] + want[2]) / 2.0, 0.5),
        (&[4, 2], [ignored, 0, ignored, 0], (want[1] + want[3]) / 2.0, 1.0),
    ] {
        for rows in [1, 2, 256] {
            let scores =
                Evaluation::classes(dataset(dims, &x, &labels), |x| x.relu()).rows(rows).run(&d).unwrap();
            assert!((scores.get("loss").unwrap() - loss).abs() < 1e-6, "{dims:?} {labels:?}: {scores:?}");
            assert_eq!((scores.merit, scores.get("accuracy")), (accuracy, Some(accuracy)));
        }
    }
    let mut flat = Evaluation::classes(dataset(&[4, 2], &x, &[0; 4]), |x| x.flatten());
    assert!(flat.run(&d).unwrap_err().to_string().contains("(rows, …, classes)"));
}
