//! Pictures of a run, each as an SVG and a PNG file with the same bytes on every machine: training curves, fields of
//! neural operators beside the truth, images with the model's predictions.
//!
//! A picture is a list of shapes (`scene`), which is written as SVG or rasterized (`raster`) with fonts that the
//! program contains, since a machine may have none.

mod axes;
mod images;
mod png;
mod raster;
mod scene;

use crate::task::squares;
use crate::{Answer, fail};
use axes::{Curve, Plot, three};
use dittograd::io::atomic;
pub(crate) use images::{MapRow, Tile, maps, pairs, samples};
use raster::text_width;
use scene::{Anchor, Font, INK, LINES, Scene, Shape};
use std::path::Path;

/// Space around a picture.
const MARGIN: f64 = 24.0;
/// The title of a picture.
const TITLE: Font = Font { size: 20.0, bold: true, colour: INK };
/// The title of a part of it.
const PART: Font = Font { size: 16.0, bold: true, colour: INK };
/// Names of lines.
const NAME: Font = Font { size: 15.0, bold: false, colour: INK };
/// The most parts of a picture.
const MOST_PARTS: usize = 64;
/// Lines with more points than this look like a band.
const MAX_LINE_POINTS: usize = 2000;
/// Length of the sample line beside a name.
const SWATCH: f64 = 26.0;

/// One plot among several: values against the training step.
pub(crate) struct Panel {
    /// What it shows.
    pub(crate) title: String,
    /// What the values are, along the axis; may be empty.
    pub(crate) y: String,
    /// Whether the axis is logarithmic; values that are not positive are left out then.
    pub(crate) log: bool,
    /// The lines, drawn in order.
    pub(crate) lines: Vec<Line>,
}

