//! The command line of a run with `--resume` added goes on with it; what differs is named.

use crate::program::{answer, failed, good};
use tempfile::TempDir;

#[test]
fn the_same_options_go_on_and_others_are_named() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    std::fs::write(here.join("text.txt"), "the quick brown fox jumps over the lazy dog. ".repeat(40))
        .unwrap();
    good(here, "train mlp --samples 100 --hidden 8,4 --batch 20 --steps 1 --device cpu --out first");
    let mlp = "train mlp --samples 100 --hidden 8,4 --batch 20 --accumulate 2 --seed 3 --lr 2e-3 --schedule cosine --warmup 1 \
               --weight-decay 0.1 --clip 1 --optimizer adam --eval-every 2 --patience 9 --device cpu --mode eager --epochs 1 \
               --weights first/checkpoint.safetensors --out mlp";
    let gpt = "train gpt --data text.txt --grid 16 --batch 8 --tokenizer bpe:260 --steps 4 --device cpu --out gpt --config \
               {\"width\":16,\"heads\":2,\"layers\":1,\"dropout\":0}";
    let fno = "train fno1d --samples 12 --grid 16 --batch 4 --steps 2 --device cpu --out fno --config {\"width\":4,\"modes\":4}";
    for args in [mlp, gpt, fno] {
        let print = good(here, args).fingerprint();
        let name = args.split("--out ").nth(1).unwrap().split(' ').next().unwrap();
        assert_eq!(good(here, &format!("{args} --resume {name}")).fingerprint(), print, "{args}");
    }
    let checkpoint = |name: &str| std::fs::read(here.join(name).join("checkpoint.safetensors")).unwrap();
    let before = checkpoint("mlp");
    for (args, parts) in [
        ("--resume mlp --seed 4", "--seed 4: the run has 3; leave out what differs"),
        ("--resume mlp --hidden 8", "--hidden 8: the run has 8,4"),
        ("--resume mlp --samples 99", "--samples 99: the run has 100"),
        ("--resume mlp --grid 9", "--grid 9: the run has none"),
        ("--resume mlp --targets 2", "--targets 2: the run has none"),
        ("--resume mlp --resize 8x9", "--resize 8x9: the run has none"),
        ("--resume mlp --batch 10", "--batch 10: the run has 20"),
        ("--resume mlp --accumulate 4", "--shards 4: the run has 2"),
        ("--resume mlp --schedule constant", "--schedule constant: the run has cosine"),
        ("--resume mlp --warmup 0", "--warmup 0: the run has 1"),
        ("--resume mlp --weight-decay 0", "--weight-decay 0: the run has 0.1"),
        ("--resume mlp --clip 2", "--clip 2: the run has 1"),
        ("--resume mlp --optimizer sgd", "--optimizer sgd: the run has adam"),
        ("--resume mlp --weights other", "--weights other: the run has first/checkpoint.safetensors"),
        ("--resume gpt --hidden 8", "--hidden 8: the run has none"),
        ("--resume gpt --tokenizer bytes", "--tokenizer bytes: the run has bpe:260"),
        ("--resume gpt --config {\"width\":8}", "--config {\"width\":8}: the run has 16"),
        ("--resume gpt --config {\"wide\":8}", "--config {\"wide\":8}: the run has null"),
        (
            "gpt --resume mlp --lr 1 --seed 4",
            "model gpt: the run has mlp; --seed 4: the run has 3; --lr 1: the run has 0.002;",
        ),
    ] {
        failed(here, &format!("train {args} --device cpu"), parts);
    }
    assert_eq!(checkpoint("mlp"), before);
    // More epochs are more steps.
    let more = good(here, "train --resume mlp --epochs 2 --device cpu");
    assert!(more.out.contains("4 steps in"), "{}", more.out);
}

#[test]
fn the_help_of_a_model_has_its_fields() {
    let home = TempDir::new().unwrap();
    let all = good(home.path(), "train --help").out;
    for group in ["Model:", "Data:", "Training:", "Optimizer:", "Run and files:", "Every command:"] {
        assert!(all.lines().any(|l| l == group), "{group}");
    }
    assert!(!all.contains("Fields of --config"));
    for (model, field) in [
        ("mlp", "sizes     inputs, sizes of the hidden layers"),
        ("cnn", "widths    channels after each of the three convolutions [default: [16,32,64]]"),
        ("gpt", "context  most tokens of a sequence [default: by the data]"),
        ("fno2d", "modes    Fourier modes that are kept along each axis [default: [8,8]]"),
    ] {
        let text = good(home.path(), &format!("train {model} --help")).out;
        let line = text.lines().map(str::trim_start).find(|l| l.starts_with(&field[..5])).unwrap_or_default();
        let words = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(line).starts_with(&words(field)), "{model}: {text}");
        assert!(text.contains(&format!("Defaults of {model}:\n  --data ")), "{text}");
    }
}

#[test]
fn a_run_goes_on_only_in_its_mode() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let train = "train mlp --samples 600 --hidden 512,512 --batch 256 --steps 3 --device cpu";
    let mut prints = vec![good(here, &format!("{train} --out strict")).fingerprint()];
    for mode in ["fast", "turbo"] {
        let run = good(here, &format!("{train} --numerics {mode} --out {mode}"));
        assert!(run.out.contains(&format!("numerics {mode}")), "{}", run.out);
        let eager =
            good(here, &format!("{train} --numerics {mode} --mode eager --threads 1 --out eager-{mode}"));
        assert_eq!(eager.fingerprint(), run.fingerprint(), "{mode}");
        prints.push(run.fingerprint());
        assert!(
            answer(here, &format!("inspect {mode}/checkpoint.safetensors"))
                .contains(&format!("numerics {mode}, version"))
        );
        let more = format!("train --resume {mode} --steps 4 --device cpu");
        failed(here, &more, &format!("was computed in mode {mode}, this device is in mode strict"));
        let longer = train.replace("--steps 3", "--steps 4");
        let longer = good(here, &format!("{longer} --numerics {mode} --out longer-{mode}"));
        assert_eq!(good(here, &format!("{more} --numerics {mode}")).fingerprint(), longer.fingerprint());
    }
    // 256 rows by 512 by 512 take part, so each mode has its own answer.
    assert!(prints[0] != prints[1] && prints[0] != prints[2] && prints[1] != prints[2], "{prints:?}");
    assert!(answer(here, "devices --device cpu --numerics turbo").contains("cpu in mode turbo"));
    let checked =
        answer(here, "check matmul::forward matmul::bits linear::compiled --device cpu --numerics turbo");
    assert!(checked.contains(" on cpu in mode turbo, 0 failed"), "{checked}");
}
