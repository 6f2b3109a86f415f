//! Methods on images against PyTorch in float64: `tests/golden/images.py` writes the file that is read here. Also what the
//! methods refuse, and layers made of them.

use crate::support::device;
use dittograd::nn::{self, Sequential};
use dittograd::ops::{GridMode, GridPadding, PoolWindow};
use dittograd::prelude::*;
use dittograd::session::{AvgPoolOptions, GridSampleOptions, Interpolate, Interpolation, PadMode};
use serde_json::Value;

/// A value and, of some poolings, indices.
type Made<'s> = (Var<'s>, Option<Var<'s>>);

fn window(kernel: &[usize], stride: &[usize], padding: &[usize]) -> PoolWindow {
    PoolWindow::new(kernel, stride, padding)
}

/// The calls that `images.py` makes, by their names.
fn call<'s>(name: &str, v: &[Var<'s>]) -> Result<Made<'s>> {
    let x = v[0];
    let mode = Interpolate::mode;
    let patch = || -> Result<ConvWindow> {
        let each = |a, b| dittograd::ops::Sizes::new(&[a, b]);
        Ok(ConvWindow { stride: each(1, 2)?, padding: each(1, 2)?, dilation: each(2, 1)?, groups: 1 })
    };
    let pads = [1, 2, 2, 0];
    let ceil = AvgPoolOptions { ceil_mode: true, ..AvgPoolOptions::default() };
    let with_indices = |(y, at)| Ok((y, Some(at)));
    let y = match name {
        "interpolate nearest" => x.interpolate(&[7, 4], mode(Interpolation::Nearest))?,
        "interpolate bilinear" => x.interpolate_by(&[1.7, 1.7], mode(Interpolation::Linear))?,
        "interpolate recomputed" => {
            let options = Interpolate { recompute_scale_factor: true, ..mode(Interpolation::Linear) };
            x.interpolate_by(&[1.7, 1.7], options)?
        }
        "interpolate bicubic" => x.interpolate(&[8, 9], mode(Interpolation::Cubic).align_corners())?,
        "interpolate antialias" => x.interpolate(&[2, 3], mode(Interpolation::Cubic).antialias())?,
        "interpolate trilinear" => x.interpolate(&[3, 4, 5], mode(Interpolation::Linear))?,
        "interpolate area" => x.interpolate(&[3, 4], mode(Interpolation::Area))?,
        "affine_grid" => x.affine_grid(&[2, 1, 3, 4], false)?,
        "affine_grid aligned" => x.affine_grid(&[1, 1, 2, 3, 4], true)?,
        "warp" => x.grid_sample(v[1].affine_grid(&[2, 3, 4, 5], false)?, GridSampleOptions::default())?,
        "pad constant" => x.pad_mode(&[1, -2, -1, 3], PadMode::Constant(1.5))?,
        "pad reflect" => x.pad_mode(&pads, PadMode::Reflect)?,
        "pad replicate" => x.pad_mode(&pads, PadMode::Replicate)?,
        "pad circular" => x.pad_mode(&pads, PadMode::Circular)?,
        "pad circular cropped" => x.pad_mode(&[-1, 2, 1, -1], PadMode::Circular)?,
        "im2col" => x.im2col(&[2, 3], patch()?)?,
        "col2im" => x.col2im(&[5, 6], &[2, 3], patch()?)?,
        "pixel_shuffle" => x.pixel_shuffle(2)?,
        "pixel_unshuffle" => x.pixel_unshuffle(3)?,
        "channel_shuffle" => x.channel_shuffle(2)?,
        "local_response_norm" => x.local_response_norm(4, 0.3, 0.6, 1.5)?,
        "max_pool ceil" => {
            return with_indices(x.max_pool_with_indices(window(&[3, 2], &[2, 3], &[1, 0]), true)?);
        }
        "max_pool dilated" => {
            let dilated = PoolWindow { dilation: vec![2, 3], ..window(&[2, 2], &[2, 1], &[1, 1]) };
            return with_indices(x.max_pool_with_indices(dilated, false)?);
        }
        "max_pool1d" => return with_indices(x.max_pool_with_indices(window(&[3], &[3], &[1]), true)?),
        "max_pool3d" => {
            return with_indices(x.max_pool_with_indices(window(&[2; 3], &[2; 3], &[0; 3]), true)?);
        }
        "adaptive_max_pool" => return with_indices(x.adaptive_max_pool_with_indices(&[3, 4])?),
        "avg_pool ceil" => x.avg_pool_with(window(&[3, 2], &[2, 3], &[1, 0]), ceil)?,
        "avg_pool ceil uncounted" => {
            let options = AvgPoolOptions { count_include_pad: false, ..ceil };
            x.avg_pool_with(window(&[3, 3], &[2, 2], &[1, 1]), options)?
        }
        "avg_pool divisor" => {
            let options = AvgPoolOptions { divisor_override: Some(3), ..AvgPoolOptions::default() };
            x.avg_pool_with(window(&[2, 2], &[2, 2], &[1, 1]), options)?
        }
        "avg_pool1d ceil" => x.avg_pool_with(window(&[4], &[3], &[2]), ceil)?,
        "max_unpool" => {
            let at = Tensor::new(&[1, 2, 2, 2], vec![1, 3, 9, 14, 0, 7, 8, 15])?;
            x.max_unpool(x.session().indices(&at)?, &[4, 4])?
        }
        "lp_pool" => x.lp_pool(3.0, &[2, 2], &[2, 2], false)?,
        "lp_pool ceil" => x.lp_pool(2.0, &[3], &[2], true)?,
        "conv same" => {
            let dilation = dittograd::ops::Sizes::new(&[3, 1])?;
            x.conv_same(v[1], None, ConvWindow { dilation, ..ConvWindow::plain(2)? })?
        }
        "conv padded" => {
            x.conv_padded(v[1], Some(v[2]), ConvWindow::plain(2)?.stride(2), &[(0, 2), (1, 3)])?
        }
        "conv_transpose beyond" => {
            let each = |a, b| dittograd::ops::Sizes::new(&[a, b]);
            let window =
                ConvWindow { stride: each(1, 2)?, padding: each(1, 1)?, dilation: each(3, 1)?, groups: 1 };
            x.conv_transpose(v[1], Some(v[2]), window, &[2, 1])?
        }
        _ => panic!("{name} is no call here"),
    };
    Ok((y, None))
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn tensor(v: &Value) -> Tensor<f64> {
    let dims: Vec<usize> =
        v["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    Tensor::new(&dims, numbers(&v["data"])).unwrap()
}

#[track_caller]
fn agree(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1e-3, |m: f64, w| m.max(w.abs()));
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= 2e-6 * size, "{what} at {at} is {g}, PyTorch has {w}");
    }
}

