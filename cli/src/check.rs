//! `check`: the library's own checks of ops, on the devices of this machine.

use crate::out::Out;
use crate::{Answer, Fail, Global, fail};
use clap::Args;
use dittograd::device::Device;
use dittograd::numerics::Numerics;
use dittograd::ops::AnyOp;
use dittograd_check::{Property, repeat, run_all, with_kernels_ahead};
use serde_json::json;

/// Check ops against their references, on every device; exit 1 if anything is off.
///
/// A line for each check as soon as it is done, and a last one for all of them; with --quiet only checks that failed, and
/// the last line. On a GPU, kernels that are not in the cache are compiled on all cores while checks run.
#[derive(Args)]
pub(crate) struct Check {
    /// Ops to check [default: all], each as OP, OP::PROPERTY or ::PROPERTY
    #[arg(value_name = "OP")]
    ops: Vec<String>,
    /// Only run each op N times and see that results are the same; the last line has the fingerprint of all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,
}

/// The results so far.
#[derive(Default)]
struct Tally {
    rows: usize,
    cases: usize,
    failed: usize,
}

impl Check {
    /// The CPU, and the requested or first GPU, in the requested mode. Requesting the CPU excludes the GPU.
    fn devices(&self, global: &Global) -> Answer<Vec<Device>> {
        let asked = global.device()?;
        let mode = asked.numerics();
        if mode == Numerics::Tf32 {
            return fail(
                "the checks are of modes with one answer, tf32 has none: use --numerics strict, fast or turbo",
            );
        }
        // Samples of ops are small.
        dittograd::numerics::digits::include_small_products();
        let mut devices = vec![global.cpu()?.in_mode(mode)?];
        devices.extend(Some(asked).filter(Device::is_cuda));
        Ok(devices)
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let wanted: Vec<(&str, &str)> =
            self.ops.iter().map(|o| o.split_once("::").unwrap_or((o, ""))).collect();
        let known = |(op, property): &(&str, &str)| {
            (op.is_empty() || AnyOp::NAMES.contains(op))
                && (property.is_empty() || Property::ALL.iter().any(|p| p.name() == *property))
        };
        if let Some((op, property)) = wanted.iter().find(|w| !known(w)) {
            let properties: Vec<&str> = Property::ALL.iter().map(|p| p.name()).collect();
            return fail(format!(
                "`{op}::{property}` is not an op and property; `dittograd ops` lists the ops, the properties are {}",
                properties.join(", ")
            ));
        }
        let devices = self.devices(global)?;
        let mut tally = Tally::default();
        let chosen = |op: &str, property: &str| {
            let fits = |(o, p): &(&str, &str)| (o.is_empty() || *o == op) && (p.is_empty() || *p == property);
            wanted.is_empty() || wanted.iter().any(fits)
        };
        if let Some(times) = self.repeats {
            let is_chosen = |op: &&str| chosen(op, Property::Repeat.name());
            let ops: Vec<&str> = AnyOp::NAMES.iter().copied().filter(is_chosen).collect();
            return with_kernels_ahead(&devices, &ops, || repeats(&ops, times as usize, &devices, out));
        }
        let checks: Vec<(&str, Property)> = AnyOp::NAMES
            .iter()
            .flat_map(|op| Property::ALL.map(|p| (*op, p)))
            .filter(|(op, property)| chosen(op, property.name()))
            .collect();
        let is_run = |(_, p): &&(&str, Property)| p.is_per_device() || *p == Property::Bits;
        let mut ops: Vec<&str> = checks.iter().filter(is_run).map(|(op, _)| *op).collect();
        ops.dedup();
        with_kernels_ahead(&devices, &ops, || {
            checks.iter().try_for_each(|(op, p)| check(op, *p, &devices, out, &mut tally))
        })?;
        let names: Vec<String> = devices.iter().map(Device::to_string).collect();
        let Tally { rows, cases, failed } = tally;
        out.result(
            || json!({"checks": rows, "cases": cases, "failed": failed, "devices": names}),
            || format!("{rows} checks of {cases} cases on {}, {failed} failed", names.join(" and ")),
        )?;
        Ok(failed == 0)
    }
}

/// Runs ops many times on each device; the fingerprints of all devices must agree.
fn repeats(ops: &[&str], times: usize, devices: &[Device], out: &Out) -> Answer {
    let (mut cases, mut failed) = (0, 0);
    let mut prints = vec![0; devices.len()];
    for op in ops {
        for (device, print) in devices.iter().zip(&mut prints) {
            match repeat(*op, device, times) {
                Ok(report) => {
                    cases += report.cases;
                    // Each hash includes the op's name, so an unordered sum says as much as an ordered one.
                    let hash = report.fingerprint.and_then(|f| u64::from_str_radix(&f, 16).ok());
                    *print ^= hash.unwrap_or_default();
                }
                Err(failure) => {
                    failed += 1;
                    out.result(|| json!({"failure": failure.to_string()}), || failure.to_string())?;
                }
            }
        }
    }
    let names: Vec<String> = devices.iter().map(Device::to_string).collect();
    let texts: Vec<String> = prints.iter().map(|p| format!("{p:016x}")).collect();
    let one = prints.iter().all(|p| *p == prints[0]);
    out.result(
        || json!({"cases": cases, "repeats": times, "failed": failed, "devices": names, "fingerprints": texts}),
        || {
            let ends = if one { "one fingerprint" } else { "DIFFERENT fingerprints" };
            let (names, texts) = (names.join(" and "), texts.join(" "));
            format!("{cases} cases {times} times on {names}, {failed} failed, {ends}\nfingerprint {texts}")
        },
    )?;
    Ok(failed == 0 && one)
}

/// One property of one op.
fn check(op: &str, property: Property, devices: &[Device], out: &Out, tally: &mut Tally) -> Answer<()> {
    let mut closed: Option<Fail> = None;
    run_all(devices, &format!("{op}::{property}"), |row| {
        if closed.is_some() {
            return;
        }
        tally.rows += 1;
        let (report, failure) = (row.outcome.as_ref().ok(), row.outcome.as_ref().err());
        tally.cases += report.map_or(0, |r| r.cases);
        tally.failed += usize::from(failure.is_some());
        if failure.is_none() && !out.chatty() {
            return;
        }
        let object = || {
            json!({
                "op": row.op, "property": row.property.name(), "device": row.device, "ok": failure.is_none(),
                "cases": report.map(|r| r.cases), "worst": report.map(|r| r.worst),
                "ulps": report.and_then(|r| r.ulps), "failure": failure.map(|f| f.to_string()),
            })
        };
        closed = out.result(object, || row.to_string()).err();
    })?;
    closed.map_or(Ok(()), Err)
}
