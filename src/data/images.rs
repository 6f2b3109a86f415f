//! Pictures in the files of MNIST and CIFAR-10.

use super::Dataset;
use crate::error::{Error, Result};
use crate::io::bytes::{file_name, gunzip, read};
use crate::numerics::environment;
use crate::reserve::{collected, grow};
use crate::tensor::Tensor;
use std::path::Path;

/// Bytes of a CIFAR-10 record: a class, then 32 x 32 of red, of green and of blue.
const RECORD: usize = 1 + 3 * 32 * 32;

/// Reads images and their classes from two IDX files, the format of MNIST and its relatives, plain or gzipped. Inputs
/// are `(N, 1, H, W)` from 0 to 1. There are 10 classes, or more if the largest class needs them. The data set is named
/// after the file of images.
#[track_caller]
pub fn idx(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Dataset> {
    let _strict = environment::enter();
    let (images, labels) = (images.as_ref(), labels.as_ref());
    let content = |path: &Path| gunzip(read("idx", path)?).map_err(|why| Error::file("idx", path, why));
    let (pictures, classes) = (content(images)?, content(labels)?);
    let (dims, pictures) = idx_array(&pictures, 3, "pictures").map_err(|e| Error::file("idx", images, e))?;
    let (count, classes) = idx_array(&classes, 1, "classes").map_err(|e| Error::file("idx", labels, e))?;
    if count[0] != dims[0] {
        let why = format!("has {} classes for the {} pictures of {}", count[0], dims[0], images.display());
        return Err(Error::file("idx", labels, why));
    }
    let most = classes.iter().max().map_or(0, |c| usize::from(*c) + 1);
    let x = Tensor::new(
        &[dims[0], 1, dims[1], dims[2]],
        collected("pictures", pictures.iter().map(|b| shade(*b)))?,
    )?;
    let y = Tensor::new(&count, collected("classes", classes.iter().map(|c| u32::from(*c)))?)?;
    Dataset::new(file_name(images), x, y, Some(most.max(10))).map_err(|e| Error::file("idx", images, e))
}

/// From 0 for black to 1 for white.
fn shade(byte: u8) -> f32 {
    f32::from(byte) / 255.0
}

/// The dimensions and bytes of an IDX file of `rank` axes.
#[track_caller]
fn idx_array<'a>(
    bytes: &'a [u8],
    rank: usize,
    what: &str,
) -> std::result::Result<(Vec<usize>, &'a [u8]), String> {
    let start = 4 + 4 * rank;
    let Some((head, data)) = bytes.split_at_checked(start) else {
        return Err(format!("has {} bytes, an IDX file of {what} has a header of {start}", bytes.len()));
    };
    match head[..4] {
        [0, 0, 8, axes] if usize::from(axes) == rank => {}
        [0, 0, 8, axes] => return Err(format!("byte 3: {axes} axes, {what} have {rank}")),
        [0, 0, kind, _] => return Err(format!("byte 2: elements of type {kind:#04x}, expected bytes, 0x08")),
        _ => return Err(format!("byte 0: is not an IDX file of {what}, which starts with 0 0 8 {rank}")),
    }
    let dims: Vec<usize> =
        head[4..].chunks_exact(4).map(|c| c.iter().fold(0, |n, b| n << 8 | usize::from(*b))).collect();
    let count = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if count != Some(data.len()) {
        let (n, d) = (data.len(), &dims);
        return Err(format!("byte 4: dimensions {d:?}, but {n} bytes of data after byte {start}"));
    }
    if data.is_empty() {
        return Err(format!("byte 4: dimensions {dims:?}, there are no {what}"));
    }
    Ok((dims, data))
}

