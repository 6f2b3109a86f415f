// Scaled dot-product attention, forward and backward, with the bits of the CPU.
//
// This file is the common part. A kernel follows it: forward.cu or backward.cu after lists.cu and tiles.cu, delta.cu, or mask.cu; or,
// in modes `fast` and `turbo`, one of those that digits.cu names.
//
// Parameters, defined before this text:
//   DITTO_D, _DV      size of queries and keys, and of values
//   DITTO_TR          rows of a thread: 4, 2 or 1
//   DITTO_WARPS       warps of a block, each with 8 TR rows of its own
//   DITTO_SB          queries of a stage of the backward pass: 32, 16 or 8
//   DITTO_SHARE       1: keys and values take turns in one buffer (forward, little shared memory)
//   DITTO_BLOCKS      blocks per multiprocessor the registers are budgeted for
//   DITTO_MASK        1: there is a mask
//   DITTO_INSIDE      1: lists are heads that lie inside the rows of a linear layer: queries, keys and values are (..., n, 3, heads,
//                     D), outputs (..., n, heads, D); there is no mask, no head is shared, and what there is per row is by lists
//   DITTO_TF32        1: tensor cores multiply; D and DV are multiples of 8, TR of 2, SB of 16
//   DITTO_FLIP        1: the scale is negative, and scores are the negative products
//   CHUNK             rows or keys of one chain of the gradients
//   BLOCK             keys of a block of the online softmax, queries of a block of the gradients

typedef unsigned long long u64;

#ifndef DITTO_TF32
#define DITTO_TF32 0
#endif

#ifndef DITTO_INSIDE
#define DITTO_INSIDE 0
#endif

#ifdef DITTO_FLIP
#define SCORE(x) (-(x))
#else
#define SCORE(x) (x)
#endif

#define BLOCKED 0xff800001u
#define LOG2E __uint_as_float(0x3fb8aa3bu)
