//! Readers of files: any bytes give a value or an error, and a value that was read is written and read again as itself.

use super::choices::{Choices, bits, said};
use dittograd::data::{self, Dataset, Tokenizer};
use dittograd::io::safetensors::{SafeTensors, Writer};
use dittograd::io::{self, Checkpoint, RandomState, StateDict};
use dittograd::numerics::NUMERICS_VERSION;
use dittograd::optim::{OptimizerState, ParamState};
use dittograd::prelude::*;
use dittograd::train::{Record, SigningKey};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn same(a: &AnyTensor, b: &AnyTensor) {
    assert_eq!(a.shape(), b.shape());
    match (a, b) {
        (AnyTensor::Num(a), AnyTensor::Num(b)) => {
            assert!(a.data().iter().map(bits).eq(b.data().iter().map(bits)), "other numbers");
        }
        (AnyTensor::Idx(a), AnyTensor::Idx(b)) => assert_eq!(a, b),
        _ => panic!("numbers became indices, or indices numbers"),
    }
}

pub fn npy(data: &[u8]) {
    match io::parse_npy("file", data) {
        Ok(array) => {
            same(&array, &io::parse_npy("file", &io::npy_bytes(&array)).expect("what was written is read"))
        }
        Err(e) => said(&e),
    }
    match io::parse_npy_numbers("file", data) {
        Ok(numbers) => assert_eq!(numbers.data().len(), numbers.shape().numel()),
        Err(e) => said(&e),
    }
}

/// The lines of a record or a receipt, each without its hash, with the hashes that they should have.
fn sealed(data: &[u8]) -> Vec<u8> {
    let (mut chain, mut out) = ([0; 32], Vec::new());
    for line in data.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let hash = *blake3::Hasher::new().update(&chain).update(line).finalize().as_bytes();
        let is_chained = !["{\"machine\"", "{\"file\"", "{\"receipt\""]
            .iter()
            .any(|kind| line.starts_with(kind.as_bytes()));
        if is_chained {
            chain = hash;
        }
        let name = if is_chained { "chain" } else { "check" };
        out.extend_from_slice(line);
        out.extend_from_slice(format!(",\"{name}\":\"{}\"}}\n", blake3::Hash::from_bytes(hash)).as_bytes());
    }
    out
}

pub fn record(data: &[u8]) {
    let path = Path::new("file");
    for bytes in [data.to_vec(), sealed(data)] {
        let record = match Record::parse(path, &bytes) {
            Ok(record) => record,
            Err(e) => {
                said(&e);
                continue;
            }
        };
        assert!(record.first() <= record.last() && record.states().all(|step| record.state(step).is_some()));
        assert!(record.segments().iter().all(|s| s.from <= s.to && s.to <= record.last()));
        if record.is_receipt() {
            continue;
        }
        let key = SigningKey::from_hex(&"01".repeat(32)).expect("a key");
        for key in [None, Some(&key)] {
            // A head may be written in other ways than ours.
            let Ok(text) = record.receipt(key) else { continue };
            let receipt = Record::parse(path, text.as_bytes()).expect("what was written is read");
            assert!(receipt.is_receipt() && receipt.signed_by().is_some() == key.is_some());
            assert_eq!(
                (receipt.root(), receipt.first(), receipt.last()),
                (record.root(), record.first(), record.last())
            );
            assert!(receipt.states().eq(record.states()), "other states");
        }
    }
}

pub fn npz(data: &[u8]) {
    let arrays = match io::parse_npz("file", data) {
        Ok(arrays) => arrays,
        Err(e) => return said(&e),
    };
    let list: Vec<(&str, &AnyTensor)> = arrays.iter().map(|(name, array)| (name.as_str(), array)).collect();
    // Names that archives can have and ours cannot.
    let Ok(bytes) = io::npz_bytes(&list) else { return };
    let again = io::parse_npz("file", &bytes).expect("what was written is read");
    assert_eq!(arrays.len(), again.len());
    for (a, b) in arrays.iter().zip(&again) {
        assert_eq!(a.0, b.0);
        same(&a.1, &b.1);
    }
}

