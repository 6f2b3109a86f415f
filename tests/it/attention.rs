//! Attention as a program uses it: known values, masks, heads, and agreement of its two forms.

use crate::support::{data, device, t as tensor};
use dittograd::ops::attention::rope::rope_table;
use dittograd::prelude::*;
use dittograd::session::MultiHeadAttention;
use dittograd_check::gpu;

/// Numbers that are spread out, another list for each seed.
fn drawn(dims: &[usize], seed: u64) -> Tensor<f32> {
    let mut stream = dittograd::numerics::rng::Stream::new(seed, 7);
    let n = dims.iter().product();
    Tensor::new(dims, (0..n).map(|_| stream.range(-1.0, 1.0)).collect()).unwrap()
}

#[track_caller]
fn near(got: &[f32], want: &[f32], allowed: f32) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= allowed, "element {i}: {g} and {w} of {got:?} and {want:?}");
    }
}

/// Output and gradients of the two-by-two case, flash and composed.
fn two_by_two(mask: Option<&[f32]>, want: [&[f32]; 4]) {
    for composed in [false, true] {
        let session = Session::eager(&device());
        let s = &session;
        let q = s.variable(&tensor(&[1, 2, 2], &[1.0, 0.0, 0.0, 1.0])).unwrap();
        let k = s.variable(&tensor(&[1, 2, 2], &[1.0, 0.5, -0.5, 1.0])).unwrap();
        let v = s.variable(&tensor(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
        let mask = mask.map(|m| s.input(&tensor(&[2, 2], m)).unwrap());
        let options = AttentionOptions { mask, scale: Some(0.5), composed, ..Default::default() };
        let o = q.attention(k, v, options).unwrap();
        near(o.value::<f32>().unwrap().data(), want[0], 1e-6);
        let grads = o.backward_from(&tensor(&[1, 2, 2], &[1.0, 0.5, -1.0, 2.0])).unwrap();
        for (x, want) in [q, k, v].into_iter().zip(&want[1..]) {
            near(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), want, 1e-6);
        }
    }
}

#[test]
fn known_values_with_a_mask() {
    two_by_two(
        Some(&[1.0, 1.0, 0.0, 1.0]),
        [
            &[1.641643, 2.641643, 3.0, 4.0],
            &[-0.4902637, 0.1634212, 0.0, 0.0],
            &[-0.3268425, 0.0, 0.3268425, 0.0],
            &[0.6791787, 0.3395894, -0.6791787, 2.160411],
        ],
    );
}

#[test]
fn known_values_without_a_mask() {
    two_by_two(
        None,
        [
            &[1.641643, 2.641643, 2.124353, 3.124353],
            &[-0.4902637, 0.1634212, -0.3692011, 0.1230671],
            &[-0.3268425, -0.2461341, 0.3268425, 0.2461341],
            &[0.2413552, 1.215236, -0.2413552, 1.284764],
        ],
    );
}

/// Weights of the backward pass are those of the forward pass, and probabilities, however large scores are.
#[test]
fn weights_are_probabilities_whatever_the_size_of_scores() {
    let one = t1(1.0);
    for (q, k) in
        [(298.1257, 347.6001), (3055.452, 3869.5496), (123_641.31, 94_067.52), (1e18, 1e18), (-1e9, 1e9)]
    {
        for scale in [None, Some(-1.0), Some(0.25), Some(0.0)] {
            let [_, _, dv] = gradients([&t1(q), &t1(k), &one], &one, scale);
            assert_eq!(dv, [1.0], "q {q}, k {k}, scale {scale:?}");
        }
    }
    // Equal scores of any size over 8 keys, and two groups of 4 of which the smaller ones vanish.
    for size in [1e-3f32, 1.0, 1e3, 1e6, 1e12, 1e30] {
        let q = tensor(&[1, 1, 1], &[size]);
        let (v, dy) = (drawn(&[1, 8, 1], 3), t1(1.0));
        for (other, share) in [(1.0f32, 8.0f32), (-1.0, 4.0)] {
            let keys: Vec<f32> = (0..8).map(|j| if j % 2 == 0 { 1.0 } else { other }).collect();
            if other < 0.0 && size < 100.0 {
                continue;
            }
            let [_, _, dv] = gradients([&q, &tensor(&[1, 8, 1], &keys), &v], &dy, Some(1.0));
            for (j, p) in dv.iter().enumerate() {
                let want = if keys[j] > 0.0 { 1.0 / share } else { 0.0 };
                assert!(
                    (p - want).abs() <= 4.0 * f32::EPSILON * want,
                    "size {size}, key {j}: {p} and not {want}"
                );
            }
        }
    }
    // Against the definition in f64 on the same scores, which are exact: whole numbers times a power of two.
    for e in [-10, -5, 0, 5, 10, 20] {
        let size = f32::from_bits((127 + e) as u32 * (1 << 23));
        let (n, m) = (5, 70);
        let mut stream = dittograd::numerics::rng::Stream::new(11, e as u64);
        let q: Vec<f32> = (0..n).map(|_| 1.0 + stream.below(3) as f32).collect();
        let k: Vec<f32> = (0..m).map(|_| (stream.below(64) as f32 - 32.0) * size).collect();
        let (v, dy) = (drawn(&[1, m, 1], 5), drawn(&[1, n, 1], 6));
        let [_, _, dv] = gradients([&tensor(&[1, n, 1], &q), &tensor(&[1, m, 1], &k), &v], &dy, Some(1.0));
        let mut want = vec![0.0f64; m];
        let mut sizes = vec![0.0f64; m];
        for (q, dy) in q.iter().zip(dy.data()) {
            let scores: Vec<f64> = k.iter().map(|k| f64::from(q * k)).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for (j, s) in scores.iter().enumerate() {
                let p = (s - top).exp() / total;
                want[j] += p * f64::from(*dy);
                sizes[j] += p * f64::from(dy.abs());
            }
        }
        for (j, got) in dv.iter().enumerate() {
            // An exponent of up to 126 that is rounded three times, the weight and five sums.
            let allowed = 3.0 * 126.0 * f64::from(f32::EPSILON) * sizes[j] + 1e-37;
            assert!(
                (f64::from(*got) - want[j]).abs() <= allowed,
                "2^{e}, key {j}: {got} and not {}",
                want[j]
            );
        }
    }
}

fn t1(x: f32) -> Tensor<f32> {
    tensor(&[1, 1, 1], &[x])
}

/// Gradients of queries, keys and values.
fn gradients(qkv: [&Tensor<f32>; 3], dy: &Tensor<f32>, scale: Option<f64>) -> [Vec<f32>; 3] {
    let session = Session::eager(&device());
    let [q, k, v] = qkv.map(|x| session.variable(x).unwrap());
    let o = q.attention(k, v, AttentionOptions { scale, ..Default::default() }).unwrap();
    let grads = o.backward_from(dy).unwrap();
    [q, k, v].map(|x| grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data())
}

#[test]
fn a_query_without_keys_gives_zeros_and_no_gradients() {
    for composed in [false, true] {
        let session = Session::eager(&device());
        let s = &session;
        let [q, k, v] = [1, 2, 3].map(|i| s.variable(&drawn(&[2, 3, 4], i)).unwrap());
        let mask = s.input(&tensor(&[3, 3], &[1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0])).unwrap();
        let options = AttentionOptions { mask: Some(mask), composed, ..Default::default() };
        let o = q.attention(k, v, options).unwrap();
        let value = o.value::<f32>().unwrap();
        let grads = o.backward_from(&drawn(&[2, 3, 4], 4)).unwrap();
        let dq = grads.var(q).unwrap().to_tensor::<f32>().unwrap();
        for head in 0..2 {
            let row = head * 12 + 4..head * 12 + 8;
            assert!(value.data()[row.clone()].iter().all(|x| *x == 0.0));
            assert!(dq.data()[row].iter().all(|x| *x == 0.0));
        }
    }
}

#[test]
fn a_blocked_key_takes_no_part_whatever_it_holds() {
    let session = Session::eager(&device());
    let s = &session;
    let poison = |t: Tensor<f32>| {
        let mut t = t;
        t.data_mut()[4..8].fill(f32::NAN);
        t
    };
    let run = |k: Tensor<f32>, v: Tensor<f32>| {
        let (q, k, v) = (s.input(&drawn(&[1, 3, 4], 1)).unwrap(), s.input(&k).unwrap(), s.input(&v).unwrap());
        let mask = s.input(&tensor(&[1, 3], &[1.0, 0.0, -0.5])).unwrap();
        let options = AttentionOptions { mask: Some(mask), ..Default::default() };
        q.attention(k, v, options).unwrap().value::<f32>().unwrap()
    };
    let (k, v) = (drawn(&[1, 3, 4], 2), drawn(&[1, 3, 4], 3));
    assert_eq!(run(k.clone(), v.clone()).data(), run(poison(k), poison(v)).data());
}

#[test]
fn masks_of_every_rank_mean_the_same() {
    let session = Session::eager(&device());
    let s = &session;
    let (b, h, n, m) = (2, 3, 4, 5);
    let (q, k, v) = (
        s.input(&drawn(&[b, h, n, 4], 1)).unwrap(),
        s.input(&drawn(&[b, h, m, 4], 2)).unwrap(),
        s.input(&drawn(&[b, h, m, 4], 3)).unwrap(),
    );
    let mask: Vec<f32> = (0..n * m).map(|i| if i % 3 == 1 { 0.0 } else { 1.0 }).collect();
    let run = |dims: &[usize]| {
        let copies = dims.iter().product::<usize>() / (n * m);
        let mask = s.input(&tensor(dims, &mask.repeat(copies))).unwrap();
        let options = AttentionOptions { mask: Some(mask), ..Default::default() };
        q.attention(k, v, options).unwrap().value::<f32>().unwrap()
    };
    let want = run(&[n, m]);
    for dims in [&[1, n, m][..], &[b, n, m], &[b, 1, n, m], &[h, n, m], &[b, h, n, m]] {
        assert_eq!(run(dims).data(), want.data(), "{dims:?}");
    }
    // The causal flag and the mask of that name are one thing.
    let causal = AttentionOptions { causal: true, ..Default::default() };
    let flag = q.attention(k, v, causal).unwrap().value::<f32>().unwrap();
    let lower: Vec<f32> = (0..n * m).map(|i| f32::from(u8::from(i % m <= i / m))).collect();
    let options =
        AttentionOptions { mask: Some(s.input(&tensor(&[n, m], &lower)).unwrap()), ..Default::default() };
    assert_eq!(flag.data(), q.attention(k, v, options).unwrap().value::<f32>().unwrap().data());
}

/// Lists are lists, whatever axes they are counted by.
#[test]
fn more_axes_before_them_change_nothing() {
    let session = Session::eager(&device());
    let s = &session;
    let (b, h, n, m) = (2, 3, 4, 5);
    let (q, k, v) = (drawn(&[b, h, n, 4], 1), drawn(&[b, h, m, 4], 2), drawn(&[b, h, m, 4], 3));
    let mask: Vec<f32> = (0..b * n * m).map(|i| if i % 7 < 3 { 0.0 } else { 1.0 }).collect();
    let run = |lead: &[usize], mask_lead: &[usize]| {
        let input = |x: &Tensor<f32>, last: &[usize]| s.input(&tensor(&[lead, last].concat(), x.data()));
        let [q, k, v] = [(&q, n), (&k, m), (&v, m)].map(|(x, rows)| input(x, &[rows, 4]).unwrap());
        let mask = s.input(&tensor(&[mask_lead, &[n, m]].concat(), &mask)).unwrap();
        let options = AttentionOptions { mask: Some(mask), ..Default::default() };
        q.attention(k, v, options).unwrap().value::<f32>().unwrap()
    };
    let want = run(&[b, h], &[b, 1]);
    for (lead, mask) in [(&[b, 1, h], &[b, 1, 1]), (&[1, b, h], &[1, b, 1])] {
        assert_eq!(run(lead, mask).data(), want.data(), "{lead:?}");
    }
    let qkv = drawn(&[4, n, 3, h, 4], 4);
    let run = |lead: &[usize]| {
        let x = s.input(&tensor(&[lead, &[n, 3, h, 4]].concat(), qkv.data())).unwrap();
        let y = x.self_attention(AttentionOptions::default()).unwrap();
        assert_eq!(y.shape().unwrap().dims(), [lead, &[n, h, 4]].concat());
        y.value::<f32>().unwrap()
    };
    assert_eq!(run(&[2, 2]).data(), run(&[4]).data());
}

#[test]
fn shared_heads_are_repeated_heads() {
    let session = Session::eager(&device());
    let s = &session;
    let q = s.input(&drawn(&[2, 4, 70, 8], 1)).unwrap();
    let (k, v) = (drawn(&[2, 2, 70, 8], 2), drawn(&[2, 2, 70, 8], 3));
    let repeat = |t: &Tensor<f32>| {
        let heads: Vec<f32> = t.data().chunks(70 * 8).flat_map(|head| head.repeat(2)).collect();
        s.input(&tensor(&[2, 4, 70, 8], &heads)).unwrap()
    };
    let options = AttentionOptions { causal: true, ..Default::default() };
    let whole = q.attention(repeat(&k), repeat(&v), options).unwrap();
    let shared = q.attention(s.input(&k).unwrap(), s.input(&v).unwrap(), options).unwrap();
    assert_eq!(shared.value::<f32>().unwrap().data(), whole.value::<f32>().unwrap().data());
}

#[test]
fn heads_are_cut_by_columns() {
    let session = Session::eager(&device());
    let x = session.input(&tensor(&[2, 4], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])).unwrap();
    let heads = x.reshape(&[2, 2, 2]).unwrap().permute(&[1, 0, 2]).unwrap();
    assert_eq!(heads.value::<f32>().unwrap().data(), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
}

#[test]
fn multi_head_attention_has_one_value_and_one_gradient_in_both_forms() {
    let run = |composed: bool| {
        let session = Session::eager(&device());
        let s = &session;
        let x = s.variable(&drawn(&[2, 9, 6], 1)).unwrap();
        let w = [2, 3, 4].map(|i| s.variable(&drawn(&[6, 8], i)).unwrap());
        let wo = s.variable(&drawn(&[8, 6], 5)).unwrap();
        let options = AttentionOptions { causal: true, composed, ..Default::default() };
        let all: [Var<'_>; 4] = [w[0], w[1], w[2], wo];
        let y = x.multi_head_attention(all, 2, options).unwrap();
        let value = y.value::<f32>().unwrap().data().to_vec();
        let grads = y.backward_from(&drawn(&[2, 9, 6], 6)).unwrap();
        let read = |v: Var<'_>| grads.var(v).unwrap().to_tensor::<f32>().unwrap().data().to_vec();
        [vec![value, read(x)], all.iter().map(|w| read(*w)).collect()].concat()
    };
    for (flash, composed) in run(false).iter().zip(&run(true)) {
        near(flash, composed, 2e-5);
    }
    let session = Session::eager(&device());
    let x = session.input(&drawn(&[9, 6], 1)).unwrap();
    let w = session.input(&drawn(&[6, 8], 1)).unwrap();
    let wo = session.input(&drawn(&[8, 6], 1)).unwrap();
    assert!(x.multi_head_attention([w, w, w, wo], 3, AttentionOptions::default()).is_err());
    assert!(x.multi_head_attention([w, w, w, wo], 0, AttentionOptions::default()).is_err());
}

#[test]
fn rotations_depend_on_distance_only() {
    let session = Session::eager(&device());
    for interleaved in [false, true] {
        let score = |offset: usize| {
            let x = session.input(&drawn(&[1, 3, 8], 1)).unwrap();
            let r = x.rope(10_000.0, offset, interleaved).unwrap().value::<f32>().unwrap();
            let dot =
                |a: usize, b: usize| (0..8).map(|c| r.data()[a * 8 + c] * r.data()[b * 8 + c]).sum::<f32>();
            vec![dot(0, 0), dot(0, 1), dot(1, 2), dot(0, 2)]
        };
        near(&score(0), &score(1000), 1e-4);
    }
    let table = rope_table(2, 4, 100.0, 1).unwrap();
    let want = [1.0f64, 0.1, 1.0, 0.1, 2.0, 0.2, 2.0, 0.2];
    for (i, (got, angle)) in table.data().iter().zip(want).enumerate() {
        let want = if i % 4 < 2 { angle.cos() } else { angle.sin() };
        assert!((f64::from(*got) - want).abs() < 1e-7, "element {i}");
    }
    assert!(rope_table(2, 3, 100.0, 0).is_err() && rope_table(2, 2, -1.0, 0).is_err());
}

#[test]
fn eager_and_compiled_steps_have_the_same_bits() {
    let d = device();
    let fingerprint = |compiled: bool| {
        let mut params = Params::new(&d, 3);
        let list: Vec<Param> = ["q", "k", "v", "o"]
            .iter()
            .map(|name| params.uniform(name, &[8, 8], -1.0, 1.0).unwrap())
            .collect();
        fn loss<'s>(list: &[Param], x: Var<'s>) -> Result<Var<'s>> {
            let s = x.session();
            let w = [s.param(&list[0])?, s.param(&list[1])?, s.param(&list[2])?, s.param(&list[3])?];
            let options = AttentionOptions { causal: true, ..Default::default() };
            let y = x.rope(100.0, 2, false)?.multi_head_attention(w, 2, options)?;
            y.add(x)?.square()?.mean()
        }
        let x = drawn(&[2, 70, 8], 1);
        if compiled {
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.5), |v| loss(&list, v[0]));
            for _ in 0..3 {
                step.run(&[(&x).into()]).unwrap();
            }
        } else {
            let session = Session::eager(&d);
            let mut optimizer = Optimizer::sgd(0.5);
            for _ in 0..3 {
                session.reset();
                let x = session.input(&x).unwrap();
                let grads = loss(&list, x).unwrap().backward().unwrap();
                optimizer.step(&params, grads).unwrap();
            }
        }
        params.fingerprint().unwrap()
    };
    assert_eq!(fingerprint(false), fingerprint(true));
}

