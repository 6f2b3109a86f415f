//! Text to tokens and back: byte-level byte-pair encoding, like GPT-2.
//!
//! A text is split into words ([`words`]), a word starts as its bytes, and neighbours are joined by a list of merges:
//! always the first merge of the list that applies, at the leftmost position. Every byte is a token, so every byte
//! string can be encoded and decodes to itself, whether it is UTF-8 or not.
//!
//! The crate `tokenizers` supports every kind of `tokenizer.json`, but brings 75 crates, which take longer to build
//! than the program does.

mod file;
mod split;
mod train;

pub use split::{Words, words};

use crate::error::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::ops::Range;

/// The most tokens of a tokenizer.
pub const MAX_TOKENS: usize = 1 << 20;
/// Words up to this many bytes are joined by scanning all pairs repeatedly; longer ones use a heap.
const MAX_SCANNED_WORD: usize = 32;
/// Words up to this many bytes are cached.
const MAX_CACHED_WORD: usize = 64;
/// Replaces a token that was joined to the one before it.
const JOINED: u32 = u32::MAX;
/// A missing neighbour.
const NONE: usize = usize::MAX;

/// A merge of two tokens: its position in the list, and the token it produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Merge {
    rank: u32,
    id: u32,
}

/// A byte-level byte-pair encoding: trained on a text ([`Tokenizer::train`]) or read from GPT-2's or Hugging Face's files
/// ([`Tokenizer::read`]).
///
/// ```
/// use dittograd::data::Tokenizer;
/// # fn main() -> dittograd::error::Result<()> {
/// let text = "the cat sat on the mat, the cat that the rat sat on".as_bytes();
/// let tokenizer = Tokenizer::train(text, 270)?;
/// let tokens = tokenizer.encode(text);
/// assert!(tokens.len() < text.len() / 2);
/// assert_eq!(tokenizer.decode(&tokens)?, text);
/// assert_eq!(Tokenizer::from_json(&tokenizer.to_json())?, tokenizer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq)]
pub struct Tokenizer {
    /// The bytes of each token.
    tokens: Vec<Vec<u8>>,
    /// The name of each token in files.
    names: Vec<String>,
    /// The token of each byte.
    bytes: Vec<u32>,
    merges: HashMap<(u32, u32), Merge>,
    /// Added tokens, which are matched before a text is split into words: first those of the first list, then those of
    /// the second in the rest.
    added: [Vec<(Vec<u8>, u32)>; 2],
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens, {} merges)", self.tokens.len(), self.merges.len())
    }
}

impl Tokenizer {
    /// One token per byte and no others: token `b` is the byte `b`.
    pub fn bytes() -> Tokenizer {
        Tokenizer {
            tokens: (0..=255u8).map(|b| vec![b]).collect(),
            names: (0..=255u8).map(|b| char_of(b).to_string()).collect(),
            bytes: (0..256).collect(),
            merges: HashMap::new(),
            added: [Vec::new(), Vec::new()],
        }
    }

    /// Number of tokens. Tokens are the numbers below it.
    pub fn size(&self) -> usize {
        self.tokens.len()
    }

