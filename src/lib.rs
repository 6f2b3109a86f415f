//! A neural-network runtime whose programs have one answer, bit for bit: on every run, at any thread count and SIMD level, on the
//! CPU or an NVIDIA GPU, eager or compiled.
//!
//! ```
//! use dittograd::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu()?; // or Device::best(): same bits
//! let data = data::spirals(7, 300, 3)?;
//! let mut params = Params::new(&device, 7);
//! let net = Mlp::new(&mut params, &[2, 16, 3])?;
//! let mut step = TrainStep::new(&params, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
//! for _ in 0..20 {
//!     step.run(&[data.x().into(), data.y().into()])?;
//! }
//! println!("loss {}, fingerprint {}", step.loss()?, params.fingerprint()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | to | see |
//! |---|---|
//! | write programs | [`session`]: [`Session`](session::Session), and [`Var`](session::Var) with all operations as methods |
//! | train | [`nn`] for layers and models, [`optim`], [`data`], [`graph::TrainStep`] for one step, [`train::Trainer`] for a whole run |
//! | choose where to compute | [`device`] |
//! | keep results | [`io`]: checkpoints, state dicts, safetensors, `.npy`, ONNX |
//! | look into a program | [`graph`]: traced, printed, parsed, differentiated, compiled |
//! | let the compiler check shapes | [`typed`] |
//! | port a TorchLean program | [`torchlean`]: its names with ours, and what is different |
//! | work with ops themselves | [`ops`], [`tape`], [`numerics`], the contract that says what the one answer is; the crate `dittograd-check` holds any op to it |

// Paths in what `#[derive(Module)]` writes begin with `::dittograd`, here too.
extern crate self as dittograd;

pub mod data;
pub mod io;
pub mod nn;
pub mod torchlean;
pub mod train;
pub mod typed;

#[doc(inline)]
pub use dittograd_engine::{HostDevice, optim, params, session, tape};
#[doc(hidden)]
pub use dittograd_numerics::reserve;
#[doc(inline)]
pub use dittograd_numerics::{error, scalar, shape, tensor};
#[doc(hidden)]
pub use dittograd_ops::with_ops;

/// The compiled path: a program as plain data, made smaller and faster by passes, planned into one block of memory, and run again
/// and again. It holds the same ops as the tape and runs the same kernels, so it gives the same bits as running eagerly.
pub mod graph {
    #[doc(hidden)]
    pub use dittograd_engine::append_module;
    #[doc(inline)]
    pub use dittograd_engine::compiled::{Batch, Function, Traced, TrainStep};
    #[doc(hidden)]
    pub use dittograd_engine::graph::unbound;
    #[doc(inline)]
    pub use dittograd_engine::graph::{Compiled, Graph, Node, Pass, Passes, Plan, Source, What};
}

/// Devices, their memory and its statistics.
///
/// The kernels, the thread pool and the CUDA driver behind them are documented in the crate `dittograd-device`.
pub mod device {
    #[doc(inline)]
    pub use dittograd_device::cpu::simd::Simd;
    #[doc(inline)]
    pub use dittograd_device::{AnyBuffer, Buffer, DType, Device, Meta, readable_bytes};
    #[doc(inline)]
    pub use dittograd_device::{Holder, MemoryReport, MemoryStats, OpTime, StepMemory};
    // Internals of this library and its tests.
    #[doc(hidden)]
    pub use dittograd_device::*;
}

/// The numerics contract: elementary functions, the sum tree, random streams, modes. Everything here is defined down to
/// the bit and the same on every device; `NUMERICS.md` describes it.
pub mod numerics {
    #[doc(inline)]
    pub use dittograd_numerics::{K_CHUNK, NUMERICS_VERSION, Numerics, canonical_bits, same_bits};
    #[doc(inline)]
    pub use dittograd_numerics::{digits, environment, functions, rng, sum};
    #[doc(hidden)]
    pub use dittograd_numerics::{lane, ordered};
}

/// Operations as values, for code that works on ops themselves: tapes, graphs, checks. Programs call the methods of
/// [`Var`](crate::session::Var), which record them.
///
/// [`AnyOp`](ops::AnyOp) is any op, with a [name](ops::AnyOp::NAMES) and [attributes](ops::Attrs). Each op is also a
/// struct that converts into it, in one module per family: `ops::pointwise::Mul {}`, `ops::reduce::Sum`. Those are
/// documented in the crate `dittograd-ops`.
///
/// A type that implements [`Op`](ops::Op) is an op of your own: [`Session::custom`](crate::session::Session::custom) records it.
pub mod ops {
    #[doc(inline)]
    pub use dittograd_ops::conv::{ConvWindow, Sizes};
    #[doc(inline)]
    pub use dittograd_ops::image::{GridMode, GridPadding};
    #[doc(inline)]
    pub use dittograd_ops::layout::AxisMap;
    #[doc(inline)]
    pub use dittograd_ops::loss::Reduction;
    #[doc(inline)]
    pub use dittograd_ops::pointwise::expression::{Expr, Pointwise};
    #[doc(inline)]
    pub use dittograd_ops::pointwise::map::Map;
    #[doc(inline)]
    pub use dittograd_ops::pool::PoolWindow;
    #[doc(inline)]
    pub use dittograd_ops::{AnyOp, Attr, Attrs, Io, Recorder, Val, apply};
    #[doc(inline)]
    pub use dittograd_ops::{CpuRun, CudaKernel, Custom, IndexBound, Number, Op, register};
    // The structs of all ops, and the building blocks of kernels.
    #[doc(hidden)]
    pub use dittograd_ops::*;
}

