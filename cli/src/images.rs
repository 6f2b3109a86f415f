//! Images from PNG and JPEG files: one file, or a folder with one folder per class, sorted by name.
//!
//! Every pixel is the same on every platform. PNG is lossless. The JPEG decoder is built without SIMD code, so that it has
//! one integer transform, one chroma upsampling and one colour conversion. Resizing is defined below in f64.

use crate::out::Busy;
use crate::{Answer, fail};
use dittograd::data::Dataset;
use dittograd::prelude::*;
use dittograd::reserve::{filled, reserved};
use png::{ColorType, Decoder, Limits, Transformations};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The most bytes of the pixels of one image.
const MAX_IMAGE_BYTES: usize = 1 << 28;
/// The most pixels along a side.
pub(crate) const MAX_SIDE: usize = 1 << 16;
/// The first bytes of a JPEG file.
const JPEG: [u8; 3] = [0xff, 0xd8, 0xff];

/// Height and width.
pub(crate) type Size = [usize; 2];

/// A size as `HxW`.
pub(crate) fn parse_size(text: &str) -> Result<Size, String> {
    let side = |text: &str| text.parse().ok().filter(|n| (1..=MAX_SIDE).contains(n));
    match text.split_once('x').and_then(|(h, w)| Some([side(h)?, side(w)?])) {
        Some(size) => Ok(size),
        None => Err(format!("use HxW, height and width from 1 to {MAX_SIDE}, such as 32x32")),
    }
}

/// A size as [`parse_size`] reads it.
pub(crate) fn size_text([height, width]: Size) -> String {
    format!("{height}x{width}")
}

/// The entries of a folder, sorted by name.
fn entries(path: &Path) -> Answer<Vec<PathBuf>> {
    let read = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    match read {
        Ok(entries) => {
            let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
            paths.sort();
            Ok(paths)
        }
        Err(e) => fail(format!("{}: {e}", path.display())),
    }
}

/// Whether a file has the name of an image.
pub(crate) fn is_image(path: &Path) -> bool {
    let end = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    matches!(end.as_str(), "png" | "jpg" | "jpeg")
}

/// The folders of classes in a folder, if it has any.
pub(crate) fn classes(path: &Path) -> Answer<Option<Vec<PathBuf>>> {
    let folders: Vec<PathBuf> = entries(path)?.into_iter().filter(|p| p.is_dir()).collect();
    Ok((!folders.is_empty()).then_some(folders))
}

/// The image files in a folder, sorted by name.
fn files_in(path: &Path) -> Answer<Vec<PathBuf>> {
    Ok(entries(path)?.into_iter().filter(|p| p.is_file() && is_image(p)).collect())
}

/// The image files that a path stands for: itself, those in it, or those in the folders in it.
pub(crate) fn files(path: &Path) -> Answer<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut all = files_in(path)?;
    for folder in classes(path)?.unwrap_or_default() {
        all.extend(files_in(&folder)?);
    }
    Ok(all)
}

/// The last part of a path.
fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Images `(N, C, H, W)` from 0 to 1 and their classes, which are named after the folders. All get the size `resize`, or
/// must have one size. They have three channels if one of them is in colour, and one otherwise.
pub(crate) fn load(path: &Path, classes: &[PathBuf], resize: Option<Size>, busy: &Busy) -> Answer<Dataset> {
    let (mut found, mut labels) = (Vec::new(), Vec::new());
    for (class, folder) in classes.iter().enumerate() {
        let files = files_in(folder)?;
        if files.is_empty() {
            let why = "holds no PNG or JPEG files; a folder for each class does";
            return fail(format!("{}: {why}", folder.display()));
        }
        labels.extend(files.iter().map(|_| class as u32));
        found.extend(files);
    }
    let x = tensor(&found, None, resize, busy)?;
    let data = Dataset::new(file_name(path), x, Tensor::new(&[labels.len()], labels)?, Some(classes.len()))?;
    Ok(data.with_class_names(classes.iter().map(|c| file_name(c)).collect::<Vec<_>>())?)
}

