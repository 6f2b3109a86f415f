//! Optimizers. A rule is one formula over [`Real`]: the CPU loop and the CUDA kernel are both read off it.
//! All parameters are updated in place, on the device, in one launch per 32 of them; learning rate and
//! bias corrections are formed in f64, rounded once (C8), and reach the kernel through a small buffer, so
//! that a captured program sees new ones every step.

use crate::device::cpu::simd::simd_fn;
use crate::device::cuda::{Args, Cuda};
use crate::device::{AnyBuffer, Backend, Buffer, Cpu, Device};
use crate::error::{Error, ErrorKind, Result};
use crate::ops::map::prelude;
use crate::ops::program::Program;
use crate::params::{Param, Params};
use crate::scalar::Real;
use crate::session::Grads;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Scalars a rule reads: learning rate, then what its formula says.
const HYPERS: usize = 9;

/// How a parameter follows its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `p - lr g`.
    Sgd,
    /// `b' = mu b + g`, `p - lr b'`.
    Momentum {
        /// The factor `mu` of the buffer.
        mu: f64,
    },
    /// Adam with bias correction; `decoupled` decays the weights apart from the gradient (AdamW).
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
        /// Whether weight decay is applied to the weights (AdamW) or added to the gradient (Adam).
        decoupled: bool,
    },
}

impl Rule {
    /// Buffers of state a parameter has.
    fn states(self) -> usize {
        match self {
            Rule::Sgd => 0,
            Rule::Momentum { .. } => 1,
            Rule::Adam { .. } => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Rule::Sgd => "sgd",
            Rule::Momentum { .. } => "momentum",
            Rule::Adam { decoupled: false, .. } => "adam",
            Rule::Adam { decoupled: true, .. } => "adamw",
        }
    }

    /// The scalars of step `t` (from 1): `[lr, wd, …]`, formed in f64 and rounded once.
    fn hypers(self, lr: f64, wd: f64, t: u64) -> [f32; HYPERS] {
        let all = match self {
            Rule::Sgd => [lr, wd, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            Rule::Momentum { mu } => [lr, wd, mu, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            Rule::Adam { beta1, beta2, eps, decoupled } => {
                let t = t as f64;
                let (c1, c2) = (1.0 / (1.0 - libm::pow(beta1, t)), 1.0 / (1.0 - libm::pow(beta2, t)));
                let wd = if decoupled { lr * wd } else { wd };
                [lr, wd, beta1, 1.0 - beta1, beta2, 1.0 - beta2, c1, c2, eps]
            }
        };
        all.map(|x| x as f32)
    }

    /// The formula: new parameter and new states from the old ones, the gradient and the scalars.
    #[inline(always)]
    fn formula<R: Real>(self, p: R, g: R, [a, b]: [R; 2], h: [R; HYPERS]) -> (R, [R; 2]) {
        let [lr, wd, ..] = h;
        match self {
            Rule::Sgd => {
                let g = wd.fma(p, g);
                ((-lr).fma(g, p), [a, b])
            }
            Rule::Momentum { .. } => {
                let g = wd.fma(p, g);
                let buf = h[2].fma(a, g);
                ((-lr).fma(buf, p), [buf, b])
            }
            Rule::Adam { decoupled, .. } => {
                let [_, _, b1, one_b1, b2, one_b2, c1, c2, eps] = h;
                let (p, g) = if decoupled { ((-wd).fma(p, p), g) } else { (p, wd.fma(p, g)) };
                let m = b1 * a + one_b1 * g;
                let v = b2 * b + one_b2 * (g * g);
                let step = (m * c1) / ((v * c2).sqrt() + eps);
                ((-lr).fma(step, p), [m, v])
            }
        }
    }
}

simd_fn! {
    /// One update of neighbouring elements.
    fn update_block(simd, rule: Rule, h: [f32; HYPERS], p: &mut [f32], g: &[f32], a: &mut [f32], b: &mut [f32]) {
        let n = p.len();
        let g = &g[..n];
        match rule {
            Rule::Sgd => {
                for i in 0..n {
                    p[i] = Rule::Sgd.formula(p[i], g[i], [0.0, 0.0], h).0;
                }
            }
            Rule::Momentum { .. } => {
                let a = &mut a[..n];
                for i in 0..n {
                    let (new, [buf, _]) = rule.formula(p[i], g[i], [a[i], 0.0], h);
                    (p[i], a[i]) = (new, buf);
                }
            }
            Rule::Adam { .. } => {
                let (a, b) = (&mut a[..n], &mut b[..n]);
                for i in 0..n {
                    let (new, [m, v]) = rule.formula(p[i], g[i], [a[i], b[i]], h);
                    (p[i], a[i], b[i]) = (new, m, v);
                }
            }
        }
    }
}

/// Addresses of one parameter's update on CUDA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub p: u64,
    pub g: u64,
    pub states: [u64; 2],
    pub len: usize,
}

/// Parameters one launch takes: their addresses travel as kernel arguments.
const PER_LAUNCH: usize = 32;

/// An optimizer with its state, which is kept by parameter.
pub struct Optimizer {
    rule: Rule,
    lr: f64,
    weight_decay: f64,
    step: u64,
    states: BTreeMap<u64, Vec<AnyBuffer>>,
    hypers: [f32; HYPERS],
    /// The scalars on the device.
    buffer: Option<Buffer>,
}

impl Optimizer {
    fn new(rule: Rule, lr: f64, weight_decay: f64) -> Optimizer {
        Optimizer {
            rule,
            lr,
            weight_decay,
            step: 0,
            states: BTreeMap::new(),
            hypers: [0.0; HYPERS],
            buffer: None,
        }
    }

