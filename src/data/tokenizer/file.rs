//! Tokenizers in files: GPT-2's `vocab.json` with `merges.txt`, and Hugging Face's `tokenizer.json`.

use super::{CHARS, MAX_TOKENS, Merge, Tokenizer, char_of};
use crate::error::{Error, Result};
use crate::io::bytes::read_text;
use crate::io::{said, shown};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The name of the end of a text in GPT-2's files.
const END_OF_TEXT: &str = "<|endoftext|>";
/// The most added tokens: tokens that are matched literally in a text.
const MAX_ADDED: usize = 4096;

/// Why a file is refused.
type Wrong<T> = std::result::Result<T, String>;

/// A token that is matched literally in a text.
struct Added {
    content: String,
    id: u64,
    /// As in files: a normalized token is matched after those that are not.
    normalized: bool,
}

impl Tokenizer {
    /// Reads a tokenizer from a folder with `tokenizer.json`, or with `vocab.json` and `merges.txt`, or from a file
    /// like `tokenizer.json`: [`Tokenizer::from_json`], [`Tokenizer::from_gpt2`].
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let named = |file: &Path, why: String| Error::file("tokenizer", file, why);
        let json = |file: &Path| of_json(&read_text("tokenizer", file)?).map_err(|why| named(file, why));
        if !path.is_dir() {
            return json(path);
        }
        let (whole, vocab, merges) =
            (path.join("tokenizer.json"), path.join("vocab.json"), path.join("merges.txt"));
        if whole.is_file() {
            return json(&whole);
        }
        if !vocab.is_file() || !merges.is_file() {
            let why = "has no tokenizer.json, and not both of vocab.json and merges.txt";
            return Err(named(path, why.into()));
        }
        let [vocab_text, merges_text] = [read_text("tokenizer", &vocab)?, read_text("tokenizer", &merges)?];
        let tokens = vocab_of(&vocab_text).map_err(|why| named(&vocab, why))?;
        let pairs = merges_of(&merges_text).map_err(|why| named(&merges, why))?;
        build(tokens, pairs, None).map_err(|why| named(path, why))
    }

    /// A tokenizer in GPT-2's format: `vocab` is a JSON object from tokens to their numbers, `merges` has one merge per
    /// line, two tokens separated by a blank. A token `<|endoftext|>` is matched in texts. Errors unless all 256 bytes
    /// are tokens, every number from 0 to below the number of tokens occurs once, and every merge joins two tokens to a
    /// token.
    #[track_caller]
    pub fn from_gpt2(vocab: &str, merges: &str) -> Result<Tokenizer> {
        let wrong = |why| Error::argument("tokenizer", "files", why);
        build(vocab_of(vocab).map_err(wrong)?, merges_of(merges).map_err(wrong)?, None).map_err(wrong)
    }

    /// A tokenizer from Hugging Face's `tokenizer.json`. It must be a byte-level byte-pair encoding like GPT-2's. A
    /// file that asks for anything else (a normalizer, another way to split words, a leading blank, dropout, tokens
    /// added around a text) is an error that says what.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        of_json(text).map_err(|why| Error::argument("tokenizer", "json", why))
    }

    /// In the format of Hugging Face's `tokenizer.json`. Equal tokenizers give equal text.
    pub fn to_json(&self) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        let mut added: Vec<(u32, bool)> = Vec::new();
        for (list, normalized) in self.added.iter().zip([false, true]) {
            added.extend(list.iter().map(|(_, id)| (*id, normalized)));
        }
        added.sort_unstable();
        let added = added.iter().map(|(id, normalized)| {
            let content = quoted(&self.names[*id as usize]);
            format!(
                "{{\"id\":{id},\"content\":{content},\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\
                 \"normalized\":{normalized},\"special\":{}}}",
                !normalized
            )
        });
        let vocab = self.names.iter().enumerate().map(|(id, name)| format!("{}:{id}", quoted(name)));
        let mut merges: Vec<(&(u32, u32), &Merge)> = self.merges.iter().collect();
        merges.sort_unstable_by_key(|(_, merge)| **merge);
        let name = |id: u32| self.names[id as usize].as_str();
        let merges = merges.iter().map(|((a, b), _)| quoted(&format!("{} {}", name(*a), name(*b))));
        fn list(parts: impl Iterator<Item = String>) -> String {
            parts.collect::<Vec<_>>().join(",")
        }
        let level =
            "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}";
        format!(
            "{{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{}],\"normalizer\":null,\
             \"pre_tokenizer\":{level},\"post_processor\":null,\"decoder\":{level},\"model\":{{\"type\":\"BPE\",\
             \"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\
             \"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{{{}}},\"merges\":[{}]}}}}",
            list(added),
            list(vocab),
            list(merges)
        )
    }
}