/// Images `(N, C, H, W)` from 0 to 1, with `channels`, or with as many as the image that has the most.
pub(crate) fn tensor(
    files: &[PathBuf],
    channels: Option<usize>,
    resize: Option<Size>,
    busy: &Busy,
) -> Answer<Tensor<f32>> {
    let mut images: Vec<Image> = Vec::new();
    for (i, file) in files.iter().enumerate() {
        busy.at(i, files.len());
        let image = read(file)?;
        let image = match resize {
            Some(size) => image.resized(size)?,
            None => image,
        };
        if let Some(first) = images.first()
            && first.size != image.size
        {
            let (a, b) = (size_text(image.size), size_text(first.size));
            let how = "give all one size with --resize HxW";
            return fail(format!(
                "{}: has {a} pixels, but {} has {b}; {how}",
                file.display(),
                files[0].display()
            ));
        }
        if let Some(want) = channels
            && image.channels > want
        {
            return fail(format!("{}: is in colour, but the model takes grey images", file.display()));
        }
        images.push(image);
    }
    let Some(first) = images.first() else { return fail("there are no images") };
    let size = first.size;
    let most = images.iter().map(|i| i.channels).max().unwrap_or(1);
    let (rows, channels) = (images.len(), channels.unwrap_or(most));
    let mut x = reserved("images", rows.saturating_mul(channels * size[0] * size[1]))?;
    for image in images {
        // The channels of a grey image are alike.
        for channel in 0..channels {
            x.extend_from_slice(image.plane(channel.min(image.channels - 1)));
        }
    }
    Ok(Tensor::new(&[rows, channels, size[0], size[1]], x)?)
}

/// An image without transparency: numbers from 0 to 1, one channel after the other.
#[derive(Debug, PartialEq)]
struct Image {
    size: Size,
    channels: usize,
    values: Vec<f32>,
}

impl Image {
    /// From bytes of which each pixel has `every`, the first `channels` of them colours.
    fn new(size: Size, channels: usize, every: usize, bytes: &[u8]) -> Answer<Image> {
        let mut values = reserved("image", channels * size[0] * size[1])?;
        for channel in 0..channels {
            let plane = bytes.iter().skip(channel).step_by(every);
            values.extend(plane.map(|b| (f64::from(*b) / 255.0) as f32));
        }
        Ok(Image { size, channels, values })
    }

    fn plane(&self, channel: usize) -> &[f32] {
        let count = self.size[0] * self.size[1];
        &self.values[channel * count..][..count]
    }

    /// Antialiased bilinear interpolation, first along rows, then along columns. A result is the sum of products of
    /// [`Taps`], from the first to the last, in f64 with each operation rounded on its own; it is rounded to float32 at
    /// the end. So its bits do not depend on the platform.
    fn resized(self, size: Size) -> Answer<Image> {
        if size == self.size {
            return Ok(self);
        }
        let [height, width] = self.size;
        let (down, across) = (Taps::all(height, size[0]), Taps::all(width, size[1]));
        let mut values = reserved("image", self.channels.saturating_mul(size[0]).saturating_mul(size[1]))?;
        let mut narrow: Vec<f64> = filled("image", height.saturating_mul(size[1]), 0.0)?;
        for channel in 0..self.channels {
            let plane = self.plane(channel);
            for (row, out) in plane.chunks_exact(width).zip(narrow.chunks_exact_mut(size[1])) {
                for (taps, out) in across.iter().zip(out) {
                    *out = taps.sum(|i| f64::from(row[i]));
                }
            }
            for taps in &down {
                values.extend((0..size[1]).map(|column| taps.sum(|i| narrow[i * size[1] + column]) as f32));
            }
        }
        Ok(Image { size, channels: self.channels, values })
    }
}

/// The weights of neighbouring pixels in one pixel of a resized line. They are those of a triangle around its centre, one
/// source pixel wide to each side, or one result pixel when shrinking, so that every source pixel counts. Their sum is 1.
struct Taps {
    first: usize,
    weights: Vec<f64>,
}

