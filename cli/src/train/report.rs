//! Pictures of a run: curves, and predictions beside the truth.

use super::Spec;
use crate::Answer;
use crate::models::{Net, Task};
use crate::picture::{self, Field, Line, MapRow, Panel, Scatter, Tile};
use crate::task::{Data, best, predict, relative, spelled};
use dittograd::data::Dataset;
use dittograd::io::atomic;
use dittograd::nn::Sampling;
use dittograd::prelude::*;
use serde_json::Value;

/// Samples shown of fields, maps, pictures and texts.
const FIELDS: usize = 4;
const MAPS: usize = 3;
const TILES: usize = 40;
const PAIRS: usize = 10;
const TEXTS: usize = 20;
/// Rows and columns of numbers shown against the truth.
const DOTS: usize = 1000;
const SCATTERS: usize = 6;
/// Tokens of the prompt, and of the text generated after it.
const PROMPT: usize = 16;
const WRITTEN: usize = 400;

/// Scores that have a curve besides the loss: as they are measured, the title, and whether the axis is logarithmic.
pub(super) const SCORES: [(&str, &str, bool); 5] = [
    ("test_accuracy", "Test accuracy", false),
    ("test_exact", "Exact answers", false),
    ("test_relative_l2", "Test relative L2 error", true),
    ("test_rmse", "Test RMSE", true),
    ("test_perplexity", "Test perplexity", true),
];

/// Writes all pictures of a run into its folder.
pub(super) fn pictures(
    folder: &RunFolder,
    spec: &Spec,
    net: &Net,
    device: &Device,
    data: &Data,
) -> Answer<()> {
    let title = format!("{} on {}", spec.model.name(), data.train.name());
    curves(folder, &title)?;
    let eval = net.module().eval();
    let first = |count: usize| data.test.take(&(0..count.min(data.test.rows())).collect::<Vec<_>>());
    let path = |name: &str| folder.path().join(name);
    match spec.task {
        Task::Field => {
            let (x, y) = first(FIELDS)?;
            let out = data.scales.outputs(predict(device, eval.as_ref(), &x)?)?;
            let (y, x) = (data.scales.outputs(y.num()?.clone())?, data.scales.raw_inputs(x)?);
            match x.shape().rank() {
                3 => fields(&path("prediction"), &title, &x, &y, &out),
                _ => maps(&path("prediction"), &title, &x, &y, &out),
            }
        }
        Task::Classes if data.test.x().shape().rank() == 4 => {
            let (x, y) = first(TILES)?;
            let out = predict(device, eval.as_ref(), &x)?;
            let rows = out.data().chunks_exact(out.shape().last()).zip(y.idx()?.data());
            let tile = |(i, (row, label)): (usize, (&[f32], &u32))| {
                let class = best(row);
                let right = class == Some(*label as usize);
                let said = class.map_or_else(|| "?".into(), |c| spec.class_name(c));
                let label =
                    if right { said } else { format!("{said} (is {})", spec.class_name(*label as usize)) };
                Ok(Tile { label, right: Some(right), ..image(x.num()?, i) })
            };
            let tiles = rows.enumerate().map(tile).collect::<Answer<Vec<_>>>()?;
            picture::samples(&path("samples"), &title, &tiles)
        }
        Task::Itself if data.test.x().shape().rank() == 4 => {
            let (x, _) = first(PAIRS)?;
            let out = predict(device, eval.as_ref(), &x)?;
            let pair = |i: usize| -> Answer<(Tile, Tile)> {
                let said = format!("{:.3}", relative(row(x.num()?, i), row(&out, i)));
                Ok((image(x.num()?, i), Tile { label: said, ..image(&out, i) }))
            };
            let pairs = (0..x.shape().dims()[0]).map(pair).collect::<Answer<Vec<_>>>()?;
            picture::pairs(&path("reconstructions"), &title, &pairs)
        }
        Task::Text => {
            let text = written(spec, net, &data.test)?;
            Ok(atomic::write(path("samples.txt"), text.as_bytes())?)
        }
        Task::Numbers => {
            let (x, y) = first(DOTS)?;
            let out = data.scales.outputs(predict(device, eval.as_ref(), &x)?)?;
            scatters(&path("prediction"), &title, &data.scales.outputs(y.num()?.clone())?, &out)
        }
        Task::Classes | Task::Itself => Ok(()),
    }
}

/// Draws predictions of numbers against the truth, a plot for each of the first few columns.
fn scatters(path: &std::path::Path, title: &str, y: &Tensor<f32>, out: &Tensor<f32>) -> Answer<()> {
    let columns = y.shape().last();
    let column = |c: usize| {
        let of = |t: &Tensor<f32>| {
            t.data().iter().skip(c).step_by(columns).map(|v| f64::from(*v)).collect::<Vec<_>>()
        };
        Scatter {
            name: if columns == 1 { "Test rows".into() } else { format!("Target {c} of test rows") },
            points: of(y).into_iter().zip(of(out)).collect(),
        }
    };
    picture::scatters(path, title, &(0..columns.min(SCATTERS)).map(column).collect::<Vec<_>>())
}

