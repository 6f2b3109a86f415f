//! What the program says to its users: attributes of ops by name, and no advice that only a program in Rust could follow.

use crate::program::{answer, good, refused, run_in};
use dittograd::io::safetensors::{SafeTensors, Writer};
use dittograd::prelude::*;
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// Writes numbers as x0, x1, … and as dy.
fn inputs(path: &Path, x: &[&[usize]], dy: Option<&[usize]>) {
    let tensor = |dims: &[usize]| Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i * 2 % 5) as f32);
    let named = x.iter().enumerate().map(|(i, dims)| (format!("x{i}"), tensor(dims)));
    let all: Vec<(String, Tensor<f32>)> =
        named.chain(dy.map(|dims| ("dy".to_string(), tensor(dims)))).collect();
    let mut file = Writer::new();
    for (name, tensor) in &all {
        file.numbers(name, tensor).unwrap();
    }
    file.save(path).unwrap();
}

#[test]
fn ops_with_index_results_run() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    inputs(&at("x"), &[&[2, 5]], None);
    let read = |args: &str| {
        good(home.path(), &format!("op {args} --device cpu --out y"));
        match SafeTensors::read(at("y")).unwrap().tensor("y").unwrap() {
            AnyTensor::Idx(t) => t.data().to_vec(),
            AnyTensor::Num(t) => panic!("{args}: {t:?}"),
        }
    };
    // 0 2 4 1 3 in each row.
    assert_eq!(read("argmax --attrs {\"axes\":[1]} --in x"), [2, 2]);
    assert_eq!(read("argmin --attrs {\"axes\":[0]} --in x"), [0; 5]);
    assert!(
        read("randint --attrs {\"shape\":[9],\"seed\":1,\"counter\":0,\"below\":3}").iter().all(|i| *i < 3)
    );
    let mut all = read("permutation --attrs {\"n\":6,\"seed\":1,\"counter\":0}");
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    inputs(&at("x"), &[&[2, 5]], Some(&[2]));
    let want = "argmax gives indices, which have no gradient; leave out dy";
    refused(home.path(), "op argmax --attrs {\"axes\":[1]} --in x --out z --device cpu", want);
    let want = "dy has shape [2], but the result of exp has shape [2, 5]";
    refused(home.path(), "op exp --in x --out z --device cpu", want);
    assert!(!at("z").exists());
}

#[test]
fn attributes_are_explained_and_mistakes_in_them_named() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let conv = answer(here, "ops conv_transpose");
    let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
    for want in [
        "stride list of whole numbers needed input elements from one window to the next, along each axis",
        "groups whole number needed groups that the channels are cut into, each convolved on its own",
        "size list of whole numbers needed sizes of the result",
    ] {
        assert!(conv.lines().any(|l| words(l) == want), "{want}: {conv}");
    }
    let loss: Value = serde_json::from_str(&answer(here, "ops cross_entropy --json")).unwrap();
    let all = loss["attributes"].as_array().unwrap();
    let find = |name: &str| all.iter().find(|a| a["name"] == name).unwrap();
    let smoothing = find("label_smoothing");
    assert_eq!((&smoothing["default"], &smoothing["needed"]), (&0.into(), &false.into()));
    assert_eq!(
        (&find("ignore_index")["default"], &find("reduction")["kind"]),
        (&Value::Null, &"whole number".into())
    );
    assert!(answer(here, "ops exp").contains("it has no attributes"));
    for (args, want) in [
        ("ops nothing", "`nothing` is not an op; `dittograd ops` lists them"),
        ("op nothing --out y", "`nothing` is not an op; `dittograd ops` lists them"),
        (
            "op argmax --out y",
            "op argmax: attribute `axes`: is missing: a list of whole numbers is needed (axes to reduce",
        ),
        (
            "op sum --attrs {\"axes\":1} --out y",
            "op sum: attribute `axes`: a list of whole numbers is needed",
        ),
        (
            "op sum --attrs {\"axis\":[1]} --out y",
            "op sum: `axis` is not one of its attributes; it has axes;",
        ),
        ("op exp --attrs {\"c\":1} --out y", "op exp: `c` is not one of its attributes; it has none"),
        (
            "op scale --out y",
            "op scale: attribute `c`: is missing: a number is needed (factor of every element)",
        ),
        (
            "op matmul --attrs {\"ta\":1} --out y",
            "op matmul: attribute `ta`: true or false is needed (whether the first",
        ),
        (
            "op concat --attrs {\"axis\":0.5} --out y",
            "op concat: attribute `axis`: a whole number from 0 is needed",
        ),
        (
            "op mse --attrs {\"reduction\":7} --out y",
            "op mse: attribute `reduction`: 0 (mean), 1 (sum) or 2 (none)",
        ),
    ] {
        refused(here, args, want);
    }
}

