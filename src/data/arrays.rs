//! Data sets from NumPy's files.

use super::{Dataset, IGNORE};
use crate::error::{Error, Result};
use crate::io::bytes::file_name;
use crate::io::{read_npz, said};
use crate::tensor::{AnyTensor, Tensor};
use std::path::Path;

/// Reads a data set from a `.npz` file with the arrays `x` and `y`, as `np.savez("set.npz", x=x, y=y)` writes it; other
/// arrays are ignored. Floats are numbers, integers are indices (see [`read_npy`](crate::io::read_npy)). If the targets
/// are indices, the number of classes is the largest one plus one, or the value of the array `classes`. The data set is
/// named after the file.
#[track_caller]
pub fn npz(path: impl AsRef<Path>) -> Result<Dataset> {
    let path = path.as_ref();
    of(path, read_npz(path)?)
}

/// Like [`npz`], with a test part of the same classes if there are arrays `x_test` and `y_test`.
#[track_caller]
pub fn npz_parts(path: impl AsRef<Path>) -> Result<(Dataset, Option<Dataset>)> {
    let path = path.as_ref();
    let (tests, mut arrays): (Vec<_>, Vec<_>) =
        read_npz(path)?.into_iter().partition(|(name, _)| matches!(name.as_str(), "x_test" | "y_test"));
    let shared = arrays.iter().position(|(name, _)| name == "classes").map(|at| arrays[at].clone());
    let mut test: Vec<(String, AnyTensor)> =
        tests.into_iter().map(|(name, array)| (name.trim_end_matches("_test").to_string(), array)).collect();
    if test.is_empty() {
        return Ok((of(path, arrays)?, None));
    }
    let classes = match shared {
        Some(given) => given,
        None => {
            let targets = arrays.iter().chain(&test).filter(|(name, _)| name == "y");
            let count = targets.filter_map(|(_, y)| y.idx().ok()).map(classes_of).max().unwrap_or(1);
            ("classes".to_string(), Tensor::scalar(count).into())
        }
    };
    arrays.retain(|(name, _)| name != "classes");
    test.push(classes.clone());
    arrays.push(classes);
    Ok((of(path, arrays)?, Some(of(path, test)?)))
}

/// One more than the largest target that counts, that is, below [`IGNORE`].
fn classes_of(y: &Tensor<u32>) -> u32 {
    y.data().iter().filter(|c| **c != IGNORE).max().map_or(1, |c| c + 1)
}

#[track_caller]
fn of(path: &Path, mut arrays: Vec<(String, AnyTensor)>) -> Result<Dataset> {
    let names: Vec<String> = arrays.iter().map(|(n, _)| format!("`{n}`")).collect();
    let mut find = |name: &str| {
        let at = arrays.iter().position(|(n, _)| n == name)?;
        Some(arrays.swap_remove(at).1)
    };
    let fail = |why: String| Error::file("npz", path, why);
    let (Some(x), Some(y)) = (find("x"), find("y")) else {
        let found = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(fail(format!("needs the arrays `x` and `y`, has {}", said(found))));
    };
    let classes = match (&y, find("classes")) {
        (AnyTensor::Idx(_), Some(classes)) => match classes.idx().map(|t| t.data().to_vec()) {
            Ok(count) if count.len() == 1 => Some(count[0] as usize),
            _ => return Err(fail("array `classes` must hold one whole number".into())),
        },
        (AnyTensor::Idx(y), None) => Some(classes_of(y) as usize),
        (AnyTensor::Num(_), _) => None,
    };
    Dataset::new(file_name(path), x, y, classes).map_err(|e| fail(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::write_npz;
    use crate::tensor::Tensor;

    #[test]
    fn arrays_make_a_data_set() {
        let num = |dims: &[usize]| -> AnyTensor {
            Tensor::full(crate::shape::Shape::new(dims).unwrap(), 0.5f32).into()
        };
        let idx = |v: &[u32]| -> AnyTensor { Tensor::new(&[v.len()], v.to_vec()).unwrap().into() };
        let path = std::env::temp_dir().join(format!("dittograd-arrays-{}.npz", std::process::id()));
        let read = |arrays: &[(&str, &AnyTensor)]| {
            write_npz(&path, arrays).unwrap();
            npz(&path).map_err(|e| e.to_string())
        };
        let (x, y) = (num(&[3, 1, 2]), idx(&[0, 4, 1]));
        let data = read(&[("y", &y), ("other", &y), ("x", &x)]).unwrap();
        assert_eq!((data.x(), data.y(), data.classes()), (&x, &y, Some(5)));
        assert_eq!(read(&[("y", &y), ("classes", &idx(&[9])), ("x", &x)]).unwrap().classes(), Some(9));
        assert_eq!(read(&[("y", &num(&[3])), ("x", &x)]).unwrap().classes(), None);
        assert!(read(&[("y", &y)]).unwrap_err().contains("needs the arrays `x` and `y`, has `y`"));
        assert!(read(&[("x", &x), ("y", &idx(&[1]))]).unwrap_err().contains("one target for each of 3 rows"));
        assert!(read(&[("x", &x), ("y", &y), ("classes", &x)]).unwrap_err().contains("one whole number"));
        let wild = idx(&[0, 1, u32::MAX - 1]);
        assert!(read(&[("x", &x), ("y", &wild)]).unwrap_err().contains("use 1 to 65536"));
        std::fs::remove_file(&path).unwrap();
    }
}
