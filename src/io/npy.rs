//! NumPy's `.npy` format, versions 1 to 3.
//!
//! The crates that read it accept any Python literal as a header and bring a parser generator for that; the three
//! allowed keys need a hundred lines.

use super::elements::{self, Dtype, little_endian};
use super::{atomic, bytes, shown};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::reserve::{copied, reserved};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::{AnyTensor, Tensor};
use std::borrow::Cow;
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read; real ones have about a hundred bytes.
const MAX_HEADER: usize = 1 << 16;

/// What is wrong, and where if known.
pub(super) type Parsed<T> = std::result::Result<T, String>;

/// Reads an array from a file. Floats become numbers (`float64` is rounded to float32 and must be in its range).
/// Integers and booleans become indices, so they must be from 0 to 2³² - 1.
#[track_caller]
pub fn read_npy(path: impl AsRef<Path>) -> Result<AnyTensor> {
    let path = path.as_ref();
    array(&bytes::read("npy", path)?).map_err(|why| Error::file("npy", path, why))
}

/// Reads an array from a file as numbers, whatever its type; integers are rounded to float32.
#[track_caller]
pub fn read_npy_numbers(path: impl AsRef<Path>) -> Result<Tensor<f32>> {
    let path = path.as_ref();
    numbers(&bytes::read("npy", path)?).map_err(|why| Error::file("npy", path, why))
}

/// Like [`read_npy`], from the bytes of a file; `name` stands for the file in errors.
#[track_caller]
pub fn parse_npy(name: &str, bytes: &[u8]) -> Result<AnyTensor> {
    array(bytes).map_err(|why| Error::file("npy", name, why))
}

/// Like [`read_npy_numbers`], from the bytes of a file; `name` stands for the file in errors.
#[track_caller]
pub fn parse_npy_numbers(name: &str, bytes: &[u8]) -> Result<Tensor<f32>> {
    numbers(bytes).map_err(|why| Error::file("npy", name, why))
}

/// Writes an array to a file atomically: `<f4` or `<u4`, row-major, version 1.
#[track_caller]
pub fn write_npy(path: impl AsRef<Path>, array: &AnyTensor) -> Result<()> {
    let (header, words) = parts(array);
    atomic::write_with(path, |file| {
        file.write_all(&header)?;
        little_endian(words, |bytes| file.write_all(bytes))
    })
}

/// The bytes that [`write_npy`] writes.
pub fn npy_bytes(array: &AnyTensor) -> Vec<u8> {
    let (mut out, words) = parts(array);
    out.reserve_exact(4 * words.len());
    append(&mut out, words);
    out
}

/// Appends the bytes of words.
pub(super) fn append(out: &mut Vec<u8>, words: &[u32]) {
    // Writing to memory cannot fail.
    let _ = little_endian(words, |bytes| {
        out.extend_from_slice(bytes);
        Ok(())
    });
}

/// The bytes before the elements in the file, and the elements.
pub(super) fn parts(array: &AnyTensor) -> (Vec<u8>, &[u32]) {
    let (descr, words): (_, &[u32]) = match array {
        AnyTensor::Num(t) => ("<f4", bytemuck::cast_slice(t.data())),
        AnyTensor::Idx(t) => ("<u4", t.data()),
    };
    let shape = array.shape();
    let dims: String = shape.dims().iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    // The data starts at a multiple of 64, as in NumPy.
    let start = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64);
    header.push_str(&" ".repeat(start - 1 - MAGIC.len() - 4 - header.len()));
    header.push('\n');
    let mut out = Vec::with_capacity(start);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&(header.len() as u16).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    (out, words)
}

/// The contents of the header, checked against the length of the file.
struct Array<'a> {
    dtype: Dtype,
    big_endian: bool,
    fortran: bool,
    shape: Shape,
    data: &'a [u8],
}

pub(super) fn array(bytes: &[u8]) -> Parsed<AnyTensor> {
    let _strict = environment::enter();
    let array = Array::parse(bytes)?;
    elements::tensor(array.dtype, array.shape, &array.elements()?)
}

fn numbers(bytes: &[u8]) -> Parsed<Tensor<f32>> {
    let _strict = environment::enter();
    let array = Array::parse(bytes)?;
    elements::numbers(array.dtype, array.shape, &array.elements()?)
}