/// Reads CIFAR-10 from files of its binary version, one after another: `data_batch_1.bin` and so on.
/// Inputs are `(N, 3, 32, 32)` from 0 to 1, red, green and blue; there are 10 classes.
#[track_caller]
pub fn cifar10(paths: &[impl AsRef<Path>]) -> Result<Dataset> {
    let _strict = environment::enter();
    let Some(first) = paths.first() else {
        return Err(Error::argument("cifar10", "paths", "needs one file or more"));
    };
    let (mut x, mut y): (Vec<f32>, Vec<u32>) = (Vec::new(), Vec::new());
    for path in paths {
        let path = path.as_ref();
        let fail = |why: String| Error::file("cifar10", path, why);
        let bytes = gunzip(read("cifar10", path)?).map_err(fail)?;
        if bytes.is_empty() || bytes.len() % RECORD != 0 {
            let why =
                format!("has {} bytes, expected some times {RECORD}, the bytes of a picture", bytes.len());
            return Err(fail(why));
        }
        grow("pictures", &mut x, bytes.len())?;
        grow("classes", &mut y, bytes.len() / RECORD)?;
        for (i, record) in bytes.chunks_exact(RECORD).enumerate() {
            if record[0] > 9 {
                return Err(fail(format!("byte {}: class {}, expected 0 to 9", i * RECORD, record[0])));
            }
            y.push(u32::from(record[0]));
            x.extend(record[1..].iter().map(|b| shade(*b)));
        }
    }
    let rows = y.len();
    let x = Tensor::new(&[rows, 3, 32, 32], x)?;
    Dataset::new(file_name(first.as_ref()), x, Tensor::new(&[rows], y)?, Some(10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::bytes::tests::gzip;
    use proptest::prelude::*;
    use std::path::PathBuf;

    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Files {
            let folder = std::env::temp_dir().join(format!("dittograd-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Files(folder)
        }

        fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn pictures() -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3];
        bytes.extend([0, 51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6]);
        bytes
    }

    const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 7, 3];

    #[test]
    fn idx_files_are_read_plain_and_gzipped() {
        let files = Files::new("idx");
        let plain = (files.write("images", &pictures()), files.write("labels", &LABELS));
        let data = idx(&plain.0, &plain.1).unwrap();
        assert_eq!((data.x().shape().dims(), data.classes()), (&[2, 1, 2, 3][..], Some(10)));
        let x = data.x().num().unwrap().data();
        assert_eq!((x[0], x[1], x[5], x[6]), (0.0, 51.0 / 255.0, 1.0, 1.0 / 255.0));
        assert_eq!(data.y().idx().unwrap().data(), [7, 3]);
        assert_eq!(data.name(), "images");
        let packed = (
            files.write("images.gz", &gzip(&pictures(), Some("images"))),
            files.write("labels.gz", &gzip(&LABELS, None)),
        );
        assert_eq!(idx(&packed.0, &packed.1).unwrap().x(), data.x());
        let wide = files.write("wide", &[0, 0, 8, 1, 0, 0, 0, 2, 46, 0]);
        assert_eq!(idx(&plain.0, wide).unwrap().classes(), Some(47));
    }

    #[test]
    fn wrong_idx_files_are_errors_that_say_where() {
        let files = Files::new("idx-bad");
        let labels = files.write("labels", &LABELS);
        let check = |bytes: &[u8], part: &str| {
            let got = idx(files.write("images", bytes), &labels).expect_err(part).to_string();
            assert!(got.contains(part) && got.contains("images: ") && !got.contains('\n'), "{got}");
        };
        check(b"", "has 0 bytes, an IDX file of pictures has a header of 16");
        check(&[1; 20], "byte 0: is not an IDX file of pictures");
        check(&[[0, 0, 13, 3], [0; 4], [0; 4], [0; 4]].concat(), "byte 2: elements of type 0x0d");
        check(&[&LABELS[..], &[0; 8]].concat(), "byte 3: 1 axes, pictures have 3");
        check(&pictures()[..27], "dimensions [2, 2, 3], but 11 bytes of data");
        let wild = [&[0, 0, 8, 3][..], &[255; 12]].concat();
        check(&wild, "dimensions [4294967295, 4294967295, 4294967295], but 0 bytes");
        check(&[[0, 0, 8, 3], [0; 4], [0; 4], [0; 4]].concat(), "there are no pictures");
        check(&gzip(&pictures(), None)[..20], "images: ");
        let images = files.write("images", &pictures());
        let few = files.write("few", &[0, 0, 8, 1, 0, 0, 0, 1, 7]);
        assert!(idx(&images, few).unwrap_err().to_string().contains("has 1 classes for the 2 pictures"));
        assert!(idx(&images, files.0.join("none")).is_err());
    }

    #[test]
    fn cifar_files_are_read() {
        let files = Files::new("cifar");
        let record =
            |class: u8| [&[class][..], &(0..3072).map(|i| (i / 12) as u8).collect::<Vec<_>>()].concat();
        let one = files.write("data_batch_1.bin", &[record(3), record(9)].concat());
        let two = files.write("data_batch_2.bin", &record(0));
        let data = cifar10(&[&one, &two]).unwrap();
        assert_eq!((data.x().shape().dims(), data.classes()), (&[3, 3, 32, 32][..], Some(10)));
        assert_eq!(data.y().idx().unwrap().data(), [3, 9, 0]);
        assert_eq!(data.x().num().unwrap().data()[3071..3074], [1.0, 0.0, 0.0]);
        let check = |bytes: &[u8], part: &str| {
            let got = cifar10(&[files.write("bad.bin", bytes)]).unwrap_err().to_string();
            assert!(got.contains(part) && got.contains("bad.bin: "), "{got}");
        };
        check(b"", "has 0 bytes");
        check(&record(0)[1..], "has 3072 bytes, expected some times 3073");
        check(&[record(0), record(10)].concat(), "byte 3073: class 10, expected 0 to 9");
        assert!(cifar10(&[] as &[&Path]).is_err());
        assert!(cifar10(&[files.0.join("none")]).is_err());
    }

    proptest! {
        #[test]
        fn changed_bytes_do_not_panic(
            at in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..5), cut in 0usize..60, packed: bool,
        ) {
            let mut bytes = if packed { gzip(&pictures(), Some("n")) } else { pictures() };
            for (at, byte) in at {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            if let Ok(bytes) = gunzip(bytes) {
                let _ = idx_array(&bytes, 3, "pictures");
                let _ = idx_array(&bytes, 1, "classes");
            }
        }
    }
}
