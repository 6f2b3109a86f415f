//! What the attributes of ops mean, in words, for the program. Names mean the same in most ops, so a meaning stands once.

/// The ops (all that have the attribute if empty), the attribute, and its meaning. The first row that fits counts.
const MEANINGS: &[(&[&str], &str, &str)] = &[
    (&["leaky_relu"], "slope", "factor of negative elements"),
    (&["elu"], "alpha", "the limit for very negative elements is minus this"),
    (&["scale"], "c", "factor of every element"),
    (&["add_scalar"], "c", "number added to every element"),
    (&["pow_scalar"], "c", "exponent"),
    (&["axpy"], "c", "factor of the second input"),
    (&["uniform_range"], "lo", "lower end of the range"),
    (&["uniform_range"], "hi", "upper end of the range"),
    (&[], "lo", "smallest value of the result"),
    (&[], "hi", "largest value of the result"),
    (&["safe_log"], "eps", "added before the logarithm"),
    (&[], "eps", "added to the variance or mean square, so that its root is not 0"),
    (&["map"], "steps", "the operations of the expression, as the text of a program has them"),
    (&["map"], "shape", "shape that the inputs broadcast to"),
    (&["fused"], "prologue", "the expressions before the op, as the text of a program has them"),
    (&["fused"], "epilogue", "the expression after the op, as the text of a program has it"),
    (
        &["layer_norm", "layer_norm_bwd", "rms_norm", "rms_norm_bwd"],
        "axes",
        "number of last axes that form a row",
    ),
    (&["flip"], "axes", "axes to reverse, from 0"),
    (&["place", "pick"], "axes", "neighbouring axes that the places count along, from 0"),
    (&[], "axes", "axes to reduce, from 0"),
    (&[], "axis", "the axis to work along, from 0"),
    (&[], "correction", "subtracted from the count: 0 is the biased variance, 1 the unbiased one"),
    (&[], "shape", "shape of the result"),
    (
        &["broadcast_to"],
        "map",
        "for each axis of the result, the axis of the input that it reads plus 1, or 0 for none",
    ),
    (&["permute"], "order", "axes of the input in the order of the result, from 0"),
    (&["slice"], "start", "first element to take"),
    (&["slice"], "len", "number of elements to take"),
    (&["slice"], "step", "distance between elements to take"),
    (&["pad"], "start", "where the first element goes"),
    (&["pad"], "step", "distance between the elements in the result"),
    (&["pad"], "value", "number around the elements"),
    (&["full"], "value", "number that every element is"),
    (&["cholesky"], "upper", "whether the value is the upper factor, instead of the lower one"),
    (&["triangular_solve"], "upper", "whether the matrix is the upper triangle, instead of the lower one"),
    (&["triangular_solve"], "unit", "whether the diagonal counts as ones"),
    (&["triangular_solve"], "right", "whether the matrix is on the right of the unknowns"),
    (&["triangle"], "upper", "whether the upper triangle stays, instead of the lower one"),
    (&["triangle"], "shift", "the diagonal, counted in columns to the right of the main one"),
    (&["conv_kernel_grad"], "size", "sizes of the kernel"),
    (&["conv_transpose"], "size", "sizes of the result"),
    (&[], "size", "size of the axis in the result"),
    (&["adaptive_max_pool_bwd"], "sizes", "windows along each of the last axes"),
    (&[], "sizes", "sizes of the last axes of the result"),
    (&["scatter_reduce"], "combine", "1 multiplies, 2 takes the largest, 3 the smallest"),
    (&["flat_index"], "dims", "sizes of the axes that the inputs are indices of"),
    (&["argsort"], "descending", "whether the largest element is first"),
    (&["topk"], "k", "how many elements"),
    (&["topk", "running_extremum"], "largest", "whether the largest are wanted, instead of the smallest"),
    (&["searchsorted"], "right", "whether a value goes after equal elements, instead of before them"),
    (&[], "checked", "whether an index out of range is an error, instead of 0 or of no effect"),
    (&[], "ta", "whether the first input is transposed"),
    (&[], "tb", "whether the second input is transposed"),
    (&["dft_table"], "n", "number of points"),
    (&["dft_table"], "low", "number of modes from 0 up"),
    (&["dft_table"], "high", "number of modes from n - 1 down; 0 for a real transform"),
    (&["dft_table"], "complex", "whether points are complex"),
    (&["mode_mix"], "adjoint", "whether to use the conjugate transpose of the weights"),
    (&["irfft"], "n", "length of a line of the result"),
    (&[], "scaled", "whether to multiply by the weights and 1/n of the inverse transform"),
    (&["cumsum"], "exclusive", "whether to leave out the element itself"),
    (&[], "cell", "0 is an LSTM, 1 a GRU, 2 a simple cell with tanh, 3 one with relu"),
    (&["recurrent", "recurrent_bwd"], "reverse", "whether the steps run backwards in time"),
    (&[], "masked", "whether there is a mask of the steps that count"),
    (&["cumsum"], "reverse", "whether to sum from the end of the axis"),
    (&[], "kernel", "sizes of a window along the last axes"),
    (&[], "stride", "input elements from one window to the next, along each axis"),
    (&[], "padding", "elements added at both ends of each axis"),
    (&[], "dilation", "input elements from one element of a window to the next, along each axis"),
    (
        &["group_norm", "group_norm_bwd"],
        "groups",
        "groups that the channels are cut into, each normalized on its own",
    ),
    (&[], "groups", "groups that the channels are cut into, each convolved on its own"),
    (&[], "count_include_pad", "whether padding counts in the mean of a window"),
    (&["smooth_l1"], "beta", "distance from which the loss is linear"),
    (&[], "beta", "sharpness: the larger, the closer to the maximum"),
    (&["huber"], "delta", "distance from which the loss is linear"),
    (&[], "filter", "0 is nearest, 1 nearest-exact, 2 linear, 3 cubic"),
    (
        &[],
        "align_corners",
        "whether the corners of an image are the centres of its corner elements, instead of their outer edges",
    ),
    (&[], "antialias", "whether the filter becomes as much wider as the axis becomes shorter"),
    (
        &[],
        "step0",
        "input elements from one output element to the next along the first axis; 0 is the ratio of the sizes",
    ),
    (&[], "step1", "the same along the second axis"),
    (&[], "step2", "the same along the third axis"),
    (&[], "mode", "0 is bilinear, 1 nearest, 2 bicubic"),
    (&[], "padding_mode", "what is beyond the image: 0 is zeros, 1 its border, 2 its reflection"),
    (&[], "orders", "for each axis, how often the weights are differentiated by the grid"),
    (&[], "causal", "whether a query attends only to keys up to its own position"),
    (&[], "scale", "factor of the scores; without it, 1 over the root of the size of a head"),
    (&["attention_mask"], "n", "number of queries"),
    (&["attention_mask"], "m", "number of keys"),
    (&["rope"], "interleaved", "whether pairs are neighbours, instead of halves of the axis"),
    (&["rope"], "inverse", "whether to turn by the opposite angles"),
    (&[], "bias", "whether to compute the gradient of the shift"),
    (&[], "label_smoothing", "part of the target that is spread over all classes, from 0 to 1"),
    (&[], "reduction", "0 is the mean of the losses, 1 their sum, 2 none: one loss each"),
    (&[], "ignore_index", "label of rows that do not count; without it, all do"),
    (&[], "classes", "number of classes"),
    (&["label_weights"], "mean", "whether the weights are those of a mean, instead of a sum"),
    (&["normal"], "mean", "mean of the draws"),
    (&["normal"], "std", "standard deviation of the draws"),
    (&[], "seed", "seed of the random stream"),
    (&[], "counter", "which random call of the stream this is, from 0"),
    (&["bernoulli"], "keep", "probability of a 1"),
    (&["randint"], "low", "the smallest result; without it, 0"),
    (&["randint", "to_index"], "below", "results are below this whole number"),
    (&["permutation"], "n", "how many numbers to permute"),
];