impl<'a> Array<'a> {
    fn parse(bytes: &'a [u8]) -> Parsed<Array<'a>> {
        let rest =
            bytes.strip_prefix(MAGIC).ok_or("byte 0: is not a .npy file, which starts with \\x93NUMPY")?;
        let cut = || format!("the header is cut off after {} bytes", bytes.len());
        let (start, length) = match *rest.first_chunk::<2>().ok_or_else(cut)? {
            [1, 0] => (10, usize::from(bytes::u16_at(bytes, 8).ok_or_else(cut)?)),
            [2 | 3, 0] => (12, bytes::u32_at(bytes, 8).ok_or_else(cut)? as usize),
            [major, minor] => return Err(format!("byte 6: version {major}.{minor} is not 1.0, 2.0 or 3.0")),
        };
        if length > MAX_HEADER {
            return Err(format!("byte 8: a header of {length} bytes, at most {MAX_HEADER} are read"));
        }
        let header = bytes.get(start..start + length).ok_or_else(cut)?;
        let text = std::str::from_utf8(header)
            .map_err(|e| format!("byte {}: the header is not text", start + e.valid_up_to()))?;
        let mut header = Header { text, at: 0, start };
        let (dtype, big_endian, fortran, dims) = header.parse()?;
        let shape = Shape::new(&dims).map_err(|_| format!("shape {dims:?} is too large"))?;
        let data = &bytes[start + length..];
        // A checked product, since elements may be wider than the words a shape is checked for.
        if shape.numel().checked_mul(dtype.bytes()) != Some(data.len()) {
            return Err(format!(
                "byte {}: {} bytes of data, but shape {shape} has {} elements of {} bytes",
                start + length,
                data.len(),
                shape.numel(),
                dtype.bytes()
            ));
        }
        Ok(Array { dtype, big_endian, fortran, shape, data })
    }

    /// The bytes of the elements in row-major order, each little-endian.
    fn elements(&self) -> Parsed<Cow<'a, [u8]>> {
        let size = self.dtype.bytes();
        let mut bytes = if !self.fortran || self.shape.rank() < 2 {
            Cow::Borrowed(self.data)
        } else {
            Cow::Owned(self.row_major()?)
        };
        if self.big_endian && size > 1 {
            let mut owned = match bytes {
                Cow::Borrowed(b) => copied("array", b).map_err(super::said)?,
                Cow::Owned(b) => b,
            };
            owned.chunks_exact_mut(size).for_each(<[u8]>::reverse);
            bytes = Cow::Owned(owned);
        }
        Ok(bytes)
    }

    /// The row-major bytes of elements that are column-major in the file.
    fn row_major(&self) -> Parsed<Vec<u8>> {
        let (size, dims) = (self.dtype.bytes(), self.shape.dims());
        let mut out = reserved("array", self.data.len()).map_err(super::said)?;
        // In the file, the first axis varies fastest.
        let mut strides = [1usize; MAX_RANK];
        (1..dims.len()).for_each(|a| strides[a] = strides[a - 1] * dims[a - 1]);
        let (mut place, mut at) = ([0usize; MAX_RANK], 0);
        for _ in 0..self.shape.numel() {
            out.extend_from_slice(&self.data[at * size..][..size]);
            for axis in (0..dims.len()).rev() {
                place[axis] += 1;
                at += strides[axis];
                if place[axis] < dims[axis] {
                    break;
                }
                at -= strides[axis] * dims[axis];
                place[axis] = 0;
            }
        }
        Ok(out)
    }
}

/// A reader of the header, which is a Python dictionary of three entries.
struct Header<'a> {
    text: &'a str,
    at: usize,
    /// Where the text starts in the file.
    start: usize,
}

