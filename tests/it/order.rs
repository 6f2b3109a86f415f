//! Methods that sort, select, scatter and count: against PyTorch, in compiled programs, on ties and bad input.

use crate::support::{data, device as cpu, t as tensor};
use dittograd::device::cpu::simd::Simd;
use dittograd::device::{Device, Meta};
use dittograd::graph::Graph;
use dittograd::numerics::rng::Stream;
use dittograd::prelude::*;
use dittograd::session::Segments;
use dittograd_check::gpu;
use serde_json::Value;

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

fn numbers(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|x| number(x) as f32).collect()
}

fn size(v: &Value) -> usize {
    v.as_u64().unwrap() as usize
}

fn sizes(v: &Value) -> Vec<usize> {
    v.as_array().unwrap().iter().map(size).collect()
}

fn flag(v: &Value) -> bool {
    v.as_bool().unwrap()
}

fn interpolation(v: &Value) -> QuantileRule {
    match v.as_str().unwrap() {
        "linear" => QuantileRule::Linear,
        "lower" => QuantileRule::Lower,
        "higher" => QuantileRule::Higher,
        "midpoint" => QuantileRule::Midpoint,
        _ => QuantileRule::Nearest,
    }
}

fn reduce(v: &Value) -> Reduce {
    match v.as_str().unwrap() {
        "sum" => Reduce::Sum,
        "mean" => Reduce::Mean,
        "prod" => Reduce::Prod,
        "amax" | "max" => Reduce::Amax,
        _ => Reduce::Amin,
    }
}