/// What an attribute of an op means, in a few words; `None` if the op is not one of ours, or has no such attribute.
pub fn attr_meaning(op: &str, attr: &str) -> Option<&'static str> {
    let fits =
        |(ops, name, _): &&(&[&str], &str, &str)| *name == attr && (ops.is_empty() || ops.contains(&op));
    MEANINGS.iter().find(fits).map(|row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnyOp;
    use std::collections::BTreeSet;

    #[test]
    fn every_attribute_has_a_meaning_and_every_meaning_an_attribute() {
        let mut used = BTreeSet::new();
        for op in AnyOp::NAMES {
            for (attr, _) in AnyOp::samples(op).iter().flat_map(|s| s.op.attrs()) {
                let meaning = attr_meaning(op, attr);
                assert!(meaning.is_some(), "`{attr}` of `{op}` has no meaning; add it to the table");
                let row = MEANINGS.iter().position(|(ops, name, text)| {
                    *name == attr && Some(*text) == meaning && (ops.is_empty() || ops.contains(op))
                });
                used.extend(row);
            }
        }
        let idle: Vec<_> = (0..MEANINGS.len()).filter(|r| !used.contains(r)).map(|r| MEANINGS[r]).collect();
        assert!(idle.is_empty(), "no op has them: {idle:?}");
        for (ops, ..) in MEANINGS {
            assert!(ops.iter().all(|op| AnyOp::NAMES.contains(op)), "{ops:?}");
        }
        assert_eq!((attr_meaning("sum", "nothing"), attr_meaning("sum", "slope")), (None, None));
    }
}