fn parse(text: &str) -> Wrong<Value> {
    serde_json::from_str(text).map_err(|e| format!("is no JSON: {}", said(e)))
}

fn vocab_of(text: &str) -> Wrong<Vec<(String, u64)>> {
    let value = parse(text)?;
    let map = value.as_object().ok_or("is no JSON object from tokens to their numbers")?;
    tokens_of(map)
}

fn tokens_of(map: &Map<String, Value>) -> Wrong<Vec<(String, u64)>> {
    let token = |(name, id): (&String, &Value)| match id.as_u64() {
        Some(id) => Ok((name.clone(), id)),
        None => {
            let found = shown(&id.to_string());
            Err(format!("token `{}` has {found} for its number", shown(name)))
        }
    };
    map.iter().map(token).collect()
}

fn merges_of(text: &str) -> Wrong<Vec<(String, String)>> {
    let lines = text.lines().enumerate();
    // Only the first line can be a comment: `#` is a token too.
    let lines = lines.filter(|(i, line)| !(line.is_empty() || *i == 0 && line.starts_with("#version")));
    lines.map(|(i, line)| two(line).map_err(|why| format!("line {}: {why}", i + 1))).collect()
}

/// The two tokens of a merge.
fn two(text: &str) -> Wrong<(String, String)> {
    match text.split_once(' ') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => Ok((a.into(), b.into())),
        _ => Err(format!("`{}` is not two tokens with a blank between them", shown(text))),
    }
}

fn of_json(text: &str) -> Wrong<Tokenizer> {
    let value = parse(text)?;
    let Some(model) = value.get("model").and_then(Value::as_object) else {
        return Err(
            "has no `model`, as a tokenizer.json has; for vocab.json and merges.txt name their folder".into(),
        );
    };
    let kind = |part: &Value| part["type"].as_str().unwrap_or("of no type").to_string();
    let plain = |part: &Value, key: &str| match part.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(value) => value.as_bool() == Some(false) || value.as_f64() == Some(0.0),
    };
    if let Some(other) = model.get("type").filter(|t| **t != "BPE") {
        let other = shown(&other.to_string());
        return Err(format!("its model is {other}; only byte-level \"BPE\" is read"));
    }
    let bpe = &value["model"];
    for key in
        ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"]
    {
        if !plain(bpe, key) {
            return Err(format!("its model has {key} {}, which is not read", shown(&bpe[key].to_string())));
        }
    }
    for key in ["normalizer", "truncation", "padding"] {
        if !plain(&value, key) {
            return Err(format!("has {key} {}, which is not read", shown(&value[key].to_string())));
        }
    }
    let words = &value["pre_tokenizer"];
    let use_regex = words.get("use_regex").is_none_or(|v| v.as_bool() == Some(true));
    if words["type"] != "ByteLevel" || !use_regex {
        let (found, how) =
            (shown(&kind(words)), "only \"ByteLevel\" with use_regex, which is GPT-2's, is read");
        return Err(format!("its pre_tokenizer is {found}; {how}"));
    }
    // The default is true.
    if words["add_prefix_space"].as_bool() != Some(false) {
        return Err(
            "its pre_tokenizer has add_prefix_space, so that a text would not come back as it was".into()
        );
    }
    for key in ["post_processor", "decoder"] {
        let part = &value[key];
        if !part.is_null() && part["type"] != "ByteLevel" {
            return Err(format!("its {key} is {}; only \"ByteLevel\" is read", shown(&kind(part))));
        }
    }
    let vocab = bpe["vocab"].as_object().ok_or("its model has no vocab")?;
    let merges = bpe["merges"].as_array().ok_or("its model has no merges")?;
    let merge = |(i, merge): (usize, &Value)| {
        let pair = match merge {
            Value::String(text) => two(text),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(a), Value::String(b)] => Ok((a.clone(), b.clone())),
                _ => Err("is not two tokens".into()),
            },
            _ => Err("is not two tokens".into()),
        };
        pair.map_err(|why| format!("merge {}: {why}", i + 1))
    };
    let merges = merges.iter().enumerate().map(merge).collect::<Wrong<Vec<_>>>()?;
    let none = Vec::new();
    let added = match &value["added_tokens"] {
        Value::Null => &none,
        Value::Array(list) => list,
        _ => return Err("its added_tokens are no list".into()),
    };
    let token = |token: &Value| {
        let (Some(content), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) else {
            return Err("an added token has no content or no id".to_string());
        };
        for key in ["single_word", "lstrip", "rstrip"] {
            if !plain(token, key) {
                return Err(format!("added token `{}` has {key}, which is not read", shown(content)));
            }
        }
        Ok(Added { content: content.into(), id, normalized: token["normalized"].as_bool() == Some(true) })
    };
    let added = added.iter().map(token).collect::<Wrong<Vec<_>>>()?;
    build(tokens_of(vocab)?, merges, Some(added))
}

