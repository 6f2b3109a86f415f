//! Parameters: named values that outlive sessions. There is one copy, on the device; reading it on the
//! host downloads it, so a stale read is impossible. Optimizers change it in place.

mod init;

pub use init::Fan;

use dittograd_device::{AnyBuffer, DType, Device};
use dittograd_numerics::canonical_bits;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A named value that training changes. Clones are the same parameter.
#[derive(Clone)]
pub struct Param(Arc<Inner>);

struct Inner {
    id: u64,
    name: String,
    /// Replaced as a whole when the parameter moves to another device; updates change the memory in place.
    value: RwLock<AnyBuffer>,
    trainable: AtomicBool,
    /// It is never trained.
    buffer: AtomicBool,
    /// Counts changes of the value, so that a tape recorded before one can be told.
    version: AtomicU64,
    /// Counts moves between devices.
    moves: AtomicU64,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// Changes that this thread has made so far to values that programs read anew at every run: parameters and
/// [`Nats`](crate::session::Nats).
pub(crate) fn changes() -> u64 {
    CHANGES.get()
}

/// Counts one of the [`changes`].
pub(crate) fn count_change() {
    CHANGES.set(CHANGES.get() + 1);
}

impl Param {
    fn new(name: &str, value: AnyBuffer) -> Param {
        Param(Arc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: name.to_string(),
            value: RwLock::new(value),
            trainable: AtomicBool::new(true),
            buffer: AtomicBool::new(false),
            version: AtomicU64::new(0),
            moves: AtomicU64::new(0),
        }))
    }

    /// What tells it from all other parameters of this process.
    #[doc(hidden)]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.buffer().shape()
    }

    /// Its value on the device. The memory is the parameter's own: the next update changes it.
    pub fn buffer(&self) -> AnyBuffer {
        self.0.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether optimizers change it. True unless it was frozen.
    pub fn trainable(&self) -> bool {
        self.0.trainable.load(Ordering::Relaxed) && !self.is_buffer()
    }

    /// Freezes or unfreezes it. A [buffer](Param::set_buffer) stays frozen, so that all parameters of a part can be unfrozen
    /// together.
    pub fn set_trainable(&self, on: bool) {
        self.0.trainable.store(on, Ordering::Relaxed);
    }

    /// Makes it a buffer: a value that belongs to a model and is never trained, such as the running statistics of batch norm.
    #[doc(alias = "register_buffer")]
    pub fn set_buffer(&self) {
        self.0.buffer.store(true, Ordering::Relaxed);
    }

    /// Whether it is a buffer.
    pub fn is_buffer(&self) -> bool {
        self.0.buffer.load(Ordering::Relaxed)
    }

    /// The current value. Waits for the device.
    pub fn get<T: Scalar>(&self) -> Result<Tensor<T>> {
        self.buffer().to_tensor()
    }

    fn check_shape(&self, shape: Shape) -> Result<()> {
        if shape == self.shape() {
            return Ok(());
        }
        let why = "the new value has another shape than the parameter";
        let kind = ErrorKind::Shapes { why, left: shape, right: self.shape() };
        Err(Error::new(format!("parameter {}", self.name()), kind))
    }

    /// Replaces the value, rounded to float32 (on a device of another number type: in that type). Errors if the shape is
    /// another; nothing is changed then.
    pub fn set<T: Scalar>(&self, value: &Tensor<T>) -> Result<()> {
        self.check_shape(value.shape())?;
        self.buffer().assign("set", value)?;
        self.changed();
        Ok(())
    }

    /// Replaces the value by a copy of one that is on a device already, such as that of a [`Var`](crate::session::Var); from
    /// another device it comes through the host. Errors if the shape is another; nothing is changed then.
    pub fn set_from(&self, value: &AnyBuffer) -> Result<()> {
        self.check_shape(value.shape())?;
        value.meta().dtype.require(DType::F32, "set", 0)?;
        self.buffer().copy_from("set", value)?;
        self.changed();
        Ok(())
    }

    /// Puts the parameter, for all its clones, where `value` is.
    fn move_to(&self, value: AnyBuffer) {
        *self.0.value.write().unwrap_or_else(PoisonError::into_inner) = value;
        self.0.moves.fetch_add(1, Ordering::Relaxed);
        self.changed();
    }

    pub(crate) fn moves(&self) -> u64 {
        self.0.moves.load(Ordering::Relaxed)
    }

    /// The error of a trainable parameter that the loss was not computed from.
    #[cold]
    pub(crate) fn unreached(&self) -> Error {
        let name = self.name();
        let what = "use it, freeze it, or make model and step from the same Params";
        let why = format!("the loss does not depend on trainable parameter {name}: {what}");
        Error::new("optimizer", ErrorKind::Gradient { why })
    }

    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Relaxed)
    }

    pub(crate) fn changed(&self) {
        self.0.version.fetch_add(1, Ordering::Relaxed);
        count_change();
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({} {})", self.name(), self.shape())
    }
}

