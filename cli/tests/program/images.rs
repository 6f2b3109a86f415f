//! Folders of images and tables with class names: trained on, drawn, and predicted with their names.

use crate::program::{answer, failed, good};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// Writes a PNG of one colour.
fn png(path: &Path, [width, height]: [u32; 2], colour: [u8; 3]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = png::Encoder::new(std::fs::File::create(path).unwrap(), width, height);
    file.set_color(png::ColorType::Rgb);
    let pixels = colour.repeat((width * height) as usize);
    file.write_header().unwrap().write_image_data(&pixels).unwrap();
}

/// Images of many sizes in two classes, some of them JPEGs of the tests.
fn pictures(home: &Path) {
    for i in 0..8u8 {
        let size = [u32::from(i) + 9, 30 - u32::from(i)];
        png(&home.join(format!("pictures/red, warm/{i}.png")), size, [220 + i, 30, 40]);
        png(&home.join(format!("pictures/Blue/{i}.png")), size, [30, 40, 220 + i]);
    }
    for name in ["420", "grey", "progressive"] {
        let from = format!("{}/tests/images/{name}.jpg", env!("CARGO_MANIFEST_DIR"));
        // An ending may be in capitals, and wrong.
        let end = if name == "grey" { "png" } else { "JPG" };
        std::fs::copy(from, home.join(format!("pictures/Blue/{name}.{end}"))).unwrap();
    }
}

const TRAIN: &str = "train cnn --data pictures --resize 8x12 --steps 12 --batch 8 --lr 1e-2 --device cpu --config \
                     {\"widths\":[4,4,4]}";

#[test]
fn images_of_any_size_are_trained_on_and_predicted_by_name() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    pictures(here);
    let why = "has 29x10 pixels, but pictures/Blue/0.png has 30x9; give all one size with --resize HxW";
    failed(here, "train cnn --data pictures --device cpu", &format!("pictures/Blue/1.png: {why}"));
    let run = good(here, &format!("{TRAIN} --out run"));
    assert!(run.out.contains("of [3, 8, 12]"), "{}", run.out);
    assert_eq!(
        good(here, &format!("{TRAIN} --out none --mode eager --threads 1")).fingerprint(),
        run.fingerprint()
    );

    // The names are in the checkpoint, and sorted by their bytes.
    let all: Value =
        serde_json::from_str(&answer(here, "inspect run/checkpoint.safetensors --json")).unwrap();
    let settings = &all["checkpoint"]["config"];
    assert_eq!(settings["class_names"], json!(["Blue", "red, warm"]));
    assert_eq!((&settings["data"]["resize"], &settings["input"]), (&json!([8, 12]), &json!([3, 8, 12])));
    let svg = std::fs::read_to_string(here.join("run/samples.svg")).unwrap();
    assert!(svg.contains(">red, warm<") || svg.contains(">Blue<"), "{svg}");

    // A file, and a folder of folders, without the training data beside it.
    std::fs::rename(here.join("pictures"), here.join("moved")).unwrap();
    let one = answer(here, "predict run --data moved/Blue/3.png --device cpu");
    let lines: Vec<&str> = one.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "file,class,probability,y0,y1"), "{one}");
    assert!(lines[1].starts_with("moved/Blue/3.png,Blue,0."), "{one}");
    let all = answer(here, "predict run --data moved --top-k 2 --device cpu");
    assert_eq!(all.lines().next(), Some("file,class,probability,class2,probability2"));
    assert_eq!(all.lines().count(), 1 + 19, "{all}");
    let red = all.lines().find(|l| l.contains("warm/0.png")).unwrap();
    assert!(
        red.starts_with("\"moved/red, warm/0.png\",\"red, warm\",0.") && red.contains(",Blue,0."),
        "{red}"
    );
    let object: Value =
        serde_json::from_str(&answer(here, "predict run --data moved/Blue/grey.png --device cpu --json"))
            .unwrap();
    assert_eq!(object["file"], "moved/Blue/grey.png");
    let top = object["top"].as_array().unwrap();
    assert_eq!((top.len(), &top[0]["name"]), (2, &object["name"]));
    let sum: f64 = top.iter().map(|t| t["probability"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9 && object["probability"] == top[0]["probability"], "{object}");
    good(here, "predict run --data moved --device cpu --out all.csv");
    assert!(
        std::fs::read_to_string(here.join("all.csv")).unwrap().starts_with("file,class,probability,y0,y1\n")
    );

    // A model without --resize takes its own size.
    for i in 0..8u8 {
        png(&here.join(format!("same/a/{i}.png")), [8, 8], [200, i, 0]);
        png(&here.join(format!("same/b/{i}.png")), [8, 8], [0, i, 200]);
    }
    good(
        here,
        "train resnet --data same --steps 2 --batch 4 --device cpu --out plain --config {\"width\":4}",
    );
    failed(
        here,
        "predict plain --data moved/Blue/0.png --device cpu",
        "0.png: has 30x9 pixels, the model takes 8x8; scale it to this size, or train with --resize",
    );
    assert!(answer(here, "predict plain --data same/a --device cpu").lines().count() == 9);
}

