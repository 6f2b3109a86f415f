//! Steps in shards. A batch is cut into shards of equally many rows, and the gradients of the shards are added in one fixed
//! tree (`tree`). So the result depends on the number of shards, and not on how many processes share them: one process computes
//! them one after the other, which is gradient accumulation, and several compute some each.
//!
//! Each process owns a part of the parameters (`layout`). It gets the sums of that part from all others, adds them up, updates the part with
//! its part of the optimizer's state, and gives the result to the others.

mod carried;
mod eager;
mod layout;
mod tree;

pub(crate) use carried::Carried;
pub use eager::{EagerShards, Loss, Stepped};

use crate::optim::{Optimizer, OptimizerState};
use crate::params::Param;
use dittograd_comm::{Pending, World};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::{AnyBuffer, Buffer, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::pointwise::record_pointwise;
use dittograd_ops::reduce::global_norm::{norm_of_squares, squared_norm};
use dittograd_ops::{DeviceRecorder, Val, apply, pointwise, reduce};
use layout::{Bucket, Layout, Piece, ROW};
use std::ops::Range;
use tree::Sums;

/// Most shards of a step: their random streams are this many.
pub const MAX_SHARDS: usize = 1 << 15;

/// The shards of a step, and this process's place among those that share them.
pub struct Shards {
    device: Device,
    count: usize,
    world: Option<World>,
    ready: Option<Ready>,
    /// For each bucket, the gradients of the last step, if they are kept.
    last: Option<Vec<AnyBuffer>>,
}

/// Memory for the gradients of some parameters.
struct Ready {
    trained: Vec<Param>,
    layout: Layout,
    /// For each bucket, the gradients of the shard that is computed now.
    packed: Vec<AnyBuffer>,
    /// For each bucket, the sums over shards of this process.
    sums: Vec<Sums<AnyBuffer>>,
    /// For each bucket, what others send.
    exchanges: Vec<Option<Exchange>>,
}

/// The memory of a bucket, and for each gradient in it the number of its parameter, where it begins, and its words.
pub(crate) type Packed = (AnyBuffer, Vec<(usize, usize, usize)>);

/// Sums over subtrees of shards that are on their way.
struct Exchange {
    pending: Pending,
    received: Vec<(Range<usize>, AnyBuffer)>,
}

#[track_caller]
fn internal(what: &'static str) -> Error {
    Error::new("shards", ErrorKind::Internal { what })
}

/// `a + b`.
fn add(a: &AnyBuffer, b: &AnyBuffer) -> Result<AnyBuffer> {
    apply(a.buffer().device(), &pointwise::Add {}.into(), &[a, b])
}

/// The norm of each of some gradients. Waits for the device.
#[track_caller]
pub(crate) fn norms(device: &Device, gradients: &[AnyBuffer]) -> Result<Vec<f32>> {
    let all = device.alloc(gradients.len())?;
    let all = AnyBuffer::new(all, Meta::f32(Shape::new(&[gradients.len()])?))?;
    for (i, gradient) in gradients.iter().enumerate() {
        let norm = apply(device, &reduce::GlobalNorm.into(), &[gradient])?;
        all.part(i, Shape::SCALAR)?.copy_from("norm", &norm)?;
    }
    all.buffer().download()
}

/// Most sums over subtrees that are added in one kernel.
const AT_ONCE: usize = 16;

/// The sum over all of a subtree, of the sums over `parts` of it, which are in order.
fn total(all: Range<usize>, parts: &[(Range<usize>, AnyBuffer)]) -> Result<AnyBuffer> {
    match parts {
        [] => Err(internal("shards without a gradient")),
        [(_, sum)] => Ok(sum.clone()),
        [(_, a), (_, b)] => add(a, b),
        _ if parts.len() <= AT_ONCE => {
            let tree = Pointwise::trace(parts.len(), |x| {
                let mut sums = Sums::over(all.clone());
                for ((range, _), x) in parts.iter().zip(x) {
                    // Adding expressions cannot fail.
                    let _ = sums.push(range.clone(), *x, |a, b| Ok(*a + *b));
                }
                sums.take().into_iter().map(|s| s.1).collect()
            });
            let mut recorder = DeviceRecorder::new(parts[0].1.buffer().device());
            let inputs: Vec<Val> = parts.iter().map(|p| recorder.input(p.1.clone())).collect();
            let sum = record_pointwise(&mut recorder, &tree, parts[0].1.shape(), &inputs)?;
            recorder.value(sum).cloned()
        }
        _ => {
            let (left, right) = tree::halves(all);
            let (a, b) = parts.split_at(parts.partition_point(|p| p.0.end <= left.end));
            add(&total(left, a)?, &total(right, b)?)
        }
    }
}

/// Messages and the ranks that they go to or come from.
type Messages = Vec<(usize, Buffer)>;

/// Words of a buffer as a value.
fn words(buffer: &AnyBuffer, range: Range<usize>) -> Result<AnyBuffer> {
    buffer.part(range.start, Shape::new(&[range.len()])?)
}

/// The shape of a shard of an input whose rows are those of `shards`.
#[track_caller]
pub(crate) fn of_a_shard(meta: Meta, shards: usize) -> Result<Meta> {
    let mut dims = meta.shape.dims().to_vec();
    match dims.first_mut() {
        // What has no rows goes to every shard.
        None => {}
        Some(rows) if rows.is_multiple_of(shards) => *rows /= shards,
        Some(_) => {
            let why =
                format!("the first axis of an input of shape {} has no {shards} equal parts", meta.shape);
            return Err(Error::argument("step", "shards", why));
        }
    }
    Ok(Meta { shape: Shape::new(&dims)?, ..meta })
}

impl Shards {
    /// So many shards, shared by the processes of `world`.
    #[track_caller]
    pub fn new(device: &Device, count: usize, world: Option<World>) -> Result<Shards> {
        let ranks = world.as_ref().map_or(1, World::size);
        if count == 0 || count > MAX_SHARDS {
            let why = format!("got {count}, use 1 to {MAX_SHARDS}");
            return Err(Error::argument("step", "shards", why));
        }
        if ranks > count {
            let why = format!(
                "{ranks} processes cannot share {count} of them; use {ranks} shards or more, or fewer processes"
            );
            return Err(Error::argument("step", "shards", why));
        }
        let world = world.filter(|w| w.size() > 1);
        Ok(Shards { device: device.clone(), count, world, ready: None, last: None })
    }

    /// Number of shards.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The processes that share them, if they are several.
    pub fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    fn rank(&self) -> usize {
        self.world.as_ref().map_or(0, World::rank)
    }

    fn ranks(&self) -> usize {
        self.world.as_ref().map_or(1, World::size)
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, ranks) = (self.rank(), self.ranks());
        (0..ranks).filter(move |r| *r != rank)
    }

    fn of_rank(&self, rank: usize) -> Range<usize> {
        tree::shards_of(rank, self.ranks(), self.count)
    }

    /// The shards that this process computes.
    pub fn mine(&self) -> Range<usize> {
        self.of_rank(self.rank())
    }

    /// Random calls that a shard's program begins with, at a step that begins with `calls`: every shard has a stream of its own.
    pub fn random_calls(&self, calls: u64, shard: usize) -> u64 {
        calls.wrapping_add((shard as u64) << 48)
    }

    /// The mean over shards of a number of each, which the loss of a step is: their sum in the order of the tree times `1 / count`.
    #[track_caller]
    pub fn mean(&self, values: &[f32]) -> Result<f32> {
        Ok(tree::sum(values)? * (1.0 / self.count as f64) as f32)
    }

    /// Makes memory for the gradients of `trained`, and makes `optimizer` keep the state of this process's part only.
    #[track_caller]
    pub(crate) fn prepare(
        &mut self,
        optimizer: &mut Optimizer,
        all: &[&Param],
        trained: &[Param],
    ) -> Result<()> {
        let is_same = |r: &Ready| r.trained.iter().map(Param::id).eq(trained.iter().map(Param::id));
        if self.ready.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        let refs: Vec<&Param> = trained.iter().collect();
        let whole = optimizer.needs_whole(&refs)?;
        let sizes: Vec<(usize, bool)> = trained.iter().map(|p| p.shape().numel()).zip(whole).collect();
        let layout = Layout::new(&sizes, self.ranks());
        if self.world.is_some() {
            if self.ready.is_some() {
                let what = "freezing or unfreezing parameters between steps of several processes; save a checkpoint and resume it";
                return Err(Error::unsupported("step", what));
            }
            let mut parts: Vec<Range<usize>> = vec![0..0; trained.len()];
            for piece in layout.buckets.iter().flat_map(|b| b.pieces(self.rank())) {
                parts[piece.param] = piece.range;
            }
            optimizer.own(all, refs.into_iter().zip(parts).collect())?;
        }
        let zeros = |b: &Bucket| AnyBuffer::zeros(&self.device, Shape::new(&[b.words()])?);
        let packed = layout.buckets.iter().map(zeros).collect::<Result<Vec<_>>>()?;
        let sums = layout.buckets.iter().map(|_| Sums::new(self.count)).collect();
        let exchanges = layout.buckets.iter().map(|_| None).collect();
        self.ready = Some(Ready { trained: trained.to_vec(), layout, packed, sums, exchanges });
        Ok(())
    }

    #[track_caller]
    fn ready(&self) -> Result<&Ready> {
        self.ready.as_ref().ok_or_else(|| internal("no memory for gradients"))
    }

    /// For each bucket, what the gradients of a shard are packed into.
    pub(crate) fn buckets(&self) -> Result<Vec<Packed>> {
        let ready = self.ready()?;
        let places = |b: &Bucket| b.places.iter().map(|p| (p.param, p.row * ROW, p.numel)).collect();
        Ok(ready.packed.iter().cloned().zip(ready.layout.buckets.iter().map(places)).collect())
    }

    /// Forgets the gradients of a step that failed.
    pub(crate) fn clear(&mut self) {
        if let Some(ready) = &mut self.ready {
            ready.sums.iter_mut().for_each(|s| drop(s.take()));
            ready.exchanges.iter_mut().for_each(|e| *e = None);
        }
    }

    /// Takes in the gradients of a shard for a bucket, which are `packed`. After the last shard of this process, sends the sums.
    #[track_caller]
    pub(crate) fn add(&mut self, bucket: usize, shard: usize, packed: &AnyBuffer) -> Result<()> {
        let (mine, count, rank) = (self.mine(), self.count, self.rank());
        let (ranks, world) = (self.ranks(), self.world.clone());
        let of = |r: usize| tree::shards_of(r, ranks, count);
        let others = self.others();
        let ready = self.ready.as_mut().ok_or_else(|| internal("no memory for gradients"))?;
        let sums = &mut ready.sums[bucket];
        sums.push(shard..shard + 1, packed.clone(), add)?;
        let Some(world) = world.filter(|_| shard + 1 == mine.end) else { return Ok(()) };
        let b = &ready.layout.buckets[bucket];
        let (mut sends, mut received) = (Vec::new(), Vec::new());
        let mut receives = Vec::new();
        for other in others {
            for (_, sum) in sums.parts() {
                sends.push((other, words(sum, b.part(other))?.buffer().clone()));
            }
            for range in tree::subtrees(0..count, &of(other)) {
                let shape = Shape::new(&[b.part(rank).len()])?;
                let into = AnyBuffer::new(self.device.alloc_for("exchange", &shape)?, Meta::f32(shape))?;
                receives.push((other, into.buffer().clone()));
                received.push((range, into));
            }
        }
        let pending = world.start(sends, receives)?;
        ready.exchanges[bucket] = Some(Exchange { pending, received });
        Ok(())
    }

    /// Ends the use of what was packed: more shards are packed into the same memory.
    #[track_caller]
    pub(crate) fn keep(&mut self, shard: usize) -> Result<()> {
        let is_last = shard + 1 == self.mine().end;
        let Some(ready) = self.ready.as_mut().filter(|_| !is_last) else { return Ok(()) };
        ready.sums.iter_mut().try_for_each(|sums| sums.keep_single(AnyBuffer::copy))
    }

    /// For each bucket, the sum over all shards of the part that this process owns.
    fn totals(&mut self) -> Result<Vec<AnyBuffer>> {
        let (count, rank) = (self.count, self.rank());
        let ready = self.ready.as_mut().ok_or_else(|| internal("no memory for gradients"))?;
        let mut totals = Vec::new();
        for (i, b) in ready.layout.buckets.iter().enumerate() {
            let mut parts = ready.sums[i].take();
            if let Some(exchange) = ready.exchanges[i].take() {
                exchange.pending.wait()?;
                for (_, sum) in &mut parts {
                    *sum = words(sum, b.part(rank))?;
                }
                parts.extend(exchange.received);
                parts.sort_by_key(|p| p.0.start);
            }
            totals.push(total(0..count, &parts)?);
        }
        Ok(totals)
    }

    /// Whether the gradients of a step are kept until the next one, for [`Shards::norms`].
    pub(crate) fn keep_totals(&mut self, keeps: bool) {
        match keeps {
            true => drop(self.last.get_or_insert_default()),
            false => self.last = None,
        }
    }

    /// The norm of the gradient of each parameter in the last step.
    #[track_caller]
    pub(crate) fn norms(&self) -> Result<Vec<(String, f32)>> {
        let totals = self.last.as_deref().ok_or_else(|| internal("gradients that were not kept"))?;
        let norms = self.squares(totals)?.into_iter().map(|square| norm_of_squares(Simd::best(), &[square]));
        Ok(self.ready()?.trained.iter().map(|p| p.name().to_string()).zip(norms).collect())
    }

    /// The square of the norm of each gradient. Its parts are spread over the processes: the terms of rows are gathered, and every
    /// process adds all of them up, as [`GlobalNorm`](reduce::global_norm::GlobalNorm) does.
    fn squares(&self, totals: &[AnyBuffer]) -> Result<Vec<f32>> {
        let ready = self.ready()?;
        let mut terms: Vec<f32> = Vec::new();
        for total in totals {
            let rows = total.shape().numel() / ROW;
            let total = total.view(Shape::new(&[rows, ROW])?)?;
            let square = apply(&self.device, &pointwise::Mul {}.into(), &[&total, &total])?;
            let sums = apply(&self.device, &reduce::Sum::new(&[1])?.into(), &[&square])?;
            terms.extend(sums.buffer().download()?);
        }
        let all = match &self.world {
            Some(world) => world.all_gather_words(&terms)?,
            None => vec![terms],
        };
        let mut all: Vec<std::vec::IntoIter<f32>> = all.into_iter().map(Vec::into_iter).collect();
        let mut squares = vec![0.0f32; ready.trained.len()];
        for b in &ready.layout.buckets {
            let mut rows: Vec<f32> = Vec::with_capacity(b.rows);
            for (rank, rest) in all.iter_mut().enumerate() {
                rows.extend(rest.by_ref().take(b.part(rank).len() / ROW));
            }
            for p in &b.places {
                squares[p.param] = squared_norm(p.numel, |row| rows[p.row + row]);
            }
        }
        Ok(squares)
    }

    /// Ends a step whose gradients are all there: adds them up, updates the parameters, and brings them, and the rows of `reports`, to
    /// all processes.
    #[track_caller]
    pub(crate) fn update(&mut self, optimizer: &mut Optimizer, reports: Option<&AnyBuffer>) -> Result<()> {
        let totals = self.totals()?;
        let norm = match (&self.world, optimizer.max_norm()) {
            (Some(_), Some(_)) => Some(norm_of_squares(Simd::best(), &self.squares(&totals)?)),
            _ => None,
        };
        let ready = self.ready()?;
        let mut gradients: Vec<Option<AnyBuffer>> = vec![None; ready.trained.len()];
        for (b, total) in ready.layout.buckets.iter().zip(&totals) {
            for piece in b.pieces(self.rank()) {
                let p = &ready.trained[piece.param];
                let is_whole = piece.range.len() == p.shape().numel();
                let shape = if is_whole { p.shape() } else { Shape::new(&[piece.range.len()])? };
                gradients[piece.param] = Some(total.part(piece.start, shape)?);
            }
        }
        let nothing = AnyBuffer::zeros(&self.device, Shape::new(&[0])?)?;
        let items: Vec<(&Param, &AnyBuffer)> =
            ready.trained.iter().zip(gradients.iter().map(|g| g.as_ref().unwrap_or(&nothing))).collect();
        optimizer.update_eagerly(&self.device, &items, norm)?;
        if let Some(world) = &self.world {
            self.gather(world, reports)?;
        }
        self.ready()?.trained.iter().for_each(Param::changed);
        if let Some(last) = &mut self.last {
            *last = totals;
        }
        Ok(())
    }

    /// Gives the part of the parameters that this process has updated to all others, and takes theirs; and exchanges the rows of `reports`.
    fn gather(&self, world: &World, reports: Option<&AnyBuffer>) -> Result<()> {
        let ready = self.ready()?;
        let pieces = |rank: usize| -> Result<Vec<Buffer>> {
            let pieces = ready.layout.buckets.iter().flat_map(|b| b.pieces(rank));
            let value = |p: Piece| Ok(words(&ready.trained[p.param].buffer(), p.range)?.buffer().clone());
            pieces.map(value).collect()
        };
        let (mut sends, mut receives) = reports.map_or(Ok(Default::default()), |r| self.rows(r))?;
        let mine = pieces(self.rank())?;
        for other in self.others() {
            sends.extend(mine.iter().map(|piece| (other, piece.clone())));
            receives.extend(pieces(other)?.into_iter().map(|piece| (other, piece)));
        }
        world.start(sends, receives)?.wait()
    }

    /// The optimizer's whole state, of the parts that the processes have; on ranks other than 0 without tensors.
    #[track_caller]
    pub(crate) fn state(&self, optimizer: &Optimizer) -> Result<OptimizerState> {
        let mut state = optimizer.state::<f32>()?;
        let (Some(world), Some(ready)) = (&self.world, &self.ready) else { return Ok(state) };
        for p in &ready.trained {
            let Some(saved) = state.params.get_mut(p.name()) else { continue };
            for tensor in saved.tensors.values_mut() {
                let parts = world.gather_words(tensor.data())?;
                if world.rank() == 0 {
                    // Ranks own parts in their order.
                    *tensor = Tensor::with_shape(p.shape(), parts.concat())?;
                }
            }
        }
        if world.rank() != 0 {
            state.params.clear();
        }
        Ok(state)
    }

    /// The messages by which all processes get the rows of `reports`, which has one for each shard.
    fn rows(&self, reports: &AnyBuffer) -> Result<(Messages, Messages)> {
        let width = reports.shape().numel() / self.count;
        let rows = |rank: usize| -> Result<Buffer> {
            let shards = self.of_rank(rank);
            Ok(words(reports, shards.start * width..shards.end * width)?.buffer().clone())
        };
        let mine = rows(self.rank())?;
        let sends = self.others().map(|r| (r, mine.clone())).collect();
        let receives = self.others().map(|r| Ok((r, rows(r)?))).collect::<Result<_>>()?;
        Ok((sends, receives))
    }

    /// Brings the rows of `reports`, which has one for each shard, to all processes.
    #[track_caller]
    pub(crate) fn share(&self, reports: &AnyBuffer) -> Result<()> {
        let Some(world) = &self.world else { return Ok(()) };
        let (sends, receives) = self.rows(reports)?;
        world.start(sends, receives)?.wait()
    }
}