#[test]
fn no_message_advises_rust() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let write = |name: &str, text: &str| std::fs::write(here.join(name), text).unwrap();
    inputs(&here.join("one"), &[&[2, 3]], None);
    inputs(&here.join("two"), &[&[2, 3], &[4, 5]], None);
    inputs(&here.join("seeded"), &[&[2, 3]], Some(&[2, 3]));
    inputs(&here.join("weights.safetensors"), &[&[2, 3]], None);
    write("rows.csv", "1,2\n3,4\n");
    write("class.csv", "1,a\n2,b\n3,a\n4,b\n");
    write("no.txt", "%0: f32[2] = input\n");
    write(
        "kind.txt",
        "graph 1\n%0: f32[2] = input\n%1: f32[2] = input\n%2: f32[2] = index_select %0 %1 axis=0\nreturn %2\n",
    );
    write("rank.txt", "graph 1\n%0: f32[2] = input\n%1: f32[2] = matmul %0 %0\nreturn %1\n");
    good(here, "train mlp --samples 60 --batch 8 --hidden 4 --steps 2 --device cpu --out run");
    let rust = [
        "Session",
        "()",
        "Params::",
        "StateDict::",
        "Graph::",
        "Trainer",
        "Optimizer::",
        "Device::",
        "unsqueeze",
    ];
    for args in [
        "op index_select --attrs {\"axis\":0} --in two --out y",
        "op where_ --in two --out y",
        "op matmul --in two --out y",
        "op matmul --in one --out y",
        "op bmm --in two --out y",
        "op add --in two --out y",
        "op randint --attrs {\"shape\":[4],\"seed\":1,\"counter\":0,\"below\":9} --in one --out y",
        "op argmax --attrs {\"axes\":[1]} --in seeded --out y",
        "op sum --attrs {\"axes\":[4]} --in one --out y",
        "op cross_entropy --in two --out y",
        "op softmax --in two --out y",
        "op conv --attrs {\"stride\":[1],\"padding\":[0],\"dilation\":[1],\"groups\":1} --in two --out y",
        "op reshape --attrs {\"shape\":[7]} --in one --out y",
        "graph no.txt",
        "graph kind.txt",
        "graph rank.txt",
        "graph one",
        "train mlp --weights weights.safetensors",
        "train mlp --weights rows.csv",
        "train --resume weights.safetensors",
        "train --resume run/best.safetensors --seed 9",
        "train cnn --data rows.csv",
        "train mlp --data class.csv --targets 1",
        "train vit --samples 20 --config {\"patch\":[5,5]}",
        "train gpt --samples 20 --config {\"heads\":3}",
        "train resnet --samples 20 --config {\"depth\":9}",
        "train fno1d --samples 8 --grid 8 --config {\"modes\":64}",
        "predict run --data one",
        "predict run --prompt x",
        "predict weights.safetensors",
        "predict run --data weights.safetensors",
        "export run --shape 9",
        "inspect rows.csv",
    ] {
        let run = run_in(here, &format!("{args} --device cpu"));
        assert_eq!((run.code, run.err.lines().count()), (Some(2), 1), "{args}: {}{}", run.out, run.err);
        let found = rust.iter().find(|word| run.err.contains(**word));
        assert_eq!(found, None, "{args}: {}", run.err);
    }
    // Advice that has an option.
    let want = "input 1 holds f32 elements, needs u32; indices are tensors of I64, I32 or U32";
    refused(here, "op index_select --attrs {\"axis\":0} --in two --out y --device cpu", want);
    refused(here, "graph no.txt", "`dittograd graph` prints it");
    refused(here, "predict weights.safetensors --device cpu", "`train --weights` starts from its tensors");
    for command in
        ["", "train", "predict", "export", "devices", "op", "ops", "graph", "inspect", "check", "bench"]
    {
        let text = good(here, &format!("{command} --help")).out;
        assert_eq!(rust.iter().find(|word| text.contains(**word)), None, "{command}: {text}");
    }
}
