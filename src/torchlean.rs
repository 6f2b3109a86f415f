//! TorchLean's names for operations.
//!
//! [`Var`] has the names that PyTorch users expect. TorchLean's runtime names some operations differently, such as
//! `gatherRowsNat`. Programs ported from it import this module and write those names in snake case:
//!
//! ```
//! use dittograd::prelude::*;
//! use dittograd::torchlean::*;
//! # fn main() -> Result<()> {
//! let session = Session::eager(&Device::cpu()?);
//! let x = session.input(&Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
//! let rows = session.indices(&Tensor::new(&[2], vec![1, 7])?)?;
//! assert_eq!(x.gather_rows_nat(rows)?.to_string(), "[[3. 4.]\n [0. 0.]]");
//! # Ok(())
//! # }
//! ```
//!
//! # Operations
//!
//! | TorchLean | method here | ordinary method |
//! |---|---|---|
//! | `transpose2d` | [`transpose2d`](TorchLean::transpose2d) | [`Var::transpose`] |
//! | `transpose3dFirstToLast` | [`transpose3d_first_to_last`](TorchLean::transpose3d_first_to_last) | [`Var::permute`] by `[1, 2, 0]` |
//! | `transpose3dLastToFirst` | [`transpose3d_last_to_first`](TorchLean::transpose3d_last_to_first) | [`Var::permute`] by `[2, 0, 1]` |
//! | `transpose3dLastTwo` | [`transpose3d_last_two`](TorchLean::transpose3d_last_two) | [`Var::transpose`] |
//! | `swapAdjacentAtDepth` | [`swap_adjacent_at_depth`](TorchLean::swap_adjacent_at_depth) | [`Var::swap_axes`] |
//! | `broadcastVecToRows` | [`broadcast_vec_to_rows`](TorchLean::broadcast_vec_to_rows) | [`Var::expand`] to `[rows, n]` |
//! | `broadcastVecToCols` | [`broadcast_vec_to_cols`](TorchLean::broadcast_vec_to_cols) | [`Var::unsqueeze`] at 1, [`Var::expand`] to `[n, columns]` |
//! | `gatherScalar` | [`gather_scalar`](TorchLean::gather_scalar) | [`Var::select`] along axis 0 |
//! | `gatherScalarNat` | [`gather_scalar_nat`](TorchLean::gather_scalar_nat) | [`Var::index_select_or_zero`] |
//! | `gatherRow` | [`gather_row`](TorchLean::gather_row) | [`Var::select`] along axis 0 |
//! | `gatherVecNat` | [`gather_vec_nat`](TorchLean::gather_vec_nat) | [`Var::index_select_or_zero`] along axis 0 |
//! | `gatherRowsNat` | [`gather_rows_nat`](TorchLean::gather_rows_nat) | [`Var::index_select_or_zero`] along axis 0 |
//! | `scatterAddVec` | [`scatter_add_vec`](TorchLean::scatter_add_vec) | [`Var::index_add`] along axis 0 |
//! | `scatterAddRow` | [`scatter_add_row`](TorchLean::scatter_add_row) | [`Var::index_add`] along axis 0 |
//! | `scatterAdd` | [`scatter_add_nat`](TorchLean::scatter_add_nat) | [`Var::index_add_or_skip`] along axis 0 |
//! | `scatterAddRows` | [`scatter_add_rows_nat`](TorchLean::scatter_add_rows_nat) | [`Var::index_add_or_skip`] along axis 0 |
//! | `batchnormChannelFirst` | [`batchnorm_channel_first`](TorchLean::batchnorm_channel_first) | [`Var::instance_norm`] of a batch of one image |
//!
//! TorchLean's other operations are methods of `Var`. [`KNOWN`] lists all of them. Helpers of its operations:
//!
//! | TorchLean | here | what is different |
//! |---|---|---|
//! | `Ops.u32`, `Ops.numelU32` | [`Shape::numel`] | sizes have 64 bits; a shape of more elements is an error |
//! | `foldRowsColsLastAxis` | in the kernels | softmax takes any axis, and empty ones |
//! | `broadcastScalarToShape` | [`Var::broadcast_to`] | |
//! | `sigmoidBuf`, `tanhBuf`, `softplusBuf` | [`Var::sigmoid`], [`Var::tanh`], [`Var::softplus`] | `tanh` is no quotient of exponentials, which is NaN from 44.4 on |
//! | `rowSoftmaxForward`, `rowSoftmaxBwd` | [`Var::softmax`] | one kernel; no scratch memory |
//! | `rowLogSoftmaxForward`, `rowLogSoftmaxBwd` | [`Var::log_softmax`] | one kernel; no scratch memory |
//!
//! # Buffers
//!
//! Operations of buffers are those of `Var`. A gradient such as `absBwd` is the rule of its op.
//!
//! | TorchLean | here | what is different |
//! |---|---|---|
//! | `getDeterministicReductions`, `getDeterministicReductionsRaw` | [`get_deterministic_reductions`], [`Device::deterministic_reductions`] | always true |
//! | `setDeterministicReductions`, `setDeterministicReductionsChecked`, `setDeterministicReductionsRaw`, `setDeterministicReductionsCheckedRaw` | [`set_deterministic_reductions_checked`] | accepted, and changes nothing |
//! | `AllocatorStats`, `AllocatorStats.liveBytes`, `AllocatorStats.peakBytes`, `AllocatorStats.allocCount`, `AllocatorStats.freeCount`, `AllocatorStats.deviceFreeBytes`, `AllocatorStats.deviceTotalBytes` | [`MemoryStats`] | of one device, not of the process |
//! | `allocatorStats`, `allocatorStatsWithToken`, `allocatorLiveBytesRaw`, `allocatorPeakBytesRaw`, `allocatorAllocCountRaw`, `allocatorFreeCountRaw`, `allocatorDeviceFreeBytesRaw`, `allocatorDeviceTotalBytesRaw` | [`Device::memory`] | no tokens: calls are not merged |
//! | `mibString`, `AllocatorStats.format` | [`readable_bytes`], `MemoryStats::to_string` | |
//! | `ofFloatArray`, `ofFloatArrayIO`, `ofFloatArrayWithToken` | [`Buffer::upload`], [`AnyBuffer::upload`] | every upload has memory of its own |
//! | `toFloatArray` | [`Buffer::download`], [`AnyBuffer::to_tensor`] | |
//! | `Buffer.size` | [`Buffer::len`] | stays after a release |
//! | `release` | [`Buffer::release`] | what was released is an error to read, not empty |
//! | `releaseThen`, `releaseManyThen`, `WithWorkspace`, `WithWorkspace.value`, `WithWorkspace.workspace`, `releaseWorkspaceThen`, `releaseAllThen` | dropping a [`Buffer`] | memory goes with its last handle, so nothing is threaded through results |
//! | `collectAllocator`, `collectAllocatorRaw` | [`Device::collect`] | never needed: memory is reused across sizes |
//! | `zeros`, `full` | [`AnyBuffer::zeros`], [`AnyBuffer::full`] | |
//! | `randUniform`, `bernoulliMask` | [`Session::uniform`], [`Session::bernoulli_mask`] | other streams: seed and counter are mixed apart, and a uniform is below 1; so `keep` 1 keeps everything |
//! | `absBwd`, `sqrtBwd`, `clampBwd`, `maxBwd`, `minBwd`, `reluBwd` | [`Var::backward`] | same conventions: 0 at corners, halves at ties |
//! | `Buffer.copy` | [`AnyBuffer::copy`] | bits are copied, NaN too |
//! | `Buffer.reduceSum`, `Buffer.reduceMean` | [`Var::sum`], [`Var::mean`] | |
//!
//! # Tape
//!
//! | TorchLean | here | what is different |
//! |---|---|---|
//! | `Result` | [`Result`] | every error can be handled; nothing aborts |
//! | `AnyBuffer`, `AnyBuffer.s`, `AnyBuffer.buf` | [`AnyBuffer`], [`AnyBuffer::shape`], [`AnyBuffer::buffer`] | the constructor compares the sizes; indices have a type of their own |
//! | `natToU32Checked`, `AnyBuffer.numelU32` | [`Shape::new`] | sizes have 64 bits |
//! | `AnyBuffer.zeros`, `AnyBuffer.add` | [`AnyBuffer::zeros`], the op `add` by [`ops::apply`](crate::ops::apply) | |
//! | `Node`, `Node.name`, `Node.value`, `Node.requires_grad`, `Node.parents`, `Node.backward` | [`Node`] | a rule is an op, or a closure of yours; the value is gone after a walk that frees; a node needs a gradient only if a parent does |
//! | `Node.cleanup` | [`Node::cleanup`] | released by every walk that frees, not only by the session |
//! | `Tape`, `Tape.nodes`, `Tape.empty`, `Tape.size`, `getNode?`, `getValue?` | [`Tape`], [`Tape::new`], [`Tape::size`], [`Tape::node`], [`Tape::value`] | a tape belongs to a device |
//! | `addNode`, `addNode_id`, `size_addNode` | [`Tape::add_node`] | parents must be there; the theorems are tests |
//! | `leaf` | [`Tape::leaf`] | |
//! | `requireValue`, `requireGrad` | [`Tape::require_value`], [`Tape::require_grad`] | |
//! | `unary`, `binary` | [`Tape::unary`], [`Tape::binary`] | |
//! | `addGradAll`, `backwardDenseFromStep` | [`Tape::backward_step`] | the first contribution is stored as it is, so a -0 stays |
//! | `backwardDenseFromLoop` | [`Tape::backward_first`], [`Tape::backward_first_free`] | |
//! | `backwardDenseFrom` | [`Tape::backward_dense_from`], [`Tape::backward_dense_from_free`] | |
//! | `backwardDenseAll` | [`Tape::backward_dense`], [`Tape::backward_dense_free`] | rules of nodes that the output does not depend on are not run, so no NaN comes from them |
//!
//! # Session
//!
//! | TorchLean | here | what is different |
//! |---|---|---|
//! | `TensorConv`, `toAnyBuffer`, `ofAnyBuffer`, `toFloat` | [`AnyBuffer::upload`], [`AnyBuffer::to_tensor`], [`Scalar::to_f64`](crate::scalar::Scalar::to_f64) | a number type without float32 form is an error, or has a device of its own: [`HostDevice`](crate::HostDevice) |
//! | `axisMap` | [`AxisMap`] | |
//! | `Param`, `syncParamCudaToHost`, `setParamCudaValue`, `setParamHostValue` | [`Param`], [`Param::get`], [`Param::set_from`], [`Param::set`] | a parameter is on its device only, so no copy can be stale |
//! | `EagerSession`, `EagerSession.new`, `EagerSession.opts` | [`Session`], [`Session::new`], [`Options`] | |
//! | `EagerSession.tape`, `EagerSession.cudaTape` | [`Session::with_tape`] | one tape, on the session's device |
//! | `EagerSession.paramsByLeaf`, `CudaGradMap` | [`Grads`] | gradients are found by parameter |
//! | `EagerSession.nats` | [`Nats`] | lists outside of the session, so a reset does not empty them |
//! | `releaseCudaBuffer`, `releaseCudaAnyBuffer` | [`Buffer::release`] | |
//! | `releaseCudaTapeNonParamValues`, `releaseCudaTapeAfterOptimizerStep`, `resetTape` | [`Session::reset`] | views of parameters stay good; old handles are errors |
//! | `releaseCudaAnyBufferArray`, `releaseCudaGradMap` | dropping them | |
//! | `checkCudaAnyBufferSize` | [`AnyBuffer::new`] | checked when it is made |
//! | `ownedCudaAnyBuffer` | [`AnyBuffer::copy`] | |
//! | `collectCudaAllocator` | [`Device::collect`] | not once a step |
//! | `param`, `use` | [`Params::value`], [`Session::param`] | every use is one leaf, so gradients add up |
//! | `getValue` | [`Var::value`] | |
//! | `const` | [`Session::constant`] | uploaded once; equal ones share memory and are released apart |
//! | `detach` | [`Var::detach`] | |
//! | `input` | [`Session::input`], [`Session::variable`] | |
//! | `inputNat`, `inputNatVec`, `NatRef`, `NatVecRef` | [`Nats::new`], [`Session::nats`] | |
//! | `getNat`, `getNatVec`, `natVecToArray` | [`Nats::get`], [`Nats::values`] | |
//! | `setNat`, `setNatVec` | [`Nats::set`], [`Nats::set_values`] | a compiled program reads the new numbers too |
//!
//! # Compiled core
//!
//! | TorchLean | here | what is different |
//! |---|---|---|
//! | `GraphData` | [`GraphData`](crate::typed::GraphData) | |
//! | `TList` | [`TList`](crate::typed::TList), [`Context`](crate::typed::Context) | |
//! | `compile`, `compileAuxData` | [`GraphData::compile`](crate::typed::GraphData::compile), [`GraphData::compile_aux`](crate::typed::GraphData::compile_aux) | [`CompiledGraph`](crate::typed::CompiledGraph) compiles once and runs many times, on CUDA too |
//! | `outId`, `checkedOutId` | [`GraphData::out_id`](crate::typed::GraphData::out_id), [`GraphData::checked_out_id`](crate::typed::GraphData::checked_out_id) | |
//! | `backwardDenseAllFromOutput` | [`GraphData::backward`](crate::typed::GraphData::backward) | |
//! | `backwardDenseFromSeedCtx` | [`GraphData::backward_from`](crate::typed::GraphData::backward_from) | |
//!
//! # What is different on purpose
//!
//! - **One order of sums.** There are no float atomics, so there is no mode to switch.
//! - **Errors, not aborts.** Sizes, memory and the driver are checked, and every failure is an [`Error`].
//! - **Handles know their session.** A handle of another session or of an earlier step is an error.
//! - **Random numbers.** Streams differ. A compiled program draws new numbers at every run, the same ones as an eager
//!   session.
//! - **Windows.** A maximum over padding only has no value, so max pools refuse padding of more than half of the kernel.
//!   Smooth pools take any.
//! - **Batches.** Operations take a batch; one vector, image or sequence works too.
//! - **Proofs** are tests over exact fractions.

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::session::Var;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::typed::{self, Dim, HasAxis, Typed, assert};
#[cfg(doc)]
use crate::{
    device::{AnyBuffer, Buffer, MemoryStats, readable_bytes},
    params::{Param, Params},
    session::{Grads, Nats, Options, Session},
    tape::{Node, Tape},
};
use dittograd_ops::layout::AxisMap;

