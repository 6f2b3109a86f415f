//! Tokenizers against definitions written out, against Hugging Face's `tokenizers` (`tests/golden/tokenizer.py`), and with
//! files that are not what they should be.

use dittograd::data::Tokenizer;
use dittograd::data::tokenizer::{MAX_TOKENS, words};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The order of the first tokens: visible bytes, then the others.
fn first_tokens() -> Vec<Vec<u8>> {
    let visible = |b: &u8| matches!(*b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (mut all, hidden): (Vec<u8>, Vec<u8>) = (0..=255).partition(visible);
    all.extend(hidden);
    all.into_iter().map(|b| vec![b]).collect()
}

type Pair = (Vec<u8>, Vec<u8>);

/// Joins all of a pair in a word, from left to right.
fn join(word: &mut Vec<Vec<u8>>, pair: &Pair) {
    let mut i = 0;
    while i + 1 < word.len() {
        if word[i] == pair.0 && word[i + 1] == pair.1 {
            let right = word.remove(i + 1);
            word[i].extend(right);
        }
        i += 1;
    }
}

/// What training means: count all pairs, join the most frequent one, and again. Tokens and merges.
fn learn(text: &[u8], size: usize) -> (Vec<Vec<u8>>, Vec<Pair>) {
    let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
    words(text).for_each(|w| *counts.entry(w).or_default() += 1);
    let mut all: Vec<(Vec<Vec<u8>>, usize)> =
        counts.into_iter().map(|(w, n)| (w.iter().map(|b| vec![*b]).collect(), n)).collect();
    let (mut tokens, mut merges) = (first_tokens(), Vec::new());
    while tokens.len() < size {
        let id = |t: &Vec<u8>| tokens.iter().position(|x| x == t).unwrap();
        let mut pairs: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for (word, n) in &all {
            word.windows(2).for_each(|p| *pairs.entry((id(&p[0]), id(&p[1]))).or_default() += n);
        }
        // The first of the largest ones.
        let best = pairs.iter().rev().max_by_key(|(_, n)| **n);
        let Some((&(a, b), _)) = best.filter(|(_, n)| **n >= 2) else { break };
        let pair = (tokens[a].clone(), tokens[b].clone());
        let made = [&pair.0[..], &pair.1].concat();
        if !tokens.contains(&made) {
            tokens.push(made);
        }
        all.iter_mut().for_each(|(word, _)| join(word, &pair));
        if !merges.contains(&pair) {
            merges.push(pair);
        }
    }
    (tokens, merges)
}

/// What encoding means: the first merge of the list that applies, at its leftmost place, and again.
fn encoded(text: &[u8], tokens: &[Vec<u8>], merges: &[Pair]) -> Vec<u32> {
    let mut out = Vec::new();
    for word in words(text) {
        let mut parts: Vec<Vec<u8>> = word.iter().map(|b| vec![*b]).collect();
        loop {
            let rank = |p: &[Vec<u8>]| merges.iter().position(|m| m.0 == p[0] && m.1 == p[1]);
            let best = parts.windows(2).enumerate().filter_map(|(i, p)| Some((rank(p)?, i))).min();
            let Some((_, i)) = best else { break };
            let right = parts.remove(i + 1);
            parts[i].extend(right);
        }
        out.extend(parts.iter().map(|p| tokens.iter().position(|t| t == p).unwrap() as u32));
    }
    out
}

/// Tokens and merges of a tokenizer, from its own file.
fn parts(tokenizer: &Tokenizer) -> (Vec<Vec<u8>>, Vec<Pair>) {
    let tokens: Vec<Vec<u8>> =
        (0..tokenizer.size() as u32).map(|i| tokenizer.token(i).unwrap().to_vec()).collect();
    let file: Value = serde_json::from_str(&tokenizer.to_json()).unwrap();
    let bytes = |name: &str| tokens[file["model"]["vocab"][name].as_u64().unwrap() as usize].clone();
    let merge = |v: &Value| {
        let (a, b) = v.as_str().unwrap().split_once(' ').unwrap();
        (bytes(a), bytes(b))
    };
    let merges = file["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    (tokens, merges)
}

/// Texts with few characters, so that pairs come again, in runs too.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        8 => proptest::sample::select(vec!["a", "b", "ab", "ba", "aa", " ", "  ", "\n", "'s", "é", "1", "!", "👍"])
            .prop_map(|s| s.as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|b| vec![b]),
    ];
    proptest::collection::vec(part, 0..120).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn training_is_what_it_means(text in text(), more in 1usize..24) {
        let tokenizer = Tokenizer::train(&text, 256 + more).unwrap();
        let (tokens, merges) = parts(&tokenizer);
        prop_assert_eq!((tokens, merges), learn(&text, 256 + more));
    }

    #[test]
    fn encoding_is_what_it_means(learnt in text(), text in text(), long in proptest::collection::vec(0u8..3, 60..150)) {
        let tokenizer = Tokenizer::train(&learnt, 290).unwrap();
        let (tokens, merges) = parts(&tokenizer);
        // A long word is encoded in another way than short ones.
        let long: Vec<u8> = long.into_iter().map(|i| b"ab\xc3"[usize::from(i)]).collect();
        let long: Vec<u8> = if learnt.len() % 2 == 0 { long } else { long.into_iter().filter(u8::is_ascii).collect() };
        for text in [text, long, learnt] {
            let ids = tokenizer.encode(&text);
            prop_assert_eq!(&ids, &encoded(&text, &tokens, &merges));
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
        prop_assert_eq!(Tokenizer::from_json(&tokenizer.to_json()).unwrap(), tokenizer);
    }

    #[test]
    fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(words(&bytes).collect::<Vec<_>>().concat(), bytes.clone());
        for tokenizer in [Tokenizer::bytes(), Tokenizer::train(&bytes.repeat(2), 300).unwrap()] {
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&bytes)).unwrap(), bytes.clone());
        }
    }
}

