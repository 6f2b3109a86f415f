//! `devices`: what this machine computes with, what was searched for, and why something is missing.

use crate::out::{Out, bytes, table};
use crate::ranks::{Member, Ranks, transports};
use crate::{Answer, Fail, Global, simd};
use dittograd::device::cpu::simd::Simd;
use dittograd::device::cuda::{Cuda, Nvrtc, cache_folder};
use dittograd::device::{Device, cuda::Driver};
use serde_json::{Value, json};

/// The processor's name, if the system tells it.
pub(crate) fn model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.trim().to_string())
}

/// Where compiled kernels are kept.
fn kernel_cache() -> String {
    cache_folder().map_or("off".into(), |folder| folder.display().to_string())
}

/// The GPUs, or why there are none.
fn gpus() -> Result<Vec<Device>, String> {
    match Cuda::count() {
        Ok(0) => Err("the driver has no device".into()),
        Ok(n) => (0..n).map(|i| Device::cuda(i).map_err(|e| e.to_string())).collect(),
        Err(e) => Err(e.to_string()),
    }
}

fn version((major, minor): (i32, i32)) -> String {
    format!("{major}.{minor}")
}

/// Runs the command.
pub(crate) fn run(global: &Global, out: &Out, ranks: Option<&Ranks>) -> Answer {
    let cpu = global.cpu()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let levels: Vec<String> = Simd::all_available().iter().map(Simd::to_string).collect();
    let chosen = simd()?.to_string();
    let gpus = gpus();
    let driver = Driver::system().map(|_| "found".to_string()).map_err(|e| e.to_string());
    let nvrtc = Nvrtc::open().map(|n| (version(n.version()), n.path().display().to_string()));
    let nvrtc = nvrtc.map_err(|e| e.to_string());
    let nccl = dittograd::parallel::nccl_version().map_err(|e| e.to_string());
    let device = global.device_of(ranks);
    let (best, threads) = match device {
        Ok(device) => (device.to_string(), device.threads()),
        Err(Fail::Library(e)) => (e.to_string(), 0),
        Err(e) => return Err(e),
    };
    let members = match ranks {
        None => Vec::new(),
        Some(ranks) => ranks.members(&best, threads)?,
    };
    let transport = ranks.map(|r| r.world.name());
    let cache = kernel_cache();
    if out.json() {
        let describe = |d: &Device| {
            d.as_cuda().map_or(Value::Null, |c| {
                json!({"name": c.name(), "ordinal": c.ordinal(), "arch": c.arch(), "sms": c.sm_count(),
                       "memory_bytes": c.total_memory(), "driver": version(c.driver_version())})
            })
        };
        let list = gpus.as_ref().map(|g| g.iter().map(describe).collect::<Vec<_>>()).unwrap_or_default();
        let threads = cpu.threads();
        let object = json!({
            "cpu": {"model": model(), "cores": cores, "threads": threads,
                    "simd": levels, "simd_chosen": chosen},
            "gpus": list, "gpus_missing": gpus.as_ref().err(),
            "driver_missing": driver.as_ref().err(),
            "nvrtc": nvrtc.as_ref().ok().map(|(v, p)| json!({"version": v, "path": p})),
            "nvrtc_missing": nvrtc.as_ref().err(),
            "nccl": nccl.as_ref().ok(), "nccl_missing": nccl.as_ref().err(),
            "cache": cache, "default": best, "transports": transports(), "transport": transport,
            "ranks": members,
        });
        out.line(&object.to_string())?;
        return Ok(true);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_string(), value]);
    row("cpu", model());
    row("cores", cores.to_string());
    row("threads", cpu.threads().to_string());
    row("simd", format!("{chosen} (available: {})", levels.join(", ")));
    match &gpus {
        Ok(list) => {
            for cuda in list.iter().filter_map(Device::as_cuda) {
                let (memory, sms) = (bytes(cuda.total_memory()), cuda.sm_count());
                let driver = version(cuda.driver_version());
                let about = format!(
                    "{}, {memory}, {}, {sms} SMs, driver for CUDA {driver}",
                    cuda.name(),
                    cuda.arch()
                );
                row(&format!("cuda:{}", cuda.ordinal()), about);
            }
        }
        Err(why) => row("gpus", format!("none: {why}")),
    }
    if driver.is_ok() || nvrtc.is_ok() {
        row("driver", driver.unwrap_or_else(|e| e));
    }
    row("nvrtc", nvrtc.map_or_else(|e| e, |(version, path)| format!("{version}, {path}")));
    row("nccl", nccl.unwrap_or_else(|e| e));
    row("cache", cache);
    row("default", best);
    row("transports", transports().join(", "));
    if let Some(transport) = transport {
        row("ranks", format!("{} over {transport}", members.len()));
    }
    for Member { rank, host, device, threads } in members {
        let cores = match threads {
            _ if device != "cpu" => String::new(),
            1 => ", 1 thread".into(),
            n => format!(", {n} threads"),
        };
        row(&format!("rank {rank}"), format!("{device}{cores}, on {host}"));
    }
    out.line(&table(&rows))?;
    Ok(true)
}
