//! What the planner makes of many programs: one line each in `tests/snapshots/plans.txt`, with how many instructions there are,
//! how much memory they share, and a hash of the program after all passes. A price, a limit or a condition of a pass that
//! moves shows up here, where all bits are as before. To accept such a change, run the tests with `DITTOGRAD_BLESS=1` and
//! commit what they wrote.

use crate::graph::{program, random_params, random_steps};
use crate::support::f;
use dittograd::device::Meta;
use dittograd::device::cpu::simd::Simd;
use dittograd::device::cuda::fake::{Fake, Live};
use dittograd::graph::{Graph, Pass, Passes, TrainStep};
use dittograd::numerics::rng::Stream;
use dittograd::ops::layout::Permute;
use dittograd::ops::{AnyOp, AnyTensor, SampleIn};
use dittograd::prelude::*;

/// The same on every machine: plans depend on neither threads nor vectors, workspaces may.
fn device() -> Device {
    Device::cpu_with(1, Simd::Scalar).unwrap()
}

/// Parts of the names of ops with workspaces of their own kernels.
const PRODUCTS: [&str; 8] = ["matmul", "linear", "bmm", "conv", "attention", "fft", "dft", "mix"];

/// Lines that are compared with those of a file, and the programs that they are about.
struct Plans {
    path: String,
    lines: Vec<String>,
    texts: Vec<String>,
}