/// Merges in an order that no training gives: one whose result is part of an earlier one, and two that make the same token.
#[test]
fn merges_of_any_order() {
    let mut vocab: BTreeMap<String, usize> = base();
    for token in ["ab", "abc", "bc", "aa", "aaaa", "cab"] {
        vocab.insert(token.into(), vocab.len());
    }
    let vocab = serde_json::to_string(&vocab).unwrap();
    let lists = [
        "ab c\na b\nb c\na bc\n",
        "aa aa\na a\n",
        "c ab\nb c\na b\n",
        "a a\naa aa\na b\n",
        "a bc\nab c\nb c\na b",
    ];
    for merges in lists {
        let tokenizer = Tokenizer::from_gpt2(&vocab, &format!("#version: 0.2\n{merges}")).unwrap();
        let (tokens, pairs) = parts(&tokenizer);
        for number in 0..3usize.pow(7) {
            let text: Vec<u8> = (0..7).map(|i| b"abc"[number / 3usize.pow(i) % 3]).collect();
            let want = encoded(&text, &tokens, &pairs);
            assert_eq!(tokenizer.encode(&text), want, "{merges:?} {text:?}");
            // The other way, in the middle of a long word that it cannot join.
            let long = [&[b'x'; 40][..], &text].concat();
            assert_eq!(tokenizer.encode(&long)[40..], want, "{merges:?} {text:?}");
        }
    }
}

/// The 256 bytes as a vocabulary.
fn base() -> BTreeMap<String, usize> {
    let file: Value = serde_json::from_str(&Tokenizer::bytes().to_json()).unwrap();
    let vocab = file["model"]["vocab"].as_object().unwrap().clone();
    vocab.into_iter().map(|(name, id)| (name, id.as_u64().unwrap() as usize)).collect()
}

fn golden() -> Vec<Value> {
    let text = include_str!("../golden/tokenizer.jsonl");
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn tokens_are_those_of_hugging_face() {
    let cases = golden();
    let named = |name: &str| cases.iter().find(|c| c["name"] == name).unwrap();
    let load = |name: &str| Tokenizer::from_json(named(name)["json"].as_str().unwrap()).unwrap();
    let (plain, added) = (load("plain"), load("added"));
    assert_eq!((plain.size(), added.size()), (467, 471));
    let corpus = named("corpus")["text"].as_str().unwrap();
    assert_eq!(Tokenizer::train(corpus.as_bytes(), 1000).unwrap(), plain);
    assert_eq!(Tokenizer::train(corpus.as_bytes(), 300).unwrap(), load("few"));
    let mut count = 0;
    for case in cases.iter().filter(|c| c.get("ids").is_some()) {
        let tokenizer = if case["with"] == "plain" { &plain } else { &added };
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text.as_bytes()), want, "{} {text:?}", case["with"]);
        assert_eq!(tokenizer.decode(&want).unwrap(), text.as_bytes());
        count += 1;
    }
    assert!(count > 300);
    assert_eq!(Tokenizer::from_json(&added.to_json()).unwrap(), added);
}

