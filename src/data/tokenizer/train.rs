//! Training: finds the merges for a text.

use super::{Merge, Tokenizer, alphabet, char_of, words};
use crate::error::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

/// Replaces a token that was joined to the one before it, or marks a missing neighbour.
const NONE: u32 = u32::MAX;

/// Two neighbouring tokens.
type Pair = (u32, u32);

/// Where a pair occurs, and how often, weighted by the counts of words.
#[derive(Default)]
struct Found {
    count: u64,
    /// Every position, perhaps twice, and perhaps outdated ones.
    places: Vec<u32>,
}

/// All distinct words, one after another, as lists of tokens that shrink.
#[derive(Default)]
struct Corpus {
    ids: Vec<u32>,
    next: Vec<u32>,
    before: Vec<u32>,
    /// How often the word is in the text.
    count: Vec<u64>,
    pairs: HashMap<Pair, Found>,
}

impl Corpus {
    fn less(&mut self, pair: Pair, count: u64) {
        if let Some(found) = self.pairs.get_mut(&pair) {
            found.count -= count;
        }
    }

    fn more(&mut self, pair: Pair, count: u64, place: u32) {
        let found = self.pairs.entry(pair).or_default();
        found.count += count;
        found.places.push(place);
    }

    /// Joins a pair everywhere, from left to right. Returns the pairs that became more frequent.
    fn join(&mut self, pair: Pair, id: u32) -> Vec<Pair> {
        let mut places = self.pairs.get_mut(&pair).map(|f| std::mem::take(&mut f.places)).unwrap_or_default();
        places.sort_unstable();
        places.dedup();
        let mut grown = Vec::new();
        for at in places {
            let i = at as usize;
            let right = self.next[i];
            if self.ids[i] != pair.0 || right == NONE || self.ids[right as usize] != pair.1 {
                continue;
            }
            let (count, left, after) = (self.count[i], self.before[i], self.next[right as usize]);
            self.less(pair, count);
            self.ids[i] = id;
            self.ids[right as usize] = NONE;
            self.next[i] = after;
            if left != NONE {
                let neighbour = self.ids[left as usize];
                self.less((neighbour, pair.0), count);
                self.more((neighbour, id), count, left);
                grown.push((neighbour, id));
            }
            if after != NONE {
                let neighbour = self.ids[after as usize];
                self.before[after as usize] = at;
                self.less((pair.1, neighbour), count);
                self.more((id, neighbour), count, at);
                grown.push((id, neighbour));
            }
        }
        grown.sort_unstable();
        grown.dedup();
        grown
    }
}

impl Tokenizer {
    /// Trains a tokenizer on a text. The first tokens are the bytes, in the order of the characters that files write
    /// for them, as in GPT-2. Then the most frequent pair of neighbouring tokens in words becomes a token, again and
    /// again; among equally frequent pairs, the one with the smallest numbers. It ends with `size` tokens, or with
    /// fewer once no pair occurs twice. The same text gives the same tokens on every machine. Errors unless `size` is
    /// 257 to [`MAX_TOKENS`](super::MAX_TOKENS).
    #[track_caller]
    pub fn train(text: &[u8], size: usize) -> Result<Tokenizer> {
        let wrong = |name, why: String| Err(Error::argument("tokenizer", name, why));
        if !(257..=super::MAX_TOKENS).contains(&size) {
            let why = format!("got {size}, use 257 to {}: 256 are the bytes", super::MAX_TOKENS);
            return wrong("size", why);
        }
        let first = alphabet();
        let mut bytes = vec![0; 256];
        (0..).zip(&first).for_each(|(id, (_, b))| bytes[usize::from(*b)] = id);

        let mut counts: HashMap<&[u8], u64> = HashMap::new();
        words(text).for_each(|word| *counts.entry(word).or_default() += 1);
        // A word of one token has no pairs.
        let mut list: Vec<(&[u8], u64)> = counts.into_iter().filter(|(word, _)| word.len() > 1).collect();
        list.sort_unstable();
        if list.iter().map(|(word, _)| word.len()).sum::<usize>() >= NONE as usize {
            return wrong("text", "has more than 4 GiB of different words; use a part of it".into());
        }
        let mut corpus = Corpus::default();
        for (word, count) in list {
            let from = corpus.ids.len() as u32;
            let end = from + word.len() as u32;
            for (at, b) in (from..end).zip(word) {
                corpus.ids.push(bytes[usize::from(*b)]);
                corpus.next.push(if at + 1 < end { at + 1 } else { NONE });
                corpus.before.push(if at > from { at - 1 } else { NONE });
                corpus.count.push(count);
            }
            for at in from..end - 1 {
                let i = at as usize;
                corpus.more((corpus.ids[i], corpus.ids[i + 1]), count, at);
            }
        }

        let mut tokens: Vec<Vec<u8>> = first.iter().map(|(_, b)| vec![*b]).collect();
        let mut known: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut merges = HashMap::new();
        let entry = |(pair, found): (&Pair, &Found)| (found.count, Reverse(*pair));
        let mut heap: BinaryHeap<(u64, Reverse<Pair>)> = corpus.pairs.iter().map(entry).collect();
        while tokens.len() < size
            && let Some((count, Reverse(pair))) = heap.pop()
        {
            let now = corpus.pairs.get(&pair).map_or(0, |f| f.count);
            if now != count {
                // If it became more frequent, there is another entry.
                if now < count {
                    heap.push((now, Reverse(pair)));
                }
                continue;
            }
            if count < 2 {
                break;
            }
            let joined = [&tokens[pair.0 as usize][..], &tokens[pair.1 as usize]].concat();
            // The same bytes may arise in several ways; they are one token.
            let id = *known.entry(joined).or_insert_with_key(|joined| {
                tokens.push(joined.clone());
                tokens.len() as u32 - 1
            });
            // Through such a token, a pair that was joined before may occur again.
            let rank = merges.len() as u32;
            merges.entry(pair).or_insert(Merge { rank, id });
            for grown in corpus.join(pair, id) {
                if let Some(found) = corpus.pairs.get(&grown) {
                    heap.push((found.count, Reverse(grown)));
                }
            }
        }
        let names = tokens.iter().map(|t| t.iter().map(|b| char_of(*b)).collect()).collect();
        Ok(Tokenizer { tokens, names, bytes, merges, added: [Vec::new(), Vec::new()] })
    }

    /// [`Tokenizer::train`] on the content of a file.
    #[track_caller]
    pub fn train_file(path: impl AsRef<Path>, size: usize) -> Result<Tokenizer> {
        Tokenizer::train(&crate::io::bytes::read("tokenizer", path.as_ref())?, size)
    }
}
