//! Layout, index, random and named products through sessions: known values, gradients, errors.

use dittograd::device::Meta;
use dittograd::device::cpu::simd::Simd;
use dittograd::error::ErrorKind;
use dittograd::graph::{Graph, TrainStep};
use dittograd::ops::layout::AxisMap;
use dittograd::prelude::*;
use dittograd::session::PadMode;
use dittograd::torchlean::TorchLean;

fn session() -> Session {
    Session::eager(&Device::cpu_with(2, Simd::best()).unwrap())
}

fn ramp(dims: &[usize]) -> Tensor<f32> {
    Tensor::new(dims, (0..dims.iter().product()).map(|i| i as f32).collect()).unwrap()
}

fn values(v: Var<'_>) -> Vec<f32> {
    v.value::<f32>().unwrap().into_data()
}

fn dims(v: Var<'_>) -> Vec<usize> {
    v.shape().unwrap().dims().to_vec()
}

fn index<'s>(s: &'s Session, at: &[u32]) -> Var<'s> {
    s.indices(&Tensor::new(&[at.len()], at.to_vec()).unwrap()).unwrap()
}

#[test]
fn transposes_of_three_axes_are_one_node() {
    let s = session();
    let x = s.input(&ramp(&[2, 3, 4])).unwrap();
    let before = s.size();
    let y = x.transpose3d_first_to_last().unwrap();
    assert_eq!((dims(y), s.size()), (vec![3, 4, 2], before + 1));
    assert_eq!(values(y)[..4], [0.0, 12.0, 1.0, 13.0]);
    let back = y.transpose3d_last_to_first().unwrap();
    assert_eq!((dims(back), values(back)), (vec![2, 3, 4], values(x)));
    assert_eq!(dims(x.transpose3d_last_two().unwrap()), [2, 4, 3]);
    assert!(x.transpose2d().is_err());
    assert_eq!(dims(x.swap_adjacent_at_depth(0).unwrap()), [3, 2, 4]);
    for depth in [2, 3, usize::MAX] {
        assert_eq!(values(x.swap_adjacent_at_depth(depth).unwrap()), values(x));
    }
}

#[test]
fn heads_split_as_known() {
    let s = session();
    let x = s.input(&ramp(&[2, 4])).unwrap();
    let y = x.reshape(&[2, 2, 2]).unwrap().swap_axes(0, 1).unwrap();
    assert_eq!(values(y), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
}

#[test]
fn relabelling_shares_memory() {
    let s = session();
    let x = s.input(&ramp(&[4, 1, 8])).unwrap();
    let memory = x.buffer().unwrap();
    let shares = |v: Var<'_>| v.buffer().unwrap().buffer().shares(memory.buffer());
    assert!(
        shares(x.squeeze(1).unwrap())
            && shares(x.unsqueeze(0).unwrap())
            && shares(x.flatten_from(1).unwrap())
    );
    assert!(shares(x.permute(&[1, 0, 2]).unwrap()) && shares(x.permute(&[0, 1, 2]).unwrap()));
    assert!(
        shares(x.narrow(0, 1, 2).unwrap())
            && shares(x.flip(&[1]).unwrap())
            && shares(x.select(0, 3).unwrap())
    );
    assert!(!shares(x.permute(&[2, 1, 0]).unwrap()) && !shares(x.flip(&[0]).unwrap()));
    assert!(x.squeeze(0).is_err() && x.unsqueeze(4).is_err() && x.squeeze(9).is_err());
}

#[test]
fn cutting_and_joining_are_inverse() {
    let s = session();
    let x = s.variable(&ramp(&[3, 7])).unwrap();
    let parts = x.split(1, &[2, 0, 5]).unwrap();
    assert_eq!(values(s.concat(&parts, 1).unwrap()), values(x));
    assert!(x.split(1, &[2, 4]).is_err() && x.split(2, &[1]).is_err());
    let pieces = x.chunks(1, 3).unwrap();
    assert_eq!(pieces.iter().map(|p| dims(*p)[1]).collect::<Vec<_>>(), [3, 3, 1]);
    // More values than an op takes.
    let columns = x.chunks(1, 1).unwrap();
    let many: Vec<_> = (0..100).map(|i| columns[i % 7]).collect();
    let wide = s.concat(&many, 1).unwrap();
    assert_eq!(dims(wide), [3, 100]);
    assert_eq!(values(wide)[..9], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 1.0]);
    let g = wide.sum().unwrap().backward().unwrap();
    let g: Tensor<f32> = g.var(x).unwrap().to_tensor().unwrap();
    assert_eq!(g.data()[..7], [15.0, 15.0, 14.0, 14.0, 14.0, 14.0, 14.0]);
    assert!(s.concat(&[], 0).is_err());
}

