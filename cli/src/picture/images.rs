//! Pictures of pixels: fields in the plane as colours, and images with a model's predictions.

use super::axes::{GAP, SMALL, Scale};
use super::raster::{ZOOM, text_width};
use super::scene::{Anchor, Colour, FRAME, Font, RED, Scene, Shape, fitted};
use super::{MARGIN, NAME, PART, bad, count, header, relative, titled, write};
use crate::Answer;
use std::path::Path;

/// The most rows of [`maps`].
const MOST_ROWS: usize = 64;
/// The most images.
const MOST_TILES: usize = 1024;
/// Longer side of a field.
const MAP: f64 = 210.0;
/// Longer side of an image.
const TILE: f64 = 84.0;
/// Width of a colour bar.
const BAR: f64 = 12.0;
/// Colour of values that are not finite.
const HOLE: Colour = [190, 190, 190];
/// Anchors of viridis (van der Walt and Smith, CC0), a perceptually uniform colour map.
const VIRIDIS: [Colour; 9] = [
    [68, 1, 84],
    [71, 45, 123],
    [59, 82, 139],
    [44, 114, 142],
    [33, 145, 140],
    [40, 174, 128],
    [94, 201, 98],
    [173, 220, 48],
    [253, 231, 37],
];
/// From blue over white to orange, for values of either sign.
const SIGNED: [Colour; 5] = [[0, 62, 130], [86, 160, 211], [250, 250, 250], [235, 140, 70], [148, 48, 0]];

/// A field in the plane and a neural operator's prediction.
pub(crate) struct MapRow {
    /// What it is called.
    pub(crate) name: String,
    /// Rows and columns; the first row is at the top.
    pub(crate) size: [usize; 2],
    /// The model's input; may be empty.
    pub(crate) input: Vec<f32>,
    /// The true field.
    pub(crate) truth: Vec<f32>,
    /// The predicted field.
    pub(crate) prediction: Vec<f32>,
}

/// An image with its label.
#[derive(Clone)]
pub(crate) struct Tile {
    /// All of the first channel, row by row from the top, then the next channel.
    pub(crate) pixels: Vec<f32>,
    /// Rows and columns.
    pub(crate) size: [usize; 2],
    /// 1 for grey, 3 for red, green and blue.
    pub(crate) channels: usize,
    /// The text below it, such as the class; may be empty.
    pub(crate) label: String,
    /// Whether the model was right. If not, label and frame are red.
    pub(crate) right: Option<bool>,
}

/// The colour at a position from 0 to 1.
fn colour(map: &[Colour], at: f64) -> Colour {
    let place = at.clamp(0.0, 1.0) * (map.len() - 1) as f64;
    let i = (place as usize).min(map.len() - 2);
    let part = place - i as f64;
    [0, 1, 2].map(|c| (f64::from(map[i][c]) * (1.0 - part) + f64::from(map[i + 1][c]) * part + 0.5) as u8)
}

/// Averages blocks of values, so that there are at most as many rows and columns as pixels.
fn shrunk([rows, columns]: [usize; 2], values: &[f32], side: f64) -> ([usize; 2], Vec<f32>) {
    let most = (side * ZOOM) as usize;
    let by = rows.max(columns).div_ceil(most);
    if by <= 1 {
        return ([rows, columns], values.to_vec());
    }
    let size = [rows.div_ceil(by), columns.div_ceil(by)];
    let mut means = Vec::with_capacity(size[0] * size[1]);
    for i in 0..size[0] {
        for j in 0..size[1] {
            let (mut sum, mut n) = (0.0, 0.0);
            for row in values.chunks(columns).skip(i * by).take(by) {
                for v in row.iter().skip(j * by).take(by) {
                    (sum, n) = (sum + f64::from(*v), n + 1.0);
                }
            }
            means.push((sum / n) as f32);
        }
    }
    (size, means)
}

/// Width and height in the picture, so that each pixel of an image gets the same integer number of pixels.
fn extent([rows, columns]: [usize; 2], side: f64) -> (f64, f64) {
    let each = ((side * ZOOM) as usize / rows.max(columns).max(1)).max(1) as f64;
    (columns as f64 * each / ZOOM, rows as f64 * each / ZOOM)
}

fn range<'a>(values: impl Iterator<Item = &'a f32> + Clone) -> Scale {
    let all = values.map(|v| f64::from(*v));
    Scale::of(all, false, 0.0).unwrap_or(Scale::around_zero(1.0))
}

