//! Text as bytes or tokens, for language models.

use super::{Dataset, Tokenizer};
use crate::error::{Error, Result};
use crate::io::bytes::{file_name, read};
use crate::reserve::copied;
use crate::tensor::Tensor;
use std::path::Path;

/// The bytes of a file in windows: [`text_windows`] of its content. The data set is named after the file.
#[track_caller]
pub fn text(path: impl AsRef<Path>, window: usize) -> Result<Dataset> {
    file(path.as_ref(), &Tokenizer::bytes(), window, "byte")
}

/// The tokens of a file in windows: [`token_windows`] of its content. The data set is named after the file.
#[track_caller]
pub fn text_with(path: impl AsRef<Path>, tokenizer: &Tokenizer, window: usize) -> Result<Dataset> {
    file(path.as_ref(), tokenizer, window, "token")
}

#[track_caller]
fn file(path: &Path, tokenizer: &Tokenizer, window: usize, what: &str) -> Result<Dataset> {
    let tokens = tokenizer.encode(&read("text", path)?);
    token_windows(&file_name(path), &tokens, tokenizer.size(), window).map_err(|e| match tokens.len() {
        n if window > 0 && n <= window => {
            let why = format!("has {n} {what}s, a window of {window} and the {what} after it needs more");
            Error::file("text", path, why)
        }
        _ => e,
    })
}

/// [`token_windows`] of bytes, with 256 classes.
#[track_caller]
pub fn text_windows(name: &str, bytes: &[u8], window: usize) -> Result<Dataset> {
    token_windows(name, &Tokenizer::bytes().encode(bytes), 256, window)
}

/// Adjacent windows of `window` tokens: inputs `(N, window)`, and as targets the token after each of them,
/// `(N, window)`. Tokens are below `classes`. Tokens at the end that do not fill a window are left out. Errors if there
/// is no full window, that is, unless there are more tokens than `window`.
#[track_caller]
pub fn token_windows(name: &str, tokens: &[u32], classes: usize, window: usize) -> Result<Dataset> {
    if window == 0 || tokens.len() <= window {
        let why = format!("got {window}, use 1 to {} for {} tokens", tokens.len().max(1) - 1, tokens.len());
        return Err(Error::argument("text", "window", why));
    }
    let rows = (tokens.len() - 1) / window;
    let from = |start: usize| Tensor::new(&[rows, window], copied(name, &tokens[start..][..rows * window])?);
    Dataset::new(name, from(0)?, from(1)?, Some(classes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_next_bytes() {
        let data = text_windows("t", b"hello world", 3).unwrap();
        let bytes = |t: &crate::tensor::AnyTensor| -> Vec<u8> {
            t.idx().unwrap().data().iter().map(|&b| b as u8).collect()
        };
        assert_eq!((bytes(data.x()), bytes(data.y())), (b"hello wor".to_vec(), b"ello worl".to_vec()));
        assert_eq!((data.x().shape().dims(), data.classes()), (&[3, 3][..], Some(256)));
        assert_eq!(text_windows("t", b"abcd", 3).unwrap().rows(), 1);
        for (text, window) in [(&b"abc"[..], 3), (b"abc", 0), (b"", 1), (b"abc", usize::MAX)] {
            assert!(text_windows("t", text, window).is_err());
        }
    }

    #[test]
    fn files_are_read() {
        let path = std::env::temp_dir().join(format!("dittograd-text-{}.txt", std::process::id()));
        std::fs::write(&path, b"\xff\x00abc").unwrap();
        assert_eq!(text(&path, 2).unwrap().x().idx().unwrap().data(), [255, 0, 97, 98]);
        assert!(text(&path, 5).unwrap_err().to_string().contains(".txt: has 5 bytes, a window of 5"));
        std::fs::remove_file(&path).unwrap();
        assert!(text(&path, 2).is_err());
    }
}
