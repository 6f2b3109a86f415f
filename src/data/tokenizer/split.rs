//! Splits a text into words, which merges do not cross.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// The class of a character in the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Splits a text into words like GPT-2; together they are the text. Each word is the first of these that matches, as
/// long as possible:
///
/// 1. `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d`;
/// 2. letters, numbers, or other characters that are no white space, with at most one blank before them;
/// 3. white space, without its last character if something follows;
/// 4. white space.
///
/// Letters and numbers are Unicode's categories L and N. A byte that is not part of a UTF-8 character counts as an
/// other character.
pub fn words(text: &[u8]) -> Words<'_> {
    Words { text }
}

/// Iterator of [`words`].
#[derive(Clone, Debug)]
pub struct Words<'t> {
    text: &'t [u8],
}

impl<'t> Iterator for Words<'t> {
    type Item = &'t [u8];

    fn next(&mut self) -> Option<&'t [u8]> {
        let (class, len) = first(self.text)?;
        let end = match contraction(self.text) {
            Some(end) => end,
            None => match first(&self.text[len..]) {
                Some((after, more)) if self.text[0] == b' ' && after != Class::Space => {
                    self.run(after, len + more).0
                }
                _ => match self.run(class, len) {
                    (end, last) if class == Class::Space && end < self.text.len() && last > 0 => last,
                    (end, _) => end,
                },
            },
        };
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        Some(word)
    }
}

impl Words<'_> {
    /// Where characters of a class starting at `at` end, and where the last of them begins (0 if there is none after
    /// `at`).
    fn run(&self, class: Class, mut at: usize) -> (usize, usize) {
        let mut last = 0;
        while let Some((next, len)) = first(&self.text[at..])
            && next == class
        {
            (last, at) = (at, at + len);
        }
        (at, last)
    }
}

/// The length of a contraction at the start of a text.
fn contraction(text: &[u8]) -> Option<usize> {
    match text {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => Some(2),
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => Some(3),
        _ => None,
    }
}

/// The class of the first character, and its number of bytes.
fn first(text: &[u8]) -> Option<(Class, usize)> {
    let lead = *text.first()?;
    let len = match lead {
        b'a'..=b'z' | b'A'..=b'Z' => return Some((Class::Letter, 1)),
        b'0'..=b'9' => return Some((Class::Number, 1)),
        b' ' | b'\t'..=b'\r' => return Some((Class::Space, 1)),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Some((Class::Other, 1)),
    };
    let whole = text.get(..len).and_then(|b| std::str::from_utf8(b).ok()).and_then(|s| s.chars().next());
    let Some(c) = whole else { return Some((Class::Other, 1)) };
    let class = match c.general_category_group() {
        _ if c.is_whitespace() => Class::Space,
        GeneralCategoryGroup::Letter => Class::Letter,
        GeneralCategoryGroup::Number => Class::Number,
        _ => Class::Other,
    };
    Some((class, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_gpt_2() {
        for (text, want) in [
            ("", &[][..]),
            ("Hello world", &["Hello", " world"]),
            (
                "it's we'll I'd you've they're I'm can't",
                &[
                    "it", "'s", " we", "'ll", " I", "'d", " you", "'ve", " they", "'re", " I", "'m", " can",
                    "'t",
                ],
            ),
            ("IT'S 'so '' x'l", &["IT", "'", "S", " '", "so", " ''", " x", "'", "l"]),
            ("'re'r", &["'re", "'", "r"]),
            ("a  b   c", &["a", " ", " b", "  ", " c"]),
            ("a \n b\n\nc\n", &["a", " \n", " b", "\n", "\n", "c", "\n"]),
            ("  ", &["  "]),
            (" \t x", &[" \t", " x"]),
            ("\tx", &["\t", "x"]),
            ("x1y²Ⅷ!?", &["x", "1", "y", "²Ⅷ", "!?"]),
            ("größe naïve Ωmega 東京です", &["größe", " naïve", " Ωmega", " 東京です"]),
            ("नमस्ते", &["नमस", "्", "त", "े"]),
            ("e\u{301}a", &["e", "\u{301}", "a"]),
            ("👍🏽 ok\u{a0}\u{3000}x", &["👍🏽", " ok", "\u{a0}", "\u{3000}", "x"]),
            ("ⓐª", &["ⓐ", "ª"]),
        ] {
            let got: Vec<&str> = words(text.as_bytes()).map(|w| std::str::from_utf8(w).unwrap()).collect();
            assert_eq!(got, want, "{text:?}");
        }
        let bytes: Vec<&[u8]> = words(b"a\xff\xc3b \xe2\x82 \xf5!").collect();
        assert_eq!(bytes, [&b"a"[..], b"\xff\xc3", b"b", b" \xe2\x82", b" \xf5!"]);
    }
}
