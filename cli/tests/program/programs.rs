//! Models that are given as programs in a file, as Python writes them from PyTorch's.

use crate::program::{answer, refused, run_in};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::nn::Program;
use dittograd::prelude::*;
use serde_json::Value;
use std::path::Path;

/// The arguments of every training here.
const HOW: &str = "--data spirals --samples 200 --lr 1e-2 --schedule constant --device cpu --out";

/// Writes the mlp that `train mlp --hidden 16` begins with, for so many rows.
fn write_mlp(path: &Path, rows: usize) {
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 16, 3]).unwrap();
    let batch = [Meta::f32(Shape::new(&[rows, 2]).unwrap())];
    let trace = |net: Mlp| Graph::trace(&device, &batch, |_, v| Ok(vec![net.forward(v[0])?])).unwrap();
    let program = Program::new(&params, trace(net.clone()), trace(net.eval()), &[]).unwrap();
    program.save(path, "mlp", &params).unwrap();
}

#[test]
fn a_program_trains_as_the_model_it_was_made_of() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    write_mlp(&here.join("mlp.safetensors"), 32);
    write_mlp(&here.join("half.safetensors"), 16);
    // Untrained, it is shown, exported and used as well.
    assert!(answer(here, "graph mlp.safetensors --batch 4").contains("%0: f32[4, 2] = input"));
    assert!(answer(here, "export mlp.safetensors").ends_with("mlp.onnx\n"));
    std::fs::write(here.join("x.csv"), "a,b\n1,2\n2,1\n").unwrap();
    assert_eq!(answer(here, "predict mlp.safetensors --data x.csv").lines().count(), 3);
    refused(here, "predict mlp.safetensors", "has programs, but no data; give inputs with --data");
    refused(here, "train --resume mlp.safetensors", "begin a run with: dittograd train FILE");
    let plain =
        run_in(here, &format!("train mlp --hidden 16 --batch 32 --steps 20 {HOW} none")).fingerprint();
    for mode in ["compiled", "eager"] {
        let made = run_in(here, &format!("train mlp.safetensors --steps 20 --mode {mode} {HOW} {mode}"));
        assert_eq!(made.fingerprint(), plain, "{mode}");
    }
    let shards = run_in(here, &format!("train mlp --hidden 16 --batch 32 --shards 2 --steps 20 {HOW} none"));
    let made = run_in(here, &format!("train half.safetensors --shards 2 --steps 20 {HOW} none"));
    assert_eq!(made.fingerprint(), shards.fingerprint());
    // A checkpoint has the programs, so the file is not needed to go on.
    run_in(here, &format!("train mlp.safetensors --steps 10 {HOW} cut")).fingerprint();
    std::fs::remove_file(here.join("mlp.safetensors")).unwrap();
    assert_eq!(run_in(here, "train --resume cut --steps 20").fingerprint(), plain);
    // Nor is it to begin anew from where it ended, or to see what it is.
    run_in(here, &format!("train cut/checkpoint.safetensors --steps 1 {HOW} none")).fingerprint();
    assert_eq!(answer(here, "graph cut --batch 32 --hash"), answer(here, "graph compiled --batch 32 --hash"));
    assert!(answer(here, "export cut --batch 32").contains("float32[32, 2]"));
    assert!(answer(here, "inspect cut").contains("program"));
    assert!(answer(here, "predict cut").starts_with("program on "));
}

#[test]
fn a_program_has_statistics_and_its_own_behaviour_in_evaluation() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 3);
    let w = params.normal("w", &[2, 3], 0.0, 1.0).unwrap();
    let mean = params.zeros("mean", &[3]).unwrap();
    mean.set_buffer();
    let batch = [Meta::f32(Shape::new(&[8, 2]).unwrap())];
    let train = Graph::trace(&device, &batch, |s, v| {
        let y = v[0].matmul(s.param(&w)?)?;
        let now = y.detach()?.mean_axes(&[0])?;
        let moved = ((s.param(&mean)? * 0.5)? + (now * 0.5)?)?;
        Ok(vec![(y - now)?.dropout(0.5)?, moved])
    })
    .unwrap();
    let eval =
        Graph::trace(&device, &batch, |s, v| Ok(vec![(v[0].matmul(s.param(&w)?)? - s.param(&mean)?)?]))
            .unwrap();
    let program = Program::new(&params, train, eval, &["mean".to_string()]).unwrap();
    program.save(here.join("norm.safetensors"), "norm", &params).unwrap();

    let compiled = run_in(here, &format!("train norm.safetensors --steps 5 {HOW} run"));
    let eager = run_in(here, &format!("train norm.safetensors --steps 5 --mode eager {HOW} none"));
    assert_eq!(compiled.fingerprint(), eager.fingerprint());
    // Eleven rows are more than one batch of the program, and no multiple of it.
    let (params, program) = Program::load(here.join("run/checkpoint.safetensors"), &device).unwrap();
    assert!(params.get("mean").unwrap().get::<f32>().unwrap().data().iter().any(|x| *x != 0.0));
    let x = Tensor::from_fn(Shape::new(&[11, 2]).unwrap(), |i| i as f32 / 8.0 - 1.0);
    dittograd::io::write_npy(here.join("x.npy"), &x.clone().into()).unwrap();
    answer(here, "predict run --data x.npy --out y.npy");
    let session = Session::inference(&device);
    let y = program.eval().forward(session.input(&x).unwrap()).unwrap().value::<f32>().unwrap();
    assert_eq!(y.shape().dims(), [11, 3]);
    assert_eq!(dittograd::io::read_npy(here.join("y.npy")).unwrap().num().unwrap(), &y);
    let lone = session.input(&x).unwrap().narrow(0, 9, 1).unwrap();
    let last = program.eval().forward(lone).unwrap().value::<f32>().unwrap();
    assert_eq!(last.data(), &y.data()[27..30], "a row does not depend on the others");
    let about: Value =
        serde_json::from_str(&answer(here, "inspect run/checkpoint.safetensors --json")).unwrap();
    assert_eq!(about["checkpoint"]["model"], "program", "{about}");
}

#[test]
fn what_does_not_fit_a_program_says_so() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    write_mlp(&here.join("mlp.safetensors"), 32);
    refused(here, "train mlp.safetensors", "--data is missing");
    refused(here, "train mlp.safetensors --data digits --samples 50", "the program takes [2]");
    refused(
        here,
        "train mlp.safetensors --data spirals --samples 200 --batch 16",
        "use --batch 32 with 1 shards",
    );
    refused(here, "train mlp.safetensors --data spirals --config {}", "--config is for");
    let device = Device::cpu().unwrap();
    let params = Params::new(&device, 0);
    for (shape, batch) in [(vec![], "[]"), (vec![0, 2], "[0, 2]")] {
        let batch_meta = [Meta::f32(Shape::new(&shape).unwrap())];
        let same = || Graph::trace(&device, &batch_meta, |_, v| Ok(vec![v[0].relu()?])).unwrap();
        let error = Program::new(&params, same(), same(), &[]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("maps {batch} to {batch}; it needs a result for each row")),
            "{error}"
        );
    }
    refused(here, "train nothing.safetensors --data spirals", "nothing.safetensors");
    refused(here, "train nothing --data spirals", "use mlp, cnn, resnet");
    answer(here, "train mlp --samples 40 --hidden 8 --steps 1 --out run --device cpu");
    refused(here, "train run/checkpoint.safetensors --data spirals", "has no programs");
}