impl<'a> Header<'a> {
    fn parse(&mut self) -> Parsed<(Dtype, bool, bool, Vec<usize>)> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.accept('}') {
            let (place, key) = (self.place(), self.string()?);
            self.expect(':')?;
            match key {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.tuple()?),
                _ => {
                    let key = shown(key);
                    return Err(format!("{place}: `{key}` is not descr, fortran_order or shape"));
                }
            }
            if !self.accept(',') {
                self.expect('}')?;
                break;
            }
        }
        let missing = |key: &str| format!("the header does not have `{key}`");
        let (dtype, big_endian) = descr.ok_or_else(|| missing("descr"))?;
        Ok((
            dtype,
            big_endian,
            fortran.ok_or_else(|| missing("fortran_order"))?,
            shape.ok_or_else(|| missing("shape"))?,
        ))
    }

    fn place(&self) -> String {
        format!("byte {}", self.start + self.at)
    }

    /// The rest, from the next non-space character.
    fn rest(&mut self) -> &'a str {
        let left = &self.text[self.at..];
        let trimmed = left.trim_start_matches([' ', '\t', '\n', '\r']);
        self.at += left.len() - trimmed.len();
        trimmed
    }

    fn accept(&mut self, c: char) -> bool {
        let found = self.rest().starts_with(c);
        self.at += if found { c.len_utf8() } else { 0 };
        found
    }

    fn expect(&mut self, c: char) -> Parsed<()> {
        if self.accept(c) { Ok(()) } else { Err(format!("{}: the header needs `{c}` here", self.place())) }
    }

    fn string(&mut self) -> Parsed<&'a str> {
        let rest = self.rest();
        for quote in ['\'', '"'] {
            if let Some((inside, _)) = rest.strip_prefix(quote).and_then(|r| r.split_once(quote)) {
                self.at += inside.len() + 2;
                return Ok(inside);
            }
        }
        Err(format!("{}: the header needs a quoted text here", self.place()))
    }

    fn boolean(&mut self) -> Parsed<bool> {
        for (word, value) in [("True", true), ("False", false)] {
            if self.rest().starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(format!("{}: fortran_order is True or False", self.place()))
    }

    fn tuple(&mut self) -> Parsed<Vec<usize>> {
        self.expect('(')?;
        let mut dims = Vec::new();
        while !self.accept(')') {
            let rest = self.rest();
            let digits = &rest[..rest.bytes().take_while(u8::is_ascii_digit).count()];
            let Ok(d) = digits.parse() else {
                return Err(format!("{}: a dimension is a whole number below 2^64", self.place()));
            };
            if dims.len() == MAX_RANK {
                return Err(format!("{}: at most {MAX_RANK} axes are supported", self.place()));
            }
            dims.push(d);
            self.at += digits.len();
            // Python 2 wrote long integers this way.
            self.accept('L');
            if !self.accept(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(dims)
    }

    fn descr(&mut self) -> Parsed<(Dtype, bool)> {
        const TYPES: &str = "float16 to float64, int8 to int64, uint8 to uint64 and bool are read";
        let rest = self.rest();
        let place = self.place();
        if rest.starts_with('[') {
            return Err(format!("{place}: arrays of records are not supported; {TYPES}"));
        }
        let text = self.string()?;
        let (order, kind) = text.split_at_checked(1).unwrap_or(("", ""));
        let dtype = match kind {
            "f2" => Dtype::F16,
            "f4" => Dtype::F32,
            "f8" => Dtype::F64,
            "i1" => Dtype::I8,
            "i2" => Dtype::I16,
            "i4" => Dtype::I32,
            "i8" => Dtype::I64,
            "u1" => Dtype::U8,
            "u2" => Dtype::U16,
            "u4" => Dtype::U32,
            "u8" => Dtype::U64,
            "b1" => Dtype::Bool,
            _ => {
                let text = shown(text);
                return Err(format!("{place}: the type `{text}` is not supported; {TYPES}"));
            }
        };
        match order {
            "<" => Ok((dtype, false)),
            ">" => Ok((dtype, true)),
            "|" if dtype.bytes() == 1 => Ok((dtype, false)),
            _ => Err(format!("{place}: the type `{}` has no byte order, `<` or `>`", shown(text))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
        let mut out = [MAGIC, &[version, 0]].concat();
        match version {
            1 => out.extend((header.len() as u16).to_le_bytes()),
            _ => out.extend((header.len() as u32).to_le_bytes()),
        }
        [&out, header.as_bytes(), data].concat()
    }

    fn typed(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> std::result::Result<AnyTensor, String> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n");
        parse_npy("a.npy", &file(1, &header, data)).map_err(|e| e.to_string())
    }

    fn num(dims: &[usize], data: &[f32]) -> AnyTensor {
        Tensor::new(dims, data.to_vec()).unwrap().into()
    }

    fn idx(dims: &[usize], data: &[u32]) -> AnyTensor {
        Tensor::new(dims, data.to_vec()).unwrap().into()
    }

    #[test]
    fn every_type_and_byte_order_is_read() {
        let want = num(&[2], &[1.5, -2.0]);
        let bytes = |v: [&[u8]; 2]| v.concat();
        assert_eq!(typed("<f2", "False", "(2,)", &[0x00, 0x3e, 0x00, 0xc0]).unwrap(), want);
        assert_eq!(typed(">f2", "False", "(2,)", &[0x3e, 0x00, 0xc0, 0x00]).unwrap(), want);
        let (a, b) = (1.5f32, -2.0f32);
        assert_eq!(
            typed("<f4", "False", "(2,)", &bytes([&a.to_le_bytes(), &b.to_le_bytes()])).unwrap(),
            want
        );
        assert_eq!(
            typed(">f4", "False", "(2,)", &bytes([&a.to_be_bytes(), &b.to_be_bytes()])).unwrap(),
            want
        );
        let (a, b) = (1.5f64, -2.0f64);
        assert_eq!(
            typed("<f8", "False", "(2,)", &bytes([&a.to_le_bytes(), &b.to_le_bytes()])).unwrap(),
            want
        );
        assert_eq!(
            typed(">f8", "False", "(2,)", &bytes([&a.to_be_bytes(), &b.to_be_bytes()])).unwrap(),
            want
        );
        for size in [1usize, 2, 4, 8] {
            for (kind, top) in [("i", 100u64), ("u", if size == 1 { 200 } else { 300 })] {
                let (little, big): (Vec<u8>, Vec<u8>) = (
                    [3, top].iter().flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect(),
                    [3, top].iter().flat_map(|v| v.to_be_bytes()[8 - size..].to_vec()).collect(),
                );
                let want = idx(&[2], &[3, top as u32]);
                assert_eq!(typed(&format!("<{kind}{size}"), "False", "(2,)", &little).unwrap(), want);
                assert_eq!(typed(&format!(">{kind}{size}"), "False", "(2,)", &big).unwrap(), want);
            }
        }
        assert_eq!(typed("|b1", "False", "(2,)", &[1, 0]).unwrap(), idx(&[2], &[1, 0]));
        assert_eq!(typed("|u1", "False", "()", &[7]).unwrap(), idx(&[], &[7]));
        assert_eq!(typed("<f4", "False", "(0, 3)", &[]).unwrap(), num(&[0, 3], &[]));
    }

    #[test]
    fn versions_and_column_order() {
        let header = "{'shape': (2, 3), \"fortran_order\": True, 'descr': '|u1'}";
        let want = idx(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        for version in 1..=3 {
            assert_eq!(parse_npy("f", &file(version, header, &[1, 4, 2, 5, 3, 6])).unwrap(), want);
        }
        let by_columns: Vec<u8> = (0..24u8).map(|i| (i % 2) * 12 + (i / 2 % 3) * 4 + i / 6).collect();
        let got = typed("|u1", "True", "(2, 3, 4)", &by_columns).unwrap();
        assert_eq!(got, Tensor::from_fn(Shape::new(&[2, 3, 4]).unwrap(), |i| i as u32).into());
        assert_eq!(typed("|u1", "True", "(2, 0)", &[]).unwrap(), idx(&[2, 0], &[]));
    }

    #[test]
    fn numbers_are_read_of_any_type() {
        let header = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }";
        let got = parse_npy_numbers("f", &file(1, header, &[0xff, 0xff, 5, 0])).unwrap();
        assert_eq!(got.data(), [-1.0, 5.0]);
        let header = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(parse_npy_numbers("f", &file(1, header, &[0, 1])).unwrap().data(), [0.0, 1.0]);
    }

    #[test]
    fn wrong_files_are_errors_that_say_where() {
        let check = |got: std::result::Result<AnyTensor, String>, part: &str| {
            let got = got.expect_err(part);
            assert!(got.contains(part) && got.starts_with("npy: a.npy: ") && !got.contains('\n'), "{got}");
            assert!(got.len() < 250, "{got}");
        };
        let parse = |bytes: &[u8]| parse_npy("a.npy", bytes).map_err(|e| e.to_string());
        check(parse(b""), "is not a .npy file");
        check(parse(b"PK\x03\x04"), "byte 0: is not a .npy file");
        check(parse(b"\x93NUMPY"), "cut off after 6 bytes");
        check(parse(b"\x93NUMPY\x01\x00\x05"), "cut off");
        check(parse(b"\x93NUMPY\x04\x00\x05\x00"), "version 4.0");
        check(parse(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), "byte 8: a header of 4294967295 bytes");
        check(parse(b"\x93NUMPY\x01\x00\x01\x00\xff"), "byte 10: the header is not text");
        check(parse(&file(1, "[]", &[])), "byte 10: the header needs `{` here");
        check(parse(&file(1, "{}", &[])), "does not have `descr`");
        check(parse(&file(1, "{'a': 1}", &[])), "byte 11: `a` is not descr");
        check(parse(&file(1, "{'descr' '<f4'}", &[])), "byte 19: the header needs `:`");
        check(parse(&file(1, "{'descr': '<f4'", &[])), "the header needs `}`");
        check(parse(&file(1, "{'descr': [('a', '<f4')]}", &[])), "arrays of records");
        check(typed("<c8", "False", "(1,)", &[0; 8]), "the type `<c8` is not supported");
        check(typed("é", "False", "(1,)", &[0; 8]), "the type `é` is not supported");
        check(typed("|f4", "False", "(1,)", &[0; 4]), "has no byte order");
        check(typed("<f4", "Maybe", "(1,)", &[0; 4]), "fortran_order is True or False");
        check(typed("<f4", "False", "(-1,)", &[0; 4]), "a dimension is a whole number");
        check(typed("<f4", "False", "(99999999999999999999,)", &[]), "a dimension is a whole number");
        check(typed("<f4", "False", "(18446744073709551615, 2)", &[]), "is too large");
        check(typed("|u1", "False", "(18446744073709551615, 0)", &[]), "is too large");
        check(typed("<f8", "False", "(2305843009213693951,)", &[]), "0 bytes of data");
        check(typed("<f4", "False", "(1,1,1,1,1,1,1,1,1,1,1)", &[0; 4]), "at most 10 axes");
        check(typed("<f4", "False", "(3,)", &[0; 8]), "8 bytes of data, but shape [3] has 3 elements of 4");
        check(typed("<f4", "False", "(1,)", &[0; 8]), "8 bytes of data");
        check(typed("<i1", "False", "(2,)", &[0, 255]), "element 1 is -1: whole numbers are read as indices");
        check(typed("<u8", "False", "(1,)", &[255; 8]), "element 0 is 18446744073709551615");
        check(typed("|b1", "False", "(1,)", &[2]), "element 0 is the byte 2");
        check(typed("<f8", "False", "(1,)", &1e300f64.to_le_bytes()), "element 0 is 1e300, beyond the range");
        assert!(typed("<f8", "False", "(1,)", &f64::INFINITY.to_le_bytes()).is_ok());
    }

    #[test]
    fn files_are_written_and_read() {
        let path = std::env::temp_dir().join(format!("dittograd-npy-{}.npy", std::process::id()));
        for array in
            [num(&[2, 2], &[1.0, -0.0, f32::NAN, 1e-40]), idx(&[3], &[0, 1, u32::MAX]), num(&[], &[2.0])]
        {
            write_npy(&path, &array).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len() as usize % 64, 4 * array.shape().numel() % 64);
            assert_eq!(npy_bytes(&read_npy(&path).unwrap()), npy_bytes(&array));
        }
        assert_eq!(read_npy_numbers(&path).unwrap().data(), [2.0]);
        std::fs::remove_file(&path).unwrap();
        assert!(read_npy(&path).unwrap_err().to_string().contains("npy: /"));
        assert!(read_npy(std::env::temp_dir()).unwrap_err().to_string().contains("is a folder"));
        assert!(write_npy(std::env::temp_dir(), &num(&[], &[1.0])).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(dims in proptest::collection::vec(0usize..5, 0..5), seed: u32) {
            let shape = Shape::new(&dims).unwrap();
            let t = Tensor::from_fn(shape, |i| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed));
            let floats = t.data().iter().map(|w| f32::from_bits(*w)).collect();
            for array in [t.clone().into(), Tensor::with_shape(shape, floats).unwrap().into()] {
                let got = parse_npy("f", &npy_bytes(&array)).unwrap();
                prop_assert_eq!(npy_bytes(&got), npy_bytes(&array));
            }
        }

        #[test]
        fn changed_bytes_do_not_panic(
            at in proptest::collection::vec((0usize..140, any::<u8>()), 1..6), cut in 0usize..200,
        ) {
            let mut bytes = npy_bytes(&num(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
            for (at, byte) in at {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            let _ = parse_npy("f", &bytes);
            let _ = parse_npy_numbers("f", &bytes);
        }

        #[test]
        fn no_header_makes_the_parser_panic(
            header in "[{}()':, 0-9LdescrfotanhpTue<>|i]{0,60}", whole in "(\\{'descr': '[<>|][fiub][1248]', 'fortran_order': (True|False), 'shape': \\([0-9, ]{0,6}\\)\\})",
        ) {
            let _ = parse_npy("f", &file(1, &header, &[0; 8]));
            let _ = parse_npy("f", &file(3, &whole, &[0; 8]));
        }
    }

    #[test]
    fn long_numbers_of_python_2_and_the_longest_header() {
        assert_eq!(typed("|u1", "False", "(2L, 1L)", &[1, 2]).unwrap(), idx(&[2, 1], &[1, 2]));
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }";
        let padded =
            |length: usize| file(2, &(header.to_string() + &" ".repeat(length - header.len())), &[7]);
        assert_eq!(parse_npy("f", &padded(MAX_HEADER)).unwrap(), idx(&[1], &[7]));
        assert!(parse_npy("f", &padded(MAX_HEADER + 1)).unwrap_err().to_string().contains("at most 65536"));
    }
}
