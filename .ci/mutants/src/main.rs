//! Plants bugs of the usual kinds (the ones that `cargo-mutants` makes) into a copy of the library's crates, all at once: each
//! is behind `mutant::on(N)` of the numerics crate, which all others build on, so that one build serves them all and the
//! environment variable `MUTANT=N` chooses one.
//!
//! `mutants FROM TO [DROPPED]` reads the sources under `FROM`, writes the rewritten ones to the same paths under `TO`,
//! and the list to `TO/mutants.json`. `DROPPED` is a file of numbers that do not compile. Numbers depend on the sources only.

use proc_macro2::Span;
use quote::{ToTokens, quote};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, ReturnType, Stmt, Type, UnOp, parse_quote};

/// The sources of the crate that has the switch.
const NUMERICS: &str = "crates/numerics/src";

/// What is rewritten: area, and a file or a folder with all below it.
const AREAS: &[(&str, &str)] = &[
    ("shape", "crates/numerics/src/shape.rs"),
    ("tape", "crates/engine/src/tape.rs"),
    ("tape", "crates/engine/src/gradients.rs"),
    ("tape", "crates/engine/src/session/derivatives.rs"),
    ("ops", "crates/ops/src"),
    ("planner", "crates/engine/src/graph/plan.rs"),
    ("planner", "crates/engine/src/graph/compile.rs"),
    ("planner", "crates/engine/src/graph/in_place.rs"),
    ("planner", "crates/engine/src/graph/run.rs"),
    ("planner", "crates/engine/src/graph/passes"),
    ("io", "src/io"),
    ("optim", "crates/engine/src/optim"),
];

/// Files of kernels and of what the checks draw.
const NO_FILES: &[&str] = &[
    "crates/ops/src/conv/plan.rs",
    "crates/ops/src/conv/depthwise.rs",
    "crates/ops/src/matmul/plan.rs",
    "crates/ops/src/softmax/rows/cuda.rs",
    "crates/ops/src/cases.rs",
    "crates/ops/src/index/sort.rs",
];

/// Functions that are kernels, data or bounds of the checks, definitions to compare with, or wording.
const NO_FUNCTIONS: &[&str] =
    &["samples", "rejects", "bound", "reference", "random", "differentiable", "linear", "fmt"];

/// Functions with these in their signature are kernels, their plans, or data of the checks.
const NO_TYPES: &[&str] = &[
    "CpuRun", "CudaRun", "Cuda", "Gpu", "Source", "Simd", "Pool", "Args", "Stream", "Sample", "SampleIn",
    "Reject", "Bound", "Kernel", "Lanes", "Variant",
];

/// The switch, written into the copy.
const SWITCH: &str = r#"//! Which mutant is on.
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

const UNREAD: u32 = u32::MAX;
const TRACE: u32 = u32::MAX - 1;
static STATE: AtomicU32 = AtomicU32::new(UNREAD);
static SEEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static FILE: OnceLock<Option<std::fs::File>> = OnceLock::new();

/// Whether mutant `n` is chosen.
#[inline(always)]
pub fn on(n: u32) -> bool {
    let state = STATE.load(Relaxed);
    if state < TRACE { state == n } else { slow(n) }
}

