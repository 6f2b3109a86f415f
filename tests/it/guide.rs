//! The page of whole programs shows what the programs are.

use std::fs;
use std::path::Path;

/// The lines of code without their indentation and without empty ones.
fn lines(code: &str) -> Vec<&str> {
    code.lines().map(str::trim).filter(|l| !l.is_empty()).collect()
}

#[test]
fn shows_pieces_of_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guide/programs.md")).unwrap();
    let mut pieces = 0;
    for section in page.split("\n## ").skip(1) {
        let file = section.split("](../../").nth(1).unwrap().split(')').next().unwrap();
        let program = fs::read_to_string(root.join(file)).unwrap();
        let program = lines(&program);
        for piece in section.split("```rust\n").skip(1) {
            let piece = lines(piece.split("```").next().unwrap());
            assert!(
                program.windows(piece.len()).any(|w| w == piece),
                "{file} does not have this piece of docs/guide/programs.md:\n{}",
                piece.join("\n")
            );
            pieces += 1;
        }
    }
    assert!(pieces >= 8);
}