impl Plans {
    fn new(name: &str) -> Plans {
        let path = format!("{}/tests/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        Plans { path, lines: Vec::new(), texts: Vec::new() }
    }

    /// A line about what several programs become together.
    fn push(&mut self, name: &str, d: &Device, graphs: &[Graph], passes: Passes) {
        let (mut sizes, mut all) = ([0; 5], String::new());
        for graph in graphs {
            let function = graph.compile_with(d, passes).unwrap();
            let plan = function.plan().unwrap();
            let bytes = [plan.total_bytes, plan.arena_bytes, plan.least_bytes];
            let now = [plan.instructions, plan.launches].into_iter().chain(bytes);
            sizes.iter_mut().zip(now).for_each(|(sum, n)| *sum += n);
            all += function.text().unwrap();
        }
        let [instructions, launches, total, arena, least] = sizes;
        let mut hash = crate::golden_bits::Fnv::new();
        all.bytes().for_each(|b| hash.add(u32::from(b)));
        let mut line = format!("{name}: {instructions} instructions, {total} bytes, {:016x}", hash.0);
        // On the CPU the workspaces of products change with their kernels, which is no business of plans.
        let is_cuda = d.as_cuda().is_some();
        if is_cuda || !PRODUCTS.iter().any(|p| all.contains(p)) {
            line += &format!(", {arena} planned, at least {least}");
        }
        if is_cuda {
            line += &format!(", {launches} launches");
        }
        self.lines.push(line);
        self.texts.push(all);
    }

    /// More about the last program.
    fn add(&mut self, what: &str) {
        self.lines.last_mut().unwrap().push_str(what);
    }

    fn finish(self) {
        if std::env::var_os("DITTOGRAD_BLESS").is_some() {
            return std::fs::write(&self.path, self.lines.join("\n") + "\n").unwrap();
        }
        let want = std::fs::read_to_string(&self.path).unwrap_or_default();
        for (n, (line, text)) in self.lines.iter().zip(&self.texts).enumerate() {
            let want = want.lines().nth(n).unwrap_or_default();
            let what = "the program is another; DITTOGRAD_BLESS=1 accepts it. Now it is";
            assert_eq!(want, line, "{}, line {}: {what}\n{text}", self.path, n + 1);
        }
        assert_eq!(
            want.lines().count(),
            self.lines.len(),
            "{}: lines of programs that are no more",
            self.path
        );
    }
}

/// A random program of [`crate::graph`] with its gradients.
fn random(d: &Device, size: usize, stream: &mut Stream) -> (Params, Graph) {
    let (params, list) = random_params(d, size);
    let steps = random_steps(stream);
    let graph = Graph::trace_seeded(d, 4, &[f(&[size, size])], |s, x| {
        let loss = program(&list, x[0], size, &steps)?;
        let leaves = list.iter().map(|p| s.param(p)).collect::<Result<Vec<_>>>()?;
        let mut all = s.grad(loss, &leaves)?;
        all.push(loss);
        Ok(all)
    });
    (params, graph.unwrap())
}

/// Layers of random kinds, deep enough that values are far from their gradients. Some of tall ones are wider than others,
/// and some values between them are wanted.
fn deep(d: &Device, [rows, wide]: [usize; 2], is_tall: bool, stream: &mut Stream) -> (Params, Graph) {
    let mut params = Params::new(d, 3);
    let count = if is_tall { 8 + stream.below(8) } else { 3 + stream.below(4) };
    let kinds = if is_tall { [8, 4, 5, 12, 3] } else { [8, 4, 5, 3, 1] };
    let layers: Vec<[usize; 5]> = (0..count).map(|_| kinds.map(|n| stream.below(n))).collect();
    let narrow = wide / 2;
    let mut list = Vec::new();
    for (i, kind) in layers.iter().enumerate() {
        let wide = wide * (1 + kind[4]);
        list.push(params.normal(&format!("a{i}"), &[narrow, wide], 0.0, 0.3).unwrap());
        list.push(params.normal(&format!("b{i}"), &[wide, narrow], 0.0, 0.3).unwrap());
    }
    fn layer<'s>(x: Var<'s>, pair: &[Param], [act, before, after, ..]: [usize; 5]) -> Result<Var<'s>> {
        let s = x.session();
        let wide = match before {
            0 => x.softmax()?,
            1 => x.scale(0.5)?.tanh()?,
            2 => x.layer_norm(1, None, None, 1e-5)?,
            _ => x,
        };
        let wide = wide.matmul(s.param(&pair[0])?)?;
        let wide = match act {
            0..=5 => crate::graph::bent(wide, act)?,
            6 => wide.transpose()?.copy()?.cumsum(1)?.transpose()?.tanh()?,
            _ => wide.tanh()?.reshape(&[wide.shape()?.numel()])?.sigmoid()?.reshape(wide.shape()?.dims())?,
        };
        let narrow = wide.matmul(s.param(&pair[1])?)?;
        match after {
            0 => narrow.add(x),
            1 => narrow.tanh()?.add(x),
            2 => narrow.add(x)?.rms_norm(1, None, 1e-6),
            3 => narrow.mul(narrow.sum_axes(&[0])?.scale(0.1)?)?.add(x),
            _ => narrow.sigmoid(),
        }
    }
    let graph = Graph::trace_seeded(d, 4, &[f(&[rows, narrow])], |s, x| {
        let (mut x, mut wanted) = (x[0], Vec::new());
        for (pair, kind) in list.chunks(2).zip(&layers) {
            if kind[3] == 1 && is_tall {
                wanted.push(x);
            }
            x = match kind[3] {
                0 => s.checkpoint(|| layer(x, pair, *kind))?,
                _ => layer(x, pair, *kind)?,
            };
        }
        let loss = x.square()?.mean()?;
        let leaves = list.iter().map(|p| s.param(p)).collect::<Result<Vec<_>>>()?;
        let mut all = s.grad(loss, &leaves)?;
        all.push(loss);
        all.extend(wanted);
        Ok(all)
    });
    (params, graph.unwrap())
}