fn rows_agree(data: &Dataset) {
    assert!(data.rows() > 0 && data.y().shape().dims()[0] == data.rows());
    if let (Some(classes), Ok(y)) = (data.classes(), data.y().idx()) {
        assert!(y.data().iter().all(|c| (*c as usize) < classes), "a class beyond the last");
    }
}

pub fn csv(data: &[u8]) {
    let (first, text) = data.split_first().unwrap_or((&0, &[]));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let read = match first % 4 {
        0 => data::parse_csv("file", text),
        n => data::parse_csv_regression("file", text, usize::from(n)),
    };
    let data = match read {
        Ok(data) => data,
        Err(e) => return said(&e),
    };
    rows_agree(&data);
    if first % 4 == 0
        && let Ok(text) = data::print_csv(&data)
    {
        let again = data::parse_csv("file", &text).expect("what was written is read");
        same(data.x(), again.x());
        same(data.y(), again.y());
    }
}

/// A file of this process for readers that take paths; in memory where there is such a place.
fn file(name: &str) -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let base = if shared.is_dir() { shared } else { std::env::temp_dir() };
    base.join(format!("dittograd-{}-{name}", std::process::id()))
}

/// Two files, the length of the first in front.
pub fn idx(data: &[u8]) {
    let (split, rest) = match data {
        [high, low, rest @ ..] => (usize::from(*high) << 8 | usize::from(*low), rest),
        _ => (0, data),
    };
    let (images, labels) = rest.split_at(split.min(rest.len()));
    let [first, second] = ["images", "labels"].map(file);
    std::fs::write(&first, images).expect("a file is written");
    std::fs::write(&second, labels).expect("a file is written");
    match data::idx(&first, &second) {
        Ok(data) => {
            rows_agree(&data);
            assert!(data.x().num().is_ok_and(|x| x.data().iter().all(|v| (0.0..=1.0).contains(v))));
        }
        Err(e) => said(&e),
    }
    match data::cifar10(&[&first]) {
        Ok(data) => rows_agree(&data),
        Err(e) => said(&e),
    }
    [first, second].iter().for_each(|path| std::fs::remove_file(path).expect("a file is removed"));
}

pub fn safetensors(data: &[u8]) {
    let file = match SafeTensors::parse("file", data.to_vec()) {
        Ok(file) => file,
        Err(e) => return said(&e),
    };
    // Every byte belongs to one tensor.
    let header = data.first_chunk().map_or(0, |n| u64::from_le_bytes(*n) as usize);
    let tensors: usize = file.iter().map(|(_, e)| e.shape().numel() * e.dtype().bytes()).sum();
    assert_eq!(8 + header + tensors, data.len(), "bytes of nothing, or of two tensors");
    let tensors: Vec<(String, AnyTensor)> = file
        .iter()
        .filter_map(|(name, _)| match file.tensor(name) {
            Ok(tensor) => Some((name.to_string(), tensor)),
            Err(e) => {
                said(&e);
                None
            }
        })
        .collect();
    let mut writer = Writer::new();
    for (key, text) in file.metadata() {
        if writer.metadata(key, text).is_err() {
            return;
        }
    }
    for (name, tensor) in &tensors {
        if writer.tensor(name, tensor).is_err() {
            return;
        }
    }
    let bytes = writer.to_bytes().expect("what was read fits a file");
    let again = SafeTensors::parse("file", bytes).expect("what was written is read");
    assert_eq!((again.metadata(), again.len()), (file.metadata(), tensors.len()));
    for (name, tensor) in &tensors {
        same(tensor, &again.tensor(name).expect("what was written is read"));
    }
    match StateDict::from_file(&file) {
        Ok(state) => drop(state.fingerprint()),
        Err(e) => said(&e),
    }
}

/// A model and what trains it.
fn model(device: &Device, seed: u64) -> (Params, Mlp) {
    let mut params = Params::new(device, seed);
    let net = Mlp::new(&mut params, &[2, 3, 2]).expect("a model");
    (params, net)
}

