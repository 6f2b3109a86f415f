//! Bad arguments of what is above the ops (those have their own in `OP::rejects`): one table of entry points, each of which
//! answers with a named kind of error that names the culprit, and leaves no memory behind; and a sweep of extreme sizes
//! through all methods that take any.

use crate::support::{device, t};
use dittograd::data::{self, Batches, Loader, Part, Regression, Scaling, Tokenizer};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::nn::{
    BatchNorm, Conv2d, ConvTranspose2d, Dropout, Embedding, GroupNorm, LayerNorm, LearntPositions, Lstm,
    MultiheadAttention, RecurrentConfig, RmsNorm, Sampling, SinusoidalPositions, SpectralConv1d,
    TransformerConfig, TransformerEncoderLayer,
};
use dittograd::ops::PoolWindow;
use dittograd::ops::conv::Sizes;
use dittograd::prelude::*;
use dittograd::session::{AvgPoolOptions, Interpolate, Interpolation, Nats, PadMode, Segments, Spacing};
use dittograd::torchlean::TorchLean;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// More elements than any machine has room for, and fewer than an address space.
const HUGE: usize = 1 << 44;

/// An entry point with a bad argument: the kind of error it must answer with, and words that name the culprit.
type Row = (String, &'static str, String, Box<dyn Fn(&Device) -> Result<()>>);

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn add(
        &mut self,
        name: impl Into<String>,
        kind: &'static str,
        says: impl Into<String>,
        run: impl Fn(&Device) -> Result<()> + 'static,
    ) {
        self.0.push((name.into(), kind, says.into(), Box::new(run)));
    }

    /// A row on values `x (2, 3)`, `y (2, 3)`, `v (3)`, labels `l (2)` and pictures `(1, 2, 4, 4)` of a session.
    fn value(
        &mut self,
        name: &'static str,
        kind: &'static str,
        says: &'static str,
        run: impl for<'s> Fn(&'s Session, &[Var<'s>; 5]) -> Result<()> + 'static,
    ) {
        self.add(name, kind, says, move |d| {
            let s = Session::eager(d);
            let x = |dims: &[usize]| s.input(&Tensor::from_fn(Shape::new(dims)?, |i| i as f32 * 0.1));
            let l = s.labels(&Tensor::new(&[2], vec![0, 2])?)?;
            run(&s, &[x(&[2, 3])?, x(&[2, 3])?, x(&[3])?, l, x(&[1, 2, 4, 4])?])
        });
    }

    /// A row on new parameters.
    fn params(
        &mut self,
        name: &'static str,
        kind: &'static str,
        says: &'static str,
        run: impl Fn(&mut Params) -> Result<()> + 'static,
    ) {
        self.add(name, kind, says, move |d| {
            let mut params = Params::new(d, 1);
            let result = run(&mut params);
            assert!(params.iter().all(|p| p.shape().numel() < 1 << 24), "{name}: a giant was made first");
            result
        });
    }
}

/// What a session makes and does with shapes and numbers.
fn session(rows: &mut Table) {
    let whole = "Argument";
    rows.value("full", "TooLarge", "[18446744073709551615, 2]", |s, _| {
        s.full(&[usize::MAX, 2], 1.0).map(drop)
    });
    rows.value("full", "OutOfMemory", "out of memory asking for", |s, _| s.full(&[HUGE], 1.0).map(drop));
    rows.value("zeros", "Argument", "axes", |s, _| s.zeros(&[1; 11]).map(drop));
    rows.value("arange", whole, "step", |s, _| s.arange(0.0, 1.0, 0.0).map(drop));
    rows.value("arange", whole, "step", |s, _| s.arange(f64::NAN, 1.0, 0.1).map(drop));
    rows.value("arange", whole, "step", |s, _| s.arange(0.0, f64::INFINITY, 1.0).map(drop));
    rows.value("arange", "OutOfMemory", "on the host", |s, _| s.arange(0.0, HUGE as f64, 1.0).map(drop));
    rows.value("arange", "TooLarge", "does not fit", |s, _| s.arange(0.0, 1e19, 1e-3).map(drop));
    rows.value("linspace", "OutOfMemory", "on the host", |s, _| s.linspace(0.0, 1.0, HUGE).map(drop));
    rows.value("linspace", "TooLarge", "does not fit", |s, _| s.linspace(0.0, 1.0, usize::MAX).map(drop));
    rows.value("eye", "OutOfMemory", "out of memory", |s, _| s.eye(1 << 22).map(drop));
    rows.value("uniform_range", whole, "hi", |s, _| s.uniform_range(&[2], 0.0, f64::NAN).map(drop));
    rows.value("normal", whole, "std", |s, _| s.normal(&[2], 0.0, -1.0).map(drop));
    rows.value("normal", whole, "mean", |s, _| s.normal(&[2], f64::INFINITY, 1.0).map(drop));
    rows.value("randint", whole, "below", |s, _| s.randint(&[2], 0).map(drop));
    rows.value("randint_range", whole, "below", |s, _| s.randint_range(&[2], 7, 7).map(drop));
    rows.value("tril_indices", "TooLarge", "tril_indices", |s, _| s.tril_indices(HUGE, HUGE, 0).map(drop));
    rows.value("logspace", "OutOfMemory", "on the host", |s, _| s.logspace(0.0, 1.0, HUGE, 2.0).map(drop));
    rows.value("permutation", "Argument", "n: ", |s, _| s.permutation(usize::MAX).map(drop));
    for p in [1.5, -0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        rows.value("dropout", whole, "p: got", move |_, v| v[0].dropout(p).map(drop));
        rows.add("Dropout::new", whole, "p: got", move |_| Dropout::new(p).map(drop));
    }
    rows.value("concat of none", "Arity", "concat", |s, _| s.concat(&[], 0).map(drop));
    rows.value("stack of none", "Arity", "concat", |s, _| s.stack(&[], 0).map(drop));
    rows.value("stack of others", "Shapes", "concat", |s, v| s.stack(&[v[0], v[2]], 0).map(drop));
    rows.value("concat of labels", "DType", "u32", |s, v| s.concat(&[v[2], v[3]], 0).map(drop));
    rows.value("split", whole, "sizes", |_, v| v[0].split(1, &[2, 2]).map(drop));
    rows.value("split", whole, "sizes", |_, v| v[0].split(1, &[usize::MAX, 4]).map(drop));
    rows.value("chunks", whole, "size", |_, v| v[0].chunks(1, 0).map(drop));
    rows.value("chunk", whole, "count", |_, v| v[0].chunk(1, 0).map(drop));
    rows.value("pad", "Argument", "pad: range", |_, v| v[0].pad(0, usize::MAX, usize::MAX).map(drop));
    rows.value("repeat", "TooLarge", "does not fit", |_, v| v[0].repeat(&[usize::MAX, 2]).map(drop));
    rows.value("repeat", whole, "times", |_, v| v[0].repeat(&[2]).map(drop));
    rows.value("reshape", "Shapes", "reshape", |_, v| v[0].reshape(&[7]).map(drop));
    rows.value("reshape", "TooLarge", "does not fit", |_, v| v[0].reshape(&[usize::MAX, 6]).map(drop));
    rows.value("tensordot", "Argument", "axes", |_, v| v[0].tensordot(v[1], 3).map(drop));
    rows.value("one_hot", "DType", "u32", |_, v| v[0].one_hot(3).map(drop));
    rows.value("one_hot", "Index", "index 2", |_, v| v[3].one_hot(2).map(drop));
    rows.value("global_max_pool", "Rank", "as are pooled", |_, v| v[4].global_max_pool(9).map(drop));
    rows.value("global_avg_pool", "Rank", "as are pooled", |_, v| v[4].global_avg_pool(0).map(drop));
    rows.value("max_pool2d", whole, "kernel", |_, v| v[4].max_pool2d([0, 2], 1).map(drop));
    rows.value("max_pool2d", whole, "stride", |_, v| v[4].max_pool2d([2, 2], 0).map(drop));
    rows.value("avg_pool2d_pad", whole, "padding", |_, v| {
        v[4].avg_pool2d_pad([2, 2], 1, usize::MAX).map(drop)
    });
    rows.value("smooth_max_pool2d", whole, "beta", |_, v| {
        v[4].smooth_max_pool2d([2, 2], 1, f64::NAN).map(drop)
    });
    rows.value("smooth_max_pool2d", whole, "beta", |_, v| v[4].smooth_max_pool2d([2, 2], 1, 0.0).map(drop));
    rows.value("norm", whole, "p", |_, v| v[0].norm(f64::NAN, &[0], false).map(drop));
    rows.value("normalize", whole, "eps", |_, v| v[0].normalize(2.0, 1, -1.0).map(drop));
    for eps in [-1e-5, f64::NAN, f64::INFINITY] {
        rows.value("layer_norm", whole, "eps", move |_, v| v[0].layer_norm(1, None, None, eps).map(drop));
        rows.value("rms_norm", whole, "eps", move |_, v| v[0].rms_norm(1, None, eps).map(drop));
        rows.value("batch_norm", whole, "eps", move |_, v| v[4].batch_norm(None, None, eps).map(drop));
        rows.value("group_norm", whole, "eps", move |_, v| v[4].group_norm(1, None, None, eps).map(drop));
        rows.value("instance_norm", whole, "eps", move |_, v| v[4].instance_norm(None, None, eps).map(drop));
        rows.value("batch_norm_eval", whole, "eps", move |s, v| {
            let c = s.ones(&[2])?;
            v[4].batch_norm_eval(c, c, None, None, eps).map(drop)
        });
    }
    rows.value("layer_norm", "Argument", "axes", |_, v| v[0].layer_norm(3, None, None, 1e-5).map(drop));
    rows.value("group_norm", whole, "groups", |_, v| v[4].group_norm(0, None, None, 1e-5).map(drop));
    rows.value("group_norm", whole, "groups", |_, v| v[4].group_norm(3, None, None, 1e-5).map(drop));
    rows.value("rope", whole, "base", |_, v| v[4].rope(f64::NAN, 0, false).map(drop));
    rows.value("rope", whole, "base", |_, v| v[4].rope(-1.0, 0, false).map(drop));
    rows.value("attention", whole, "scale", |_, v| {
        let options = AttentionOptions { scale: Some(f64::NAN), ..Default::default() };
        v[4].attention(v[4], v[4], options).map(drop)
    });
    rows.value("multi_head_attention", whole, "heads", |s, v| {
        let w = s.ones(&[3, 3])?;
        v[0].unsqueeze(0)?.multi_head_attention([w; 4], 2, Default::default()).map(drop)
    });
    rows.value("irfft", whole, "n", |_, v| v[0].irfft(usize::MAX).map(drop));
    let window = |f: fn(ConvWindow) -> ConvWindow| move || ConvWindow::plain(2).map(f);
    for (says, made) in [
        ("stride", window(|w| w.stride(0))),
        ("dilation", window(|w| w.dilation(0))),
        ("groups", window(|w| w.groups(0))),
        ("groups", window(|w| w.groups(3))),
        ("padding", window(|w| w.padding(1 << 31))),
        ("padding", window(|w| w.padding(usize::MAX))),
    ] {
        rows.value("conv", whole, says, move |s, v| {
            v[4].conv(s.ones(&[2, 2, 3, 3])?, None, made()?).map(drop)
        });
        // A layer is refused where it is used, but for what its weights need.
        let used = says != "groups";
        rows.params("Conv2d", whole, says, move |p| {
            let conv = Conv2d::new(p, "c", 2, 2, [3, 3], made()?);
            assert!(used || conv.is_err());
            let s = Session::inference(p.device());
            conv?.forward(s.ones(&[1, 2, 4, 4])?).map(drop)
        });
    }
    rows.value("conv", whole, "kernel", |s, v| {
        v[4].conv(s.ones(&[2, 2, 5, 5])?, None, ConvWindow::plain(2)?).map(drop)
    });
    rows.add("ConvWindow::plain", whole, "axes", |_| ConvWindow::plain(0).map(drop));
    rows.add("Sizes::new", whole, "sizes", |_| Sizes::new(&[usize::MAX; 2]).map(drop));
    rows.add("Nats::get", "Index", "index 1", |_| Nats::new(&[4]).get(1).map(drop));
    rows.add("Nats::set", "Index", "index 1", |_| Nats::new(&[4]).set(1, 0).map(drop));
    rows.add("Nats::set_values", "Length", "got 2", |_| Nats::new(&[4]).set_values(&[1, 2]));
}

fn einsum(rows: &mut Table) {
    for (equation, says) in [
        ("", "has 1 operands, 2 are given"),
        ("ij", "has 1 operands"),
        ("i j k,ij->", "names 3 axes"),
        ("ij,jk,kl->il", "operands"),
        ("ij,ij->iq", "q"),
        ("ij,ij->ii", "twice"),
        ("i1,ij->", "`1`"),
        ("i\u{1b}[31m,ij->", r"\u{1b}"),
        ("i\n,ij->", r"\n"),
        ("...i...,ij->", "more than once"),
        ("ij,ij->i->j", "`-`"),
        ("é,ij->", "é"),
    ] {
        let name = format!("einsum {equation:?}");
        rows.add(name, "Argument", says, move |d| {
            let s = Session::eager(d);
            let x = s.input(&t(&[2, 3], &[1.0; 6]))?;
            s.einsum(equation, &[x, x]).map(drop)
        });
    }
    rows.value("einsum", "Argument", "axis j", |s, v| s.einsum("ij,jk->ik", &[v[0], v[1]]).map(drop));
    rows.value("einsum", "Argument", "equation", |s, _| s.einsum("->", &[]).map(drop));
    rows.value("einsum", "DType", "u32", |s, v| s.einsum("i,i->", &[v[3], v[3]]).map(drop));
}

fn losses(rows: &mut Table) {
    for label in [3, u32::MAX] {
        rows.value("cross_entropy", "Index", "is outside 0..3", move |s, v| {
            v[0].cross_entropy(s.labels(&Tensor::new(&[2], vec![0, label])?)?)?.item().map(drop)
        });
        rows.value("nll", "Index", "is outside 0..3", move |s, v| {
            v[0].nll(s.labels(&Tensor::new(&[2], vec![0, label])?)?, None)?.item().map(drop)
        });
    }
    rows.value("cross_entropy", "DType", "u32", |_, v| v[0].cross_entropy(v[2]).map(drop));
    rows.value("cross_entropy", "Shapes", "cross_entropy", |s, v| {
        v[0].cross_entropy(s.labels(&Tensor::new(&[3], vec![0; 3])?)?).map(drop)
    });
    for smoothing in [-0.1, 1.5, f64::NAN] {
        rows.value("cross_entropy_with", "Argument", "label_smoothing", move |_, v| {
            v[0].cross_entropy_with(v[3], None, smoothing).map(drop)
        });
    }
    for delta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        rows.value("huber_loss", "Argument", "delta", move |_, v| {
            v[0].huber_loss(v[1], delta, Reduction::Mean).map(drop)
        });
    }
    for beta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        rows.value("smooth_l1_loss", "Argument", "beta", move |_, v| {
            v[0].smooth_l1_loss(v[1], beta, Reduction::Mean).map(drop)
        });
    }
    rows.value("mse", "Shapes", "mse", |_, v| v[0].mse(v[2]).map(drop));
    rows.value("bce", "Shapes", "bce", |_, v| v[0].bce(v[2], Reduction::Mean).map(drop));
    rows.value("kl_div", "Shapes", "kl_div", |_, v| v[0].kl_div(v[2], Reduction::Mean).map(drop));
    rows.value("weights", "Shapes", "one weight for each class", |s, v| {
        let weight = Some(s.ones(&[2])?);
        v[0].cross_entropy_loss(v[3], LabelLoss { weight, ..Default::default() }).map(drop)
    });
}