/// What a line of the file calls.
fn call<'s>(name: &str, a: &[Value], v: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
    let pair = |(value, at)| vec![value, at];
    let x = v[0];
    let qs = || a[0].as_array().unwrap().iter().map(number).collect::<Vec<_>>();
    Ok(match name {
        "sort" => pair(x.sort(size(&a[0]), flag(&a[1]))?),
        "argsort" => vec![x.argsort(size(&a[0]), flag(&a[1]))?],
        "msort" => vec![x.msort()?],
        "topk" => pair(x.topk(size(&a[0]), size(&a[1]), flag(&a[2]))?),
        "kthvalue" => pair(x.kthvalue(size(&a[0]), size(&a[1]), flag(&a[2]))?),
        "median" => pair(x.median(size(&a[0]), flag(&a[1]))?),
        "nanmedian" => pair(x.nanmedian(size(&a[0]), flag(&a[1]))?),
        "mode" => pair(x.mode(size(&a[0]), flag(&a[1]))?),
        "max_dim" => pair(x.max_dim(size(&a[0]), flag(&a[1]))?),
        "min_dim" => pair(x.min_dim(size(&a[0]), flag(&a[1]))?),
        "cummax" => pair(x.cummax(size(&a[0]))?),
        "cummin" => pair(x.cummin(size(&a[0]))?),
        "quantile" => vec![x.quantile(&qs(), size(&a[1]), flag(&a[2]), interpolation(&a[3]))?],
        "nanquantile" => vec![x.nanquantile(&qs(), size(&a[1]), flag(&a[2]), interpolation(&a[3]))?],
        "quantile_by" => vec![x.quantile_by(v[1], size(&a[0]), flag(&a[1]), interpolation(&a[2]))?],
        "nanquantile_by" => vec![x.nanquantile_by(v[1], size(&a[0]), flag(&a[1]), interpolation(&a[2]))?],
        "logcumsumexp" => vec![x.logcumsumexp(size(&a[0]))?],
        "cumprod" => vec![x.cumprod(size(&a[0]))?],
        "searchsorted" => vec![x.searchsorted(v[1], flag(&a[0]))?],
        "bucketize" => vec![x.bucketize(v[1], flag(&a[0]))?],
        "gather" => vec![x.gather(size(&a[0]), v[1])?],
        "scatter" => vec![x.scatter(size(&a[0]), v[1], v[2])?],
        "scatter_value" => vec![x.scatter_value(size(&a[0]), v[1], number(&a[1]))?],
        "scatter_add" => vec![x.scatter_add(size(&a[0]), v[1], v[2])?],
        "scatter_reduce" => vec![x.scatter_reduce(size(&a[0]), v[1], v[2], reduce(&a[1]), flag(&a[2]))?],
        "index_reduce" => vec![x.index_reduce(size(&a[0]), v[1], v[2], reduce(&a[1]), flag(&a[2]))?],
        "index_copy" => vec![x.index_copy(size(&a[0]), v[1], v[2])?],
        "index_fill" => vec![x.index_fill(size(&a[0]), v[1], number(&a[1]))?],
        "index" => vec![x.index(&v[1..])?],
        "index_put" => vec![x.index_put(&v[2..], v[1], flag(&a[0]))?],
        "take" => vec![x.take(v[1])?],
        "put" => vec![x.put(v[1], v[2], flag(&a[0]))?],
        "masked_scatter" => vec![x.masked_scatter(v[1], v[2])?],
        "masked_select" => vec![x.masked_select(v[1])?],
        "embedding" => {
            let padding_idx = a[0].as_u64().map(|i| i as u32);
            vec![x.embedding_with(v[1], EmbeddingOptions { padding_idx, max_norm: a[1].as_f64() })?]
        }
        "embedding_bag" => {
            let (offsets, weights) = (v.get(2).copied(), v.get(3).copied());
            let padding_idx = a.get(1).and_then(Value::as_u64).map(|i| i as u32);
            let options = EmbeddingOptions { padding_idx, max_norm: None };
            vec![match padding_idx {
                Some(_) => x.embedding_bag_with(v[1], offsets, reduce(&a[0]), weights, options)?,
                None => x.embedding_bag(v[1], offsets, reduce(&a[0]), weights)?,
            }]
        }
        "nonzero" => vec![x.nonzero()?],
        "unique" | "unique_consecutive" => {
            let u = if name == "unique" { x.unique()? } else { x.unique_consecutive()? };
            vec![u.values, u.inverse, u.counts]
        }
        "unique_axis" | "unique_consecutive_axis" => {
            let axis = size(&a[0]);
            let u =
                if name == "unique_axis" { x.unique_axis(axis)? } else { x.unique_consecutive_axis(axis)? };
            vec![u.values, u.inverse, u.counts]
        }
        "bincount" => vec![x.bincount(v.get(1).copied(), size(&a[0]))?],
        "histc" => vec![x.histc(size(&a[0]), number(&a[1]), number(&a[2]))?],
        "histogram" => vec![x.histogram(v[1], v.get(2).copied(), flag(&a[0]))?],
        "histogramdd" => {
            let columns = size(&a[0]);
            vec![x.histogramdd(&v[1..=columns], v.get(columns + 1).copied(), flag(&a[1]))?]
        }
        "bin_edges" => {
            let range = a[1].as_array().map(|range| (number(&range[0]), number(&range[1])));
            vec![x.bin_edges(size(&a[0]), range)?]
        }
        "segment_lengths" => {
            vec![x.segment_reduce(reduce(&a[0]), Segments::Lengths(v[1]), size(&a[1]), a[2].as_f64())?]
        }
        "segment_offsets" => {
            vec![x.segment_reduce(reduce(&a[0]), Segments::Offsets(v[1]), size(&a[1]), a[2].as_f64())?]
        }
        _ => panic!("{name} is not a method of this test"),
    })
}

fn agree(label: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{label}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 3e-6 * w.abs().max(1.0);
        assert!(same, "{label}: element {i} is {g}, PyTorch has {w}");
    }
}