#[cold]
fn slow(n: u32) -> bool {
    let file = FILE.get_or_init(|| {
        std::env::var_os("MUTANT_TRACE")
            .and_then(|path| std::fs::OpenOptions::new().create(true).append(true).open(path).ok())
    });
    let Some(mut file) = file.as_ref() else {
        let chosen = std::env::var("MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        STATE.store(chosen, Relaxed);
        return chosen == n;
    };
    STATE.store(TRACE, Relaxed);
    let bit = 1 << (n % 64);
    if SEEN[n as usize / 64].fetch_or(bit, Relaxed) & bit == 0 {
        let _ = file.write_all(&n.to_le_bytes());
    }
    false
}
"#;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, dropped @ ..] = args.as_slice() else {
        eprintln!("usage: mutants FROM TO [DROPPED]");
        std::process::exit(2);
    };
    let dropped = dropped.first().map(|path| read(Path::new(path))).unwrap_or_default();
    let dropped: BTreeSet<u32> = dropped.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let mut rewriter = Rewriter { dropped, ..Rewriter::default() };
    for (area, path) in AREAS {
        for file in rust_files(Path::new(from), Path::new(path)) {
            rewriter.area = area;
            rewriter.file = file.to_string_lossy().into_owned();
            let mut tree = match syn::parse_file(&read(&Path::new(from).join(&file))) {
                Ok(tree) => tree,
                Err(why) => panic!("{}: {why}", file.display()),
            };
            rewriter.visit_file_mut(&mut tree);
            write(&Path::new(to).join(&file), &prettyplease::unparse(&tree));
        }
    }
    let (from, to) = (Path::new(from).join(NUMERICS), Path::new(to));
    write(&to.join(NUMERICS).join("mutant.rs"), SWITCH);
    write(&to.join(NUMERICS).join("lib.rs"), &format!("{}\npub mod mutant;\n", read(&from.join("lib.rs"))));
    let list: Vec<String> = rewriter.list.iter().map(|m| m.to_string()).collect();
    write(&to.join("mutants.json"), &format!("[\n{}\n]\n", list.join(",\n")));
    println!("{} mutants, {} of them do not compile", rewriter.last, rewriter.dropped.len());
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Writes only what is new, so that a build does not repeat what did not change.
fn write(path: &Path, text: &str) {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder
        .and_then(|()| std::fs::write(path, text))
        .unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}

/// The file, or those below the folder, in order.
fn rust_files(root: &Path, path: &Path) -> Vec<PathBuf> {
    if root.join(path).is_file() {
        let known =
            path.extension().is_some_and(|e| e == "rs") && !NO_FILES.iter().any(|no| Path::new(no) == path);
        return if known { vec![path.to_path_buf()] } else { Vec::new() };
    }
    let entries =
        std::fs::read_dir(root.join(path)).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let mut below: Vec<PathBuf> = entries.flatten().map(|e| path.join(e.file_name())).collect();
    below.sort();
    below.iter().flat_map(|p| rust_files(root, p)).collect()
}

#[derive(Default)]
struct Rewriter {
    area: &'static str,
    file: String,
    /// Names of the modules, types and functions around.
    inside: Vec<String>,
    /// Whether we are in a function that is to be rewritten.
    rewrites: bool,
    last: u32,
    dropped: BTreeSet<u32>,
    list: Vec<serde_json::Value>,
}

