//! Effects: ops in place of a program. They read values of the program and write memory outside of it, such as
//! parameters and the states of an optimizer. A program runs them after all its instructions, so that every instruction reads
//! what was there before; those that write what no instruction reads can run earlier.

use crate::params::Param;
use dittograd_device::cuda::driver::HostMemory;
use dittograd_device::cuda::{Args, Cuda, Source, Work};
use dittograd_device::{AnyBuffer, Buffer, Cpu};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_ops::Val;
use std::ops::Range;
use std::sync::Arc;

/// An op that writes parameters in place. No effect of a program reads what another one writes.
pub trait Effect: Send + Sync {
    /// Its name in profiles.
    fn name(&self) -> &'static str;

    /// The parameters that it changes.
    fn writes(&self) -> &[Param];

    /// All numbers that it changes, as a shape.
    fn extent(&self) -> Result<Shape> {
        Shape::new(&[self.writes().iter().map(|p| p.shape().numel()).sum()])
    }

    /// The CUDA modules that it launches kernels of.
    fn cuda_modules(&self) -> Vec<Source> {
        Vec::new()
    }

    /// Runs on the CPU.
    fn cpu(&self, cpu: &Cpu, read: &Read<'_>) -> Result<()>;

    /// Queues it on CUDA; its inputs are at these addresses.
    fn cuda(&self, cuda: &Arc<Cuda>, inputs: &[u64]) -> Result<()>;

    /// Parts that [`Effect::cuda_part`] queues one by one, so that each runs in a captured program as soon as it can. With none, the
    /// effect waits for all instructions.
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    /// Queues one of its parts on CUDA.
    fn cuda_part(&self, cuda: &Arc<Cuda>, inputs: &[u64], _part: usize) -> Result<()> {
        self.cuda(cuda, inputs)
    }
}

/// A part of an effect.
pub struct Part {
    /// The inputs that it reads.
    pub inputs: Vec<usize>,
    /// All memory that it writes.
    pub writes: Vec<AnyBuffer>,
}

/// Gives the inputs of an effect by number, on the CPU.
pub type Read<'a> = dyn Fn(usize) -> HostValue<'a> + 'a;

/// An effect and the values it reads.
pub struct EffectOf<V> {
    /// The op.
    pub effect: Box<dyn Effect>,
    /// Its inputs.
    pub inputs: Vec<V>,
    /// When it runs.
    pub when: When,
}

/// When an effect runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// As soon as its inputs are there and earlier effects of this kind have run. No instruction reads what it writes.
    Early,
    /// After all instructions.
    Last,
}

/// A value in host memory.
pub enum HostValue<'a> {
    /// The words themselves.
    Words(&'a [f32]),
    /// Words of a buffer, which is locked only while they are read.
    Buffer(&'a Buffer, Range<usize>),
}

impl HostValue<'_> {
    /// Calls `f` with the words.
    pub fn with<T>(self, op: &str, f: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
        match self {
            HostValue::Words(words) => f(words),
            HostValue::Buffer(buffer, range) => f(&buffer.read(op)?.host()[range]),
        }
    }
}

/// A parameter becomes a value of the program.
struct Assign(Param);

/// The effect that gives `param` a value of the program.
pub(crate) fn assign(param: Param, value: Val) -> EffectOf<Val> {
    EffectOf { effect: Box::new(Assign(param)), inputs: vec![value], when: When::Last }
}

/// Copies values of the program one after the other into a buffer, each to a place of its own.
struct Pack {
    into: AnyBuffer,
    /// Where each input begins, and its words.
    places: Vec<(usize, usize)>,
}

/// The effect that copies values into `into`; each of `places` is where one begins there, and its words.
pub(crate) fn pack(into: AnyBuffer, places: Vec<(usize, usize)>) -> Box<dyn Effect> {
    Box::new(Pack { into, places })
}

/// Appends a number to a list on the device, whose first word counts what it has.
struct Append(Buffer);

/// The effect that appends `value` to `list`: a word that counts, then room for as many numbers as there may be.
pub(crate) fn append(list: Buffer, value: Val) -> EffectOf<Val> {
    EffectOf { effect: Box::new(Append(list)), inputs: vec![value], when: When::Last }
}

/// Puts a word into a list, if there is room for it, and counts it.
fn push(list: &mut [f32], word: f32) {
    let count = list[0].to_bits();
    if let Some(place) = list.get_mut(1 + count as usize) {
        *place = word;
    }
    list[0] = f32::from_bits(count + 1);
}

/// The module of the kernel that appends.
pub fn append_module() -> Source {
    ("append".to_string(), include_str!("effect.cu"))
}

impl Effect for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn writes(&self) -> &[Param] {
        &[]
    }

    fn extent(&self) -> Result<Shape> {
        Shape::new(&[1])
    }

    fn cuda_modules(&self) -> Vec<Source> {
        vec![append_module()]
    }

    fn cpu(&self, _cpu: &Cpu, read: &Read<'_>) -> Result<()> {
        let mut list = self.0.write("append")?;
        read(0).with("append", |value| {
            push(list.host(), value[0]);
            Ok(())
        })
    }

    fn cuda(&self, cuda: &Arc<Cuda>, inputs: &[u64]) -> Result<()> {
        let (list, value, words) = (self.0.address("append")?, inputs[0], self.0.len());
        let (module, source) = append_module();
        let kernel = cuda.kernel(&module, source, "append")?;
        let mut args = Args::new();
        args.ptr(list).ptr(value).u32(words as u32 - 1);
        cuda.launch(kernel, [1, 1, 1], 1, 0, &args)?;
        cuda.stand_in(|| -> Work {
            Arc::new(move |memory: &mut dyn HostMemory| {
                let mut all = memory.words(list, words)?;
                push(&mut all, memory.words(value, 1)?[0]);
                memory.set_words(list, &all)
            })
        })
    }
}

impl Effect for Pack {
    fn name(&self) -> &'static str {
        "pack"
    }

    fn writes(&self) -> &[Param] {
        &[]
    }

    fn extent(&self) -> Result<Shape> {
        Shape::new(&[self.places.iter().map(|p| p.1).sum()])
    }

    fn cpu(&self, _cpu: &Cpu, read: &Read<'_>) -> Result<()> {
        let mut into = self.into.buffer().write("pack")?;
        for (i, &(at, words)) in self.places.iter().enumerate() {
            read(i).with("pack", |value| {
                into.host()[at..at + words].copy_from_slice(value);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn cuda(&self, cuda: &Arc<Cuda>, inputs: &[u64]) -> Result<()> {
        let into = self.into.buffer().address("pack")?;
        for (&(at, words), from) in self.places.iter().zip(inputs).filter(|(p, _)| p.1 > 0) {
            cuda.copy(into + at as u64 * 4, *from, words * 4)?;
        }
        Ok(())
    }
}

impl Effect for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn writes(&self) -> &[Param] {
        std::slice::from_ref(&self.0)
    }

    fn parts(&self) -> Vec<Part> {
        vec![Part { inputs: vec![0], writes: vec![self.0.buffer()] }]
    }

    fn cpu(&self, _cpu: &Cpu, read: &Read<'_>) -> Result<()> {
        read(0).with("assign", |words| self.0.buffer().buffer().write_words("assign", words))
    }

    fn cuda(&self, cuda: &Arc<Cuda>, inputs: &[u64]) -> Result<()> {
        let to = self.0.buffer().buffer().address("assign")?;
        cuda.copy(to, inputs[0], self.0.shape().numel() * 4)
    }
}
