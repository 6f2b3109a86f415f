//! Safetensors files: named tensors and a map of texts, as PyTorch, NumPy and others read and write them.
//!
//! A file is the length of a header (8 bytes), the header (JSON: for each name its type, shape and place), and the bytes of
//! the tensors, one behind the other without holes. Reading takes no more memory than about the file's own size, whatever
//! the header says, and every error is one line that names the file and the tensor. Writing gives the same bytes for the
//! same content.

use super::{atomic, bytes, said, shown};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::reserve::{collected, reserved};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::{AnyTensor, Tensor};
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// The longest header, as in other readers.
const MAX_HEADER: u64 = 100_000_000;
/// Most tensors, and most texts. Their lines in the header may be short, so that what is kept of them is many times larger.
const MAX_NAMES: usize = 1 << 17;
/// The name the header keeps for the map of texts.
const METADATA: &str = "__metadata__";

macro_rules! dtypes {
    ($($name:ident $bytes:literal $text:literal,)*) => {
        /// Types of elements in a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = concat!("`", $text, "`.")] $name,)*
        }

        impl Dtype {
            fn parse(text: &str) -> Option<Dtype> {
                match text { $($text => Some(Dtype::$name),)* _ => None }
            }

            /// Its name in files.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$name => $text,)* }
            }

            /// Bytes of an element.
            pub fn bytes(self) -> usize {
                match self { $(Dtype::$name => $bytes,)* }
            }
        }
    };
}

dtypes! {
    Bool 1 "BOOL",
    U8 1 "U8",
    I8 1 "I8",
    F8E4M3 1 "F8_E4M3",
    F8E5M2 1 "F8_E5M2",
    U16 2 "U16",
    I16 2 "I16",
    F16 2 "F16",
    Bf16 2 "BF16",
    U32 4 "U32",
    I32 4 "I32",
    F32 4 "F32",
    U64 8 "U64",
    I64 8 "I64",
    F64 8 "F64",
    C64 8 "C64",
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the header says about a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    dtype: Dtype,
    shape: Shape,
    /// Where its bytes are in the file.
    place: Range<usize>,
}

impl Entry {
    /// Type of its elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

type Entries = BTreeMap<String, Entry>;

/// A file that was read and checked. Tensors are converted when they are asked for.
pub struct SafeTensors {
    /// For errors.
    name: String,
    bytes: Vec<u8>,
    metadata: BTreeMap<String, String>,
    entries: Entries,
}

impl fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SafeTensors({}, {} tensors, {} bytes)", self.name, self.entries.len(), self.bytes.len())
    }
}

impl SafeTensors {
    /// Reads a file.
    ///
    /// ```
    /// use dittograd::io::safetensors::{SafeTensors, Writer};
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("dittograd-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let path = folder.join("x.safetensors");
    /// let x = Tensor::new(&[2], vec![0.5f32, 2.0])?;
    /// let mut file = Writer::new();
    /// file.numbers("x", &x)?.metadata("made by", "me")?.save(&path)?;
    ///
    /// let file = SafeTensors::read(&path)?;
    /// assert_eq!(file.tensor("x")?, x.into());
    /// assert_eq!(file.metadata()["made by"], "me");
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(path: impl AsRef<Path>) -> Result<SafeTensors> {
        let path = path.as_ref();
        SafeTensors::parse(path.display().to_string(), bytes::read_regular("read", path)?)
    }

    /// The same of bytes in memory; `name` stands for the file in errors.
    pub fn parse(name: impl Into<String>, bytes: Vec<u8>) -> Result<SafeTensors> {
        let name = name.into();
        match parse(&bytes) {
            Ok((metadata, entries)) => Ok(SafeTensors { name, bytes, metadata, entries }),
            Err(why) => Err(Error::file("read", name, format!("is not a safetensors file: {why}"))),
        }
    }

    /// The map of texts.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Names and entries of all tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, e)| (name.as_str(), e))
    }

    /// What the header says about a tensor.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Length of the file.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// An error about this file.
    #[cold]
    pub(crate) fn error(&self, op: &str, why: impl fmt::Display) -> Error {
        Error::file(op, &self.name, why)
    }

    /// A tensor. F32, F16, BF16 and F64 are numbers (of which F64 is rounded to float32; one too large for it is an error),
    /// BOOL and whole numbers are indices; one below 0 or above the largest u32 is an error.
    pub fn tensor(&self, name: &str) -> Result<AnyTensor> {
        let _strict = environment::enter();
        let wrong = |why: String| self.error("read", format!("tensor `{}`: {why}", shown(name)));
        let Some(e) = self.entries.get(name) else {
            return Err(wrong(format!("is not among the {} in the file", self.entries.len())));
        };
        let bytes = self.bytes.get(e.place.clone()).unwrap_or_default();
        convert(e.dtype, e.shape, bytes).map_err(wrong)
    }

    /// A hash of all tensors and of the map of texts without the entry `but`, however the header is spelled.
    pub(crate) fn digest(&self, but: &str) -> String {
        let mut digest = Digest::new(self.metadata.iter().filter(|(key, _)| *key != but));
        for (name, e) in &self.entries {
            digest.tensor(name, e.dtype, e.shape);
            digest.0.update(self.bytes.get(e.place.clone()).unwrap_or_default());
        }
        digest.finish()
    }
}