    /// Gradient descent.
    pub fn sgd(lr: f64) -> Optimizer {
        Optimizer::new(Rule::Sgd, lr, 0.0)
    }

    /// Gradient descent with momentum.
    pub fn momentum(lr: f64, mu: f64) -> Optimizer {
        Optimizer::new(Rule::Momentum { mu }, lr, 0.0)
    }

    /// Adam with the usual constants (0.9, 0.999, 1e-8).
    pub fn adam(lr: f64) -> Optimizer {
        Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: false }, lr, 0.0)
    }

    /// AdamW with the usual constants (0.9, 0.999, 1e-8, weight decay 0.01).
    pub fn adamw(lr: f64) -> Optimizer {
        Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, decoupled: true }, lr, 0.01)
    }

    /// The same optimizer with another weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Optimizer {
        self.weight_decay = weight_decay;
        self
    }

    /// The rule.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// Sets the learning rate of later steps, also of compiled ones.
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    fn check(&self) -> Result<()> {
        let finite = |name: &'static str, x: f64| {
            if x.is_finite() && x >= 0.0 {
                Ok(())
            } else {
                Err(Error::argument(
                    "optimizer",
                    name,
                    format!("got {x}, use a finite number that is not negative"),
                ))
            }
        };
        let decay = |name: &'static str, x: f64| {
            if (0.0..1.0).contains(&x) {
                Ok(())
            } else {
                Err(Error::argument("optimizer", name, format!("got {x}, use at least 0 and below 1")))
            }
        };
        finite("lr", self.lr)?;
        finite("weight_decay", self.weight_decay)?;
        match self.rule {
            Rule::Sgd => Ok(()),
            Rule::Momentum { mu } => decay("mu", mu),
            Rule::Adam { beta1, beta2, eps, .. } => {
                decay("beta1", beta1)?;
                decay("beta2", beta2)?;
                finite("eps", eps)
            }
        }
    }

    /// Makes the state of parameters that have none yet, zeros, and the buffer of scalars.
    pub(crate) fn prepare(&mut self, device: &Device, params: &[&Param]) -> Result<()> {
        self.check()?;
        for p in params {
            if !self.states.contains_key(&p.id()) {
                let zeros = |_| AnyBuffer::zeros(device, p.shape());
                let states = (0..self.rule.states()).map(zeros).collect::<Result<Vec<_>>>()?;
                self.states.insert(p.id(), states);
            }
        }
        if self.buffer.is_none() {
            self.buffer = Some(device.alloc(HYPERS)?);
        }
        Ok(())
    }

    /// Counts a step and forms its scalars.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.check()?;
        self.step += 1;
        self.hypers = self.rule.hypers(self.lr, self.weight_decay, self.step);
        match &self.buffer {
            Some(buffer) => buffer.write_words("optimizer", &self.hypers),
            None => Err(Error::new("optimizer", ErrorKind::Internal { what: "no buffer of scalars" })),
        }
    }

    fn states(&self, p: &Param) -> &[AnyBuffer] {
        self.states.get(&p.id()).map_or(&[], Vec::as_slice)
    }

    /// Updates one parameter on the CPU.
    pub(crate) fn update_cpu(&self, cpu: &Cpu, p: &Param, g: &[f32]) -> Result<()> {
        const TASK: usize = 16 * 1024;
        let states = self.states(p);
        let mut value = p.buffer().buffer().write("optimizer")?;
        let mut guards = states.iter().map(|s| s.buffer().write("optimizer")).collect::<Result<Vec<_>>>()?;
        let mut rest = guards.iter_mut();
        let a: &mut [f32] = rest.next().map_or(&mut [], |g| g.host());
        let b: &mut [f32] = rest.next().map_or(&mut [], |g| g.host());
        let (rule, h, simd) = (self.rule, self.hypers, cpu.simd);
        cpu.pool.chunks3_mut([value.host(), a, b], TASK, |task, [p, a, b]| {
            update_block(simd, rule, h, p, &g[task * TASK..], a, b);
        });
        Ok(())
    }

    /// Where one parameter's update reads and writes on CUDA.
    pub(crate) fn slot(&self, p: &Param, g: u64) -> Result<Slot> {
        let mut states = [0; 2];
        for (s, b) in states.iter_mut().zip(self.states(p)) {
            *s = b.buffer().address("optimizer")?;
        }
        Ok(Slot { p: p.buffer().buffer().address("optimizer")?, g, states, len: p.shape().numel() })
    }

    /// Queues the updates of all parameters on CUDA.
    pub(crate) fn update_cuda(&self, cuda: &Arc<Cuda>, slots: &[Slot]) -> Result<()> {
        let (module, source) = self.cuda_module();
        let kernel = cuda.kernel(&module, &source, "update")?;
        let Some(buffer) = &self.buffer else {
            return Err(Error::new("optimizer", ErrorKind::Internal { what: "no buffer of scalars" }));
        };
        for slots in slots.chunks(PER_LAUNCH) {
            let mut table = [0u64; 5 * PER_LAUNCH];
            for (i, s) in slots.iter().enumerate() {
                for (j, word) in [s.p, s.g, s.states[0], s.states[1], s.len as u64].into_iter().enumerate() {
                    table[j * PER_LAUNCH + i] = word;
                }
            }
            let longest = slots.iter().map(|s| s.len).max().unwrap_or(0);
            if longest == 0 {
                continue;
            }
            let mut args = Args::new();
            args.bytes(bytemuck::cast_slice(&table), 8).ptr(buffer.address("optimizer")?);
            let blocks = longest.div_ceil(256 * 4).min(cuda.sm_count() as usize * 4) as u32;
            cuda.launch(kernel, [blocks, slots.len() as u32, 1], 256, 0, &args)?;
        }
        Ok(())
    }

    /// The kernel: blocks along y take a parameter each, along x its elements in a grid-stride loop.
    /// Reads parameter, gradient and states once and writes parameter and states once.
    pub(crate) fn cuda_module(&self) -> (String, String) {
        let rule = self.rule;
        let program = Program::trace(4 + HYPERS, |x| {
            let h = std::array::from_fn(|i| x[4 + i]);
            let (p, [a, b]) = rule.formula(x[0], x[1], [x[2], x[3]], h);
            vec![p, a, b]
        });
        let mut t = format!(
            "{}struct Table {{ unsigned long long p[{n}], g[{n}], a[{n}], b[{n}], len[{n}]; }};\n",
            prelude(),
            n = PER_LAUNCH
        );
        t.push_str("extern \"C\" __global__ void update(const __grid_constant__ Table table, const float* __restrict__ h) {\n");
        t.push_str("const unsigned i = blockIdx.y;\nfloat* p = (float*)table.p[i]; const float* g = (const float*)table.g[i];\nfloat* a = (float*)table.a[i]; float* b = (float*)table.b[i];\n");
        for (c, k) in program.consts().iter().enumerate() {
            let _ = writeln!(t, "const float k{c} = __uint_as_float({:#x}u);", k.to_bits());
        }
        for i in 0..HYPERS {
            let _ = writeln!(t, "const float x{} = h[{i}];", 4 + i);
        }
        t.push_str("for (unsigned long long j = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; j < table.len[i]; j += (unsigned long long)gridDim.x * blockDim.x) {\n");
        t.push_str("const float x0 = p[j], x1 = g[j];\n");
        let states = rule.states();
        let _ = writeln!(
            t,
            "const float x2 = {}, x3 = {};",
            if states > 0 { "a[j]" } else { "0.0f" },
            if states > 1 { "b[j]" } else { "0.0f" }
        );
        t.push_str(&program.cuda());
        t.push_str("p[j] = y0;\n");
        t.push_str(if states > 0 { "a[j] = y1;\n" } else { "" });
        t.push_str(if states > 1 { "b[j] = y2;\n" } else { "" });
        t.push_str("}\n}\n");
        (format!("optimizer_{}", rule.name()), t)
    }

    /// One step: changes every trainable parameter in place. Errors, before anything is changed, if a
    /// trainable parameter has no gradient; frozen ones are left alone.
    pub fn step(&mut self, params: &Params, grads: Grads) -> Result<()> {
        let device = params.device();
        let mut items: Vec<(&Param, &AnyBuffer)> = Vec::new();
        for p in params.iter().filter(|p| p.trainable()) {
            items.push((p, grads.param(p).ok_or_else(|| p.unreached())?));
        }
        let list: Vec<&Param> = items.iter().map(|(p, _)| *p).collect();
        self.prepare(device, &list)?;
        self.begin()?;
        match device.backend() {
            Backend::Cpu(cpu) => {
                for (p, g) in &items {
                    self.update_cpu(cpu, p, g.buffer().read("optimizer")?.host())?;
                }
            }
            Backend::Cuda(cuda) => {
                let slots = items
                    .iter()
                    .map(|(p, g)| self.slot(p, g.buffer().address("optimizer")?))
                    .collect::<Result<Vec<_>>>()?;
                self.update_cuda(cuda, &slots)?;
            }
            Backend::Host(_) => {
                let what = format!("there are no optimizers on {device} yet; set the parameters yourself");
                return Err(Error::unsupported("optimizer", what));
            }
        }
        list.iter().for_each(|p| p.changed());
        Ok(())
    }
}
