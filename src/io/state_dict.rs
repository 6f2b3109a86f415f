//! State dicts: named tensors, and parameters from and to them.

use super::checkpoint::{Checkpoint, OPTIMIZER};
use super::safetensors::{SafeTensors, Writer};
use super::shown;
use crate::error::{Error, ErrorKind, Located, Result};
use crate::params::{Fingerprint, Param, Params};
use crate::shape::Shape;
use crate::tensor::{AnyTensor, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

/// Tensors by name, for example from a file. Adapt names and layouts, then [load](Params::load_state_dict) them into
/// parameters.
///
/// ```no_run
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let mut params = Params::new(&Device::cpu()?, 0);
/// let net = Mlp::new(&mut params, &[784, 512, 10])?;
/// // Saved by a program that wrapped its model, under other names.
/// let state = StateDict::read("mlp.safetensors")?.without_prefix("module.")?;
/// let state = state.rename(|name| Some(name.replace("layers.", "net.")))?;
/// params.load_state_dict(&state, true)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateDict(BTreeMap<String, AnyTensor>);

impl From<BTreeMap<String, AnyTensor>> for StateDict {
    fn from(tensors: BTreeMap<String, AnyTensor>) -> StateDict {
        StateDict(tensors)
    }
}

/// What did not match in [`Params::load_state_dict`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Parameters that are not in the state; they keep their values.
    pub missing: Vec<String>,
    /// Tensors of the state that match no parameter.
    pub extra: Vec<String>,
}

impl StateDict {
    /// No tensors yet.
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// All tensors of a safetensors file; for a checkpoint, its parameters.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Result<StateDict> {
        SafeTensors::read(path).and_then(|file| StateDict::from_file(&file)).located()
    }

    /// All tensors of an already read file; for a checkpoint, its parameters.
    #[track_caller]
    pub fn from_file(file: &SafeTensors) -> Result<StateDict> {
        match Checkpoint::is_one(file) {
            true => Checkpoint::verify(file).and_then(|_| StateDict::of(file, |n| !n.starts_with(OPTIMIZER))),
            false => StateDict::of(file, |_| true),
        }
    }

    /// The tensors whose names `wanted` accepts.
    #[track_caller]
    pub(super) fn of(file: &SafeTensors, wanted: impl Fn(&str) -> bool) -> Result<StateDict> {
        let names = file.iter().map(|(name, _)| name).filter(|n| wanted(n));
        names.map(|n| Ok((n.to_string(), file.tensor(n)?))).collect::<Result<_>>().map(StateDict)
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&AnyTensor> {
        self.0.get(name)
    }

    /// Inserts or replaces a tensor.
    pub fn insert(&mut self, name: &str, tensor: impl Into<AnyTensor>) {
        self.0.insert(name.to_string(), tensor.into());
    }

    /// Names and tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &AnyTensor)> {
        self.0.iter().map(|(name, t)| (name.as_str(), t))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Total number of elements.
    pub fn numel(&self) -> usize {
        self.iter().map(|(_, t)| t.shape().numel()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Renames the tensors; those that get `None` are dropped. Duplicate names are an error.
    #[track_caller]
    pub fn rename(self, f: impl Fn(&str) -> Option<String>) -> Result<StateDict> {
        let mut renamed: BTreeMap<String, AnyTensor> = BTreeMap::new();
        for (old, tensor) in self.0 {
            let Some(name) = f(&old) else { continue };
            if renamed.contains_key(&name) {
                let why = format!("`{}` would be called `{}`, as another is", shown(&old), shown(&name));
                return Err(Error::argument("rename", "name", why));
            }
            renamed.insert(name, tensor);
        }
        Ok(StateDict(renamed))
    }

    /// Removes `prefix`, such as `module.`, from the names that start with it.
    #[track_caller]
    pub fn without_prefix(self, prefix: &str) -> Result<StateDict> {
        self.rename(|name| Some(name.strip_prefix(prefix).unwrap_or(name).to_string()))
    }

    /// Transposes the matrices whose names `of` accepts.
    #[track_caller]
    pub fn transpose(mut self, of: impl Fn(&str) -> bool) -> Result<StateDict> {
        for (name, tensor) in self.0.iter_mut().filter(|(name, _)| of(name)) {
            let shape = tensor.shape();
            let &[rows, columns] = shape.dims() else {
                let op = format!("transpose {}", shown(name));
                return Err(Error::new(op, ErrorKind::Rank { want: "exactly 2", got: shape }));
            };
            let turned = Shape::new(&[columns, rows])?;
            let from = |i: usize| i % rows * columns + i / rows;
            *tensor = match &*tensor {
                AnyTensor::Num(t) => Tensor::from_fn(turned, |i| t.data()[from(i)]).into(),
                AnyTensor::Idx(t) => Tensor::from_fn(turned, |i| t.data()[from(i)]).into(),
            };
        }
        Ok(self)
    }

    /// Writes a safetensors file atomically. Equal tensors give equal bytes.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.writer()?.save(path)
    }

    #[track_caller]
    fn writer(&self) -> Result<Writer<'_>> {
        let mut file = Writer::new();
        // Hugging Face's programs expect this mark for PyTorch's layouts.
        file.metadata("format", "pt")?;
        self.iter().try_for_each(|(name, t)| file.tensor(name, t).map(|_| ()))?;
        Ok(file)
    }

    /// The [fingerprint](Params::fingerprint) of parameters with these names and values, without indices.
    pub fn fingerprint(&self) -> String {
        let mut print = Fingerprint::default();
        for (name, tensor) in self.iter() {
            if let AnyTensor::Num(t) = tensor {
                print.add(name, t);
            }
        }
        print.finish()
    }
}

