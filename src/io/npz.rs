//! NumPy's `.npz` format: a zip archive of `.npy` files, stored or deflated.
//!
//! `rawzip` reads the archive. It does not write it, since it would change names that look like paths and put sizes
//! after the data.

use super::bytes::{self, crc32, u16_at, u32_at, u64_at};
use super::npy::{self, Parsed};
use super::{said, shown};
use crate::error::{Error, Result};
use crate::reserve::{grow, reserved};
use crate::tensor::AnyTensor;
use rawzip::{CompressionMethod, ErrorKind, ZipArchive, ZipFileHeaderRecord, ZipSliceArchive};
use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

const END: u32 = 0x0605_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// Bytes of an end record without its comment.
const END_SIZE: usize = 22;
/// The most arrays of an archive.
const MAX_ARRAYS: u64 = 1 << 16;

/// Reads all arrays of a file with their names, in the order of the file, each like [`read_npy`](super::read_npy).
#[track_caller]
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, AnyTensor)>> {
    let path = path.as_ref();
    parse(&bytes::read("npz", path)?).map_err(|why| Error::file("npz", path, why))
}

/// Like [`read_npz`], from the bytes of a file; `name` stands for the file in errors.
#[track_caller]
pub fn parse_npz(name: &str, bytes: &[u8]) -> Result<Vec<(String, AnyTensor)>> {
    parse(bytes).map_err(|why| Error::file("npz", name, why))
}

/// Writes arrays to a file atomically, without compression. Errors for empty, too long or duplicate names, and for more
/// than 4 GiB.
#[track_caller]
pub fn write_npz(path: impl AsRef<Path>, arrays: &[(&str, &AnyTensor)]) -> Result<()> {
    super::atomic::write(path, &npz_bytes(arrays)?)
}

/// The bytes that [`write_npz`] writes.
#[track_caller]
pub fn npz_bytes(arrays: &[(&str, &AnyTensor)]) -> Result<Vec<u8>> {
    let wrong = |name: &'static str, why: String| Err(Error::argument("npz", name, why));
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (i, (name, array)) in arrays.iter().enumerate() {
        if name.is_empty() || name.len() > 1000 || arrays[..i].iter().any(|(n, _)| n == name) {
            return wrong("name", format!("array {i} needs a name of its own of 1 to 1000 bytes"));
        }
        let ((header, words), start) = (npy::parts(array), out.len());
        let mut content = reserved("npz", header.len() + 4 * words.len())?;
        content.extend(header);
        npy::append(&mut content, words);
        let file = format!("{name}.npy");
        let mut fields = Vec::new();
        // Version 2.0, UTF-8 names, stored, and the earliest date.
        for half in [20u16, 1 << 11, 0, 0, 0x21] {
            fields.extend(half.to_le_bytes());
        }
        for word in [crc32(&content), content.len() as u32, content.len() as u32] {
            fields.extend(word.to_le_bytes());
        }
        fields.extend((file.len() as u16).to_le_bytes());
        fields.extend(0u16.to_le_bytes());
        grow("npz", &mut out, content.len() + 4 + fields.len() + file.len())?;
        out.extend(LOCAL.to_le_bytes());
        out.extend(&fields);
        out.extend(file.as_bytes());
        out.extend(&content);
        directory.extend(ENTRY.to_le_bytes());
        directory.extend(20u16.to_le_bytes());
        directory.extend(&fields);
        directory.extend([0; 10]);
        directory.extend((start as u32).to_le_bytes());
        directory.extend(file.as_bytes());
    }
    let (start, size) = (out.len(), directory.len());
    if start.saturating_add(size) > u32::MAX as usize || arrays.len() >= usize::from(u16::MAX) {
        return wrong("arrays", format!("{} arrays of {start} bytes do not fit into a file", arrays.len()));
    }
    grow("npz", &mut out, size + END_SIZE)?;
    out.extend(directory);
    out.extend(END.to_le_bytes());
    for half in [0, 0, arrays.len() as u16, arrays.len() as u16] {
        out.extend(half.to_le_bytes());
    }
    out.extend((size as u32).to_le_bytes());
    out.extend((start as u32).to_le_bytes());
    out.extend(0u16.to_le_bytes());
    Ok(out)
}