fn parse(bytes: &[u8]) -> Result<(BTreeMap<String, String>, Entries), String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(match bytes.len() {
            0 => "it is empty".to_string(),
            n => format!("it has {n} bytes, too few for the length of a header"),
        });
    };
    let length = u64::from_le_bytes(*length);
    let room = rest.len();
    let Some(text) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else {
        return Err(format!("a header of {length} bytes is announced, {room} bytes follow"));
    };
    if length > MAX_HEADER {
        return Err(format!("its header of {length} bytes is longer than {MAX_HEADER}"));
    }
    if text.first() != Some(&b'{') {
        return Err("its header does not begin with {".to_string());
    }
    let header: Header = serde_json::from_slice(text).map_err(|e| format!("its header: {}", said(e)))?;
    let start = 8 + text.len();
    let data = bytes.len() - start;
    let mut entries = Entries::new();
    for (name, raw) in header.tensors {
        match raw.entry(start, data) {
            Ok(entry) => entries.insert(name, entry),
            Err(why) => return Err(format!("tensor `{}`: {why}", shown(&name))),
        };
    }
    let mut order: Vec<(&String, &Entry)> = entries.iter().collect();
    order.sort_by_key(|(_, e)| (e.place.start, e.place.end));
    let mut end = start;
    for (name, e) in order {
        if e.place.start != end {
            let (at, what) =
                (e.place.start - start, if e.place.start > end { "a hole" } else { "an overlap" });
            let before = end - start;
            return Err(format!(
                "tensor `{}` begins at byte {at} of the data, those before it end at {before}: there is {what}",
                shown(name)
            ));
        }
        end = e.place.end;
    }
    if end != bytes.len() {
        return Err(format!("{} bytes after the last tensor belong to none", bytes.len() - end));
    }
    Ok((header.metadata.unwrap_or_default(), entries))
}

/// The header as it is written, each name once.
struct Header {
    metadata: Option<BTreeMap<String, String>>,
    tensors: BTreeMap<String, Raw>,
}

#[derive(Deserialize)]
struct Raw {
    dtype: String,
    shape: Dims,
    data_offsets: (u64, u64),
}

impl Raw {
    fn entry(&self, start: usize, data: usize) -> Result<Entry, String> {
        let Some(dtype) = Dtype::parse(&self.dtype) else {
            return Err(format!("`{}` is not a known type of elements", shown(&self.dtype)));
        };
        if self.shape.rank > MAX_RANK {
            return Err(format!("{} axes given, at most {MAX_RANK} are supported", self.shape.rank));
        }
        let dims = self.shape.dims.iter().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>();
        let shape = dims.ok().and_then(|dims| Shape::new(&dims).ok());
        let bytes = |s: Shape| s.numel().checked_mul(dtype.bytes());
        let Some((shape, want)) = shape.and_then(|s| Some((s, bytes(s)?))) else {
            return Err(format!("a shape of {:?} does not fit the address space", self.shape.dims));
        };
        let (from, to) = self.data_offsets;
        if to > data as u64 {
            return Err(format!(
                "ends at byte {to} of the data, of which there are {data}: is the file cut short?"
            ));
        }
        match to.checked_sub(from) {
            Some(got) if got == want as u64 => {
                Ok(Entry { dtype, shape, place: start + from as usize..start + to as usize })
            }
            Some(got) => {
                Err(format!("{dtype} of shape {shape} takes {want} bytes, the header gives it {got}"))
            }
            None => Err(format!("begins at byte {from} of the data and ends before it, at {to}")),
        }
    }
}

/// Sizes of axes. No more are kept than a shape can have.
struct Dims {
    dims: Vec<u64>,
    rank: usize,
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Dims, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::new();
                while dims.len() < MAX_RANK {
                    match list.next_element()? {
                        Some(d) => dims.push(d),
                        None => return Ok(Dims { rank: dims.len(), dims }),
                    }
                }
                let mut rank = dims.len();
                while list.next_element::<IgnoredAny>()?.is_some() {
                    rank += 1;
                }
                Ok(Dims { dims, rank })
            }
        }
        d.deserialize_seq(List)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Header, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { metadata: None, tensors: BTreeMap::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        if header.metadata.replace(map.next_value::<Texts>()?.0).is_some() {
                            return Err(A::Error::custom(format!("{METADATA} is there twice")));
                        }
                        continue;
                    }
                    if header.tensors.len() == MAX_NAMES {
                        return Err(A::Error::custom(format!("more than {MAX_NAMES} tensors")));
                    }
                    let about = |e| A::Error::custom(format!("tensor `{}`: {e}", shown(&name)));
                    let raw = map.next_value::<Raw>().map_err(about)?;
                    match header.tensors.entry(name) {
                        Slot::Vacant(slot) => slot.insert(raw),
                        Slot::Occupied(slot) => {
                            let why = format!("tensor `{}` is there twice", shown(slot.key()));
                            return Err(A::Error::custom(why));
                        }
                    };
                }
                Ok(header)
            }
        }
        d.deserialize_map(Names)
    }
}

