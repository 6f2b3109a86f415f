//! NumPy's `.npz` format: a zip archive of `.npy` files, stored or deflated.

use super::bytes::{self, u16_at, u32_at, u64_at};
use super::checksum::crc32;
use super::npy::{self, Parsed};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::reserve::{grow, reserved};
use crate::tensor::AnyTensor;
use std::collections::HashSet;
use std::path::Path;

const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const END_64_PLACE: u32 = 0x0706_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// Bytes of an end record without its comment.
const END_SIZE: usize = 22;
/// Most arrays an archive may have.
const MAX_ARRAYS: usize = 1 << 16;

/// Reads all arrays of a file with their names, in the order of the file, each as by
/// [`read_npy`](super::read_npy).
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, AnyTensor)>> {
    let path = path.as_ref();
    parse(&bytes::read("npz", path)?).map_err(|why| Error::file("npz", path, why))
}

/// Reads all arrays from the bytes of a file, as [`read_npz`] does; `name` stands for the file in errors.
pub fn parse_npz(name: &str, bytes: &[u8]) -> Result<Vec<(String, AnyTensor)>> {
    let _strict = environment::enter();
    parse(bytes).map_err(|why| Error::file("npz", name, why))
}

/// Writes arrays to a file, whole or not at all, not compressed. Errors for names that are empty, too long or there twice, and
/// for more than 4 GiB.
pub fn write_npz(path: impl AsRef<Path>, arrays: &[(&str, &AnyTensor)]) -> Result<()> {
    super::atomic::write(path, &npz_bytes(arrays)?)
}

/// What [`write_npz`] writes.
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
        // Version 2.0, names in UTF-8, stored, and the first day there is.
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

/// A file of the archive as the directory has it.
struct Entry {
    name: String,
    method: u16,
    crc: u32,
    packed: usize,
    size: usize,
    start: usize,
}

fn parse(bytes: &[u8]) -> Parsed<Vec<(String, AnyTensor)>> {
    let (count, mut at) = directory(bytes)?;
    let (mut arrays, mut names, mut packed) = (Vec::new(), HashSet::new(), 0usize);
    for _ in 0..count {
        let (entry, next) = entry(bytes, at)?;
        // Entries that share their bytes could ask for any amount of memory.
        packed = packed.saturating_add(entry.packed);
        if packed > bytes.len() {
            return Err(format!("byte {at}: the entries have more bytes than the file"));
        }
        at = next;
        let name = entry.name.strip_suffix(".npy").unwrap_or(&entry.name).to_string();
        let shown = super::shown(&name);
        if !names.insert(name.clone()) {
            return Err(format!("array `{shown}` is there twice"));
        }
        let array = content(bytes, &entry).and_then(|c| match c {
            Content::Stored(c) => npy::array(c),
            Content::Inflated(c) => npy::array(&c),
        });
        arrays.push((name, array.map_err(|why| format!("array `{shown}`: {why}"))?));
    }
    Ok(arrays)
}

/// Finds the number of entries and where the directory starts.
fn directory(bytes: &[u8]) -> Parsed<(usize, usize)> {
    let none = "is not a .npz file: it has no zip directory at its end (or is cut off)";
    // The end record is followed by a comment of up to 65535 bytes.
    let last = bytes.len().checked_sub(END_SIZE).ok_or(none)?;
    let fits = |at: &usize| {
        u32_at(bytes, *at) == Some(END)
            && u16_at(bytes, at + 20).is_some_and(|n| at + END_SIZE + usize::from(n) == bytes.len())
    };
    let end = (last.saturating_sub(0xffff)..=last).rev().find(fits).ok_or(none)?;
    let cut = || format!("byte {end}: the end record is damaged");
    let (disk, count) = (u16_at(bytes, end + 4).ok_or_else(cut)?, u16_at(bytes, end + 10).ok_or_else(cut)?);
    let start = u32_at(bytes, end + 16).ok_or_else(cut)?;
    let (mut count, mut start) = (usize::from(count), u64::from(start));
    if disk == 0xffff || count == 0xffff || start == u64::from(u32::MAX) {
        // Larger numbers are in a record of their own, whose place is told before this one.
        let place =
            end.checked_sub(20).filter(|at| u32_at(bytes, *at) == Some(END_64_PLACE)).ok_or_else(cut)?;
        let at = u64_at(bytes, place + 8).and_then(|at| usize::try_from(at).ok()).ok_or_else(cut)?;
        if at > place || u32_at(bytes, at) != Some(END_64) {
            return Err(cut());
        }
        let wide = |offset| u64_at(bytes, at + offset).ok_or_else(cut);
        count = usize::try_from(wide(32)?).map_err(|_| cut())?;
        start = wide(48)?;
    } else if disk != 0 {
        return Err(format!("byte {end}: archives in several parts are not supported"));
    }
    if count > MAX_ARRAYS {
        return Err(format!("byte {end}: {count} arrays, at most {MAX_ARRAYS} are read"));
    }
    let start = usize::try_from(start).ok().filter(|start| *start <= end).ok_or_else(cut)?;
    Ok((count, start))
}