fn parse(bytes: &[u8]) -> Parsed<Vec<(String, AnyTensor)>> {
    let zip = ZipArchive::from_slice(bytes).map_err(|e| match (e.kind(), e.eocd_offset()) {
        (ErrorKind::InvalidEndOfCentralDirectory, Some(end)) => {
            format!("byte {end}: the end record is damaged")
        }
        _ => "is not a .npz file: it has no zip directory at its end (or is cut off)".into(),
    })?;
    let end = zip.eocd_offset();
    let damaged = || format!("byte {end}: the end record is damaged");
    let (count, start) = stated(bytes, end as usize).ok_or_else(damaged)?;
    if zip.end_offset() != bytes.len() as u64 {
        return Err(format!("byte {}: the archive ends before the file does", zip.end_offset()));
    }
    if !matches!(u16_at(bytes, end as usize + 4), Some(0 | 0xffff)) {
        return Err(format!("byte {end}: archives in several parts are not supported"));
    }
    if count > MAX_ARRAYS {
        return Err(format!("byte {end}: {count} arrays, at most {MAX_ARRAYS} are read"));
    }
    let (mut arrays, mut names, mut packed) = (Vec::new(), HashSet::new(), 0u64);
    for (i, entry) in zip.entries().enumerate() {
        let entry = entry.map_err(|e| format!("entry {i} of the directory is damaged: {}", said(e)))?;
        // Entries that share bytes could claim any amount of memory.
        packed = packed.saturating_add(entry.compressed_size_hint());
        if packed > bytes.len() as u64 {
            return Err(format!("entry {i} of the directory: the entries have more bytes than the file"));
        }
        let file = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
        let name = file.strip_suffix(".npy").unwrap_or(&file).to_string();
        if !names.insert(name.clone()) {
            return Err(format!("array `{}` is there twice", shown(&name)));
        }
        let array = content(&zip, &entry).and_then(|c| npy::array(&c));
        let array = array.map_err(|why| format!("array `{}`: {why}", shown(&name)))?;
        arrays.push((name, array));
    }
    if start != zip.directory_offset() {
        return Err(damaged());
    }
    if arrays.len() as u64 != count {
        let got = arrays.len();
        return Err(format!(
            "byte {end}: the directory is damaged: it has {got} entries, {count} were stated"
        ));
    }
    Ok(arrays)
}

/// The number of entries and the start of the directory, from the end record at byte `end` or the ZIP64 one before it.
/// `rawzip` reads the number of entries of the last part only, and does not notice bytes before an archive.
fn stated(bytes: &[u8], end: usize) -> Option<(u64, u64)> {
    let (part, count, start) = (u16_at(bytes, end + 4)?, u16_at(bytes, end + 10)?, u32_at(bytes, end + 16)?);
    if part != 0xffff && count != 0xffff && start != u32::MAX {
        return Some((count.into(), start.into()));
    }
    let wide = usize::try_from(u64_at(bytes, end.checked_sub(20)? + 8)?).ok()?;
    Some((u64_at(bytes, wide.checked_add(32)?)?, u64_at(bytes, wide.checked_add(48)?)?))
}