fn agrees_with_pytorch(device: &Device) {
    for line in include_str!("../golden/order.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, args) = (case["call"].as_str().unwrap(), case["args"].as_array().unwrap());
        let label = format!("{name} {}", case["args"]);
        let session = Session::eager(device);
        let ins: Vec<Var<'_>> = case["ins"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| match i.get("idx") {
                Some(idx) => {
                    let idx = sizes(idx).into_iter().map(|i| i as u32).collect();
                    session.labels(&Tensor::new(&sizes(&i["shape"]), idx).unwrap()).unwrap()
                }
                None => session.variable(&tensor(&sizes(&i["shape"]), &numbers(&i["data"]))).unwrap(),
            })
            .collect();
        let got = call(name, args, &ins).unwrap_or_else(|e| panic!("{label}: {e}"));
        for (got, want) in got.iter().zip(case["y"].as_array().unwrap()) {
            assert_eq!(got.shape().unwrap().dims(), sizes(&want["shape"]), "{label}");
            match want.get("idx") {
                Some(idx) => {
                    let got: Vec<usize> = got.indices().unwrap().data().iter().map(|&i| i as usize).collect();
                    assert_eq!(got, sizes(idx), "{label}");
                }
                None => agree(&label, &data(*got), &numbers(&want["data"])),
            }
        }
        let Some(dy) = case.get("dy") else { continue };
        let dy = tensor(got[0].shape().unwrap().dims(), &numbers(dy));
        let grads = session.backward_from(&[(got[0], &dy)]).unwrap_or_else(|e| panic!("{label}: {e}"));
        for (i, want) in case["dx"].as_array().unwrap().iter().enumerate().filter(|(_, w)| !w.is_null()) {
            let want = numbers(want);
            let got = grads.var(ins[i]).map(|g| g.to_tensor::<f32>().unwrap().into_data());
            agree(&format!("{label}: gradient {i}"), &got.unwrap_or_else(|| vec![0.0; want.len()]), &want);
        }
    }
}

#[test]
fn methods_agree_with_pytorch() {
    agrees_with_pytorch(&cpu());
}

#[test]
fn cuda_methods_agree_with_pytorch() {
    if let Some((_turn, gpu)) = gpu() {
        agrees_with_pytorch(&gpu);
    }
}

/// Long rows, many equal elements and NaNs: the same positions as a stable sort, whatever the number of threads.
#[test]
fn positions_are_those_of_a_stable_sort() {
    let mut stream = Stream::new(5, 0);
    for n in [300, 5000, 70_000] {
        let x: Vec<f32> = (0..2 * n)
            .map(|_| match stream.below(50) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -0.0,
                k => (k % 7) as f32 - 3.0,
            })
            .collect();
        let order = |row: &[f32], descending: bool| -> Vec<u32> {
            let key = |i: u32| if row[i as usize].is_nan() { f32::INFINITY.to_bits() as i64 + 1 } else { 0 };
            let mut all: Vec<u32> = (0..row.len() as u32).collect();
            all.sort_by(|&a, &b| {
                let (x, y) = (row[a as usize], row[b as usize]);
                let order = x.partial_cmp(&y).unwrap_or(key(a).cmp(&key(b)));
                if descending { order.reverse() } else { order }
            });
            all
        };
        for threads in [1, 2, 3] {
            let session = Session::eager(&Device::cpu_with(threads, Simd::best()).unwrap());
            for rows in [1, 2] {
                let v = session.input(&tensor(&[rows, n], &x[..rows * n])).unwrap();
                for descending in [false, true] {
                    let want: Vec<u32> = x[..rows * n].chunks(n).flat_map(|r| order(r, descending)).collect();
                    assert_eq!(v.argsort(1, descending).unwrap().indices().unwrap().data(), want);
                    for k in [1, 9, 100] {
                        let first = want.chunks(n).flat_map(|row| row[..k].to_vec()).collect::<Vec<_>>();
                        assert_eq!(v.topk(k, 1, descending).unwrap().1.indices().unwrap().data(), first);
                    }
                }
            }
        }
    }
}