impl Taps {
    /// For each pixel of a line of `to` made from one of `from`.
    fn all(from: usize, to: usize) -> Vec<Taps> {
        let step = from as f64 / to as f64;
        let reach = step.max(1.0);
        let one = |i: usize| {
            let centre = (i as f64 + 0.5) * step;
            let first = (centre - reach - 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize + 1).min(from);
            let weight = |j: usize| (1.0 - ((j as f64 + 0.5 - centre) / reach).abs()).max(0.0);
            let mut weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
            Taps { first, weights }
        };
        (0..to).map(one).collect()
    }

    fn sum(&self, at: impl Fn(usize) -> f64) -> f64 {
        self.weights.iter().enumerate().fold(0.0, |sum, (j, w)| sum + w * at(self.first + j))
    }
}

/// Reads an image. Its first bytes decide what it is, since names may be wrong.
fn read(path: &Path) -> Answer<Image> {
    let file = dittograd::io::read(path)?;
    let image = if file.starts_with(&JPEG) { read_jpeg(&file) } else { read_png(&file) };
    image.or_else(|e| match e.message() {
        Some(why) => fail(format!("{}: {why}", path.display())),
        None => fail(format!("{}: cannot be read", path.display())),
    })
}

/// Errors if so few bytes cannot hold so many, before memory for them is allocated: a few bytes can claim any size.
fn check_size(file: &[u8], [height, width]: Size, bytes: usize) -> Answer<()> {
    if bytes > file.len().saturating_mul(dittograd::io::MAX_RATIO) {
        return fail(format!("its {} bytes cannot hold {height}x{width} pixels", file.len()));
    }
    if bytes > MAX_IMAGE_BYTES {
        return fail(format!("is too large: it has {height}x{width} pixels"));
    }
    Ok(())
}

fn read_png(file: &[u8]) -> Answer<Image> {
    let wrong = |e: png::DecodingError| fail(e.to_string());
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: MAX_IMAGE_BYTES });
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = match decoder.read_info() {
        Ok(reader) => reader,
        Err(e) => return wrong(e),
    };
    let info = reader.info();
    let size = [info.height as usize, info.width as usize];
    check_size(file, size, info.raw_bytes())?;
    if info.palette.as_ref().is_some_and(|p| p.len() % 3 != 0) {
        return fail("has a palette with a part of a colour");
    }
    let Some(room) = reader.output_buffer_size().filter(|n| *n <= MAX_IMAGE_BYTES) else {
        return fail("is too large");
    };
    let mut bytes = filled("image", room, 0)?;
    let info = match reader.next_frame(&mut bytes) {
        Ok(info) => info,
        Err(e) => return wrong(e),
    };
    bytes.truncate(info.buffer_size());
    let (every, channels) = match info.color_type {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
        ColorType::Indexed => return fail("has a palette that cannot be read"),
    };
    Image::new(size, channels, every, &bytes)
}

/// Baseline and progressive JPEG, grey or in colour. The orientation that a camera notes is not applied.
fn read_jpeg(file: &[u8]) -> Answer<Image> {
    // A damaged or cut file is an error instead of an image with grey parts.
    let options = DecoderOptions::default().set_strict_mode(true).set_use_unsafe(false);
    let options = options.set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let wrong = |e: zune_jpeg::errors::DecodeErrors| fail(format!("is not a JPEG that can be read: {e:?}"));
    if let Err(e) = decoder.decode_headers() {
        return wrong(e);
    }
    let (Some(info), Some(colours)) = (decoder.info(), decoder.input_colorspace()) else {
        return fail("has no header of a JPEG");
    };
    let size = [usize::from(info.height), usize::from(info.width)];
    let (colours, channels) = match colours {
        ColorSpace::Luma => (ColorSpace::Luma, 1),
        ColorSpace::YCbCr | ColorSpace::RGB => (ColorSpace::RGB, 3),
        other => return fail(format!("has colours of the kind {other:?}; convert it to RGB or to grey")),
    };
    check_size(file, size, channels * size[0] * size[1])?;
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    let mut bytes = filled("image", channels * size[0] * size[1], 0)?;
    match decoder.decode_into(&mut bytes) {
        Ok(()) => Image::new(size, channels, channels, &bytes),
        Err(e) => wrong(e),
    }
}

#[cfg(test)]
mod tests;
