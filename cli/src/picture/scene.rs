//! The shapes of a picture, independent of the file format, and its SVG form.

use super::png;
use super::raster::text_width;
use std::fmt::Write;

/// Red, green and blue.
pub(super) type Colour = [u8; 3];

/// Text, axes and everything else that must be readable.
pub(super) const INK: Colour = [34, 34, 34];
/// Less prominent numbers and names.
pub(super) const SOFT: Colour = [85, 85, 85];
/// Axes and frames.
pub(super) const FRAME: Colour = [150, 150, 150];
/// Grid lines of a plot.
pub(super) const GRID: Colour = [230, 230, 230];
/// Errors.
pub(super) const RED: Colour = [200, 30, 30];
/// Colours of lines, in this order: Okabe and Ito's palette, which is safe for colour-blind readers.
pub(super) const LINES: [Colour; 6] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233]];

/// Where the given point lies in a text.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a line or text looks.
#[derive(Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: Colour,
}

/// A shape, in pixels to the right and down.
pub(super) enum Shape {
    /// A box `[x, y, width, height]` without rounded corners.
    Rect { at: [f64; 4], fill: Option<Colour>, stroke: Option<(Colour, f64)> },
    /// Straight pieces from point to point.
    Path { points: Vec<(f64, f64)>, colour: Colour, width: f64, dash: Option<[f64; 2]> },
    /// A disc.
    Dot { at: (f64, f64), radius: f64, colour: Colour },
    /// A line of text with its baseline through the point, upwards if `up`.
    Text { at: (f64, f64), font: Font, anchor: Anchor, up: bool, text: String },
    /// Pixels that fill a box, rows from the top, each a square of one colour.
    Image { at: [f64; 4], size: [usize; 2], rgb: Vec<u8> },
}

/// A picture: shapes on white, later ones over earlier ones.
#[derive(Default)]
pub(super) struct Scene {
    pub(super) shapes: Vec<Shape>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Scene {
    pub(super) fn text(&mut self, at: (f64, f64), font: Font, anchor: Anchor, text: &str) {
        self.shapes.push(Shape::Text { at, font, anchor, up: false, text: clean(text) });
    }

    pub(super) fn text_up(&mut self, at: (f64, f64), font: Font, text: &str) {
        self.shapes.push(Shape::Text { at, font, anchor: Anchor::Middle, up: true, text: clean(text) });
    }

    pub(super) fn path(&mut self, points: Vec<(f64, f64)>, colour: Colour, width: f64) {
        self.shapes.push(Shape::Path { points, colour, width, dash: None });
    }

    pub(super) fn frame(&mut self, at: [f64; 4], colour: Colour, width: f64) {
        self.shapes.push(Shape::Rect { at, fill: None, stroke: Some((colour, width)) });
    }

    /// The picture as an SVG file.
    pub(super) fn svg(&self) -> Vec<u8> {
        let (w, h) = (number(self.width), number(self.height));
        let mut s = String::with_capacity(1 << 14);
        s += &format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
             font-family=\"'Noto Sans', 'Open Sans', 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
             <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
        );
        for shape in &self.shapes {
            // Writing to a string cannot fail.
            let _ = shape.svg(&mut s);
        }
        s += "</svg>\n";
        s.into_bytes()
    }
}

impl Shape {
    fn svg(&self, s: &mut String) -> std::fmt::Result {
        match self {
            Shape::Rect { at: [x, y, w, h], fill, stroke } => {
                let fill = fill.map_or("none".to_string(), hex);
                write!(
                    s,
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"",
                    number(*x),
                    number(*y),
                    number(*w),
                    number(*h)
                )?;
                if let Some((colour, width)) = stroke {
                    write!(s, " stroke=\"{}\" stroke-width=\"{}\"", hex(*colour), number(*width))?;
                }
                s.push_str("/>\n");
            }
            Shape::Path { points, colour, width, dash } => {
                s.push_str("<path d=\"");
                for (i, (x, y)) in points.iter().enumerate() {
                    write!(s, "{}{} {}", if i == 0 { 'M' } else { 'L' }, number(*x), number(*y))?;
                }
                write!(
                    s,
                    "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"",
                    hex(*colour),
                    number(*width)
                )?;
                if let Some([on, off]) = dash {
                    write!(s, " stroke-dasharray=\"{} {}\"", number(*on), number(*off))?;
                }
                s.push_str("/>\n");
            }
            Shape::Dot { at: (x, y), radius, colour } => writeln!(
                s,
                "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>",
                number(*x),
                number(*y),
                number(*radius),
                hex(*colour)
            )?,
            Shape::Text { at, font, anchor, up, text } => {
                let (x, y) = (number(at.0), number(at.1));
                write!(
                    s,
                    "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" fill=\"{}\"",
                    number(font.size),
                    hex(font.colour)
                )?;
                if font.bold {
                    s.push_str(" font-weight=\"bold\"");
                }
                match anchor {
                    Anchor::Start => {}
                    Anchor::Middle => s.push_str(" text-anchor=\"middle\""),
                    Anchor::End => s.push_str(" text-anchor=\"end\""),
                }
                if *up {
                    write!(s, " transform=\"rotate(-90 {x} {y})\"")?;
                }
                writeln!(s, ">{}</text>", escape(text))?;
            }
            Shape::Image { at: [x, y, w, h], size, rgb } => {
                // An image without pixels is not drawn.
                let Ok(file) = png::encode(*size, rgb, None) else { return Ok(()) };
                write!(
                    s,
                    "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" \
                     style=\"image-rendering:pixelated\" href=\"data:image/png;base64,",
                    number(*x),
                    number(*y),
                    number(*w),
                    number(*h)
                )?;
                base64(s, &file);
                s.push_str("\"/>\n");
            }
        }
        Ok(())
    }
}

/// Hundredths of a pixel are precise enough.
fn number(v: f64) -> String {
    let text = format!("{v:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

fn hex([r, g, b]: Colour) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Removes characters that XML does not allow; line breaks become spaces.
fn clean(text: &str) -> String {
    let char = |c: char| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c };
    text.chars().map(char).collect()
}

fn base64(s: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * i) & 63) as usize];
            s.push(if i <= three.len() { digit as char } else { '=' });
        }
    }
}

/// As much of the text as fits, with an ellipsis if it is cut.
pub(super) fn fitted(text: &str, font: Font, width: f64) -> String {
    if text_width(text, font) <= width {
        return text.to_string();
    }
    let mut kept: Vec<char> = text.chars().collect();
    while kept.pop().is_some() {
        let mut shorter: String = kept.iter().collect::<String>().trim_end().to_string();
        shorter.push('…');
        if text_width(&shorter, font) <= width || kept.is_empty() {
            return shorter;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_base64() {
        // RFC 4648, section 10.
        for (bytes, want) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            let mut s = String::new();
            base64(&mut s, bytes.as_bytes());
            assert_eq!(s, want);
        }
    }

    #[test]
    fn picture_numbers_and_texts_of_svg() {
        assert_eq!([number(0.0), number(-0.001), number(1.5), number(100.0)], ["0", "0", "1.5", "100"]);
        assert_eq!(escape(&clean("a<b & \"c\"\n\u{1}>")), "a&lt;b &amp; \"c\"  &gt;");
        let font = Font { size: 14.0, bold: false, colour: INK };
        assert_eq!(fitted("short", font, 100.0), "short");
        let cut = fitted("a label that is far too long", font, 100.0);
        assert!(cut.ends_with('…') && cut.len() > 8 && text_width(&cut, font) <= 100.0, "{cut}");
        assert_eq!(fitted("any", font, 0.0), "…");
    }
}