/// Where the difference of neighbours is no number, PyTorch gives NaN.
#[test]
fn quantiles_beside_infinities_are_elements() {
    let session = Session::eager(&cpu());
    let inf = f32::INFINITY;
    let q = [0.0, 0.25, 0.5, 0.75, 1.0];
    let list = session.variable(&Tensor::new(&[5], q.to_vec()).unwrap()).unwrap();
    let cases = [
        ([inf; 5], [inf; 5]),
        ([-inf, 1.0, 2.0, 3.0, inf], [-inf, 1.0, 2.0, 3.0, inf]),
        ([-inf, -inf, -inf, inf, inf], [-inf, -inf, -inf, inf, inf]),
    ];
    for (x, want) in cases {
        for rule in [QuantileRule::Linear, QuantileRule::Midpoint, QuantileRule::Lower] {
            let x = session.variable(&tensor(&[5], &x)).unwrap();
            assert_eq!(data(x.quantile(&q, 0, false, rule).unwrap()), want);
            assert_eq!(data(x.nanquantile(&q, 0, false, rule).unwrap()), want);
            assert_eq!(data(x.nanquantile_by(list, 0, false, rule).unwrap()), want);
            let y = x.quantile_by(list, 0, false, rule).unwrap();
            assert_eq!(data(y), want);
            let grads = session.backward_from(&[(y, &tensor(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0]))]).unwrap();
            let dx = grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
            assert_eq!(dx.iter().sum::<f32>(), 15.0, "{dx:?}");
        }
    }
    let x = session.input(&tensor(&[2], &[1.0, 3.0])).unwrap();
    let q = session.input(&tensor(&[4], &[0.5, -0.125, 1.5, f32::NAN])).unwrap();
    for y in [
        x.quantile_by(q, 0, false, QuantileRule::Nearest).unwrap(),
        x.nanquantile_by(q, 0, false, QuantileRule::Higher).unwrap(),
    ] {
        let y = data(y);
        assert!(!y[0].is_nan() && y[1..].iter().all(|y| y.is_nan()), "{y:?}");
    }
}

/// PyTorch shares positive gradients only.
#[test]
fn the_largest_of_a_segment_share_its_gradient() {
    let session = Session::eager(&cpu());
    let x = session.variable(&tensor(&[6], &[2.0, 2.0, 1.0, 0.0, 0.0, 3.0])).unwrap();
    let lengths = session.indices(&Tensor::new(&[2], vec![3, 3]).unwrap()).unwrap();
    for (initial, first) in [(None, 0.5), (Some(2.0), 0.5), (Some(2.5), 0.0)] {
        let y = x.segment_reduce(Reduce::Amax, Segments::Lengths(lengths), 0, initial).unwrap();
        let grads = session.backward_from(&[(y, &tensor(&[2], &[1.0, -2.0]))]).unwrap();
        let dx = grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
        assert_eq!(dx, [first, first, 0.0, 0.0, 0.0, -2.0], "{initial:?}");
    }
}

/// Slices are compared as numbers, from their first element on; a NaN is the largest number.
#[test]
fn slices_are_sorted_as_numbers() {
    let session = Session::eager(&cpu());
    let nan = f32::NAN;
    let x = session.input(&tensor(&[5, 2], &[nan, 0.0, 0.0, 2.0, -0.0, 1.0, 0.0, 1.0, nan, 0.0])).unwrap();
    let unique = x.unique_axis(0).unwrap();
    assert_eq!(unique.inverse.indices().unwrap().data(), [2, 1, 0, 0, 3]);
    assert_eq!(unique.counts.indices().unwrap().data(), [2, 1, 1, 1]);
    assert_eq!(unique.values.shape().unwrap().dims(), [4, 2]);
    assert_eq!(data(unique.values)[0].to_bits(), (-0.0f32).to_bits(), "the first of equal slices");
    let empty = session.zeros(&[0, 2]).unwrap().unique_axis(0).unwrap();
    assert_eq!(empty.values.shape().unwrap().dims(), [0, 2]);
    let scalar = session.scalar(3.0).unwrap().unique().unwrap();
    assert_eq!((data(scalar.values), scalar.inverse.shape().unwrap().rank()), (vec![3.0], 0));
}