/// Every setting of an optimizer, at the first step: of an eager loop and of a compiled one.
fn optimizers(rows: &mut Table) {
    type Make = Box<dyn Fn() -> Optimizer>;
    let mut all: Vec<(String, &'static str, Make)> = Vec::new();
    let mut add = |says: &'static str, x: f64, make: fn(f64) -> Optimizer| {
        all.push((format!("{says} {x}"), says, Box::new(move || make(x))));
    };
    // What is not a finite number from 0 on; what is not a share.
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1e39];
    for x in bad {
        add("lr", x, Optimizer::sgd);
        add("lr", x, |x| Optimizer::adam(0.1).group(Group::matching(|_| true).lr(x)));
        add("lr", x, |x| {
            let mut o = Optimizer::adam(0.1);
            o.set_lr(x);
            o
        });
        add("weight_decay", x, |x| Optimizer::adamw(0.1).weight_decay(x));
        add("weight_decay", x, |x| Optimizer::sgd(0.1).group(Group::matching(|_| true).weight_decay(x)));
        add("eps", x, |eps| Optimizer::new(rules::Adam { beta1: 0.9, beta2: 0.99, eps }, 0.1));
        add("eps", x, |eps| Optimizer::new(rules::AdaGrad { lr_decay: 0.0, initial: 0.0, eps }, 0.1));
        add("eps", x, |eps| {
            Optimizer::new(rules::RmsProp { alpha: 0.9, eps, momentum: 0.0, centered: false }, 0.1)
        });
        add("eps", x, |eps| Optimizer::new(rules::Adadelta { rho: 0.9, eps }, 0.1));
        add("eps", x, |eps| Optimizer::new(rules::Muon { momentum: 0.9, nesterov: true, eps }, 0.1));
        add("lr_decay", x, |lr_decay| {
            Optimizer::new(rules::AdaGrad { lr_decay, initial: 0.0, eps: 0.1 }, 0.1)
        });
        add("initial", x, |initial| Optimizer::new(rules::AdaGrad { lr_decay: 0.0, initial, eps: 0.1 }, 0.1));
        add("clip_norm", x, |x| Optimizer::sgd(0.1).clip_norm(x));
        add("clip_value", x, |x| Optimizer::sgd(0.1).clip_value(x));
        add("gamma", x, |x| Optimizer::sgd(0.1).schedule(Schedule::step(1, x)));
        add("gamma", x, |x| Optimizer::sgd(0.1).schedule(Schedule::exponential(x)));
        add("min", x, |x| Optimizer::sgd(0.1).schedule(Schedule::cosine(9, x)));
        add("start", x, |x| Optimizer::sgd(0.1).schedule(Schedule::constant().warmup(5, x)));
    }
    for x in [1.0, 1.5, -0.1, f64::NAN, f64::INFINITY] {
        add("mu", x, |x| Optimizer::momentum(0.1, x));
        add("beta1", x, |beta1| Optimizer::new(rules::Adam { beta1, beta2: 0.9, eps: 1e-8 }, 0.1));
        add("beta2", x, |beta2| Optimizer::new(rules::Adam { beta1: 0.9, beta2, eps: 1e-8 }, 0.1));
        add("beta1", x, |beta1| Optimizer::new(rules::Lion { beta1, beta2: 0.9 }, 0.1));
        add("beta2", x, |beta2| Optimizer::new(rules::Lion { beta1: 0.9, beta2 }, 0.1));
        add("rho", x, |rho| Optimizer::new(rules::Adadelta { rho, eps: 1e-6 }, 0.1));
        add("alpha", x, |alpha| {
            Optimizer::new(rules::RmsProp { alpha, eps: 0.1, momentum: 0.0, centered: true }, 0.1)
        });
        add("momentum", x, |momentum| {
            Optimizer::new(rules::RmsProp { alpha: 0.9, eps: 0.1, momentum, centered: false }, 0.1)
        });
        add("momentum", x, |momentum| {
            Optimizer::new(rules::Muon { momentum, nesterov: true, eps: 0.1 }, 0.1)
        });
    }
    for x in [-0.1, 1.5, f64::NAN] {
        add("pct_start", x, |x| Optimizer::sgd(0.1).schedule(Schedule::one_cycle_with(9, x, 25.0, 1e4)));
    }
    for x in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        add("div_factor", x, |x| Optimizer::sgd(0.1).schedule(Schedule::one_cycle_with(9, 0.3, x, 1e4)));
        add("final_div_factor", x, |x| {
            Optimizer::sgd(0.1).schedule(Schedule::one_cycle_with(9, 0.3, 25.0, x))
        });
    }
    add("steps", 0.0, |_| Optimizer::sgd(0.1).schedule(Schedule::cosine(0, 0.0)));
    add("steps", 0.0, |_| Optimizer::sgd(0.1).schedule(Schedule::one_cycle(0)));
    add("size", 0.0, |_| Optimizer::sgd(0.1).schedule(Schedule::step(0, 0.5)));
    add("dampening", 0.5, |dampening| {
        Optimizer::new(rules::Momentum { mu: 0.9, dampening, nesterov: true }, 0.1)
    });
    add("group", 0.0, |_| Optimizer::sgd(0.1).group(Group::names(&["none"])));
    add("group", 0.0, |_| Optimizer::sgd(0.1).group(Group::prefix("none.")));
    add("group", 0.0, |_| {
        Optimizer::sgd(0.1).group(Group::matching(|_| true)).group(Group::matching(|_| true))
    });
    // A rate that is fine at first and beyond float32 at the first step that is asked for.
    add("lr", 3e38, |x| Optimizer::sgd(x).schedule(Schedule::constant().warmup(1, 3e38)));
    for (name, says, make) in all {
        let make = std::rc::Rc::new(make);
        let again = make.clone();
        rows.add(format!("{name}, eager"), "Argument", says, move |d| {
            let mut params = Params::new(d, 1);
            let w = params.value("w", &t(&[2, 2], &[1.0; 4]))?;
            let s = Session::eager(d);
            let grads = s.param(&w)?.square()?.sum()?.backward()?;
            let mut optimizer = make();
            let result = optimizer.step(&params, grads);
            assert_eq!((w.get::<f32>()?.data(), optimizer.steps()), (&[1.0; 4][..], 0), "{says} changed it");
            result
        });
        rows.add(format!("{name}, compiled"), "Argument", says, move |d| {
            let mut params = Params::new(d, 1);
            let w = params.value("w", &t(&[2, 2], &[1.0; 4]))?;
            let p = w.clone();
            let mut step =
                TrainStep::new(&params, again(), move |v| v[0].session().param(&p)?.mul(v[0])?.sum());
            let result = step.run(&[(&Tensor::scalar(2.0f32)).into()]);
            assert_eq!(w.get::<f32>()?.data(), [1.0; 4], "{says} changed it");
            result
        });
    }
    rows.add("set_group_lr", "Argument", "group", |_| Optimizer::sgd(0.1).set_group_lr(0, 0.1));
}

