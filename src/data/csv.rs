//! Comma-separated files: numeric features, then a class in the last column or numbers in the last few columns.
//!
//! - A first line without any number is a header and is skipped.
//! - The class is an integer from 0, and the number of classes is the largest one plus one; or it is a name, and the
//!   names of the whole file, sorted by their bytes, are the classes 0, 1, …. The first row decides which of the two.
//! - Cells may be quoted, with `""` for a quote inside; a quoted cell cannot span lines.
//! - CRLF, a byte order mark, spaces around cells and blank lines at the end are allowed.
//!
//! Errors name file, line and column, counted from 1. Memory is proportional to the size of the file.
//!
//! Cells are split here and not by the crate `csv`, which has no strict mode: it reads `"1"2` as 12, extends an open
//! quote to the end of the file and skips blank lines, all without an error.

use super::{Dataset, MAX_CLASSES};
use crate::error::{Error, Located, Result};
use crate::io::bytes::{file_name, read_text};
use crate::io::shown;
use crate::numerics::environment;
use crate::reserve::grow;
use crate::tensor::{AnyTensor, Tensor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Reads a data set for classification from a file. It is named after the file.
#[track_caller]
pub fn csv(path: impl AsRef<Path>) -> Result<Dataset> {
    let path = path.as_ref();
    parse(path, &read_text("csv", path)?, Targets::Class).located()
}

/// Reads a data set for regression from a file of numbers. The last `targets` columns are the targets `(N, targets)`.
/// The other rules are those of [`csv`].
#[track_caller]
pub fn csv_regression(path: impl AsRef<Path>, targets: usize) -> Result<Dataset> {
    let path = path.as_ref();
    parse(path, &read_text("csv", path)?, Targets::Numbers(targets)).located()
}

/// Reads a table of numbers without a class column, by the rules of [`csv`]: `(N, columns)`.
#[track_caller]
pub fn csv_table(path: impl AsRef<Path>) -> Result<Tensor<f32>> {
    let path = path.as_ref();
    table(path, &read_text("csv", path)?, Targets::None).map(|table| table.x).located()
}

/// Reads the inputs of a model, `(N, features)`, from a file that has `features` columns, or `targets` further ones, which
/// are not looked at. The other rules are those of [`csv`].
#[track_caller]
pub fn csv_inputs(path: impl AsRef<Path>, features: usize, targets: usize) -> Result<Tensor<f32>> {
    let path = path.as_ref();
    table(path, &read_text("csv", path)?, Targets::Skipped { features, targets })
        .map(|table| table.x)
        .located()
}

/// Reads a data set from text, by the rules of [`csv`]; `name` stands for the file in errors.
#[track_caller]
pub fn parse_csv(name: &str, text: &str) -> Result<Dataset> {
    parse(Path::new(name), text, Targets::Class).located()
}

/// Reads a data set from text, by the rules of [`csv_regression`]; `name` stands for the file in errors.
#[track_caller]
pub fn parse_csv_regression(name: &str, text: &str, targets: usize) -> Result<Dataset> {
    parse(Path::new(name), text, Targets::Numbers(targets)).located()
}

/// The data set as text that [`parse_csv`] or [`parse_csv_regression`] reads back to the same bits. Classes are written as
/// numbers, without their names. Errors
/// unless it has inputs `(N, F)` that are numbers, and classes `(N)` or numbers `(N, K)` as targets.
#[track_caller]
pub fn print_csv(data: &Dataset) -> Result<String> {
    let (x, rank) = (data.x().num()?, data.y().shape().rank());
    let fits = x.shape().rank() == 2 && rank == if matches!(data.y(), AnyTensor::Idx(_)) { 1 } else { 2 };
    if !fits {
        let (x, y) = (x.shape(), data.y().shape());
        let why = format!("inputs {x} and targets {y} are no table: use (N, F) and classes (N) or (N, K)");
        return Err(Error::argument("print_csv", "data", why));
    }
    let mut text = String::new();
    for i in 0..data.features() {
        let _ = write!(text, "x{i},");
    }
    match data.y() {
        AnyTensor::Idx(_) => text.push_str("class,"),
        AnyTensor::Num(y) => {
            for i in 0..y.shape().last() {
                let _ = write!(text, "y{i},");
            }
        }
    }
    for (i, row) in x.data().chunks_exact(data.features()).enumerate() {
        text.pop();
        text.push('\n');
        for v in row {
            let _ = write!(text, "{v:?},");
        }
        match data.y() {
            AnyTensor::Idx(y) => {
                let _ = write!(text, "{},", y.data()[i]);
            }
            AnyTensor::Num(y) => {
                let width = y.shape().last();
                for v in &y.data()[i * width..][..width] {
                    let _ = write!(text, "{v:?},");
                }
            }
        }
    }
    text.pop();
    text.push('\n');
    Ok(text)
}

/// What the last columns hold.
#[derive(Clone, Copy)]
enum Targets {
    None,
    Class,
    Numbers(usize),
    /// So many columns may follow the features.
    Skipped {
        features: usize,
        targets: usize,
    },
}

impl Targets {
    /// Columns of targets in a file of `width` columns.
    fn columns(self, width: usize) -> usize {
        match self {
            Targets::None => 0,
            Targets::Class => 1,
            Targets::Numbers(n) => n,
            Targets::Skipped { features, .. } => width.saturating_sub(features),
        }
    }

    fn meant(self) -> String {
        match self {
            Targets::None | Targets::Skipped { .. } => "nothing else".into(),
            Targets::Class => "a class in the last column".into(),
            Targets::Numbers(1) => "a target in the last column".into(),
            Targets::Numbers(n) => format!("targets in the last {n} columns"),
        }
    }
}

/// The contents of a file.
struct Table {
    x: Tensor<f32>,
    classes: Vec<u32>,
    /// The names of the classes if they are not numbers.
    names: Option<Vec<String>>,
    values: Vec<f32>,
}

#[track_caller]
fn parse(path: &Path, text: &str, targets: Targets) -> Result<Dataset> {
    let _strict = environment::enter();
    if matches!(targets, Targets::Numbers(0)) {
        return Err(Error::argument("csv", "targets", "got 0, use 1 or more columns"));
    }
    let Table { x, classes, names, values } = table(path, text, targets)?;
    let (rows, name) = (x.shape().rows(), file_name(path));
    if !matches!(targets, Targets::Class) {
        let columns = values.len() / rows;
        return Dataset::new(name, x, Tensor::new(&[rows, columns], values)?, None);
    }
    let count = classes.iter().max().map_or(1, |&c| c as usize + 1);
    let data = Dataset::new(name, x, Tensor::new(&[rows], classes)?, Some(count))?;
    match names {
        Some(names) => data.with_class_names(names),
        None => Ok(data),
    }
}

#[track_caller]
fn table(path: &Path, text: &str, targets: Targets) -> Result<Table> {
    let _strict = environment::enter();
    let fail = |why: String| Error::file("csv", path, why);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).trim_end();
    if text.is_empty() {
        return Err(fail(format!("is empty; expected rows of numbers with {}", targets.meant())));
    }
    let (mut x, mut values): (Vec<f32>, Vec<f32>) = Default::default();
    let mut classes = Classes::default();
    let (mut width, mut features, mut rows) = (0, 0, 0);
    for (i, line) in text.lines().enumerate() {
        let at = |column: usize, why: String| fail(format!("line {}, column {column}: {why}", i + 1));
        let cells = cells(line).map_err(|(column, why)| at(column, why.into()))?;
        if i == 0 {
            width = cells.len();
            features = width.saturating_sub(targets.columns(width));
            if let Targets::Skipped { features, targets } = targets
                && width != features
                && width != features.saturating_add(targets)
            {
                let or = if targets > 0 {
                    format!(", or {} with targets", features + targets)
                } else {
                    String::new()
                };
                return Err(at(width, format!("the row has {width} columns, but {features} are needed{or}")));
            }
            if features == 0 {
                let least = match targets.columns(width).saturating_add(1) {
                    2 => "two".into(),
                    n => n.to_string(),
                };
                let meant = targets.meant();
                let why = format!(
                    "expected {least} columns or more, separated by commas: features, then {meant}; got {width}"
                );
                return Err(at(1, why));
            }
            if cells.iter().all(|c| c.parse::<f32>().is_err()) && cells.iter().any(|c| !c.is_empty()) {
                continue;
            }
        }
        if line.trim().is_empty() {
            return Err(at(1, "is blank; blank lines are only allowed at the end".into()));
        }
        if cells.len() != width {
            let why = format!("the row has {} columns, the first line has {width}", cells.len());
            return Err(at(cells.len().min(width), why));
        }
        grow("csv", &mut x, width)?;
        grow("csv", &mut classes.of_rows, 1)?;
        grow("csv", &mut values, width)?;
        for (column, cell) in cells.iter().enumerate() {
            let wrong = |why: &str| at(column + 1, format!("`{}` {why}", shown(cell)));
            match targets {
                _ if column < features => x.push(number(cell).map_err(wrong)?),
                Targets::Class => classes.push(cell).map_err(|why| wrong(&why))?,
                Targets::None | Targets::Numbers(_) => values.push(number(cell).map_err(wrong)?),
                Targets::Skipped { .. } => {}
            }
        }
        rows += 1;
    }
    if rows == 0 {
        return Err(fail("has a header but no rows".into()));
    }
    let (classes, names) = classes.sorted();
    Ok(Table { x: Tensor::new(&[rows, features], x)?, classes, names, values })
}

