//! Ops of one's own. Any type that implements [`Op`] can stand beside the ops of the list: [`Custom`] holds it where tapes, graphs
//! and compiled programs hold theirs.

use crate::pointwise::expression::Pointwise;
use crate::pointwise::map;
use crate::{
    AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Kernel, Known, Op, Recorder, Val,
    cache,
};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Dual, Ratio, Scalar};
use dittograd_numerics::tensor::Tensor;
use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, PoisonError, RwLock};

/// An op of one's own, as tapes and graphs hold it.
#[derive(Clone)]
pub struct Custom(Arc<dyn Erased>);

impl Custom {
    /// The op. Errors if its name is that of an op of the library or of another type, or is no name.
    pub fn new<O: Op + Send + Sync + 'static>(op: O) -> Result<Custom> {
        register::<O>()?;
        Ok(Custom(Arc::new(op)))
    }

    /// The op, if it is of that type.
    pub fn get<O: 'static>(&self) -> Option<&O> {
        self.0.as_any().downcast_ref()
    }

    /// The type of the op.
    #[cfg(feature = "cases")]
    pub(crate) fn kind(&self) -> TypeId {
        self.0.as_any().type_id()
    }

    pub(crate) fn op(&self) -> &dyn Erased {
        &*self.0
    }

    /// See [`Op::vjp`]. Errors unless there is a place for each input, and gradients have the inputs' shapes.
    pub(crate) fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let wrong = |why: String| Err(Error::new(self.0.name(), ErrorKind::Gradient { why }));
        let grads = self.0.vjp(r, io, dy)?;
        if grads.len() != io.ins.len() {
            return wrong(format!("`vjp` gave {} gradients for {} inputs", grads.len(), io.ins.len()));
        }
        for (i, (x, grad)) in io.ins.iter().zip(&grads).enumerate() {
            let Some(grad) = grad else { continue };
            let (x, grad) = (r.meta(*x), r.meta(*grad));
            if x != grad {
                let (want, got) = (x.shape, grad.shape);
                return wrong(format!(
                    "`vjp` gave input {i}, {want}, a gradient of another shape or type, {got}"
                ));
            }
        }
        Ok(grads)
    }

    /// See [`Op::reference`]. Numbers of other types than the library's must be made known by [`register_numbers`].
    pub(crate) fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let op = self.0.as_any();
        let known = DEFINITIONS.read().unwrap_or_else(PoisonError::into_inner);
        let definition = known.get(&(op.type_id(), TypeId::of::<T>())).and_then(|d| d.downcast_ref());
        match definition.copied() {
            Some(definition) => {
                let definition: Definition<T> = definition;
                drop(known);
                definition(op, ins)
            }
            None => Err(Error::unsupported(self.0.name(), format!("numbers of type {}", T::NAME))),
        }
    }
}

impl From<Custom> for AnyOp {
    fn from(op: Custom) -> AnyOp {
        AnyOp::Custom(op)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Custom) -> bool {
        self.0.equals(other.0.as_any())
    }
}

impl Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The rules of an op whose type is not known.
pub(crate) trait Erased: Debug + Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Any) -> bool;
    fn name(&self) -> &'static str;
    fn shape(&self, ins: &[Meta]) -> Result<Meta>;
    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)>;
    fn index_bound(&self, ins: &[Meta]) -> IndexBound;
    fn workspace(&self, ins: &[Meta], device: &Device) -> usize;
    fn cpu(&self, run: CpuRun<'_>);
    fn prepared(&self, ins: &[Meta]) -> Option<Kernel>;
    fn cuda(&self, run: &CudaRun<'_>) -> Result<()>;
    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source>;
    fn as_pointwise(&self, ins: &[Meta]) -> Option<Pointwise>;
    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>>;
    fn differentiable(&self) -> bool;
    fn attrs(&self) -> Vec<(&'static str, Attr)>;
}

impl<O: Op + Send + Sync + 'static> Erased for O {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<O>().is_some_and(|other| self == other)
    }

    fn name(&self) -> &'static str {
        O::NAME
    }

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Op::shape(self, ins)
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        Op::index_limit(self, ins)
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        Op::index_bound(self, ins)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        Op::workspace(self, ins, device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        Op::cpu(self, run);
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        Op::prepared(self, ins)
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        Op::cuda(self, run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        Op::cuda_modules(self, ins, gpu)
    }

    fn as_pointwise(&self, ins: &[Meta]) -> Option<Pointwise> {
        Op::as_pointwise(self, ins)
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Op::vjp(self, r, io, dy)
    }

    fn differentiable(&self) -> bool {
        Op::differentiable(self)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Op::attrs(self)
    }
}

/// A registered type of op.
struct Registered {
    kind: TypeId,
    from_attrs: fn(&Attrs) -> Result<AnyOp>,
}

/// Types of ops by their names.
static NAMES: RwLock<BTreeMap<&'static str, Registered>> = RwLock::new(BTreeMap::new());

const TAKEN: &str = "is the name of another type of op; choose another name";

/// [`Op::reference`] of one type of op in one type of number.
type Definition<T> = fn(&dyn Any, &[AnyTensor<T>]) -> Result<Tensor<T>>;

/// [`Definition`]s by the types of the op and of the numbers.
static DEFINITIONS: Known<(TypeId, TypeId), Arc<dyn Any + Send + Sync>> = Known::new(Default::default);

