//! Fault injection: calls that are made to fail.

use super::Fake;
use super::state::{Outcome, State};

/// Which calls fail.
pub(super) struct Fault {
    /// Only calls of this entry point, and on this device, if given.
    symbol: Option<&'static str>,
    device: Option<i32>,
    /// The first of them that fails, counted from 1, and whether all later ones fail too.
    at: u64,
    stays: bool,
    code: i32,
    /// How many of them there were, and the entry point of the first that failed.
    seen: u64,
    failed: Option<&'static str>,
}

impl State {
    /// Counts a call, and fails it if it should fail.
    pub fn step(&mut self, symbol: &'static str, device: Option<i32>) -> Outcome {
        self.calls += 1;
        *self.by_symbol.entry(symbol).or_default() += 1;
        let device = device.or_else(|| self.here().ok());
        let Some(fault) = &mut self.fault else { return Ok(()) };
        if fault.symbol.is_some_and(|s| s != symbol) || (fault.device.is_some() && fault.device != device) {
            return Ok(());
        }
        fault.seen += 1;
        if fault.seen == fault.at || (fault.stays && fault.seen > fault.at) {
            fault.failed.get_or_insert(symbol);
            return Err(fault.code);
        }
        Ok(())
    }
}

impl Fake {
    /// Makes the `k`-th driver call from now (1 is the next) fail with `code`.
    pub fn fail_call(&self, k: u64, code: i32) {
        self.fail(None, None, k, code, false);
    }

    /// Makes the `k`-th driver call from now and all after it fail with `code`.
    pub fn fail_from(&self, k: u64, code: i32) {
        self.fail(None, None, k, code, true);
    }

    /// Makes the `k`-th call of one entry point, such as `cuMemAlloc_v2`, fail with `code`, and those after it if it `stays`.
    pub fn fail_symbol(&self, symbol: &'static str, k: u64, code: i32, stays: bool) {
        self.fail(Some(symbol), None, k, code, stays);
    }

    /// Makes one device fail with `code`, at the `k`-th call that concerns it and for good.
    pub fn fail_device(&self, device: i32, k: u64, code: i32) {
        self.fail(None, Some(device), k, code, true);
    }

    fn fail(&self, symbol: Option<&'static str>, device: Option<i32>, at: u64, code: i32, stays: bool) {
        self.state().fault = Some(Fault { symbol, device, at, stays, code, seen: 0, failed: None });
    }

    /// Ends all injected failures.
    pub fn recover(&self) {
        self.state().fault = None;
    }

    /// Whether the call that should fail has been made.
    pub fn has_failed(&self) -> bool {
        self.failed().is_some()
    }

    /// The entry point of the first call that was made to fail.
    pub fn failed(&self) -> Option<&'static str> {
        self.state().fault.as_ref().and_then(|fault| fault.failed)
    }
}
