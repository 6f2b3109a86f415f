//! Digits drawn as if by hand: strokes through a few points, with random bends, slants and ink.

use super::Dataset;
use super::make::{parallel, stream};
use crate::error::Result;
use crate::numerics::environment;
use crate::numerics::rng::Stream;
use crate::reserve::collected;
use crate::tensor::Tensor;
use std::f64::consts::TAU;

const SET: u64 = 0x6469_6769;
/// Pixels of a side.
const SIDE: usize = 28;
/// Pixels of a digit's height, before it is scaled.
const HEIGHT: f64 = 20.0;
/// Straight segments of a curve between two of its points.
const PIECES: usize = 6;

type Point = (f64, f64);

/// The ways to write each digit. A way is a list of strokes, each a curve through its points: to the right and down,
/// for a digit of height 1 centred at 0. A stroke that ends where it starts is closed.
#[rustfmt::skip] // Points in rows, not in one long column.
const SHAPES: [&[&[&[Point]]]; 10] = [
    &[
        &[&[
            (0.0, -0.5), (-0.21, -0.38), (-0.3, 0.0), (-0.21, 0.38), (0.0, 0.5), (0.21, 0.38), (0.3, 0.0),
            (0.21, -0.38), (0.0, -0.5),
        ]],
        &[&[
            (0.1, -0.46), (-0.12, -0.44), (-0.27, -0.15), (-0.27, 0.2), (-0.1, 0.46), (0.12, 0.45),
            (0.28, 0.15), (0.26, -0.2), (0.1, -0.43), (-0.06, -0.5),
        ]],
    ],
    &[
        &[&[(0.02, -0.5), (0.0, 0.0), (-0.02, 0.5)]],
        &[&[(-0.17, -0.3), (-0.05, -0.4), (0.04, -0.5)], &[(0.04, -0.5), (0.03, 0.0), (0.02, 0.5)]],
        &[
            &[(-0.18, -0.32), (-0.05, -0.42), (0.02, -0.5)],
            &[(0.02, -0.5), (0.02, 0.0), (0.01, 0.49)],
            &[(-0.2, 0.49), (0.02, 0.49), (0.22, 0.48)],
        ],
    ],
    &[
        &[
            &[
                (-0.26, -0.28), (-0.17, -0.44), (0.03, -0.5), (0.23, -0.39), (0.25, -0.18), (0.11, 0.08),
                (-0.1, 0.3), (-0.28, 0.49),
            ],
            &[(-0.28, 0.49), (0.0, 0.47), (0.3, 0.48)],
        ],
        &[&[
            (-0.24, -0.3), (-0.12, -0.47), (0.1, -0.48), (0.23, -0.3), (0.17, -0.04), (0.0, 0.22),
            (-0.15, 0.42), (-0.27, 0.46), (-0.26, 0.34), (-0.12, 0.32), (0.08, 0.45), (0.3, 0.42),
        ]],
    ],
    &[
        &[
            &[(-0.24, -0.4), (-0.05, -0.5), (0.17, -0.43), (0.2, -0.23), (0.06, -0.07), (-0.08, -0.03)],
            &[(-0.08, -0.03), (0.12, 0.01), (0.25, 0.19), (0.2, 0.4), (0.0, 0.5), (-0.26, 0.4)],
        ],
        &[
            &[(-0.22, -0.47), (0.0, -0.48), (0.22, -0.48)],
            &[(0.22, -0.48), (0.12, -0.3), (-0.02, -0.1)],
            &[(-0.02, -0.1), (0.18, -0.02), (0.26, 0.2), (0.13, 0.44), (-0.08, 0.5), (-0.26, 0.4)],
        ],
    ],
    &[
        &[
            &[(-0.18, -0.48), (-0.22, -0.2), (-0.26, 0.07)],
            &[(-0.26, 0.07), (0.03, 0.07), (0.3, 0.04)],
            &[(0.16, -0.46), (0.14, 0.0), (0.11, 0.5)],
        ],
        &[
            &[(0.1, -0.5), (-0.12, -0.15), (-0.3, 0.15)],
            &[(-0.3, 0.15), (0.0, 0.15), (0.3, 0.14)],
            &[(0.1, -0.5), (0.1, 0.0), (0.09, 0.5)],
        ],
        &[
            &[(-0.2, -0.45), (-0.24, -0.22), (-0.16, -0.02), (0.03, -0.01), (0.17, -0.14), (0.21, -0.38)],
            &[(0.22, -0.48), (0.18, 0.0), (0.15, 0.5)],
        ],
    ],
    &[
        &[
            &[(0.25, -0.48), (0.03, -0.47), (-0.18, -0.48)],
            &[(-0.18, -0.48), (-0.2, -0.28), (-0.22, -0.07)],
            &[
                (-0.22, -0.07), (-0.02, -0.13), (0.17, -0.05), (0.26, 0.15), (0.18, 0.38), (-0.02, 0.5),
                (-0.26, 0.42),
            ],
        ],
        &[&[
            (0.26, -0.46), (0.06, -0.47), (-0.13, -0.45), (-0.2, -0.28), (-0.19, -0.1), (-0.02, -0.13),
            (0.19, -0.02), (0.24, 0.21), (0.1, 0.44), (-0.1, 0.5), (-0.26, 0.42),
        ]],
    ],
    &[
        &[&[
            (0.17, -0.48), (-0.05, -0.37), (-0.21, -0.1), (-0.26, 0.19), (-0.15, 0.44), (0.06, 0.5),
            (0.23, 0.36), (0.21, 0.13), (0.04, 0.04), (-0.14, 0.12), (-0.24, 0.29),
        ]],
        &[&[
            (0.06, -0.5), (-0.11, -0.2), (-0.21, 0.12), (-0.19, 0.37), (-0.02, 0.5), (0.17, 0.42),
            (0.23, 0.22), (0.1, 0.07), (-0.1, 0.1), (-0.21, 0.27),
        ]],
    ],
    &[
        &[&[(-0.26, -0.46), (0.0, -0.46), (0.26, -0.48)], &[(0.26, -0.48), (0.1, -0.1), (-0.06, 0.5)]],
        &[
            &[(-0.26, -0.46), (0.0, -0.46), (0.26, -0.48)],
            &[(0.26, -0.48), (0.1, -0.1), (-0.06, 0.5)],
            &[(-0.12, 0.02), (0.05, 0.0), (0.22, -0.01)],
        ],
        &[
            &[(-0.27, -0.34), (-0.26, -0.41), (-0.24, -0.47)],
            &[(-0.24, -0.47), (0.0, -0.43), (0.27, -0.48)],
            &[(0.27, -0.48), (0.09, -0.08), (0.0, 0.22), (-0.02, 0.5)],
        ],
    ],
    &[
        &[&[
            (0.2, -0.36), (0.02, -0.5), (-0.18, -0.4), (-0.17, -0.19), (0.0, -0.04), (0.19, 0.13),
            (0.23, 0.35), (0.02, 0.5), (-0.21, 0.37), (-0.2, 0.14), (0.0, -0.04), (0.17, -0.18),
            (0.2, -0.36),
        ]],
        &[
            &[
                (0.0, -0.5), (-0.17, -0.42), (-0.19, -0.24), (-0.1, -0.08), (0.05, -0.04), (0.17, -0.15),
                (0.19, -0.35), (0.0, -0.5),
            ],
            &[
                (0.03, -0.04), (-0.16, 0.05), (-0.24, 0.25), (-0.14, 0.45), (0.06, 0.5), (0.23, 0.36),
                (0.22, 0.13), (0.03, -0.04),
            ],
        ],
    ],
    &[
        &[
            &[
                (0.2, -0.33), (0.07, -0.48), (-0.13, -0.46), (-0.24, -0.27), (-0.15, -0.07), (0.05, -0.06),
                (0.18, -0.22), (0.22, -0.42),
            ],
            &[(0.22, -0.42), (0.19, -0.1), (0.15, 0.2), (0.11, 0.5)],
        ],
        &[&[
            (0.21, -0.36), (0.05, -0.5), (-0.17, -0.43), (-0.22, -0.22), (-0.08, -0.05), (0.11, -0.1),
            (0.21, -0.3), (0.23, -0.1), (0.17, 0.25), (0.01, 0.47), (-0.2, 0.43),
        ]],
    ],
];