/// The last source wins, and the others have no gradient.
#[test]
fn the_last_source_wins() {
    let session = Session::eager(&cpu());
    let x = session.variable(&tensor(&[4], &[9.0; 4])).unwrap();
    let src = session.variable(&tensor(&[4], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    let index = session.indices(&Tensor::new(&[4], vec![2, 0, 2, 0]).unwrap()).unwrap();
    let y = x.scatter(0, index, src).unwrap();
    assert_eq!(data(y), [4.0, 9.0, 3.0, 9.0]);
    let grads = session.backward_from(&[(y, &tensor(&[4], &[1.0, 2.0, 3.0, 4.0]))]).unwrap();
    let of = |v| grads.var(v).unwrap().to_tensor::<f32>().unwrap().into_data();
    assert_eq!((of(x), of(src)), (vec![0.0, 2.0, 0.0, 4.0], vec![0.0, 0.0, 3.0, 1.0]));
    let rows = x.reshape(&[4, 1]).unwrap().index_copy(0, index, src.reshape(&[4, 1]).unwrap()).unwrap();
    assert_eq!(data(rows), [4.0, 9.0, 3.0, 9.0]);
}

/// Gradients of products, and gradients of these, are those of factors multiplied one by one, whatever zeros there are.
#[test]
fn gradients_of_products_are_right_at_zeros() {
    let second = |x: f32, src: &[f32], own: bool, how: &str| {
        let s = Session::eager(&cpu());
        let n = src.len();
        let x = s.variable(&tensor(&[1], &[x])).unwrap();
        let src = s.variable(&tensor(&[n], src)).unwrap();
        let start = if own { x } else { x.scale(0.0).unwrap().add_scalar(1.0).unwrap() };
        let all = start.concat(src, 0).unwrap();
        let y = match how {
            "scatter" => {
                let index = s.indices(&Tensor::new(&[n], vec![0; n]).unwrap()).unwrap();
                x.scatter_reduce(0, index, src, Reduce::Prod, own).unwrap()
            }
            "prod" => all.prod().unwrap(),
            "cumprod" => all.cumprod(0).unwrap().narrow(0, n, 1).unwrap(),
            _ => (0..n).fold(start, |y, i| y.mul(src.narrow(0, i, 1).unwrap()).unwrap()),
        };
        let first = s.grad(y.sum().unwrap(), &[x, src]).unwrap();
        let sums = first.iter().map(|g| g.square().unwrap().add(*g).unwrap().sum().unwrap());
        let sum = sums.reduce(|a, b| a.add(b).unwrap()).unwrap();
        let again = s.vjp(&[(sum, s.scalar(1.0).unwrap())], &[x, src]).unwrap();
        let again = again.into_iter().zip([1, n]).map(|(g, n)| g.map_or(vec![0.0; n], data));
        first.iter().map(|g| data(*g)).chain(again).collect::<Vec<_>>()
    };
    let numbers = [0.0, 2.0, -4.0];
    let of = |i: usize| numbers[i % 3];
    for i in 0..81 {
        let (x, src) = (of(i), [of(i / 3), of(i / 9), of(i / 27)]);
        for (how, own) in [("scatter", true), ("scatter", false), ("prod", true), ("cumprod", true)] {
            assert_eq!(second(x, &src, own, how), second(x, &src, own, ""), "{how}: {x} and {src:?}, {own}");
        }
    }
}

/// What a trace can do gives the bits of an eager session; what it cannot says what to do.
#[test]
fn traces_have_fixed_sizes() {
    let device = cpu();
    let mut stream = Stream::new(6, 0);
    let x = Tensor::from_fn(Shape::new(&[6, 40]).unwrap(), |_| stream.range(-2.0, 2.0));
    fn all<'s>(x: Var<'s>) -> Result<Var<'s>> {
        let flat = |v: Var<'s>| v.flatten_from(0);
        let bounds = x.session().linspace(-2.0, 2.0, 9)?;
        let near = |x: Var<'s>| {
            x.session().zeros(&[6, 3])?.add(x.session().arange(3.0, 6.0, 1.0)?)?.to_index_below(9)
        };
        let bins = x.bucketize(bounds, false)?.flatten_from(0)?;
        x.session().concat(
            &[
                flat(x.sort(0, true)?.0)?,
                flat(x.topk(5, 1, true)?.0)?,
                flat(x.median(1, false)?.0)?,
                flat(x.quantile(&[0.1, 0.9], 1, false, QuantileRule::Linear)?)?,
                flat(x.cummax(1)?.0)?,
                flat(x.logcumsumexp(1)?)?,
                flat(x.histc(10, -1.0, 1.0)?)?,
                bins.bincount_below(None, 10)?,
                flat(x.histogram(x.bin_edges(4, Some((-1.0, 1.0)))?, None, true)?)?,
                flat(x.narrow(1, 0, 2)?.histogramdd(&[bounds, bounds], None, false)?)?,
                flat(x.quantile_by(
                    x.select(1, 0)?.abs()?.clamp_max(1.0)?,
                    1,
                    false,
                    QuantileRule::Linear,
                )?)?,
                flat(x.segment_reduce(Reduce::Mean, Segments::Offsets(near(x)?), 1, None)?)?,
                flat(x.scatter_reduce(1, x.argsort(1, false)?, x, Reduce::Amin, false)?)?,
            ],
            0,
        )
    }
    let session = Session::eager(&device);
    let eager = data(all(session.input(&x).unwrap()).unwrap());
    let graph = Graph::trace(&device, &[Meta::f32(x.shape())], |_, v| Ok(vec![all(v[0])?])).unwrap();
    let got = graph.compile(&device).unwrap().call(&[x.clone().into()]).unwrap();
    assert_eq!(got[0].num().unwrap().data(), eager);
    type Method = for<'s> fn(Var<'s>) -> Result<Var<'s>>;
    let refused: [(&str, Method); 8] = [
        ("sort keeps", |x| Ok(x.unique_axis(0)?.values)),
        ("keeps the size", |x| Ok(x.unique_consecutive_axis(1)?.values)),
        ("give a range", |x| x.bin_edges(3, None)),
        ("where_", |x| x.masked_select(x)),
        ("mask of a fixed size", |x| x.nonzero()),
        ("sort keeps", |x| Ok(x.unique()?.values)),
        ("keeps the size", |x| Ok(x.unique_consecutive()?.values)),
        ("bincount_below", |x| x.flatten_from(0)?.to_index_below(3)?.bincount(None, 3)),
    ];
    for (why, method) in refused {
        let e = Graph::trace(&device, &[Meta::f32(x.shape())], |_, v| Ok(vec![method(v[0])?])).unwrap_err();
        assert!(e.to_string().contains("traced") && e.to_string().contains(why), "{e}");
    }
}