/// A line of a [`Panel`].
pub(crate) struct Line {
    /// Its name, shown if there is more than one line.
    pub(crate) name: String,
    /// Steps and values. Points that are not finite leave a gap.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A field on a line and a neural operator's prediction.
pub(crate) struct Field {
    /// What it is called.
    pub(crate) name: String,
    /// The positions.
    pub(crate) x: Vec<f64>,
    /// The model's input, drawn lightly; may be empty.
    pub(crate) input: Vec<f64>,
    /// The true field.
    pub(crate) truth: Vec<f64>,
    /// The predicted field.
    pub(crate) prediction: Vec<f64>,
}

/// Predicted numbers against true ones.
pub(crate) struct Scatter {
    /// What it shows.
    pub(crate) name: String,
    /// The truth and the prediction. Points that are not finite are left out.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws predictions against the truth into `path.svg` and `path.png`, over the diagonal on which they would be right, with
/// the root of the mean squared error above.
pub(crate) fn scatters(path: &Path, title: &str, all: &[Scatter]) -> Answer<()> {
    count(path, "columns of numbers", all.len(), MOST_PARTS)?;
    let part = |scatter: &Scatter| {
        let (points, n) = (&scatter.points, scatter.points.len().max(1) as f64);
        let error = (points.iter().map(|(t, p)| (p - t) * (p - t)).sum::<f64>() / n).sqrt();
        let truths = points.iter().map(|p| p.0).filter(|t| t.is_finite());
        let ends = [truths.clone().fold(f64::INFINITY, f64::min), truths.fold(f64::NEG_INFINITY, f64::max)];
        let right = Curve {
            points: ends.iter().map(|end| (*end, *end)).collect(),
            name: "truth",
            colour: [178; 3],
            width: 2.0,
            dash: Some([8.0, 4.0]),
            dots: false,
        };
        let dots = Curve {
            points: points.clone(),
            name: "prediction",
            colour: LINES[0],
            width: 1.5,
            dash: None,
            dots: true,
        };
        let plot = Plot {
            curves: vec![right, dots],
            log: false,
            whole: false,
            x_name: "truth",
            y_name: "prediction",
        };
        (format!("{} · RMSE {}", scatter.name, three(error)), plot, false)
    };
    let size = if all.len() == 1 { [400.0, 360.0] } else { [300.0, 270.0] };
    plots(path, title, all.iter().map(part).collect(), size, None)
}

/// Draws curves against the training step into `path.svg` and `path.png`. Lines and panels without points are left out;
/// there must be at least one point.
pub(crate) fn curves(path: &Path, title: &str, panels: &[Panel]) -> Answer<()> {
    let drawn = |p: &&Panel| p.lines.iter().any(|l| !l.points.is_empty());
    let panels: Vec<&Panel> = panels.iter().filter(drawn).collect();
    count(path, "panels with points", panels.len(), MOST_PARTS)?;
    let parts = panels.iter().map(|p| part(p)).collect();
    plots(path, title, parts, if panels.len() == 1 { [560.0, 320.0] } else { [360.0, 240.0] }, None)
}

/// Steps and values.
type Points = Vec<(f64, f64)>;

/// A plot of the same lines of several runs.
pub(crate) struct Spread {
    /// What it shows.
    pub(crate) title: String,
    /// Whether the axis is logarithmic.
    pub(crate) log: bool,
    /// Lines by name, each with the steps and values of every run.
    pub(crate) lines: Vec<(String, Vec<Points>)>,
}

/// Draws lines of several runs into `path.svg` and `path.png`: their mean over the runs that have a value, and each run pale
/// behind it. Lines without points are left out; there must be at least one point.
pub(crate) fn spreads(path: &Path, title: &str, all: &[Spread]) -> Answer<()> {
    let parts: Vec<_> = all.iter().filter_map(spread).collect();
    count(path, "panels with points", parts.len(), MOST_PARTS)?;
    let size = if parts.len() == 1 { [560.0, 320.0] } else { [360.0, 240.0] };
    plots(path, title, parts, size, None)
}

/// A spread as a plot, and whether its lines need names.
fn spread(all: &Spread) -> Option<(String, Plot<'_>, bool)> {
    let lines: Vec<_> = all.lines.iter().filter(|(_, runs)| runs.iter().any(|r| !r.is_empty())).collect();
    let curve = |points, name, colour, width| Curve { points, name, colour, width, dash: None, dots: false };
    let mut curves = Vec::new();
    for ((_, runs), colour) in lines.iter().zip(LINES) {
        let pale = colour.map(|c| c / 3 + 170);
        curves.extend(runs.iter().map(|run| curve(run.clone(), "", pale, 1.0)));
    }
    for ((name, runs), colour) in lines.iter().zip(LINES) {
        curves.push(curve(mean(runs), name, colour, 2.25));
    }
    let plot = Plot { curves, log: all.log, whole: true, x_name: "step", y_name: "" };
    (!lines.is_empty()).then(|| (all.title.clone(), plot, lines.len() > 1))
}

/// The mean of runs at every step that one of them has a value at.
fn mean(runs: &[Points]) -> Points {
    let mut all: Points = runs.iter().flatten().copied().collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let of = |same: &[(f64, f64)]| (same[0].0, same.iter().map(|p| p.1).sum::<f64>() / same.len() as f64);
    all.chunk_by(|a, b| a.0 == b.0).map(of).collect()
}

/// A panel as a plot, and whether its lines need names.
fn part(panel: &Panel) -> (String, Plot<'_>, bool) {
    let mut curves: Vec<Curve> = Vec::new();
    for line in panel.lines.iter().filter(|l| !l.points.is_empty()) {
        let i = curves.len();
        let dash = [None, Some([8.0, 4.0]), Some([2.0, 3.0])][i / LINES.len() % 3];
        let (mut colour, points) = (LINES[i % LINES.len()], line.points.clone());
        // Many points are mostly noise: draw a thinner line.
        let width = if points.len() > 250 { 1.5 } else { 2.25 };
        if points.len() > MAX_LINE_POINTS && panel.lines.len() > 1 {
            // Paler, so that it does not hide the others.
            colour = colour.map(|c| c / 2 + 127);
        }
        curves.push(Curve { points, name: &line.name, colour, width, dash, dots: false });
    }
    let legend = curves.len() > 1;
    (
        panel.title.clone(),
        Plot { curves, log: panel.log, whole: true, x_name: "step", y_name: &panel.y },
        legend,
    )
}

/// Draws fields on a line into `path.svg` and `path.png`: the input, the truth, and the prediction dashed over it, with
/// the relative L2 error above.
pub(crate) fn fields(path: &Path, title: &str, samples: &[Field]) -> Answer<()> {
    count(path, "fields", samples.len(), MOST_PARTS)?;
    let mut parts = Vec::with_capacity(samples.len());
    let any_input = samples.iter().any(|f| !f.input.is_empty());
    for field in samples {
        let n = field.x.len();
        let same = [field.truth.len(), field.prediction.len()] == [n; 2];
        if n == 0 || !same || !(field.input.is_empty() || field.input.len() == n) {
            return bad(
                path,
                &format!(
                    "field '{}' has {n} places, {} values given, {} true and {} predicted ones; as many of each are needed",
                    field.name,
                    field.input.len(),
                    field.truth.len(),
                    field.prediction.len()
                ),
            );
        }
        let along = |values: &[f64]| field.x.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
        let mut curves = vec![
            Curve {
                points: along(&field.truth),
                name: "truth",
                colour: LINES[5],
                width: 5.0,
                dash: None,
                dots: false,
            },
            Curve {
                points: along(&field.prediction),
                name: "prediction",
                colour: [160, 50, 0],
                width: 2.25,
                dash: Some([8.0, 4.0]),
                dots: false,
            },
        ];
        if any_input {
            let points = along(&field.input);
            curves.insert(
                0,
                Curve { points, name: "input", colour: [178; 3], width: 2.0, dash: None, dots: false },
            );
        }
        let error = relative(field.truth.iter().copied(), field.prediction.iter().copied());
        let plot = Plot { curves, log: false, whole: false, x_name: "x", y_name: "" };
        parts.push((titled(&field.name, error), plot, false));
    }
    let size = if samples.len() == 1 { [560.0, 320.0] } else { [320.0, 220.0] };
    let names = parts.iter().map(|p| p.1.curves.len()).max();
    plots(path, title, parts, size, names)
}

/// Relative L2 error of a prediction; NaN if the truth is zero and the prediction is not.
fn relative(truth: impl Iterator<Item = f64> + Clone, prediction: impl Iterator<Item = f64>) -> f64 {
    let [off, size] = squares(truth, prediction);
    if off == 0.0 {
        0.0
    } else if size == 0.0 {
        f64::NAN
    } else {
        (off / size).sqrt()
    }
}

/// A name followed by the error.
fn titled(name: &str, error: f64) -> String {
    let error = if error.is_finite() { format!("{} %", three(100.0 * error)) } else { three(error) };
    if name.is_empty() { format!("error {error}") } else { format!("{name} · error {error}") }
}

/// Plots in a grid. With `shared`, the names of lines appear once, at the top.
fn plots(
    path: &Path,
    title: &str,
    parts: Vec<(String, Plot, bool)>,
    [width, height]: [f64; 2],
    shared: Option<usize>,
) -> Answer<()> {
    let columns = if parts.len() == 4 { 2 } else { parts.len().min(3) };
    let left = parts.iter().map(|p| p.1.left(height)).fold(0.0, f64::max);
    let below = parts.iter().map(|p| p.1.below()).fold(0.0, f64::max);
    let cell = left + width;
    let mut scene = Scene::default();
    let all = cell * columns as f64 + 36.0 * (columns - 1) as f64;
    scene.width = (all + 2.0 * MARGIN).ceil();
    let mut top = header(&mut scene, title);
    if let Some(lines) = shared
        && let Some((_, plot, _)) = parts.iter().find(|p| p.1.curves.len() == lines)
    {
        let legend: Vec<&Curve> = plot.curves.iter().collect();
        top = names(&mut scene, &legend, MARGIN + left, top, all - left) + 4.0;
    }
    // Within a row, all plots reserve as many lines for names.
    for row in parts.chunks(columns) {
        let mut start = top;
        for (i, (title, plot, legend)) in row.iter().enumerate() {
            let x = MARGIN + left + i as f64 * (cell + 36.0);
            scene.text((x, top + PART.size), PART, Anchor::Start, &scene::fitted(title, PART, width));
            let mut end = top + PART.size + 14.0;
            if *legend {
                let room = width - text_width(title, PART) - 20.0;
                let curves: Vec<&Curve> = plot.curves.iter().filter(|c| !c.name.is_empty()).collect();
                let wide = curves.iter().map(|c| named(c)).sum::<f64>() + 18.0 * (curves.len() - 1) as f64;
                end = match wide <= room {
                    true => names(&mut scene, &curves, x + width - wide, top - 1.0, wide + 1.0).max(end),
                    false => names(&mut scene, &curves, x, top + PART.size + 8.0, width),
                };
            }
            start = start.max(end);
        }
        for (i, (_, plot, _)) in row.iter().enumerate() {
            let x = MARGIN + left + i as f64 * (cell + 36.0);
            plot.draw(&mut scene, [x, start, width, height], left);
        }
        top = start + height + below + 24.0;
    }
    scene.height = (top - 24.0 + MARGIN * 0.7).ceil();
    write(path, &scene)
}

/// The width of a line's name.
fn named(curve: &Curve) -> f64 {
    SWATCH + 7.0 + text_width(curve.name, NAME)
}

/// Draws names of lines in rows. Returns where they end.
fn names(scene: &mut Scene, curves: &[&Curve], left: f64, top: f64, width: f64) -> f64 {
    let (mut x, mut y) = (left, top);
    for curve in curves {
        let wide = named(curve);
        if x > left && x + wide > left + width {
            (x, y) = (left, y + NAME.size + 7.0);
        }
        let level = y + NAME.size * 0.62 + 1.0;
        let points = vec![(x, level), (x + SWATCH, level)];
        scene.shapes.push(Shape::Path {
            points,
            colour: curve.colour,
            width: curve.width.max(2.5),
            dash: curve.dash,
        });
        let text = scene::fitted(curve.name, NAME, width - SWATCH - 7.0);
        scene.text((x + SWATCH + 7.0, y + NAME.size), NAME, Anchor::Start, &text);
        x += wide + 18.0;
    }
    y + NAME.size + 14.0
}

/// Draws the title. Returns where it ends.
fn header(scene: &mut Scene, title: &str) -> f64 {
    if title.is_empty() {
        return MARGIN;
    }
    let text = scene::fitted(title, TITLE, scene.width - 2.0 * MARGIN);
    scene.text((MARGIN, MARGIN + 0.8 * TITLE.size), TITLE, Anchor::Start, &text);
    MARGIN + TITLE.size + 18.0
}

fn bad<T>(path: &Path, why: &str) -> Answer<T> {
    fail(format!("picture {}: {why}", path.display()))
}

fn count(path: &Path, what: &str, count: usize, most: usize) -> Answer<()> {
    match count {
        0 => bad(path, &format!("no {what}, nothing to draw")),
        _ if count > most => bad(path, &format!("{count} {what}, at most {most} can be drawn")),
        _ => Ok(()),
    }
}

/// Writes both files, once both have been rendered.
fn write(path: &Path, scene: &Scene) -> Answer<()> {
    let Some(png) = scene.png() else {
        return bad(path, &format!("{} by {} pixels are too many", scene.width, scene.height));
    };
    let with = |extension: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(extension);
        name
    };
    atomic::write(with(".svg"), &scene.svg())?;
    atomic::write(with(".png"), &png)?;
    Ok(())
}

#[cfg(test)]
mod tests;