    /// Number of merges.
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    /// The bytes of a token, if it exists. They need not be whole characters.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(Vec::as_slice)
    }

    /// The tokens of a text. [`Tokenizer::decode`] restores the same bytes.
    pub fn encode(&self, text: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        if self.merges.is_empty() && self.added.iter().all(Vec::is_empty) {
            out.extend(text.iter().map(|b| self.bytes[usize::from(*b)]));
            return out;
        }
        let mut seen = HashMap::new();
        self.pieces(text, 0, &mut out, &mut seen);
        out
    }

    /// The bytes of some tokens. Errors if a number is no token.
    #[track_caller]
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            match self.token(*id) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => {
                    let why = format!("token {id} at position {at} is none of {}", self.size());
                    return Err(Error::argument("decode", "tokens", why));
                }
            }
        }
        Ok(out)
    }

    /// Encodes the text around the added tokens of list `level` and later.
    fn pieces<'t>(
        &self,
        text: &'t [u8],
        level: usize,
        out: &mut Vec<u32>,
        seen: &mut HashMap<&'t [u8], Range<usize>>,
    ) {
        let Some(added) = self.added.get(level) else {
            words(text).for_each(|word| self.word(word, out, seen));
            return;
        };
        if added.is_empty() {
            return self.pieces(text, level + 1, out, seen);
        }
        let mut first = [false; 256];
        added.iter().for_each(|(token, _)| first[usize::from(token[0])] = true);
        let (mut from, mut at) = (0, 0);
        while at < text.len() {
            let longest = match first[usize::from(text[at])] {
                false => None,
                true => {
                    let here = added.iter().filter(|(token, _)| text[at..].starts_with(token));
                    here.max_by_key(|(token, _)| token.len())
                }
            };
            match longest {
                None => at += 1,
                Some((token, id)) => {
                    self.pieces(&text[from..at], level + 1, out, seen);
                    out.push(*id);
                    at += token.len();
                    from = at;
                }
            }
        }
        self.pieces(&text[from..], level + 1, out, seen);
    }

    /// Encodes a word, or copies its earlier encoding: `seen` has its position in `out`.
    fn word<'t>(&self, word: &'t [u8], out: &mut Vec<u32>, seen: &mut HashMap<&'t [u8], Range<usize>>) {
        if word.len() > MAX_CACHED_WORD {
            return self.long(word, out);
        }
        if let Some(range) = seen.get(word) {
            return out.extend_from_within(range.clone());
        }
        let from = out.len();
        if word.len() <= MAX_SCANNED_WORD {
            self.short(word, out)
        } else {
            self.long(word, out)
        }
        seen.insert(word, from..out.len());
    }

    fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&(left, right)).copied()
    }

    fn short(&self, word: &[u8], out: &mut Vec<u32>) {
        let mut ids: Vec<u32> = word.iter().map(|b| self.bytes[usize::from(*b)]).collect();
        // The merge of each token with the next one.
        let mut next: Vec<Option<Merge>> = ids.windows(2).map(|p| self.merge(p[0], p[1])).collect();
        while let Some((merge, at)) = next.iter().enumerate().filter_map(|(i, m)| m.map(|m| (m, i))).min() {
            ids[at] = merge.id;
            ids.remove(at + 1);
            next.remove(at);
            if at > 0 {
                next[at - 1] = self.merge(ids[at - 1], ids[at]);
            }
            if at < next.len() {
                next[at] = self.merge(ids[at], ids[at + 1]);
            }
        }
        out.extend(ids);
    }

    /// Like `short`, in `n log n` time.
    fn long(&self, word: &[u8], out: &mut Vec<u32>) {
        let mut ids: Vec<u32> = word.iter().map(|b| self.bytes[usize::from(*b)]).collect();
        let last = ids.len().saturating_sub(1);
        let mut next: Vec<usize> = (0..ids.len()).map(|i| if i < last { i + 1 } else { NONE }).collect();
        let mut before: Vec<usize> = (0..ids.len()).map(|i| i.checked_sub(1).unwrap_or(NONE)).collect();
        let pairs = ids.windows(2).enumerate();
        let start = pairs.filter_map(|(i, p)| self.merge(p[0], p[1]).map(|m| Reverse((m, i))));
        let mut heap: BinaryHeap<Reverse<(Merge, usize)>> = start.collect();
        while let Some(Reverse((merge, at))) = heap.pop() {
            let right = next[at];
            // A merge found earlier may be outdated.
            if ids[at] == JOINED || right == NONE || self.merge(ids[at], ids[right]) != Some(merge) {
                continue;
            }
            ids[at] = merge.id;
            ids[right] = JOINED;
            let (left, after) = (before[at], next[right]);
            next[at] = after;
            if after != NONE {
                before[after] = at;
                heap.extend(self.merge(merge.id, ids[after]).map(|m| Reverse((m, at))));
            }
            if left != NONE {
                heap.extend(self.merge(ids[left], merge.id).map(|m| Reverse((m, left))));
            }
        }
        out.extend(ids.into_iter().filter(|id| *id != JOINED));
    }
}

/// How bytes are written in tokenizer files: visible Latin-1 characters stand for themselves, other bytes are the
/// characters from U+0100 on, in order.
const CHARS: [char; 256] = {
    let (mut chars, mut b, mut hidden) = (['\0'; 256], 0u8, 0u8);
    loop {
        chars[b as usize] = match b {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => b as char,
            _ => {
                hidden += 1;
                // 68 bytes are not visible.
                match char::from_u32(0xff + hidden as u32) {
                    Some(c) => c,
                    None => '\0',
                }
            }
        };
        if b == 255 {
            break chars;
        }
        b += 1;
    }
};

fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// All of [`CHARS`] in the order of the characters, which is the order of GPT-2's first tokens.
fn alphabet() -> Vec<(char, u8)> {
    let mut all: Vec<(char, u8)> = (0..=255).map(|b| (char_of(b), b)).collect();
    all.sort_unstable();
    all
}