/// Values that are read early and again late, near kernels that read all they are made of: of several sizes, some made of
/// others, some read through views, some wanted, in any order. How many may be made again depends on how much is moved: little
/// in lean programs, whose values are all of one size.
fn stored(d: &Device, is_lean: bool, stream: &mut Stream) -> Graph {
    let count = 2 + stream.below(6);
    // Its size, how it is made, what becomes of its first reader, and whether what is made late is wanted.
    let bounds = if is_lean { [1, 2, 4, 12] } else { [9, 5, 4, 12] };
    let kinds: Vec<[usize; 4]> = (0..count).map(|_| bounds.map(|n| stream.below(n))).collect();
    let size = |k: &[usize; 4]| if k[0] == 8 { f(&[3, 3]) } else { f(&[4 << (k[0] % 4), 4]) };
    let mut metas: Vec<Meta> = kinds.iter().map(size).collect();
    // What is done late: mostly of one value after the other.
    let mut late: Vec<[usize; 2]> = Vec::new();
    for k in 0..count {
        let each = if is_lean { 1 + stream.below(2) } else { 2 + stream.below(3) };
        late.extend((0..=each).map(|i| [k, if i == 1 { 5 + stream.below(4) } else { stream.below(9) }]));
    }
    for i in 1..late.len() {
        if stream.below(3) == 0 {
            late.swap(i, i - 1);
        }
    }
    // The last one before it of the same size.
    let like: Vec<Option<usize>> = (0..count).map(|k| (0..k).rev().find(|&j| metas[j] == metas[k])).collect();
    let between = 8 + stream.below(16);
    metas.push(f(&[if is_lean { 1 } else { 4 << stream.below(6) }, 4]));
    let made = Graph::trace_seeded(d, 4, &metas, |_, x| {
        let bases = x[..count].iter().map(|x| if is_lean { Ok(*x) } else { x.cumsum(0) });
        let bases = bases.collect::<Result<Vec<_>>>()?;
        let (mut values, mut wanted) = (Vec::<Var<'_>>::new(), Vec::new());
        for (k, kind) in kinds.iter().enumerate() {
            values.push(match (kind[1], like[k]) {
                (0, Some(j)) => bases[k].mul(bases[j])?,
                (1, Some(j)) => values[j].sigmoid()?.mul(bases[k])?,
                _ => bases[k].tanh()?,
            });
            let read = values[k].cumsum(1)?;
            wanted.push(if kind[2] == 0 { read } else { read.sum()? });
        }
        let mut other = x[count].cumsum(0)?;
        for _ in 0..between {
            other = other.cumsum(1)?;
        }
        // What is made of it is made late.
        let end = other.sum()?;
        wanted.push(end);
        let mut waiting = Vec::new();
        for (i, &[k, what]) in late.iter().enumerate() {
            let (value, base, numel) = (values[k], bases[k], metas[k].shape.numel());
            let gate = if what < 5 || is_lean { end } else { x[k].add(end)?.cumsum(i % 2)? };
            let before = like[k].unwrap_or(k);
            waiting.push(match what {
                0 | 1 => value.cumsum(i % 2)?,
                2 => value.reshape(&[numel])?.cumsum(0)?,
                3 => value.scale(0.1 + i as f64)?.cumsum(0)?,
                4 => value.cumsum(0)?.cumsum(1)?.cumsum(0)?,
                5 => base.scale(0.1 + i as f64)?.mul(bases[before])?.mul(gate)?,
                6 => base.scale(0.1 + i as f64)?.mul(values[before])?.mul(gate)?.cumsum(0)?,
                _ => base.scale(0.1 + i as f64)?.exp()?.mul(gate)?.cumsum(0)?,
            });
            if waiting.len() > 4 {
                wanted.push(match kinds[k][3] {
                    0 => waiting.remove(0),
                    _ => waiting.remove(0).sum()?,
                });
            }
        }
        for y in waiting {
            wanted.push(y.sum()?);
        }
        wanted.extend(values.iter().zip(&kinds).filter(|(_, kind)| kind[3] == 1).map(|(v, _)| *v));
        Ok(wanted)
    });
    made.unwrap()
}

/// Values of several sizes, each of which could be made again beside a kernel that is there anyway, in programs that move so
/// little that the price of some of them is too high; all are there in the middle.
fn tight(d: &Device, stream: &mut Stream) -> Graph {
    let count = 4 + stream.below(12);
    let kinds: Vec<[usize; 4]> = (0..count).map(|_| [3, 3, 6, 3].map(|n| stream.below(n))).collect();
    let mut metas: Vec<Meta> = kinds.iter().map(|k| f(&[4 << k[0], 4])).collect();
    let (column, bump, tiny, square) = (count, count + 1, count + 2, count + 3);
    metas.extend([f(&[4, 1]), f(&[4 << stream.below(4), 4]), f(&[2, 2]), f(&[4, 4])]);
    let (before, between) = (stream.below(40), stream.below(30));
    let made = Graph::trace_seeded(d, 4, &metas, |_, x| {
        let (mut values, mut wanted) = (Vec::<Var<'_>>::new(), Vec::new());
        let mut small = x[tiny];
        for i in 0..before {
            small = if i % 7 == 3 {
                small.reshape(&[4])?.cumsum(0)?.reshape(&[2, 2])?
            } else {
                small.cumsum(0)?
            };
        }
        for (k, kind) in kinds.iter().enumerate() {
            values.push(match kind[1] {
                0 if k > 0 && kinds[k - 1][0] == kind[0] => values[k - 1].sigmoid()?,
                _ => x[k].tanh()?,
            });
            wanted.push(values[k].matmul(x[column])?.sum()?);
        }
        let high = x[bump].cumsum(0)?;
        let high = if before % 3 == 0 { high.exp()?.cumsum(1)? } else { high };
        for _ in 0..between {
            small = small.cumsum(1)?;
        }
        let end = high.sum()?.add(small.sum()?)?;
        wanted.push(end);
        for (k, kind) in kinds.iter().enumerate() {
            let joins = || x[k].scale(0.1 + k as f64)?.exp()?.mul(end)?.matmul(x[column])?.sum();
            let read = || match kind[3] {
                0 => values[k].matmul(x[square].add(end)?.cumsum(0)?)?.sum(),
                _ => values[k].matmul(x[column])?.sum(),
            };
            match kind[2] {
                0 => wanted.push(read()?),
                1 => wanted.extend([read()?, read()?]),
                2 | 3 => wanted.extend([read()?, joins()?]),
                _ => wanted.extend([joins()?, read()?]),
            }
        }
        Ok(wanted)
    });
    made.unwrap()
}

#[test]
fn random_programs_have_one_plan() {
    let (d, mut stream, mut plans) = (device(), Stream::new(4711, 0), Plans::new("plans"));
    for i in 0..160 {
        let (_params, graph) = random(&d, [8, 9, 12, 5][i % 4], &mut stream);
        let some = Pass::ALL.into_iter().filter(|_| stream.below(2) == 0).fold(Passes::none(), Passes::with);
        for (name, passes) in [("all", Passes::all().large(1)), ("some", some.large(1 + stream.below(100)))] {
            plans.push(&format!("random {i} {name}"), &d, std::slice::from_ref(&graph), passes);
        }
    }
    // Of so many elements that it pays to make a copy again, and of fewer.
    for i in 0..60 {
        let sizes = [[32, 16], [128, 256], [127, 258], [64, 32], [129, 254]][i % 5];
        let (_params, graph) = deep(&d, sizes, false, &mut stream);
        let lowered = Passes::all().large(sizes[0] * sizes[1] / 2 + stream.below(2));
        let again = Passes::all().with(Pass::Recompute).large(1);
        for (name, passes) in [("all", Passes::all()), ("peak", lowered), ("again", again)] {
            plans.push(&format!("deep {i} {name}"), &d, std::slice::from_ref(&graph), passes);
        }
    }
    // Where there is much to choose from that can be made again.
    for i in 0..80 {
        let (_params, graph) = deep(&d, [[16, 16], [8, 12], [5, 6]][i % 3], true, &mut stream);
        let least = [1, 16 * 16, 16 * 32][i % 3];
        plans.push(&format!("tall {i}"), &d, &[graph], Passes::all().large(least));
    }
    plans.finish();
}

#[test]
fn what_is_made_again_is_the_same() {
    let (d, mut stream, mut plans) = (device(), Stream::new(4712, 0), Plans::new("plans_again"));
    for i in 0..600 {
        let graph = stored(&d, i % 2 == 0, &mut stream);
        let least = [1, 1, 16, 17, 32][i % 5];
        plans.push(&format!("stored {i}"), &d, &[graph], Passes::all().large(least));
    }
    for i in 0..600 {
        plans.push(&format!("tight {i}"), &d, &[tight(&d, &mut stream)], Passes::all().large(1));
    }
    plans.finish();
}

/// Every op between elementwise ops, with its gradients: what it takes in, and what its rule is made of.
#[test]
fn every_op_has_one_plan_among_others() {
    let (d, mut plans) = (device(), Plans::new("plans_of_ops"));
    for name in AnyOp::NAMES {
        let (mut plain, mut gradients) = (Vec::new(), Vec::new());
        for sample in AnyOp::samples(name) {
            let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
            if metas.iter().any(|m| m.shape.numel() > 1 << 14) {
                continue;
            }
            let number = |m: &Meta| m.dtype == dittograd::device::DType::F32;
            let op = sample.op;
            let made = Graph::trace(&d, &metas, |s, x| {
                let made =
                    x.iter().zip(&metas).map(|(x, m)| if number(m) { x.scale(0.5)?.tanh() } else { Ok(*x) });
                let y = s.apply(op.clone(), &made.collect::<Result<Vec<_>>>()?)?;
                if !number(&y.meta()?) {
                    return Ok(vec![y]);
                }
                Ok(vec![y.scale(0.5)?.mul(y.sigmoid()?)?.add(y)?])
            });
            plain.extend(made.ok());
            let made = Graph::trace(&d, &metas, |s, x| {
                let x = x.iter().map(|x| x.tracked()).collect::<Result<Vec<_>>>()?;
                let y = s.apply(op.clone(), &x)?;
                let leaves: Vec<Var<'_>> =
                    x.iter().zip(&metas).filter(|(_, m)| number(m)).map(|(x, _)| *x).collect();
                s.grad(y.square()?.sum()?, &leaves)
            });
            gradients.extend(made.ok());
        }
        let count = (plain.len(), gradients.len());
        plans.push(&format!("{name}, {} programs", count.0), &d, &plain, Passes::all());
        plans.push(&format!("{name}, {} gradients", count.1), &d, &gradients, Passes::all());
    }
    plans.finish();
}

/// Programs at the limits of what passes do.
#[test]
fn limits_of_passes_are_where_they_are() {
    let (d, mut plans) = (device(), Plans::new("plans_at_limits"));
    let mut case = |name: &str, dims: &[&[usize]], f: &dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>>| {
        let metas: Vec<Meta> = dims.iter().map(|d| self::f(d)).collect();
        let graph = Graph::trace(&d, &metas, |_, x| f(x)).unwrap();
        plans.push(name, &d, &[graph], Passes::all().large(1));
    };
    // A product waits for what follows it, but not for ever.
    for far in 60..68 {
        case(&format!("a product read after {far} others"), &[&[4, 4]], &|x| {
            let product = x[0].matmul(x[0])?;
            let mut other = x[0].transpose()?.cumsum(1)?;
            for _ in 2..far {
                other = other.cumsum(1)?;
            }
            Ok(vec![product.relu()?, other])
        });
    }
    for others in 2..8 {
        let dims = vec![&[8usize, 8][..]; 9];
        case(&format!("a product with {others} others behind it"), &dims, &|x| {
            x[2..2 + others].iter().try_fold(x[0].matmul(x[1])?, |y, o| y.mul(*o)).map(|y| vec![y])
        });
        case(&format!("a softmax with {others} before it"), &dims, &|x| {
            x[1..others].iter().try_fold(x[0], |y, o| y.mul(*o))?.softmax().map(|y| vec![y])
        });
        case(&format!("a sum with {others} before it"), &dims, &|x| {
            Ok(vec![x[1..others].iter().try_fold(x[0], |y, o| y.mul(*o))?.sum()?.sqrt()?])
        });
    }
    // Programs of so much work are not done by a kernel that has other things to do.
    for work in 1..60 {
        case(&format!("{work} steps around a product"), &[&[8, 8]], &|x| {
            let y = (0..work).try_fold(x[0].matmul(x[0])?, |y, i| y.add_scalar(0.5 + i as f64)?.abs())?;
            Ok(vec![y])
        });
        case(&format!("{work} steps before a softmax"), &[&[8, 8]], &|x| {
            let y = (0..work).try_fold(x[0], |y, i| y.add_scalar(0.5 + i as f64)?.abs())?;
            Ok(vec![y.softmax()?])
        });
        case(&format!("{work} costly steps around a norm"), &[&[8, 8]], &|x| {
            let y = (0..work / 4).try_fold(x[0], |y, _| y.tanh())?.layer_norm(1, None, None, 1e-5)?;
            Ok(vec![(0..work / 4).try_fold(y, |y, _| y.tanh())?])
        });
    }
    // A copy is made again for who reads it much later, if it is large and what it is made of is there.
    for (gap, rows) in (8..18).flat_map(|gap| [(gap, 128), (gap, 127)]) {
        for kept in [true, false] {
            case(
                &format!("a copy of {rows} rows read after {gap} others, kept {kept}"),
                &[&[128, 128]],
                &|x| {
                    let from = x[0].narrow(0, 0, rows)?.cumsum(0)?;
                    let copy = from.transpose()?.copy()?;
                    let first = copy.cumsum(1)?;
                    let mut other = first;
                    for _ in 0..gap {
                        other = other.cumsum(1)?;
                    }
                    let last = copy.cumsum(0)?.add(other)?;
                    Ok(if kept { vec![last, from.cumsum(1)?] } else { vec![last] })
                },
            );
        }
    }
    // What is computed of constants, as far as there is room for it: 64 MiB.
    case("constants", &[&[4]], &|x| {
        let s = x[0].session();
        let one = s.constant(&Tensor::new(&[1], vec![0.5f32])?)?;
        let large = one.broadcast_to(Shape::new(&[1 << 24])?)?;
        let small = s.constant(&Tensor::new(&[2], vec![1.0f32, 2.0])?)?.cumsum(0)?;
        Ok(vec![x[0].mul(large.sum()?)?, x[0].mul(small.sum()?)?])
    });
    // Rows, columns and scalars under another shape.
    let dims: [&[usize]; 8] =
        [&[24, 4], &[4], &[24, 1], &[], &[2, 3, 4, 4], &[2, 3, 4, 1], &[4, 4], &[12, 8]];
    for (name, to) in [("4 axes", vec![2, 3, 4, 4]), ("3 axes", vec![6, 4, 4]), ("another row", vec![12, 8])]
    {
        let same = |k: usize| to == dims[k];
        for other in 0..dims.len() {
            case(&format!("{name}: shape {:?} before", dims[other]), &dims, &|x| {
                let Ok(first) = x[0].mul(x[other]).or_else(|_| x[4].mul(x[other])) else {
                    return Ok(vec![x[0]]);
                };
                let y = first.tanh()?.reshape(&to)?;
                let more = if same(4) { y.mul(x[5])? } else { y.scale(2.0)? };
                Ok(vec![more.exp()?, y.log()?])
            });
            case(&format!("{name}: shape {:?} before a softmax", dims[other]), &dims, &|x| {
                let Ok(first) = x[0].mul(x[other]).or_else(|_| x[4].mul(x[other])) else {
                    return Ok(vec![x[0]]);
                };
                Ok(vec![first.tanh()?.reshape(&to)?.softmax()?.mul(x[3])?])
            });
            case(&format!("{name}: shape {:?} before a sum", dims[other]), &dims, &|x| {
                let Ok(first) = x[0].mul(x[other]).or_else(|_| x[4].mul(x[other])) else {
                    return Ok(vec![x[0]]);
                };
                Ok(vec![first.tanh()?.reshape(&to)?.sum_axes(&[1])?.sqrt()?.exp()?])
            });
        }
    }
    // What moves nothing, and what moves twice.
    let orders: [&[usize]; 6] = [&[0, 1, 2], &[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]];
    for (a, b) in orders.iter().flat_map(|a| orders.iter().map(move |b| (*a, *b))) {
        case(&format!("{a:?} then {b:?}"), &[&[4, 4, 4], &[4, 4, 4]], &|x| {
            let s = x[0].session();
            let once = s.apply(Permute { order: a.to_vec() }, &[x[0]])?;
            let twice = s.apply(Permute { order: b.to_vec() }, &[once])?;
            let again = twice.reshape(&[16, 4])?.reshape(&[4, 4, 4])?;
            let back = again.reshape(&[4, 4, 4])?.copy()?.detach()?;
            Ok(vec![back.bmm(x[1])?, x[1].bmm(once)?, twice, back.cumsum(1)?, back])
        });
    }
    // What a kernel of rows cannot read by row or by column stays outside of it.
    for other in [&[2, 1, 4][..], &[2, 1, 1], &[2, 3, 1], &[4]] {
        case(&format!("times {other:?} before a softmax"), &[&[2, 3, 4], other], &|x| {
            Ok(vec![x[0].mul(x[1])?.softmax()?])
        });
        case(&format!("times {other:?} before a norm of two axes"), &[&[2, 3, 4], other], &|x| {
            Ok(vec![x[0].mul(x[1])?.layer_norm(2, None, None, 1e-5)?])
        });
    }
    case("a row of half a product's width behind it", &[&[6, 5], &[5, 8], &[4]], &|x| {
        Ok(vec![x[0].matmul(x[1])?.reshape(&[12, 4])?.mul(x[2])?])
    });
    for inputs in [6, 8, 9] {
        case(&format!("{inputs} values on either side of a loss"), &vec![&[8usize, 8][..]; 18], &|x| {
            let product = |at: usize| x[at + 1..at + inputs].iter().try_fold(x[at], |y, o| y.mul(*o));
            Ok(vec![product(0)?.mse(product(9)?)?])
        });
    }
    // Two costly steps and so many cheap ones weigh as much as a kernel of rows takes in, or more.
    for steps in 13..19 {
        case(&format!("{steps} sums before a softmax"), &[&[8, 8]], &|x| {
            let y = (0..steps).try_fold(x[0].tanh()?.tanh()?, |y, _| y.add(x[0]))?;
            Ok(vec![y.softmax()?])
        });
    }
    plans.finish();
}

/// Graphs are captured with what each kernel must wait for, and no more: the fake driver runs them in the order that
/// nobody expects.
#[test]
fn captured_programs_wait_for_what_they_need() {
    let (cpu, mut plans) = (device(), Plans::new("plans_of_cuda"));
    let fake = Fake::computing(1, 1 << 30);
    let gpu = Device::from_cuda(fake.open().unwrap());
    for i in 0..40 {
        let make = |d: &Device| {
            let mut stream = Stream::new(i as u64, 1);
            match i % 4 {
                0 => deep(d, [16, 16], false, &mut stream),
                _ => random(d, [8, 9, 12][i % 3], &mut stream),
            }
        };
        let ((_a, on_cpu), (_b, on_gpu)) = (make(&cpu), make(&gpu));
        let dims = on_cpu.inputs()[0].shape;
        let x = AnyTensor::Num(Tensor::from_fn(dims, |k| (k as f32 * 0.7).sin()));
        let want = on_cpu.compile_with(&cpu, Passes::none()).unwrap().call(std::slice::from_ref(&x)).unwrap();
        let passes = if i % 3 == 0 { Passes::none().with(Pass::DeadCode) } else { Passes::all().large(1) };
        let before = (fake.waits(), fake.stub().compiled());
        let mut compiled = on_gpu.compile_with(&gpu, passes).unwrap();
        let new = (fake.waits() - before.0, fake.stub().compiled() - before.1);
        for _ in 0..2 {
            compiled.set_random_calls(0);
            assert_eq!(compiled.call(std::slice::from_ref(&x)).unwrap(), want, "program {i}");
        }
        drop(compiled);
        plans.push(&format!("program {i}"), &gpu, &[on_gpu], passes);
        plans.add(&format!(", {} waits, {} new modules", new.0, new.1));
    }
    drop(gpu);
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
    plans.finish();
}

/// What a program reads at the edges: parts of values and of inputs, indices that are fixed, counters beyond 32 bits, and
/// kernels that are timed one by one.
#[test]
fn programs_read_parts_constants_and_counters() {
    let fake = Fake::computing(1, 1 << 28);
    let gpu = Device::from_cuda(fake.open().unwrap());
    let x = AnyTensor::Num(Tensor::from_fn(Shape::new(&[8, 8]).unwrap(), |k| (k as f32 * 0.7).sin()));
    let call = |f: &mut dittograd::graph::Function| f.call(std::slice::from_ref(&x)).unwrap();
    for d in [&device(), &gpu] {
        let graph = Graph::trace_seeded(d, 7, &[f(&[8, 8])], |s, x| {
            // The part has an eighth of the words whose place the product would fit into.
            let rows = x[0].cumsum(0)?;
            let product = rows.narrow(0, 3, 1)?.mul(x[0])?;
            let part = x[0].narrow(0, 5, 2)?.cumsum(1)?;
            Ok(vec![product, part, s.uniform(&[4])?])
        })
        .unwrap();
        let want = graph.run(d, std::slice::from_ref(&x)).unwrap();
        for passes in [Passes::all(), Passes::none()] {
            let mut compiled = graph.compile_with(d, passes).unwrap();
            assert_eq!(call(&mut compiled), want, "{d}, {passes:?}");
            let mut drawn = Vec::new();
            for calls in [0, 1, 1 << 32, 1 << 33, (1 << 33) + 1] {
                compiled.set_random_calls(calls);
                drawn.push(call(&mut compiled)[2].num().unwrap().data().to_vec());
            }
            assert_eq!(drawn[0], want[2].num().unwrap().data());
            for (i, a) in drawn.iter().enumerate() {
                assert!(!drawn[..i].contains(a), "{d}: run {i} draws what another did");
            }
        }
    }
    let mut compiled = Graph::trace(&gpu, &[f(&[8, 8])], |_, x| Ok(vec![x[0].matmul(x[0])?.cumsum(0)?]))
        .unwrap()
        .compile(&gpu)
        .unwrap();
    gpu.profile();
    call(&mut compiled);
    let seen: Vec<_> = gpu.profiled().iter().map(|t| t.name).collect();
    assert!(seen.contains(&"matmul") && seen.contains(&"cumsum"), "{seen:?}");
    // Indices that are fixed are looked at when a program is compiled; those of inputs when they come.
    let text = |indices: &str| {
        format!(
            "graph 1\n%0: f32[3, 2] = input\n%1: u32[2] = {indices}\n%2: f32[2, 2] = index_select %0 %1 axis=0 checked=true\nreturn %2\n"
        )
    };
    for (indices, taken) in [("constant [0, 2]", true), ("constant [0, 3]", false)] {
        let graph = Graph::parse(&text(indices)).unwrap();
        let compiled = graph.compile(&device());
        assert_eq!(compiled.is_ok(), taken, "{indices}: {:?}", compiled.err());
    }
    let mut given = Graph::parse(&text("input")).unwrap().compile(&device()).unwrap();
    let rows = |i: u32| AnyTensor::Idx(Tensor::new(&[2], vec![0, i]).unwrap());
    let x: AnyTensor<f32> = Tensor::from_fn(Shape::new(&[3, 2]).unwrap(), |k| k as f32).into();
    assert_eq!(given.call(&[x.clone(), rows(2)]).unwrap()[0].num().unwrap().data(), [0.0, 1.0, 4.0, 5.0]);
    let e = given.call(&[x, rows(3)]).unwrap_err().to_string();
    assert!(e.contains("index_select") && e.contains('3'), "{e}");
}

/// A parameter can become a part of an input, which is in no memory of the program.
#[test]
fn a_part_of_an_input_is_assigned() {
    let fake = Fake::computing(1, 1 << 28);
    for d in [device(), Device::from_cuda(fake.open().unwrap())] {
        let mut params = Params::new(&d, 1);
        let w = params.ones("w", &[3]).unwrap();
        let kept = params.ones("kept", &[2]).unwrap();
        kept.set_trainable(false);
        // From an aligned place on a part is no copy.
        let x = Tensor::from_fn(Shape::new(&[8, 1]).unwrap(), |i| i as f32 + 1.0);
        let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
            let s = v[0].session();
            s.assign(&kept, v[0].narrow(0, 4, 2)?.reshape(&[2])?)?;
            s.param(&w)?.square()?.sum()
        });
        step.run(&[(&x).into()]).unwrap();
        assert_eq!(kept.get::<f32>().unwrap().data(), [5.0, 6.0], "{d}");
        assert!(w.get::<f32>().unwrap().data().iter().all(|x| (x - 0.8).abs() < 1e-6), "{d}");
    }
}