/// Draws fields in the plane into `path.svg` and `path.png`, one row each: the input, the truth and the prediction with
/// one colour scale, and prediction minus truth.
pub(crate) fn maps(path: &Path, title: &str, rows: &[MapRow]) -> Answer<()> {
    count(path, "fields", rows.len(), MOST_ROWS)?;
    for row in rows {
        let n = row.size[0].saturating_mul(row.size[1]);
        let same = [row.truth.len(), row.prediction.len()] == [n; 2];
        if n == 0 || !same || !(row.input.is_empty() || row.input.len() == n) {
            let why = format!(
                "field '{}' of {} by {} places has {} values given, {} true and {} predicted ones; as many of each are needed",
                row.name,
                row.size[0],
                row.size[1],
                row.input.len(),
                row.truth.len(),
                row.prediction.len()
            );
            return bad(path, &why);
        }
    }
    // A scale, the colour bar at its end, and its colours.
    struct Band<'a> {
        names: Vec<(&'a str, Vec<f32>)>,
        scale: Scale,
        colours: &'a [Colour],
    }
    let given = rows.iter().any(|r| !r.input.is_empty());
    let bands = |row: &MapRow| {
        let error: Vec<f32> = row.prediction.iter().zip(&row.truth).map(|(p, t)| p - t).collect();
        let largest = error.iter().filter(|e| e.is_finite()).fold(0f32, |m, e| m.max(e.abs()));
        let both = range(row.truth.iter().chain(&row.prediction));
        let truth = vec![("truth", row.truth.clone()), ("prediction", row.prediction.clone())];
        let mut all = vec![
            Band { names: truth, scale: both, colours: &VIRIDIS },
            Band {
                names: vec![("prediction − truth", error)],
                scale: Scale::around_zero(f64::from(largest)),
                colours: &SIGNED,
            },
        ];
        if given {
            let scale = range(row.input.iter());
            all.insert(0, Band { names: vec![("input", row.input.clone())], scale, colours: &VIRIDIS });
        }
        all
    };
    let all: Vec<Vec<Band>> = rows.iter().map(bands).collect();
    let numbers = |band: &Band| {
        let wide = band.scale.ticks(6).iter().map(|t| text_width(&t.1, SMALL)).fold(0.0, f64::max);
        (GAP + wide).ceil()
    };
    let sides: Vec<[usize; 2]> = rows.iter().map(|r| shrunk(r.size, &r.truth, MAP).0).collect();
    let wide = sides.iter().map(|s| extent(*s, MAP).0).fold(100.0, f64::max);
    let wide = wide.max(text_width("prediction − truth", NAME)).ceil();
    let (between, near) = (30.0, 14.0);
    let bars: Vec<f64> =
        (0..all[0].len()).map(|b| all.iter().map(|r| numbers(&r[b])).fold(0.0, f64::max)).collect();
    let mut scene = Scene::default();
    let total =
        all[0].iter().zip(&bars).map(|(band, bar)| band.names.len() as f64 * (wide + near) + BAR + bar);
    scene.width = (total.sum::<f64>() + between * (all[0].len() - 1) as f64 + 2.0 * MARGIN).ceil();
    let mut y = header(&mut scene, title);
    for ((row, bands), side) in rows.iter().zip(&all).zip(&sides) {
        let (w, h) = extent(*side, MAP);
        let wide_of = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let error = relative(wide_of(&row.truth).into_iter(), wide_of(&row.prediction).into_iter());
        scene.text((MARGIN, y + PART.size), PART, Anchor::Start, &titled(&row.name, error));
        let (names, top) = (y + PART.size + 8.0 + NAME.size, y + PART.size + NAME.size + 18.0);
        let mut x = MARGIN;
        for (band, bar) in bands.iter().zip(&bars) {
            for (name, values) in &band.names {
                let (size, values) = shrunk(row.size, values, MAP);
                if !values.is_empty() {
                    scene.text((x, names), NAME, Anchor::Start, name);
                    let paint =
                        |v: &f32| band.scale.at(f64::from(*v)).map_or(HOLE, |at| colour(band.colours, at));
                    let rgb = values.iter().flat_map(paint).collect();
                    scene.shapes.push(Shape::Image { at: [x, top, w, h], size, rgb });
                    scene.frame([x - 0.5, top - 0.5, w + 1.0, h + 1.0], [205; 3], 1.0);
                }
                x += wide + near;
            }
            // Right of the last map, even if it is narrow.
            let left = x - wide + w;
            if band.names.iter().any(|n| !n.1.is_empty()) {
                let steps = 128;
                let shade = |i: usize| colour(band.colours, 1.0 - (i as f64 + 0.5) / steps as f64);
                let rgb = (0..steps).flat_map(shade).collect();
                scene.shapes.push(Shape::Image { at: [left, top, BAR, h], size: [steps, 1], rgb });
                for (at, text) in band.scale.ticks(((h / 30.0) as usize).clamp(2, 6)) {
                    let level = top + h - at * h;
                    scene.path(vec![(left + BAR, level), (left + BAR + 3.0, level)], FRAME, 1.0);
                    // Within the bar's height, also at its ends.
                    let base = (level + 0.36 * SMALL.size).clamp(top + 0.72 * SMALL.size, top + h);
                    scene.text((left + BAR + GAP, base), SMALL, Anchor::Start, &text);
                }
            }
            x += BAR + bar + between;
        }
        y = top + h + 24.0;
    }
    scene.height = (y - 24.0 + MARGIN).ceil();
    write(path, &scene)
}

