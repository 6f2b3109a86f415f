//! Rasterizes a picture, with two pixels per unit in each direction.

use super::png;
use super::scene::{Anchor, Colour, Font, Scene, Shape};
use std::sync::LazyLock;
use tiny_skia::{FillRule, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform};
use ttf_parser::{Face, OutlineBuilder};

/// Pixels of the file per pixel of the picture.
pub(super) const ZOOM: f64 = 2.0;
/// Pixels of the file per metre, so that a viewer shows it at its size (96 pixels per inch).
const PER_METRE: u32 = 7559;

static FACES: LazyLock<[Option<Face<'static>>; 2]> =
    LazyLock::new(|| [Face::parse(ttf_noto_sans::REGULAR, 0).ok(), Face::parse(ttf_noto_sans::BOLD, 0).ok()]);

fn face(bold: bool) -> Option<&'static Face<'static>> {
    FACES[usize::from(bold)].as_ref()
}

/// The glyphs of a text, each with its distance from the beginning, and the end, in the font's units.
fn glyphs(face: &Face, text: &str) -> (Vec<(ttf_parser::GlyphId, f32)>, f32) {
    let mut at = 0.0;
    let glyph = |c| {
        let id = face.glyph_index(c).unwrap_or_default();
        let here = at;
        at += f32::from(face.glyph_hor_advance(id).unwrap_or(0));
        (id, here)
    };
    let all = text.chars().map(glyph).collect();
    (all, at)
}

/// The width of a text.
pub(super) fn text_width(text: &str, font: Font) -> f64 {
    let Some(face) = face(font.bold) else { return 0.6 * font.size * text.chars().count() as f64 };
    f64::from(glyphs(face, text).1) * font.size / f64::from(face.units_per_em())
}

/// Collects the outline of one letter at its position in a text.
struct Letter {
    path: PathBuilder,
    at: f32,
}

impl OutlineBuilder for Letter {
    fn move_to(&mut self, x: f32, y: f32) {
        self.path.move_to(self.at + x, -y);
    }
    fn line_to(&mut self, x: f32, y: f32) {
        self.path.line_to(self.at + x, -y);
    }
    fn quad_to(&mut self, a: f32, b: f32, x: f32, y: f32) {
        self.path.quad_to(self.at + a, -b, self.at + x, -y);
    }
    fn curve_to(&mut self, a: f32, b: f32, c: f32, d: f32, x: f32, y: f32) {
        self.path.cubic_to(self.at + a, -b, self.at + c, -d, self.at + x, -y);
    }
    fn close(&mut self) {
        self.path.close();
    }
}

fn paint([r, g, b]: Colour) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(r, g, b, 255);
    paint
}

fn rect([x, y, w, h]: [f64; 4]) -> Option<Path> {
    Rect::from_xywh(x as f32, y as f32, w as f32, h as f32).map(PathBuilder::from_rect)
}

impl Scene {
    /// The picture as a PNG file; `None` if its size does not fit into memory.
    pub(super) fn png(&self) -> Option<Vec<u8>> {
        let (width, height) = ((self.width * ZOOM).round() as u32, (self.height * ZOOM).round() as u32);
        let mut pixels = Pixmap::new(width, height)?;
        pixels.fill(tiny_skia::Color::WHITE);
        for shape in &self.shapes {
            shape.draw(&mut pixels);
        }
        // Everything is opaque, so the alpha channel is dropped.
        let rgb: Vec<u8> = pixels.data().chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]]).collect();
        png::encode([height as usize, width as usize], &rgb, Some(PER_METRE)).ok()
    }
}