/// The first few of a list.
fn some(list: &[String]) -> String {
    let more = if list.len() > 3 { ", …" } else { "" };
    format!("({}{more})", list[..list.len().min(3)].join(", "))
}

/// Parameters with their new tensors, and what is left over on both sides.
pub(super) struct Fit<'a> {
    pairs: Vec<(&'a Param, &'a Tensor<f32>)>,
    loaded: Loaded,
}

impl<'a> Fit<'a> {
    /// Checks everything; the error lists all mismatches.
    #[track_caller]
    pub(super) fn new(params: &'a Params, state: &'a StateDict, strict: bool) -> Result<Fit<'a>, String> {
        let mut fit = Fit { pairs: Vec::new(), loaded: Loaded::default() };
        let (mut misshaped, mut indices) = (Vec::new(), Vec::new());
        for p in params.iter() {
            match state.get(p.name()) {
                None => fit.loaded.missing.push(p.name().to_string()),
                Some(AnyTensor::Idx(_)) => indices.push(p.name().to_string()),
                Some(AnyTensor::Num(t)) if t.shape() != p.shape() => {
                    misshaped.push(format!("{}: {}, needs {}", p.name(), t.shape(), p.shape()));
                }
                Some(AnyTensor::Num(t)) => fit.pairs.push((p, t)),
            }
            if p.buffer().buffer().is_released() {
                return Err(format!("the memory of parameter {} was released", p.name()));
            }
        }
        let known: std::collections::BTreeSet<&str> = params.iter().map(Param::name).collect();
        let extra = state.iter().map(|(name, _)| name).filter(|name| !known.contains(name));
        // A counter that PyTorch's batch norms keep beside their statistics. It has no effect.
        fit.loaded.extra =
            extra.filter(|n| !n.ends_with("num_batches_tracked")).map(str::to_string).collect();
        let mut wrong = Vec::new();
        let mut tell = |list: &[String], what: &str| {
            if !list.is_empty() {
                wrong.push(format!("{} {what} {}", list.len(), some(list)));
            }
        };
        if strict {
            tell(&fit.loaded.missing, "missing");
            tell(&fit.loaded.extra.iter().map(|n| shown(n)).collect::<Vec<_>>(), "extra");
        }
        tell(&misshaped, "of another shape");
        tell(&indices, "of whole numbers");
        if wrong.is_empty() {
            return Ok(fit);
        }
        let mut why = format!("the tensors do not fit the {} parameters: {}", params.len(), wrong.join("; "));
        let prefix = |m: &String| {
            let begin =
                |e: &String| e.strip_suffix(m.as_str()).filter(|p| p.ends_with('.')).map(str::to_string);
            fit.loaded.extra.iter().find_map(begin)
        };
        if let Some(prefix) = fit.loaded.missing.first().and_then(prefix) {
            why.push_str(&format!("; strip the prefix `{}` with StateDict::without_prefix", shown(&prefix)));
        }
        Err(why)
    }

    #[track_caller]
    pub(super) fn apply(self) -> Result<Loaded> {
        self.pairs.iter().try_for_each(|(p, t)| p.set(t))?;
        Ok(self.loaded)
    }
}

/// Parameters to and from state dicts and files.
pub trait SaveLoad {
    /// All values on the host. Waits for the device.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict>;

    /// Replaces values by the tensors with the same names. If a shape differs, this is an error and nothing changes.
    /// With `strict`, a parameter without a tensor or a tensor without a parameter is an error too; otherwise these are
    /// returned.
    #[track_caller]
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<Loaded>;

    /// Writes all values to a safetensors file atomically. [`SaveLoad::load`] and PyTorch can load it.
    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()>;

    /// Replaces all values by those of a safetensors file or checkpoint. Names and shapes must be the same on both
    /// sides; on an error nothing changes. For files that differ slightly, read a [`StateDict`].
    #[track_caller]
    fn load(&self, path: impl AsRef<Path>) -> Result<()>;
}