/// Parameters as they were when a program was traced: what was recorded holds as long as they are so.
pub(crate) struct Traits(Vec<(Param, bool, u64)>);

impl Traits {
    pub(crate) fn of<'a>(params: impl Iterator<Item = &'a Param>) -> Traits {
        Traits(params.map(|p| (p.clone(), p.trainable(), p.moves())).collect())
    }

    /// Whether one of them has other memory since.
    pub(crate) fn moved(&self) -> bool {
        self.0.iter().any(|(p, _, moves)| p.moves() != *moves)
    }

    /// Whether each is trainable or frozen as it was.
    pub(crate) fn same_trainable(&self) -> bool {
        self.0.iter().all(|(p, trainable, _)| p.trainable() == *trainable)
    }
}

/// The parameters of a model: created in order from one seed, found by name.
#[derive(Debug)]
pub struct Params {
    device: Device,
    seed: u64,
    list: Vec<Param>,
    /// Where each name is in the list.
    names: HashMap<String, usize>,
    /// What the names of new parameters begin with, inside scopes.
    prefix: String,
    /// Elements of all together, and the most that there may be.
    numel: usize,
    most: usize,
}

impl Params {
    /// No parameters yet. Initial values will be drawn from `seed`.
    pub fn new(device: &Device, seed: u64) -> Params {
        let (list, names) = (Vec::new(), HashMap::new());
        Params {
            device: device.clone(),
            seed,
            list,
            names,
            prefix: String::new(),
            numel: 0,
            most: usize::MAX,
        }
    }

    /// The same with room for so many elements in all: a parameter beyond that is an error before it takes any memory. For models
    /// whose sizes come from a file.
    pub fn at_most(mut self, elements: usize) -> Params {
        self.most = elements;
        self
    }