/// A tokenizer from these parts. Without a list of added tokens, the end of a text is one, if it exists.
fn build(
    vocab: Vec<(String, u64)>,
    merges: Vec<(String, String)>,
    added: Option<Vec<Added>>,
) -> Wrong<Tokenizer> {
    let mut ids: HashMap<String, u64> = vocab.into_iter().collect();
    let added = added.unwrap_or_else(|| {
        let end = ids.get(END_OF_TEXT).map(|id| (END_OF_TEXT.to_string(), *id));
        end.map(|(content, id)| Added { content, id, normalized: false }).into_iter().collect()
    });
    if added.len() > MAX_ADDED {
        return Err(format!("has {} added tokens, more than {MAX_ADDED}", added.len()));
    }
    let mut lists = [Vec::new(), Vec::new()];
    let mut is_added: HashSet<u64> = HashSet::new();
    for token in added {
        let name = shown(&token.content);
        if token.content.is_empty() {
            return Err("an added token is empty".into());
        }
        if !is_added.insert(token.id) {
            return Err(format!("added token `{name}` has the number {} of another", token.id));
        }
        match ids.insert(token.content.clone(), token.id) {
            Some(other) if other != token.id => {
                return Err(format!("added token `{name}` has the numbers {other} and {}", token.id));
            }
            _ => lists[usize::from(token.normalized)].push((token.content.into_bytes(), token.id)),
        }
    }
    let count = ids.len();
    if count > MAX_TOKENS {
        return Err(format!("has {count} tokens, more than {MAX_TOKENS}"));
    }
    let mut names: Vec<Option<String>> = vec![None; count];
    for (name, id) in &ids {
        let place = usize::try_from(*id).ok().and_then(|id| names.get_mut(id));
        match place {
            Some(place @ None) => *place = Some(name.clone()),
            // Which of the two comes first is unknown, so neither is named.
            Some(Some(_)) => return Err(format!("two tokens have the number {id}")),
            None => {
                let why = format!("there are {count} tokens, whose numbers must be below that");
                return Err(format!("token `{}` has the number {id}; {why}", shown(name)));
            }
        }
    }
    // As many names as numbers, each with its own.
    let names: Vec<String> = names.into_iter().flatten().collect();
    let byte_of: HashMap<char, u8> = (0..=255).map(|b| (CHARS[usize::from(b)], b)).collect();
    // Names with other characters, such as added tokens, stand for themselves.
    let bytes_of = |name: &str| name.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>();
    let tokens = (0..).zip(&names).map(|(id, name)| match is_added.contains(&id) {
        true => name.as_bytes().to_vec(),
        false => bytes_of(name).unwrap_or_else(|| name.as_bytes().to_vec()),
    });
    let tokens: Vec<Vec<u8>> = tokens.collect();
    // Numbers are below 2^20 from here on.
    let id_of = |name: &str| ids.get(name).filter(|id| !is_added.contains(id)).map(|id| *id as u32);
    let byte = |b: u8| {
        let name = char_of(b).to_string();
        id_of(&name)
            .ok_or_else(|| format!("has no token `{name}` for the byte {b}; all 256 bytes must be tokens"))
    };
    let bytes = (0..=255).map(byte).collect::<Wrong<Vec<u32>>>()?;
    let mut joined = HashMap::new();
    for (rank, (a, b)) in (0u32..).zip(&merges) {
        let wrong = |why: String| format!("merge {} of `{}` and `{}`: {why}", rank + 1, shown(a), shown(b));
        let part = |name: &str| match id_of(name) {
            None => Err(wrong(format!("there is no token `{}`", shown(name)))),
            Some(_) if name.is_empty() || bytes_of(name).is_none() => {
                Err(wrong(format!("`{}` does not stand for bytes", shown(name))))
            }
            Some(id) => Ok(id),
        };
        let (left, right, id) = (part(a)?, part(b)?, part(&format!("{a}{b}"))?);
        if joined.insert((left, right), Merge { rank, id }).is_some() {
            return Err(wrong("is there twice".into()));
        }
    }
    let lists = lists.map(|mut list: Vec<(Vec<u8>, u64)>| {
        list.sort_unstable_by_key(|(_, id)| *id);
        list.into_iter().map(|(token, id)| (token, id as u32)).collect()
    });
    Ok(Tokenizer { tokens, names, bytes, merges: joined, added: lists })
}