/// The classes of the rows so far: numbers, or names by the order in which they came.
#[derive(Default)]
struct Classes {
    of_rows: Vec<u32>,
    names: BTreeMap<String, u32>,
}

impl Classes {
    /// Adds the class of a row. The first one decides whether classes are numbers or names.
    #[track_caller]
    fn push(&mut self, cell: &str) -> std::result::Result<(), String> {
        let is_number = cell.parse::<f64>().is_ok();
        if self.names.is_empty() && (is_number || !self.of_rows.is_empty()) {
            self.of_rows.push(class(cell)?);
            return Ok(());
        }
        if cell.is_empty() {
            return Err("is empty; give each row its class".into());
        }
        if is_number {
            return Err("is a number, but the classes above are names; use one or the other".into());
        }
        let count = self.names.len() as u32;
        let class = *self.names.entry(cell.to_string()).or_insert(count);
        if self.names.len() > MAX_CLASSES {
            return Err(format!("is one name too many: there can be {MAX_CLASSES} classes"));
        }
        self.of_rows.push(class);
        Ok(())
    }

    /// The class of each row, and the names in the order of the classes.
    fn sorted(mut self) -> (Vec<u32>, Option<Vec<String>>) {
        if self.names.is_empty() {
            return (self.of_rows, None);
        }
        let mut numbers = vec![0; self.names.len()];
        for (number, came) in self.names.values().enumerate() {
            numbers[*came as usize] = number as u32;
        }
        self.of_rows.iter_mut().for_each(|class| *class = numbers[*class as usize]);
        (self.of_rows, Some(self.names.into_keys().collect()))
    }
}