/// Many processes, one run: a process's place among them, and what moves words between them.
///
/// # Start processes
///
/// A program calls [`World::from_env`](parallel::World::from_env), which says who it is among the processes that a launcher
/// started, and connects it to the others by TCP. Started alone it is alone, so the same program runs both ways.
///
/// | launcher | command |
/// |---|---|
/// | Open MPI, one machine | `mpirun -n 4 program` |
/// | Open MPI, several machines | `mpirun -n 8 -H a:4,b:4 -x MASTER_ADDR=a -x MASTER_PORT=29500 program` |
/// | MPICH, Intel MPI | `MASTER_ADDR=a MASTER_PORT=29500 mpiexec -n 8 -hosts a,b program`; on one machine without `MASTER_ADDR` |
/// | Slurm | `srun -N 2 --ntasks-per-node 4 program` |
/// | PyTorch | `torchrun --no-python --nproc-per-node 4 program` |
/// | by hand | `RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500 program` on `a`, and the same with `RANK=1` anywhere |
///
/// Rank 0 listens at `MASTER_PORT` of the machine `MASTER_ADDR`. `mpirun` on one machine, and `srun`, need neither: the port is
/// chosen by the number of the job. Under `torchrun`, whose own store has that port, it is the next one. Set `MASTER_PORT` if a port
/// is taken. All machines must reach each other at any port. Nothing is encrypted, and who reaches a port can take part: use
/// networks that you trust.
///
/// [`World::local_rank`](parallel::World::local_rank) counts the processes of one machine, for example to give each a GPU. By hand,
/// `LOCAL_RANK` sets it.
///
/// # When a process fails
///
/// A process that ends, is killed, stops or is slow is named by an error of kind [`Peer`](crate::error::ErrorKind::Peer) on all others:
/// at once if it ended or [aborted](parallel::World::abort), after a [timeout](parallel::World::set_timeout) if it is silent. A world is
/// over after its first error: start all processes again, from a checkpoint.
pub mod parallel {
    #[doc(inline)]
    pub use dittograd_comm::{
        Address, Incoming, Launch, OnDevice, Outgoing, Pending, Traffic, Transport, World, nccl, nccl_version,
    };
    // For transports of other crates.
    #[doc(hidden)]
    pub use dittograd_comm::{gave_up, peer, rest, was_silent, wrong_length};
}

/// What most programs need.
pub mod prelude {
    pub use crate::HostDevice;
    pub use crate::data;
    pub use crate::device::{AnyBuffer, Device};
    pub use crate::error::{Error, Result};
    pub use crate::graph::{Batch, TrainStep};
    pub use crate::io::{Checkpoint, SaveLoad, StateDict};
    pub use crate::nn::{
        self, Autoencoder, AutoencoderConfig, Cnn, CnnConfig, Fno1d, Fno1dConfig, Fno2d, Fno2dConfig,
        Forward, Module,
    };
    pub use crate::nn::{
        Gpt, GptConfig, Linear, Mamba, MambaConfig, Mlp, MlpConfig, ResNet, ResNetConfig, Vit, VitConfig,
    };
    pub use crate::numerics::rng::Stream;
    pub use crate::ops::{ConvWindow, Reduction};
    pub use crate::optim::{Group, Optimizer, Rule, Schedule, rules};
    pub use crate::params::{Fan, Param, Params, Scope};
    pub use crate::session::{
        AttentionOptions, EmbeddingOptions, Grads, LabelLoss, QuantileRule, Reduce, Session, Unique, Var,
    };
    pub use crate::shape::Shape;
    pub use crate::tensor::{AnyTensor, Tensor};
    pub use crate::train::{Evaluation, RunFolder, Scores, Trainer};
    pub use crate::typed::{self, ToTyped as _};
}

/// Runs the examples of the README and of the guide as documentation tests.
#[cfg(doctest)]
mod documents {
    macro_rules! pages {
        ($($name:ident $path:literal)*) => {$(
            #[doc = include_str!($path)]
            pub struct $name;
        )*};
    }

    pages! {
        Readme "../README.md"
        FirstModel "../docs/guide/first-model.md"
        Data "../docs/guide/data.md"
        Models "../docs/guide/models.md"
        Checkpoints "../docs/guide/checkpoints.md"
        Verify "../docs/guide/verify.md"
        Gpu "../docs/guide/gpu.md"
        CompiledSteps "../docs/guide/compiled-steps.md"
        OwnOps "../docs/guide/own-ops.md"
        PyTorch "../docs/guide/pytorch.md"
        WhenNot "../docs/guide/when-not.md"
    }
}