fn agrees_with_pytorch(device: &Device) {
    for line in include_str!("../golden/images.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap();
        let s = Session::eager(device);
        let ins: Vec<Var<'_>> =
            case["ins"].as_array().unwrap().iter().map(|i| s.variable(&tensor(i)).unwrap()).collect();
        let (y, at) = call(name, &ins).unwrap_or_else(|e| panic!("{name}: {e}"));
        let want = tensor(&case["y"]);
        assert_eq!(y.shape().unwrap(), want.shape(), "{name}");
        agree(name, y.value::<f32>().unwrap().data(), want.data());
        if let Some(at) = at {
            let want: Vec<f64> = numbers(&case["indices"]);
            let got: Vec<f64> = at.indices().unwrap().data().iter().map(|&i| f64::from(i)).collect();
            assert_eq!(got, want, "{name}: indices");
        }
        let seed = Tensor::with_shape(want.shape(), numbers(&case["dy"])).unwrap().map(|x| x as f32);
        let grads = y.backward_from(&seed).unwrap();
        for (i, (x, want)) in ins.iter().zip(case["dx"].as_array().unwrap()).enumerate() {
            let got = grads.var(*x).unwrap().to_tensor::<f32>().unwrap();
            agree(&format!("{name}: dx{i}"), got.data(), &numbers(want));
        }
    }
}

#[test]
fn methods_agree_with_pytorch() {
    agrees_with_pytorch(&device());
}

#[test]
fn cuda_methods_agree_with_pytorch() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        agrees_with_pytorch(&gpu);
    }
}

#[test]
fn bad_arguments_are_refused() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.ones(&[1, 2, 4, 4]).unwrap();
    let plain = || ConvWindow::plain(2).unwrap();
    let kernel = s.ones(&[3, 2, 3, 3]).unwrap();
    let refused = |what: &str, answer: Result<Var<'_>>, want: &str| {
        let e = answer.map(|_| ()).unwrap_err().to_string();
        assert!(e.contains(want), "{what}: {e}");
    };
    refused("reflect", x.pad_mode(&[4, 0], PadMode::Reflect), "at most 3");
    refused("circular", x.pad_mode(&[5, 0], PadMode::Circular), "at most 4");
    refused("odd list", x.pad_mode(&[1], PadMode::Replicate), "two numbers");
    refused("crop", x.pad_mode(&[-3, -2], PadMode::Constant(0.0)), "only 4");
    refused("scale", x.interpolate_by(&[0.0], Interpolate::default()), "above 0");
    refused("nearest", x.interpolate(&[8], Interpolate::default().align_corners()), "linear and cubic");
    refused(
        "area",
        x.interpolate(&[8], Interpolate::mode(Interpolation::Area).antialias()),
        "linear and cubic",
    );
    refused(
        "grid",
        x.grid_sample(s.ones(&[1, 2, 2, 3]).unwrap(), GridSampleOptions::default()),
        "grid_sample",
    );
    refused("theta", s.ones(&[1, 2, 2]).unwrap().affine_grid(&[1, 1, 4, 4], false), "(N, 2, 3)");
    refused("same", x.conv_same(kernel, None, plain().stride(2)), "stride 1");
    refused("shuffle", x.pixel_shuffle(3), "channels");
    refused("unshuffle", x.pixel_unshuffle(3), "divide");
    refused("groups", x.channel_shuffle(3), "divide");
    refused("window", x.local_response_norm(0, 1e-4, 0.75, 1.0), "at least 1");
    refused("patch", x.im2col(&[5, 5], plain()), "does not fit");
    refused("patches", x.col2im(&[4, 4], &[2, 2], plain()), "exactly 3");
    refused(
        "divisor",
        x.avg_pool_with(
            window(&[2, 2], &[2, 2], &[0, 0]),
            AvgPoolOptions { divisor_override: Some(0), ..Default::default() },
        ),
        "1 or more",
    );
    refused("dropout", x.channel_dropout(1.5), "got 1.5, use 0 to 1");
    refused("dropout", s.ones(&[3]).unwrap().feature_alpha_dropout(0.5), "at least 2");
    let back = s.ones(&[2, 3, 3, 3]).unwrap();
    refused("output padding", x.conv_transpose(back, None, plain().stride(2), &[2, 2]), "below the stride 2");
}