#[track_caller]
fn number(cell: &str) -> std::result::Result<f32, &'static str> {
    match cell.parse::<f32>() {
        Ok(v) if v.is_finite() => Ok(v),
        Ok(_) => Err("is not a finite float32 number"),
        Err(_) => Err("is not a number"),
    }
}

#[track_caller]
fn class(cell: &str) -> std::result::Result<u32, String> {
    let want = format!("a class is a whole number from 0 to {}", MAX_CLASSES - 1);
    match cell.parse::<u32>() {
        Ok(c) if (c as usize) < MAX_CLASSES => Ok(c),
        Ok(_) => Err(format!("is too large: {want}")),
        Err(_) => Err(format!("is not a class: {want}")),
    }
}

/// Splits a line into trimmed cells. An error has the column and the reason.
#[track_caller]
fn cells(line: &str) -> std::result::Result<Vec<Cow<'_, str>>, (usize, &'static str)> {
    let mut cells = Vec::new();
    let mut rest = line;
    loop {
        let column = cells.len() + 1;
        let start = rest.trim_start();
        let Some(quoted) = start.strip_prefix('"') else {
            let (cell, more) = rest.split_once(',').map_or((rest, None), |(cell, more)| (cell, Some(more)));
            if cell.contains('"') {
                return Err((column, "has a quote inside a cell that does not start with one"));
            }
            cells.push(Cow::Borrowed(cell.trim()));
            match more {
                Some(more) => rest = more,
                None => return Ok(cells),
            }
            continue;
        };
        let mut text = String::new();
        let mut tail = quoted;
        loop {
            let Some((before, after)) = tail.split_once('"') else {
                return Err((column, "has a quote that is not closed on the same line"));
            };
            text.push_str(before);
            match after.strip_prefix('"') {
                Some(after) => {
                    text.push('"');
                    tail = after;
                }
                None => {
                    tail = after.trim_start();
                    break;
                }
            }
        }
        cells.push(Cow::Owned(text.trim().to_string()));
        match tail.strip_prefix(',') {
            Some(more) => rest = more,
            None if tail.is_empty() => return Ok(cells),
            None => return Err((column, "has text after a closing quote")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> std::result::Result<Dataset, String> {
        parse_csv("f.csv", text).map_err(|e| e.to_string())
    }

    fn numbers(data: &Dataset) -> &[f32] {
        data.x().num().unwrap().data()
    }

    #[test]
    fn ordinary_files_are_read() {
        let want = read("1.5,-2,0\n3e1,0.25,2\n").unwrap();
        assert_eq!(
            (numbers(&want), want.y().idx().unwrap().data()),
            (&[1.5, -2.0, 30.0, 0.25][..], &[0, 2][..])
        );
        assert_eq!((want.classes(), want.features(), want.rows(), want.name()), (Some(3), 2, 2, "f.csv"));
        for same in [
            "a,b,c\n1.5,-2,0\n3e1,0.25,2",
            "\u{feff}1.5,-2,0\r\n3e1,0.25,2\r\n\r\n",
            " 1.5 ,\t-2,0\n+30.0,.25,2\n\n  \n",
            "\"one, \"\"two\"\"\",b,\"c\"\n\"1.5\",-2, \"0\" \n30,\"0.25\",2",
        ] {
            assert_eq!(read(same).as_ref(), Ok(&want), "{same:?}");
        }
        assert_eq!(parse_csv("/some/where/f.csv", "1,0").unwrap().name(), "f.csv");
    }

    #[test]
    fn wrong_files_are_errors_that_say_where() {
        for (text, parts) in [
            ("", "f.csv: is empty"),
            ("\u{feff} \r\n\n", "f.csv: is empty"),
            ("a,b\n", "has a header but no rows"),
            ("1,2,0\n1,2\n", "line 2, column 2: the row has 2 columns, the first line has 3"),
            ("1,0\n1,2,0\n", "line 2, column 2: the row has 3 columns, the first line has 2"),
            ("x,y\n1,0\n\n1,1", "line 3, column 1: is blank"),
            ("\n1,0", "line 1, column 1: expected two columns"),
            ("1\n2", "line 1, column 1: expected two columns"),
            ("1;2;0", "separated by commas"),
            ("1,0\n1,a\n", "line 2, column 2: `a` is not a class"),
            ("1,a\n1,0\n", "line 2, column 2: `0` is a number, but the classes above are names"),
            ("1,a\n1,\n", "line 2, column 2: `` is empty; give each row its class"),
            ("1,\n", "line 1, column 2: `` is empty"),
            ("a,1\n", "line 1, column 1: `a` is not a number"),
            ("x,y\n1,0\nq,1", "line 3, column 1: `q` is not a number"),
            ("x,y\n,1", "line 2, column 1: `` is not a number"),
            ("1,0\nnan,1", "line 2, column 1: `nan` is not a finite float32 number"),
            ("inf,0", "line 1, column 1: `inf` is not a finite"),
            ("1e39,0", "`1e39` is not a finite"),
            ("1,-1", "column 2: `-1` is not a class: a class is a whole number from 0 to 65535"),
            ("1,0.5", "`0.5` is not a class"),
            ("1,65536", "`65536` is too large"),
            ("1,99999999999999", "is not a class"),
            ("1,\"0", "line 1, column 2: has a quote that is not closed"),
            ("\"1\"2,0", "column 1: has text after a closing quote"),
            ("1\"2,0", "column 1: has a quote inside a cell"),
            ("1,0\n1,\u{1}x", "`\\u{1}x` is not a class"),
        ] {
            let got = read(text).expect_err(text);
            assert!(got.contains(parts), "{text:?}: {got}");
            assert!(!got.contains('\n'), "{got}");
        }
        let long = read(&format!("1,0\n{},0", "z".repeat(1 << 16))).unwrap_err();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn classes_may_be_names() {
        // Sorted by bytes, whatever the order of the rows; quoted or not.
        let data = read("x,kind\n1,rose\n2,Iris\n3,\"élan, vital\"\n4,Iris\n5,aster\n").unwrap();
        let names = ["Iris", "aster", "rose", "élan, vital"].map(String::from);
        assert_eq!((data.classes(), data.class_names()), (Some(4), Some(&names[..])));
        assert_eq!(data.y().idx().unwrap().data(), [2, 0, 3, 0, 1]);
        assert_eq!(read("1,0\n2,1\n").unwrap().class_names(), None);
        let numbers = read("1,2\n2,0\n3,3\n4,0\n5,1").unwrap();
        assert_eq!(numbers.hash(), data.hash());
        let many: String = (0..=MAX_CLASSES).map(|i| format!("1,c{i}\n")).collect();
        assert!(read(&many).unwrap_err().contains("line 65537, column 2: `c65536` is one name too many"));
    }

    #[test]
    fn inputs_may_stand_beside_targets() {
        let inputs = |text: &str, features, targets| {
            let table = table(Path::new("f.csv"), text, Targets::Skipped { features, targets });
            table.map(|t| t.x.data().to_vec()).map_err(|e| e.to_string())
        };
        assert_eq!(inputs("a,b\n1,2\n3,4\n", 2, 1), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        assert_eq!(inputs("a,b,c\n1,2,rose\n3,4,\n", 2, 1), Ok(vec![1.0, 2.0, 3.0, 4.0]));
        let why = inputs("1,2,3,4\n", 2, 1).unwrap_err();
        assert!(
            why.contains("line 1, column 4: the row has 4 columns, but 2 are needed, or 3 with targets"),
            "{why}"
        );
        assert!(inputs("1\n", 2, 0).unwrap_err().contains("the row has 1 columns, but 2 are needed"));
        assert!(inputs("1,2\n3,x\n", 2, 1).unwrap_err().contains("line 2, column 2: `x` is not a number"));
    }

    #[test]
    fn targets_may_be_numbers() {
        let data = parse_csv_regression("f.csv", "a,b,c\n1,2,3\n4,5,-6.5", 2).unwrap();
        assert_eq!((numbers(&data), data.classes(), data.features()), (&[1.0, 4.0][..], None, 1));
        let y = data.y().num().unwrap();
        assert_eq!((y.shape().dims(), y.data()), (&[2, 2][..], &[2.0, 3.0, 5.0, -6.5][..]));
        assert_eq!(print_csv(&data).unwrap(), "x0,y0,y1\n1.0,2.0,3.0\n4.0,5.0,-6.5\n");
        assert_eq!(parse_csv_regression("f.csv", &print_csv(&data).unwrap(), 2).unwrap(), data);
        let message = |text: &str, n| parse_csv_regression("f.csv", text, n).unwrap_err().to_string();
        assert!(message("1,2", 2).contains("line 1, column 1: expected 3 columns or more"));
        assert!(message("1,2", usize::MAX).contains("got 2"));
        assert!(message("1,2", 0).contains("use 1 or more"));
        assert!(message("", 3).contains("targets in the last 3 columns"));
        assert!(message("1,2\n3,x", 1).contains("line 2, column 2: `x` is not a number"));
        let field = Tensor::new(&[2, 1, 1], vec![0.5f32; 2]).unwrap();
        assert!(
            print_csv(&data.with(field, data.y().clone()).unwrap())
                .unwrap_err()
                .to_string()
                .contains("no table")
        );
        assert!(
            print_csv(&data.with(data.y().clone(), Tensor::new(&[2, 1], vec![0u32; 2]).unwrap()).unwrap())
                .is_err()
        );
    }

    #[test]
    fn paths_that_cannot_be_read_are_errors() {
        let folder = std::env::temp_dir().join(format!("dittograd-csv-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("data.csv");
        let message = |p: &Path| csv(p).unwrap_err().to_string();
        assert!(message(&folder).contains("is a folder"));
        assert!(message(&file).contains("data.csv: "));
        std::fs::write(&file, b"1,0\n1,\xff\n").unwrap();
        assert!(message(&file).contains("line 2: is not UTF-8 text"));
        std::fs::write(&file, b"1,0\n2,1\n").unwrap();
        assert_eq!(csv(&file).unwrap().rows(), 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    fn dataset() -> impl Strategy<Value = Dataset> {
        (1usize..20, 1usize..6, 1usize..5).prop_flat_map(|(rows, width, classes)| {
            let finite = any::<f32>().prop_filter("finite", |v| v.is_finite());
            (
                proptest::collection::vec(finite, rows * width),
                proptest::collection::vec(0..classes as u32, rows),
            )
                .prop_map(move |(x, mut y)| {
                    y[0] = classes as u32 - 1;
                    let x = Tensor::new(&[rows, width], x).unwrap();
                    Dataset::new("d", x, Tensor::new(&[rows], y).unwrap(), Some(classes)).unwrap()
                })
        })
    }

    proptest! {
        #[test]
        fn printed_data_is_read_back_bit_for_bit(data in dataset()) {
            let text = print_csv(&data).unwrap();
            let (dos, bare) = (text.replace('\n', "\r\n"), text.split_once('\n').unwrap().1.to_string());
            for text in [text, dos, bare] {
                let got = parse_csv("d", &text).unwrap();
                let bits = |d: &Dataset| numbers(d).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&got), bits(&data));
                prop_assert_eq!(got, data.clone());
            }
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}") {
            let _ = parse_csv("d", &text);
        }

        #[test]
        fn no_text_of_likely_characters_makes_the_parser_panic(text in "[-0-9a.,\"\r\n \u{feff}é]{0,80}") {
            if let Ok(data) = parse_csv("d", &text) {
                prop_assert!(data.rows() > 0 && data.features() > 0);
                prop_assert!(data.y().idx().unwrap().data().iter().all(|&c| (c as usize) < data.classes().unwrap()));
            }
        }
    }
}