/// Bytes of an image.
fn pixels(tile: &Tile, scale: Scale) -> ([usize; 2], Vec<u8>) {
    let n = tile.size[0] * tile.size[1];
    let mut size = tile.size;
    let mut channels = Vec::with_capacity(3);
    for channel in tile.pixels.chunks(n) {
        let (small, values) = shrunk(tile.size, channel, TILE);
        size = small;
        channels.push(values);
    }
    let byte = |v: f32| scale.at(f64::from(v)).map(|at| (at * 255.0 + 0.5) as u8);
    let pixel = |i: usize| {
        let of = |c: usize| byte(channels[c.min(channels.len() - 1)][i]);
        match (of(0), of(1), of(2)) {
            (Some(r), Some(g), Some(b)) => [r, g, b],
            _ => [204, 121, 167],
        }
    };
    (size, (0..size[0] * size[1]).flat_map(pixel).collect())
}

/// From black to white: 0 to 1 if the pixels are in that range, else from the smallest to the largest.
fn brightness<'a>(tiles: impl Iterator<Item = &'a Tile> + Clone) -> Scale {
    let all = tiles.flat_map(|t| &t.pixels);
    let unit = all.clone().all(|v| !v.is_finite() || (0.0..=1.0).contains(v));
    if unit { range([0.0, 1.0].iter()) } else { range(all) }
}

fn checked<'a>(path: &Path, tiles: impl Iterator<Item = &'a Tile>) -> Answer<()> {
    for (i, tile) in tiles.enumerate() {
        let (n, [rows, columns]) = (tile.pixels.len(), tile.size);
        if !matches!(tile.channels, 1 | 3) {
            return bad(path, &format!("image {i} has {} channels, 1 or 3 can be drawn", tile.channels));
        }
        if n == 0 || rows.checked_mul(columns).and_then(|m| m.checked_mul(tile.channels)) != Some(n) {
            let why = format!(
                "image {i} has {n} values, but is {rows} by {columns} with {} channels",
                tile.channels
            );
            return bad(path, &why);
        }
    }
    Ok(())
}

/// Draws an image with its frame, centred in the space that starts at `x`.
fn place(scene: &mut Scene, tile: &Tile, scale: Scale, (x, y): (f64, f64), cell: f64) {
    let (size, rgb) = pixels(tile, scale);
    let (w, h) = extent(size, TILE);
    // Whole pixels of the file, so that all images are equally sharp.
    let left = (x + (cell - w) / 2.0).round();
    let top = (y + (TILE - h) / 2.0).round();
    scene.shapes.push(Shape::Image { at: [left, top, w, h], size, rgb });
    match tile.right {
        Some(false) => scene.frame([left - 1.5, top - 1.5, w + 3.0, h + 3.0], RED, 3.0),
        _ => scene.frame([left - 0.5, top - 0.5, w + 1.0, h + 1.0], [205; 3], 1.0),
    }
}

fn label_font(tile: &Tile) -> Font {
    match tile.right {
        Some(false) => Font { colour: RED, bold: true, ..NAME },
        _ => NAME,
    }
}

/// Width of a column of images, with room for most labels.
fn column<'a>(tiles: impl Iterator<Item = &'a Tile>) -> f64 {
    tiles.map(|t| text_width(&t.label, label_font(t))).fold(TILE, f64::max).min(160.0).ceil()
}

