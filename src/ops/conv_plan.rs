//! stub
use super::conv::Geometry;
use super::{CudaRun, Gpu};
use crate::error::Result;
pub(crate) struct Plan;
pub(crate) fn forward(_: &Geometry) -> Plan {
    Plan
}
pub(crate) fn transposed(_: &Geometry) -> Plan {
    Plan
}
pub(crate) fn kernel_grad(_: &Geometry) -> Plan {
    Plan
}
pub(crate) fn workspace(_: &Plan, _: &Gpu) -> usize {
    0
}
pub(crate) fn launch(_: &Plan, _: &CudaRun<'_>) -> Result<()> {
    Ok(())
}
pub(crate) fn modules(_: &Plan, _: bool, _: &Gpu) -> Vec<(String, String)> {
    Vec::new()
}