/// Calls `$then` with the list of names: `"name" method op;`. The method, of `Var` or [`TorchLean`], records that op,
/// possibly with others.
#[doc(hidden)]
#[macro_export]
macro_rules! with_names {
    ($then:ident) => {
        $then! {
            "abs" abs abs; "sqrt" sqrt sqrt; "exp" exp exp; "log" log log; "inv" inv inv;
            "clamp" clamp clamp; "max" max max; "min" min min; "div" div div; "relu" relu relu;
            "add" add add; "sub" sub sub; "mul" mul mul; "scale" scale scale; "copy" copy copy; "axpy" axpy axpy;
            "safeLog" safe_log safe_log; "sigmoid" sigmoid sigmoid; "tanh" tanh tanh; "softplus" softplus softplus;
            "sum" sum sum; "reduceSum" sum_axes sum; "reduceMean" mean_axes mean; "reduceSumAxis" sum_axes sum;
            "reduceSumByRow" sum_axes sum; "reduceSumByColumn" sum_axes sum;
            "reduceMaxByRow" amax amax; "reduceMaxByColumn" amax amax;
            "flatten" flatten reshape; "reshape" reshape reshape; "transpose2d" transpose2d permute;
            "swapAdjacentAtDepth" swap_adjacent_at_depth permute;
            "transpose3dFirstToLast" transpose3d_first_to_last permute;
            "transpose3dLastToFirst" transpose3d_last_to_first permute;
            "transpose3dLastTwo" transpose3d_last_two permute;
            "broadcastTo" broadcast_axes broadcast_to; "broadcastVecToRows" broadcast_vec_to_rows broadcast_to;
            "broadcastVecToCols" broadcast_vec_to_cols broadcast_to; "broadcastScalarToShape" broadcast_to broadcast_to;
            "detach" detach detach;
            "matmul" matmul matmul; "bmm" bmm bmm; "linear" linear linear; "mseLoss" mse mse;
            "concat1d" concat concat; "concatVectors" concat concat; "concatLeadingAxis" concat concat;
            "slice1d" slice slice; "sliceRange0" narrow slice; "sliceLeadingAxisRange" narrow slice;
            "gatherScalar" gather_scalar slice; "gatherScalarNat" gather_scalar_nat index_select;
            "gatherRow" gather_row slice; "gatherVecNat" gather_vec_nat index_select;
            "gatherRowsNat" gather_rows_nat index_select; "scatterAddVec" scatter_add_vec index_add;
            "scatterAddRow" scatter_add_row index_add; "scatterAdd" scatter_add_nat index_add;
            "scatterAddRows" scatter_add_rows_nat index_add;
            "conv2d" conv2d conv; "conv" conv conv; "convTranspose2d" conv_transpose2d conv_transpose;
            "convTranspose" conv_transpose conv_transpose;
            "maxPool2d" max_pool2d max_pool; "maxPool2dPad" max_pool2d_pad max_pool; "maxPool" max_pool max_pool;
            "avgPool2d" avg_pool2d avg_pool; "avgPool2dPad" avg_pool2d_pad avg_pool; "avgPool" avg_pool avg_pool;
            "smoothMaxPool2d" smooth_max_pool2d smooth_max_pool;
            "smoothMaxPool2dPad" smooth_max_pool2d_pad smooth_max_pool;
            "smoothMaxPool" smooth_max_pool smooth_max_pool;
            "layerNorm" layer_norm layer_norm; "batchnormChannelFirst" batchnorm_channel_first group_norm;
            "softmax" softmax softmax; "logSoftmax" log_softmax log_softmax;
            "hardMaskedSoftmaxByRow" masked_softmax masked_softmax;
            "multiHeadAttention" multi_head_attention attention; "flashAttention" attention attention;
            "spectralConv1dRfft" spectral_conv1d mode_mix; "rfft1dPacked" rfft rfft; "irfft1dPacked" irfft irfft;
            "selectiveScanDiag" selective_scan selective_scan; "selectiveScanDiagVar" selective_scan selective_scan;
            "dropout" dropout bernoulli;
        }
    };
}