/// Restores a checkpoint: if that fails, nothing has changed; if not, the parameters are those of the checkpoint and training
/// goes on.
fn restore(checkpoint: &Checkpoint) {
    let device = Device::cpu_with(1, dittograd::device::cpu::simd::Simd::best()).expect("a CPU");
    {
        let (params, net) = model(&device, 3);
        let before = params.fingerprint().expect("parameters");
        let mut optimizer = Optimizer::adamw(0.01);
        match checkpoint.restore(&params, &mut optimizer) {
            Ok(()) => {
                assert_eq!(params.fingerprint().expect("parameters"), checkpoint.fingerprint());
                let s = Session::eager(&device);
                let x = Tensor::new(&[1, 2], vec![0.5f32, -1.0]).expect("a row");
                let loss = net.forward(s.input(&x).expect("a row")).and_then(|y| y.square()?.mean());
                match loss.and_then(|l| l.backward()).and_then(|g| optimizer.step(&params, g)) {
                    Ok(()) => {}
                    Err(e) => said(&e),
                }
            }
            Err(e) => {
                said(&e);
                assert_eq!(params.fingerprint().expect("parameters"), before, "changed by an error");
            }
        }
        for strict in [true, false] {
            if let Err(e) = params.load_state_dict(&checkpoint.params, strict) {
                said(&e);
            }
        }
    }
    assert_eq!(device.memory().live, 0, "a restored checkpoint leaks");
}

/// A checkpoint from choices: like a good one, with parts that are missing, of other shapes or other names.
fn made(c: &mut Choices<'_>) -> Checkpoint {
    let device = Device::cpu_with(1, dittograd::device::cpu::simd::Simd::best()).expect("a CPU");
    // Other numbers than those of the model that it is restored into.
    let (params, _) = model(&device, 4);
    let mut checkpoint = Checkpoint::new("mlp", &params).expect("a checkpoint");
    let names: Vec<String> = params.iter().map(|p| p.name().to_string()).collect();
    let name = |c: &mut Choices<'_>| match c.below(8) {
        n if n < names.len() => names[n].clone(),
        6 => String::new(),
        _ => "optimizer.x.exp_avg".to_string(),
    };
    let tensor = |c: &mut Choices<'_>, name: &str| {
        let dims = match params.get(name) {
            Some(p) if c.below(4) > 0 => p.shape().dims().to_vec(),
            _ => c.small_shape(3),
        };
        let fill = c.number() as f32;
        Tensor::full(Shape::new(&dims).expect("small"), fill)
    };
    for _ in 0..c.below(4) {
        let name = name(c);
        if c.below(4) == 0 {
            let index = Tensor::full(Shape::new(&c.small_shape(2)).expect("small"), 1u32);
            checkpoint.params.insert(&name, index);
        } else {
            let value = tensor(c, &name);
            checkpoint.params.insert(&name, value);
        }
    }
    for _ in 0..c.below(3) {
        let name = name(c);
        checkpoint.frozen.insert(name);
    }
    if c.below(4) > 0 {
        let mut state = OptimizerState {
            step: if c.flag() { c.word() } else { 2 },
            lr: if c.flag() { c.number() } else { 0.01 },
            group_lrs: (0..c.below(3)).map(|_| c.flag().then(|| c.number())).collect(),
            params: Default::default(),
        };
        let full = c.below(4) > 0;
        let list = if full { names.clone() } else { (0..c.below(6)).map(|_| name(c)).collect() };
        for name in list {
            let step = if c.below(8) == 7 { c.word() } else { 2 };
            let mut tensors = BTreeMap::new();
            for kind in
                ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"].iter().take(if full { 2 } else { c.below(4) })
            {
                tensors.insert(kind.to_string(), tensor(c, &name));
            }
            state.params.insert(name, ParamState { step, tensors });
        }
        checkpoint.optimizer = Some(state);
    }
    checkpoint.step = c.word();
    checkpoint.random = RandomState { seed: c.word(), calls: c.word() };
    checkpoint.numerics_version = if c.below(8) == 7 { c.word() as u32 } else { NUMERICS_VERSION };
    for _ in 0..c.below(3) {
        checkpoint.texts.insert(name(c), format!("{}", c.number()));
    }
    checkpoint
}