/// `samples` drawn digits: pictures `(N, 1, 28, 28)` of bright ink on black, from 0 to 1, in 10 classes. Sample `i` is
/// the digit `i % 10`. Every digit has two or three shapes. They are randomly bent, rotated, slanted, scaled and
/// shifted, and drawn with a pen of random width, softness and strength, with noise.
#[track_caller]
pub fn digits(seed: u64, samples: usize) -> Result<Dataset> {
    let _strict = environment::enter();
    let shapes: Vec<Vec<Vec<Vec<Point>>>> = SHAPES
        .iter()
        .map(|ways| ways.iter().map(|way| way.iter().map(|stroke| curve(stroke)).collect()).collect())
        .collect();
    let (x, y) = parallel("digits", samples, &[1, SIDE, SIDE], &[1], || {
        let shapes = &shapes;
        move |i, x: &mut [f32], y: &mut [f32]| {
            let mut stream = stream(seed, SET, i);
            let ways = &shapes[i % 10];
            let way = &ways[stream.below(ways.len())];
            draw(&mut stream, way, x);
            y[0] = (i % 10) as f32;
        }
    })?;
    let y = collected("digits", y.data().iter().map(|c| *c as u32))?;
    Dataset::new("digits", x, Tensor::new(&[samples], y)?, Some(10))
}

