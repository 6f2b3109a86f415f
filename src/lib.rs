//! A neural-network runtime with one answer, bit for bit, on every device.
//!
//! A tour: [`device`] is where tensors live and kernels run; [`ops`] are the operations, each with its shape
//! rule, kernels, gradient and reference; [`tape`] records them and walks back; [`session`] is what programs are
//! written in; [`graph`] compiles what a session records; [`nn`], [`optim`] and [`data`] make training of it, [`io`] keeps it, [`train`] runs it from
//! end to end;
//! in [`typed`] the compiler checks shapes; [`check`] holds every op to [`numerics`], the contract that says what the
//! one answer is.
//!
#![doc = include_str!("../README.md")]

pub mod check;
pub mod data;
pub mod device;
pub mod error;
mod gradients;
pub mod graph;
mod init;
pub mod io;
pub mod nn;
pub mod numerics;
pub mod ops;
pub mod optim;
pub mod params;
#[doc(hidden)]
pub mod reserve;
pub mod scalar;
pub mod session;
pub mod shape;
pub mod tape;
pub mod tensor;
pub mod train;
pub mod typed;

/// What most programs need.
pub mod prelude {
    pub use crate::data;
    pub use crate::device::{AnyBuffer, Device};
    pub use crate::error::{Error, Result};
    pub use crate::graph::{Batch, TrainStep};
    pub use crate::io::{Checkpoint, StateDict};
    pub use crate::nn::{
        self, Autoencoder, AutoencoderConfig, Cnn, CnnConfig, Fno1d, Fno1dConfig, Fno2d, Fno2dConfig,
    };
    pub use crate::nn::{
        Gpt, GptConfig, Linear, Mamba, MambaConfig, Mlp, MlpConfig, ResNet, ResNetConfig, Vit, VitConfig,
    };
    pub use crate::numerics::rng::Stream;
    pub use crate::ops::conv::Window;
    pub use crate::ops::loss::Reduction;
    pub use crate::optim::{Group, Optimizer, Rule, Schedule};
    pub use crate::params::{Fan, Param, Params};
    pub use crate::session::{AttentionOptions, Grads, LabelLoss, Session, Var};
    pub use crate::shape::Shape;
    pub use crate::tensor::{AnyTensor, Tensor};
    pub use crate::train::{Evaluation, RunFolder, Scores, Trainer};
    pub use crate::typed;
}