/// The bytes of a file after a zero; otherwise choices of a checkpoint, which has the right hash of itself.
pub fn checkpoint(data: &[u8]) {
    if let [0, file @ ..] = data {
        let read = SafeTensors::parse("file", file.to_vec()).and_then(|f| Checkpoint::from_file(&f));
        match read {
            Ok(checkpoint) => restore(&checkpoint),
            Err(e) => said(&e),
        }
        return;
    }
    let checkpoint = made(&mut Choices::new(data.get(1..).unwrap_or_default()));
    match checkpoint.to_bytes() {
        Ok(bytes) => {
            let file = SafeTensors::parse("file", bytes.clone()).expect("what was written is read");
            match Checkpoint::from_file(&file) {
                Ok(again) => {
                    assert_eq!(again.to_bytes().expect("written before"), bytes, "read as something else");
                    restore(&again);
                }
                Err(e) => said(&e),
            }
        }
        Err(e) => said(&e),
    }
    restore(&checkpoint);
}

/// Two texts, with a line `---` between them for GPT-2's two files.
pub fn tokenizer(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = match text.split_once("\n---\n") {
        Some((vocab, merges)) => Tokenizer::from_gpt2(vocab, merges),
        None => Tokenizer::from_json(text),
    };
    match read {
        Ok(tokenizer) => tokens(&tokenizer, &data[..data.len().min(400)]),
        Err(e) => said(&e),
    }
}

/// A text and how many tokens to learn from it.
pub fn tokenizer_train(data: &[u8]) {
    let (first, text) = data.split_first().unwrap_or((&0, &[]));
    let size = 250 + usize::from(*first);
    let tokenizer = match Tokenizer::train(text, size) {
        Ok(tokenizer) => tokenizer,
        Err(e) => return said(&e),
    };
    tokens(&tokenizer, text);
    // Letters are one word, in which pairs can be counted as the definition says.
    let word: Vec<u8> = text.iter().map(|b| b'a' + b % 4).collect();
    learnt(&Tokenizer::train(&word, size).expect("the size is fine"), &word, size);
}

/// Learns again, slowly: the pair that is there most often becomes a token, of equal ones the smallest.
fn learnt(tokenizer: &Tokenizer, word: &[u8], size: usize) {
    let mut list: Vec<Vec<u8>> = (0..256).filter_map(|id| tokenizer.token(id).map(<[u8]>::to_vec)).collect();
    let place = |list: &[Vec<u8>], token: &[u8]| list.iter().position(|t| t == token);
    let mut ids: Vec<usize> = word.iter().filter_map(|b| place(&list, &[*b])).collect();
    let mut in_one_way = true;
    while list.len() < size {
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        ids.windows(2).for_each(|pair| *counts.entry((pair[0], pair[1])).or_default() += 1);
        let best = counts.iter().max_by_key(|(pair, count)| (**count, std::cmp::Reverse(**pair)));
        let Some((&pair, _)) = best.filter(|(_, count)| **count > 1) else { break };
        let joined = [&list[pair.0][..], &list[pair.1]].concat();
        let id = place(&list, &joined).unwrap_or(list.len());
        if id == list.len() {
            list.push(joined);
        } else {
            in_one_way = false;
        }
        let mut next = Vec::new();
        let mut at = 0;
        while at < ids.len() {
            let here = at + 1 < ids.len() && (ids[at], ids[at + 1]) == pair;
            next.push(if here { id } else { ids[at] });
            at += 1 + usize::from(here);
        }
        ids = next;
    }
    let got: Vec<Vec<u8>> =
        (0..tokenizer.size() as u32).filter_map(|id| tokenizer.token(id).map(<[u8]>::to_vec)).collect();
    assert_eq!(got, list, "other tokens than those that are there most often");
    // Where bytes come together in one way only, a text is joined in the order in which the tokens were learnt.
    if in_one_way {
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        assert_eq!(tokenizer.encode(word), ids, "joined in another order");
    }
}

fn tokens(tokenizer: &Tokenizer, text: &[u8]) {
    let ids = tokenizer.encode(text);
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.size()));
    assert_eq!(tokenizer.decode(&ids).expect("its own tokens"), text, "a text that comes back as another");
    let json = tokenizer.to_json();
    let again = Tokenizer::from_json(&json).expect("what was written is read");
    assert_eq!(again.to_json(), json);
    assert_eq!(again.encode(text), ids);
    assert!(tokenizer.decode(&[tokenizer.size() as u32]).is_err());
}
