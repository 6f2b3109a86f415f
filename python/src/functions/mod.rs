//! Functions of tensors. Names, arguments and defaults are PyTorch's.

// Of `torch`.
pub mod creation;
pub mod elementwise;
pub mod indexing;
pub mod nn_native;
pub mod order;
pub mod products;
pub mod reductions;
pub mod shapes;

// Of its namespaces.
pub mod fft;
pub mod linalg;
pub mod nn_activations;
pub mod nn_images;
pub mod nn_layers;
pub mod nn_losses;
pub mod nn_norms;
pub mod special;

// What several of them need.
mod axes;
