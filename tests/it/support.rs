//! What several tests begin with.

use dittograd::device::Meta;
use dittograd::device::cpu::simd::Simd;
use dittograd::parallel::World;
use dittograd::prelude::*;

/// A CPU with two threads, whatever the machine has.
pub(crate) fn device() -> Device {
    Device::cpu_with(2, Simd::best()).unwrap()
}

/// What each rank of a world of threads computes.
pub(crate) fn ranks<T: Send>(size: usize, f: impl Fn(World) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |world: World| scope.spawn(|| f(world));
        let all: Vec<_> = World::threads(size).unwrap().into_iter().map(start).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A tensor from its dimensions and elements.
pub(crate) fn t(dims: &[usize], data: &[f32]) -> Tensor<f32> {
    Tensor::new(dims, data.to_vec()).unwrap()
}

/// A tensor of fractions between -1 and 1.001, whose sums depend on their order.
pub(crate) fn fractions(dims: &[usize], by: usize) -> Tensor<f32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i * by % 10_007) as f32 * 2e-4 - 1.0)
}

/// What is known of a value of these dimensions before it is computed.
pub(crate) fn f(dims: &[usize]) -> Meta {
    Meta::f32(Shape::new(dims).unwrap())
}

/// The elements of a value.
pub(crate) fn data(v: Var<'_>) -> Vec<f32> {
    v.value::<f32>().unwrap().into_data()
}
