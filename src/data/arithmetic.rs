//! Additions as text, for language models: `47+85=` and then the answer.
//!
//! A line has nine tokens of the vocabulary [`VOCABULARY`]: two digits, `+`, two digits, `=`, and the three digits of
//! the sum **from the last to the first**, padded with zeros: `47+85=231` for 132, `10+25=530` for 35. In that order a
//! digit needs only the two digits above it and the carry, so a small model can learn it. All lines have the same
//! length, so there is nothing to pad.
//!
//! A sample is the first eight tokens, and its targets are the tokens after each of them. The tokens of the question
//! cannot be predicted; their targets are [`IGNORE`], so only three positions count. `cross_entropy` with `ignore` set
//! to it skips the others.

use super::{Dataset, IGNORE};
use crate::error::{Error, Result};
use crate::numerics::rng::{self, Stream};
use crate::tensor::Tensor;

/// The characters. A token is the position of its character.
pub const VOCABULARY: &str = "0123456789+=";
/// Tokens of a line.
pub const LINE: usize = 9;
/// Tokens of a question, `47+85=`.
pub const QUESTION: usize = 6;
/// Tokens of an answer.
pub const ANSWER: usize = 3;

const SET: u64 = 0x6164_6473;
/// Numbers have two digits.
const NUMBERS: std::ops::Range<u32> = 10..100;
const COUNT: usize = (NUMBERS.end - NUMBERS.start) as usize;
/// Numbers `a` for which `a+a` is held out, and pairs `a < b` for which `a+b` and `b+a` are held out.
const HELD_DOUBLES: usize = 9;
const HELD_PAIRS: usize = 400;

/// A part of the 8100 additions of two numbers from 10 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The training part.
    Train,
    /// The held-out part. `a+b` is held out if and only if `b+a` is.
    HeldOut,
}

impl Part {
    /// Number of additions of the part, for any seed: 7291 and 809.
    pub fn lines(self) -> usize {
        let held = HELD_DOUBLES + 2 * HELD_PAIRS;
        match self {
            Part::HeldOut => held,
            Part::Train => COUNT * COUNT - held,
        }
    }
}

/// `samples` different additions of a part: tokens `(N, 8)`, next tokens `(N, 8)`, 12 classes. The seed decides the
/// split into parts and the order. Errors if there are not as many.
#[track_caller]
pub fn additions(seed: u64, samples: usize, part: Part) -> Result<Dataset> {
    if samples == 0 || samples > part.lines() {
        let why = format!("got {samples}, use 1 to {}, the additions of the part", part.lines());
        return Err(Error::argument("additions", "samples", why));
    }
    let pairs = pairs(seed, part);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for &(a, b) in &pairs[..samples] {
        let line = line(a, b);
        x.extend_from_slice(&line[..LINE - 1]);
        y.extend_from_slice(&[IGNORE; QUESTION - 1]);
        y.extend_from_slice(&line[QUESTION..]);
    }
    let dims = [samples, LINE - 1];
    Dataset::new("additions", Tensor::new(&dims, x)?, Tensor::new(&dims, y)?, Some(VOCABULARY.len()))
}

/// All pairs of a part, shuffled.
fn pairs(seed: u64, part: Part) -> Vec<(u32, u32)> {
    let key = rng::key(seed, SET);
    let doubles: Vec<u32> = NUMBERS.collect();
    let below: Vec<(u32, u32)> = NUMBERS.flat_map(|a| (a + 1..NUMBERS.end).map(move |b| (a, b))).collect();
    let (mut all, held) = (Vec::new(), part == Part::HeldOut);
    for (place, i) in Stream::new(key, 0).permutation(doubles.len()).into_iter().enumerate() {
        if (place < HELD_DOUBLES) == held {
            all.push((doubles[i], doubles[i]));
        }
    }
    for (place, i) in Stream::new(key, 1).permutation(below.len()).into_iter().enumerate() {
        if (place < HELD_PAIRS) == held {
            let (a, b) = below[i];
            all.extend([(a, b), (b, a)]);
        }
    }
    let order = Stream::new(key, 2 + u64::from(held)).permutation(all.len());
    order.into_iter().map(|i| all[i]).collect()
}