/// The bytes of an entry. Its position and sizes are checked against the file.
fn content<'a>(zip: &'a ZipSliceArchive<&[u8]>, entry: &ZipFileHeaderRecord<'_>) -> Parsed<Cow<'a, [u8]>> {
    if entry.flags().is_encrypted() {
        return Err("is encrypted, which is not supported".into());
    }
    let found =
        zip.get_entry(entry.wayfinder()).map_err(|e| match (e.kind(), entry.local_header_offset()) {
            (ErrorKind::Eof, at) => {
                format!(
                    "its {} bytes at byte {at} reach past the end of the file",
                    entry.compressed_size_hint()
                )
            }
            (_, at) => format!("byte {at}: there is no entry where the directory says"),
        })?;
    let (data, size) = (found.data(), entry.uncompressed_size_hint());
    let content = match entry.compression_method() {
        CompressionMethod::STORE if size == data.len() as u64 => Cow::Borrowed(data),
        CompressionMethod::STORE => {
            return Err(format!("is stored in {} bytes, {size} were stated", data.len()));
        }
        CompressionMethod::DEFLATE => {
            Cow::Owned(bytes::inflate(data, usize::try_from(size).unwrap_or(usize::MAX))?)
        }
        other => return Err(format!("is compressed by method {other}; use np.savez or np.savez_compressed")),
    };
    if crc32(&content) != entry.crc32() {
        return Err("its checksum is wrong: the file is damaged".into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use proptest::prelude::*;
    use std::io::Write;

    fn arrays() -> (AnyTensor, AnyTensor) {
        let x = Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, -4.5]).unwrap().into();
        (x, Tensor::new(&[2], vec![0u32, 1]).unwrap().into())
    }

    fn archive() -> Vec<u8> {
        let (x, y) = arrays();
        npz_bytes(&[("x", &x), ("y", &y)]).unwrap()
    }

    /// The archive as `np.savez_compressed` has it.
    fn deflated() -> Vec<u8> {
        let (x, _) = arrays();
        let content = npy::npy_bytes(&x);
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::new(6));
        packed.write_all(&content).unwrap();
        let packed = packed.finish().unwrap();
        let stored = npz_bytes(&[("x", &x)]).unwrap();
        // The names have five bytes; sizes and method are put into the two headers.
        let mut out = [&stored[..35], &packed].concat();
        let start = out.len() as u32;
        out.extend_from_slice(&stored[35 + content.len()..]);
        let entry = start as usize;
        for (method, size) in [(8, 18), (entry + 10, entry + 20)] {
            out[method] = 8;
            out[size..size + 4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        }
        let end = out.len() - END_SIZE;
        out[end + 16..end + 20].copy_from_slice(&start.to_le_bytes());
        out
    }

    #[test]
    fn stored_and_deflated_arrays_are_read() {
        let (x, y) = arrays();
        assert_eq!(parse_npz("f", &archive()).unwrap(), [("x".to_string(), x.clone()), ("y".into(), y)]);
        assert_eq!(parse_npz("f", &deflated()).unwrap(), [("x".to_string(), x)]);
        assert_eq!(parse_npz("f", &npz_bytes(&[]).unwrap()).unwrap(), []);
        let mut commented = archive();
        let end = commented.len() - 2;
        commented[end..].copy_from_slice(&[2, 0]);
        commented.extend(b"hi");
        assert_eq!(parse_npz("f", &commented).unwrap().len(), 2);
    }

    #[test]
    fn wrong_files_are_errors_that_say_where() {
        let check = |bytes: &[u8], part: &str| {
            let got = parse_npz("a.npz", bytes).expect_err(part).to_string();
            assert!(got.contains(part) && got.starts_with("npz: a.npz: ") && !got.contains('\n'), "{got}");
        };
        check(b"", "is not a .npz file");
        check(&[0; 100], "is not a .npz file");
        let whole = archive();
        for cut in 0..whole.len() {
            assert!(parse_npz("f", &whole[..cut]).is_err(), "{cut}");
        }
        let change = |bytes: &[u8], at: usize, to: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[at..at + to.len()].copy_from_slice(to);
            bytes
        };
        let end = whole.len() - END_SIZE;
        check(&change(&whole, end + 16, &[0xff; 4]), "the end record is damaged");
        check(
            &change(&whole, end + 10, &[9, 0]),
            "the directory is damaged: it has 2 entries, 9 were stated",
        );
        check(&[&whole[..], b"x"].concat(), "the archive ends before the file does");
        check(&[b"x", &whole[..]].concat(), "the end record is damaged");
        check(&change(&whole, 0, b"XX"), "array `x`: byte 0: there is no entry where the directory says");
        check(&change(&whole, 40, &[1]), "array `x`: its checksum is wrong");
        let small = deflated();
        let entry = u32_at(&small, small.len() - END_SIZE + 16).unwrap() as usize;
        check(
            &change(&small, entry + 24, &[0xfe, 0xff, 0xff, 0xff]),
            "cannot be the stated 4294967294 bytes",
        );
        check(&change(&small, entry + 24, &[1, 0, 0, 0]), "has more than the stated 1 bytes");
        check(&change(&small, entry + 24, &[0xff, 0, 0, 0]), "255 were stated");
        check(&change(&small, entry + 20, &[0xfe, 0xff, 0xff, 0x7f]), "more bytes than the file");
        check(&change(&small, entry + 20, &(small.len() as u32).to_le_bytes()), "reach past the end");
        check(&change(&small, entry + 10, &[12]), "method 12");
        check(&change(&small, entry + 8, &[1]), "encrypted");
        check(&change(&small, 36, &[0xff; 20]), "the compressed data is damaged");
        let (x, _) = arrays();
        assert!(npz_bytes(&[("x", &x), ("x", &x)]).is_err() && npz_bytes(&[("", &x)]).is_err());
    }

    #[test]
    fn files_are_written_and_read() {
        let path = std::env::temp_dir().join(format!("dittograd-npz-{}.npz", std::process::id()));
        let (x, y) = arrays();
        write_npz(&path, &[("x", &x), ("y", &y)]).unwrap();
        assert_eq!(read_npz(&path).unwrap().len(), 2);
        std::fs::remove_file(&path).unwrap();
        assert!(read_npz(&path).is_err());
    }

    proptest! {
        #[test]
        fn changed_bytes_do_not_panic(
            at in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6), cut in 0usize..600, small: bool,
        ) {
            let mut bytes = if small { deflated() } else { archive() };
            for (at, byte) in at {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            if cut % 2 == 0 {
                bytes.truncate(cut);
            }
            let _ = parse_npz("f", &bytes);
        }

        #[test]
        fn changed_numbers_of_the_directory_do_not_panic(
            at in proptest::collection::vec((0usize..70, any::<u8>()), 1..4), small: bool,
        ) {
            let mut bytes = if small { deflated() } else { archive() };
            let len = bytes.len();
            for (back, byte) in at {
                bytes[len - 1 - back] = byte;
            }
            let _ = parse_npz("f", &bytes);
        }
    }
}
