//! A program as text that has everything needed to run it again: printing what was parsed gives the same text, and
//! its hash is the program's name. One value a line:
//!
//! ```text
//! graph 1
//! %0: f32[2, 3] grad = input "x"
//! %1: f32[3] grad = param "bias"
//! %2: f32[2] = constant [0.5, -1.0]
//! %3: u32[2] = nats [4, 0]
//! %4: u32[2] = random base
//! %5: f32[2, 3] = add %0 %1
//! %6: f32[2, 3] = map %5 %5 shape=[2, 3] { k0 = 0.5; t0 = Mul x0 k0; t1 = Add t0 x1; return t1 }
//! %7: f32[2, 2] = fused %6 %6 %2 of matmul ta=false tb=true epilogue inputs=1 shape=[2, 2] { t0 = Add x0 x1; return t0 }
//! %8: f32[] = fused %7 of sum axes=[0, 1] prologue slot=0 inputs=1 shape=[2, 2] { t0 = Exp x0; return t0 }
//! return %8
//! ```
//!
//! An input may have a name. A `#` starts a comment. `grad` and `nograd` say whether gradients flow through a value where that does not follow from
//! what it is: a leaf has none, an op has one if one of its inputs does. Numbers are decimal and exact (an `f` behind
//! one says that it is the nearest float32); bits are written as `0x…`, eight digits a word.

use super::{Graph, Source, What};
use crate::host::HostDevice;
use crate::nats::Nats;
use dittograd_device::{AnyBuffer, DType, Device, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{self, Error, ErrorKind, Result};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::fused::{Epilogue, Fused, Prologue};
use dittograd_ops::pointwise::expression::{Instr, Pointwise, Reg, Step};
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::{AnyOp, Attr, Attrs, MAX_INS, Recorder, Val};
use std::fmt::{self, Write};
use std::sync::Arc;

/// The first line.
const HEADER: &str = "graph 1";
/// Constants of up to so many elements are printed as numbers, larger ones as their words.
const INLINE: usize = 16;
/// Most steps of an elementwise program: far more than fusion makes.
const STEPS: usize = 1 << 14;

impl Graph {
    /// The program as text, with everything needed to run it again: what [`Graph::parse`] reads. Waits for the device if
    /// there are constants on it.
    pub fn text(&self) -> Result<String> {
        let _strict = environment::enter();
        let mut text = format!("{HEADER}\n");
        self.print(&mut text, true)?;
        Ok(text)
    }

    /// A hash of [`Graph::text`]: 16 hex digits that two machines can compare.
    pub fn hash(&self) -> Result<String> {
        Ok(blake3::hash(self.text()?.as_bytes()).to_hex()[..16].to_string())
    }

    /// The program that a text of [`Graph::text`] describes. Every shape is checked as when a program is recorded;
    /// errors say where the text is wrong. Parameters are known by name until [`Graph::bind`] gives them values;
    /// constants are in host memory until the program is run somewhere.
    ///
    /// ```
    /// use dittograd::graph::Graph;
    /// # fn main() -> Result<(), dittograd::error::Error> {
    /// let text = "graph 1
    /// %0: f32[2, 3] = input
    /// %1: f32[2] = sum %0 axes=[1]
    /// return %1
    /// ";
    /// let graph = Graph::parse(text)?;
    /// assert_eq!(graph.text()?, text);
    /// let e = Graph::parse(&text.replace("f32[2] ", "f32[3] ")).unwrap_err();
    /// assert_eq!(e.to_string(), "graph: line 3, column 1: sum gives f32[2] here, the text says f32[3]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse(text: &str) -> Result<Graph> {
        let _strict = environment::enter();
        Parser { text, at: 0, host: None }.graph()
    }

    /// Writes one value a line, and what is returned; constants by their contents only if `full`.
    fn print(&self, out: &mut String, full: bool) -> Result<()> {
        let names = self.value_names();
        // Writing to a string cannot fail.
        for (i, node) in self.nodes.iter().enumerate() {
            let _ = write!(out, "%{i}: {}", Kind(node.meta));
            if node.requires_grad != self.expected_grad(&node.what) {
                out.push_str(if node.requires_grad { " grad" } else { " nograd" });
            }
            out.push_str(" = ");
            match &node.what {
                What::Leaf(Source::Input(_)) => {
                    out.push_str("input");
                    if let Some(name) = names[i] {
                        quote(out, name);
                    }
                }
                What::Leaf(Source::Param(p)) => {
                    out.push_str("param");
                    quote(out, p.name());
                }
                What::Leaf(Source::Named(name, _)) => {
                    out.push_str("param");
                    quote(out, name);
                }
                What::Leaf(Source::Constant(_)) if !full => out.push_str("constant …"),
                What::Leaf(Source::State(_)) if !full => out.push_str("state …"),
                What::Leaf(Source::Constant(c)) => {
                    out.push_str("constant ");
                    words(out, c)?;
                }
                What::Leaf(Source::State(c)) => {
                    out.push_str("state ");
                    words(out, c)?;
                }
                What::Leaf(Source::Nats(nats)) => {
                    let _ = write!(out, "nats {:?}", nats.values());
                }
                What::Leaf(Source::RandomBase) => out.push_str("random base"),
                What::Op(op, ins) => print_op(out, op, ins),
            }
            out.push('\n');
        }
        if !self.outputs.is_empty() {
            out.push_str("return");
            self.outputs.iter().for_each(|v| out.push_str(&format!(" %{}", v.0)));
            out.push('\n');
        }
        Ok(())
    }

    /// Whether gradients flow through a value by what it is.
    pub(super) fn expected_grad(&self, what: &What) -> bool {
        match what {
            What::Leaf(_) => false,
            What::Op(op, ins) => op.differentiable() && ins.iter().any(|v| self.node(*v).requires_grad),
        }
    }
}