/// Whole channels are dropped, and dropout for `selu` keeps mean and variance.
#[test]
fn dropouts_drop_channels_and_keep_moments() {
    let s = Session::eager_seeded(&device(), 3);
    let y = s.ones(&[40, 25, 2, 3]).unwrap().channel_dropout(0.5).unwrap().value::<f32>().unwrap();
    let channels: Vec<&[f32]> = y.data().chunks(6).collect();
    assert!(channels.iter().all(|c| c.iter().all(|v| v == &c[0]) && [0.0, 2.0].contains(&c[0])));
    let dropped = channels.iter().filter(|c| c[0] == 0.0).count();
    assert!((400..600).contains(&dropped), "{dropped}");
    for whole in [false, true] {
        let x = s.normal(&[100, 100, 4], 0.0, 1.0).unwrap();
        let y = if whole { x.feature_alpha_dropout(0.3) } else { x.alpha_dropout(0.3) }.unwrap();
        let (mean, std) =
            (y.mean().unwrap().item().unwrap(), y.std(&[0, 1, 2], 0, false).unwrap().item().unwrap());
        assert!(mean.abs() < 0.05 && (std - 1.0).abs() < 0.05, "{mean} {std}");
    }
}

/// Layers do what the methods do, in a sequence, and evaluation drops nothing.
#[test]
fn layers_do_what_methods_do() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let plain = ConvWindow::plain(2).unwrap();
    let conv = nn::Conv2d::new(&mut params, "conv", 3, 8, [3, 3], plain.padding(1)).unwrap();
    let net = Sequential::new()
        .then(conv.clone().padding_mode(PadMode::Reflect))
        .then(nn::ChannelDropout::new(0.5).unwrap())
        .then(nn::AlphaDropout::new(0.5).unwrap())
        .then(nn::FeatureAlphaDropout::new(0.5).unwrap())
        .then(nn::LocalResponseNorm { size: 3, alpha: 1e-4, beta: 0.75, k: 1.0 })
        .then(nn::PixelShuffle { upscale_factor: 2 })
        .then(nn::MaxPool { window: window(&[2, 2], &[2, 2], &[0, 0]), ceil_mode: true })
        .then(nn::PadLayer { pad: vec![1, 1, 1, 1], mode: PadMode::Circular })
        .then(nn::Upsample { factors: vec![2.0, 2.0], options: Interpolate::mode(Interpolation::Linear) })
        .then(nn::AvgPool { window: window(&[2, 2], &[2, 2], &[0, 0]), options: AvgPoolOptions::default() })
        .then(nn::PixelUnshuffle { downscale_factor: 2 })
        .then(nn::ChannelShuffle { groups: 2 })
        .then(nn::Unfold { kernel: vec![2, 2], window: plain })
        .then(nn::Fold { sizes: vec![3, 3], kernel: vec![2, 2], window: plain })
        .then(nn::LpPool { p: 2.0, kernel: vec![2, 2], stride: vec![1, 1], ceil_mode: false })
        .then(nn::AdaptiveMaxPool { sizes: vec![2, 2] })
        .then(nn::AdaptiveAvgPool { sizes: vec![1, 1] });
    let s = Session::eager(&d);
    let x = s.uniform(&[2, 3, 4, 4]).unwrap();
    let y = net.eval().forward(x).unwrap();
    assert_eq!(y.shape().unwrap().dims(), [2, 8, 1, 1]);
    assert_eq!(
        net.eval().forward(x).unwrap().value::<f32>().unwrap().data(),
        y.value::<f32>().unwrap().data()
    );
    let same = conv.same().forward(x).unwrap();
    assert_eq!(same.shape().unwrap().dims(), [2, 8, 4, 4]);
    // A map of an image to itself, and outside of it.
    let still = Tensor::new(&[2, 2, 3], [[1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0]; 2].concat()).unwrap();
    let grid = s.input(&still).unwrap().affine_grid(&[2, 3, 4, 4], false).unwrap();
    for padding_mode in [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection] {
        for mode in [GridMode::Bilinear, GridMode::Nearest, GridMode::Bicubic] {
            let options = GridSampleOptions { mode, padding_mode, align_corners: false };
            let y = x.grid_sample(grid, options).unwrap();
            assert_eq!(y.value::<f32>().unwrap().data(), x.value::<f32>().unwrap().data());
        }
    }
}