/// Draws images with their labels into `path.svg` and `path.png`, wrong ones in red.
pub(crate) fn samples(path: &Path, title: &str, tiles: &[Tile]) -> Answer<()> {
    count(path, "images", tiles.len(), MOST_TILES)?;
    checked(path, tiles.iter())?;
    let (scale, cell, gap) = (brightness(tiles.iter()), column(tiles.iter()), 16.0);
    let labels = tiles.iter().any(|t| !t.label.is_empty());
    let high = TILE + if labels { NAME.size + 20.0 } else { gap };
    // About twice as wide as high.
    let columns = (2.0 * tiles.len() as f64 * high / (cell + gap)).sqrt().ceil().clamp(1.0, 16.0) as usize;
    let columns = columns.min(tiles.len());
    // Rows as even as possible.
    let columns = tiles.len().div_ceil(tiles.len().div_ceil(columns));
    let mut scene = Scene { width: columns as f64 * (cell + gap) - gap + 2.0 * MARGIN, ..Scene::default() };
    widen(&mut scene, title);
    let top = header(&mut scene, title);
    for (i, tile) in tiles.iter().enumerate() {
        let (x, y) = (MARGIN + (i % columns) as f64 * (cell + gap), top + (i / columns) as f64 * high);
        place(&mut scene, tile, scale, (x, y), cell);
        let font = label_font(tile);
        let text = fitted(&tile.label, font, cell);
        scene.text((x + cell / 2.0, y + TILE + 5.0 + NAME.size), font, Anchor::Middle, &text);
    }
    let rows = tiles.len().div_ceil(columns);
    scene.height = (top + rows as f64 * high - if labels { 12.0 } else { gap } + MARGIN * 0.8).ceil();
    write(path, &scene)
}

/// Draws pairs of images, each with the model's reconstruction below it, into `path.svg` and `path.png`. The label of
/// the second one is at the bottom. The first images decide the brightness of both.
pub(crate) fn pairs(path: &Path, title: &str, pairs: &[(Tile, Tile)]) -> Answer<()> {
    count(path, "pairs of images", pairs.len(), MOST_TILES)?;
    checked(path, pairs.iter().flat_map(|(a, b)| [a, b]))?;
    let (scale, gap) = (brightness(pairs.iter().map(|p| &p.0)), 12.0);
    let cell = column(pairs.iter().map(|p| &p.1));
    let names = ["input", "output"];
    let left = names.iter().map(|n| text_width(n, NAME)).fold(0.0, f64::max) + 14.0;
    let labels = pairs.iter().any(|p| !p.1.label.is_empty());
    let high = 2.0 * TILE + 6.0 + 24.0 + if labels { NAME.size + 4.0 } else { 0.0 };
    let columns = pairs.len().div_ceil(pairs.len().div_ceil(10));
    let mut scene = Scene {
        width: (left + columns as f64 * (cell + gap) - gap + 2.0 * MARGIN).ceil(),
        ..Scene::default()
    };
    widen(&mut scene, title);
    let top = header(&mut scene, title);
    for (i, pair) in pairs.iter().enumerate() {
        let y = top + (i / columns) as f64 * high;
        let x = MARGIN + left + (i % columns) as f64 * (cell + gap);
        if i % columns == 0 {
            for (j, name) in names.iter().enumerate() {
                let middle = y + j as f64 * (TILE + 6.0) + TILE / 2.0 + 0.36 * NAME.size;
                scene.text((MARGIN, middle), NAME, Anchor::Start, name);
            }
        }
        place(&mut scene, &pair.0, scale, (x, y), cell);
        place(&mut scene, &pair.1, scale, (x, y + TILE + 6.0), cell);
        let font = label_font(&pair.1);
        let text = fitted(&pair.1.label, font, cell);
        scene.text((x + cell / 2.0, y + 2.0 * TILE + 11.0 + NAME.size), font, Anchor::Middle, &text);
    }
    let rows = pairs.len().div_ceil(columns);
    scene.height = (top + rows as f64 * high - 24.0 + MARGIN).ceil();
    write(path, &scene)
}

/// Widens a picture of few images, so that its title is not cut off.
fn widen(scene: &mut Scene, title: &str) {
    let need = (text_width(title, super::TITLE) + 2.0 * MARGIN + 1.0).ceil();
    scene.width = scene.width.max(need.min(640.0));
}
