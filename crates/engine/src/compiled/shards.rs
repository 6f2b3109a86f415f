//! The program of one shard of a training step, and running it for all shards of this process.

use crate::effect::{Effect, EffectOf, When, pack};
use crate::graph::{Compiled, Graph, Passes};
use crate::optim::Optimizer;
use crate::params::Param;
use crate::sharded::{Carried, Shards};
use dittograd_device::cuda::CudaGraph;
use dittograd_device::{AnyBuffer, DType, Device, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::{Recorder, Val};
use std::ops::Range;

/// Most shards that a GPU computes side by side, and the bytes that those beside the first may take. Small shards leave most
/// of a GPU idle.
const LANES: usize = 4;
const LANE_BYTES: usize = 6 << 30;

/// What there is besides the program of a shard.
pub(super) struct ShardProgram {
    carried: Option<Carried>,
    /// Shapes and types of loss and metrics.
    pub outputs: Vec<Meta>,
    /// Where the program leaves its results.
    results: Results,
    /// The same program again, to compute shards side by side.
    lanes: Option<Lanes>,
    /// Loss, metrics and what is carried on, of all shards one after the other.
    reports: AnyBuffer,
    /// The inputs of each shard of this process.
    held: Vec<Vec<AnyBuffer>>,
}

/// Where a program leaves what it computed of a shard.
struct Results {
    /// Gradients, for each bucket.
    packed: Vec<AnyBuffer>,
    /// Loss, metrics and what is carried on.
    report: AnyBuffer,
}

/// Programs beside the first one, and all of them captured together.
struct Lanes {
    others: Vec<(Compiled, Results)>,
    graph: CudaGraph,
}

/// For each result, the places of values in it.
type Places = Vec<Vec<(usize, usize)>>;

impl Results {
    fn new(packed: Vec<AnyBuffer>, words: usize, device: &Device) -> Result<Results> {
        Ok(Results { packed, report: AnyBuffer::zeros(device, Shape::new(&[words])?)? })
    }

    /// The effects that fill them.
    fn effects(&self, places: &Places) -> Vec<Box<dyn Effect>> {
        let all = self.packed.iter().chain([&self.report]);
        all.zip(places).map(|(into, places)| pack(into.clone(), places.clone())).collect()
    }
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
        // The values of each result, and their places.
        let mut values: Vec<Vec<Val>> = Vec::new();
        let (mut places, mut packed): (Places, Vec<AnyBuffer>) = (Vec::new(), Vec::new());
        for (bucket, all) in shards.buckets()? {
            packed.push(bucket);
            values.push(all.iter().map(|(param, ..)| items[*param].1).collect());
            places.push(all.iter().map(|(_, at, words)| (*at, *words)).collect());
        }
        let reported = outputs.iter().chain(carried.iter().flat_map(|c| &c.contributed)).copied();
        values.push(reported.collect());
        let mut end = 0;
        let mut place = |v: &Val| {
            let words = graph.meta(*v).shape.numel();
            end += words;
            (end - words, words)
        };
        places.push(values.iter().last().into_iter().flatten().map(&mut place).collect());
        let results = Results::new(packed, end, device)?;
        // Buckets are sent while the rest is computed; alone there is nobody to send to.
        let early = if shards.world().is_some() { When::Early } else { When::Last };
        let count = values.len();
        let effect = |((n, inputs), effect)| {
            let when = if n + 1 < count { early } else { When::Last };
            EffectOf { effect, inputs, when }
        };
        let effects = values.into_iter().enumerate().zip(results.effects(&places)).map(effect).collect();
        let program = Compiled::new(device, graph, &[], effects, passes, None)?;
        let lanes = Lanes::new(&program, &results, &places, shards)?;
        let reports = AnyBuffer::zeros(device, Shape::new(&[end * shards.count()])?)?;
        let held = shards.mine().map(|_| Vec::new()).collect();
        Ok((program, ShardProgram { carried, outputs: metas, results, lanes, reports, held }))
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
                let device = self.reports.buffer().device();
                held.push(AnyBuffer::new(device.alloc_for("program input", &meta.shape)?, meta)?);
            }
            held[i].buffer().write_words("program", words)?;
        }
        Ok(())
    }

    /// The words of a shard among the reports.
    fn of_shard(&self, shard: usize) -> Result<AnyBuffer> {
        let shape = self.results.report.shape();
        self.reports.part(shard * shape.numel(), shape)
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
        let _strict = environment::enter();
        let mine: Vec<usize> = shards.mine().collect();
        let is_profiled = self.reports.buffer().device().is_profiled();
        let lanes = self.lanes.as_ref().filter(|_| !is_profiled);
        for group in mine.chunks(lanes.map_or(1, |l| l.others.len() + 1)) {
            match lanes.filter(|l| l.others.len() + 1 == group.len()) {
                Some(lanes) => self.run_together(program, lanes, group, shards, random_calls)?,
                None => group.iter().try_for_each(|s| self.run_one(program, *s, shards, random_calls))?,
            }
        }
        if let Some(carried) = &self.carried {
            shards.share(&self.reports)?;
            let first: usize = self.outputs.iter().map(|m| m.shape.numel()).sum();
            let words = Shape::new(&[self.results.report.shape().numel() - first])?;
            for shard in 0..shards.count() {
                carried.run(&self.of_shard(shard)?.part(first, words)?)?;
            }
        }
        shards.update(optimizer, self.carried.is_none().then_some(&self.reports))
    }

    /// Gives a program the inputs of a shard.
    fn give(&self, program: &Compiled, shard: usize, first: usize) -> Result<()> {
        let mut inputs = self.held[shard - first].iter().enumerate();
        inputs.try_for_each(|(i, input)| program.copy_checked(i, input))
    }

    fn run_one(
        &self,
        program: &Compiled,
        shard: usize,
        shards: &mut Shards,
        random_calls: u64,
    ) -> Result<()> {
        self.give(program, shard, shards.mine().start)?;
        let calls = shards.random_calls(random_calls, shard);
        let Results { packed, report } = &self.results;
        let mut added = 0;
        let mut add = |bucket: usize| {
            added += 1;
            shards.add(bucket, shard, &packed[bucket])
        };
        program.run_staged(calls, &mut add)?;
        // Those that were not told of early.
        (added..packed.len()).try_for_each(|bucket| shards.add(bucket, shard, &packed[bucket]))?;
        self.of_shard(shard)?.copy_from("step", report)?;
        shards.keep(shard)
    }

    fn run_together(
        &self,
        program: &Compiled,
        lanes: &Lanes,
        group: &[usize],
        shards: &mut Shards,
        random_calls: u64,
    ) -> Result<()> {
        let programs = [program].into_iter().chain(lanes.others.iter().map(|l| &l.0));
        for (program, shard) in programs.zip(group) {
            self.give(program, *shard, shards.mine().start)?;
            program.begin(shards.random_calls(random_calls, *shard), None)?;
        }
        lanes.graph.launch()?;
        let results = [&self.results].into_iter().chain(lanes.others.iter().map(|l| &l.1));
        for (Results { packed, report }, shard) in results.zip(group) {
            packed.iter().enumerate().try_for_each(|(bucket, packed)| shards.add(bucket, *shard, packed))?;
            self.of_shard(*shard)?.copy_from("step", report)?;
        }
        group.last().map_or(Ok(()), |last| shards.keep(*last))
    }

    /// The mean over shards of the loss or a metric. Waits for the device.
    #[track_caller]
    pub(super) fn mean(&self, shards: &Shards, output: usize) -> Result<Vec<f32>> {
        let words = self.reports.buffer().download()?;
        let width = self.results.report.shape().numel();
        let first: usize = self.outputs[..output].iter().map(|m| m.shape.numel()).sum();
        let of_all = |at: usize| words.chunks(width.max(1)).map(|r| r[at]).collect::<Vec<f32>>();
        (0..self.outputs[output].shape.numel()).map(|i| shards.mean(&of_all(first + i))).collect()
    }
}