/// The map of texts, each key once.
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Texts, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from texts to texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if all.len() == MAX_NAMES {
                        return Err(A::Error::custom(format!("more than {MAX_NAMES} entries in {METADATA}")));
                    }
                    if let Slot::Vacant(slot) = all.entry(key) {
                        slot.insert(text);
                    } else {
                        return Err(A::Error::custom(format!("a key of {METADATA} is there twice")));
                    }
                }
                Ok(Texts(all))
            }
        }
        d.deserialize_map(Pairs)
    }
}

/// The float32 of a half-precision number, which holds all of them.
fn from_half(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let (sign, exponent, fraction) = ((bits >> 15) << 31, (bits >> 10) & 31, bits & 1023);
    f32::from_bits(
        sign | match exponent {
            0 => (fraction as f32 * (1.0 / 16_777_216.0)).to_bits(),
            31 => 0x7f80_0000 | fraction << 13,
            _ => (exponent + 112) << 23 | fraction << 13,
        },
    )
}

fn convert(dtype: Dtype, shape: Shape, bytes: &[u8]) -> Result<AnyTensor, String> {
    /// Elements of `N` bytes each.
    fn numbers<const N: usize>(
        shape: Shape,
        bytes: &[u8],
        one: impl Fn([u8; N]) -> f32,
    ) -> Result<AnyTensor, String> {
        let all = collected("tensor", bytes.as_chunks::<N>().0.iter().map(|b| one(*b))).map_err(said)?;
        Tensor::with_shape(shape, all).map(AnyTensor::Num).map_err(|e| e.to_string())
    }

    fn indices<const N: usize, T: TryInto<u32> + fmt::Display + Copy>(
        shape: Shape,
        bytes: &[u8],
        one: impl Fn([u8; N]) -> T,
    ) -> Result<AnyTensor, String> {
        let mut all = reserved("tensor", shape.numel()).map_err(said)?;
        for (i, b) in bytes.as_chunks::<N>().0.iter().enumerate() {
            let v = one(*b);
            let outside = |_| format!("element {i} is {v}, an index is from 0 to {}", u32::MAX);
            all.push(v.try_into().map_err(outside)?);
        }
        Tensor::with_shape(shape, all).map(AnyTensor::Idx).map_err(|e| e.to_string())
    }

    match dtype {
        Dtype::F32 => numbers(shape, bytes, f32::from_le_bytes),
        Dtype::F16 => numbers(shape, bytes, |b| from_half(u16::from_le_bytes(b))),
        Dtype::Bf16 => numbers(shape, bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
        Dtype::F64 => {
            let wide = |b: &[u8; 8]| f64::from_le_bytes(*b);
            let large = |b: &[u8; 8]| wide(b).is_finite() && !(wide(b) as f32).is_finite();
            let all = bytes.as_chunks::<8>().0;
            if let Some(i) = all.iter().position(large) {
                return Err(format!("element {i} is {:e}, too large for float32", wide(&all[i])));
            }
            numbers(shape, bytes, |b| f64::from_le_bytes(b) as f32)
        }
        Dtype::Bool => match bytes.iter().position(|b| *b > 1) {
            Some(i) => Err(format!("element {i} is {}, a BOOL is 0 or 1", bytes[i])),
            None => indices(shape, bytes, u8::from_le_bytes),
        },
        Dtype::U8 => indices(shape, bytes, u8::from_le_bytes),
        Dtype::I8 => indices(shape, bytes, i8::from_le_bytes),
        Dtype::U16 => indices(shape, bytes, u16::from_le_bytes),
        Dtype::I16 => indices(shape, bytes, i16::from_le_bytes),
        Dtype::U32 => indices(shape, bytes, u32::from_le_bytes),
        Dtype::I32 => indices(shape, bytes, i32::from_le_bytes),
        Dtype::U64 => indices(shape, bytes, u64::from_le_bytes),
        Dtype::I64 => indices(shape, bytes, i64::from_le_bytes),
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::C64 => Err(format!(
            "has elements of type {dtype}, which are not converted; use F32, F16, BF16, F64, BOOL or whole numbers"
        )),
    }
}

/// A hash of names, types, shapes, elements and texts, in which nothing can be mistaken for something else.
struct Digest(blake3::Hasher);

impl Digest {
    fn new<'a>(metadata: impl Iterator<Item = (&'a String, &'a String)>) -> Digest {
        let mut digest = Digest(blake3::Hasher::new());
        for (key, text) in metadata {
            digest.number(1);
            digest.text(key);
            digest.text(text);
        }
        digest
    }

    fn number(&mut self, n: usize) {
        self.0.update(&(n as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    fn tensor(&mut self, name: &str, dtype: Dtype, shape: Shape) {
        self.number(2);
        self.text(name);
        self.text(dtype.name());
        self.number(shape.rank());
        shape.dims().iter().for_each(|d| self.number(*d));
    }

    fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

/// The content of a file to be written: tensors in the order of their names, then each at once.
#[derive(Clone, Default)]
pub struct Writer<'a> {
    metadata: BTreeMap<String, String>,
    /// Their elements as words, which all types that are written have.
    tensors: BTreeMap<String, (Dtype, Shape, &'a [u32])>,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({} tensors)", self.tensors.len())
    }
}

#[derive(Serialize)]
struct Written {
    dtype: &'static str,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'a> Writer<'a> {
    /// Nothing yet.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// Adds a text.
    pub fn metadata(&mut self, key: &str, text: &str) -> Result<&mut Writer<'a>> {
        match self.metadata.insert(key.to_string(), text.to_string()) {
            None => Ok(self),
            Some(_) => {
                Err(Error::argument("safetensors", "key", format!("`{}` is there already", shown(key))))
            }
        }
    }

    /// Adds numbers, as F32.
    pub fn numbers(&mut self, name: &str, tensor: &'a Tensor<f32>) -> Result<&mut Writer<'a>> {
        self.add(name, Dtype::F32, tensor.shape(), bytemuck::cast_slice(tensor.data()))
    }

    /// Adds indices, as U32.
    pub fn indices(&mut self, name: &str, tensor: &'a Tensor<u32>) -> Result<&mut Writer<'a>> {
        self.add(name, Dtype::U32, tensor.shape(), tensor.data())
    }

    /// Adds either.
    pub fn tensor(&mut self, name: &str, tensor: &'a AnyTensor) -> Result<&mut Writer<'a>> {
        match tensor {
            AnyTensor::Num(t) => self.numbers(name, t),
            AnyTensor::Idx(t) => self.indices(name, t),
        }
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: Shape, words: &'a [u32]) -> Result<&mut Writer<'a>> {
        if name == METADATA || self.tensors.contains_key(name) {
            let why = format!("`{}` is reserved or there already", shown(name));
            return Err(Error::argument("safetensors", "name", why));
        }
        self.tensors.insert(name.to_string(), (dtype, shape, words));
        Ok(self)
    }

    /// [`SafeTensors::digest`] of what will be written.
    pub(crate) fn digest(&self) -> String {
        let mut digest = Digest::new(self.metadata.iter());
        for (name, (dtype, shape, words)) in &self.tensors {
            digest.tensor(name, *dtype, *shape);
            // Hashing does not fail.
            let _ = little_endian(words, |bytes| {
                digest.0.update(bytes);
                Ok(())
            });
        }
        digest.finish()
    }

    /// Length of the header and the header, a multiple of 8 bytes long.
    fn header(&self) -> Result<Vec<u8>> {
        let mut at = 0;
        let mut parts: Vec<(&str, serde_json::Result<String>)> = Vec::new();
        if !self.metadata.is_empty() {
            parts.push((METADATA, serde_json::to_string(&self.metadata)));
        }
        for (name, (dtype, shape, words)) in &self.tensors {
            let from = at;
            at += words.len() * 4;
            let (dtype, shape, data_offsets) = (dtype.name(), shape.dims().to_vec(), (from, at));
            parts.push((name, serde_json::to_string(&Written { dtype, shape, data_offsets })));
        }
        let internal = |_| Error::new("safetensors", ErrorKind::Internal { what: "a header is not text" });
        let mut text = String::from("{");
        for (i, (name, value)) in parts.into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let name = serde_json::to_string(name).map_err(internal)?;
            text.push_str(&format!("{comma}{name}:{}", value.map_err(internal)?));
        }
        text.push('}');
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        if text.len() as u64 > MAX_HEADER || self.tensors.len().max(self.metadata.len()) > MAX_NAMES {
            let (tensors, texts) = (self.tensors.len(), self.metadata.len());
            let why = format!(
                "{tensors} tensors and {texts} texts with a header of {} bytes would not be read again; at most {MAX_NAMES} \
                 of each and {MAX_HEADER} bytes are",
                text.len()
            );
            return Err(Error::argument("safetensors", "header", why));
        }
        Ok([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
    }

    fn write(&self, header: &[u8], file: &mut dyn Write) -> io::Result<()> {
        file.write_all(header)?;
        self.tensors.values().try_for_each(|(_, _, words)| little_endian(words, |b| file.write_all(b)))
    }

    /// Writes the file, [whole or not at all](atomic).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let header = self.header()?;
        atomic::write_with(path, |file| self.write(&header, file))
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let header = self.header()?;
        let words: usize = self.tensors.values().map(|(_, _, words)| words.len()).sum();
        let mut bytes = reserved("safetensors", header.len() + 4 * words)?;
        // Memory takes what it is given.
        let _ = self.write(&header, &mut bytes);
        Ok(bytes)
    }
}

/// Calls `f` with the bytes of all words, as they are in files.
pub(super) fn little_endian(words: &[u32], mut f: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    if cfg!(target_endian = "little") {
        return f(bytemuck::cast_slice(words));
    }
    words.chunks(1024).try_for_each(|some| {
        let bytes: Vec<u8> = some.iter().flat_map(|w| w.to_le_bytes()).collect();
        f(&bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn refused(bytes: &[u8]) -> String {
        let error =
            SafeTensors::parse("a.safetensors", bytes.to_vec()).expect_err("not a good file").to_string();
        let begin = "read: a.safetensors: is not a safetensors file: ";
        assert!(error.starts_with(begin) && error.lines().count() == 1 && error.len() < 400, "{error}");
        error[begin.len()..].to_string()
    }

    /// A header with one tensor.
    fn one(dtype: &str, shape: &str, from: u64, to: u64) -> String {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let x = Tensor::new(&[2, 2], vec![1.0f32, -0.0, f32::NAN, f32::NEG_INFINITY]).unwrap();
        let (i, none) =
            (Tensor::new(&[3], vec![7u32, 0, u32::MAX]).unwrap(), Tensor::new(&[0, 3], vec![]).unwrap());
        let (scalar, odd) = (Tensor::scalar(0.1f32), "b\"\\\n\u{1f600}");
        let mut writer = Writer::new();
        writer.numbers(odd, &x).unwrap().indices("a", &i).unwrap().numbers("z", &none).unwrap();
        writer.numbers("", &scalar).unwrap().metadata("k", "v\0").unwrap();
        let bytes = writer.to_bytes().unwrap();
        // The other order gives the same file.
        let mut again = Writer::new();
        again.metadata("k", "v\0").unwrap().numbers("", &scalar).unwrap().numbers("z", &none).unwrap();
        again.indices("a", &i).unwrap().numbers(odd, &x).unwrap();
        assert_eq!(again.to_bytes().unwrap(), bytes);
        let file = SafeTensors::parse("x", bytes).unwrap();
        assert_eq!(file.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["", "a", odd, "z"]);
        assert_eq!(file.metadata().clone(), BTreeMap::from([("k".to_string(), "v\0".to_string())]));
        assert_eq!(file.tensor("a").unwrap(), i.clone().into());
        assert_eq!(file.tensor("z").unwrap(), none.clone().into());
        assert_eq!(file.tensor("").unwrap(), scalar.clone().into());
        let AnyTensor::Num(back) = file.tensor(odd).unwrap() else { panic!("numbers") };
        let bits = |t: &Tensor<f32>| t.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!((back.shape(), bits(&back)), (x.shape(), bits(&x)));
        assert_eq!(file.digest(""), again.digest());
        assert!(file.tensor("c").unwrap_err().to_string().contains("x: tensor `c`: is not among the 4"));
        assert!(again.numbers("a", &scalar).is_err() && again.numbers(METADATA, &scalar).is_err());
        assert!(again.metadata("k", "").is_err());
        let empty = Writer::new().to_bytes().unwrap();
        assert_eq!(SafeTensors::parse("x", empty).unwrap().len(), 0);
    }

    #[test]
    fn types_are_converted() {
        let get = |dtype: &str, shape: &str, data: &[u8]| {
            let bytes = file(&one(dtype, shape, 0, data.len() as u64), data);
            SafeTensors::parse("x", bytes).unwrap().tensor("a")
        };
        let numbers = |values: &[f32]| AnyTensor::Num(Tensor::new(&[values.len()], values.to_vec()).unwrap());
        let indices = |values: &[u32]| AnyTensor::Idx(Tensor::new(&[values.len()], values.to_vec()).unwrap());
        assert_eq!(
            get("F16", "[2]", &[0x00, 0x3c, 0x01, 0x80]).unwrap(),
            numbers(&[1.0, -1.0 / 16_777_216.0])
        );
        assert_eq!(
            get("BF16", "[2]", &[0x80, 0x3f, 0x80, 0xff]).unwrap(),
            numbers(&[1.0, f32::NEG_INFINITY])
        );
        let wide: Vec<u8> = [0.1f64, f64::INFINITY].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(get("F64", "[2]", &wide).unwrap(), numbers(&[0.1, f32::INFINITY]));
        assert_eq!(get("BOOL", "[2]", &[1, 0]).unwrap(), indices(&[1, 0]));
        assert_eq!(get("U8", "[2]", &[255, 0]).unwrap(), indices(&[255, 0]));
        assert_eq!(get("I8", "[1]", &[127]).unwrap(), indices(&[127]));
        assert_eq!(get("U16", "[1]", &[1, 2]).unwrap(), indices(&[513]));
        assert_eq!(get("I16", "[1]", &[1, 2]).unwrap(), indices(&[513]));
        assert_eq!(get("I32", "[1]", &[1, 2, 0, 0]).unwrap(), indices(&[513]));
        assert_eq!(get("U64", "[1]", &[1, 2, 0, 0, 0, 0, 0, 0]).unwrap(), indices(&[513]));
        assert_eq!(get("I64", "[1]", &u64::from(u32::MAX).to_le_bytes()).unwrap(), indices(&[u32::MAX]));
        for (dtype, data, want) in [
            (
                "I64",
                &(-1i64).to_le_bytes()[..],
                "x: tensor `a`: element 0 is -1, an index is from 0 to 4294967295",
            ),
            ("I64", &(1i64 << 32).to_le_bytes(), "element 0 is 4294967296"),
            ("U64", &u64::MAX.to_le_bytes(), "element 0 is 18446744073709551615"),
            ("I8", &[0x80], "element 0 is -128"),
            ("BOOL", &[2], "element 0 is 2, a BOOL is 0 or 1"),
            ("F64", &1e39f64.to_le_bytes(), "element 0 is 1e39, too large for float32"),
            ("C64", &[0; 8], "has elements of type C64"),
            ("F8_E4M3", &[0], "has elements of type F8_E4M3"),
        ] {
            let error = get(dtype, "[1]", data).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    /// All halves against their definition, in f64.
    #[test]
    fn every_half_is_its_float() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
            let size = match exponent {
                0 => fraction * 2f64.powi(-14),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1.0 + fraction) * 2f64.powi(e - 15),
            };
            let got = from_half(bits);
            assert_eq!(got.is_sign_negative(), bits >> 15 == 1);
            assert!(f64::from(got.abs()) == size || (got.is_nan() && size.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let four = [0u8; 4];
        for (bytes, want) in [
            (vec![], "it is empty"),
            (vec![0xff; 7], "it has 7 bytes"),
            (vec![0xff; 64], "a header of 18446744073709551615 bytes is announced, 56 bytes follow"),
            (file("", &[]), "does not begin with {"),
            (file(" {}", &[]), "does not begin with {"),
            (file("[]", &[]), "does not begin with {"),
            (file("{", &[]), "its header: EOF"),
            (file("{}x", &[]), "its header: trailing characters"),
            (file(&format!("{{\"a\":{}", "[".repeat(100_000)), &[]), "tensor `a`: invalid type: sequence"),
            (file(&format!("{{\"a\":{{\"b\":{}", "[".repeat(100_000)), &[]), "tensor `a`: EOF"),
            (file("{}", &[0]), "1 bytes after the last tensor belong to none"),
            (file(r#"{"a":1}"#, &[]), "tensor `a`: invalid type"),
            (file(r#"{"a":{"dtype":"F32","shape":[]}}"#, &four), "missing field `data_offsets`"),
            (file(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, &four), "invalid value"),
            (
                file(r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#, &four),
                "tensor `a`: invalid type",
            ),
            (file(&one("Q9", "[1]", 0, 4), &four), "tensor `a`: `Q9` is not a known type"),
            (
                file(&one("F32", "[2]", 0, 4), &four),
                "tensor `a`: F32 of shape [2] takes 8 bytes, the header gives it 4",
            ),
            (
                file(&one("F32", "[1]", 0, 4), &[]),
                "ends at byte 4 of the data, of which there are 0: is the file cut",
            ),
            (file(&one("F32", "[1]", 4, 0), &four), "begins at byte 4 of the data and ends before it, at 0"),
            (file(&one("F32", "[1]", u64::MAX, u64::MAX), &four), "ends at byte 18446744073709551615"),
            (
                file(&one("F32", "[1]", 4, 8), &[0; 8]),
                "begins at byte 4 of the data, those before it end at 0: there is a hole",
            ),
            (
                file(&one("F32", "[1,1,1,1,1,1,1,1,1,1,1]", 0, 4), &four),
                "11 axes given, at most 10 are supported",
            ),
            (
                file(&one("F64", "[1152921504606846976]", 0, 4), &four),
                "takes 9223372036854775808 bytes, the header gives it 4",
            ),
            (file(&one("F32", "[18446744073709551615,18446744073709551615]", 0, 0), &[]), "does not fit"),
            (file(&one("F32", "[18446744073709551615,0]", 0, 0), &[]), "does not fit"),
            (file(&one("F32", "[99999999999999999999]", 0, 0), &[]), "its header: tensor `a`"),
            (file(r#"{"__metadata__":{"a":1}}"#, &[]), "invalid type: integer"),
            (file(r#"{"__metadata__":{"a":"","a":""}}"#, &[]), "a key of __metadata__ is there twice"),
            (file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "__metadata__ is there twice"),
            (file("{\"a\":\"\u{0}\"}", &[]), "its header"),
            ([&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), "its header"),
        ] {
            let got = refused(&bytes);
            assert!(got.contains(want), "{got}\ndoes not have\n{want}");
        }
        let two = |b: &str, from: u64, to: u64| {
            let a = r#"{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
            let size = to - from;
            format!(r#"{{"a":{a},"{b}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{from},{to}]}}}}"#)
        };
        assert!(refused(&file(&two("a", 4, 8), &[0; 8])).contains("tensor `a` is there twice"));
        assert!(refused(&file(&two("b", 3, 8), &[0; 8])).contains("an overlap"));
        assert!(refused(&file(&two("b", 0, 4), &four)).contains("an overlap"));
        assert!(refused(&file(&two("b", 5, 8), &[0; 8])).contains("a hole"));
        let long = "b\n".repeat(1 << 19);
        let name = two(&long.replace('\n', "\\n"), 5, 8);
        assert!(refused(&file(&name, &[0; 8])).contains("b\\nb\\n"));
        assert!(SafeTensors::parse("x", file(&two("b", 4, 8), &[0; 8])).is_ok());
        assert!(SafeTensors::parse("x", file(&two("b", 4, 4), &four)).is_ok());
        let text = format!("{{\"a\":\"{}\"}}", "\\n".repeat(1 << 20));
        assert!(refused(&file(&text, &[])).contains("tensor `a`: invalid type: string"));
        let many: Vec<String> = (0..=MAX_NAMES).map(|i| format!("\"{i}\":\"\"")).collect();
        let many = format!("{{\"__metadata__\":{{{}}}}}", many.join(","));
        assert!(refused(&file(&many, &[])).contains("more than 131072 entries"));
        let none = |i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        let many: Vec<String> = (0..=MAX_NAMES + 1).map(none).collect();
        assert!(refused(&file(&format!("{{{}}}", many.join(",")), &[])).contains("more than 131072 tensors"));
        assert!(SafeTensors::parse("x", file(&format!("{{{}}}", many[1..MAX_NAMES].join(",")), &[])).is_ok());
    }

    #[test]
    fn folders_pipes_and_missing_files_are_errors() {
        let here = tempfile::tempdir().unwrap();
        let wrong = |path: &Path| SafeTensors::read(path).unwrap_err().to_string();
        assert!(wrong(here.path()).ends_with("is a folder, not a file"));
        assert!(wrong(&here.path().join("none")).contains("none: No such file"));
        if cfg!(unix) {
            assert_eq!(wrong(Path::new("/dev/zero")), "read: /dev/zero: is not a regular file");
        }
    }

    /// A file with all types, written by Python's package; `tests/golden/safetensors_files.py` makes it.
    #[test]
    fn a_file_of_pythons_is_read() {
        let bytes = include_bytes!("../../tests/golden/torch.safetensors").to_vec();
        let file = SafeTensors::parse("torch.safetensors", bytes).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
        let halves: Vec<f32> = (0..6).map(|i| (i as f32 - 2.0) * 0.375).collect();
        for name in ["f64", "f32", "f16", "bf16"] {
            assert_eq!(
                file.tensor(name).unwrap(),
                Tensor::new(&[2, 3], halves.clone()).unwrap().into(),
                "{name}"
            );
        }
        for name in ["i64", "i32", "i16", "i8", "u8", "u32"] {
            assert_eq!(
                file.tensor(name).unwrap(),
                Tensor::new(&[3], vec![0u32, 1, 100]).unwrap().into(),
                "{name}"
            );
        }
        assert_eq!(file.tensor("bool").unwrap(), Tensor::new(&[2], vec![1u32, 0]).unwrap().into());
        assert_eq!(file.tensor("scalar").unwrap(), Tensor::scalar(0.1f32).into());
        assert_eq!(file.tensor("none").unwrap(), Tensor::<f32>::new(&[0, 4], vec![]).unwrap().into());
        assert_eq!(file.len(), 13);
    }

    /// Python's package reads this file and finds these numbers: `tests/golden/safetensors_files.py --check`.
    #[test]
    fn our_file_is_the_one_that_python_reads() {
        let x = Tensor::new(&[2, 3], (0..6).map(|i| i as f32 * 0.1 - 0.2).collect()).unwrap();
        let (i, none) =
            (Tensor::new(&[3], vec![0u32, 1, u32::MAX]).unwrap(), Tensor::new(&[0, 4], vec![]).unwrap());
        let (scalar, mut file) = (Tensor::scalar(f32::NEG_INFINITY), Writer::new());
        file.numbers("layer.weight", &x).unwrap().indices("labels", &i).unwrap();
        file.numbers("none", &none).unwrap().numbers("scalar", &scalar).unwrap();
        file.metadata("format", "pt").unwrap().metadata("text", "ein \"Wort\" – 字").unwrap();
        let bytes = file.to_bytes().unwrap();
        if std::env::var_os("DITTOGRAD_UPDATE").is_some() {
            std::fs::write("tests/golden/ours.safetensors", &bytes).unwrap();
        }
        assert!(bytes == include_bytes!("../../tests/golden/ours.safetensors"));
    }

    proptest! {
        /// Whatever the bytes are, there is an answer.
        #[test]
        fn any_bytes_have_an_answer(mut at in 0usize..400, byte: u8, cut in 0usize..400) {
            let x = Tensor::new(&[2, 2], vec![1.0f32; 4]).unwrap();
            let mut writer = Writer::new();
            writer.numbers("a", &x).unwrap().numbers("b.c", &x).unwrap().metadata("k", "v").unwrap();
            let mut bytes = writer.to_bytes().unwrap();
            at %= bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut);
            if let Ok(file) = SafeTensors::parse("x", bytes) {
                for (name, _) in file.iter() {
                    let _ = file.tensor(name);
                }
            }
        }
    }

    /// The digest holds every part of the file, and no part can pass for another.
    #[test]
    fn files_that_differ_have_other_digests() {
        let tensor = |dims: &[usize], data: &[u32]| Tensor::new(dims, data.to_vec()).unwrap();
        let (flat, turned) = (tensor(&[6], &[1, 2, 3, 4, 5, 6]), tensor(&[3, 2], &[1, 2, 3, 4, 5, 6]));
        let (wide, other) = (tensor(&[2, 3], &[1, 2, 3, 4, 5, 6]), tensor(&[6], &[1, 2, 3, 4, 5, 7]));
        let (one, five) = (tensor(&[1], &[1]), tensor(&[5], &[2, 3, 4, 5, 6]));
        let numbers = Tensor::new(&[6], flat.data().iter().map(|w| f32::from_bits(*w)).collect()).unwrap();
        type Texts = &'static [(&'static str, &'static str)];
        let make = |texts: Texts, indices: &[(&str, &Tensor<u32>)], floats: &[(&str, &Tensor<f32>)]| {
            let mut writer = Writer::new();
            for (key, text) in texts {
                writer.metadata(key, text).unwrap();
            }
            for (name, tensor) in indices {
                writer.indices(name, tensor).unwrap();
            }
            for (name, tensor) in floats {
                writer.numbers(name, tensor).unwrap();
            }
            let read = SafeTensors::parse("x", writer.to_bytes().unwrap()).unwrap();
            assert_eq!(read.digest("but"), writer.digest());
            writer.digest()
        };
        let all = [
            make(&[], &[], &[]),
            make(&[], &[("a", &flat)], &[]),
            make(&[], &[("b", &flat)], &[]),
            make(&[], &[("a", &other)], &[]),
            make(&[], &[("a", &turned)], &[]),
            make(&[], &[("a", &wide)], &[]),
            // The same bytes as numbers, and as two tensors.
            make(&[], &[], &[("a", &numbers)]),
            make(&[], &[("a", &one), ("b", &five)], &[]),
            make(&[("k", "v")], &[], &[]),
            make(&[("l", "v")], &[], &[]),
            make(&[("k", "w")], &[], &[]),
            make(&[("kv", "")], &[], &[]),
            make(&[("", "kv")], &[], &[]),
            make(&[("k", "v"), ("l", "w")], &[], &[]),
            make(&[("k", "vlw")], &[], &[]),
        ];
        for (i, digest) in all.iter().enumerate() {
            assert!(!all[..i].contains(digest), "file {i} passes for another");
        }
    }

    /// What is fed to the hash can be read back, so that two files cannot feed the same.
    #[test]
    fn parts_of_a_digest_do_not_run_together() {
        let scalar = Tensor::new(&[], vec![7u32]).unwrap();
        let word = |n: u64| n.to_le_bytes().to_vec();
        let text = |t: &str| [word(t.len() as u64), t.as_bytes().to_vec()].concat();
        let mut writer = Writer::new();
        writer.metadata("key", "text").unwrap().indices("name", &scalar).unwrap();
        let fed = [word(1), text("key"), text("text"), word(2), text("name"), text("U32"), word(0)].concat();
        let want = blake3::hash(&[fed, 7u32.to_le_bytes().to_vec()].concat()).to_hex().to_string();
        assert_eq!(writer.digest(), want);
    }

    #[test]
    fn what_a_file_says_about_itself() {
        let x = Tensor::new(&[2, 3], vec![1.0f32; 6]).unwrap();
        let mut writer = Writer::new();
        writer.numbers("x", &x).unwrap();
        let bytes = writer.to_bytes().unwrap();
        let file = SafeTensors::parse("x", bytes.clone()).unwrap();
        let entry = file.get("x").unwrap();
        assert_eq!((entry.shape(), entry.dtype()), (x.shape(), Dtype::F32));
        assert_eq!((file.len(), file.is_empty(), file.bytes()), (1, false, bytes.len()));
        assert!(file.get("y").is_none());
        let none = SafeTensors::parse("x", Writer::new().to_bytes().unwrap()).unwrap();
        assert_eq!((none.len(), none.is_empty()), (0, true));
    }

    #[test]
    fn shapes_have_as_many_axes_as_elsewhere() {
        let list = |n: usize| format!("[{}]", vec!["1"; n].join(","));
        let most = file(&one("U8", &list(MAX_RANK), 0, 1), &[5]);
        assert_eq!(SafeTensors::parse("x", most).unwrap().get("a").unwrap().shape().rank(), MAX_RANK);
        assert!(refused(&file(&one("U8", &list(MAX_RANK + 1), 0, 1), &[5])).contains("11 axes given"));
    }

    #[test]
    fn as_many_names_are_written_as_are_read() {
        let none = Tensor::new(&[0], vec![]).unwrap();
        let names: Vec<String> = (0..=MAX_NAMES).map(|i| i.to_string()).collect();
        let mut writer = Writer::new();
        for name in &names[..MAX_NAMES] {
            writer.numbers(name, &none).unwrap();
        }
        let file = SafeTensors::parse("x", writer.to_bytes().unwrap()).unwrap();
        assert_eq!(file.len(), MAX_NAMES);
        writer.numbers(&names[MAX_NAMES], &none).unwrap();
        assert!(writer.to_bytes().unwrap_err().to_string().contains("would not be read again"));
        let mut texts = Writer::new();
        for name in &names {
            texts.metadata(name, "").unwrap();
        }
        assert!(texts.to_bytes().is_err());
    }
}
