use super::*;
use crate::shape::MAX_RANK;
use crate::tensor::Tensor;
use proptest::prelude::*;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn refused(bytes: &[u8]) -> String {
    let error = SafeTensors::parse("a.safetensors", bytes.to_vec()).expect_err("not a good file").to_string();
    let begin = "read: a.safetensors: is not a safetensors file: ";
    assert!(error.starts_with(begin) && error.lines().count() == 1 && error.len() < 400, "{error}");
    error[begin.len()..].to_string()
}

/// A header with one tensor.
fn one(dtype: &str, shape: &str, from: u64, to: u64) -> String {
    format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
}

#[test]
fn what_is_written_is_read_again() {
    let x = Tensor::new(&[2, 2], vec![1.0f32, -0.0, f32::NAN, f32::NEG_INFINITY]).unwrap();
    let (i, none) =
        (Tensor::new(&[3], vec![7u32, 0, u32::MAX]).unwrap(), Tensor::new(&[0, 3], vec![]).unwrap());
    let (scalar, odd) = (Tensor::scalar(0.1f32), "b\"\\\n\u{1f600}");
    let mut writer = Writer::new();
    writer.numbers(odd, &x).unwrap().indices("a", &i).unwrap().numbers("z", &none).unwrap();
    writer.numbers("", &scalar).unwrap().metadata("k", "v\0").unwrap();
    let bytes = writer.to_bytes().unwrap();
    // The other order gives the same file.
    let mut again = Writer::new();
    again.metadata("k", "v\0").unwrap().numbers("", &scalar).unwrap().numbers("z", &none).unwrap();
    again.indices("a", &i).unwrap().numbers(odd, &x).unwrap();
    assert_eq!(again.to_bytes().unwrap(), bytes);
    let file = SafeTensors::parse("x", bytes).unwrap();
    assert_eq!(file.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["", "a", odd, "z"]);
    assert_eq!(file.metadata().clone(), BTreeMap::from([("k".to_string(), "v\0".to_string())]));
    assert_eq!(file.tensor("a").unwrap(), i.clone().into());
    assert_eq!(file.tensor("z").unwrap(), none.clone().into());
    assert_eq!(file.tensor("").unwrap(), scalar.clone().into());
    let AnyTensor::Num(back) = file.tensor(odd).unwrap() else { panic!("numbers") };
    let bits = |t: &Tensor<f32>| t.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!((back.shape(), bits(&back)), (x.shape(), bits(&x)));
    assert_eq!(file.digest(""), again.digest());
    assert!(file.tensor("c").unwrap_err().to_string().contains("x: tensor `c`: is not among the 4"));
    assert!(again.numbers("a", &scalar).is_err() && again.numbers(METADATA, &scalar).is_err());
    assert!(again.metadata("k", "").is_err());
    let empty = Writer::new().to_bytes().unwrap();
    assert_eq!(SafeTensors::parse("x", empty).unwrap().len(), 0);
}