#[test]
fn attention_inside_rows_is_that_of_lists_copied_out() {
    let (cpu, gpu) = (device(), gpu());
    let run_on =
        |d: &Device, x: &Tensor<f32>, dy: &Tensor<f32>, whole: bool, options: AttentionOptions<'_>| {
            let s = Session::eager(d);
            let x = s.variable(x).unwrap();
            let options = AttentionOptions { mask: None, ..options };
            let y = match whole {
                true => x.self_attention(options).unwrap(),
                false => {
                    let turned = x.permute(&[2, 0, 3, 1, 4]).unwrap();
                    let part = |i| turned.select(0, i).unwrap();
                    let y = part(0).attention(part(1), part(2), options).unwrap();
                    y.permute(&[0, 2, 1, 3]).unwrap()
                }
            };
            let grads = y.backward_from(dy).unwrap();
            let grad = grads.var(x).unwrap().to_tensor::<f32>().unwrap();
            // Sums with the zeros of padding lose the sign of zeros.
            let bits = |g: &f32| (g + 0.0).to_bits();
            let value: Vec<u32> = data(y).iter().map(|y| y.to_bits()).collect();
            (value, grad.data().iter().map(bits).collect::<Vec<u32>>())
        };
    let run = |x: &Tensor<f32>, dy: &Tensor<f32>, whole, options| run_on(&cpu, x, dy, whole, options);
    let mut sizes = Vec::new();
    if gpu.is_some() {
        sizes.extend([[1, 1500, 2, 64], [1, 1100, 3, 3], [1, 1090, 1, 65], [2, 2100, 2, 8]]);
    }
    for head in [3, 4, 8, 64, 65] {
        for heads in 1..4 {
            sizes.extend([[1, 5, heads, head], [2, 70, heads, head]]);
        }
    }
    // Around blocks, over several of them, and past a chunk of keys.
    sizes.extend([
        [1, 63, 2, 8],
        [3, 64, 2, 4],
        [1, 65, 1, 4],
        [1, 129, 1, 8],
        [1, 200, 3, 4],
        [1, 1030, 2, 4],
    ]);
    sizes.extend([[0, 5, 2, 4], [2, 0, 2, 4], [5, 1, 1, 1]]);
    for [batch, n, heads, head] in sizes {
        let x = drawn(&[batch, n, 3, heads, head], 4);
        let dy = drawn(&[batch, n, heads, head], 5);
        for causal in [false, true] {
            let options = AttentionOptions { causal, ..Default::default() };
            let (value, grad) = run(&x, &dy, true, options);
            let (want, slope) = run(&x, &dy, false, options);
            assert!(value == want, "values of {batch} {n} {heads} {head}, causal {causal}");
            assert!(grad == slope, "gradients of {batch} {n} {heads} {head}, causal {causal}");
            if let Some((_, gpu)) = &gpu {
                let (value, grad) = run_on(gpu, &x, &dy, true, options);
                assert!(value == want, "values on a GPU of {batch} {n} {heads} {head}, causal {causal}");
                assert!(grad == slope, "gradients on a GPU of {batch} {n} {heads} {head}, causal {causal}");
            }
        }
    }
    let (x, dy) = (drawn(&[2, 7, 3, 2, 4], 4), drawn(&[2, 7, 2, 4], 5));
    let options = AttentionOptions { scale: Some(0.3), ..Default::default() };
    let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>();
    let composed = run(&x, &dy, true, AttentionOptions { composed: true, ..options });
    let blocked = run(&x, &dy, true, options);
    near(&floats(composed.0), &floats(blocked.0), 1e-5);
    near(&floats(composed.1), &floats(blocked.1), 1e-5);
}

