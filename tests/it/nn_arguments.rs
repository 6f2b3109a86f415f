//! Layers with arguments other than the defaults, and those that are made of others, as cases of the tests in `nn.rs`.

use super::nn::{Case, Data, fill, flat, times};
use dittograd::nn::{self, Activation, AttentionMasks, DecoderMasks, NormConfig, RecurrentConfig};
use dittograd::prelude::*;

pub const LAYERS: [&str; 22] = [
    "layer_norm_axes",
    "layer_norm_plain",
    "rms_norm_axes",
    "group_norm_plain",
    "batch_norm_momentum",
    "attention_masked",
    "attention_values",
    "decoder_layer",
    "decoder_layer_first",
    "encoder",
    "transformer",
    "bilinear",
    "rnn_relu",
    "lstm_projected",
    "gru_lengths",
    "lstm_lengths",
    "rnn_cell",
    "gru_cell",
    "lstm_cell",
    "prelu",
    "activations",
    "attention_dropout",
];

fn mask(dims: &[usize], data: &[u8]) -> Tensor<f32> {
    Tensor::new(dims, data.iter().map(|&x| f32::from(x)).collect()).unwrap()
}

fn lengths<'s>(s: &'s Session, of: [u32; 2]) -> Result<Var<'s>> {
    s.indices(&Tensor::new(&[2], of.to_vec())?)
}

