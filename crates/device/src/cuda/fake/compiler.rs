//! A stand-in for NVRTC, which compiles nothing.

use crate::cuda::nvrtc::Compiler;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A compiler whose images contain only the names of kernels. It rejects a source that contains `#error`.
#[derive(Default)]
pub struct Stub {
    compiled: AtomicU64,
    missing: AtomicBool,
}

impl Stub {
    /// Modules compiled so far.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Pretends that no NVRTC is installed, or that it is again.
    pub fn set_missing(&self, missing: bool) {
        self.missing.store(missing, Ordering::Relaxed);
    }

    /// Fails if NVRTC is missing.
    fn there(&self) -> Result<()> {
        if self.missing.load(Ordering::Relaxed) {
            let looked = vec!["nowhere".to_string()];
            return Err(Error::new("nvrtc", ErrorKind::Library { name: "NVRTC (libnvrtc)", looked }));
        }
        Ok(())
    }
}

impl Compiler for Stub {
    fn version(&self) -> Result<(i32, i32)> {
        self.there().map(|()| (13, 0))
    }

    fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>> {
        self.there()?;
        if source.contains("#error") {
            let log = format!("{name}.cu(1): error: #error directive");
            return Err(Error::new("nvrtc", ErrorKind::Compile { module: name.to_string(), log }));
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let mut image = image(&kernel_names(source));
        image.extend(format!("stub cubin for {arch} of {source}").bytes());
        Ok(image)
    }
}

/// An ELF file that contains only the symbols of these kernels.
fn image(names: &[String]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for name in names {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0x10]);
        symbols.extend([0; 18]);
        strings.extend(name.bytes().chain([0]));
    }
    let section = |kind: u32, at: usize, size: usize, link: u32, entry: u64| {
        let mut words = [0u64; 8];
        words[0] = u64::from(kind) << 32;
        (words[3], words[4], words[5], words[7]) = (at as u64, size as u64, u64::from(link), entry);
        words.map(u64::to_le_bytes).concat()
    };
    let mut image = vec![0u8; 64];
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (image[40], image[58], image[60]) = (64, 64, 3);
    let start = image.len() + 3 * 64;
    image.extend([0; 64]);
    image.extend(section(2, start, symbols.len(), 2, 24));
    image.extend(section(3, start + symbols.len(), strings.len(), 0, 0));
    image.extend(symbols);
    image.extend(strings);
    image
}

/// The names of the kernels of a source, as far as its text shows them: the name after `__global__ void` and launch
/// bounds. For a name that a macro pastes together, the usual vector widths.
fn kernel_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for rest in source.split("__global__").skip(1) {
        let mut rest = rest.trim_start().strip_prefix("void").unwrap_or(rest).trim_start();
        if let Some(bounds) = rest.strip_prefix("__launch_bounds__") {
            rest = bounds.split_once(')').map_or("", |(_, after)| after).trim_start();
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if after.starts_with("##") {
            names.extend([1, 2, 4].map(|width| format!("{name}{width}")));
        } else if !name.is_empty() && after.trim_start().starts_with('(') {
            names.push(name.to_string());
        }
    }
    names
}