macro_rules! known {
    ($($name:literal $method:ident $op:ident;)*) => {
        /// Each of TorchLean's names, with the corresponding method and the op that it records.
        pub const KNOWN: &[(&str, &str, &str)] = &[$(($name, stringify!($method), stringify!($op)),)*];
    };
}
with_names!(known);

/// Whether reductions are deterministic. They always are: [`Device::deterministic_reductions`].
pub fn get_deterministic_reductions(device: &Device) -> bool {
    device.deterministic_reductions()
}

/// Asks for deterministic reductions and returns what holds then, which is always `true`: they cannot be switched off.
pub fn set_deterministic_reductions_checked(device: &Device, _on: bool) -> bool {
    device.deterministic_reductions()
}

/// Methods of [`Var`] under TorchLean's names. The [module](self) has a table of them.
pub trait TorchLean<'s>: Sized {
    /// A matrix with rows and columns exchanged.
    #[track_caller]
    fn transpose2d(self) -> Result<Var<'s>>;

    /// `[a, b, c]` to `[b, c, a]`.
    #[track_caller]
    fn transpose3d_first_to_last(self) -> Result<Var<'s>>;

    /// `[a, b, c]` to `[c, a, b]`.
    #[track_caller]
    fn transpose3d_last_to_first(self) -> Result<Var<'s>>;

    /// `[a, b, c]` to `[a, c, b]`.
    #[track_caller]
    fn transpose3d_last_two(self) -> Result<Var<'s>>;

    /// Swaps axes `depth` and `depth + 1`; returns the value itself if there are no such axes.
    #[track_caller]
    fn swap_adjacent_at_depth(self, depth: usize) -> Result<Var<'s>>;

    /// A matrix with `rows` copies of a vector as rows: `y[i, j] = x[j]`.
    #[track_caller]
    fn broadcast_vec_to_rows(self, rows: usize) -> Result<Var<'s>>;

    /// A matrix with `columns` copies of a vector as columns: `y[i, j] = x[i]`.
    #[track_caller]
    fn broadcast_vec_to_cols(self, columns: usize) -> Result<Var<'s>>;

    /// Element `i` of a vector.
    #[track_caller]
    fn gather_scalar(self, i: usize) -> Result<Var<'s>>;

    /// Element `i` of a vector; 0, with a zero gradient, if there is none.
    #[track_caller]
    fn gather_scalar_nat(self, i: usize) -> Result<Var<'s>>;

    /// Row `i` of a matrix.
    #[track_caller]
    fn gather_row(self, i: usize) -> Result<Var<'s>>;

    /// Elements of a vector by index, 0 if out of range.
    #[track_caller]
    fn gather_vec_nat(self, index: Var<'s>) -> Result<Var<'s>>;

    /// Rows of a matrix by index, zeros if out of range.
    #[track_caller]
    fn gather_rows_nat(self, index: Var<'s>) -> Result<Var<'s>>;

    /// A vector with the scalar `v` added to element `i`.
    #[track_caller]
    fn scatter_add_vec(self, i: usize, v: Var<'s>) -> Result<Var<'s>>;

    /// A matrix with the vector `v` added to row `i`.
    #[track_caller]
    fn scatter_add_row(self, i: usize, v: Var<'s>) -> Result<Var<'s>>;

    /// A vector with `values` added at the elements given by `index`, in order. Indices out of range are ignored.
    #[track_caller]
    fn scatter_add_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>>;

    /// A matrix with the rows of `values` added at the rows given by `index`, in order. Indices out of range are
    /// ignored.
    #[track_caller]
    fn scatter_add_rows_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>>;

    /// Normalizes each channel of one image `(C, H, W)`, or `(C, …)`, over its positions, with eps 1e-6.
    #[track_caller]
    fn batchnorm_channel_first(self, weight: Var<'s>, bias: Var<'s>) -> Result<Var<'s>>;
}

impl<'s> TorchLean<'s> for Var<'s> {
    #[track_caller]
    fn transpose2d(self) -> Result<Var<'s>> {
        of_rank(self, "transpose2d", 2)?;
        self.transpose()
    }

    #[track_caller]
    fn transpose3d_first_to_last(self) -> Result<Var<'s>> {
        of_rank(self, "transpose3d_first_to_last", 3)?;
        self.permute(&[1, 2, 0])
    }

    #[track_caller]
    fn transpose3d_last_to_first(self) -> Result<Var<'s>> {
        of_rank(self, "transpose3d_last_to_first", 3)?;
        self.permute(&[2, 0, 1])
    }

    #[track_caller]
    fn transpose3d_last_two(self) -> Result<Var<'s>> {
        of_rank(self, "transpose3d_last_two", 3)?;
        self.transpose()
    }

    #[track_caller]
    fn swap_adjacent_at_depth(self, depth: usize) -> Result<Var<'s>> {
        match depth.checked_add(1) {
            Some(next) if next < self.shape()?.rank() => self.swap_axes(depth, next),
            _ => Ok(self),
        }
    }

    #[track_caller]
    fn broadcast_vec_to_rows(self, rows: usize) -> Result<Var<'s>> {
        let n = of_rank(self, "broadcast_vec_to_rows", 1)?.last();
        self.broadcast_axes(Shape::new(&[rows, n])?, AxisMap::new(&[None, Some(0)])?)
    }

    #[track_caller]
    fn broadcast_vec_to_cols(self, columns: usize) -> Result<Var<'s>> {
        let n = of_rank(self, "broadcast_vec_to_cols", 1)?.last();
        self.broadcast_axes(Shape::new(&[n, columns])?, AxisMap::new(&[Some(0), None])?)
    }

    #[track_caller]
    fn gather_scalar(self, i: usize) -> Result<Var<'s>> {
        let vector = of_rank(self, "gather_scalar", 1)?;
        in_range("gather_scalar", &vector, i)?;
        self.select(0, i)
    }

    #[track_caller]
    fn gather_scalar_nat(self, i: usize) -> Result<Var<'s>> {
        of_rank(self, "gather_scalar_nat", 1)?;
        let index = u32::try_from(i).unwrap_or(u32::MAX);
        self.index_select_or_zero(0, self.session().indices(&Tensor::scalar(index))?)
    }

    #[track_caller]
    fn gather_row(self, i: usize) -> Result<Var<'s>> {
        let matrix = of_rank(self, "gather_row", 2)?;
        in_range("gather_row", &matrix, i)?;
        self.select(0, i)
    }

    #[track_caller]
    fn gather_vec_nat(self, index: Var<'s>) -> Result<Var<'s>> {
        of_rank(self, "gather_vec_nat", 1)?;
        self.index_select_or_zero(0, index)
    }

    #[track_caller]
    fn gather_rows_nat(self, index: Var<'s>) -> Result<Var<'s>> {
        of_rank(self, "gather_rows_nat", 2)?;
        self.index_select_or_zero(0, index)
    }

    #[track_caller]
    fn scatter_add_vec(self, i: usize, v: Var<'s>) -> Result<Var<'s>> {
        let vector = of_rank(self, "scatter_add_vec", 1)?;
        in_range("scatter_add_vec", &vector, i)?;
        add_at(self, i, v)
    }

    #[track_caller]
    fn scatter_add_row(self, i: usize, v: Var<'s>) -> Result<Var<'s>> {
        let matrix = of_rank(self, "scatter_add_row", 2)?;
        in_range("scatter_add_row", &matrix, i)?;
        add_at(self, i, v)
    }

    #[track_caller]
    fn scatter_add_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>> {
        of_rank(self, "scatter_add_nat", 1)?;
        self.index_add_or_skip(0, index, values)
    }

    #[track_caller]
    fn scatter_add_rows_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>> {
        of_rank(self, "scatter_add_rows_nat", 2)?;
        self.index_add_or_skip(0, index, values)
    }

    #[track_caller]
    fn batchnorm_channel_first(self, weight: Var<'s>, bias: Var<'s>) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let Some((&channels, positions)) = shape.dims().split_first().filter(|(_, p)| !p.is_empty()) else {
            let kind = ErrorKind::Rank { want: "at least 2: (C, …)", got: shape };
            return Err(Error::new("batchnorm_channel_first", kind));
        };
        let image = self.reshape(&[1, channels, positions.iter().product()])?;
        image.group_norm(channels.max(1), Some(weight), Some(bias), 1e-6)?.reshape(shape.dims())
    }
}

/// The shape of a value, which must have `rank` axes.
#[track_caller]
fn of_rank(v: Var<'_>, op: &str, rank: usize) -> Result<Shape> {
    const EXACTLY: [&str; 4] = ["exactly 0", "exactly 1", "exactly 2", "exactly 3"];
    match v.shape()? {
        shape if shape.rank() == rank => Ok(shape),
        got => Err(Error::new(op, ErrorKind::Rank { want: EXACTLY[rank], got })),
    }
}

/// Errors unless `i` is an index of the first axis.
#[track_caller]
fn in_range(op: &str, shape: &Shape, i: usize) -> Result<()> {
    match shape.dims()[0] {
        bound if i < bound => Ok(()),
        bound => Err(Error::new(op, ErrorKind::Index { at: 0, index: i, bound })),
    }
}

/// `v` added to element `i` of the first axis.
#[track_caller]
fn add_at<'s>(x: Var<'s>, i: usize, v: Var<'s>) -> Result<Var<'s>> {
    x.index_add(0, x.session().indices(&Tensor::scalar(i as u32))?, v)
}

/// [`TorchLean::scatter_add_row`] with the index and the shapes in types.
pub trait TypedScatterAddRow<'s, C: Dim>: Sized {
    /// A vector added to row `I`.
    #[track_caller]
    fn scatter_add_row<const I: usize>(self, row: Typed<'s, (C,)>) -> Result<Self>;
}

impl<'s, V: Dim, C: Dim> TypedScatterAddRow<'s, C> for Typed<'s, (V, C)> {
    #[track_caller]
    fn scatter_add_row<const I: usize>(self, row: Typed<'s, (C,)>) -> Result<Self> {
        const { assert::index_in("scatter_add_row", 0, V::SIZE, I) };
        Ok(Typed::trust(self.into_untyped().scatter_add_row(I, row.into_untyped())?))
    }
}

/// [`TorchLean::scatter_add_vec`] with the index and the shapes in types.
pub trait TypedScatterAddVec<'s>: Sized {
    /// A number added to element `I`.
    #[track_caller]
    fn scatter_add_vec<const I: usize>(self, number: typed::Scalar<'s>) -> Result<Self>;
}

impl<'s, N: Dim> TypedScatterAddVec<'s> for Typed<'s, (N,)> {
    #[track_caller]
    fn scatter_add_vec<const I: usize>(self, number: typed::Scalar<'s>) -> Result<Self> {
        const { assert::index_in("scatter_add_vec", 0, N::SIZE, I) };
        Ok(Typed::trust(self.into_untyped().scatter_add_vec(I, number.into_untyped())?))
    }
}

/// [`TorchLean::batchnorm_channel_first`] with the shapes in types.
pub trait TypedBatchnormChannelFirst<'s>: Sized {
    /// The channels of the image.
    type Channels: Dim;

    /// Normalizes each channel of one image `(C, H, W)`, or `(C, …)`, over its positions, with eps 1e-6.
    #[track_caller]
    fn batchnorm_channel_first(
        self,
        weight: Typed<'s, (Self::Channels,)>,
        bias: Typed<'s, (Self::Channels,)>,
    ) -> Result<Self>;
}

impl<'s, S: HasAxis<0> + HasAxis<1>> TypedBatchnormChannelFirst<'s> for Typed<'s, S> {
    type Channels = <S as HasAxis<0>>::Dim;

    #[track_caller]
    fn batchnorm_channel_first(
        self,
        weight: Typed<'s, (Self::Channels,)>,
        bias: Typed<'s, (Self::Channels,)>,
    ) -> Result<Self> {
        let (weight, bias) = (weight.into_untyped(), bias.into_untyped());
        Ok(Typed::trust(self.into_untyped().batchnorm_channel_first(weight, bias)?))
    }
}