#[test]
fn stacking_slicing_rolling_repeating() {
    let s = session();
    let x = s.input(&ramp(&[2, 3])).unwrap();
    let y = s.stack(&[x, x], 1).unwrap();
    assert_eq!((dims(y), values(y)[..6].to_vec()), (vec![2, 2, 3], vec![0.0, 1.0, 2.0, 0.0, 1.0, 2.0]));
    assert_eq!(values(x.slice(1, 0, 3, 2).unwrap()), [0.0, 2.0, 3.0, 5.0]);
    assert!(x.slice(1, 2, 4, 1).is_err() && x.slice(1, 2, 1, 1).is_err() && x.slice(1, 0, 3, 0).is_err());
    assert_eq!(values(x.slice_ranges(&[1..2, 1..3]).unwrap()), [4.0, 5.0]);
    assert_eq!(values(x.roll(1, 1).unwrap()), [2.0, 0.0, 1.0, 5.0, 3.0, 4.0]);
    assert_eq!(values(x.roll(1, -4).unwrap()), [1.0, 2.0, 0.0, 4.0, 5.0, 3.0]);
    assert_eq!(
        values(x.repeat(&[1, 2]).unwrap()),
        [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 3.0, 4.0, 5.0]
    );
    assert_eq!(dims(x.repeat(&[2, 2, 0]).unwrap()), [2, 4, 0]);
    assert!(x.repeat(&[2]).is_err());
    assert_eq!(values(x.repeat_interleave(0, 2).unwrap())[..6], [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    assert_eq!(values(x.flip(&[1]).unwrap()), [2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    assert_eq!(values(x.tril(0).unwrap()), [0.0, 0.0, 0.0, 3.0, 4.0, 0.0]);
    assert_eq!(values(x.triu(1).unwrap()), [0.0, 1.0, 2.0, 0.0, 0.0, 5.0]);
    assert_eq!(values(x.pad(1, 1, 0).unwrap()), [0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0]);
    assert_eq!(
        values(x.pad_axes(&[(0, 1), (1, 0)], -1.0).unwrap())[..8],
        [-1.0, 0.0, 1.0, 2.0, -1.0, 3.0, 4.0, 5.0]
    );
    let v = s.input(&ramp(&[2])).unwrap();
    assert_eq!(values(v.broadcast_vec_to_rows(2).unwrap()), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(values(v.broadcast_vec_to_cols(2).unwrap()), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn indices_pass_through_layout_ops() {
    let s = session();
    let i = s.labels(&Tensor::new(&[2, 3], vec![0, 1, 2, 3, 4, 5]).unwrap()).unwrap();
    let read = |v: Var<'_>| v.buffer().unwrap().to_indices().unwrap().into_data();
    assert_eq!(read(i.transpose2d().unwrap()), [0, 3, 1, 4, 2, 5]);
    assert_eq!(read(i.concat(i, 0).unwrap()).len(), 12);
    assert_eq!(read(i.flip(&[1]).unwrap()), [2, 1, 0, 5, 4, 3]);
    assert_eq!(read(i.narrow(1, 1, 1).unwrap()), [1, 4]);
    assert_eq!(read(i.repeat(&[2, 1]).unwrap())[6..], [0, 1, 2, 3, 4, 5]);
    let table = s.input(&ramp(&[6, 2])).unwrap();
    assert_eq!(values(table.embedding(i.transpose2d().unwrap()).unwrap())[..4], [0.0, 1.0, 6.0, 7.0]);
    assert!(matches!(i.concat(table, 0).unwrap_err().kind(), ErrorKind::DType { .. }));
    assert!(i.triu(0).is_err() && i.exp().is_err());
}

#[test]
fn gathers_are_total_or_checked() {
    let s = session();
    let v = s.variable(&Tensor::new(&[3], vec![5.0, 6.0, 7.0]).unwrap()).unwrap();
    assert_eq!(v.gather_scalar(2).unwrap().item().unwrap(), 7.0);
    assert_eq!(v.gather_scalar_nat(3).unwrap().item().unwrap(), 0.0);
    assert!(matches!(v.gather_scalar(3).unwrap_err().kind(), ErrorKind::Index { index: 3, bound: 3, .. }));
    let at = index(&s, &[1, 9, 1, u32::MAX, 0]);
    let y = v.gather_vec_nat(at).unwrap();
    assert_eq!(values(y), [6.0, 0.0, 6.0, 0.0, 5.0]);
    assert!(matches!(
        v.index_select(0, at).unwrap_err().kind(),
        ErrorKind::Index { at: 1, index: 9, bound: 3 }
    ));
    let seed = Tensor::new(&[5], vec![1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let g = y.backward_from(&seed).unwrap();
    assert_eq!(g.var(v).unwrap().to_tensor::<f32>().unwrap().data(), [5.0, 4.0, 0.0]);
    let m = s.input(&ramp(&[3, 2])).unwrap();
    assert_eq!(values(m.gather_row(1).unwrap()), [2.0, 3.0]);
    assert_eq!(values(m.gather_rows_nat(index(&s, &[2, 3])).unwrap()), [4.0, 5.0, 0.0, 0.0]);
    assert!(m.gather_row(3).is_err() && v.embedding(at).is_err() && m.gather_vec_nat(at).is_err());
}

#[test]
fn additions_keep_source_order() {
    let s = session();
    // 1e8 + 1 is 1e8 in float32: starting from the base, ones are lost one by one; before it they add up.
    let base = s.input(&Tensor::new(&[2], vec![1e8, -0.0]).unwrap()).unwrap();
    let ones = s.input(&Tensor::full(Shape::new(&[4095]).unwrap(), 1.0f32)).unwrap();
    let y = base.index_add(0, index(&s, &vec![0; 4095]), ones).unwrap();
    assert_eq!(values(y), [1e8, 0.0]);
    assert!(values(y)[1].is_sign_negative());
    let first = Tensor::new(&[3], vec![1e8f32, -1e8, 1.0]).unwrap();
    let src = s.input(&first).unwrap();
    let zero = s.full(&[1], 0.0).unwrap();
    assert_eq!(values(zero.scatter_add(0, index(&s, &[0, 0, 0]), src).unwrap()), [1.0]);
    let m = s.input(&ramp(&[2, 2])).unwrap();
    let v = s.input(&Tensor::new(&[2], vec![10.0, 20.0]).unwrap()).unwrap();
    assert_eq!(values(m.scatter_add_row(1, v).unwrap()), [0.0, 1.0, 12.0, 23.0]);
    assert!(m.scatter_add_row(2, v).is_err());
    let c = s.scalar(3.0).unwrap();
    assert_eq!(values(v.scatter_add_vec(0, c).unwrap()), [13.0, 20.0]);
    assert_eq!(values(m.scatter_add_rows_nat(index(&s, &[7, 0]), m).unwrap()), [2.0, 4.0, 2.0, 3.0]);
    assert_eq!(values(v.scatter_add_nat(index(&s, &[1, 5]), v).unwrap()), [10.0, 30.0]);
}

#[test]
fn an_embedding_trains_the_same_on_any_number_of_threads() {
    let run = |threads: usize| -> Result<Vec<f32>> {
        let s = Session::eager_seeded(&Device::cpu_with(threads, Simd::best())?, 3);
        let table = s.variable(&s.normal(&[5000, 24], 0.0, 1.0)?.value::<f32>()?)?;
        let at = s.randint(&[40, 200], 5000)?;
        let y = table.embedding(at)?.square()?.sum()?;
        Ok(y.backward()?
            .var(table)
            .map(|g| g.to_tensor::<f32>())
            .transpose()?
            .map_or(vec![], Tensor::into_data))
    };
    let one = run(1).unwrap();
    assert_eq!(one.len(), 5000 * 24);
    for threads in [2, 3, 8] {
        assert!(run(threads).unwrap() == one);
    }
}

/// Mean, variance, skewness and kurtosis.
fn moments(x: &[f32]) -> [f64; 4] {
    let n = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let of = |p: i32| x.iter().map(|&x| (f64::from(x) - mean).powi(p)).sum::<f64>() / n;
    let var = of(2);
    [mean, var, of(3) / var.powf(1.5), of(4) / (var * var)]
}

#[test]
fn normal_draws_have_the_moments_of_the_normal() {
    let s = session();
    let x = values(s.normal(&[1 << 20], -0.25, 0.75).unwrap());
    let [mean, var, skew, kurtosis] = moments(&x);
    // Five standard errors of a million draws.
    assert!((mean + 0.25).abs() < 5.0 * 0.75 / 1024.0, "{mean}");
    assert!((var - 0.5625).abs() < 5.0 * 0.5625 * 1.42 / 1024.0, "{var}");
    assert!(
        skew.abs() < 5.0 * 2.45 / 1024.0 && (kurtosis - 3.0).abs() < 5.0 * 4.9 / 1024.0,
        "{skew} {kurtosis}"
    );
    // Neighbours are not correlated, unlike draws that share a radius.
    let z: Vec<f64> = x.iter().map(|&x| (f64::from(x) + 0.25) / 0.75).collect();
    let lag = z.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / z.len() as f64;
    let squares =
        z.windows(2).map(|w| (w[0] * w[0] - 1.0) * (w[1] * w[1] - 1.0)).sum::<f64>() / z.len() as f64;
    assert!(lag.abs() < 5.0 / 1024.0 && squares.abs() < 10.0 / 1024.0, "{lag} {squares}");
    assert!(z.iter().all(|z| z.abs() < 5.78) && z.iter().any(|z| z.abs() > 4.0));
    let u = values(s.uniform_range(&[1 << 16], 2.0, 6.0).unwrap());
    let [mean, var, ..] = moments(&u);
    assert!((mean - 4.0).abs() < 0.03 && (var - 16.0 / 12.0).abs() < 0.03);
    assert!(u.iter().all(|u| (2.0..=6.0).contains(u)));
    assert!(s.normal(&[2], f64::NAN, 1.0).is_err());
}

#[test]
fn masks_from_a_tensor_are_those_of_the_number() {
    let inf = f64::INFINITY;
    // Outside of 0 to 1 the nearer end counts, and NaN keeps nothing.
    let ends = [(-inf, 0.0), (-0.5, 0.0), (0.0, 0.0), (f64::NAN, 0.0), (1.0, 1.0), (1.5, 1.0), (inf, 1.0)];
    for (keep, all) in ends.map(|(keep, all)| (keep, Some(all))).into_iter().chain([(0.35, None)]) {
        let s = session();
        let mask = values(s.bernoulli(&[500], keep).unwrap());
        assert!(all.is_none_or(|all| mask.iter().all(|m| *m == all)), "{keep}");
        let s = session();
        assert_eq!(values(s.bernoulli_mask(&[500], s.scalar(keep).unwrap()).unwrap()), mask, "{keep}");
        // Compiled, where the probability is an attribute or an input.
        let run = |f: &dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>| {
            let graph =
                Graph::trace(s.device(), &[Meta::f32(Shape::SCALAR)], |_, v| Ok(vec![f(v)?])).unwrap();
            let out = graph.run(s.device(), &[Tensor::scalar(keep as f32).into()]).unwrap();
            out[0].num().unwrap().data().to_vec()
        };
        assert_eq!(run(&|v| v[0].session().bernoulli(&[500], keep)), mask, "{keep}");
        assert_eq!(run(&|v| v[0].session().bernoulli_mask(&[500], v[0])), mask, "{keep}");
    }
    let s = session();
    assert!(s.bernoulli_mask(&[2], s.full(&[2], 0.5).unwrap()).is_err());
}

#[test]
fn permutations_hold_every_index_once() {
    let s = session();
    for n in [0usize, 1, 5, 1000] {
        let p = s.permutation(n).unwrap().buffer().unwrap().to_indices().unwrap().into_data();
        let mut sorted = p.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(i, &x)| i == x as usize));
        assert!(n < 1000 || p != sorted);
    }
    let x = s.input(&ramp(&[50, 3])).unwrap();
    let shuffled = x.index_select(0, s.permutation(50).unwrap()).unwrap();
    assert_eq!(values(shuffled).iter().sum::<f32>(), values(x).iter().sum::<f32>());
    let small = s.randint(&[1000], 3).unwrap().buffer().unwrap().to_indices().unwrap().into_data();
    assert!((0..3).all(|k| small.iter().filter(|x| **x == k).count() > 270) && small.iter().all(|x| *x < 3));
}

#[test]
fn whole_numbers_of_a_range_are_exact() {
    let s = session();
    let (low, high) = (u32::MAX - 5, u32::MAX - 2);
    let all = s.randint_range(&[1000], low, high).unwrap().indices().unwrap().into_data();
    assert!((low..high).all(|k| all.iter().filter(|x| **x == k).count() > 270));
    assert!(all.iter().all(|x| (low..high).contains(x)));
    let [a, b] = [0, 9].map(|low| {
        let s = session();
        s.randint_range(&[50], low, low + 7).unwrap().indices().unwrap().into_data()
    });
    assert_eq!(a.iter().map(|x| x + 9).collect::<Vec<_>>(), b);
}

#[test]
fn draws_by_elements_follow_their_numbers() {
    let s = session();
    let p = s
        .input(&Tensor::new(&[1, 4], vec![0.0, 0.25, 0.75, 1.0]).unwrap())
        .unwrap()
        .expand(&[4000, -1])
        .unwrap();
    let mean = values(p.bernoulli().unwrap().mean_axes(&[0]).unwrap());
    assert!(
        mean[0] == 0.0 && (mean[1] - 0.25).abs() < 0.03 && (mean[2] - 0.75).abs() < 0.03 && mean[3] == 1.0
    );
    let std = s.input(&Tensor::new(&[2, 1], vec![0.0, 3.0]).unwrap()).unwrap();
    let x = s.full(&[5000], 2.0).unwrap().normal(std).unwrap();
    assert!(values(x.select(0, 0).unwrap()).iter().all(|x| *x == 2.0));
    let [mean, var, ..] = moments(&values(x.select(0, 1).unwrap()));
    assert!((mean - 2.0).abs() < 0.2 && (var - 9.0).abs() < 0.7);
    for replacement in [true, false] {
        let drawn = p.multinomial(2, replacement).unwrap().indices().unwrap().into_data();
        let first = |k: u32| drawn.chunks(2).filter(|row| row[0] == k).count() as f64 / 4000.0;
        assert!(first(0) == 0.0 && (first(1) - 0.125).abs() < 0.03 && (first(3) - 0.5).abs() < 0.03);
        assert!(drawn.chunks(2).any(|row| row[0] == row[1]) == replacement);
    }
    let rare = s.input(&Tensor::new(&[3], vec![0.0, 1.0, 0.0]).unwrap()).unwrap();
    assert_eq!(rare.multinomial(3, false).unwrap().indices().unwrap().data()[0], 1);
}

/// With a probability of 1 all is dropped: zeros, with gradients of zero, whatever the elements are.
#[test]
fn all_can_be_dropped() {
    let s = session();
    let data = vec![1.0, f32::NAN, f32::INFINITY, -2.0];
    let x = s.variable(&Tensor::new(&[2, 2], data).unwrap()).unwrap();
    let calls = s.random_calls();
    for y in [x.dropout(1.0), x.channel_dropout(1.0), x.alpha_dropout(1.0), x.feature_alpha_dropout(1.0)] {
        let y = y.unwrap();
        assert_eq!(values(y), [0.0; 4]);
        assert_eq!(values(s.grad(y.sum().unwrap(), &[x]).unwrap()[0]), [0.0; 4]);
    }
    assert_eq!(s.random_calls(), calls, "nothing is drawn");
}

/// As PyTorch's: one piece of a given size, as many as asked for of a given count.
#[test]
fn an_axis_without_elements_has_pieces() {
    let s = session();
    let x = s.zeros(&[0, 3]).unwrap();
    let shapes = |pieces: Result<Vec<Var<'_>>>| {
        pieces.unwrap().into_iter().map(|v| v.shape().unwrap().dims().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(shapes(x.chunks(0, 2)), [[0, 3]]);
    assert_eq!(shapes(x.chunk(0, 2)), [[0, 3], [0, 3]]);
    assert!(x.chunk(0, usize::MAX).is_err());
}

#[test]
fn triangles_have_indices() {
    let s = session();
    for (rows, columns) in [(3, 4), (4, 2), (0, 3)] {
        let eye = s.eye_with(rows, columns).unwrap();
        assert_eq!(eye.shape().unwrap().dims(), [rows, columns]);
        for diagonal in [-5, -1, 0, 2, 9] {
            let ones = s.ones(&[rows, columns]).unwrap();
            let of = |index: Var<'_>, part: Var<'_>| {
                let want = part.nonzero().unwrap().transpose().unwrap();
                assert_eq!(index.shape().unwrap(), want.shape().unwrap());
                assert_eq!(index.indices().unwrap().data(), want.indices().unwrap().data());
            };
            of(s.tril_indices(rows, columns, diagonal).unwrap(), ones.tril(diagonal).unwrap());
            of(s.triu_indices(rows, columns, diagonal).unwrap(), ones.triu(diagonal).unwrap());
        }
    }
    assert_eq!(values(s.eye_with(2, 3).unwrap()), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
}

/// Every product written out.
fn naive(equation: &str, values: &[&Tensor<f32>]) -> Vec<f64> {
    let (left, right) = equation.split_once("->").unwrap();
    let terms: Vec<&str> = left.split(',').collect();
    let mut letters: Vec<char> = left.chars().filter(|c| *c != ',').collect();
    letters.sort_unstable();
    letters.dedup();
    let size = |c: char| {
        let (t, at) = terms.iter().enumerate().find_map(|(t, term)| term.find(c).map(|at| (t, at))).unwrap();
        values[t].shape().dims()[at]
    };
    let place = |term: &str, at: &[usize]| {
        term.chars().fold(0, |i, c| i * size(c) + at[letters.iter().position(|l| *l == c).unwrap()])
    };
    let mut out = vec![0.0; right.chars().map(size).product()];
    let all: usize = letters.iter().map(|c| size(*c)).product();
    for i in 0..all {
        let (mut rest, mut at) = (i, vec![0; letters.len()]);
        for (a, c) in at.iter_mut().zip(&letters) {
            *a = rest % size(*c);
            rest /= size(*c);
        }
        let product: f64 =
            terms.iter().zip(values).map(|(t, v)| f64::from(v.data()[place(t, &at)])).product();
        out[place(right, &at)] += product;
    }
    out
}

#[test]
fn named_products_are_those_written_out() {
    let s = session();
    let size = |c: char| 2 + (c as usize - 'a' as usize) % 4;
    for equation in [
        "ij,jk->ik",
        "ij,jk->ki",
        "ji,kj->ik",
        "bij,bjk->bik",
        "bij,bkj->bki",
        "ibj,jbk->bik",
        "bhid,bhjd->bhij",
        "bhij,bhjd->bihd",
        "i,i->",
        "i,j->ij",
        "i,j->ji",
        "ij->ji",
        "ij->",
        "ij->i",
        "ijk->ki",
        "ij,ij->",
        "ij,ij->ij",
        "ij,kj->",
        "abc,bd->acd",
        "abc,cb->a",
        "ij,jk,kl->il",
        "i,ij,j->",
        "ij,ik,il->jkl",
        "ab,cd->dacb",
        "ij,k->ik",
        "ii->i",
        "ii->",
        "bii->bi",
        "iib->bi",
        "ibi->ib",
        "iii->i",
        "ijij->ji",
        "bii,bij->bj",
        "ii,ii->",
    ] {
        let (left, _) = equation.split_once("->").unwrap();
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            ((seed >> 20) % 17) as f32 - 8.0
        };
        let tensors: Vec<Tensor<f32>> = left
            .split(',')
            .map(|t| {
                let dims: Vec<usize> = t.chars().map(size).collect();
                let n = dims.iter().product();
                Tensor::new(&dims, (0..n).map(|_| next()).collect()).unwrap()
            })
            .collect();
        let vars: Vec<Var<'_>> = tensors.iter().map(|t| s.variable(t).unwrap()).collect();
        let y = s.einsum(equation, &vars).unwrap();
        let want = naive(equation, &tensors.iter().collect::<Vec<_>>());
        let got: Vec<f64> = values(y).iter().map(|x| f64::from(*x)).collect();
        assert_eq!(got, want, "{equation}");
        let dims_want: Vec<usize> = equation.split_once("->").unwrap().1.chars().map(size).collect();
        assert_eq!(dims(y), dims_want, "{equation}");
        // Whole numbers, so the identity <dA, A> = <g, y> of products that are linear in each operand is exact.
        let g = y.sum().unwrap().backward().unwrap();
        let sum: f64 = want.iter().sum();
        for (v, t) in vars.iter().zip(&tensors) {
            let g: Tensor<f32> = g.var(*v).unwrap().to_tensor().unwrap();
            let dot: f64 = g.data().iter().zip(t.data()).map(|(g, x)| f64::from(*g) * f64::from(*x)).sum();
            assert_eq!(dot, sum, "{equation}");
        }
    }
}

#[test]
fn named_products_without_a_result_or_with_dots() {
    let s = session();
    let (a, b) = (s.input(&ramp(&[2, 3, 4])).unwrap(), s.input(&ramp(&[2, 4, 5])).unwrap());
    let want = values(a.bmm(b).unwrap());
    assert_eq!(values(s.einsum("bij,bjk->bik", &[a, b]).unwrap()), want);
    assert_eq!(values(s.einsum("...ij,...jk->...ik", &[a, b]).unwrap()), want);
    assert_eq!(values(s.einsum("...ij, ...jk", &[a, b]).unwrap()), want);
    assert_eq!(dims(s.einsum("ba", &[s.input(&ramp(&[2, 3])).unwrap()]).unwrap()), [3, 2]);
    assert_eq!(dims(s.einsum("...ij->j...", &[a]).unwrap()), [4, 2]);
    assert_eq!(values(a.tensordot(s.input(&ramp(&[3, 4, 2])).unwrap(), 2).unwrap()).len(), 4);
    let v = s.input(&ramp(&[3])).unwrap();
    assert_eq!(v.dot(v).unwrap().item().unwrap(), 5.0);
    assert_eq!(values(v.outer(v).unwrap()), [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 2.0, 4.0]);
    for (equation, ins) in [
        ("ii->i", &[a][..]),
        ("bii->b", &[a]),
        ("bij->iij", &[a]),
        ("ij,jk->ik", &[a]),
        ("bij,bjk->bil", &[a, b]),
        ("bij,bij->b", &[a, b]),
        ("ij->i", &[a]),
        ("i1j->i", &[a]),
        ("bij->bb", &[a]),
        ("......", &[v]),
        ("...i...->i", &[a]),
        ("b\0\n\u{7f}", &[a]),
        (&"b,".repeat(1000), &[a]),
    ] {
        let message = s.einsum(equation, ins).expect_err(equation).to_string();
        assert!(message.len() < 500 && !message.contains(char::is_control), "{message:?}");
    }
    assert!(v.dot(s.input(&ramp(&[4])).unwrap()).is_err() && a.dot(v).is_err());
}

#[test]
fn a_broadcast_with_a_map_and_its_sum() {
    let s = session();
    let x = s.variable(&Tensor::new(&[2, 1], vec![1.0f32, 2.0]).unwrap()).unwrap();
    let map = AxisMap::new(&[None, Some(0), Some(1)]).unwrap();
    let y = x.broadcast_axes(Shape::new(&[3, 2, 2]).unwrap(), map).unwrap();
    assert_eq!(values(y), [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
    let seed = Tensor::new(&[3, 2, 2], (1..=12).map(|i| i as f32).collect()).unwrap();
    let g = y.backward_from(&seed).unwrap();
    assert_eq!(g.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [33.0, 45.0]);
}

/// A step with lookups, draws and moves of all kinds.
fn loss<'s>(table: &Param, at: Var<'s>) -> Result<Var<'s>> {
    let s = at.session();
    let table = s.param(table)?;
    let shuffled = table.index_select(0, s.permutation(20)?)?;
    let x = shuffled.embedding(at)?.dropout(0.25)?.add(s.normal(&[6, 5, 8], 0.0, 0.1)?)?;
    let mask = s.bernoulli_mask(&[6, 5, 8], s.scalar(0.5)?)?;
    let x = x.mul(mask)?.permute(&[2, 0, 1])?.flip(&[1])?;
    let picked = table.index_select(0, s.randint(&[7], 20)?)?;
    let y = s.einsum("dij,kd->kij", &[x, picked])?.concat(s.uniform_range(&[2, 6, 5], -1.0, 1.0)?, 0)?;
    y.roll(0, 2)?.tril(0)?.square()?.mean()
}

#[test]
fn compiled_steps_draw_and_look_up_what_eager_ones_do() {
    let at = Tensor::new(&[6, 5], (0..30u32).map(|i| i * 7 % 20).collect()).unwrap();
    let run = |compiled: bool, threads: usize| -> Result<String> {
        let d = Device::cpu_with(threads, Simd::best())?;
        let mut params = Params::new(&d, 5);
        let table = params.uniform("table", &[20, 8], -1.0, 1.0)?;
        if compiled {
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| loss(&table, v[0])).seeded(11);
            for _ in 0..3 {
                step.run(&[(&at).into()])?;
            }
        } else {
            let s = Session::eager_seeded(&d, 11);
            let mut opt = Optimizer::sgd(0.1);
            for _ in 0..3 {
                opt.step(&params, loss(&table, s.labels(&at)?)?.backward()?)?;
                s.reset();
            }
        }
        params.fingerprint()
    };
    let want = run(false, 1).unwrap();
    assert_eq!(
        [run(false, 3).unwrap(), run(true, 1).unwrap(), run(true, 3).unwrap()],
        [want.clone(), want.clone(), want]
    );
}

#[test]
fn diagonals() {
    let s = session();
    let x = s.variable(&ramp(&[3, 4])).unwrap();
    assert_eq!(values(x.diagonal(0, 0, 1).unwrap()), [0.0, 5.0, 10.0]);
    assert_eq!(values(x.diagonal(2, 0, 1).unwrap()), [2.0, 7.0]);
    assert_eq!(values(x.diagonal(-1, 0, 1).unwrap()), [4.0, 9.0]);
    assert_eq!(values(x.diagonal(1, 1, 0).unwrap()), [4.0, 9.0]);
    for far in [4, -3, i64::MAX, i64::MIN] {
        assert_eq!(dims(x.diagonal(far, 0, 1).unwrap()), [0]);
    }
    let cube = s.input(&ramp(&[2, 3, 2])).unwrap();
    assert_eq!(dims(cube.diagonal(0, 0, 2).unwrap()), [3, 2]);
    assert_eq!(values(cube.diagonal(0, 0, 2).unwrap()), [0.0, 7.0, 2.0, 9.0, 4.0, 11.0]);
    assert_eq!(values(cube.diagonal(0, 1, 0).unwrap()), [0.0, 8.0, 1.0, 9.0]);
    let g = x.diagonal(1, 0, 1).unwrap().sum().unwrap().backward().unwrap();
    let g: Tensor<f32> = g.var(x).unwrap().to_tensor().unwrap();
    assert_eq!(g.data(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert!(x.diagonal(0, 0, 0).is_err() && x.diagonal(0, 0, 2).is_err());
    assert_eq!(s.einsum("ii", &[s.input(&ramp(&[3, 3])).unwrap()]).unwrap().item().unwrap(), 12.0);
}

#[test]
fn strided_values_are_copies_of_elements() {
    let s = session();
    let x = s.variable(&ramp(&[2, 4])).unwrap();
    let windows = x.as_strided(&[3, 2], &[2, 1], 1).unwrap();
    assert_eq!((dims(windows), values(windows)), (vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(values(x.as_strided(&[2, 2], &[0, 3], 0).unwrap()), [0.0, 3.0, 0.0, 3.0]);
    assert_eq!(values(x.as_strided(&[], &[], 7).unwrap()), [7.0]);
    assert_eq!(dims(x.as_strided(&[0, 9], &[9, 9], 9).unwrap()), [0, 9]);
    let twice = x.as_strided(&[2, 2], &[0, 3], 0).unwrap().sum().unwrap().backward_retain().unwrap();
    assert_eq!(twice.var(x).unwrap().to_tensor::<f32>().unwrap().data()[..4], [2.0, 0.0, 0.0, 2.0]);
    let src = s.input(&ramp(&[2, 2])).unwrap();
    assert_eq!(
        values(x.as_strided_scatter(src, &[2, 2], &[4, 2], 1).unwrap()),
        [0.0, 0.0, 2.0, 1.0, 4.0, 2.0, 6.0, 3.0]
    );
    for (sizes, strides, offset) in [
        (&[2, 4][..], &[4, 1][..], 1),
        (&[3], &[4], 0),
        (&[2], &[1, 1], 0),
        (&[2], &[usize::MAX], usize::MAX),
    ] {
        let e = x.as_strided(sizes, strides, offset).unwrap_err().to_string();
        assert!(e.contains("as_strided") && e.contains("strides"), "{e}");
        assert!(x.as_strided_scatter(src, sizes, strides, offset).is_err());
    }
    assert!(x.as_strided_scatter(src, &[2], &[1], 0).is_err());
}

#[test]
fn indices_of_any_axes_and_masks_select() {
    let s = session();
    let x = s.input(&ramp(&[2, 3, 4])).unwrap();
    let (i, j) = (index(&s, &[2, 0]), index(&s, &[1, 3]));
    // x[:, i]
    let y = x.index_axes(&[1], &[i]).unwrap();
    assert_eq!((dims(y), values(y)[..4].to_vec()), (vec![2, 2, 4], vec![8.0, 9.0, 10.0, 11.0]));
    // x[:, i, j]: neighbours keep their place.
    assert_eq!(values(x.index_axes(&[1, 2], &[i, j]).unwrap()), [9.0, 3.0, 21.0, 15.0]);
    // x[k, :, j]: others come first.
    let k = index(&s, &[0, 1]);
    let y = x.index_axes(&[0, -1], &[k, j]).unwrap();
    assert_eq!((dims(y), values(y)), (vec![2, 3], vec![1.0, 5.0, 9.0, 15.0, 19.0, 23.0]));
    // A mask stands for as many indices as it has axes.
    let mask = s.input(&Tensor::new(&[2, 3], vec![0.0f32, 0.0, 1.0, f32::NAN, 0.0, 0.0]).unwrap()).unwrap();
    let y = x.index(&[mask]).unwrap();
    assert_eq!((dims(y), values(y)[..4].to_vec()), (vec![2, 4], vec![8.0, 9.0, 10.0, 11.0]));
    assert_eq!(values(x.index(&[mask, j]).unwrap()), [9.0, 15.0]);
    let columns = s.input(&Tensor::new(&[3], vec![1.0f32, 0.0, 1.0]).unwrap()).unwrap();
    assert_eq!(dims(x.index_axes(&[1], &[columns]).unwrap()), [2, 2, 4]);
    let y = x.index_put(&[mask], s.scalar(-1.0).unwrap(), false).unwrap();
    assert_eq!(values(y).iter().filter(|x| **x == -1.0).count(), 8);
    let bad = s.ones(&[2, 2]).unwrap();
    for (why, answer) in [
        ("the sizes of the axes", x.index(&[bad])),
        ("the sizes of the axes", x.index_put(&[i, mask], x, false)),
        ("no different axes", x.index_axes(&[1, 1], &[i, j])),
        ("no different axes", x.index_axes(&[3], &[i])),
        ("1 are given for 2", x.index_axes(&[0, 1], &[i])),
        ("0 are given for 1", x.index_axes(&[0], &[])),
        ("one for each of the first axes", x.index_axes(&[0usize; 0], &[])),
    ] {
        let e = answer.unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
    let row = s.input(&Tensor::new(&[4], vec![-1.0f32, -2.0, -3.0, -4.0]).unwrap()).unwrap();
    let filled = x.index_fill_with(1, i, row).unwrap();
    assert_eq!(values(filled)[..8], [-1.0, -2.0, -3.0, -4.0, 4.0, 5.0, 6.0, 7.0]);
    assert!(x.index_fill_with(1, i, s.ones(&[5]).unwrap()).is_err());
}

#[test]
fn positions_and_coordinates() {
    let s = session();
    let i = s.labels(&Tensor::new(&[2, 2], vec![0, 7, 3, 0]).unwrap()).unwrap();
    let read = |v: Var<'_>| v.indices().unwrap().into_data();
    assert_eq!(read(i.nonzero().unwrap()), [0, 1, 1, 0]);
    assert_eq!(read(i.nonzero_static(1, 9).unwrap()), [0, 1]);
    let more = i.nonzero_static(3, 9).unwrap();
    assert_eq!((dims(more), read(more)), (vec![3, 2], vec![0, 1, 1, 0, 9, 9]));
    assert_eq!(i.select(0, 0).unwrap().select(0, 1).unwrap().index_item().unwrap(), 7);
    assert!(i.index_item().is_err() && s.ones(&[1]).unwrap().index_item().is_err());
    let at = index(&s, &[0, 5, 23]).unravel_index(&[2, 3, 4]).unwrap();
    assert_eq!(at.iter().map(|v| read(*v)).collect::<Vec<_>>(), [[0, 0, 1], [0, 1, 2], [0, 1, 3]]);
    assert_eq!(index(&s, &[0]).unravel_index(&[]).unwrap().len(), 0);
    let e = index(&s, &[24]).unravel_index(&[2, 3, 4]).unwrap_err().to_string();
    assert!(e.contains("24 is beyond the 24 elements"), "{e}");
    assert!(s.ones(&[1]).unwrap().unravel_index(&[2]).is_err());
}

/// What moves elements moves indices too, also those that are no numbers of float32.
#[test]
fn indices_are_chosen_padded_and_replaced() {
    let s = session();
    const BIG: u32 = u32::MAX - 1;
    let labels = |dims: &[usize], data: &[u32]| s.labels(&Tensor::new(dims, data.to_vec()).unwrap()).unwrap();
    let read = |v: Result<Var<'_>>| v.unwrap().indices().unwrap().into_data();
    let i = labels(&[2, 3], &[1, BIG, 3, 4, 5, BIG]);
    let mask = s.input(&Tensor::new(&[3], vec![0.0f32, 1.0, f32::NAN]).unwrap()).unwrap();
    assert_eq!(read(mask.where_(i, labels(&[2, 1], &[7, 8]))), [7, BIG, 3, 8, 5, BIG]);
    assert_eq!(read(i.masked_fill(mask, 9.0)), [1, 9, 9, 4, 9, 9]);
    assert_eq!(read(i.pad(1, 1, 0)), [0, 1, BIG, 3, 0, 4, 5, BIG]);
    assert_eq!(read(i.pad_with(0, 0, 1, f64::from(BIG)))[6..], [BIG; 3]);
    assert_eq!(read(i.pad_mode(&[0, 1], PadMode::Constant(2.0))), [1, BIG, 3, 2, 4, 5, BIG, 2]);
    assert_eq!(read(i.roll(1, 1)), [3, 1, BIG, BIG, 4, 5]);
    assert_eq!(read(s.stack(&[i, i], 0))[6..], [1, BIG, 3, 4, 5, BIG]);
    assert_eq!(read(i.gather(1, labels(&[2, 1], &[1, 2]))), [BIG, BIG]);
    assert_eq!(read(i.index_select(1, labels(&[2], &[2, 0]))), [3, 1, BIG, 4]);
    assert_eq!(read(i.index_fill(1, labels(&[1], &[0]), 6.0)), [6, BIG, 3, 6, 5, BIG]);
    assert_eq!(
        read(i.scatter(1, labels(&[2, 1], &[0, 2]), labels(&[2, 1], &[BIG, 0]))),
        [BIG, BIG, 3, 4, 5, 0]
    );
    assert_eq!(read(i.scatter_value(1, labels(&[2, 1], &[0, 2]), 2.0)), [2, BIG, 3, 4, 5, 2]);
    assert_eq!(
        read(i.index_put(&[labels(&[1], &[1])], labels(&[3], &[7, 8, 9]), false)),
        [1, BIG, 3, 7, 8, 9]
    );
    assert_eq!(read(i.select_scatter(labels(&[2], &[0, 0]), 1, 0)), [0, BIG, 3, 0, 5, BIG]);
    assert_eq!(read(i.as_strided(&[2], &[5], 0)), [1, BIG]);
    assert_eq!(read(i.index(&[mask.narrow(0, 0, 2).unwrap()])), [4, 5, BIG]);
    for (why, answer) in [
        ("a whole number from 0", i.masked_fill(mask, -1.0)),
        ("a whole number from 0", i.pad_with(0, 1, 0, 0.5)),
        ("where_", mask.where_(i, s.ones(&[3]).unwrap())),
        ("where_", mask.where_(i, labels(&[4], &[0; 4]))),
        ("where_", i.where_(i, i)),
        ("argsort", i.argsort(1, false)),
        ("max", i.max(i)),
        ("sum", i.sum()),
        ("u32", i.amax(&[1], false)),
        ("u32", i.topk(1, 1, true).map(|x| x.0)),
    ] {
        let e = answer.unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
}
