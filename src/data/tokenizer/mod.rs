//! Text as tokens and back: byte-level byte-pair encoding, as GPT-2 has it.
//!
//! A text is cut into words ([`words`]), a word is its bytes, and neighbours are joined by a list of merges, always the first
//! of the list that applies, the leftmost where it applies more than once. Every byte is a token, so every string of bytes has
//! tokens and comes back as it was, whether it is UTF-8 or not.
//!
//! The crate `tokenizers` knows every kind of `tokenizer.json`, but brings 75 crates, which take longer to build than the program does.

mod file;
mod split;
mod train;

pub use split::{Words, words};

use crate::error::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::ops::Range;

/// Most tokens a tokenizer may have.
pub const MAX_TOKENS: usize = 1 << 20;
/// Bytes of a word that is joined by looking at all pairs again and again; longer ones take a heap.
const SHORT: usize = 32;
/// Bytes of a word that is remembered, since it will come again.
const REMEMBERED: usize = 64;
/// In the place of a token that was joined to the one before it.
const GONE: u32 = u32::MAX;
/// In the place of a neighbour that is not there.
const NONE: usize = usize::MAX;

/// A merge of two tokens: its place in the list, and the token it makes.
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
    /// What each token is called in files.
    names: Vec<String>,
    /// The token of each byte.
    bytes: Vec<u32>,
    merges: HashMap<(u32, u32), Merge>,
    /// Tokens that are found in a text before it is cut into words: first those of the first list, then those of the second in
    /// what is left.
    added: [Vec<(Vec<u8>, u32)>; 2],
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens, {} merges)", self.tokens.len(), self.merges.len())
    }
}

impl Tokenizer {
    /// A token for each byte, and no others: token `b` is the byte `b`.
    pub fn bytes() -> Tokenizer {
        Tokenizer {
            tokens: (0..=255u8).map(|b| vec![b]).collect(),
            names: (0..=255u8).map(|b| char_of(b).to_string()).collect(),
            bytes: (0..256).collect(),
            merges: HashMap::new(),
            added: [Vec::new(), Vec::new()],
        }
    }

    /// Number of tokens: they are the numbers below it.
    pub fn size(&self) -> usize {
        self.tokens.len()
    }

    /// Number of merges.
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    /// The bytes of a token, if there is such a token. They need not be whole characters.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(Vec::as_slice)
    }

    /// The tokens of a text. [`Tokenizer::decode`] gives back the same bytes.
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

    /// The bytes of some tokens. Errors if one of them is none.
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

    /// Encodes around the added tokens of list `level` and those after it.
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

    /// Encodes a word, or copies what it was before: `seen` says where in `out`.
    fn word<'t>(&self, word: &'t [u8], out: &mut Vec<u32>, seen: &mut HashMap<&'t [u8], Range<usize>>) {
        if word.len() > REMEMBERED {
            return self.long(word, out);
        }
        if let Some(range) = seen.get(word) {
            return out.extend_from_within(range.clone());
        }
        let from = out.len();
        if word.len() <= SHORT {
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
        // What joins each token with the next one.
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

    /// The same in a time that grows as `n log n`.
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
            // What was found earlier may have been joined to something else since.
            if ids[at] == GONE || right == NONE || self.merge(ids[at], ids[right]) != Some(merge) {
                continue;
            }
            ids[at] = merge.id;
            ids[right] = GONE;
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
        out.extend(ids.into_iter().filter(|id| *id != GONE));
    }
}

/// How bytes are written in files of tokens: as themselves where they are visible characters of Latin-1, and else as the
/// characters from U+0100 on, in order.
const CHARS: [char; 256] = {
    let (mut chars, mut b, mut hidden) = (['\0'; 256], 0u8, 0u8);
    loop {
        chars[b as usize] = match b {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => b as char,
            _ => {
                hidden += 1;
                // 68 bytes are hidden.
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