#[test]
fn files_of_gpt_2_are_read() {
    let here = tempfile::tempdir().unwrap();
    let cases = golden();
    let json = cases[1]["json"].as_str().unwrap();
    let file: Value = serde_json::from_str(json).unwrap();
    let mut vocab = file["model"]["vocab"].clone();
    vocab["<|endoftext|>"] = json!(467);
    let merges = file["model"]["merges"].as_array().unwrap();
    let merges: String =
        merges.iter().map(|m| format!("{} {}\n", m[0].as_str().unwrap(), m[1].as_str().unwrap())).collect();
    std::fs::write(here.path().join("vocab.json"), vocab.to_string()).unwrap();
    assert!(
        Tokenizer::read(here.path())
            .unwrap_err()
            .to_string()
            .contains("not both of vocab.json and merges.txt")
    );
    std::fs::write(here.path().join("merges.txt"), format!("#version: 0.2\n{merges}\n")).unwrap();
    let (read, plain) = (Tokenizer::read(here.path()).unwrap(), Tokenizer::from_json(json).unwrap());
    assert_eq!((read.size(), read.merges()), (468, plain.merges()));
    for case in cases.iter().filter(|c| c["with"] == "plain") {
        let text = case["text"].as_str().unwrap();
        if !text.contains("<|endoftext|>") {
            assert_eq!(read.encode(text.as_bytes()), plain.encode(text.as_bytes()), "{text:?}");
        }
    }
    assert_eq!(read.encode(b"<|endoftext|><|endoftext|>"), [467, 467]);
    assert_eq!(read.encode(b"the<|endoftext|>")[..], [plain.encode(b"the"), vec![467]].concat());
    // A file in the folder goes before the two.
    std::fs::write(here.path().join("tokenizer.json"), json).unwrap();
    assert_eq!(Tokenizer::read(here.path()).unwrap(), plain);
    assert_eq!(Tokenizer::read(here.path().join("tokenizer.json")).unwrap(), plain);
    let other = Tokenizer::read(here.path().join("vocab.json")).unwrap_err().to_string();
    assert!(other.contains("vocab.json: has no `model`") && other.contains("name their folder"), "{other}");
    std::fs::write(here.path().join("tokenizer.json"), b"{\n\xff").unwrap();
    let broken = Tokenizer::read(here.path()).unwrap_err().to_string();
    assert!(broken.ends_with("tokenizer.json: line 2: is not UTF-8 text"), "{broken}");
}