/// The tokens of a line, for two numbers of two digits.
fn line(a: u32, b: u32) -> [u32; LINE] {
    let sum = a + b;
    [a / 10, a % 10, 10, b / 10, b % 10, 11, sum % 10, sum / 10 % 10, sum / 100]
}

/// The tokens of the question `a+b=`. Errors unless both numbers are from 10 to 99.
#[track_caller]
pub fn question(a: u32, b: u32) -> Result<Vec<u32>> {
    if !NUMBERS.contains(&a) || !NUMBERS.contains(&b) {
        return Err(Error::argument("additions", "numbers", format!("{a} and {b}: use 10 to 99")));
    }
    Ok(line(a, b)[..QUESTION].to_vec())
}

/// The number that the three tokens of an answer stand for; `None` if they are not three digits.
pub fn answer(tokens: &[u32]) -> Option<u32> {
    let [ones, tens, hundreds] = *tokens else { return None };
    tokens.iter().all(|t| *t < 10).then_some(100 * hundreds + 10 * tens + ones)
}

/// The tokens of a text. Errors at a character that is not in [`VOCABULARY`].
#[track_caller]
pub fn encode(text: &str) -> Result<Vec<u32>> {
    let token = |(i, c): (usize, char)| {
        VOCABULARY.find(c).map(|t| t as u32).ok_or_else(|| {
            let why = format!("character {} is `{c}`, use {VOCABULARY}", i + 1);
            Error::argument("additions", "text", why)
        })
    };
    text.chars().enumerate().map(token).collect()
}

/// The text of tokens, with `?` for a number that is no token.
pub fn decode(tokens: &[u32]) -> String {
    let character = |t: &u32| VOCABULARY.as_bytes().get(*t as usize).map_or('?', |b| char::from(*b));
    tokens.iter().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bits_are_the_committed_ones() {
        let data = additions(7, 100, Part::Train).unwrap();
        assert_eq!(
            (hash(data.x()).as_str(), hash(data.y()).as_str()),
            ("4bebdd8c90fe04e4", "8999cc60d3b6f001")
        );
    }

    #[test]
    fn the_parts_hold_every_addition_once() {
        for seed in [0, 7] {
            let (train, held) = (pairs(seed, Part::Train), pairs(seed, Part::HeldOut));
            assert_eq!((train.len(), held.len()), (Part::Train.lines(), Part::HeldOut.lines()));
            let all: HashSet<_> = train.iter().chain(&held).collect();
            assert_eq!(all.len(), 8100);
            let held: HashSet<_> = held.into_iter().collect();
            assert!(train.iter().all(|&(a, b)| !held.contains(&(b, a))), "both orders are on the same side");
        }
        assert_ne!(pairs(0, Part::HeldOut), pairs(7, Part::HeldOut));
    }

    #[test]
    fn lines_are_right_and_only_answers_count() {
        let data = additions(3, Part::Train.lines(), Part::Train).unwrap();
        let (x, y) = (data.x().idx().unwrap().data(), data.y().idx().unwrap().data());
        for (x, y) in x.chunks(LINE - 1).zip(y.chunks(LINE - 1)) {
            let text = decode(x);
            let (a, b): (u32, u32) = (text[..2].parse().unwrap(), text[3..5].parse().unwrap());
            assert_eq!(question(a, b).unwrap(), x[..QUESTION]);
            assert_eq!(y[..QUESTION - 1], [IGNORE; QUESTION - 1]);
            assert_eq!(answer(&y[QUESTION - 1..]), Some(a + b));
            assert_eq!(x[QUESTION..], y[QUESTION - 1..][..ANSWER - 1], "targets are the next tokens");
        }
        assert_eq!(decode(&line(47, 85)), "47+85=231");
        assert_eq!(encode("47+85=231").unwrap(), line(47, 85));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for part in [Part::Train, Part::HeldOut] {
            assert!(additions(1, 0, part).is_err() && additions(1, part.lines() + 1, part).is_err());
        }
        assert!(question(9, 10).is_err() && question(10, 100).is_err());
        assert!(encode("1-2").unwrap_err().to_string().contains("character 2 is `-`"));
        assert_eq!((answer(&[1, 2]), answer(&[1, 2, 10]), answer(&[2, 3, 1])), (None, None, Some(132)));
        assert_eq!(decode(&[1, IGNORE, 11]), "1?=");
    }
}