fn initializers(rows: &mut Table) {
    let whole = "Argument";
    rows.params("an empty name", whole, "name", |p| p.zeros("", &[2]).map(drop));
    rows.params("a name twice", whole, "`a`", |p| {
        p.zeros("a", &[2]).and_then(|_| p.ones("a", &[2])).map(drop)
    });
    rows.params("a name with a line break", whole, r"a\nb", |p| {
        p.zeros("a\nb", &[2]).and_then(|_| p.ones("a\nb", &[2])).map(drop)
    });
    rows.params("zeros", "OutOfMemory", "out of memory asking for", |p| p.zeros("a", &[HUGE]).map(drop));
    rows.params("ones", "TooLarge", "does not fit", |p| p.ones("a", &[usize::MAX, 3]).map(drop));
    rows.params("uniform", whole, "range", |p| p.uniform("a", &[2], 1.0, 0.0).map(drop));
    rows.params("uniform", whole, "range", |p| p.uniform("a", &[2], f64::NEG_INFINITY, 0.0).map(drop));
    for std in [-1.0, f64::NAN, f64::INFINITY] {
        rows.params("normal", whole, "std", move |p| p.normal("a", &[2], 0.0, std).map(drop));
        rows.params("Embedding", whole, "std", move |p| Embedding::new(p, "e", 3, 2, std).map(drop));
        rows.params("positions", whole, "std", move |p| LearntPositions::new(p, "e", 3, 2, std).map(drop));
    }
    type Init = fn(&mut Params, &[usize], f64) -> Result<Param>;
    let all: [(&'static str, Init); 5] = [
        ("xavier_uniform", |p, dims, gain| p.xavier_uniform("a", dims, gain)),
        ("xavier_normal", |p, dims, gain| p.xavier_normal("a", dims, gain)),
        ("kaiming_uniform", |p, dims, gain| p.kaiming_uniform("a", dims, Fan::In, gain)),
        ("kaiming_normal", |p, dims, gain| p.kaiming_normal("a", dims, Fan::Out, gain)),
        ("orthogonal", |p, dims, gain| p.orthogonal("a", dims, gain)),
    ];
    for (name, init) in all {
        for gain in [-1.0, f64::NAN, f64::INFINITY] {
            rows.params(name, whole, "gain", move |p| init(p, &[2, 2], gain).map(drop));
        }
        rows.params(name, "Rank", "at least 2", move |p| init(p, &[3], 1.0).map(drop));
        rows.params(name, "Rank", "at least 2", move |p| init(p, &[], 1.0).map(drop));
        rows.params(name, "OutOfMemory", "out of memory", move |p| init(p, &[HUGE, 2], 1.0).map(drop));
        rows.params(name, "TooLarge", "does not fit", move |p| init(p, &[usize::MAX, 2], 1.0).map(drop));
    }
}

fn models(rows: &mut Table) {
    let whole = "Argument";
    rows.params("Linear", whole, "linear", |p| Linear::new(p, "l", 0, 3).map(drop));
    rows.params("Linear", "OutOfMemory", "out of memory", |p| Linear::new(p, "l", HUGE, 3).map(drop));
    rows.params("Mlp", whole, "mlp", |p| Mlp::new(p, &[3]).map(drop));
    rows.params("Mlp", whole, "sizes: [3, 0]", |p| Mlp::new(p, &[3, 0, 2]).map(drop));
    rows.params("Mlp", whole, "mlp", |p| Mlp::new(p, MlpConfig { sizes: vec![] }).map(drop));
    rows.params("Mlp", "TooLarge", "does not fit", |p| Mlp::new(p, &[usize::MAX, usize::MAX]).map(drop));
    rows.params("Cnn", whole, "cnn", |p| {
        Cnn::new(p, CnnConfig { channels: 0, ..Default::default() }).map(drop)
    });
    rows.params("Cnn", whole, "cnn", |p| {
        Cnn::new(p, CnnConfig { image: [0, 3], ..Default::default() }).map(drop)
    });
    rows.params("Cnn", "OutOfMemory", "out of memory", |p| {
        Cnn::new(p, CnnConfig { widths: [HUGE >> 4, 2, 2], ..Default::default() }).map(drop)
    });
    rows.params("Fno1d", whole, "fno", |p| {
        Fno1d::new(p, Fno1dConfig { modes: 0, ..Default::default() }).map(drop)
    });
    rows.params("Fno1d", "OutOfMemory", "out of memory", |p| {
        Fno1d::new(p, Fno1dConfig { modes: HUGE >> 8, ..Default::default() }).map(drop)
    });
    rows.params("Fno2d", whole, "fno", |p| {
        Fno2d::new(p, Fno2dConfig { layers: 0, ..Default::default() }).map(drop)
    });
    let gpt = GptConfig { vocab: 8, context: 4, width: 4, heads: 2, layers: 1, dropout: 0.0 };
    for (config, says) in [
        (GptConfig { vocab: 0, ..gpt }, "gpt"),
        (GptConfig { layers: 0, ..gpt }, "gpt: layers"),
        (GptConfig { layers: usize::MAX, ..gpt }, "gpt: layers"),
        (GptConfig { heads: 0, ..gpt }, "gpt: sizes"),
        (GptConfig { heads: 3, ..gpt }, "heads"),
        (GptConfig { dropout: 1.5, ..gpt }, "p: got 1.5"),
        (GptConfig { dropout: f64::NAN, ..gpt }, "p: got NaN"),
    ] {
        rows.params("Gpt", whole, says, move |p| Gpt::new(p, config).map(drop));
    }
    rows.params("Gpt", "OutOfMemory", "out of memory", move |p| {
        Gpt::new(p, GptConfig { vocab: HUGE, ..gpt }).map(drop)
    });
    rows.params("Gpt", "TooLarge", "does not fit", move |p| {
        Gpt::new(p, GptConfig { width: usize::MAX - 1, heads: 1, ..gpt }).map(drop)
    });
    rows.params("Gpt::generate", whole, "prompt", move |p| {
        Gpt::new(p, gpt)?.generate(&[], 1, Sampling::default()).map(drop)
    });
    rows.params("Gpt::generate", "Index", "index 8", move |p| {
        Gpt::new(p, gpt)?.generate(&[8], 1, Sampling::default()).map(drop)
    });
    for temperature in [-1.0, f64::NAN, f64::INFINITY] {
        rows.add("Sampling", whole, "temperature", move |_| {
            Sampling { temperature, ..Default::default() }.draw(&[0.0, 1.0], 0).map(drop)
        });
    }
    rows.add("Sampling", whole, "top_k", |_| {
        Sampling { top_k: Some(0), ..Default::default() }.draw(&[0.0], 0).map(drop)
    });
    let mamba = MambaConfig { vocab: 8, width: 4, layers: 1, state: 2, conv: 2, expand: 2 };
    rows.params("Mamba", whole, "mamba", move |p| Mamba::new(p, MambaConfig { state: 0, ..mamba }).map(drop));
    for config in [
        MambaConfig { state: HUGE, ..mamba },
        MambaConfig { expand: HUGE, ..mamba },
        MambaConfig { width: 1 << 20, vocab: 2, expand: 1 << 24, ..mamba },
    ] {
        rows.params("Mamba", "OutOfMemory", "out of memory", move |p| Mamba::new(p, config).map(drop));
    }
    rows.params("Mamba", "TooLarge", "does not fit", move |p| {
        Mamba::new(p, MambaConfig { state: usize::MAX, ..mamba }).map(drop)
    });
    rows.params("ResNet", whole, "depth", |p| {
        ResNet::new(p, ResNetConfig { depth: 9, ..Default::default() }).map(drop)
    });
    rows.params("ResNet", whole, "resnet", |p| {
        ResNet::new(p, ResNetConfig { width: 0, ..Default::default() }).map(drop)
    });
    rows.params("Vit", whole, "patch", |p| {
        Vit::new(p, VitConfig { patch: [0, 1], ..Default::default() }).map(drop)
    });
    rows.params("Vit", whole, "patch", |p| {
        Vit::new(p, VitConfig { patch: [5, 5], ..Default::default() }).map(drop)
    });
    rows.params("Autoencoder", whole, "autoencoder", |p| {
        Autoencoder::new(p, AutoencoderConfig { latent: 0, ..Default::default() }).map(drop)
    });
    rows.params("Autoencoder", whole, "autoencoder", |p| {
        Autoencoder::new(p, AutoencoderConfig { widths: vec![], ..Default::default() }).map(drop)
    });
    rows.params("Autoencoder", whole, "autoencoder", |p| {
        Autoencoder::new(p, AutoencoderConfig { widths: vec![1; 70], ..Default::default() }).map(drop)
    });
    for layers in [0, usize::MAX] {
        rows.params("Mamba", whole, "mamba: layers", move |p| {
            Mamba::new(p, MambaConfig { layers, ..mamba }).map(drop)
        });
        rows.params("Fno1d", whole, "fno: layers", move |p| {
            Fno1d::new(p, Fno1dConfig { layers, ..Default::default() }).map(drop)
        });
        rows.params("Fno2d", whole, "fno: layers", move |p| {
            Fno2d::new(p, Fno2dConfig { layers, ..Default::default() }).map(drop)
        });
        rows.params("Vit", whole, "vit: layers", move |p| {
            Vit::new(p, VitConfig { layers, ..Default::default() }).map(drop)
        });
        rows.params("ResNet", whole, "resnet: layers", move |p| {
            ResNet::new(p, ResNetConfig { depth: layers, ..Default::default() }).map(drop)
        });
    }
    let cell = RecurrentConfig { inputs: 2, hidden: 2, ..RecurrentConfig::default() };
    for layers in [0, usize::MAX] {
        rows.params("Lstm", whole, "recurrent: layers", move |p| {
            Lstm::new(p, "l", RecurrentConfig { layers, ..cell }).map(drop)
        });
    }
    rows.params("Lstm", whole, "recurrent: sizes", move |p| {
        Lstm::new(p, "l", RecurrentConfig { hidden: 0, ..cell }).map(drop)
    });
    rows.params("Lstm", "OutOfMemory", "out of memory", move |p| {
        Lstm::new(p, "l", RecurrentConfig { hidden: 1 << 40, ..cell }).map(drop)
    });
    rows.params("MultiheadAttention", whole, "heads", |p| {
        MultiheadAttention::new(p, "a", 4, 3, false).map(drop)
    });
    rows.params("TransformerEncoderLayer", whole, "p: got", |p| {
        let config = TransformerConfig { dropout: 2.0, ..Default::default() };
        TransformerEncoderLayer::new(p, "t", config).map(drop)
    });
    rows.params("SpectralConv1d", whole, "sizes", |p| SpectralConv1d::new(p, "s", 0, 1, 1).map(drop));
    rows.params("LayerNorm", whole, "layer_norm", |p| LayerNorm::new(p, "n", 0).map(drop));
    rows.params("RmsNorm", whole, "rms_norm", |p| RmsNorm::new(p, "n", 0, 1e-5).map(drop));
    rows.params("BatchNorm", whole, "batch_norm", |p| BatchNorm::new(p, "n", 0).map(drop));
    rows.params("GroupNorm", whole, "groups", |p| GroupNorm::new(p, "n", 0, 4).map(drop));
    rows.params("GroupNorm", whole, "groups", |p| GroupNorm::new(p, "n", 3, 4).map(drop));
    rows.params("ConvTranspose2d", whole, "output_padding", |p| {
        let conv = ConvTranspose2d::new(p, "c", 2, 2, [3, 3], ConvWindow::plain(2)?, [1, 0])?;
        let s = Session::inference(p.device());
        conv.forward(s.ones(&[1, 2, 4, 4])?).map(drop)
    });
    rows.add("SinusoidalPositions", "OutOfMemory", "on the host", |_| {
        SinusoidalPositions::table(HUGE, 2).map(drop)
    });
    rows.add("SinusoidalPositions", "TooLarge", "does not fit", |_| {
        SinusoidalPositions::table(usize::MAX, 2).map(drop)
    });
}

fn data_sets(rows: &mut Table) {
    let whole = "Argument";
    fn set() -> data::Dataset {
        data::spirals(1, 10, 2).unwrap()
    }
    for size in [0, 11, usize::MAX] {
        rows.add("Batches::new", whole, "size: got", move |_| Batches::new(set(), size, 1).map(drop));
    }
    rows.add("in_order", whole, "size: got 0", |_| set().in_order(0).map(drop));
    rows.add("take", whole, "row: 10", |_| set().take(&[10]).map(drop));
    rows.add("select of none", whole, "x: has shape", |_| set().select(&[]).map(drop));
    rows.add("Loader::new", whole, "ahead: got", |_| {
        Loader::new(Batches::new(set(), 2, 1)?, 0, usize::MAX).map(drop)
    });
    rows.add("Loader::with", whole, "ahead: got", |_| {
        Loader::with(0, 1 << 40, |_| set().take(&[0])).map(drop)
    });
    for fraction in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
        rows.add("split", whole, "fraction", move |_| data::split(&set(), fraction, 1).map(drop));
    }
    for (samples, kind) in [(0, "Argument"), (HUGE, "Argument"), (usize::MAX, "TooLarge")] {
        let says = if kind == "Argument" { "samples" } else { "does not fit" };
        rows.add(format!("regression {samples}"), kind, says, move |_| {
            data::regression(Regression::Friedman1, 1, samples).map(drop)
        });
        rows.add(format!("burgers {samples}"), kind, says, move |_| data::burgers(1, samples, 64).map(drop));
        rows.add(format!("darcy {samples}"), kind, says, move |_| data::darcy(1, samples, 4).map(drop));
        rows.add(format!("digits {samples}"), kind, says, move |_| data::digits(1, samples).map(drop));
        rows.add(format!("spirals {samples}"), kind, says, move |_| data::spirals(1, samples, 2).map(drop));
    }
    rows.add("spirals", whole, "samples", |_| data::spirals(1, 4, 0).map(drop));
    rows.add("spirals", whole, "classes", |_| data::spirals(1, 70_000, 70_000).map(drop));
    rows.add("additions", whole, "samples", |_| data::additions(1, usize::MAX, Part::Train).map(drop));
    for grid in [0, 1, 3, usize::MAX] {
        rows.add(format!("burgers on {grid}"), whole, "grid", move |_| data::burgers(1, 2, grid).map(drop));
    }
    for grid in [0, 1, 129, usize::MAX] {
        rows.add(format!("darcy on {grid}"), whole, "grid", move |_| data::darcy(1, 2, grid).map(drop));
    }
    for viscosity in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        rows.add("burgers_with", whole, "viscosity", move |_| {
            data::burgers_with(viscosity, 1, 2, 64).map(drop)
        });
    }
    rows.add("Regression::named", whole, r"`a\n\u{1b}`", |_| Regression::named("a\n\u{1b}").map(drop));
    rows.add("text_windows", whole, "window", |_| data::text_windows("t", b"abc", 0).map(drop));
    rows.add("text_windows", whole, "window", |_| data::text_windows("t", b"abc", usize::MAX).map(drop));
    rows.add("token_windows", whole, "class 9", |_| data::token_windows("t", &[9, 9, 9], 3, 1).map(drop));
    for size in [0, 256, usize::MAX] {
        rows.add("Tokenizer::train", whole, "size: got", move |_| Tokenizer::train(b"abab", size).map(drop));
    }
    rows.add("Tokenizer::decode", whole, "token 256", |_| Tokenizer::bytes().decode(&[256]).map(drop));
    rows.add("Scaling::from_parts", whole, "deviation", |_| {
        Scaling::from_parts(vec![0.0], vec![0.0]).map(drop)
    });
    rows.add("Scaling::from_parts", whole, "mean", |_| {
        Scaling::from_parts(vec![f64::NAN], vec![1.0]).map(drop)
    });
    rows.add("parse_csv_regression", whole, "targets", |_| {
        data::parse_csv_regression("t", "1,2", 0).map(drop)
    });
    rows.add("parse_csv_regression", "File", "columns", |_| {
        data::parse_csv_regression("t", "1,2", usize::MAX).map(drop)
    });
    for bad in [f32::NAN, f32::INFINITY] {
        rows.add("Dataset::new", whole, "row 1 has", move |_| {
            data::Dataset::new("d", t(&[2, 1], &[1.0, bad]), t(&[2, 1], &[0.0; 2]), None).map(drop)
        });
    }
    rows.add("Tensor::new", "Length", "got 3", |_| Tensor::new(&[2], vec![0.0f32; 3]).map(drop));
    rows.add("Tensor::new", "TooLarge", "does not fit", |_| {
        Tensor::<f32>::new(&[usize::MAX, 2], vec![]).map(drop)
    });
    rows.add("Shape::new", "TooLarge", "does not fit", |_| Shape::new(&[1 << 33, 1 << 33]).map(drop));
    rows.add("Shape::new", "TooLarge", "does not fit", |_| Shape::new(&[isize::MAX as usize, 1]).map(drop));
    rows.add("Shape::new", "TooLarge", "does not fit", |_| Shape::new(&[0, usize::MAX, 2]).map(drop));
}

