//! Every kind of picture, of ordinary and of odd data. `DITTOGRAD_PICTURES=/tmp/pictures cargo test picture` keeps
//! the pictures, to be looked at.

use super::png::tests::decode;
use super::*;
use crate::Fail;
use std::f64::consts::{PI, TAU};
use std::path::PathBuf;

/// Where the pictures of a test go; a temporary folder lasts as long.
struct Folder(PathBuf, #[allow(dead_code)] Option<tempfile::TempDir>);

impl Folder {
    fn new() -> Folder {
        if let Some(kept) = std::env::var_os("DITTOGRAD_PICTURES") {
            std::fs::create_dir_all(&kept).unwrap();
            return Folder(kept.into(), None);
        }
        let folder = tempfile::tempdir().unwrap();
        Folder(folder.path().into(), Some(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The SVG's text and the PNG's size and pixels, checked against each other.
    fn look(&self, name: &str) -> (String, [usize; 2], Vec<u8>) {
        let svg = std::fs::read_to_string(self.path(&format!("{name}.svg"))).unwrap();
        let (size, pixels) = decode(&std::fs::read(self.path(&format!("{name}.png"))).unwrap());
        well_formed(&svg);
        for (i, key) in ["height", "width"].into_iter().enumerate() {
            let value = svg.split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap();
            assert_eq!(value.parse::<f64>().unwrap() * 2.0, size[i] as f64, "{name} {key}");
        }
        assert!(size.iter().all(|s| (100..20_000).contains(s)), "{name} {size:?}");
        // A border of white: nothing is cut off.
        let row = size[1] * 3;
        let white = |i: usize| pixels[i] == 255;
        assert!((0..row * 8).chain(pixels.len() - row * 8..pixels.len()).all(white), "{name}: top or bottom");
        for line in 0..size[0] {
            let side = (0..24).chain(row - 24..row);
            assert!(side.into_iter().all(|i| white(line * row + i)), "{name}: left or right, row {line}");
        }
        assert!(pixels.chunks(3).any(|p| p != [255; 3]));
        (svg, size, pixels)
    }
}

/// Tags that are closed, attributes in quotes that are there once, no stray characters, numbers that are finite.
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(i) = rest.find('<') {
        assert!(!rest[..i].contains('>'), "stray >: {}", &rest[..i]);
        let end = rest[i..].find('>').expect("a tag that ends") + i;
        let tag = &rest[i + 1..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let mut keys: Vec<&str> =
            tag.split('"').step_by(2).filter(|k| k.contains('=')).map(str::trim).collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "{tag}");
        let bare = tag.split(" href=").next().unwrap();
        assert!(!bare.contains("NaN") && !bare.contains("inf"), "{bare}");
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    assert!(svg.chars().all(|c| !c.is_control() || c == '\n'));
    for text in svg.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;"].iter().any(|e| text.starts_with(e)), "&{text:.20}");
    }
}

fn message(got: Answer<()>) -> String {
    match got {
        Err(Fail::Message(m)) => m,
        Err(Fail::Library(e)) => e.to_string(),
        Err(Fail::Closed | Fail::Told) => "closed".into(),
        Ok(()) => "drawn".into(),
    }
}

fn drawn(got: Answer<()>) {
    assert_eq!(message(got), "drawn");
}

/// Numbers from -1 to 1 without a pattern.
fn noise(i: usize) -> f64 {
    let mut z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn line(name: &str, n: usize, every: usize, f: impl Fn(usize) -> f64) -> Line {
    let points = (0..n).map(|i| i * every).map(|i| (i as f64, f(i))).collect();
    Line { name: name.into(), points }
}

fn panel(title: &str, y: &str, log: bool, lines: Vec<Line>) -> Panel {
    Panel { title: title.into(), y: y.into(), log, lines }
}

fn training() -> Vec<Panel> {
    let loss = |i: usize, floor: f64| 0.9 * (-(i as f64) / 260.0).exp() + floor;
    let rate = |i: usize| 1e-3 * (i as f64 / 100.0).min(1.0) * (1.0 + (i as f64 / 2000.0 * PI).cos()) / 2.0;
    vec![
        panel(
            "loss",
            "relative L2",
            true,
            vec![
                line("training", 400, 5, |i| loss(i, 0.011) * (1.0 + 0.25 * noise(i))),
                line("test", 11, 200, |i| loss(i, 0.016)),
            ],
        ),
        panel(
            "accuracy",
            "%",
            false,
            vec![line("test", 11, 200, |i| 98.4 - 80.0 * (-(i as f64) / 150.0).exp())],
        ),
        panel("learning rate", "", false, vec![line("rate", 400, 5, rate)]),
    ]
}

#[test]
fn picture_of_training() {
    let folder = Folder::new();
    drawn(curves(&folder.path("curves"), "fno1d on Burgers' equation", &training()));
    let (svg, ..) = folder.look("curves");
    for text in
        ["training", "test", "loss", "accuracy", "learning rate", "step", "fno1d on Burgers' equation"]
    {
        assert!(svg.contains(&format!(">{text}</text>")), "{text}");
    }
    // One line needs no name.
    assert!(!svg.contains(">rate</text>"));
    // Points of the test loss can be seen, and the line between them.
    assert_eq!(svg.matches("<circle").count(), 22);
    let bytes = |end: &str| std::fs::read(folder.path(end)).unwrap();
    let before = (bytes("curves.svg"), bytes("curves.png"));
    drawn(curves(&folder.path("curves"), "fno1d on Burgers' equation", &training()));
    assert_eq!(before, (bytes("curves.svg"), bytes("curves.png")));
    let one = &training()[..1];
    drawn(curves(&folder.path("curves.one"), "", one));
    folder.look("curves.one");
}

#[test]
fn picture_of_several_runs() {
    let folder = Folder::new();
    let run =
        |k: usize| (0..50).map(|i| (i as f64, (1.0 + 0.2 * noise(50 * k + i)) / (i + 1) as f64)).collect();
    let test = |k: usize| (0..5).map(|i| (10.0 * i as f64, 1.0 / (i + k + 1) as f64)).collect();
    let lines = vec![
        ("training".to_string(), (0..3).map(run).collect()),
        ("test".to_string(), (0..3).map(test).collect()),
        ("nothing".to_string(), vec![Vec::new()]),
    ];
    let loss = Spread { title: "Loss".into(), log: true, lines };
    let none = Spread { title: "None".into(), log: false, lines: Vec::new() };
    drawn(spreads(&folder.path("spreads"), "Three runs", &[loss, none]));
    let (svg, ..) = folder.look("spreads");
    for text in ["training", "test", "Three runs", "Loss"] {
        assert!(svg.contains(&format!(">{text}</text>")), "{text}");
    }
    assert!(!svg.contains(">nothing<") && !svg.contains(">None<"));
    // A line for each run, the mean, and its sample beside the name.
    let paths = |colour: [u8; 3]| {
        let [r, g, b] = colour;
        svg.matches(&format!("stroke=\"#{r:02x}{g:02x}{b:02x}\"")).count()
    };
    for colour in &LINES[..2] {
        assert_eq!((paths(*colour), paths(colour.map(|c| c / 3 + 170))), (2, 3));
    }
    let runs = [vec![(1.0, 2.0), (2.0, 4.0)], vec![(2.0, 6.0)]];
    assert_eq!(mean(&runs), [(1.0, 2.0), (2.0, 5.0)]);
}

#[test]
fn picture_of_odd_curves() {
    let folder = Folder::new();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let points = |all: &[(f64, f64)]| vec![Line { name: "<a> & \"b\"".into(), points: all.to_vec() }];
    let panels = vec![
        panel("one point", "y", false, points(&[(3.0, 0.5)])),
        panel("one point, log", "y", true, points(&[(3.0, 0.5)])),
        panel("equal values", "y", false, points(&[(0.0, 0.25), (1.0, 0.25), (2.0, 0.25)])),
        panel(
            "gaps",
            "y",
            false,
            points(&[(0.0, 1.0), (1.0, nan), (2.0, 2.0), (3.0, 1.5), (4.0, inf), (5.0, 3.0)]),
        ),
        panel("not positive, log", "y", true, points(&[(0.0, 0.0), (1.0, -1.0), (2.0, 1e-3), (3.0, 10.0)])),
        panel("nothing positive, log", "y", true, points(&[(0.0, 0.0), (1.0, -1.0)])),
        panel("nothing finite", "y", true, points(&[(0.0, nan), (nan, 1.0), (inf, -inf)])),
        panel("huge", "y", false, points(&[(0.0, -1e308), (1.0, 1e308)])),
        panel("tiny", "y", false, points(&[(0.0, 0.0), (1e9, 1e-300)])),
        panel("no points are left out", "y", false, vec![]),
        panel(
            "many steps",
            "a name",
            true,
            vec![
                line("noise", 100_000, 1, |i| (1.0 + 0.5 * noise(i)) / (1.0 + i as f64 / 5e3)),
                line("smooth", 1000, 100, |i| 1.0 / (1.0 + i as f64 / 5e3)),
            ],
        ),
        panel(
            "many lines",
            "",
            false,
            (0..9)
                .map(|k| {
                    line(&format!("line {k}"), 40, 1, move |i| ((i + 4 * k) as f64 / 9.0).sin() + k as f64)
                })
                .collect(),
        ),
    ];
    drawn(curves(&folder.path("odd"), "Data that is not as one would like it to be", &panels));
    let (svg, ..) = folder.look("odd");
    assert!(
        svg.len() < 400_000 && svg.contains("no finite values") && !svg.contains("left out"),
        "{}",
        svg.len()
    );
    for (panels, want) in [
        (vec![], "no panels with points, nothing to draw"),
        (
            vec![panel("p", "", false, vec![line("l", 0, 1, |_| 0.0)])],
            "no panels with points, nothing to draw",
        ),
        (
            (0..65).map(|_| panel("p", "", false, points(&[(0.0, 0.0)]))).collect(),
            "65 panels with points, at most 64 can be drawn",
        ),
    ] {
        let path = folder.path("none");
        assert_eq!(message(curves(&path, "", &panels)), format!("picture {}: {want}", path.display()));
        assert!(!folder.path("none.svg").exists() && !folder.path("none.png").exists());
    }
    let nowhere = folder.path("no/such");
    let why = message(curves(&nowhere, "", &[panel("p", "", false, points(&[(0.0, 0.0)]))]));
    assert!(why.contains("no/such.svg: No such file"), "{why}");
}

fn field(name: &str, k: usize) -> Field {
    let x: Vec<f64> = (0..256).map(|i| i as f64 / 256.0).collect();
    let wave =
        |x: f64, a: f64| (TAU * (x + 0.13 * k as f64)).sin() * a + 0.3 * (2.0 * TAU * x + k as f64).cos() * a;
    let truth: Vec<f64> = x.iter().map(|x| wave(x + 0.08 * wave(*x, 1.0), 0.45)).collect();
    let off = |(i, t): (usize, &f64)| t + 0.012 * (i as f64 / (9.0 + k as f64)).sin();
    let prediction = truth.iter().enumerate().map(off).collect();
    let input = x.iter().map(|x| wave(*x, 0.9) + 0.12 * (7.0 * TAU * x).sin()).collect();
    Field { name: name.into(), x, input, truth, prediction }
}

#[test]
fn picture_of_fields() {
    let folder = Folder::new();
    let samples: Vec<Field> = (0..6).map(|k| field(&format!("test field {k}"), k)).collect();
    drawn(fields(&folder.path("fields"), "fno1d: Burgers' equation at t = 1", &samples));
    let (svg, ..) = folder.look("fields");
    assert_eq!(svg.matches("stroke-dasharray").count(), 1 + 6);
    assert_eq!(svg.matches(" · error ").count(), 6);
    let mut odd = vec![field("not finite", 1), field("zero", 2), field("right", 3), field("no input", 4)];
    odd[0].prediction[100] = f64::NAN;
    odd[1].truth.fill(0.0);
    odd[2].prediction = odd[2].truth.clone();
    odd[3].input.clear();
    drawn(fields(&folder.path("fields-odd"), "", &odd));
    let (svg, ..) = folder.look("fields-odd");
    assert!(svg.contains(">not finite · error not finite<") && svg.contains(">right · error 0 %<"));
    let mut short = field("short", 1);
    short.truth.pop();
    let why = message(fields(&folder.path("none"), "", &[short]));
    assert!(why.ends_with("field 'short' has 256 places, 256 values given, 255 true and 256 predicted ones; as many of each are needed"), "{why}");
    let nothing = Field { name: "n".into(), x: vec![], input: vec![], truth: vec![], prediction: vec![] };
    assert!(message(fields(&folder.path("none"), "", &[nothing])).contains("'n' has 0 places"));
    assert!(message(fields(&folder.path("none"), "", &[])).ends_with("no fields, nothing to draw"));
}

#[test]
fn picture_errors_in_titles() {
    let rel = |t: &[f64], p: &[f64]| relative(t.iter().copied(), p.iter().copied());
    assert_eq!(rel(&[3.0, 4.0], &[3.0, 4.5]), 0.1);
    assert_eq!(titled("a", rel(&[3.0, 4.0], &[3.0, 4.5])), "a · error 10.0 %");
    assert_eq!(titled("", rel(&[0.0], &[0.0])), "error 0 %");
    assert_eq!(titled("", rel(&[0.0], &[1.0])), "error not finite");
}

fn map_row(name: &str, size: [usize; 2], k: f64) -> MapRow {
    let at = |i: usize| ((i / size[1]) as f64 / size[0] as f64, (i % size[1]) as f64 / size[1] as f64);
    let all = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f32> {
        (0..size[0] * size[1]).map(at).map(|(y, x)| f(y, x) as f32).collect()
    };
    let input = all(&|y, x| if (6.0 * x + k).sin() + (5.0 * y * k).cos() > 0.3 { 12.0 } else { 3.0 });
    let truth = all(&|y, x| 0.02 * (PI * x).sin() * (PI * y).sin() * (1.0 + 0.4 * (4.0 * x + k).cos()));
    let off = all(&|y, x| 3e-4 * (9.0 * x + k).sin() * (11.0 * y).cos() * (PI * x).sin());
    let prediction = truth.iter().zip(off).map(|(t, o)| t + o).collect();
    MapRow { name: name.into(), size, input, truth, prediction }
}

#[test]
fn picture_of_maps() {
    let folder = Folder::new();
    let rows: Vec<MapRow> =
        (0..3).map(|k| map_row(&format!("test field {k}"), [64, 64], 1.0 + k as f64)).collect();
    drawn(maps(&folder.path("maps"), "fno2d: Darcy flow", &rows));
    let (svg, ..) = folder.look("maps");
    assert_eq!(svg.matches("<image").count(), 3 * (4 + 3));
    let mut odd = vec![
        map_row("wide, not finite", [20, 60], 1.0),
        map_row("large", [1000, 700], 2.0),
        map_row("one place", [1, 1], 2.0),
        map_row("right and constant", [16, 16], 2.0),
    ];
    odd[0].prediction[70..80].fill(f32::NAN);
    odd[3].truth.fill(2.0);
    odd[3].prediction.fill(2.0);
    odd[3].input.clear();
    drawn(maps(&folder.path("maps-odd"), "", &odd));
    let (svg, _, pixels) = folder.look("maps-odd");
    assert_eq!(svg.matches("<image").count(), 3 * (4 + 3) + 3 + 2);
    assert!(pixels.chunks(3).any(|p| p == [190; 3]));
    let mut short = map_row("short", [8, 8], 1.0);
    short.input.pop();
    let why = message(maps(&folder.path("none"), "", &[short]));
    assert!(why.ends_with("field 'short' of 8 by 8 places has 63 values given, 64 true and 64 predicted ones; as many of each are needed"), "{why}");
    assert!(message(maps(&folder.path("none"), "", &[])).ends_with("no fields, nothing to draw"));
    let none = MapRow { size: [0, 5], ..map_row("n", [1, 1], 1.0) };
    assert!(message(maps(&folder.path("none"), "", &[none])).contains("0 by 5 places"));
}

/// A printed digit, white on black.
fn digit(class: usize) -> Vec<f32> {
    let mut scene = Scene { width: 14.0, height: 14.0, ..Scene::default() };
    let font = Font { size: 14.0, bold: false, colour: [0; 3] };
    scene.text((7.0, 12.0), font, Anchor::Middle, &class.to_string());
    let (size, pixels) = decode(&scene.png().unwrap());
    assert_eq!(size, [28, 28]);
    pixels.chunks(3).map(|p| 1.0 - f32::from(p[0]) / 255.0).collect()
}

fn tile(k: usize, side: usize, channels: usize) -> Tile {
    let class = k * 7 % 10;
    let from = digit(class);
    let pixel = |i: usize| {
        let (c, y, x) = (i / (side * side), i / side % side, i % side);
        let v = from[(y * 28 / side) * 28 + x * 28 / side];
        let tint = 0.2 * (x as f32 / side as f32) * (2.0 - c as f32);
        if channels == 1 { v } else { v * (0.4 + 0.3 * c as f32) + tint }
    };
    let pixels = (0..channels * side * side).map(pixel).collect();
    let right = k % 11 != 5;
    let label = if right { format!("{class}") } else { format!("{}, not {class}", (class + 3) % 10) };
    Tile { pixels, size: [side; 2], channels, label, right: Some(right) }
}

#[test]
fn picture_of_samples() {
    let folder = Folder::new();
    let tiles: Vec<Tile> = (0..32).map(|k| tile(k, 28, 1)).collect();
    drawn(samples(&folder.path("samples"), "cnn on drawn digits: 97.3 % right", &tiles));
    let (svg, _, pixels) = folder.look("samples");
    assert_eq!(svg.matches("<image").count(), 32);
    assert!(svg.contains("#c81e1e") && pixels.chunks(3).any(|p| p == [200, 30, 30]));
    let mut odd =
        vec![tile(1, 32, 3), tile(2, 32, 3), tile(5, 300, 3), tile(3, 1, 1), tile(4, 28, 1), tile(6, 28, 3)];
    odd[0].label = "a class with a name that is too long".into();
    odd[1].label = "automobile".into();
    odd[3].right = None;
    odd[4].size = [14, 56];
    odd[5].pixels[100..140].fill(f32::NAN);
    drawn(samples(&folder.path("samples-odd"), "A title that is longer than the pictures are wide", &odd));
    let (svg, ..) = folder.look("samples-odd");
    assert!(svg.contains(">a class with") && svg.contains("…</text>"));
    for (tiles, want) in [
        (vec![], "no images, nothing to draw"),
        (vec![Tile { channels: 2, ..tile(0, 28, 1) }], "image 0 has 2 channels, 1 or 3 can be drawn"),
        (
            vec![tile(0, 28, 1), Tile { size: [28, 27], ..tile(0, 28, 1) }],
            "image 1 has 784 values, but is 28 by 27 with 1 channels",
        ),
        (vec![Tile { size: [usize::MAX, 2], ..tile(0, 28, 3) }], "with 3 channels"),
    ] {
        let why = message(samples(&folder.path("none"), "", &tiles));
        assert!(why.ends_with(want), "{why}");
    }
}

#[test]
fn picture_of_pairs() {
    let folder = Folder::new();
    let blur = |t: &Tile| {
        let near =
            |i: usize| [0, 1, 28, 29].iter().map(|d| t.pixels[(i + d) % 784]).sum::<f32>() / 3.5 - 0.02;
        Tile { pixels: (0..784).map(near).collect(), label: String::new(), right: None, ..t.clone() }
    };
    let pair = |k: usize| {
        let one = Tile { right: None, ..tile(k, 28, 1) };
        let other = blur(&one);
        (one, other)
    };
    let all: Vec<(Tile, Tile)> = (0..16).map(pair).collect();
    drawn(pairs(&folder.path("pairs"), "autoencoder: 16 numbers an image", &all));
    let (svg, ..) = folder.look("pairs");
    assert_eq!(svg.matches("<image").count(), 32);
    let mut labelled = all[..1].to_vec();
    labelled[0].1.label = "0.0123".into();
    drawn(pairs(&folder.path("pairs-one"), "", &labelled));
    let (svg, ..) = folder.look("pairs-one");
    assert!(svg.contains(">0.0123<"));
    assert!(message(pairs(&folder.path("none"), "", &[])).ends_with("no pairs of images, nothing to draw"));
}

#[test]
fn picture_of_predicted_numbers() {
    let folder = Folder::new();
    let points: Vec<(f64, f64)> =
        (0..40).map(|i| (f64::from(i), f64::from(i) + f64::from(i % 5) - 2.0)).collect();
    let one = |points| Scatter { name: "Test rows".into(), points };
    assert!(scatters(&folder.path("scatter"), "A model", &[one(points.clone())]).is_ok());
    let (svg, ..) = folder.look("scatter");
    assert_eq!(svg.matches("<circle").count(), 40);
    assert!(svg.contains("Test rows · RMSE 1.41") && svg.contains("stroke-dasharray"), "{svg}");
    // One row, equal rows, and numbers that are none.
    let nan = f64::NAN;
    let odd = [vec![(1.0, 2.0)], vec![(3.0, 3.0); 5], vec![(1.0, nan), (2.0, 2.5)], vec![(nan, nan)]];
    assert!(scatters(&folder.path("odd"), "", &odd.map(one)).is_ok());
    folder.look("odd");
    assert!(scatters(&folder.path("none"), "", &[]).is_err());
}