#[test]
fn classes_of_a_table_may_be_names() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let rows = |names: [&str; 3]| -> String {
        (0..60).map(|i| format!("{},{},{}\n", i % 3 * 10 + i / 20, i, names[i % 3])).collect()
    };
    std::fs::write(here.join("names.csv"), format!("x,y,kind\n{}", rows(["rose", "Iris", "\"a, b\""])))
        .unwrap();
    // The same classes as numbers, in the order of their names.
    std::fs::write(here.join("numbers.csv"), rows(["2", "0", "1"])).unwrap();
    let train = |data: &str| {
        let args = format!("train mlp --data {data}.csv --steps 60 --batch 16 --device cpu --out {data}");
        good(here, &args).fingerprint()
    };
    assert_eq!(train("names"), train("numbers"));
    // The table of training is read with and without its classes.
    let said = answer(here, "predict names --data names.csv --device cpu");
    assert_eq!(said.lines().next(), Some("class,probability,y0,y1,y2"));
    assert!(said.lines().nth(1).unwrap().starts_with("rose,"), "{said}");
    assert!(said.lines().nth(3).unwrap().starts_with("\"a, b\","), "{said}");
    std::fs::write(here.join("inputs.csv"), "0,0\n10,1\n").unwrap();
    let numbers = answer(here, "predict numbers --data inputs.csv --device cpu");
    assert!(numbers.lines().nth(1).unwrap().starts_with("2,"), "{numbers}");
    let why = "line 1, column 4: the row has 4 columns, but 2 are needed, or 3 with targets";
    std::fs::write(here.join("wide.csv"), "0,0,1,2\n").unwrap();
    failed(here, "predict names --data wide.csv --device cpu", why);
    good(here, "train --resume names --steps 70 --device cpu");
    let shown = answer(here, "inspect names");
    assert!(shown.contains("\nclass_names [\"Iris\",\"a, b\",\"rose\"]\n"), "{shown}");
}

#[test]
fn a_run_folder_is_shown() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let run = good(
        here,
        "train mlp --data friedman1 --samples 80 --batch 16 --steps 40 --eval-every 10 --device cpu --out r",
    );
    // Numbers to predict have a picture of predictions against the truth.
    let svg = std::fs::read_to_string(here.join("r/prediction.svg")).unwrap();
    assert!(
        svg.matches("<circle").count() == 16 && svg.contains(">prediction<") && svg.contains("RMSE"),
        "{svg}"
    );
    let best = run.out.lines().find_map(|l| l.strip_prefix("best at step ")).unwrap();
    let text = answer(here, "inspect r");
    for line in ["run of mlp, 4929 parameters", "steps 40", "step 40", "data.name friedman1", "batch 16"] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    assert!(
        text.contains(&format!("best at step {best}"))
            && text.contains("\nlast evaluation at step 40: test loss ")
    );
    assert!(text.lines().any(|l| l.starts_with("metrics.jsonl ")), "{text}");
    assert_eq!(text.lines().last().unwrap(), format!("fingerprint {}", run.fingerprint()));
    let object: Value = serde_json::from_str(&answer(here, "inspect r --json")).unwrap();
    assert_eq!((&object["model"], &object["step"]), (&json!("mlp"), &json!(40)));
    assert!(best.starts_with(&format!("{}: ", object["best"]["step"])), "{object}");
    assert!(object["best"]["test_rmse"].is_number() && object["evaluated"]["step"] == 40, "{object}");
    assert_eq!(object["fingerprint"], json!(run.fingerprint()));
    assert_eq!(object["files"].as_array().unwrap().len(), 8, "{object}");
}

/// What a terminal shows, where there is a program that makes one.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_shows_what_is_under_way() {
    let home = TempDir::new().unwrap();
    let args = "train mlp --samples 20000 --steps 3000 --eval-every 1000 --device cpu --threads 1 --out none";
    let line = format!("{} {args}", crate::program::PROGRAM);
    let script = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .current_dir(home.path())
        .stdin(std::process::Stdio::null())
        .output();
    let Ok(output) = script else {
        eprintln!("skipped: there is no script here");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "making spirals",
        "compiling the step",
        "step 1000 loss ",
        "step 2000 loss ",
        "best at step ",
        " left",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