/// Programs are equal if their texts are: the same ops, names, constants to the bit, and results.
impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.size() == other.size() && matches!((self.text(), other.text()), (Ok(a), Ok(b)) if a == b)
    }
}

/// For looking at: as [`Graph::text`], but without the contents of constants.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        match self.print(&mut text, false) {
            Ok(()) => f.write_str(&text),
            Err(e) => write!(f, "<{e}>"),
        }
    }
}

/// A type and shape.
pub(super) struct Kind(pub(super) Meta);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0.dtype.name(), self.0.shape)
    }
}

/// A name after a blank.
fn quote(out: &mut String, name: &str) {
    out.push_str(" \"");
    for c in name.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A constant's elements: numbers if there are few, else all words.
fn words(out: &mut String, constant: &AnyBuffer) -> Result<()> {
    let words: Vec<u32> = match constant.meta().dtype {
        DType::F32 => exact(constant)?.into_iter().map(f32::to_bits).collect(),
        DType::U32 => constant.to_indices()?.into_data(),
    };
    if words.len() > INLINE {
        out.push_str("0x");
        words.iter().for_each(|w| out.push_str(&format!("{w:08x}")));
        return Ok(());
    }
    let one = |w: &u32| match constant.meta().dtype {
        DType::F32 => float(f32::from_bits(*w)),
        DType::U32 => w.to_string(),
    };
    let _ = write!(out, "[{}]", words.iter().map(one).collect::<Vec<_>>().join(", "));
    Ok(())
}

/// The numbers of a constant, which must be float32.
fn exact(constant: &AnyBuffer) -> Result<Vec<f32>> {
    let words = constant.buffer().download()?;
    let same = |(a, b): (&f32, &f64)| f64::from(*a).to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    if !words.iter().zip(constant.to_tensor::<f64>()?.data()).all(same) {
        let device = constant.buffer().device();
        let what = format!("a constant on {device} has numbers that are not float32, which the text holds");
        return Err(Error::unsupported("graph", what));
    }
    Ok(words)
}

/// The shortest decimals that read back as the same float32; a NaN by its bits.
fn float(x: f32) -> String {
    if x.is_nan() { format!("{:#010x}", x.to_bits()) } else { format!("{x:?}") }
}

/// A number that reads back as the same f64.
fn number(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e15 {
        return format!("{x}");
    }
    let (wide, narrow) = (format!("{x:?}"), format!("{:?}f", x as f32));
    if x.is_finite() && f64::from(x as f32) == x && narrow.len() < wide.len() { narrow } else { wide }
}

fn print_op(out: &mut String, op: &AnyOp, ins: &[Val]) {
    out.push_str(op.name());
    ins.iter().for_each(|v| out.push_str(&format!(" %{}", v.0)));
    print_rest(out, op);
}

/// What of an op comes behind its name and inputs.
fn print_rest(out: &mut String, op: &AnyOp) {
    match op {
        AnyOp::Map(map) => {
            let _ = write!(out, " shape={}", map.shape);
            print_program(out, &map.program);
        }
        AnyOp::Fused(fused) => {
            let _ = write!(out, " of {}", fused.op.name());
            print_attrs(out, &fused.op);
            if let Some(p) = &fused.prologue {
                let inputs = p.program.inputs();
                let _ = write!(out, " prologue slot={} inputs={inputs} shape={}", p.slot, p.shape);
                print_program(out, &p.program);
            }
            if let Some(e) = &fused.epilogue {
                let _ = write!(out, " epilogue inputs={} shape={}", e.others(), e.shape);
                print_program(out, &e.program);
            }
        }
        op => print_attrs(out, op),
    }
}

fn print_attrs(out: &mut String, op: &AnyOp) {
    for (name, value) in op.attrs() {
        let _ = match value {
            Attr::Num(x) => write!(out, " {name}={}", number(x)),
            Attr::Whole(x) => write!(out, " {name}={x}"),
            Attr::Bool(x) => write!(out, " {name}={x}"),
            Attr::List(x) => write!(out, " {name}={x:?}"),
        };
    }
}

fn print_program(out: &mut String, program: &Pointwise) {
    let reg = |r: &Reg| match r {
        Reg::In(i) => format!("x{i}"),
        Reg::Const(i) => format!("k{i}"),
        Reg::Step(i) => format!("t{i}"),
    };
    out.push_str(" {");
    for (i, k) in program.consts().iter().enumerate() {
        let _ = write!(out, " k{i} = {};", float(*k));
    }
    for (i, step) in program.steps().iter().enumerate() {
        let args: Vec<String> = step.args[..step.instr.arity()].iter().map(reg).collect();
        let _ = write!(out, " t{i} = {} {};", step.instr.name(), args.join(" "));
    }
    let results: Vec<String> = program.results().iter().map(reg).collect();
    let _ = write!(out, " return {} }}", results.join(" "));
}

/// Reads a text from the front. What it allocates is never more than a multiple of the text.
struct Parser<'a> {
    text: &'a str,
    /// Bytes read.
    at: usize,
    /// Where constants live, once there is one.
    host: Option<Device>,
}

