//! Shuffled batches by step number, so that a resumed run sees the same ones.

use super::{Dataset, Samples};
use crate::error::{Error, Result};
use crate::numerics::rng::Stream;
use std::ops::Range;

/// Deals out a data set in batches. Every epoch has its own order, which depends on the seed and the epoch's number.
/// Rows that do not fill a last batch are left out of that epoch.
#[derive(Clone, Debug)]
pub struct Batches {
    data: Dataset,
    size: usize,
    seed: u64,
    /// Rows of each batch that are dealt out.
    part: Range<usize>,
    /// The order of the last requested epoch, cached because the next step is usually in the same one.
    order: Option<(u64, Vec<usize>)>,
}

impl Batches {
    /// Batches of `size` rows. Errors if that is 0 or more rows than there are.
    #[track_caller]
    pub fn new(data: Dataset, size: usize, seed: u64) -> Result<Batches> {
        if !(1..=data.rows()).contains(&size) {
            let why = format!("got {size}, use 1 to {}, the rows of {}", data.rows(), data.name());
            return Err(Error::argument("batches", "size", why));
        }
        Ok(Batches { data, size, seed, part: 0..size, order: None })
    }

    /// The same batches, of which only these rows are dealt out: those that one of several processes computes.
    #[track_caller]
    pub fn part(mut self, rows: Range<usize>) -> Result<Batches> {
        if rows.start > rows.end || rows.end > self.size {
            let why = format!("a batch of {} rows has no rows {rows:?}", self.size);
            return Err(Error::argument("batches", "part", why));
        }
        self.part = rows;
        Ok(self)
    }

    /// The data set.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    /// Rows of a batch.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The seed of the shuffles.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Steps in an epoch.
    pub fn per_epoch(&self) -> usize {
        self.data.rows() / self.size
    }

    /// The batch of a step, counted from 0. It depends only on data, size, seed and step, not on earlier calls.
    #[track_caller]
    pub fn batch(&mut self, step: u64) -> Result<Samples> {
        let per_epoch = self.per_epoch() as u64;
        let (epoch, at) = (step / per_epoch, (step % per_epoch) as usize * self.size);
        let order = match self.order.take() {
            Some((kept, order)) if kept == epoch => order,
            _ => Stream::new(self.seed, epoch).try_permutation(self.data.rows())?,
        };
        let batch = self.data.take(&order[at + self.part.start..at + self.part.end]);
        self.order = Some((epoch, order));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::super::spirals;
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn a_batch_depends_on_the_step_alone() {
        let data = spirals(1, 103, 2).unwrap();
        let mut forward = Batches::new(data.clone(), 10, 9).unwrap();
        assert_eq!(forward.per_epoch(), 10);
        let all: Vec<_> = (0..35).map(|s| forward.batch(s).unwrap()).collect();
        for step in (0..35).rev() {
            assert_eq!(Batches::new(data.clone(), 10, 9).unwrap().batch(step).unwrap(), all[step as usize]);
        }
        let mut other = Batches::new(data, 10, 10).unwrap();
        assert_ne!(other.batch(0).unwrap(), all[0]);
        assert!(other.batch(u64::MAX).is_ok());
    }

    #[test]
    fn an_epoch_has_no_row_twice_and_epochs_differ() {
        let rows = 23usize;
        let x = Tensor::new(&[rows, 1], (0..rows).map(|i| i as f32).collect()).unwrap();
        let data =
            Dataset::new("count", x, Tensor::new(&[rows], vec![0u32; rows]).unwrap(), Some(1)).unwrap();
        let mut batches = Batches::new(data, 5, 1).unwrap();
        let mut epoch = |e: u64| -> Vec<f32> {
            (0..4).flat_map(|s| batches.batch(4 * e + s).unwrap().0.num().unwrap().data().to_vec()).collect()
        };
        let (first, second) = (epoch(0), epoch(1));
        let mut sorted = first.clone();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        assert_eq!((first.len(), sorted.len()), (20, 20));
        assert_ne!(first, second);
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        let data = spirals(1, 8, 2).unwrap();
        assert!(Batches::new(data.clone(), 0, 0).is_err());
        assert!(Batches::new(data.clone(), 9, 0).unwrap_err().to_string().contains("use 1 to 8"));
        assert_eq!(Batches::new(data, 8, 0).unwrap().per_epoch(), 1);
    }
}