/// The points of a smooth curve through all of `points` (after Catmull and Rom).
fn curve(points: &[Point]) -> Vec<Point> {
    let last = points.len() - 1;
    let closed = points[0] == points[last];
    let at = |i: isize| match i {
        -1 if closed => points[last - 1],
        i if i as usize > last && closed => points[1],
        i => points[i.clamp(0, last as isize) as usize],
    };
    let mut out = Vec::new();
    for i in 0..last as isize {
        let [a, b, c, d] = [at(i - 1), at(i), at(i + 1), at(i + 2)];
        for piece in 0..PIECES {
            let t = piece as f64 / PIECES as f64;
            let mix = |a: f64, b: f64, c: f64, d: f64| {
                let (one, two, three) = (c - a, 2.0 * a - 5.0 * b + 4.0 * c - d, 3.0 * (b - c) + d - a);
                b + 0.5 * t * (one + t * (two + t * three))
            };
            out.push((mix(a.0, b.0, c.0, d.0), mix(a.1, b.1, c.1, d.1)));
        }
    }
    out.push(points[last]);
    out
}

/// A uniform random number between two others.
fn between(stream: &mut Stream, lo: f64, hi: f64) -> f64 {
    lo + (hi - lo) * f64::from(stream.uniform())
}

/// A roughly normal number within ±2, with standard deviation 0.58.
fn bell(stream: &mut Stream) -> f64 {
    f64::from((stream.uniform() + stream.uniform()) + (stream.uniform() + stream.uniform()) - 2.0)
}