#[test]
fn types_are_converted() {
    let get = |dtype: &str, shape: &str, data: &[u8]| {
        let bytes = file(&one(dtype, shape, 0, data.len() as u64), data);
        SafeTensors::parse("x", bytes).unwrap().tensor("a")
    };
    let numbers = |values: &[f32]| AnyTensor::Num(Tensor::new(&[values.len()], values.to_vec()).unwrap());
    let indices = |values: &[u32]| AnyTensor::Idx(Tensor::new(&[values.len()], values.to_vec()).unwrap());
    assert_eq!(get("F16", "[2]", &[0x00, 0x3c, 0x01, 0x80]).unwrap(), numbers(&[1.0, -1.0 / 16_777_216.0]));
    assert_eq!(get("BF16", "[2]", &[0x80, 0x3f, 0x80, 0xff]).unwrap(), numbers(&[1.0, f32::NEG_INFINITY]));
    let wide: Vec<u8> = [0.1f64, f64::INFINITY].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(get("F64", "[2]", &wide).unwrap(), numbers(&[0.1, f32::INFINITY]));
    assert_eq!(get("BOOL", "[2]", &[1, 0]).unwrap(), indices(&[1, 0]));
    assert_eq!(get("U8", "[2]", &[255, 0]).unwrap(), indices(&[255, 0]));
    assert_eq!(get("I8", "[1]", &[127]).unwrap(), indices(&[127]));
    assert_eq!(get("U16", "[1]", &[1, 2]).unwrap(), indices(&[513]));
    assert_eq!(get("I16", "[1]", &[1, 2]).unwrap(), indices(&[513]));
    assert_eq!(get("I32", "[1]", &[1, 2, 0, 0]).unwrap(), indices(&[513]));
    assert_eq!(get("U64", "[1]", &[1, 2, 0, 0, 0, 0, 0, 0]).unwrap(), indices(&[513]));
    assert_eq!(get("I64", "[1]", &u64::from(u32::MAX).to_le_bytes()).unwrap(), indices(&[u32::MAX]));
    for (dtype, data, want) in [
        (
            "I64",
            &(-1i64).to_le_bytes()[..],
            "x: tensor `a`: element 0 is -1: whole numbers are read as indices, 0 to 4294967295",
        ),
        ("I64", &(1i64 << 32).to_le_bytes(), "element 0 is 4294967296"),
        ("U64", &u64::MAX.to_le_bytes(), "element 0 is 18446744073709551615"),
        ("I8", &[0x80], "element 0 is -128"),
        ("BOOL", &[2], "element 0 is the byte 2, a bool is 0 or 1"),
        ("F64", &1e39f64.to_le_bytes(), "element 0 is 1e39, beyond the range of float32"),
        ("C64", &[0; 8], "has elements of type C64"),
        ("F8_E4M3", &[0], "has elements of type F8_E4M3"),
    ] {
        let error = get(dtype, "[1]", data).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn hostile_files_are_refused() {
    let four = [0u8; 4];
    for (bytes, want) in [
        (vec![], "it is empty"),
        (vec![0xff; 7], "it has 7 bytes"),
        (b"PK\x03\x04\0\0\0\0\0\0".to_vec(), "one of torch.save"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9".to_vec(), "safetensors.torch.save_file(model.state_dict()"),
        (vec![0xff; 64], "a header of 18446744073709551615 bytes is announced, 56 bytes follow"),
        (file("", &[]), "does not begin with {"),
        (file(" {}", &[]), "does not begin with {"),
        (file("[]", &[]), "does not begin with {"),
        (file("{", &[]), "its header: EOF"),
        (file("{}x", &[]), "its header: trailing characters"),
        (file(&format!("{{\"a\":{}", "[".repeat(100_000)), &[]), "tensor `a`: invalid type: sequence"),
        (file(&format!("{{\"a\":{{\"b\":{}", "[".repeat(100_000)), &[]), "tensor `a`: EOF"),
        (file("{}", &[0]), "1 bytes after the last tensor belong to none"),
        (file(r#"{"a":1}"#, &[]), "tensor `a`: invalid type"),
        (file(r#"{"a":{"dtype":"F32","shape":[]}}"#, &four), "missing field `data_offsets`"),
        (file(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, &four), "invalid value"),
        (
            file(r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#, &four),
            "tensor `a`: invalid type",
        ),
        (file(&one("Q9", "[1]", 0, 4), &four), "tensor `a`: `Q9` is not a known type"),
        (
            file(&one("F32", "[2]", 0, 4), &four),
            "tensor `a`: F32 of shape [2] takes 8 bytes, the header gives it 4",
        ),
        (
            file(&one("F32", "[1]", 0, 4), &[]),
            "ends at byte 4 of the data, of which there are 0: is the file cut",
        ),
        (file(&one("F32", "[1]", 4, 0), &four), "begins at byte 4 of the data and ends before it, at 0"),
        (file(&one("F32", "[1]", u64::MAX, u64::MAX), &four), "ends at byte 18446744073709551615"),
        (
            file(&one("F32", "[1]", 4, 8), &[0; 8]),
            "begins at byte 4 of the data, those before it end at 0: there is a hole",
        ),
        (
            file(&one("F32", "[1,1,1,1,1,1,1,1,1,1,1]", 0, 4), &four),
            "11 axes given, at most 10 are supported",
        ),
        (
            file(&one("F64", "[1152921504606846976]", 0, 4), &four),
            "takes 9223372036854775808 bytes, the header gives it 4",
        ),
        (file(&one("F32", "[18446744073709551615,18446744073709551615]", 0, 0), &[]), "does not fit"),
        (file(&one("F32", "[18446744073709551615,0]", 0, 0), &[]), "does not fit"),
        (file(&one("F32", "[99999999999999999999]", 0, 0), &[]), "its header: tensor `a`"),
        (file(r#"{"__metadata__":{"a":1}}"#, &[]), "invalid type: integer"),
        (file(r#"{"__metadata__":{"a":"","a":""}}"#, &[]), "a key of __metadata__ is there twice"),
        (file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "__metadata__ is there twice"),
        (file("{\"a\":\"\u{0}\"}", &[]), "its header"),
        ([&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), "its header"),
    ] {
        let got = refused(&bytes);
        assert!(got.contains(want), "{got}\ndoes not have\n{want}");
    }
    let two = |b: &str, from: u64, to: u64| {
        let a = r#"{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
        let size = to - from;
        format!(r#"{{"a":{a},"{b}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{from},{to}]}}}}"#)
    };
    assert!(refused(&file(&two("a", 4, 8), &[0; 8])).contains("tensor `a` is there twice"));
    assert!(refused(&file(&two("b", 3, 8), &[0; 8])).contains("an overlap"));
    assert!(refused(&file(&two("b", 0, 4), &four)).contains("an overlap"));
    assert!(refused(&file(&two("b", 5, 8), &[0; 8])).contains("a hole"));
    let long = "b\n".repeat(1 << 19);
    let name = two(&long.replace('\n', "\\n"), 5, 8);
    assert!(refused(&file(&name, &[0; 8])).contains("b\\nb\\n"));
    assert!(SafeTensors::parse("x", file(&two("b", 4, 8), &[0; 8])).is_ok());
    assert!(SafeTensors::parse("x", file(&two("b", 4, 4), &four)).is_ok());
    let text = format!("{{\"a\":\"{}\"}}", "\\n".repeat(1 << 20));
    assert!(refused(&file(&text, &[])).contains("tensor `a`: invalid type: string"));
    let many: Vec<String> = (0..=MAX_NAMES).map(|i| format!("\"{i}\":\"\"")).collect();
    let many = format!("{{\"__metadata__\":{{{}}}}}", many.join(","));
    assert!(refused(&file(&many, &[])).contains("more than 131072 entries"));
    let none = |i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let many: Vec<String> = (0..=MAX_NAMES + 1).map(none).collect();
    assert!(refused(&file(&format!("{{{}}}", many.join(",")), &[])).contains("more than 131072 tensors"));
    assert!(SafeTensors::parse("x", file(&format!("{{{}}}", many[1..MAX_NAMES].join(",")), &[])).is_ok());
}

#[test]
fn folders_pipes_and_missing_files_are_errors() {
    let here = tempfile::tempdir().unwrap();
    let wrong = |path: &Path| SafeTensors::read(path).unwrap_err().to_string();
    assert!(wrong(here.path()).ends_with("is a folder, not a file"));
    assert!(wrong(&here.path().join("none")).contains("none: No such file"));
    if cfg!(unix) {
        assert_eq!(wrong(Path::new("/dev/zero")), "read: /dev/zero: is not a regular file");
    }
}

/// A file with all types, written by Python's package; `tests/golden/safetensors_files.py` makes it.
#[test]
fn a_file_of_pythons_is_read() {
    let bytes = include_bytes!("../../../tests/golden/torch.safetensors").to_vec();
    let file = SafeTensors::parse("torch.safetensors", bytes).unwrap();
    assert_eq!(file.metadata()["format"], "pt");
    let halves: Vec<f32> = (0..6).map(|i| (i as f32 - 2.0) * 0.375).collect();
    for name in ["f64", "f32", "f16", "bf16"] {
        assert_eq!(
            file.tensor(name).unwrap(),
            Tensor::new(&[2, 3], halves.clone()).unwrap().into(),
            "{name}"
        );
    }
    for name in ["i64", "i32", "i16", "i8", "u8", "u32"] {
        assert_eq!(
            file.tensor(name).unwrap(),
            Tensor::new(&[3], vec![0u32, 1, 100]).unwrap().into(),
            "{name}"
        );
    }
    assert_eq!(file.tensor("bool").unwrap(), Tensor::new(&[2], vec![1u32, 0]).unwrap().into());
    assert_eq!(file.tensor("scalar").unwrap(), Tensor::scalar(0.1f32).into());
    assert_eq!(file.tensor("none").unwrap(), Tensor::<f32>::new(&[0, 4], vec![]).unwrap().into());
    assert_eq!(file.len(), 13);
}

/// Python's package reads this file and finds these numbers: `tests/golden/safetensors_files.py --check`.
#[test]
fn our_file_is_the_one_that_python_reads() {
    let x = Tensor::new(&[2, 3], (0..6).map(|i| i as f32 * 0.1 - 0.2).collect()).unwrap();
    let (i, none) =
        (Tensor::new(&[3], vec![0u32, 1, u32::MAX]).unwrap(), Tensor::new(&[0, 4], vec![]).unwrap());
    let (scalar, mut file) = (Tensor::scalar(f32::NEG_INFINITY), Writer::new());
    file.numbers("layer.weight", &x).unwrap().indices("labels", &i).unwrap();
    file.numbers("none", &none).unwrap().numbers("scalar", &scalar).unwrap();
    file.metadata("format", "pt").unwrap().metadata("text", "ein \"Wort\" – 字").unwrap();
    let bytes = file.to_bytes().unwrap();
    if std::env::var_os("DITTOGRAD_UPDATE").is_some() {
        std::fs::write("tests/golden/ours.safetensors", &bytes).unwrap();
    }
    assert!(bytes == include_bytes!("../../../tests/golden/ours.safetensors"));
}

proptest! {
    /// Whatever the bytes are, there is an answer.
    #[test]
    fn any_bytes_have_an_answer(mut at in 0usize..400, byte: u8, cut in 0usize..400) {
        let x = Tensor::new(&[2, 2], vec![1.0f32; 4]).unwrap();
        let mut writer = Writer::new();
        writer.numbers("a", &x).unwrap().numbers("b.c", &x).unwrap().metadata("k", "v").unwrap();
        let mut bytes = writer.to_bytes().unwrap();
        at %= bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut);
        if let Ok(file) = SafeTensors::parse("x", bytes) {
            for (name, _) in file.iter() {
                let _ = file.tensor(name);
            }
        }
    }
}

/// The digest holds every part of the file, and no part can pass for another.
#[test]
fn files_that_differ_have_other_digests() {
    let tensor = |dims: &[usize], data: &[u32]| Tensor::new(dims, data.to_vec()).unwrap();
    let (flat, turned) = (tensor(&[6], &[1, 2, 3, 4, 5, 6]), tensor(&[3, 2], &[1, 2, 3, 4, 5, 6]));
    let (wide, other) = (tensor(&[2, 3], &[1, 2, 3, 4, 5, 6]), tensor(&[6], &[1, 2, 3, 4, 5, 7]));
    let (one, five) = (tensor(&[1], &[1]), tensor(&[5], &[2, 3, 4, 5, 6]));
    let numbers = Tensor::new(&[6], flat.data().iter().map(|w| f32::from_bits(*w)).collect()).unwrap();
    type Texts = &'static [(&'static str, &'static str)];
    let make = |texts: Texts, indices: &[(&str, &Tensor<u32>)], floats: &[(&str, &Tensor<f32>)]| {
        let mut writer = Writer::new();
        for (key, text) in texts {
            writer.metadata(key, text).unwrap();
        }
        for (name, tensor) in indices {
            writer.indices(name, tensor).unwrap();
        }
        for (name, tensor) in floats {
            writer.numbers(name, tensor).unwrap();
        }
        let read = SafeTensors::parse("x", writer.to_bytes().unwrap()).unwrap();
        assert_eq!(read.digest("but"), writer.digest());
        writer.digest()
    };
    let all = [
        make(&[], &[], &[]),
        make(&[], &[("a", &flat)], &[]),
        make(&[], &[("b", &flat)], &[]),
        make(&[], &[("a", &other)], &[]),
        make(&[], &[("a", &turned)], &[]),
        make(&[], &[("a", &wide)], &[]),
        // The same bytes as numbers, and as two tensors.
        make(&[], &[], &[("a", &numbers)]),
        make(&[], &[("a", &one), ("b", &five)], &[]),
        make(&[("k", "v")], &[], &[]),
        make(&[("l", "v")], &[], &[]),
        make(&[("k", "w")], &[], &[]),
        make(&[("kv", "")], &[], &[]),
        make(&[("", "kv")], &[], &[]),
        make(&[("k", "v"), ("l", "w")], &[], &[]),
        make(&[("k", "vlw")], &[], &[]),
    ];
    for (i, digest) in all.iter().enumerate() {
        assert!(!all[..i].contains(digest), "file {i} passes for another");
    }
}

/// What is fed to the hash can be read back, so that two files cannot feed the same.
#[test]
fn parts_of_a_digest_do_not_run_together() {
    let scalar = Tensor::new(&[], vec![7u32]).unwrap();
    let word = |n: u64| n.to_le_bytes().to_vec();
    let text = |t: &str| [word(t.len() as u64), t.as_bytes().to_vec()].concat();
    let mut writer = Writer::new();
    writer.metadata("key", "text").unwrap().indices("name", &scalar).unwrap();
    let fed = [word(1), text("key"), text("text"), word(2), text("name"), text("U32"), word(0)].concat();
    let want = blake3::hash(&[fed, 7u32.to_le_bytes().to_vec()].concat()).to_hex().to_string();
    assert_eq!(writer.digest(), want);
}

#[test]
fn what_a_file_says_about_itself() {
    let x = Tensor::new(&[2, 3], vec![1.0f32; 6]).unwrap();
    let mut writer = Writer::new();
    writer.numbers("x", &x).unwrap();
    let bytes = writer.to_bytes().unwrap();
    let file = SafeTensors::parse("x", bytes.clone()).unwrap();
    let entry = file.get("x").unwrap();
    assert_eq!((entry.shape(), entry.dtype()), (x.shape(), Dtype::F32));
    assert_eq!((file.len(), file.is_empty(), file.bytes()), (1, false, bytes.len()));
    assert!(file.get("y").is_none());
    let none = SafeTensors::parse("x", Writer::new().to_bytes().unwrap()).unwrap();
    assert_eq!((none.len(), none.is_empty()), (0, true));
}

#[test]
fn shapes_have_as_many_axes_as_elsewhere() {
    let list = |n: usize| format!("[{}]", vec!["1"; n].join(","));
    let most = file(&one("U8", &list(MAX_RANK), 0, 1), &[5]);
    assert_eq!(SafeTensors::parse("x", most).unwrap().get("a").unwrap().shape().rank(), MAX_RANK);
    assert!(refused(&file(&one("U8", &list(MAX_RANK + 1), 0, 1), &[5])).contains("11 axes given"));
}

#[test]
fn as_many_names_are_written_as_are_read() {
    let none = Tensor::new(&[0], vec![]).unwrap();
    let names: Vec<String> = (0..=MAX_NAMES).map(|i| i.to_string()).collect();
    let mut writer = Writer::new();
    for name in &names[..MAX_NAMES] {
        writer.numbers(name, &none).unwrap();
    }
    let file = SafeTensors::parse("x", writer.to_bytes().unwrap()).unwrap();
    assert_eq!(file.len(), MAX_NAMES);
    writer.numbers(&names[MAX_NAMES], &none).unwrap();
    assert!(writer.to_bytes().unwrap_err().to_string().contains("would not be read again"));
    let mut texts = Writer::new();
    for name in &names {
        texts.metadata(name, "").unwrap();
    }
    assert!(texts.to_bytes().is_err());
}