/// Indices of two axes, one of them computed by the program: a program knows that they are in range, or checks them when it runs.
#[test]
fn traces_take_indices_of_several_axes() {
    let device = cpu();
    let x = tensor(&[3, 4], &(0..12).map(|i| i as f32).collect::<Vec<_>>());
    let rows = Tensor::new(&[3], vec![2u32, 0, 1]).unwrap();
    fn both<'s>(x: Var<'s>, rows: Var<'s>) -> Result<Vec<Var<'s>>> {
        let columns = x.argmax(&[1], false)?;
        let taken = x.index(&[rows, columns])?;
        Ok(vec![taken, x.index_put(&[rows, columns], (taken * 10.0)?, false)?, x.index(&[rows, rows])?])
    }
    let session = Session::eager(&device);
    let eager = both(session.input(&x).unwrap(), session.labels(&rows).unwrap()).unwrap();
    let graph =
        Graph::trace(&device, &[Meta::f32(x.shape()), Meta::u32(rows.shape())], |_, v| both(v[0], v[1]))
            .unwrap();
    let mut function = graph.compile(&device).unwrap();
    let made = function.call(&[x.clone().into(), rows.clone().into()]).unwrap();
    for (made, eager) in made.iter().zip(eager) {
        assert_eq!(made.num().unwrap(), &eager.value::<f32>().unwrap());
    }
    let far = Tensor::new(&[3], vec![2u32, 3, 1]).unwrap();
    let error = function.call(&[x.into(), far.into()]).unwrap_err().to_string();
    assert!(error.contains('3'), "{error}");
}