fn graphs(rows: &mut Table) {
    fn meta() -> Meta {
        Meta::f32(Shape::new(&[2]).unwrap())
    }
    rows.add("Graph::parse of nothing", "Parse", "line 1", |_| Graph::parse("").map(drop));
    for (text, says) in [
        ("graph 2\n", "1"),
        ("graph 1\n%0: f32[2] = input\nreturn %1\n", "%1"),
        ("graph 1\n%1: f32[2] = input\nreturn %1\n", "line 2"),
        ("graph 1\n%0: f64[2] = input\nreturn %0\n", "`f64`"),
        ("graph 1\n%0: f32[\u{1b}[31m] = input\n", r"\u{1b}"),
        ("graph 1\n%0: f32[99999999999999999999] = input\nreturn %0\n", "line 2"),
        ("graph 1\n%0: f32[18446744073709551615, 2] = input\nreturn %0\n", "does not fit"),
        ("graph 1\n%0: f32[2] = input\n%1: f32[3] = exp %0\nreturn %1\n", "line 3"),
        ("graph 1\n%0: f32[2] = input\n%1: f32[2] = wonder %0\nreturn %1\n", "wonder"),
        ("graph 1\n%0: f32[2] = input\n%1: f32[2] = exp %1\nreturn %1\n", "line 3"),
        ("graph 1\n%0: f32[2] = input\nreturn %0\nmore", "line 4"),
    ] {
        rows.add(format!("Graph::parse {text:?}"), "Parse", says, move |_| Graph::parse(text).map(drop));
    }
    let long = "[".repeat(1 << 20);
    rows.add("Graph::parse of brackets", "Parse", "line 2", move |_| {
        Graph::parse(&format!("graph 1\n%0: f32{long}")).map(drop)
    });
    rows.add("call with one input too few", "Arity", "takes 1", |d| {
        let mut f = Graph::trace(d, &[meta()], |_, v| Ok(vec![v[0].exp()?]))?.compile(d)?;
        f.call::<f32>(&[]).map(drop)
    });
    rows.add("call with another shape", "Argument", "input 0 has shape [3]", |d| {
        let mut f = Graph::trace(d, &[meta()], |_, v| Ok(vec![v[0].exp()?]))?.compile(d)?;
        f.call(&[t(&[3], &[0.0; 3]).into()]).map(drop)
    });
    rows.add("set_outputs", "Node", "no node 9", |d| {
        Graph::trace(d, &[meta()], |_, v| Ok(vec![v[0]]))?.set_outputs(&[dittograd::ops::Val(9)])
    });
}