/// The case of that name.
pub fn case(name: &str, p: &mut Params, dropout: f64, eval: bool) -> Case {
    let of = |x: Tensor<f32>, f: nn::Lambda| Case {
        net: Box::new(move |x| f.forward(x)),
        x: Data::Num(x),
        y: None,
    };
    let small = |dims: &[usize]| fill(dims, 90);
    let large = |dims: &[usize]| times(&fill(dims, 90), 4.0);
    let plain = NormConfig { affine: false, ..NormConfig::default() };
    let recurrent =
        RecurrentConfig { inputs: 3, hidden: 4, layers: 2, dropout, ..RecurrentConfig::default() };
    let memory = times(&fill(&[2, 3, 6], 92), 4.0);
    let keys = mask(&[2, 3], &[1, 1, 0, 1, 0, 1]);
    let config = nn::TransformerConfig {
        width: 6,
        heads: 2,
        hidden: 8,
        dropout,
        activation: Activation::Relu,
        norm_first: false,
        causal: true,
    };
    match name {
        "layer_norm_axes" => {
            let config = NormConfig { eps: 1e-3, bias: false, ..NormConfig::default() };
            let layer = nn::LayerNorm::with(p, "layer", &[3, 5], config).unwrap();
            of(large(&[2, 3, 5]), nn::Lambda::new("norm", move |x| layer.forward(x)))
        }
        "layer_norm_plain" => {
            let linear = Linear::new(p, "layer.0", 5, 5).unwrap();
            let norm = nn::LayerNorm::with(p, "layer.1", &[5], plain).unwrap();
            of(large(&[2, 3, 5]), nn::Lambda::new("norm", move |x| norm.forward(linear.forward(x)?)))
        }
        "rms_norm_axes" => {
            let config = NormConfig { eps: 1e-6, ..NormConfig::default() };
            let layer = nn::RmsNorm::with(p, "layer", &[3, 5], config).unwrap();
            of(large(&[2, 3, 5]), nn::Lambda::new("norm", move |x| layer.forward(x)))
        }
        "group_norm_plain" => {
            let linear = Linear::new(p, "layer.0", 3, 3).unwrap();
            let config = NormConfig { eps: 1e-3, ..plain };
            let norm = nn::GroupNorm::with(p, "layer.1", 2, 4, config).unwrap();
            of(large(&[2, 4, 3]), nn::Lambda::new("norm", move |x| norm.forward(linear.forward(x)?)))
        }
        "batch_norm_momentum" => {
            let config = nn::BatchNormConfig { eps: 1e-3, momentum: 0.25, ..Default::default() };
            let layer = nn::BatchNorm::with(p, "layer", 3, config).unwrap();
            let layer = if eval { layer.eval() } else { layer };
            of(large(&[2, 3, 4, 5]), nn::Lambda::new("norm", move |x| layer.forward(x)))
        }
        "attention_masked" => {
            let layer = nn::MultiheadAttention::new(p, "layer", 6, 2, false).unwrap();
            let open = mask(&[5, 3], &[1, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 1]);
            let f = nn::Lambda::new("attention", move |x| {
                let s = x.session();
                let (mask, keys) = (Some(s.constant(&open)?), Some(s.constant(&keys)?));
                let masks = AttentionMasks { mask, keys, ..AttentionMasks::default() };
                layer.forward_masked(x, s.constant(&memory)?, None, masks)
            });
            of(large(&[2, 5, 6]), f)
        }
        "attention_values" => {
            let layer = nn::MultiheadAttention::new(p, "layer", 6, 2, false).unwrap();
            let (values, bias) = (times(&fill(&[2, 3, 6], 93), 4.0), times(&fill(&[5, 3], 94), 4.0));
            let f = nn::Lambda::new("attention", move |x| {
                let s = x.session();
                let masks = AttentionMasks { bias: Some(s.constant(&bias)?), ..AttentionMasks::default() };
                layer.forward_masked(x, s.constant(&memory)?, Some(s.constant(&values)?), masks)
            });
            of(large(&[2, 5, 6]), f)
        }
        "attention_dropout" => {
            let layer = nn::MultiheadAttention::new(p, "layer", 6, 2, false).unwrap();
            let layer = layer.dropout(dropout).unwrap();
            of(large(&[2, 5, 6]), nn::Lambda::new("attention", move |x| layer.forward(x)))
        }
        "decoder_layer" | "decoder_layer_first" => {
            let norm_first = name == "decoder_layer_first";
            let activation = if norm_first { Activation::GeluErf } else { Activation::Relu };
            let config = nn::TransformerConfig { norm_first, activation, ..config };
            let layer = nn::TransformerDecoderLayer::new(p, "layer", config).unwrap();
            let f = nn::Lambda::new("decoder", move |x| {
                let s = x.session();
                let of = AttentionMasks { keys: Some(s.constant(&keys)?), ..AttentionMasks::default() };
                let masks = DecoderMasks { memory: of, ..DecoderMasks::default() };
                layer.forward(x, s.constant(&memory)?, masks)
            });
            of(large(&[2, 5, 6]), f)
        }
        "encoder" => {
            let config = nn::TransformerConfig { causal: false, ..config };
            let layer = nn::TransformerEncoder::new(p, "layer", config, 2, true).unwrap();
            let keys = mask(&[2, 5], &[1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
            let f = nn::Lambda::new("encoder", move |x| {
                let keys = Some(x.session().constant(&keys)?);
                layer.forward_masked(x, AttentionMasks { keys, ..AttentionMasks::default() })
            });
            of(large(&[2, 5, 6]), f)
        }
        "transformer" => {
            let layer = nn::Transformer::new(p, "layer", config, 1, 2).unwrap();
            let f = nn::Lambda::new("transformer", move |x| {
                let source = x.session().constant(&memory)?;
                layer.forward(source, x, AttentionMasks::default(), DecoderMasks::default())
            });
            of(large(&[2, 5, 6]), f)
        }
        "bilinear" => {
            let layer = nn::Bilinear::new(p, "layer", [3, 4], 5, true).unwrap();
            let other = fill(&[2, 3, 4], 92);
            let f = nn::Lambda::new("bilinear", move |x| layer.forward(x, x.session().constant(&other)?));
            of(small(&[2, 3, 3]), f)
        }
        "rnn_relu" => {
            let config = RecurrentConfig { layers: 1, bias: false, ..recurrent };
            let layer = nn::Rnn::relu(p, "layer", config).unwrap();
            let f = nn::Lambda::new("rnn", move |x| {
                let (out, last) = layer.forward(x, None)?;
                flat(&[out, last])
            });
            of(small(&[2, 5, 3]), f)
        }
        "lstm_projected" => {
            let config = RecurrentConfig { bidirectional: true, projection: 2, ..recurrent };
            let layer = nn::Lstm::new(p, "layer", config).unwrap();
            let f = nn::Lambda::new("lstm", move |x| {
                let (out, [h, c]) = layer.forward(x, None)?;
                flat(&[out, h, c])
            });
            of(small(&[2, 5, 3]), f)
        }
        "gru_lengths" => {
            let config = RecurrentConfig { bidirectional: true, ..recurrent };
            let layer = nn::Gru::new(p, "layer", config).unwrap();
            let f = nn::Lambda::new("gru", move |x| {
                let (out, last) = layer.forward_lengths(x, lengths(x.session(), [3, 5])?, None)?;
                flat(&[out, last])
            });
            of(small(&[2, 5, 3]), f)
        }
        "lstm_lengths" => {
            let layer = nn::Lstm::new(p, "layer", recurrent).unwrap();
            let f = nn::Lambda::new("lstm", move |x| {
                let (out, [h, c]) = layer.forward_lengths(x, lengths(x.session(), [5, 2])?, None)?;
                flat(&[out, h, c])
            });
            of(small(&[2, 5, 3]), f)
        }
        "rnn_cell" => {
            let cell = nn::RnnCell::new(p, "layer", 3, 4).unwrap();
            of(small(&[2, 3]), nn::Lambda::new("cell", move |x| Ok(cell.forward(x, None)?[0])))
        }
        "gru_cell" => {
            let cell = nn::GruCell::new(p, "layer", 3, 4).unwrap();
            let state = fill(&[2, 4], 92);
            let f = nn::Lambda::new("cell", move |x| {
                let state = x.session().constant(&state)?;
                Ok(cell.forward(x, Some([state]))?[0])
            });
            of(small(&[2, 3]), f)
        }
        "lstm_cell" => {
            let cell = nn::LstmCell::new(p, "layer", 3, 4).unwrap();
            let states = [fill(&[2, 4], 92), fill(&[2, 4], 93)];
            let f = nn::Lambda::new("cell", move |x| {
                let s = x.session();
                let [h, c] = cell.forward(x, Some([s.constant(&states[0])?, s.constant(&states[1])?]))?;
                flat(&[h, c])
            });
            of(small(&[2, 3]), f)
        }
        "prelu" => {
            let layer = nn::Prelu::new(p, "layer", 3).unwrap();
            of(small(&[2, 3, 4]), nn::Lambda::new("prelu", move |x| layer.forward(x)))
        }
        "activations" => {
            let linear = Linear::new(p, "layer", 3, 4).unwrap();
            use Activation::*;
            let all = [
                LogSigmoid,
                Mish,
                Hardsigmoid,
                Hardswish,
                Hardtanh,
                Relu6,
                LeakyRelu,
                Elu,
                Softmax,
                LogSoftmax,
            ];
            let f = nn::Lambda::new("all", move |x| {
                let y = linear.forward(x)?;
                let parts = all.iter().map(|f| f.forward(y)).collect::<Result<Vec<_>>>()?;
                x.session().concat(&parts, 0)
            });
            of(times(&small(&[2, 3]), 8.0), f)
        }
        _ => panic!("no case {name}"),
    }
}