impl SaveLoad for Params {
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        let value = |p: &Param| Ok((p.name().to_string(), p.get::<f32>()?.into()));
        self.iter().map(value).collect::<Result<_>>().map(StateDict)
    }

    #[track_caller]
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<Loaded> {
        match Fit::new(self, state, strict) {
            Ok(fit) => fit.apply(),
            Err(why) => Err(Error::argument("load", "state", why)),
        }
    }

    #[track_caller]
    fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.state_dict()?.save(path)
    }

    #[track_caller]
    fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let state = StateDict::read(path.as_ref())?;
        match Fit::new(self, &state, true) {
            Ok(fit) => fit.apply().map(|_| ()),
            Err(why) => Err(Error::file("load", path, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    fn params(seed: u64) -> Params {
        let mut params = Params::new(&Device::cpu().unwrap(), seed);
        Mlp::new(&mut params, &[3, 4, 2]).unwrap();
        params
    }

    #[test]
    fn parameters_come_back_from_a_file() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a.safetensors");
        let (a, b) = (params(1), params(2));
        a.save(&path).unwrap();
        assert_ne!(a.fingerprint().unwrap(), b.fingerprint().unwrap());
        b.load(&path).unwrap();
        assert_eq!(a.fingerprint().unwrap(), b.fingerprint().unwrap());
        assert_eq!(StateDict::read(&path).unwrap().fingerprint(), a.fingerprint().unwrap());
        // Every parameter, and bytes that depend on nothing else.
        assert_eq!(SafeTensors::read(&path).unwrap().len(), a.len());
        let bytes = std::fs::read(&path).unwrap();
        b.save(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn what_does_not_fit_is_listed_and_nothing_changed() {
        let (a, b) = (params(1), params(2));
        let before = a.fingerprint().unwrap();
        let full = b.state_dict().unwrap();
        let wrong = |state: StateDict| {
            let error = a.load_state_dict(&state, true).unwrap_err().to_string();
            assert_eq!(a.fingerprint().unwrap(), before, "{error}");
            error
        };
        let wrapped = full.clone().rename(|n| Some(format!("module.{n}"))).unwrap();
        assert_eq!(
            wrong(wrapped.clone()),
            "load: state: the tensors do not fit the 4 parameters: 4 missing (net.0.weight, net.0.bias, net.2.weight, …); \
             4 extra (module.net.0.bias, module.net.0.weight, module.net.2.bias, …); strip the prefix `module.` with \
             StateDict::without_prefix"
        );
        assert!(a.load_state_dict(&wrapped.without_prefix("module.").unwrap(), true).is_ok());
        assert_eq!(a.fingerprint().unwrap(), b.fingerprint().unwrap());
        a.load_state_dict(&params(1).state_dict().unwrap(), true).unwrap();

        let mut odd = full.clone().transpose(|n| n == "net.0.weight").unwrap();
        odd.insert("net.2.bias", Tensor::new(&[2], vec![1u32, 2]).unwrap());
        assert_eq!(
            wrong(odd.clone()),
            "load: state: the tensors do not fit the 4 parameters: 1 of another shape (net.0.weight: [3, 4], needs [4, 3]); \
             1 of whole numbers (net.2.bias)"
        );
        assert!(a.load_state_dict(&odd, false).is_err());
        let mut some = full.clone().rename(|n| n.starts_with("net.0").then(|| n.to_string())).unwrap();
        some.insert("more", Tensor::scalar(1.0f32));
        some.insert("bn.num_batches_tracked", Tensor::scalar(3u32));
        assert!(wrong(some.clone()).contains("2 missing (net.2.weight, net.2.bias); 1 extra (more)"));
        let loaded = a.load_state_dict(&some, false).unwrap();
        assert_eq!(loaded.missing, ["net.2.weight", "net.2.bias"]);
        assert_eq!(loaded.extra, ["more"]);
        let now = a.state_dict().unwrap();
        assert_eq!(now.get("net.0.bias"), full.get("net.0.bias"));
        assert_ne!(now.get("net.2.weight"), full.get("net.2.weight"));
    }

    #[test]
    fn names_and_layouts_are_changed() {
        let mut state = StateDict::new();
        state.insert("a.w", Tensor::new(&[2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap());
        state.insert("w", Tensor::new(&[0, 3], Vec::<f32>::new()).unwrap());
        let turned = state.clone().transpose(|_| true).unwrap();
        let want = Tensor::new(&[3, 2], vec![1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0]).unwrap();
        assert_eq!(turned.get("a.w"), Some(&want.into()));
        assert_eq!(turned.get("w").unwrap().shape().dims(), [3, 0]);
        assert!(state.clone().without_prefix("a.").unwrap_err().to_string().contains("`w`"));
        state.insert("s", Tensor::scalar(1u32));
        assert!(state.transpose(|n| n == "s").unwrap_err().to_string().contains("transpose s"));
    }

    #[test]
    fn the_number_of_tensors_and_the_mark_of_their_layout() {
        let mut state = StateDict::new();
        assert_eq!((state.len(), state.is_empty()), (0, true));
        state.insert("a", Tensor::new(&[1], vec![1.0f32]).unwrap());
        state.insert("b", Tensor::new(&[1], vec![2.0f32]).unwrap());
        assert_eq!((state.len(), state.is_empty()), (2, false));
        let map: BTreeMap<String, AnyTensor> =
            state.iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        assert_eq!(StateDict::from(map), state);
        let file = SafeTensors::parse("x", state.writer().unwrap().to_bytes().unwrap()).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
    }

    #[test]
    fn lists_of_names_are_cut_after_three() {
        let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!((some(&list(3)), some(&list(4))), ("(0, 1, 2)".to_string(), "(0, 1, 2, …)".to_string()));
    }
}
