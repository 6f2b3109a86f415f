//! Files as bytes, with bounds: memory is allocated only in proportion to the file's own length.

use crate::error::{Error, Result};
use crate::reserve::reserved;
use flate2::Crc;
use flate2::bufread::{DeflateDecoder, GzDecoder};
use std::io::Read;
use std::path::Path;

/// The most bytes read from anything but a regular file, since a path may name an endless device.
const MAX_STREAM: u64 = 1 << 30;
/// The most bytes that deflate produces per byte: 258 from two bits, and a little.
pub const MAX_RATIO: usize = 1032;

/// All of a file.
#[track_caller]
pub(crate) fn read(op: &str, path: &Path) -> Result<Vec<u8>> {
    let fail = |why: &dyn std::fmt::Display| Error::file(op, path, why);
    if path.is_dir() {
        return Err(fail(&"is a folder, not a file"));
    }
    // Checked before opening, which would wait for the other end.
    if is_named_pipe(path) {
        return Err(fail(&"is a named pipe, which might never end; use a regular file, or /dev/stdin"));
    }
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    let meta = file.metadata().map_err(|e| fail(&e))?;
    let most = if meta.is_file() { meta.len() } else { MAX_STREAM };
    let mut bytes = Vec::new();
    let expected = if meta.is_file() { usize::try_from(most).unwrap_or(usize::MAX) } else { 0 };
    if bytes.try_reserve_exact(expected).is_err() {
        return Err(fail(&format!("no memory for its {most} bytes")));
    }
    // One byte more than expected, to detect a file that is too long or growing.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    if bytes.len() as u64 > most {
        let why = match meta.is_file() {
            true => "grew while it was read; read it again".into(),
            false => format!("is no regular file and has more than {} MiB", MAX_STREAM >> 20),
        };
        return Err(fail(&why));
    }
    Ok(bytes)
}

/// Whether a path is a named pipe in a folder. The pipes that a shell opens for a program, at `/dev/stdin` and
/// `/dev/fd/N`, are not, and their other end exists.
fn is_named_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let is_pipe = |p: &Path| std::fs::metadata(p).is_ok_and(|meta| meta.file_type().is_fifo());
        is_pipe(path) && std::fs::canonicalize(path).is_ok_and(|place| is_pipe(&place))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// All of a regular file. Pipes and devices are errors.
#[track_caller]
pub(crate) fn read_regular(op: &str, path: &Path) -> Result<Vec<u8>> {
    // Checked before opening, which would wait for the other end of a pipe.
    let meta = std::fs::metadata(path).map_err(|e| Error::file(op, path, e))?;
    if meta.is_file() || meta.is_dir() {
        return read(op, path);
    }
    Err(Error::file(op, path, "is not a regular file"))
}

/// The beginning of a regular file: a length of 8 bytes, and as many bytes. Also the length of the whole file.
#[track_caller]
pub(crate) fn read_prefixed(path: &Path) -> Result<(Vec<u8>, usize)> {
    let fail = |e: std::io::Error| Error::file("read", path, e);
    let meta = std::fs::metadata(path).map_err(fail)?;
    if !meta.is_file() {
        return Err(Error::file("read", path, "is not a regular file"));
    }
    let mut file = std::fs::File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    let mut bytes = Vec::new();
    file.by_ref().take(size.min(8)).read_to_end(&mut bytes).map_err(fail)?;
    let length = bytes.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
    // The file may be growing.
    file.take(length.min(size.saturating_sub(8))).read_to_end(&mut bytes).map_err(fail)?;
    Ok((bytes, usize::try_from(size).unwrap_or(usize::MAX)))
}

/// All of a file of text.
#[track_caller]
pub(crate) fn read_text(op: &str, path: &Path) -> Result<String> {
    String::from_utf8(read(op, path)?).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..valid].iter().filter(|b| **b == b'\n').count();
        Error::file(op, path, format!("line {line}: is not UTF-8 text"))
    })
}

/// The last part of a path, for names of data sets.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Inflates to exactly `size` bytes. The error says what is wrong.
#[track_caller]
pub(crate) fn inflate(deflated: &[u8], size: usize) -> std::result::Result<Vec<u8>, String> {
    unpacked(&mut DeflateDecoder::new(deflated), deflated.len(), size)
}

/// The content of a gzip file (one member), or the bytes themselves if they are not gzip.
#[track_caller]
pub(crate) fn gunzip(bytes: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    // The last four bytes are the length of the content.
    let size = bytes.last_chunk().map_or(0, |n| u32::from_le_bytes(*n) as usize);
    let mut gzip = GzDecoder::new(&bytes[..]);
    let content = unpacked(&mut gzip, bytes.len(), size)?;
    match gzip.into_inner().len() {
        0 => Ok(content),
        n => Err(format!("{n} bytes follow the gzip content")),
    }
}

