//! What the library reads and runs. Included by path into the library's own tests too, so it names nothing of this crate.

mod choices;
mod files;
mod graphs;
mod memory;
mod ops;
mod sessions;

/// A name, and what takes the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets by name.
pub const TARGETS: &[Target] = &[
    ("allocator", memory::allocator),
    ("checkpoint", files::checkpoint),
    ("csv", files::csv),
    ("einsum", ops::einsum),
    ("graph_text", graphs::graph_text),
    ("idx", files::idx),
    ("npy", files::npy),
    ("npz", files::npz),
    ("random_graph", graphs::random_graph),
    ("record", files::record),
    ("safetensors", files::safetensors),
    ("session", sessions::session),
    ("shape_rules", ops::shape_rules),
    ("tokenizer", files::tokenizer),
    ("tokenizer_train", files::tokenizer_train),
];
