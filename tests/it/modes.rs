//! The models in modes `fast` and `turbo`: one fingerprint in each mode, whatever computes it, and the ones that are written down.

use super::golden_bits::check;
use super::support::fractions;
use dittograd::device::cpu::simd::Simd;
use dittograd::numerics::Numerics;
use dittograd::numerics::digits::include_small_products;
use dittograd::prelude::*;

/// All models, with sizes at which products, attention and convolutions take part.
const MODELS: [&str; 9] = ["mlp", "cnn", "fno1d", "gpt", "fno2d", "resnet", "vit", "autoencoder", "mamba"];

type Net = dyn for<'s> Fn(Var<'s>) -> Result<Var<'s>>;

/// Rows of a batch: numbers, or tokens below 50.
enum Rows {
    Num(Tensor<f32>),
    Idx(Tensor<u32>),
}

fn net(module: impl Forward + 'static) -> Box<Net> {
    Box::new(move |x| module.forward(x))
}

fn model(name: &str, p: &mut Params) -> Result<(Box<Net>, Rows)> {
    let numbers = |dims: &[usize]| Rows::Num(fractions(dims, 7919));
    let tokens = |dims: &[usize]| Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i * i / 3 % 50) as u32);
    Ok(match name {
        "mlp" => (net(Mlp::new(p, &[64, 128, 128, 5])?), numbers(&[130, 64])),
        "cnn" => {
            let config = CnnConfig { channels: 3, image: [16, 16], widths: [32, 64, 64], classes: 5 };
            (net(Cnn::new(p, config)?), numbers(&[3, 3, 16, 16]))
        }
        "fno1d" => {
            let config = Fno1dConfig { inputs: 2, outputs: 1, width: 64, modes: 8, layers: 2, hidden: 128 };
            (net(Fno1d::new(p, config)?), numbers(&[4, 65, 2]))
        }
        "fno2d" => {
            let (width, modes) = (64, [3, 3]);
            let config = Fno2dConfig { inputs: 2, outputs: 1, width, modes, layers: 2, hidden: 128 };
            (net(Fno2d::new(p, config)?), numbers(&[3, 9, 10, 2]))
        }
        "gpt" => {
            let config = GptConfig { vocab: 50, context: 70, width: 64, heads: 2, layers: 2, dropout: 0.1 };
            (net(Gpt::new(p, config)?), Rows::Idx(tokens(&[2, 70])))
        }
        "resnet" => {
            let config = ResNetConfig { channels: 3, depth: 8, width: 32, classes: 5 };
            (net(ResNet::new(p, config)?), numbers(&[3, 3, 16, 16]))
        }
        "vit" => {
            let config = VitConfig {
                channels: 3,
                image: [32, 32],
                patch: [4, 4],
                width: 64,
                heads: 2,
                layers: 2,
                hidden: 256,
                classes: 5,
                ..VitConfig::default()
            };
            (net(Vit::new(p, config)?), numbers(&[2, 3, 32, 32]))
        }
        "autoencoder" => {
            let config = AutoencoderConfig { channels: 3, image: [16, 16], widths: vec![32, 64], latent: 64 };
            (net(Autoencoder::new(p, config)?), numbers(&[3, 3, 16, 16]))
        }
        _ => {
            let config = MambaConfig { vocab: 50, width: 64, layers: 2, ..MambaConfig::default() };
            (net(Mamba::new(p, config)?), Rows::Idx(tokens(&[2, 70])))
        }
    })
}

fn loss(y: Var<'_>) -> Result<Var<'_>> {
    y.mse(y.session().constant(&fractions(y.shape()?.dims(), 104_729))?)
}

/// The parameters' fingerprint after two steps.
fn fingerprint(name: &str, device: &Device, compiled: bool) -> Result<String> {
    let mut params = Params::new(device, 3);
    let (net, rows) = model(name, &mut params)?;
    let mut optimizer = Optimizer::adamw(0.01);
    if compiled {
        let mut step = TrainStep::new(&params, optimizer, |v| loss(net(v[0])?));
        for _ in 0..2 {
            match &rows {
                Rows::Num(x) => step.run(&[x.into()])?,
                Rows::Idx(x) => step.run(&[x.into()])?,
            };
        }
    } else {
        let session = Session::eager(device);
        for _ in 0..2 {
            let x = match &rows {
                Rows::Num(x) => session.input(x)?,
                Rows::Idx(x) => session.indices(x)?,
            };
            optimizer.step(&params, loss(net(x)?)?.backward()?)?;
            session.reset();
        }
    }
    params.fingerprint()
}

#[test]
fn every_model_has_one_answer_in_each_mode() {
    include_small_products();
    let gpu = dittograd_check::gpu();
    let mut lines = String::new();
    for name in MODELS {
        let strict = fingerprint(name, &Device::cpu().unwrap(), true).unwrap();
        for mode in [Numerics::Fast, Numerics::Turbo] {
            let cpu = |threads, simd| Device::cpu_with(threads, simd).unwrap().in_mode(mode).unwrap();
            let want = fingerprint(name, &cpu(2, Simd::best()), true).unwrap();
            assert_ne!(want, strict, "{name} in mode {mode} has nothing in digits");
            let mut ways = vec![
                (cpu(3, Simd::best()), false),
                (cpu(1, Simd::Avx2), true),
                (cpu(2, Simd::Scalar), false),
            ];
            if let Some((_turn, gpu)) = &gpu {
                let gpu = gpu.in_mode(mode).unwrap();
                ways.extend([(gpu.clone(), true), (gpu, false)]);
            }
            for (device, compiled) in ways {
                let got = fingerprint(name, &device, compiled).unwrap();
                assert_eq!(got, want, "{name} on {device}, compiled: {compiled}");
            }
            lines += &format!("{name} {mode} {want}\n");
        }
    }
    check("modes.txt", &lines, "it is a new NUMERICS_VERSION, a line in NUMERICS.md");
}