#[test]
fn files_that_are_something_else_are_refused() {
    let good: Value = serde_json::from_str(&Tokenizer::train(b"ab ab ab", 258).unwrap().to_json()).unwrap();
    assert!(Tokenizer::from_json(&good.to_string()).is_ok());
    let refused = |change: &dyn Fn(&mut Value), part: &str| {
        let mut file = good.clone();
        change(&mut file);
        let error = Tokenizer::from_json(&file.to_string()).unwrap_err().to_string();
        assert!(error.contains(part) && error.lines().count() == 1 && error.len() < 300, "{part}: {error}");
    };
    let model = |key: &'static str, value: Value| move |f: &mut Value| f["model"][key] = value.clone();
    let set = |key: &'static str, value: Value| move |f: &mut Value| f[key] = value.clone();
    refused(&set("model", json!(3)), "has no `model`");
    refused(&model("type", json!("WordPiece")), "its model is \"WordPiece\"");
    refused(&model("dropout", json!(0.1)), "dropout 0.1, which is not read");
    refused(&model("end_of_word_suffix", json!("</w>")), "end_of_word_suffix");
    refused(&model("byte_fallback", json!(true)), "byte_fallback");
    refused(&model("ignore_merges", json!(true)), "ignore_merges");
    refused(&model("vocab", json!([])), "has no vocab");
    refused(&model("merges", json!({})), "has no merges");
    refused(&model("merges", json!([3])), "merge 1: is not two tokens");
    refused(&model("merges", json!([["a", "b"], ["a"]])), "merge 2: is not two tokens");
    refused(&model("merges", json!(["ab"])), "merge 1: `ab` is not two tokens with a blank");
    refused(&model("merges", json!(["a  b"])), "is not two tokens with a blank");
    refused(&model("merges", json!(["a zz"])), "merge 1 of `a` and `zz`: there is no token `zz`");
    refused(&model("merges", json!(["a z"])), "there is no token `az`");
    refused(&model("merges", json!([["", "a"]])), "there is no token ``");
    refused(&model("merges", json!(["a b", "a b"])), "merge 2 of `a` and `b`: is there twice");
    refused(&set("normalizer", json!({"type": "NFC"})), "has normalizer {\"type\":\"NFC\"}");
    refused(&set("truncation", json!({"max_length": 3})), "has truncation");
    refused(&set("padding", json!({"length": 3})), "has padding");
    refused(&set("pre_tokenizer", json!(null)), "its pre_tokenizer is of no type");
    refused(&set("pre_tokenizer", json!({"type": "Sequence"})), "its pre_tokenizer is Sequence; only");
    refused(&|f| f["pre_tokenizer"]["use_regex"] = json!(false), "with use_regex");
    refused(&|f| f["pre_tokenizer"]["add_prefix_space"] = json!(true), "add_prefix_space");
    refused(&set("pre_tokenizer", json!({"type": "ByteLevel"})), "add_prefix_space");
    refused(&set("post_processor", json!({"type": "TemplateProcessing"})), "its post_processor is Template");
    refused(&set("decoder", json!({"type": "WordPiece"})), "its decoder is WordPiece");
    let token = |id: u64, content: &str| json!({"id": id, "content": content, "normalized": false});
    refused(&set("added_tokens", json!(3)), "added_tokens are no list");
    refused(&set("added_tokens", json!([{"id": 3}])), "no content or no id");
    refused(&set("added_tokens", json!([token(257, "")])), "an added token is empty");
    refused(&set("added_tokens", json!([token(3, "a")])), "added token `a` has the numbers");
    refused(
        &set("added_tokens", json!([token(257, "x1"), token(257, "x2")])),
        "has the number 257 of another",
    );
    refused(
        &set("added_tokens", json!([token(300, "<x>")])),
        "token `<x>` has the number 300; there are 259",
    );
    refused(&set("added_tokens", json!([token(5, "<x>")])), "token");
    refused(&set("added_tokens", json!([{"id": 257, "content": "<x>", "lstrip": true}])), "`<x>` has lstrip");
    let many: Vec<Value> = (0..5000).map(|i| token(257 + i, &format!("<{i}>"))).collect();
    refused(&set("added_tokens", json!(many)), "has 5000 added tokens");
    refused(&|f| f["model"]["vocab"]["ab"] = json!(-1), "token `ab` has -1 for its number");
    refused(&|f| f["model"]["vocab"]["ab"] = json!("x"), "token `ab` has \"x\"");
    refused(&|f| f["model"]["vocab"]["ab"] = json!(3), "two tokens have the number 3");
    refused(&|f| f["model"]["vocab"]["ab"] = json!(u64::MAX), "has the number 18446744073709551615");
    let without = |f: &mut Value| {
        let vocab = f["model"]["vocab"].as_object_mut().unwrap();
        let id = vocab.remove("a").unwrap();
        vocab.insert("q".repeat(9), id);
        f["model"]["merges"] = json!([]);
    };
    refused(&without, "has no token `a` for the byte 97; all 256 bytes must be tokens");
    for text in ["", "[", "3", "null", "[]", "{\"model\":{}}", "\"x\""] {
        assert!(Tokenizer::from_json(text).is_err(), "{text}");
    }
    assert!(Tokenizer::from_json(&"[".repeat(100_000)).is_err());
    let huge: BTreeMap<String, usize> = (0..=MAX_TOKENS).map(|i| (format!("{i}x"), i)).collect();
    let error = Tokenizer::from_gpt2(&serde_json::to_string(&huge).unwrap(), "").unwrap_err().to_string();
    assert!(error.contains("has 1048577 tokens, more than 1048576"), "{error}");
    let base = serde_json::to_string(&base()).unwrap();
    for (merges, part) in
        [("a b", "there is no token `ab`"), ("\n\na", "line 3: `a` is not two"), ("a b c", "line 1")]
    {
        let error = Tokenizer::from_gpt2(&base, merges).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for size in [0, 255, 256, MAX_TOKENS + 1, usize::MAX] {
        let error = Tokenizer::train(b"abc", size).unwrap_err().to_string();
        assert!(error.contains("use 257 to 1048576"), "{error}");
    }
    assert!(
        Tokenizer::bytes().decode(&[0, 256]).unwrap_err().to_string().contains("token 256 at position 1")
    );
}

/// Seconds would show that something is quadratic; in release it is a fraction of one.
#[test]
fn long_texts_and_long_words_take_no_long_time() {
    let start = std::time::Instant::now();
    let line = "one answer, 12 answers; every answer's the same and shouldn't change from run to run. ";
    let text: String = (0..4000).map(|i| format!("{line}{i} {}\n", i * 7919 % 10_007)).collect();
    let tokenizer = Tokenizer::train(text.as_bytes(), 2000).unwrap();
    assert!(tokenizer.size() > 1000);
    let word: Vec<u8> = text.bytes().filter(u8::is_ascii_alphabetic).collect();
    let same = vec![b'a'; 200_000];
    let runs = Tokenizer::train(&same, 300).unwrap();
    for (tokenizer, text) in
        [(&tokenizer, text.as_bytes()), (&tokenizer, &word), (&runs, &same), (&tokenizer, &[b' '; 200_000])]
    {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text)).unwrap(), text);
    }
    assert!(Tokenizer::train(&word, 600).is_ok());
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
