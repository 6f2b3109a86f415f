//! Pictures in folders: one folder per class, sorted by name, with PNG files in it.

use crate::{Answer, fail};
use dittograd::data::Dataset;
use dittograd::prelude::*;
use dittograd::reserve::{filled, reserved};
use png::{ColorType, Decoder, Limits, Transformations};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

/// The most bytes of one picture.
const MAX_PICTURE_BYTES: usize = 1 << 28;

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

fn ends(path: &Path, with: &[&str]) -> bool {
    let end = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    with.contains(&end.as_str())
}

/// The folders of classes in a folder, if it has any.
pub(crate) fn classes(path: &Path) -> Answer<Option<Vec<PathBuf>>> {
    let folders: Vec<PathBuf> = entries(path)?.into_iter().filter(|p| p.is_dir()).collect();
    Ok((!folders.is_empty()).then_some(folders))
}

/// Pictures `(N, C, H, W)` from 0 to 1 and their classes. All must have the same size. They have three channels if one
/// of them is in colour, and one otherwise.
pub(crate) fn load(path: &Path, classes: &[PathBuf]) -> Answer<Dataset> {
    let mut pictures = Vec::new();
    let mut labels = Vec::new();
    for (class, folder) in classes.iter().enumerate() {
        let before = pictures.len();
        for file in entries(folder)?.into_iter().filter(|p| p.is_file()) {
            if ends(&file, &["jpg", "jpeg"]) {
                let why = "is a JPEG, which decoders do not agree on bit for bit; convert it to PNG";
                return fail(format!("{}: {why}", file.display()));
            }
            if ends(&file, &["png"]) {
                pictures.push((read(&file)?, file));
                labels.push(class as u32);
            }
        }
        if pictures.len() == before {
            return fail(format!("{}: holds no PNG files; a folder for each class does", folder.display()));
        }
    }
    let Some((first, named)) = pictures.first() else {
        return fail(format!("{}: holds no pictures", path.display()));
    };
    let size = first.size;
    if let Some((other, file)) = pictures.iter().find(|(p, _)| p.size != size) {
        let ([h, w], [a, b]) = (other.size, size);
        let (file, named) = (file.display(), named.display());
        return fail(format!("{file}: is {w} by {h}, but {named} is {b} by {a}; all must have one size"));
    }
    let channels = pictures.iter().map(|(p, _)| p.channels).max().unwrap_or(1);
    let count = size[0] * size[1];
    let mut x = reserved("pictures", pictures.len().saturating_mul(channels * count))?;
    for (picture, _) in &pictures {
        for channel in 0..channels {
            let from = if picture.channels == 1 { 0 } else { channel };
            let every = picture.bytes.iter().skip(from).step_by(picture.channels);
            x.extend(every.map(|b| (f64::from(*b) / 255.0) as f32));
        }
    }
    let name =
        path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    let x = Tensor::new(&[pictures.len(), channels, size[0], size[1]], x)?;
    Ok(Dataset::new(name, x, Tensor::new(&[labels.len()], labels)?, Some(classes.len()))?)
}

/// A picture as bytes with interleaved channels, without transparency.
struct Picture {
    size: [usize; 2],
    channels: usize,
    bytes: Vec<u8>,
}

fn read(path: &Path) -> Answer<Picture> {
    let wrong = |why: &dyn std::fmt::Display| fail(format!("{}: {why}", path.display()));
    let file = dittograd::io::read(path)?;
    let mut decoder = Decoder::new_with_limits(Cursor::new(&file), Limits { bytes: MAX_PICTURE_BYTES });
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = match decoder.read_info() {
        Ok(reader) => reader,
        Err(e) => return wrong(&e),
    };
    let info = reader.info();
    // Checked before memory for the pixels is allocated, since a few bytes can claim any number of them.
    if info.raw_bytes() > file.len().saturating_mul(dittograd::io::MAX_RATIO) {
        return wrong(&format!(
            "its {} bytes cannot hold {} by {} pixels",
            file.len(),
            info.width,
            info.height
        ));
    }
    if info.palette.as_ref().is_some_and(|p| p.len() % 3 != 0) {
        return wrong(&"has a palette with a part of a colour");
    }
    let Some(room) = reader.output_buffer_size().filter(|n| *n <= MAX_PICTURE_BYTES) else {
        return wrong(&"is too large");
    };
    let mut bytes = filled("picture", room, 0)?;
    let info = match reader.next_frame(&mut bytes) {
        Ok(info) => info,
        Err(e) => return wrong(&e),
    };
    bytes.truncate(info.buffer_size());
    let (all, channels) = match info.color_type {
        ColorType::Grayscale => (1, 1),
        ColorType::GrayscaleAlpha => (2, 1),
        ColorType::Rgb => (3, 3),
        ColorType::Rgba => (4, 3),
        ColorType::Indexed => return wrong(&"has a palette that cannot be read"),
    };
    let mut kept = reserved("picture", bytes.len())?;
    kept.extend(bytes.chunks_exact(all).flat_map(|pixel| &pixel[..channels]));
    Ok(Picture { size: [info.height as usize, info.width as usize], channels, bytes: kept })
}