/// Makes an op of one's own known by its name, so that a program's text that has it can be read. Using an op does the same. Errors
/// if the name is that of an op of the library or of another type, or is no name.
pub fn register<O: Op + Send + Sync + 'static>() -> Result<()> {
    let wrong = |why: &str| Err(Error::argument("custom op", "NAME", format!("`{}` {why}", O::NAME)));
    if let Some(known) = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(O::NAME) {
        return if known.kind == TypeId::of::<O>() { Ok(()) } else { wrong(TAKEN) };
    }
    let letter = |c: char| c.is_ascii_lowercase() || c == '_';
    if !O::NAME.starts_with(letter) || !O::NAME.chars().all(|c| letter(c) || c.is_ascii_digit()) {
        return wrong("is no name: use lower-case letters, digits and `_`, and begin with a letter");
    }
    if AnyOp::NAMES.contains(&O::NAME) {
        return wrong("is an op of the library; choose another name");
    }
    register_numbers::<O, f32>();
    register_numbers::<O, f64>();
    register_numbers::<O, Dual>();
    register_numbers::<O, Ratio>();
    let from_attrs = |attrs: &Attrs| Ok(Custom(Arc::new(O::from_attrs(attrs)?)).into());
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let known = names.entry(O::NAME).or_insert(Registered { kind: TypeId::of::<O>(), from_attrs });
    // Another thread may have been first.
    if known.kind == TypeId::of::<O>() { Ok(()) } else { wrong(TAKEN) }
}

/// Makes the definition of an op of one's own known in another type of number than the library's.
pub fn register_numbers<O: Op + 'static, T: Scalar>() {
    let definition: Definition<T> = |op, ins| match op.downcast_ref::<O>() {
        Some(op) => op.reference(ins),
        None => Err(Error::unsupported(O::NAME, "an op of another type")),
    };
    let mut all = DEFINITIONS.write().unwrap_or_else(PoisonError::into_inner);
    all.insert((TypeId::of::<O>(), TypeId::of::<T>()), Arc::new(definition));
}

/// The registered op of that name with the given attributes.
pub(crate) fn from_name(name: &str, attrs: &Attrs) -> Option<Result<AnyOp>> {
    let from_attrs = NAMES.read().unwrap_or_else(PoisonError::into_inner).get(name)?.from_attrs;
    Some(from_attrs(attrs))
}

/// A number that a kernel is launched with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// `unsigned int`.
    U32(u32),
    /// `int`.
    I32(i32),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

/// A CUDA kernel of one's own. It is called with the addresses of the inputs, that of the output, then the numbers. Before its text
/// come the library's functions, which have the bits of the CPU's: `ditto_exp`, `ditto_log`, `ditto_tanh` and so on. Products are not
/// contracted with sums: write `fmaf` where one rounding is meant.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaKernel {
    /// CUDA C++ with a function `extern "C" __global__ void`.
    pub source: String,
    /// The name of that function.
    pub function: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// What the function takes after the addresses.
    pub numbers: Vec<Number>,
}

impl CudaKernel {
    /// A kernel with a thread for each of `n` elements, in blocks of 256: its last argument is `unsigned int n`, and a thread from `n` on
    /// does nothing. `None` if there are more than 32 bits count.
    pub fn for_each(source: impl Into<String>, function: &'static str, n: usize) -> Option<CudaKernel> {
        let n = u32::try_from(n).ok()?;
        let (grid, numbers) = ([n.div_ceil(256), 1, 1], vec![Number::U32(n)]);
        Some(CudaKernel { source: source.into(), function, grid, block: 256, shared: 0, numbers })
    }

    /// The module of the kernel of an op called `op`.
    pub(crate) fn module(&self, op: &str) -> Source {
        let hash = blake3::hash(self.source.as_bytes()).to_hex();
        cache::module(format!("{op}_{}", &hash[..16]), || format!("{}{}", map::prelude(), self.source))
    }

    /// Queues the kernel.
    pub(crate) fn launch(&self, op: &str, run: &CudaRun<'_>) -> Result<()> {
        let (module, source) = self.module(op);
        let kernel = run.cuda.kernel(&module, source, self.function)?;
        let mut args = Args::new();
        run.ins.iter().for_each(|&address| {
            args.ptr(address);
        });
        args.ptr(run.out);
        for number in &self.numbers {
            match *number {
                Number::U32(x) => args.u32(x),
                Number::I32(x) => args.i32(x),
                Number::U64(x) => args.u64(x),
                Number::F32(x) => args.f32(x),
            };
        }
        run.cuda.launch(kernel, self.grid, self.block, self.shared, &args)
    }
}

/// [`Op::cpu`] of an op that has none: its definition in float32. What a definition refuses though [`Op::shape`] took it is NaN.
pub(crate) fn cpu_by_definition<O: Op>(op: &O, run: CpuRun<'_>) {
    let input = |(meta, words): (&Meta, &&[f32])| match meta.dtype {
        DType::F32 => Tensor::with_shape(meta.shape, words.to_vec()).map(AnyTensor::Num),
        DType::U32 => {
            Tensor::with_shape(meta.shape, words.iter().map(|w| w.to_bits()).collect()).map(AnyTensor::Idx)
        }
    };
    let ins: Result<Vec<AnyTensor<f32>>> = run.metas.iter().zip(run.ins).map(input).collect();
    let dtype = op.shape(run.metas).map_or(DType::F32, |meta| meta.dtype);
    match ins.and_then(|ins| op.reference(&ins)) {
        Ok(value) if value.data().len() == run.out.len() => {
            for (out, &x) in run.out.iter_mut().zip(value.data()) {
                *out = if dtype == DType::U32 { f32::from_bits(x as u32) } else { x };
            }
        }
        _ => run.out.fill(f32::NAN),
    }
}
