//! Updates by their definitions, on devices whose numbers are of any [`Scalar`] type.

use super::{Element, HYPERS, Kind};
use dittograd_device::{AnyBuffer, Numbers};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::Definitions;

/// Updates a parameter by an optimizer's formula: the buffers are the parameter, its gradient and its states, then a direction
/// and a factor of the gradient, if there are.
pub(crate) type Update =
    fn(Kind, &[f64; HYPERS], &[&AnyBuffer], Option<&AnyBuffer>, Option<&AnyBuffer>) -> Result<()>;

/// How parameters of these numbers are updated.
pub(super) fn update_of(numbers: &dyn Numbers) -> Result<&Update> {
    let definitions = numbers.kernels().downcast_ref::<Definitions>();
    let update = definitions.and_then(|d| d.more.downcast_ref::<Update>());
    update.ok_or_else(|| Error::unsupported("optimizer", "a device whose numbers no optimizer knows"))
}

/// Updates numbers of type `T`.
pub(crate) fn update<T: Scalar>(
    kind: Kind,
    hypers: &[f64; HYPERS],
    ins: &[&AnyBuffer],
    direction: Option<&AnyBuffer>,
    factor: Option<&AnyBuffer>,
) -> Result<()> {
    let mut all = ins.iter().map(|x| x.to_tensor::<T>()).collect::<Result<Vec<_>>>()?;
    let direction = direction.map(|d| d.to_tensor::<T>()).transpose()?;
    let factor = factor.map_or(Ok(T::c(1.0)), |f| f.to_tensor::<T>()?.item())?;
    let h = hypers.map(T::c);
    let at = |x: Option<&Tensor<T>>, i: usize| x.map_or(T::c(0.0), |x| x.data()[i]);
    for i in 0..all[0].data().len() {
        let element = Element {
            p: at(all.first(), i),
            g: at(all.get(1), i),
            states: std::array::from_fn(|s| at(all.get(2 + s), i)),
            direction: at(direction.as_ref(), i),
        };
        let (p, states) = kind.formula(element, factor, h);
        let states = std::iter::zip(2.., states);
        for (place, new) in std::iter::once((0, p)).chain(states) {
            if let Some(x) = all.get_mut(place) {
                x.data_mut()[i] = new;
            }
        }
    }
    let written = |at: &usize| *at != 1;
    (0..ins.len()).filter(written).try_for_each(|at| ins[at].assign("optimizer", &all[at]))
}
