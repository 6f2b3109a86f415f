//! Ops under the names they have elsewhere: in the runtime whose surface this one covers, written in camel case.

/// Calls `$then` with the list of names: `"name" method op;`, where the method of `Var` records that op, by itself
/// or with others.
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
        /// Each name with the method that has its place and the op that it records.
        pub const KNOWN: &[(&str, &str, &str)] = &[$(($name, stringify!($method), stringify!($op)),)*];
    };
}
with_names!(known);