impl Shape {
    /// Draws all shapes. Parts outside of the picture, and shapes without extent, are skipped.
    fn draw(&self, pixels: &mut Pixmap) {
        let zoom = Transform::from_scale(ZOOM as f32, ZOOM as f32);
        match self {
            Shape::Rect { at, fill, stroke } => {
                let Some(path) = rect(*at) else { return };
                if let Some(colour) = fill {
                    pixels.fill_path(&path, &paint(*colour), FillRule::Winding, zoom, None);
                }
                if let Some((colour, width)) = stroke {
                    let stroke = Stroke { width: *width as f32, ..Stroke::default() };
                    pixels.stroke_path(&path, &paint(*colour), &stroke, zoom, None);
                }
            }
            Shape::Path { points, colour, width, dash } => {
                let mut path = PathBuilder::new();
                for (i, (x, y)) in points.iter().enumerate() {
                    let (x, y) = (*x as f32, *y as f32);
                    if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
                }
                let Some(path) = path.finish() else { return };
                let dash = dash.and_then(|d| StrokeDash::new(vec![d[0] as f32, d[1] as f32], 0.0));
                let stroke =
                    Stroke { width: *width as f32, line_join: LineJoin::Round, dash, ..Stroke::default() };
                pixels.stroke_path(&path, &paint(*colour), &stroke, zoom, None);
            }
            Shape::Dot { at: (x, y), radius, colour } => {
                let Some(path) = PathBuilder::from_circle(*x as f32, *y as f32, *radius as f32) else {
                    return;
                };
                pixels.fill_path(&path, &paint(*colour), FillRule::Winding, zoom, None);
            }
            Shape::Text { at, font, anchor, up, text } => {
                let Some(face) = face(font.bold) else { return };
                let (all, width) = glyphs(face, text);
                let mut letter = Letter { path: PathBuilder::new(), at: 0.0 };
                let shift = match anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => -0.5 * width,
                    Anchor::End => -width,
                };
                for (id, at) in all {
                    letter.at = at + shift;
                    face.outline_glyph(id, &mut letter);
                }
                let Some(path) = letter.path.finish() else { return };
                let scale = (font.size / f64::from(face.units_per_em())) as f32;
                let mut place = zoom.pre_translate(at.0 as f32, at.1 as f32);
                if *up {
                    // A quarter turn to the left, without the rounding of sines.
                    place = place.pre_concat(Transform::from_row(0.0, -1.0, 1.0, 0.0, 0.0, 0.0));
                }
                let place = place.pre_scale(scale, scale);
                pixels.fill_path(&path, &paint(font.colour), FillRule::Winding, place, None);
            }
            Shape::Image { at, size, rgb } => image(pixels, *at, *size, rgb),
        }
    }
}

/// Each pixel of the box gets the colour of the image pixel that it lies in.
fn image(pixels: &mut Pixmap, at: [f64; 4], [rows, columns]: [usize; 2], rgb: &[u8]) {
    let [left, top, width, height] = at.map(|v| (v * ZOOM).round());
    let (wide, high) = (pixels.width() as usize, pixels.height() as usize);
    let data = pixels.data_mut();
    let (left, top, width, height) = (left as usize, top as usize, width as usize, height as usize);
    for y in 0..height.min(high.saturating_sub(top)) {
        for x in 0..width.min(wide.saturating_sub(left)) {
            let from = (y * rows / height) * columns + x * columns / width;
            let to = ((top + y) * wide + left + x) * 4;
            if let Some(colour) = rgb.get(from * 3..from * 3 + 3) {
                data[to..to + 3].copy_from_slice(colour);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_letters_are_there() {
        let plain = Font { size: 10.0, bold: false, colour: [0; 3] };
        let bold = Font { bold: true, ..plain };
        // As HarfBuzz sets them, without kerning.
        assert!((text_width("0", plain) - 5.72).abs() < 0.01);
        assert!(text_width("", plain) == 0.0 && text_width("loss", bold) > text_width("loss", plain));
        let used = "0123456789.,·×…−→%()e+-kMG αΔλ";
        assert!(FACES.iter().all(|f| used.chars().all(|c| f.as_ref().unwrap().glyph_index(c).is_some())));
    }

    #[test]
    fn picture_pixels_are_where_shapes_are() {
        let mut scene = Scene { width: 40.0, height: 20.0, ..Scene::default() };
        scene.shapes.push(Shape::Rect { at: [1.0, 2.0, 3.0, 4.0], fill: Some([255, 0, 0]), stroke: None });
        let rgb = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        scene.shapes.push(Shape::Image { at: [10.0, 10.0, 4.0, 4.0], size: [2, 2], rgb: rgb.clone() });
        // Partly and wholly outside.
        scene.shapes.push(Shape::Image { at: [38.0, 18.0, 4.0, 4.0], size: [2, 2], rgb: rgb.clone() });
        scene.shapes.push(Shape::Image { at: [138.0, 118.0, 4.0, 4.0], size: [2, 2], rgb });
        scene.path(vec![], [0; 3], 1.0);
        scene.path(vec![(-1e9, 0.5), (1e9, 0.5)], [0; 3], 1.0);
        let (size, pixels) = png::tests::decode(&scene.png().unwrap());
        assert_eq!(size, [40, 80]);
        let at = |x: usize, y: usize| <[u8; 3]>::try_from(&pixels[(y * 80 + x) * 3..][..3]).unwrap();
        assert_eq!(
            [at(2, 4), at(7, 11), at(8, 11), at(7, 12)],
            [[255, 0, 0], [255, 0, 0], [255; 3], [255; 3]]
        );
        assert_eq!(
            [at(20, 20), at(24, 23), at(23, 24), at(27, 27)],
            [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
        );
        assert_eq!([at(76, 36), at(79, 39)], [[1, 2, 3]; 2]);
    }
}