impl Rewriter {
    /// A switch for a new mutant; `None` if it is known not to compile.
    fn switch(&mut self, at: Span, what: String) -> Option<Expr> {
        self.last += 1;
        let n = self.last;
        if self.dropped.contains(&n) {
            return None;
        }
        self.list.push(serde_json::json!({
            "id": n, "area": self.area, "file": self.file, "line": at.start().line,
            "function": self.inside.join("::"), "what": what,
        }));
        Some(if self.file.starts_with(NUMERICS) {
            parse_quote!(crate::mutant::on(#n))
        } else {
            parse_quote!(dittograd_numerics::mutant::on(#n))
        })
    }

    /// `if on(1) { first } else if on(2) { second } else { plain }`. The alternatives hold the expression as it was: only
    /// one mutant is on at a time, and the text stays small.
    fn choose(&mut self, at: Span, alternatives: Vec<(String, Expr)>, plain: Expr) -> Expr {
        let mut arms = Vec::new();
        for (what, other) in alternatives {
            if let Some(on) = self.switch(at, what) {
                arms.push((on, other));
            }
        }
        let chain = arms.into_iter().rev().fold(plain, |rest, (on, other)| match rest {
            Expr::If(_) => parse_quote!(if #on { #other } else #rest),
            _ => parse_quote!(if #on { #other } else { #rest }),
        });
        match chain {
            Expr::If(_) => parse_quote!((#chain)),
            _ => chain,
        }
    }

    /// Mutates a function: what it returns at once, and what is in it.
    fn function(&mut self, sig: &syn::Signature, attrs: &[syn::Attribute], block: &mut syn::Block) {
        let name = sig.ident.to_string();
        let text = format!("{} ", sig.to_token_stream());
        let left_out = |word: &str| NO_TYPES.contains(&word);
        let kernel = text.split(|c: char| !c.is_alphanumeric() && c != '_').any(left_out)
            || text.contains("& mut [f32]")
            // Inputs of a definition.
            || text.contains("AnyTensor < T >");
        if sig.constness.is_some() || is_test(attrs) || kernel || NO_FUNCTIONS.contains(&name.as_str()) {
            return;
        }
        self.inside.push(name);
        let outer = std::mem::replace(&mut self.rewrites, true);
        let mut first = Vec::new();
        if !block.stmts.is_empty() {
            for value in returned(&sig.output) {
                let value = value.map(|v| v.to_token_stream());
                let what =
                    format!("return {}", value.as_ref().map_or("()".into(), |v| plain(&v.to_string())));
                if let Some(on) = self.switch(sig.ident.span(), what) {
                    first.push(parse_quote!(if #on { return #value; }));
                }
            }
        }
        self.visit_block_mut(block);
        block.stmts.splice(0..0, first);
        self.rewrites = outer;
        self.inside.pop();
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.inside.push(name);
        visit(self);
        self.inside.pop();
    }
}

/// Tokens as text, closer to how people write them.
fn plain(tokens: &str) -> String {
    tokens.replace(" :: ", "::").replace(" . ", ".").replace(" (", "(").replace(" ,", ",").replace("& ", "&")
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        let text = a.meta.to_token_stream().to_string();
        text == "test" || (text.starts_with("cfg") && text.contains("test"))
    })
}

/// Values that a function of this type could return at once; `None` for `return;`.
fn returned(output: &ReturnType) -> Vec<Option<Expr>> {
    match output {
        ReturnType::Default => vec![None],
        ReturnType::Type(_, ty) => values(ty).into_iter().map(Some).collect(),
    }
}

fn values(ty: &Type) -> Vec<Expr> {
    let default = || vec![parse_quote!(Default::default())];
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return Vec::new() };
            let inner: Vec<Expr> = match &last.arguments {
                syn::PathArguments::AngleBracketed(list) => match list.args.first() {
                    Some(syn::GenericArgument::Type(ty)) => values(ty),
                    _ => Vec::new(),
                },
                _ => Vec::new(),
            };
            match last.ident.to_string().as_str() {
                "bool" => vec![parse_quote!(true), parse_quote!(false)],
                "usize" | "u8" | "u16" | "u32" | "u64" | "u128" => vec![parse_quote!(0), parse_quote!(1)],
                "isize" | "i8" | "i16" | "i32" | "i64" => {
                    vec![parse_quote!(0), parse_quote!(1), parse_quote!(-1)]
                }
                "f32" | "f64" => vec![parse_quote!(0.0), parse_quote!(1.0), parse_quote!(-1.0)],
                "String" => vec![parse_quote!(String::new()), parse_quote!("xyzzy".into())],
                "Vec" => vec![parse_quote!(Vec::new())],
                "Result" => inner.into_iter().map(|v| parse_quote!(Ok(#v))).collect(),
                "Option" => {
                    let some = inner.into_iter().map(|v| parse_quote!(Some(#v)));
                    std::iter::once(parse_quote!(None)).chain(some).collect()
                }
                "Box" => inner.into_iter().map(|v| parse_quote!(Box::new(#v))).collect(),
                _ => default(),
            }
        }
        Type::Reference(r) if r.mutability.is_none() => match &*r.elem {
            Type::Slice(_) => vec![parse_quote!(&[])],
            Type::Path(p) if p.path.is_ident("str") => vec![parse_quote!(""), parse_quote!("xyzzy")],
            _ => Vec::new(),
        },
        Type::Tuple(t) if t.elems.is_empty() => vec![parse_quote!(())],
        Type::Tuple(_) | Type::Array(_) => default(),
        _ => Vec::new(),
    }
}

/// What stands in for an operator.
fn swapped(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">", "<"],
        BinOp::Ge(_) => &["<", ">"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::RemAssign(_) => &["/=", "+="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&=", "^="],
        BinOp::BitXorAssign(_) => &["|="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

/// Whether an `if let` hides in a chain of `&&`, which cannot be taken apart.
fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// A statement that is a call, which could be forgotten: where, and its text.
fn call(stmt: &Stmt) -> Option<(Span, String)> {
    let Stmt::Expr(e, Some(_)) = stmt else { return None };
    let inner = if let Expr::Try(t) = e { &*t.expr } else { e };
    matches!(inner, Expr::Call(_) | Expr::MethodCall(_)).then(|| (e.span(), short(e)))
}

impl VisitMut for Rewriter {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if !self.rewrites {
            return;
        }
        let was = e.clone();
        visit_mut::visit_expr_mut(self, e);
        match &was {
            Expr::Binary(b) if !has_let(&was) => {
                let alternatives = swapped(&b.op).iter().filter_map(|op| {
                    let other = Expr::Binary(syn::ExprBinary { op: syn::parse_str(op).ok()?, ..b.clone() });
                    Some((format!("{} -> {op} in {}", b.op.to_token_stream(), short(&was)), other))
                });
                *e = self.choose(b.op.span(), alternatives.collect(), e.clone());
            }
            Expr::Unary(u) if matches!(u.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                let what = format!("delete {} in {}", u.op.to_token_stream(), short(&was));
                *e = self.choose(u.op.span(), vec![(what, (*u.expr).clone())], e.clone());
            }
            _ => {}
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut syn::Arm) {
        let was = arm.guard.as_ref().map(|(_, g)| (g.span(), short(g)));
        visit_mut::visit_arm_mut(self, arm);
        let guard = arm.guard.as_mut().filter(|(_, g)| self.rewrites && !has_let(g));
        let (Some((_, guard)), Some((at, text))) = (guard, was) else { return };
        if let Some(on) = self.switch(at, format!("guard true, was {text}")) {
            **guard = parse_quote!(#on || (#guard));
        }
        if let Some(on) = self.switch(at, format!("guard false, was {text}")) {
            **guard = parse_quote!(!#on && (#guard));
        }
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        let calls: Vec<Option<(Span, String)>> = block.stmts.iter().map(call).collect();
        visit_mut::visit_block_mut(self, block);
        for (stmt, call) in block.stmts.iter_mut().zip(calls) {
            if let Some((at, text)) = call.filter(|_| self.rewrites)
                && let Some(on) = self.switch(at, format!("delete {text}"))
            {
                let inner = stmt.clone();
                *stmt = parse_quote!(if !#on { #inner });
            }
        }
    }

    fn visit_item_mut(&mut self, item: &mut syn::Item) {
        match item {
            syn::Item::Fn(f) => {
                let (sig, attrs) = (f.sig.clone(), f.attrs.clone());
                self.function(&sig, &attrs, &mut f.block);
            }
            syn::Item::Impl(i) => {
                let name = plain(&i.self_ty.to_token_stream().to_string()).replace(' ', "");
                self.within(name, |r| visit_mut::visit_item_impl_mut(r, i));
            }
            syn::Item::Trait(t) => {
                self.within(t.ident.to_string(), |r| visit_mut::visit_item_trait_mut(r, t))
            }
            syn::Item::Mod(m) if !is_test(&m.attrs) => visit_mut::visit_item_mod_mut(self, m),
            _ => {}
        }
    }

    fn visit_impl_item_mut(&mut self, item: &mut syn::ImplItem) {
        if let syn::ImplItem::Fn(f) = item {
            self.function(&f.sig.clone(), &f.attrs.clone(), &mut f.block);
        }
    }

    fn visit_trait_item_mut(&mut self, item: &mut syn::TraitItem) {
        if let syn::TraitItem::Fn(f) = item
            && let Some(block) = &mut f.default
        {
            self.function(&f.sig.clone(), &f.attrs.clone(), block);
        }
    }

    // Only constants can be here.
    fn visit_expr_repeat_mut(&mut self, e: &mut syn::ExprRepeat) {
        self.visit_expr_mut(&mut e.expr);
    }
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_path_mut(&mut self, _: &mut syn::Path) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut syn::AngleBracketedGenericArguments) {}
    fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}
    fn visit_attribute_mut(&mut self, _: &mut syn::Attribute) {}
}

/// The beginning of an expression, on one line.
fn short(e: &Expr) -> String {
    let text = plain(&quote!(#e).to_string());
    match text.char_indices().nth(90) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
