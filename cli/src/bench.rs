//! Stub.
use crate::{Answer, Global, fail};
use crate::out::Out;
/// Stub.
#[derive(clap::Args)]
pub(crate) struct Bench {}
impl Bench {
    pub(crate) fn run(&self, _g: &Global, _out: &Out) -> Answer { let _: Option<&Global> = None; fail("stub") }
}