fn kind_of(e: &Error) -> String {
    format!("{:?}", e.kind()).chars().take_while(|c| c.is_alphanumeric()).collect()
}

#[test]
fn bad_arguments_are_named() {
    let mut table = Table::default();
    session(&mut table);
    einsum(&mut table);
    losses(&mut table);
    optimizers(&mut table);
    initializers(&mut table);
    models(&mut table);
    data_sets(&mut table);
    graphs(&mut table);
    let d = device();
    let (mut wrong, count) = (Vec::new(), table.0.len());
    for (name, kind, says, run) in table.0 {
        let before = d.memory().live;
        let answer = catch_unwind(AssertUnwindSafe(|| run(&d)));
        match answer {
            Err(_) => wrong.push(format!("{name}: panicked, {kind} ({says}) was expected")),
            Ok(Ok(())) => wrong.push(format!("{name}: was taken, {kind} ({says}) was expected")),
            Ok(Err(e)) => {
                let text = e.clone().without_location().to_string();
                let line = text.len() < 600 && !text.chars().any(char::is_control);
                if kind_of(&e) != kind || !text.contains(&says) || !line {
                    wrong.push(format!("{name}: {kind} ({says}) was expected, not {}: {text}", kind_of(&e)));
                }
            }
        }
        if d.memory().live != before {
            wrong.push(format!("{name}: left {} bytes behind", d.memory().live - before));
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{count} rows");
}

/// Every method of a value that takes sizes or axes.
type Method = (&'static str, for<'s> fn(Var<'s>, [usize; 3]) -> Result<()>);

const METHODS: &[Method] = &[
    ("narrow", |v, [a, b, c]| v.narrow(a, b, c).map(drop)),
    ("slice", |v, [a, b, c]| v.slice(a, b, c, 1).map(drop)),
    ("slice step", |v, [a, b, c]| v.slice(0, a, b, c).map(drop)),
    ("slice_ranges", |v, [a, b, c]| v.slice_ranges(&[a..b, 0..c]).map(drop)),
    ("select", |v, [a, b, _]| v.select(a, b).map(drop)),
    ("split", |v, [a, b, c]| v.split(a, &[b, c]).map(drop)),
    ("chunks", |v, [a, b, _]| v.chunks(a, b).map(drop)),
    ("chunk", |v, [a, b, _]| v.chunk(a, b).map(drop)),
    ("squeeze", |v, [a, ..]| v.squeeze(a).map(drop)),
    ("unsqueeze", |v, [a, ..]| v.unsqueeze(a).map(drop)),
    ("flatten_from", |v, [a, ..]| v.flatten_from(a).map(drop)),
    ("swap_axes", |v, [a, b, _]| v.swap_axes(a, b).map(drop)),
    ("movedim", |v, [a, b, _]| v.movedim(a, b).map(drop)),
    ("swap_adjacent", |v, [a, ..]| v.swap_adjacent_at_depth(a).map(drop)),
    ("reshape", |v, [a, b, c]| v.reshape(&[a, b, c]).map(drop)),
    ("permute", |v, [a, b, c]| v.permute(&[a, b, c]).map(drop)),
    ("broadcast_to", |v, [a, b, c]| v.broadcast_to(Shape::new(&[a, b, c])?).map(drop)),
    ("pad", |v, [a, b, c]| v.pad(a, b, c).map(drop)),
    ("pad_axes", |v, [a, b, c]| v.pad_axes(&[(a, b), (c, a)], 0.0).map(drop)),
    ("repeat", |v, [a, b, c]| v.repeat(&[a, b, c]).map(drop)),
    ("repeat_interleave", |v, [a, b, _]| v.repeat_interleave(a, b).map(drop)),
    ("flip", |v, [a, b, _]| v.flip(&[a, b]).map(drop)),
    ("roll", |v, [a, b, _]| v.roll(a, b as i64).map(drop)),
    ("roll_axes", |v, [a, b, c]| v.roll_axes(&[a, b], &[c as i64, a as i64]).map(drop)),
    ("movedim_axes", |v, [a, b, c]| v.movedim_axes(&[a, b], &[b, c]).map(drop)),
    ("view", |v, [a, b, c]| v.view(&[a as i64, b as i64, -(c as i64)]).map(drop)),
    ("unfold", |v, [a, b, c]| v.unfold(a, b, c).map(drop)),
    ("combinations", |v, [a, b, _]| v.flatten()?.narrow(0, 0, a % 3)?.combinations(b, a > 1).map(drop)),
    ("select_scatter", |v, [a, b, _]| v.select_scatter(v.select(a, b)?, a, b).map(drop)),
    ("slice_scatter", |v, [a, b, c]| v.slice_scatter(v, a, b, c, a).map(drop)),
    ("diagonal_scatter", |v, [a, b, c]| {
        v.diagonal_scatter(v.diagonal(a as i64, b, c)?, a as i64, b, c).map(drop)
    }),
    ("fractional_max_pool", |v, [a, b, c]| v.fractional_max_pool(&[a, b], &[b, c], None).map(drop)),
    ("multinomial", |v, [a, ..]| v.multinomial(a, false).map(drop)),
    ("diagonal", |v, [a, b, c]| v.diagonal(a as i64, b, c).map(drop)),
    ("tril", |v, [a, ..]| v.tril(a as i64).map(drop)),
    ("broadcast rows", |v, [a, ..]| v.broadcast_vec_to_rows(a).map(drop)),
    ("broadcast cols", |v, [a, ..]| v.broadcast_vec_to_cols(a).map(drop)),
    ("sum_dim", |v, [a, b, _]| v.sum_dim(&[a, b], true).map(drop)),
    ("sum_to_size", |v, [a, b, c]| v.sum_to_size(&[a, b, c]).map(drop)),
    ("std_corrected", |v, [a, b, c]| v.std_corrected(&[a, b], c as f64, true).map(drop)),
    ("gradient_with", |v, [a, b, _]| v.gradient_with(Spacing::Step(1.0), a, b).map(drop)),
    ("gradient_with", |v, [a, b, _]| v.gradient_with(Spacing::Places(v), a, b).map(drop)),
    ("cov_weighted", |v, [a, ..]| v.cov_weighted(a, Some(v), Some(v)).map(drop)),
    ("quantile_by", |v, [a, ..]| v.quantile_by(v, a, false, QuantileRule::Linear).map(drop)),
    ("unique_axis", |v, [a, ..]| v.unique_axis(a).map(drop)),
    ("unique_consecutive_axis", |v, [a, ..]| v.unique_consecutive_axis(a).map(drop)),
    ("bin_edges", |v, [a, b, c]| v.bin_edges(a, Some((b as f64, c as f64))).map(drop)),
    ("histogramdd", |v, [a, ..]| v.histogramdd(&[v.bin_edges(a, None)?; 3], Some(v), true).map(drop)),
    ("segment_reduce", |v, [a, b, _]| {
        let segments = v.argmax(&[b], false)?;
        v.segment_reduce(Reduce::Mean, Segments::Offsets(segments), a, None).map(drop)
    }),
    ("mean_dim", |v, [a, b, _]| v.mean_dim(&[a, b], false).map(drop)),
    ("amax", |v, [a, b, _]| v.amax(&[a, b], false).map(drop)),
    ("argmax", |v, [a, b, _]| v.argmax(&[a, b], false).map(drop)),
    ("var", |v, [a, b, c]| v.var(&[a, b], c, false).map(drop)),
    ("logsumexp", |v, [a, b, _]| v.logsumexp(&[a, b], true).map(drop)),
    ("normalize", |v, [a, ..]| v.normalize(2.0, a, 1e-5).map(drop)),
    ("softmax_axis", |v, [a, ..]| v.softmax_axis(a).map(drop)),
    ("log_softmax_axis", |v, [a, ..]| v.log_softmax_axis(a).map(drop)),
    ("cumsum", |v, [a, ..]| v.cumsum(a).map(drop)),
    ("cumprod", |v, [a, ..]| v.cumprod(a).map(drop)),
    ("gather_scalar", |v, [a, ..]| v.gather_scalar(a).map(drop)),
    ("gather_row", |v, [a, ..]| v.gather_row(a).map(drop)),
    ("index_select", |v, [a, b, _]| {
        let at = v.session().indices(&Tensor::new(&[1], vec![b as u32])?)?;
        v.index_select(a, at).map(drop)
    }),
    ("scatter_add_vec", |v, [a, ..]| v.scatter_add_vec(a, v.session().ones(&[])?).map(drop)),
    ("tensordot", |v, [a, ..]| v.tensordot(v, a).map(drop)),
    ("layer_norm", |v, [a, ..]| v.layer_norm(a, None, None, 1e-5).map(drop)),
    ("group_norm", |v, [a, ..]| v.group_norm(a, None, None, 1e-5).map(drop)),
    ("max_pool2d_pad", |v, [a, b, c]| v.max_pool2d_pad([a, b], c, b).map(drop)),
    ("avg_pool2d_pad", |v, [a, b, c]| v.avg_pool2d_pad([a, a], b, c).map(drop)),
    ("adaptive_avg_pool", |v, [a, b, _]| v.adaptive_avg_pool(&[a, b]).map(drop)),
    ("adaptive_max_pool", |v, [a, b, _]| v.adaptive_max_pool_with_indices(&[a, b]).map(drop)),
    ("max_pool_with_indices", |v, [a, b, c]| {
        let window = PoolWindow { dilation: vec![c, c], ..PoolWindow::new(&[a, a], &[b, b], &[0, c]) };
        v.max_pool_with_indices(window, true).map(drop)
    }),
    ("avg_pool_with", |v, [a, b, c]| {
        let options = AvgPoolOptions { ceil_mode: true, divisor_override: Some(c), ..Default::default() };
        v.avg_pool_with(PoolWindow::new(&[a, a], &[b, b], &[c, 0]), options).map(drop)
    }),
    ("interpolate", |v, [a, b, c]| {
        let mode = [Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic][c % 3];
        v.interpolate(&[a, b], Interpolate::mode(mode)).map(drop)
    }),
    ("interpolate antialias", |v, [a, b, _]| {
        v.interpolate(&[a, b], Interpolate::mode(Interpolation::Cubic).antialias()).map(drop)
    }),
    ("interpolate_by", |v, [a, b, _]| {
        v.interpolate_by(&[a as f64, 1.0 / b as f64], Interpolate::mode(Interpolation::Linear)).map(drop)
    }),
    ("affine_grid", |v, [a, b, c]| v.session().ones(&[1, 2, 3])?.affine_grid(&[1, a, b, c], false).map(drop)),
    ("pad_mode", |v, [a, b, c]| {
        let mode = [PadMode::Constant(1.0), PadMode::Reflect, PadMode::Replicate, PadMode::Circular][c % 4];
        v.pad_mode(&[a as i64, -(b as i128) as i64], mode).map(drop)
    }),
    ("im2col", |v, [a, b, c]| {
        v.im2col(&[a, b], ConvWindow::plain(2)?.stride(c).padding(a).dilation(b)).map(drop)
    }),
    ("col2im", |v, [a, b, c]| v.col2im(&[a, b], &[c, 1], ConvWindow::plain(2)?).map(drop)),
    ("pixel_shuffle", |v, [a, ..]| v.pixel_shuffle(a).map(drop)),
    ("pixel_unshuffle", |v, [a, ..]| v.pixel_unshuffle(a).map(drop)),
    ("channel_shuffle", |v, [a, ..]| v.channel_shuffle(a).map(drop)),
    ("local_response_norm", |v, [a, ..]| v.local_response_norm(a, 1e-4, 0.75, 1.0).map(drop)),
    ("max_unpool", |v, [a, b, _]| v.max_unpool(v.argmax(&[0usize; 0], false)?, &[a, b]).map(drop)),
    ("conv_padded", |v, [a, b, c]| {
        let kernel = v.session().ones(&[1, 3, 2, 2])?;
        v.conv_padded(kernel, None, ConvWindow::plain(2)?.padding(c), &[(a, b), (b, a)]).map(drop)
    }),
    ("global_max_pool", |v, [a, ..]| v.global_max_pool(a).map(drop)),
    ("irfft", |v, [a, ..]| v.irfft(a).map(drop)),
    ("rope", |v, [a, ..]| v.rope(10000.0, a, false).map(drop)),
    ("conv", |v, [a, b, c]| {
        let window = ConvWindow::plain(2)?.stride(a).padding(b).dilation(c);
        v.conv(v.session().ones(&[1, 3, 2, 2])?, None, window).map(drop)
    }),
    ("conv groups", |v, [a, b, _]| {
        v.conv(v.session().ones(&[1, 3, 2, 2])?, None, ConvWindow::plain(2)?.groups(a).padding(b)).map(drop)
    }),
    ("conv_transpose", |v, [a, b, c]| {
        let window = ConvWindow::plain(2)?.stride(a).padding(b);
        v.conv_transpose(v.session().ones(&[3, 1, 2, 2])?, None, window, &[c, c]).map(drop)
    }),
    ("one_hot", |v, [a, ..]| v.argmax(&[0], false)?.one_hot(a).map(drop)),
];

/// Whatever the sizes, there is an answer, at once, and from a device of little memory.
#[test]
fn extreme_sizes_have_an_answer() {
    let sizes =
        [0, 1, 2, 3, 1 << 31, (1 << 32) - 1, 1 << 40, isize::MAX as usize, usize::MAX - 1, usize::MAX];
    let d = device();
    let (mut taken, mut refused, mut kinds) = (0, 0, BTreeSet::new());
    // The first of each method.
    let mut wrong = BTreeMap::new();
    for dims in [&[][..], &[3], &[2, 3], &[0, 3], &[2, 3, 4, 4]] {
        let value = Tensor::from_fn(Shape::new(dims).unwrap(), |i| i as f32);
        for (name, method) in METHODS {
            let s = Session::inference(&d);
            d.limit_memory(Some(d.memory().live + (4 << 20)));
            let before = d.memory().live;
            for at in 0..sizes.len().pow(3) {
                let args = [at / 100 % 10, at / 10 % 10, at % 10].map(|i| sizes[i]);
                let v = s.input(&value).unwrap();
                let start = Instant::now();
                let answer = catch_unwind(AssertUnwindSafe(|| method(v, args)));
                let mut fail = |why: String| {
                    wrong.entry(*name).or_insert(format!("{name} of {dims:?} at {args:?}: {why}"));
                };
                match answer {
                    Ok(Ok(())) => taken += 1,
                    Ok(Err(e)) => {
                        refused += 1;
                        if kind_of(&e) == "Internal" {
                            fail(e.to_string());
                        }
                        kinds.insert(kind_of(&e));
                    }
                    Err(_) => fail("panicked".into()),
                }
                let time = start.elapsed().as_secs_f64();
                if time > 5.0 {
                    fail(format!("took {time} s"));
                }
                s.reset();
            }
            assert_eq!(d.memory().live, before, "{name} of {dims:?}");
        }
    }
    println!("{taken} taken, {refused} refused by {kinds:?}");
    assert!(wrong.is_empty(), "{}", wrong.into_values().collect::<Vec<_>>().join("\n"));
    assert!(taken > 1000 && refused > 100_000, "{taken} {refused}");
}