impl Lanes {
    /// As many programs side by side as there is memory for; `None` on the CPU, and where shards are sent as they are computed.
    fn new(program: &Compiled, results: &Results, places: &Places, shards: &Shards) -> Result<Option<Lanes>> {
        let device = results.report.buffer().device();
        let words: usize = results.packed.iter().map(|p| p.shape().numel()).sum();
        let each = program.plan().arena_bytes + words * 4;
        let mine = shards.mine().len();
        let room = |n: &usize| *n <= mine && (n - 1).saturating_mul(each) <= LANE_BYTES;
        let Some(count) = [LANES, 2].into_iter().find(room) else { return Ok(None) };
        if !device.is_cuda() || shards.world().is_some() {
            return Ok(None);
        }
        let mut others = Vec::new();
        for _ in 1..count {
            let zeros = |p: &AnyBuffer| AnyBuffer::zeros(device, p.shape());
            let packed = results.packed.iter().map(zeros).collect::<Result<Vec<_>>>()?;
            let own = Results::new(packed, results.report.shape().numel(), device)?;
            others.push((program.twin(own.effects(places))?, own));
        }
        let all: Vec<&Compiled> = [program].into_iter().chain(others.iter().map(|o| &o.0)).collect();
        let graph = Compiled::capture_together(&all)?;
        Ok(graph.map(|graph| Lanes { others, graph }))
    }
}
