//! Finds where the first NaN or infinity came from.

use super::step::Loss;
use crate::data::Batches;
use crate::device::DType;
use crate::error::Result;
use crate::io::{Checkpoint, SaveLoad};
use crate::optim::Optimizer;
use crate::params::Params;
use crate::session::Session;
use crate::tensor::Tensor;
use dittograd_engine::sharded::{EagerShards, Stepped};

/// Repeats the steps from a state on, op by op and with the same bits, up to the one whose loss was not finite, and
/// reports where the first such number appeared. The parameters are left as they were before that step.
#[track_caller]
pub(super) fn diagnose(
    params: &Params,
    optimizer: Optimizer,
    loss: &Loss<'_>,
    mut batches: Batches,
    from: &Checkpoint,
    to: u64,
    shards: usize,
) -> Result<String> {
    let mut eager = EagerShards::new(params, optimizer.alone(), from.random.seed, shards, None)?;
    from.restore(params, &mut eager)?;
    from.random.restore(eager.session())?;
    let is_bad = |t: &Tensor<f32>| t.data().iter().find(|v| !v.is_finite()).copied();
    let look = |session: &Session| {
        session.with_tape(|tape| {
            for id in 0..tape.size() {
                let Some(node) = tape.node(id) else { continue };
                let Some(value) = node.value.as_ref().filter(|v| v.meta().dtype == DType::F32) else {
                    continue;
                };
                if let Some(v) = is_bad(&value.to_tensor()?) {
                    let what = node.name.clone().unwrap_or_else(|| "a value".into());
                    let place = format!("of shape {} (value {id} of the step)", node.meta.shape);
                    return Ok(Some(format!("{what} {place} was the first to become {v}")));
                }
            }
            Ok(None)
        })
    };
    for step in from.step..to {
        let (x, y) = batches.batch(step)?;
        let before = params.state_dict()?;
        if let Stepped::Found(found) = eager.step(params, loss, &[x, y], false, look)? {
            params.load_state_dict(&before, true)?;
            return Ok(format!("in step {} {found}", step + 1));
        }
        for p in params.iter() {
            if let Some(v) = is_bad(&p.get::<f32>()?) {
                params.load_state_dict(&before, true)?;
                let name = p.name();
                return Ok(format!("the gradient or update of {name} became {v} in step {}", step + 1));
            }
        }
    }
    Ok("run again one op at a time, nothing shows it".into())
}
