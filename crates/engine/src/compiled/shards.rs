//! The program of one shard of a training step, and running it for all shards of this process.

use crate::effect::{self, When};
use crate::graph::{Compiled, Graph, Passes};
use crate::optim::Optimizer;
use crate::params::Param;
use crate::sharded::{Carried, Shards};
use dittograd_device::{AnyBuffer, DType, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{Recorder, Val};
use std::ops::Range;

/// What there is besides the program of a shard.
pub(super) struct ShardProgram {
    carried: Option<Carried>,
    /// Shapes and types of loss and metrics.
    pub outputs: Vec<Meta>,
    /// Loss, metrics and what is carried on, of the shard that runs.
    report: AnyBuffer,
    /// The same of all shards, one after the other.
    reports: AnyBuffer,
    /// The inputs of each shard of this process.
    held: Vec<Vec<AnyBuffer>>,
}

impl ShardProgram {
    /// Compiles the program of a shard: `items` are parameters and their gradients.
    #[track_caller]
    pub(super) fn new(
        shards: &Shards,
        device: &Device,
        graph: &Graph,
        outputs: &[Val],
        items: &[(&Param, Val)],
        carried: Option<Carried>,
        passes: Passes,
    ) -> Result<(Compiled, ShardProgram)> {
        let metas: Vec<Meta> = outputs.iter().map(|v| graph.meta(*v)).collect();
        if let Some(i) = metas.iter().position(|m| m.dtype != DType::F32) {
            let why =
                format!("metric {} holds indices, which have no mean over shards; make it a number", i - 1);
            return Err(Error::argument("step", "metric", why));
        }
        let mut effects = Vec::new();
        for (packed, places) in shards.buckets()? {
            let values = places.into_iter().map(|(param, at, words)| (items[param].1, at, words)).collect();
            effects.push(effect::pack(packed, values, When::Early));
        }
        let mut reported = Vec::new();
        let mut end = 0;
        for v in outputs.iter().chain(carried.iter().flat_map(|c| &c.contributed)) {
            let words = graph.meta(*v).shape.numel();
            reported.push((*v, end, words));
            end += words;
        }
        let report = AnyBuffer::zeros(device, Shape::new(&[end])?)?;
        let reports = AnyBuffer::zeros(device, Shape::new(&[end * shards.count()])?)?;
        effects.push(effect::pack(report.clone(), reported, When::Last));
        let program = Compiled::new(device, graph, &[], effects, passes, None)?;
        let held = shards.mine().map(|_| Vec::new()).collect();
        Ok((program, ShardProgram { carried, outputs: metas, report, reports, held }))
    }

    /// Takes in input `i` of shards from `first` on, and keeps those of `mine` on the device.
    #[track_caller]
    pub(super) fn hold(
        &mut self,
        program: &Compiled,
        i: usize,
        meta: Meta,
        (words, first): (&[f32], usize),
        mine: Range<usize>,
    ) -> Result<()> {
        let size = meta.shape.numel();
        for (shard, held) in mine.zip(&mut self.held) {
            let at = if meta.shape.rank() == 0 { 0 } else { (shard - first) * size };
            let words = &words[at..at + size];
            program.check_input(i, meta, words)?;
            if held.len() == i {
                let device = self.report.buffer().device();
                held.push(AnyBuffer::new(device.alloc_for("program input", &meta.shape)?, meta)?);
            }
            held[i].buffer().write_words("program", words)?;
        }
        Ok(())
    }

    /// The words of a shard among the reports.
    fn of_shard(&self, shard: usize) -> Result<AnyBuffer> {
        self.reports.part(shard * self.report.shape().numel(), self.report.shape())
    }

    /// A step on the inputs that are held.
    #[track_caller]
    pub(super) fn run(
        &self,
        program: &Compiled,
        shards: &mut Shards,
        optimizer: &mut Optimizer,
        random_calls: u64,
    ) -> Result<()> {
        for (shard, held) in shards.mine().zip(&self.held) {
            held.iter().enumerate().try_for_each(|(i, input)| program.copy_checked(i, input))?;
            let calls = shards.random_calls(random_calls, shard);
            program.run_staged(calls, &mut |bucket| shards.add(bucket, shard))?;
            self.of_shard(shard)?.copy_from("step", &self.report)?;
        }
        shards.share(&self.reports)?;
        if let Some(carried) = &self.carried {
            let first: usize = self.outputs.iter().map(|m| m.shape.numel()).sum();
            let words = self.report.shape().numel() - first;
            for shard in 0..shards.count() {
                carried.run(&self.of_shard(shard)?.part(first, Shape::new(&[words])?)?)?;
            }
        }
        shards.update(optimizer)
    }

    /// The mean over shards of the loss or a metric. Waits for the device.
    #[track_caller]
    pub(super) fn mean(&self, shards: &Shards, output: usize) -> Result<Vec<f32>> {
        let words = self.reports.buffer().download()?;
        let width = self.report.shape().numel();
        let first: usize = self.outputs[..output].iter().map(|m| m.shape.numel()).sum();
        let of_all = |at: usize| words.chunks(width.max(1)).map(|r| r[at]).collect::<Vec<f32>>();
        (0..self.outputs[output].shape.numel()).map(|i| shards.mean(&of_all(first + i))).collect()
    }
}