#[test]
fn bad_input_is_refused() {
    let session = Session::eager(&cpu());
    let x = session.input(&tensor(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
    let empty = session.zeros(&[2, 0]).unwrap();
    let index =
        |dims: &[usize], i: u32| session.indices(&Tensor::full(Shape::new(dims).unwrap(), i)).unwrap();
    let (far, near) = (index(&[2, 3], 9), index(&[2, 3], 0));
    let bags = |reduce, weights| x.embedding_bag(index(&[4], 0), Some(index(&[2], 0)), reduce, weights);
    let segments = |at| session.ones(&[3]).unwrap().segment_reduce(Reduce::Sum, at, 0, None).err();
    let cases = [
        ("axis 2", x.sort(2, false).err()),
        ("is 4", x.topk(4, 1, true).err()),
        ("1st to the 3th", x.kthvalue(0, 1, false).err()),
        ("no elements", empty.median(1, false).err()),
        ("not from 0 to 1", x.quantile(&[1.5], 1, false, QuantileRule::Linear).err()),
        ("indices must have as many axes", x.gather(1, index(&[3], 0)).err()),
        ("indices must have as many axes", x.scatter(1, index(&[3, 3], 0), x).err()),
        ("9", x.scatter(1, far, x).err()),
        ("9", x.scatter_reduce(1, far, x, Reduce::Amax, true).err()),
        ("indices", x.scatter(1, x, x).err()),
        ("2 indices", x.index_reduce(1, index(&[2], 0), x, Reduce::Prod, true).err()),
        ("a slice per index", x.index_copy(1, index(&[2], 0), x).err()),
        ("one for each", x.index_put(&[], x, false).err()),
        ("6 elements for 1", x.put(index(&[1], 0), x, false).err()),
        ("the mask selects 6", x.masked_scatter(x, x.narrow(0, 0, 1).unwrap()).err()),
        ("use Sum, Mean or Amax", bags(Reduce::Prod, None).err()),
        ("use Reduce::Sum", bags(Reduce::Mean, Some(x)).err()),
        ("are needed", x.embedding_bag(index(&[4], 0), None, Reduce::Sum, None).err()),
        (
            "has 2 rows",
            x.embedding_with(near, EmbeddingOptions { padding_idx: Some(2), max_norm: None }).err(),
        ),
        ("bins", x.histc(0, 0.0, 1.0).err()),
        ("finite range", x.histc(3, 1.0, 0.0).err()),
        ("finite range", session.full(&[2], f64::INFINITY).unwrap().histc(3, 0.0, 0.0).err()),
        ("finite range", session.full(&[2], f64::NAN).unwrap().histc(3, 0.0, 0.0).err()),
        ("finite range", session.full(&[2], f64::NAN).unwrap().bin_edges(3, None).err()),
        ("finite range", x.bin_edges(3, Some((1.0, 0.0))).err()),
        ("bins", x.bin_edges(0, None).err()),
        ("the last axis has one each", x.histogramdd(&[empty.flatten().unwrap()], None, false).err()),
        ("axis 2", x.unique_axis(2).map(|u| u.values).err()),
        ("exactly 1", x.quantile_by(x, 0, false, QuantileRule::Linear).err()),
        ("lengths of 2 in all, axis 0 has 3", segments(Segments::Lengths(index(&[2], 1)))),
        ("give at least the end", segments(Segments::Offsets(index(&[0], 1)))),
        ("up to the one of the segments", segments(Segments::Offsets(index(&[1, 2], 1)))),
        ("indices", segments(Segments::Lengths(x))),
        ("weight for each", x.histogram(x.flatten_from(0).unwrap(), Some(empty), false).err()),
    ];
    for (why, e) in cases {
        let e = e.unwrap_or_else(|| panic!("{why}: no error")).to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
    let e = x.sort(2, false).map(drop).unwrap_err().to_string();
    assert!(e.contains("tests/it/order.rs:"), "it says where: {e}");
}