/// Draws strokes into a picture of zeros.
fn draw(stream: &mut Stream, strokes: &[Vec<Point>], picture: &mut [f32]) {
    // Two slow waves bend the plane. They are the same for all strokes, so that strokes stay joined.
    let waves: Vec<[f64; 5]> = (0..2)
        .map(|_| {
            let (x, y) = (between(stream, -5.0, 5.0), between(stream, -5.0, 5.0));
            [x, y, between(stream, 0.0, TAU), 0.045 * bell(stream), 0.045 * bell(stream)]
        })
        .collect();
    let angle = 0.2 * bell(stream);
    let (sin, cos) = (libm::sin(angle), libm::cos(angle));
    let slant = 0.12 + 0.2 * bell(stream);
    let tall = HEIGHT * between(stream, 0.84, 1.08);
    let wide = HEIGHT * between(stream, 0.8, 1.2);
    let middle = (SIDE - 1) as f64 / 2.0;
    let (right, down) = (middle + 1.2 * bell(stream), middle + 1.0 * bell(stream));
    let place = |&(x, y): &Point| -> Point {
        let (mut bx, mut by) = (x, y);
        for [wx, wy, phase, dx, dy] in &waves {
            let bend = libm::sin(wx * x + wy * y + phase);
            bx += dx * bend;
            by += dy * bend;
        }
        let (x, y) = (wide * (bx - slant * by), tall * by);
        (right + cos * x - sin * y, down + sin * x + cos * y)
    };
    let pen = between(stream, 0.8, 1.55);
    let soft = between(stream, 0.9, 1.5);
    let ink = between(stream, 0.85, 1.0) as f32;
    let noise = between(stream, 0.0, 0.06) as f32;
    for stroke in strokes {
        // The pen's pressure varies along the stroke.
        let (turns, phase) = (between(stream, 0.5, 1.5) * TAU, between(stream, 0.0, TAU));
        let points: Vec<Point> = stroke.iter().map(place).collect();
        for (i, ends) in points.windows(2).enumerate() {
            let along = i as f64 / points.len() as f64;
            let width = pen * (1.0 + 0.15 * libm::sin(turns * along + phase));
            line(picture, ends[0], ends[1], width, soft);
        }
    }
    for v in picture {
        *v = (*v * ink + noise * bell(stream) as f32).clamp(0.0, 1.0);
    }
}

/// Inks a straight segment of half width `pen`, by the distance of every pixel's centre from it.
fn line(picture: &mut [f32], from: Point, to: Point, pen: f64, soft: f64) {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx * dx + dy * dy;
    let reach = pen + soft;
    let span = |a: f64, b: f64| {
        let (lo, hi) = (a.min(b) - reach, a.max(b) + reach);
        (lo.max(0.0) as usize)..((hi + 1.0).clamp(0.0, SIDE as f64) as usize)
    };
    for row in span(from.1, to.1) {
        for column in span(from.0, to.0) {
            let (px, py) = (column as f64 - from.0, row as f64 - from.1);
            let t = if length > 0.0 { ((px * dx + py * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
            let (ox, oy) = (px - t * dx, py - t * dy);
            let ink = (0.5 + (pen - (ox * ox + oy * oy).sqrt()) / soft).clamp(0.0, 1.0) as f32;
            let pixel = &mut picture[row * SIDE + column];
            *pixel = pixel.max(ink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;

    #[test]
    fn bits_are_the_committed_ones() {
        let data = digits(7, 40).unwrap();
        assert_eq!(hash(data.x()), "1658ce11f2d7b4ca");
    }

    #[test]
    fn pictures_are_in_range_and_inked() {
        let data = digits(3, 200).unwrap();
        assert_eq!((data.x().shape().dims(), data.classes()), (&[200, 1, 28, 28][..], Some(10)));
        assert!(data.y().idx().unwrap().data().iter().enumerate().all(|(i, c)| *c as usize == i % 10));
        for (i, picture) in data.x().num().unwrap().data().chunks(SIDE * SIDE).enumerate() {
            assert!(picture.iter().all(|v| (0.0..=1.0).contains(v)));
            let ink: f32 = picture.iter().sum();
            assert!((25.0..330.0).contains(&ink), "{i}: {ink}");
            // Nothing may leave the picture: its edge has at most noise.
            let inside = 1..SIDE - 1;
            let edge = |j: usize| !inside.contains(&(j % SIDE)) || !inside.contains(&(j / SIDE));
            let lost = picture.iter().enumerate().filter(|(j, v)| edge(*j) && **v > 0.5).count();
            assert!(lost < 6, "{i}: {lost} pixels of the edge are inked");
        }
    }

    #[test]
    fn a_smaller_set_is_the_beginning_of_a_larger_one() {
        let (few, many) = (digits(3, 7).unwrap(), digits(3, 23).unwrap());
        assert_eq!(few.x().num().unwrap().data(), &many.x().num().unwrap().data()[..7 * SIDE * SIDE]);
        assert_ne!(digits(4, 7).unwrap().x(), few.x());
        assert!(digits(1, 0).is_err() && digits(1, usize::MAX).is_err());
    }
}
