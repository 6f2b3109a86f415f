//! [`RefRecorder`] evaluates references in any scalar type on the host, so that a gradient rule can be evaluated
//! exactly in f64. It records what it ran and can differentiate it, which gives higher derivatives.

use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::{AnyOp, AnyTensor, Io, Recorder, Val, pointwise};

/// Records by running the reference of each op on host tensors.
#[derive(Clone, Debug, Default)]
pub struct RefRecorder<T: Scalar> {
    values: Vec<AnyTensor<T>>,
    /// The op and inputs of each value; `None` for inputs.
    made_by: Vec<Option<(AnyOp, Vec<Val>)>>,
}

impl<T: Scalar> RefRecorder<T> {
    /// A recorder without values.
    pub fn new() -> RefRecorder<T> {
        RefRecorder { values: Vec::new(), made_by: Vec::new() }
    }

    /// A new input.
    pub fn input(&mut self, value: AnyTensor<T>) -> Val {
        self.push(value, None)
    }

    fn push(&mut self, value: AnyTensor<T>, made_by: Option<(AnyOp, Vec<Val>)>) -> Val {
        self.values.push(value);
        self.made_by.push(made_by);
        Val(self.values.len() as u32 - 1)
    }

    /// A recorded value. Errors if there is none with that number.
    pub fn value(&self, v: Val) -> Result<&AnyTensor<T>> {
        self.values.get(v.0 as usize).ok_or_else(|| no_value(v, self.values.len()))
    }

    /// The numbers of a recorded value. Errors for indices.
    pub fn tensor(&self, v: Val) -> Result<&Tensor<T>> {
        self.value(v)?.num()
    }

    /// The ops recorded so far with their arguments, in order.
    pub fn ops(&self) -> impl Iterator<Item = (&AnyOp, &[Val])> {
        self.made_by.iter().flatten().map(|(op, ins)| (op, &ins[..]))
    }

    /// The backward pass over everything recorded. `seeds` are values with their gradients. Returns the gradient of
    /// each value recorded before the call, where there is one.
    pub fn gradients(&mut self, seeds: &[(Val, Val)]) -> Result<Vec<Option<Val>>> {
        let count = self.values.len();
        let mut grads: Vec<Option<Val>> = vec![None; count];
        for &(v, g) in seeds {
            self.value(v)?;
            add_to(self, &mut grads[v.0 as usize], g)?;
        }
        for at in (0..count).rev() {
            let (Some(g), Some((op, ins))) = (grads[at], self.made_by[at].clone()) else { continue };
            if !op.differentiable() {
                continue;
            }
            let found = op.vjp(self, Io { ins: &ins, out: Val(at as u32) }, g)?;
            for (v, g) in ins.iter().zip(found) {
                if let Some(g) = g {
                    add_to(self, &mut grads[v.0 as usize], g)?;
                }
            }
        }
        Ok(grads)
    }
}

/// Adds a gradient to an existing one.
fn add_to(r: &mut dyn Recorder, slot: &mut Option<Val>, g: Val) -> Result<()> {
    *slot = Some(match *slot {
        Some(sum) => r.record(pointwise::Add {}.into(), &[sum, g])?,
        None => g,
    });
    Ok(())
}

fn no_value(v: Val, size: usize) -> Error {
    Error::new("record", ErrorKind::Node { id: v.0 as usize, size })
}

impl<T: Scalar> Recorder for RefRecorder<T> {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let args: Vec<AnyTensor<T>> = ins.iter().map(|&v| self.value(v).cloned()).collect::<Result<_>>()?;
        let metas: Vec<Meta> = args.iter().map(AnyTensor::meta).collect();
        let want = op.shape(&metas)?;
        let value = op.reference(&args)?;
        if value.shape() != want.shape {
            let kind = ErrorKind::Shapes {
                why: "the reference has another shape than the op",
                left: value.shape(),
                right: want.shape,
            };
            return Err(Error::new(op.name(), kind));
        }
        let value = match want.dtype {
            DType::F32 => AnyTensor::Num(value),
            DType::U32 => AnyTensor::Idx(value.map(|x| x.to_f64() as u32)),
        };
        Ok(self.push(value, Some((op, ins.to_vec()))))
    }

    fn meta(&self, v: Val) -> Meta {
        // The trait cannot refuse, and a number that was never given out has no meaning.
        self.values.get(v.0 as usize).map_or(Meta::f32(Shape::SCALAR), AnyTensor::meta)
    }
}