/// The entry at a place of the directory, and the place after it.
fn entry(bytes: &[u8], at: usize) -> Parsed<(Entry, usize)> {
    let cut = || format!("byte {at}: an entry of the directory is damaged");
    if u32_at(bytes, at) != Some(ENTRY) {
        return Err(cut());
    }
    let half = |offset| u16_at(bytes, at + offset).map(usize::from).ok_or_else(cut);
    let word = |offset| u32_at(bytes, at + offset).ok_or_else(cut);
    if half(8)? & 1 != 0 {
        return Err(format!("byte {at}: encrypted entries are not supported"));
    }
    let (name_len, extra_len, comment_len) = (half(28)?, half(30)?, half(32)?);
    let name = bytes.get(at + 46..at + 46 + name_len).ok_or_else(cut)?;
    let name = String::from_utf8_lossy(name).into_owned();
    let mut extra = bytes.get(at + 46 + name_len..at + 46 + name_len + extra_len).ok_or_else(cut)?;
    let mut sizes = [u64::from(word(24)?), u64::from(word(20)?), u64::from(word(42)?)];
    // Those that are all ones are in the extra field number 1, in this order.
    while extra.len() >= 4 && sizes.contains(&u64::from(u32::MAX)) {
        let (id, len) = (u16_at(extra, 0), u16_at(extra, 2).map_or(0, usize::from));
        let field = extra.get(4..4 + len).ok_or_else(cut)?;
        if id == Some(1) {
            let mut from = 0;
            for size in sizes.iter_mut().filter(|s| **s == u64::from(u32::MAX)) {
                *size = u64_at(field, from).ok_or_else(cut)?;
                from += 8;
            }
            break;
        }
        extra = &extra[4 + len..];
    }
    let [size, packed, start] = sizes.map(|s| usize::try_from(s).ok());
    let (Some(size), Some(packed), Some(start)) = (size, packed, start) else { return Err(cut()) };
    let entry = Entry { name, method: half(10)? as u16, crc: word(16)?, packed, size, start };
    Ok((entry, at + 46 + name_len + extra_len + comment_len))
}

enum Content<'a> {
    Stored(&'a [u8]),
    Inflated(Vec<u8>),
}

/// The bytes of an entry, whose place and sizes are checked against the file.
fn content<'a>(bytes: &'a [u8], entry: &Entry) -> Parsed<Content<'a>> {
    let at = entry.start;
    let outside = || format!("its {} bytes at byte {at} reach past the end of the file", entry.packed);
    let local = bytes.get(at..).ok_or_else(outside)?;
    if u32_at(local, 0) != Some(LOCAL) {
        return Err(format!("byte {at}: there is no entry where the directory says"));
    }
    let half = |offset| u16_at(local, offset).map(usize::from).ok_or_else(outside);
    let from = 30 + half(26)? + half(28)?;
    let data = from.checked_add(entry.packed).and_then(|to| local.get(from..to)).ok_or_else(outside)?;
    let content = match entry.method {
        0 if entry.size == entry.packed => Content::Stored(data),
        0 => return Err(format!("is stored in {} bytes, {} were stated", entry.packed, entry.size)),
        8 => Content::Inflated(bytes::inflate(data, entry.size)?),
        n => return Err(format!("is compressed by method {n}; use np.savez or np.savez_compressed")),
    };
    let inside = match &content {
        Content::Stored(c) => c,
        Content::Inflated(c) => &c[..],
    };
    if crc32(inside) != entry.crc {
        return Err("its checksum is wrong: the file is damaged".into());
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use proptest::prelude::*;

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
        let packed = miniz_oxide::deflate::compress_to_vec(&content, 6);
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
        check(&change(&whole, end + 10, &[9, 0]), "an entry of the directory is damaged");
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