#[test]
fn a_compiled_step_of_self_attention_turns_and_pads_nothing() {
    let d = device();
    let mut params = Params::new(&d, 3);
    let layer = dittograd::nn::CausalSelfAttention::new(&mut params, "a", 8, 2, 0.5).unwrap();
    let x = drawn(&[2, 70, 8], 1);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.5), |v| layer.forward(v[0])?.square()?.mean());
    step.run(&[(&x).into()]).unwrap();
    let text = step.text().unwrap();
    assert!(text.contains("self_attention_bwd"), "{text}");
    assert!(!text.contains("permute") && !text.contains("pad") && !text.contains("concat"), "{text}");
    // Eagerly the gradient of the outputs is padded.
    let mut same = Params::new(&d, 3);
    let layer = dittograd::nn::CausalSelfAttention::new(&mut same, "a", 8, 2, 0.5).unwrap();
    let session = Session::eager(&d);
    let y = layer.forward(session.input(&x).unwrap()).unwrap();
    let grads = y.square().unwrap().mean().unwrap().backward().unwrap();
    Optimizer::sgd(0.5).step(&same, grads).unwrap();
    assert_eq!(params.fingerprint().unwrap(), same.fingerprint().unwrap());
}

/// Larger heads than the kernels take are computed by products: first and second derivatives, eager and compiled, with one answer.
#[test]
fn heads_of_any_size() {
    let d = device();
    for (dims, dv) in [([2, 5, 257], 3), ([2, 5, 8], 300), ([1, 4, 512], 512)] {
        let [q, k] = [1, 2].map(|by| drawn(&dims, by));
        let v = drawn(&[dims[0], dims[1], dv], 3);
        for causal in [false, true] {
            let mut f = Session::eager(&d).compile(move |s, x| {
                let [q, k, v] = [x[0].tracked()?, x[1].tracked()?, x[2].tracked()?];
                let options = |composed| AttentionOptions { causal, composed, ..Default::default() };
                let y = q.attention(k, v, options(false))?;
                let mut all = vec![y, q.attention(k, v, options(true))?];
                all.extend(s.grad(y.square()?.sum()?, &[q, k, v])?);
                Ok(all)
            });
            let ins = [q.clone().into(), k.clone().into(), v.clone().into()];
            let got = f.call(&ins).unwrap();
            assert_eq!(got[0], got[1], "{dims:?}");
            assert_eq!(got, f.eager(&ins).unwrap(), "{dims:?}");
        }
    }
    let s = Session::eager(&d);
    let qkv = s.input(&drawn(&[2, 4, 3, 2, 260], 4)).unwrap();
    let y = qkv.self_attention(AttentionOptions::default()).unwrap();
    let by_parts = |i: usize| qkv.select(2, i).unwrap().permute(&[0, 2, 1, 3]).unwrap();
    let options = AttentionOptions { composed: true, ..Default::default() };
    let want =
        by_parts(0).attention(by_parts(1), by_parts(2), options).unwrap().permute(&[0, 2, 1, 3]).unwrap();
    assert_eq!(data(y), data(want));
}