impl<'a> Parser<'a> {
    #[cold]
    fn error_at(&self, at: usize, why: impl Into<String>) -> Error {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Error::new("graph", ErrorKind::Parse { line, column, why: why.into() })
    }

    #[cold]
    fn expected(&self, what: &str) -> Error {
        let rest = self.rest().lines().next().unwrap_or("");
        let got: String = rest.chars().take(20).collect();
        match got.as_str() {
            "" => self.error_at(self.at, format!("expected {what}, the line ends here")),
            got => self.error_at(self.at, format!("expected {what}, found `{got}`")),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Passes blanks and comments, but not the end of the line.
    fn blanks(&mut self) {
        let rest = self.rest();
        let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
        self.at += blank;
        if self.rest().starts_with('#') {
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Passes `mark` if it comes next.
    fn eat(&mut self, mark: &str) -> bool {
        self.blanks();
        let there = self.rest().starts_with(mark);
        self.at += if there { mark.len() } else { 0 };
        there
    }

    fn demand(&mut self, mark: &str) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.expected(&format!("`{mark}`"))) }
    }

    /// The letters, digits and signs that come next.
    fn word(&mut self, what: &str) -> Result<&'a str> {
        self.blanks();
        let rest = self.rest();
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.+-".contains(c))).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected(what));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    /// A word that must be something; what comes of it, or an error at its start.
    fn read<T>(&mut self, what: &str, f: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        self.blanks();
        let start = self.at;
        let word = self.word(what)?;
        f(word).ok_or_else(|| {
            self.error_at(start, format!("expected {what}, found `{}`", error::shown_name(word)))
        })
    }

    /// Things between brackets, separated by commas.
    fn list<T>(&mut self, mut one: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.demand("[")?;
        let mut all = Vec::new();
        if self.eat("]") {
            return Ok(all);
        }
        loop {
            all.push(one(self)?);
            if self.eat("]") {
                return Ok(all);
            }
            if !self.eat(",") {
                return Err(self.expected("`,` or `]`"));
            }
        }
    }

    fn sizes(&mut self) -> Result<Vec<usize>> {
        self.list(|p| p.read("a whole number", |w| w.parse().ok()))
    }

    fn shape(&mut self) -> Result<Shape> {
        self.blanks();
        let start = self.at;
        let dims = self.sizes()?;
        if dims.len() > MAX_RANK {
            return Err(
                self.error_at(start, format!("a shape has at most {MAX_RANK} axes, not {}", dims.len()))
            );
        }
        Shape::new(&dims).map_err(|e| self.inside(start, &e))
    }

    /// An error of the library at a place of the text.
    #[cold]
    fn inside(&self, at: usize, e: &Error) -> Error {
        self.error_at(at, e.to_string())
    }

    fn meta(&mut self) -> Result<Meta> {
        let dtype = self.read("a type, `f32` or `u32`", |w| match w {
            "f32" => Some(DType::F32),
            "u32" => Some(DType::U32),
            _ => None,
        })?;
        Ok(Meta { dtype, shape: self.shape()? })
    }

    /// A value that was there before, after its `%`.
    fn val(&mut self, known: usize) -> Result<Val> {
        let start = self.at - 1;
        let n: usize = self.read("the number of a value", |w| w.parse().ok())?;
        if n >= known {
            let why = format!("%{n} is not there yet; a value is computed from those of the lines before");
            return Err(self.error_at(start, why));
        }
        Ok(Val(n as u32))
    }

    /// The end of a line.
    fn end(&mut self) -> Result<()> {
        if self.eat("\n") || self.rest().is_empty() {
            Ok(())
        } else {
            Err(self.expected("the end of the line"))
        }
    }

    fn graph(mut self) -> Result<Graph> {
        let mut graph = Graph::new();
        let header = |p: &mut Self| p.eat("graph") && p.eat("1");
        while self.eat("\n") {}
        if !header(&mut self) || self.end().is_err() {
            let why = format!("expected the first line `{HEADER}`; Graph::text prints it, Display does not");
            return Err(self.error_at(self.at, why));
        }
        let mut returned = false;
        loop {
            if self.eat("\n") {
                continue;
            }
            if self.rest().is_empty() {
                return Ok(graph);
            }
            let start = self.at;
            if returned {
                return Err(self.error_at(start, "nothing can follow what is returned"));
            }
            if self.eat("%") {
                self.node(&mut graph, start)?;
            } else if self.eat("return") {
                returned = true;
                while self.eat("%") {
                    graph.outputs.push(self.val(graph.size())?);
                }
            } else {
                return Err(self.expected("a value, as `%0: f32[2, 3] = input`, or `return %0`"));
            }
            self.end()?;
        }
    }

    fn node(&mut self, graph: &mut Graph, start: usize) -> Result<()> {
        let number: usize = self.read("the number of a value", |w| w.parse().ok())?;
        if number != graph.size() {
            let why = format!("this is value %{}, not %{number}; they are counted from 0", graph.size());
            return Err(self.error_at(start, why));
        }
        if number >= u32::MAX as usize {
            return Err(self.error_at(start, "there are too many values"));
        }
        self.demand(":")?;
        let meta = self.meta()?;
        self.blanks();
        let mark_at = self.at;
        let mark = match (self.eat("grad"), self.eat("nograd")) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        self.demand("=")?;
        self.blanks();
        let op_at = self.at;
        let name = self.word("`input`, `param`, `constant`, `state`, `nats`, `random base` or an op")?;
        let source = match name {
            "input" => {
                self.input_name(graph)?;
                Source::Input(meta)
            }
            "param" => Source::Named(self.string()?, meta.shape),
            "constant" => Source::Constant(self.constant(meta)?),
            "state" => Source::State(self.constant(meta)?),
            "nats" => Source::Nats(Nats::new(&self.list(|p| p.read("a whole number", |w| w.parse().ok()))?)),
            "random" => {
                self.demand("base")?;
                Source::RandomBase
            }
            _ => {
                let (op, ins) = self.op(name, op_at, graph.size())?;
                let v = graph.record(op, &ins).map_err(|e| self.inside(op_at, &e))?;
                let made = graph.meta(v);
                if made != meta {
                    let why = format!("{name} gives {} here, the text says {}", Kind(made), Kind(meta));
                    return Err(self.error_at(start, why));
                }
                return self.mark(graph, mark, mark_at);
            }
        };
        if source.meta() != meta {
            let why = format!("{name} gives {} here, the text says {}", Kind(source.meta()), Kind(meta));
            return Err(self.error_at(start, why));
        }
        if matches!(source, Source::RandomBase) {
            if graph.random_base.is_some() {
                return Err(self.error_at(op_at, "there is one random base only; use that"));
            }
            graph.random_base = Some(Val(graph.size() as u32));
        }
        graph.leaf(source, false);
        self.mark(graph, mark, mark_at)
    }

    /// The name of the next input, if it has one.
    fn input_name(&mut self, graph: &mut Graph) -> Result<()> {
        self.blanks();
        let start = self.at;
        let name = if self.rest().starts_with('"') { Some(self.string()?) } else { None };
        if name.is_some() && graph.input_names.contains(&name) {
            return Err(self.error_at(start, "another input has this name"));
        }
        graph.input_names.push(name);
        Ok(())
    }

    /// Whether gradients flow through the last value, where the text says so.
    fn mark(&self, graph: &mut Graph, mark: Option<bool>, at: usize) -> Result<()> {
        if let (Some(grad), Some(node)) = (mark, graph.nodes.last_mut()) {
            if grad && node.meta.dtype != DType::F32 {
                return Err(self.error_at(at, "indices have no gradient; leave `grad` out"));
            }
            node.requires_grad = grad;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        self.demand("\"")?;
        let mut name = String::new();
        loop {
            let start = self.at;
            let c = self.rest().chars().next().filter(|c| *c != '\n');
            let c = c.ok_or_else(|| self.expected("a `\"` that ends the name"))?;
            self.at += c.len_utf8();
            match c {
                '"' if name.is_empty() => return Err(self.error_at(start, "a name cannot be empty")),
                '"' => return Ok(name),
                '\\' => name.push(self.escape(start)?),
                c => name.push(c),
            }
        }
    }

    fn escape(&mut self, start: usize) -> Result<char> {
        let rest = self.rest();
        if let Some(c) = rest.chars().next().filter(|c| "\"\\".contains(*c)) {
            self.at += 1;
            return Ok(c);
        }
        let code = rest.strip_prefix("u{").and_then(|r| r.split_once('}')).map(|(code, _)| code);
        let c = code.and_then(|code| char::from_u32(u32::from_str_radix(code, 16).ok()?));
        self.at += code.map_or(0, |code| code.len() + 3);
        c.ok_or_else(|| {
            self.error_at(start, "escapes are `\\\"`, `\\\\` and `\\u{…}` with a hexadecimal number")
        })
    }

    fn constant(&mut self, meta: Meta) -> Result<AnyBuffer> {
        self.blanks();
        let start = self.at;
        if self.rest().starts_with('…') {
            let why = "the contents of this constant were left out; Graph::text prints them";
            return Err(self.error_at(start, why));
        }
        let words: Vec<u32> = if self.rest().starts_with("0x") {
            self.read("words of eight hexadecimal digits each", |w| {
                let digits = w.strip_prefix("0x")?.as_bytes();
                let word = |d: &[u8]| {
                    let hex = d.iter().all(u8::is_ascii_hexdigit);
                    u32::from_str_radix(str::from_utf8(d).ok().filter(|_| hex)?, 16).ok()
                };
                let (words, rest) = digits.as_chunks::<8>();
                if rest.is_empty() { words.iter().map(|d| word(d)).collect() } else { None }
            })?
        } else {
            match meta.dtype {
                DType::F32 => self.list(|p| Ok(p.float()?.to_bits()))?,
                DType::U32 => self.list(|p| p.read("a whole number", |w| w.parse().ok()))?,
            }
        };
        if words.len() != meta.shape.numel() {
            let why =
                format!("{} has {} elements, there are {} here", Kind(meta), meta.shape.numel(), words.len());
            return Err(self.error_at(start, why));
        }
        let host = self.host.get_or_insert_with(Device::host::<f32>);
        let made = match meta.dtype {
            DType::F32 => {
                let floats = words.into_iter().map(f32::from_bits).collect();
                Tensor::with_shape(meta.shape, floats).and_then(|t| AnyBuffer::upload(host, &t))
            }
            DType::U32 => {
                Tensor::with_shape(meta.shape, words).and_then(|t| AnyBuffer::upload_indices(host, &t))
            }
        };
        made.map_err(|e| self.inside(start, &e))
    }

    fn float(&mut self) -> Result<f32> {
        self.read("a number", |w| match w.strip_prefix("0x") {
            Some(bits) => u32::from_str_radix(bits, 16).ok().map(f32::from_bits),
            None => w.parse().ok(),
        })
    }

    fn op(&mut self, name: &str, op_at: usize, known: usize) -> Result<(AnyOp, Vec<Val>)> {
        let mut ins = Vec::new();
        while self.eat("%") {
            ins.push(self.val(known)?);
        }
        let op = match name {
            "map" => {
                let shape = self.given_shape()?;
                Map::new(self.program(ins.len())?, shape).into()
            }
            "fused" => self.fused()?.into(),
            _ => self.plain(name, op_at)?,
        };
        Ok((op, ins))
    }

    /// An op with the expressions before and after it.
    fn fused(&mut self) -> Result<Fused> {
        self.demand("of")?;
        self.blanks();
        let at = self.at;
        let name = self.word("an op")?;
        let op = Box::new(self.plain(name, at)?);
        let mut fused = Fused { prologue: None, op, epilogue: None };
        if self.eat("prologue") {
            let slot = self.given("slot", "which input the prologue computes first", MAX_INS)?;
            let inputs = self.given("inputs", "how many inputs are the prologue's", MAX_INS)?;
            let shape = self.given_shape()?;
            fused.prologue = Some(Prologue { program: Arc::new(self.program(inputs)?), slot, shape });
        }
        if self.eat("epilogue") {
            let others = self.given("inputs", "how many inputs are the epilogue's", MAX_INS)?;
            let shape = self.given_shape()?;
            fused.epilogue = Some(Epilogue { program: Arc::new(self.program(1 + others)?), shape });
        }
        Ok(fused)
    }

    /// A whole number of at most `most` under a name.
    fn given(&mut self, name: &str, what: &'static str, most: usize) -> Result<usize> {
        self.demand(name)?;
        self.demand("=")?;
        self.read(what, |w| w.parse().ok().filter(|n: &usize| *n <= most))
    }

    fn given_shape(&mut self) -> Result<Shape> {
        self.demand("shape")?;
        self.demand("=")?;
        self.shape()
    }

    /// An op that its attributes say all of.
    fn plain(&mut self, name: &str, at: usize) -> Result<AnyOp> {
        let mut attrs = Attrs::default();
        loop {
            self.blanks();
            let ends = |end: &&str| self.rest().starts_with(end);
            if self.rest().is_empty() || ["\n", "{", "prologue ", "epilogue "].iter().any(ends) {
                break;
            }
            let start = self.at;
            let attr = self.word("an input or an attribute")?;
            if attrs.has(attr) {
                return Err(self.error_at(start, format!("`{attr}` is given twice")));
            }
            self.demand("=")?;
            self.blanks();
            let value = if self.rest().starts_with('[') {
                Attr::List(self.sizes()?)
            } else {
                self.read("a number, `true`, `false` or a list of whole numbers", attribute)?
            };
            attrs.0.push((attr.to_string(), value));
        }
        AnyOp::from_name(name, &attrs).map_err(|e| self.inside(at, &e))
    }

    /// An elementwise program.
    fn program(&mut self, inputs: usize) -> Result<Pointwise> {
        self.demand("{")?;
        let (mut consts, mut steps): (Vec<f32>, Vec<Step>) = (Vec::new(), Vec::new());
        loop {
            self.blanks();
            let start = self.at;
            let name = self.word("`k0 =`, `t0 =` or `return`")?;
            if name == "return" {
                let mut results = vec![self.reg(inputs, consts.len(), steps.len())?];
                while !self.eat("}") {
                    results.push(self.reg(inputs, consts.len(), steps.len())?);
                }
                return Ok(Pointwise::finish(inputs, consts, steps, results));
            }
            if consts.len().max(steps.len()) >= STEPS {
                return Err(self.error_at(start, "the program is too long"));
            }
            self.demand("=")?;
            if name == format!("k{}", consts.len()) && steps.is_empty() {
                consts.push(self.float()?);
            } else if name == format!("t{}", steps.len()) {
                let by_name = |w: &str| Instr::ALL.iter().copied().find(|i| i.name() == w);
                let instr = self.read("an instruction", by_name)?;
                let first = self.reg(inputs, consts.len(), steps.len())?;
                let mut args = [first; 4];
                for arg in args.iter_mut().take(instr.arity()).skip(1) {
                    *arg = self.reg(inputs, consts.len(), steps.len())?;
                }
                steps.push(Step { instr, args });
            } else {
                let why =
                    format!("constants are k0, k1, …, and then steps t0, t1, …; `{name}` is out of order");
                return Err(self.error_at(start, why));
            }
            self.demand(";")?;
        }
    }

    fn reg(&mut self, inputs: usize, consts: usize, steps: usize) -> Result<Reg> {
        self.read("an input x0, …, a constant k0, … or an earlier step t0, …", |w| {
            let (kind, number) = w.split_at_checked(1)?;
            let n: u16 = number.parse().ok()?;
            let (reg, known) = match kind {
                "x" => (Reg::In(n), inputs),
                "k" => (Reg::Const(n), consts),
                "t" => (Reg::Step(n), steps),
                _ => return None,
            };
            ((n as usize) < known).then_some(reg)
        })
    }
}

/// A number or truth value.
fn attribute(word: &str) -> Option<Attr> {
    match word {
        "true" => return Some(Attr::Bool(true)),
        "false" => return Some(Attr::Bool(false)),
        _ => {}
    }
    if let Ok(whole) = word.parse::<u64>() {
        return Some(Attr::Whole(whole));
    }
    if let Ok(x) = word.parse::<f64>() {
        return Some(Attr::Num(x));
    }
    word.strip_suffix('f').and_then(|w| w.parse::<f32>().ok()).map(|x| Attr::Num(x.into()))
}