/// Reads a decoder of `packed` bytes to its end, which must come after `size` bytes.
#[track_caller]
fn unpacked(decoder: &mut impl Read, packed: usize, size: usize) -> std::result::Result<Vec<u8>, String> {
    if size > packed.saturating_mul(MAX_RATIO) {
        return Err(format!("{packed} compressed bytes cannot be the stated {size} bytes"));
    }
    // One byte more than expected, to detect that there are more.
    let most = size.saturating_add(1);
    let mut bytes = reserved("inflate", most).map_err(super::said)?;
    let end = decoder.take(most as u64).read_to_end(&mut bytes);
    end.map_err(|e| format!("the compressed data is damaged: {}", super::said(e)))?;
    match bytes.len() {
        n if n == size => Ok(bytes),
        n if n < size => Err(format!("has {n} bytes when inflated, {size} were stated")),
        _ => Err(format!("has more than the stated {size} bytes when inflated")),
    }
}

/// The checksum of zip and gzip.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Two bytes, the low one first.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Four bytes, the low one first.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Eight bytes, the low one first.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Compression, GzBuilder};
    use std::io::Write;

    /// Bytes as a gzip file.
    pub(crate) fn gzip(bytes: &[u8], name: Option<&str>) -> Vec<u8> {
        let mut header = GzBuilder::new();
        if let Some(name) = name {
            header = header.filename(name);
        }
        let mut gzip = header.write(Vec::new(), Compression::new(6));
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn gzip_is_undone_and_other_bytes_are_kept() {
        let content = b"a content that repeats, that repeats, that repeats".repeat(20);
        assert_eq!(gunzip(gzip(&content, None)).unwrap(), content);
        assert_eq!(gunzip(gzip(&content, Some("a name"))).unwrap(), content);
        assert_eq!(gunzip(gzip(b"", None)).unwrap(), b"");
        assert_eq!(gunzip(b"plain".to_vec()).unwrap(), b"plain");
        let whole = gzip(&content, Some("n"));
        for cut in 2..whole.len() {
            assert!(gunzip(whole[..cut].to_vec()).is_err(), "{cut}");
        }
        for at in [2, 3, whole.len() - 1, whole.len() - 6] {
            let mut bad = whole.clone();
            bad[at] ^= 0xff;
            assert!(gunzip(bad).is_err(), "{at}");
        }
        assert!(gunzip([&whole[..], &whole].concat()).unwrap_err().contains("bytes follow"));
        let mut bomb = whole;
        let end = bomb.len() - 4;
        bomb[end..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(gunzip(bomb).unwrap_err().contains("cannot be the stated"));
    }

    #[test]
    fn every_optional_part_of_a_gzip_header_is_skipped() {
        let plain = gzip(b"content", None);
        for flags in 0..32u8 {
            // The lowest flag says that it is text and adds nothing.
            let mut file = [&plain[..3], &[flags], &plain[4..10]].concat();
            if flags & 4 != 0 {
                file.extend([3, 0, 9, 0, 9]);
            }
            if flags & 8 != 0 {
                file.extend(b"name\0");
            }
            if flags & 16 != 0 {
                file.extend(b"a comment\0");
            }
            if flags & 2 != 0 {
                file.extend((crc32(&file) as u16).to_le_bytes());
            }
            file.extend(&plain[10..]);
            assert_eq!(gunzip(file.clone()).unwrap(), b"content", "{flags}");
            for cut in 2..file.len() {
                assert!(gunzip(file[..cut].to_vec()).is_err(), "{flags} {cut}");
            }
        }
        for reserved in [32, 64, 128] {
            let mut file = plain.clone();
            file[3] = reserved;
            assert!(gunzip(file).unwrap_err().contains("invalid gzip header"), "{reserved}");
        }
    }

    #[test]
    fn the_line_that_is_not_text_is_named() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a.txt");
        std::fs::write(&path, b"one\ntwo\n\xffthree\n").unwrap();
        assert!(read_text("read", &path).unwrap_err().to_string().contains("line 3: is not UTF-8"));
        std::fs::write(&path, "one\ntwö\n").unwrap();
        assert_eq!(read_text("read", &path).unwrap(), "one\ntwö\n");
        assert_eq!(file_name(&path), "a.txt");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_no_regular_file_is_read_to_its_end_or_refused() {
        let null = Path::new("/dev/null");
        assert_eq!(read("read", null).unwrap(), b"");
        assert!(read_regular("read", null).unwrap_err().to_string().contains("is not a regular file"));
        assert!(read_regular("read", Path::new("/")).unwrap_err().to_string().contains("is a folder"));
    }
}