/// Eighths between -11/8 and 11/8.
fn eighths(dims: &[usize], by: usize) -> Tensor<f32> {
    let n = dims.iter().product();
    Tensor::new(dims, (0..n).map(|i| ((i * by % 23) as f32 - 11.0) / 8.0).collect()).unwrap()
}

/// Numbers of PyTorch's `F.multi_head_attention_forward` in float64, with everything that it adds to keys and scores.
#[test]
fn multi_head_attention_to_other_sequences_is_that_of_pytorch() {
    let session = Session::eager(&device());
    let s = &session;
    let of = |dims: &[usize], by: usize| s.variable(&eighths(dims, by)).unwrap();
    let (q, k, v) = (of(&[2, 2, 4], 37), of(&[3, 2, 4], 29), of(&[3, 2, 4], 31));
    let thirds = |v: Var<'_>| v.chunk(0, 3).unwrap().into_iter().map(Var::to_id).collect::<Vec<_>>();
    let (weights, biases) = (thirds(of(&[12, 4], 5)), thirds(of(&[12], 7)));
    let inf = f32::NEG_INFINITY;
    let options = MultiHeadAttention {
        heads: 2,
        weights: std::array::from_fn(|i| s.from_id(weights[i])),
        biases: std::array::from_fn(|i| Some(s.from_id(biases[i]))),
        out_weight: of(&[4, 4], 11),
        out_bias: Some(of(&[4], 13)),
        extra: Some((of(&[4], 3), of(&[4], 9))),
        zero: true,
        dropout: 0.0,
        bias: Some(s.input(&tensor(&[2, 3], &[0.5, inf, 0.25, -1.0, 0.0, inf])).unwrap()),
        key_bias: Some(s.input(&tensor(&[2, 3], &[0.0, 0.0, -0.5, inf, 0.75, 0.0])).unwrap()),
    };
    let (y, weights) = q.multi_head_attention_to(k, v, options).unwrap();
    assert_eq!(weights.shape().unwrap().dims(), [2, 2, 2, 5]);
    let want = [
        [-1.93976, -2.80677, -3.20867, -0.73557],
        [-1.20117, 0.65589, -0.78716, 0.6448],
        [-4.65487, -2.08097, -2.6214, -0.28683],
        [-2.15751, -4.03442, -3.66789, -0.42635],
    ];
    near(&data(y), want.as_flattened(), 2e-5);
    let last = [0.0, 0.0, 0.2342, 0.52991, 0.2359, 0.0, 0.99944, 0.0, 0.00012, 0.00044];
    near(&data(weights)[30..], &last, 1e-5);
    assert!(y.sum().unwrap().backward_retain().unwrap().var(q).is_some());

    let second = |v: Var<'_>| v.select(1, 1).unwrap().to_id();
    let [q1, k1, v1] = [q, k, v].map(|v| s.from_id(second(v)));
    let row = options.key_bias.map(|bias| bias.select(0, 1).unwrap());
    let single = MultiHeadAttention { key_bias: row, ..options };
    let (y, weights) = q1.multi_head_attention_to(k1, v1, single).unwrap();
    assert_eq!(weights.shape().unwrap().dims(), [2, 2, 5]);
    near(&data(y), [want[1], want[3]].as_flattened(), 2e-5);

    let mask = s.zeros(&[3, 2]).unwrap();
    let cases = [
        ("2 or 3", s.zeros(&[4]).unwrap().multi_head_attention_to(k, v, options)),
        ("for queries (n, N, features)", q.multi_head_attention_to(k1, v, options)),
        ("one value for each key", q.multi_head_attention_to(k, q, options)),
        (
            "3 heads do not divide",
            q.multi_head_attention_to(k, v, MultiHeadAttention { heads: 3, ..options }),
        ),
        (
            "0 heads do not divide",
            q.multi_head_attention_to(k, v, MultiHeadAttention { heads: 0, ..options }),
        ),
        (
            "neither (2, 3) nor (4, 2, 3)",
            q.multi_head_attention_to(k, v, MultiHeadAttention { bias: Some(mask), ..options }),
        ),
        (
            "not (2, 3), a number for each key",
            q.multi_head_attention_to(k, v, MultiHeadAttention { key_bias: Some(mask), ..options }),
        ),
        ("use 0 to 1", q.multi_head_attention_to(k, v, MultiHeadAttention { dropout: 1.5, ..options })),
    ];
    for (why, answer) in cases {
        let e = answer.map(drop).unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
}