    /// The same parameters, where `name` and a dot come before every name that is given: two models can be in one `Params`.
    /// Initial values do not depend on names.
    ///
    /// A scope ends with its statement, or with the variable that holds it. A struct literal is one statement: make parts in
    /// scopes before it, or in a function that begins with `let params = &mut params.scope(name);`.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let mut params = Params::new(&Device::cpu()?, 0);
    /// let encoder = Mlp::new(&mut params.scope("encoder"), &[8, 16, 4])?;
    /// let decoder = Mlp::new(&mut params.scope("decoder"), &[4, 16, 8])?;
    /// assert!(params.get("encoder.net.0.weight").is_some());
    /// for p in params.under("encoder") {
    ///     p.set_trainable(false); // frozen: a step trains the decoder only
    /// }
    /// # let _ = (encoder, decoder);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("pp", "push_prefix"))]
    pub fn scope(&mut self, name: &str) -> Scope<'_> {
        let outer = self.prefix.len();
        if !name.is_empty() {
            self.prefix.push_str(name);
            self.prefix.push('.');
        }
        Scope { params: self, outer }
    }

    /// A name with those of the scopes around it.
    fn full_name<'a>(&self, name: &'a str) -> Cow<'a, str> {
        if self.prefix.is_empty() { name.into() } else { format!("{}{name}", self.prefix).into() }
    }

    /// The parameters whose names begin with `name` and a dot: those that were made in that scope.
    pub fn under(&self, name: &str) -> impl Iterator<Item = &Param> {
        let prefix = format!("{}.", self.full_name(name));
        self.list.iter().filter(move |p| p.name().starts_with(&prefix))
    }

    /// The shape of a new parameter, if there is room for it and its name is free.
    pub(crate) fn room(&self, name: &str, dims: &[usize]) -> Result<Shape> {
        let shape = Shape::new(dims)?;
        if name.is_empty() {
            return Err(Error::argument("parameter", "name", "is empty; every parameter has a name"));
        }
        if self.get(name).is_some() {
            let full = self.full_name(name);
            let why =
                format!("`{full}` is taken; make the second model in a scope: `params.scope(\"second\")`");
            return Err(Error::argument("parameter", "name", why));
        }
        if self.numel.saturating_add(shape.numel()) > self.most {
            let why = format!("{name} {shape}: the model would have more than {} parameters", self.most);
            return Err(Error::argument("parameter", "shape", why));
        }
        Ok(shape)
    }

    /// The device they live on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The seed of initial values.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Moves all parameters, and so every model that holds them, to another device; nothing is moved on an error.
    /// Optimizers bring their state along at the next step, and compiled steps are compiled again. Between devices of
    /// float32 no bit changes.
    pub fn to(&mut self, device: &Device) -> Result<()> {
        let moved = self.list.iter().map(|p| p.buffer().to_device(device)).collect::<Result<Vec<_>>>()?;
        self.list.iter().zip(moved).for_each(|(p, value)| p.move_to(value));
        self.device = device.clone();
        Ok(())
    }

    pub(crate) fn add(&mut self, name: &str, value: AnyBuffer) -> Result<Param> {
        self.numel += self.room(name, value.shape().dims())?.numel();
        let name = self.full_name(name);
        let param = Param::new(&name, value);
        self.names.insert(name.into(), self.list.len());
        self.list.push(param.clone());
        Ok(param)
    }

    /// A parameter with a given initial value.
    pub fn value<T: Scalar>(&mut self, name: &str, value: &Tensor<T>) -> Result<Param> {
        self.room(name, value.shape().dims())?;
        let value = AnyBuffer::upload(&self.device, value)?;
        self.add(name, value)
    }

    /// All parameters in the order they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        self.list.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The parameter of that name; in a scope, of that name there.
    pub fn get(&self, name: &str) -> Option<&Param> {
        self.names.get(&*self.full_name(name)).map(|i| &self.list[*i])
    }

    /// Elements of all parameters together.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// A hash of all parameter bits in the order of their names: 16 hex digits that two machines can
    /// compare. All NaNs count as one value.
    pub fn fingerprint(&self) -> Result<String> {
        let mut sorted: Vec<&Param> = self.list.iter().collect();
        sorted.sort_by_key(|p| p.name());
        let mut print = Fingerprint::default();
        for p in sorted {
            print.add(p.name(), &p.get()?);
        }
        Ok(print.finish())
    }
}

/// [`Params`] inside a scope: what [`Params::scope`] returns. It is used as `Params` are.
#[derive(Debug)]
pub struct Scope<'a> {
    params: &'a mut Params,
    /// Length of the prefix outside.
    outer: usize,
}

impl Deref for Scope<'_> {
    type Target = Params;

    fn deref(&self) -> &Params {
        self.params
    }
}

impl DerefMut for Scope<'_> {
    fn deref_mut(&mut self) -> &mut Params {
        self.params
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.params.prefix.truncate(self.outer);
    }
}

/// A hash of named values, which are added in the order of their names.
#[doc(hidden)]
#[derive(Default)]
pub struct Fingerprint(blake3::Hasher);

impl Fingerprint {
    /// The next value.
    pub fn add(&mut self, name: &str, value: &Tensor<f32>) {
        let hash = &mut self.0;
        hash.update(name.as_bytes()).update(&[0]);
        for &d in value.shape().dims() {
            hash.update(&(d as u64).to_le_bytes());
        }
        hash.update(&u64::MAX.to_le_bytes());
        for x in value.data() {
            hash.update(&canonical_bits(*x).to_le_bytes());
        }
    }

    /// 16 hex digits.
    pub fn finish(self) -> String {
        self.0.finalize().to_hex()[..16].to_string()
    }
}