/// A measurement against the step.
pub(super) fn points(lines: &[Value], key: &str) -> Vec<(f64, f64)> {
    let at = |v: &Value| Some((v["step"].as_f64()?, v[key].as_f64()?));
    lines.iter().filter_map(at).collect()
}

/// Draws losses and measures against the step.
fn curves(folder: &RunFolder, title: &str) -> Answer<()> {
    let line = |name: &str, key: &str| Line { name: name.into(), points: points(folder.lines(), key) };
    let mut panels = vec![Panel {
        title: "Loss".into(),
        y: "loss".into(),
        log: true,
        lines: vec![line("training", "loss"), line("test", "test_loss")],
    }];
    for (key, title, log) in SCORES {
        let lines = vec![line(title, key)];
        if !lines[0].points.is_empty() {
            panels.push(Panel { title: title.into(), y: String::new(), log, lines });
        }
    }
    let rate = line("learning rate", "lr");
    if rate.points.iter().any(|p| p.1 != rate.points[0].1) {
        panels.push(Panel { title: "Learning rate".into(), y: String::new(), log: false, lines: vec![rate] });
    }
    // A run that ended before its first measurement has no curves.
    if panels.iter().all(|p| p.lines.iter().all(|l| l.points.is_empty())) {
        return Ok(());
    }
    picture::curves(&folder.path().join("curves"), title, &panels)
}

/// Sample `i` of a tensor.
fn row(t: &Tensor<f32>, i: usize) -> &[f32] {
    let wide = t.data().len() / t.shape().dims()[0].max(1);
    &t.data()[i * wide..(i + 1) * wide]
}

/// Picture `i` of a tensor.
fn image(t: &Tensor<f32>, i: usize) -> Tile {
    let d = t.shape();
    let d = d.dims();
    Tile { pixels: row(t, i).to_vec(), size: [d[2], d[3]], channels: d[1], label: String::new(), right: None }
}

/// One channel of a sample.
fn channel(t: &Tensor<f32>, i: usize, channel: usize) -> Vec<f32> {
    row(t, i).iter().skip(channel).step_by(t.shape().last()).copied().collect()
}

fn fields(
    path: &std::path::Path,
    title: &str,
    x: &Tensor<f32>,
    y: &Tensor<f32>,
    out: &Tensor<f32>,
) -> Answer<()> {
    let wide = |v: Vec<f32>| -> Vec<f64> { v.into_iter().map(f64::from).collect() };
    let grid = x.shape().dims()[1];
    let field = |i: usize| Field {
        name: format!("Test sample {i}"),
        // The position is the last channel of the inputs if there is more than one.
        x: match x.shape().last() {
            1 => (0..grid).map(|p| p as f64 / grid as f64).collect(),
            channels => wide(channel(x, i, channels - 1)),
        },
        input: wide(channel(x, i, 0)),
        truth: wide(channel(y, i, 0)),
        prediction: wide(channel(out, i, 0)),
    };
    let all: Vec<Field> = (0..x.shape().dims()[0]).map(field).collect();
    picture::fields(path, title, &all)
}

fn maps(
    path: &std::path::Path,
    title: &str,
    x: &Tensor<f32>,
    y: &Tensor<f32>,
    out: &Tensor<f32>,
) -> Answer<()> {
    let size = [x.shape().dims()[1], x.shape().dims()[2]];
    let map = |i: usize| MapRow {
        name: format!("Test sample {i}"),
        size,
        input: channel(x, i, 0),
        truth: channel(y, i, 0),
        prediction: channel(out, i, 0),
    };
    let all: Vec<MapRow> = (0..x.shape().dims()[0].min(MAPS)).map(map).collect();
    picture::maps(path, title, &all)
}

/// Generated text: answers to unseen questions, or a continuation.
fn written(spec: &Spec, net: &Net, test: &Dataset) -> Answer<String> {
    use dittograd::data::arithmetic::{ANSWER, QUESTION, answer, decode};
    let x = test.x().idx()?;
    let wide = x.shape().last();
    let mut text = String::new();
    if spec.data.name == "additions" {
        for line in x.data().chunks_exact(wide).take(TEXTS) {
            let question = &line[..QUESTION.min(wide)];
            let said = answer(&net.write(question, ANSWER, Sampling::GREEDY)?)
                .map_or_else(|| "?".into(), |n| n.to_string());
            text += &format!("{} {said}\n", decode(question));
        }
        return Ok(text);
    }
    let prompt = &x.data()[..wide.min(PROMPT)];
    let more = net.write(prompt, WRITTEN, Sampling { temperature: 0.8, top_k: Some(40), seed: spec.seed })?;
    text += &String::from_utf8_lossy(&spelled(&spec.data.tokenizer(), &[prompt, &more].concat()));
    text.push('\n');
    Ok(text)
}
