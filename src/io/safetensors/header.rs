//! Reads the header of a file, which may be malicious.
//!
//! The crate `safetensors` is not used for this: it accepts duplicate names, a malicious header can take 48 times its
//! size in memory, and a header of 20,000 tensors takes it twice as long.

use super::{Dtype, Entries, Entry, MAX_HEADER, MAX_NAMES, METADATA};
use crate::io::{said, shown};
use crate::shape::{MAX_RANK, Shape};
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;

/// The map of texts and the tensors of a file of `size` bytes, of which `bytes` are the first: those of the header are enough.
pub(super) fn parse(bytes: &[u8], size: usize) -> Result<(BTreeMap<String, String>, Entries), String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(match bytes.len() {
            0 => "it is empty".to_string(),
            n => format!("it has {n} bytes, too few for the length of a header"),
        });
    };
    // Files of `torch.save`: zip archives since 1.6, pickles before.
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02\x8a\x0a") {
        let how = "safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")";
        return Err(format!("it is one of torch.save, or another archive; in Python, write {how}"));
    }
    let length = u64::from_le_bytes(*length);
    let room = size - 8;
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
    let data = size - start;
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
    if end != size {
        return Err(format!("{} bytes after the last tensor belong to none", size - end));
    }
    Ok((header.metadata.unwrap_or_default(), entries))
}

/// The header as written, with each name once.
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
