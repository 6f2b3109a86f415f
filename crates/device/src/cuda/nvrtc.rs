//! NVRTC: kernel source to cubin.
//!
//! The library is searched for where the loader, a toolkit, a distribution or pip puts it, and opened by absolute path
//! together with its `libnvrtc-builtins`. The options are one constant: no contraction of multiply and add, subnormals
//! are kept, division and square root are correctly rounded. So a kernel computes what its C++ says.

#![allow(unsafe_code)]

use super::search::{self, Wanted, entries};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Options for every kernel, besides the architecture. Part of the kernel cache's key.
pub const OPTIONS: [&str; 6] =
    ["-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-default-device"];

/// Turns kernel source into a cubin: NVRTC, or a stand-in where there is no GPU.
pub trait Compiler: Send + Sync {
    /// Version of the compiler, major and minor.
    fn version(&self) -> Result<(i32, i32)>;

    /// The cubin of `source` for `arch` (`sm_90`). May be called from several threads.
    fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>>;
}

type Program = *mut c_void;

/// NVRTC, opened.
pub struct Nvrtc {
    path: PathBuf,
    version: (i32, i32),
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        i32,
        *const *const c_char,
        *const *const c_char,
    ) -> i32,
    destroy: unsafe extern "C" fn(*mut Program) -> i32,
    compile: unsafe extern "C" fn(Program, i32, *const *const c_char) -> i32,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> i32,
    log: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> i32,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    error_string: unsafe extern "C" fn(i32) -> *const c_char,
    // Keeps the code of the pointers above mapped. Last field, so that it is dropped last.
    _libraries: Vec<Library>,
}

impl Nvrtc {
    /// Finds and opens NVRTC. If there is none, errors with [`ErrorKind::Library`] and a list of all places searched.
    /// `DITTOGRAD_NVRTC`, a folder or a file, makes it the only place to search.
    pub fn open() -> Result<Nvrtc> {
        Nvrtc::open_up_to(i32::MAX)
    }

    /// Like [`Nvrtc::open`], but skips major versions above `major`: a driver does not load the cubins of a later major
    /// version.
    pub fn open_up_to(major: i32) -> Result<Nvrtc> {
        let mut looked = Vec::new();
        for path in NVRTC.candidates(&search::variable) {
            // A bare name uses the loader's own search.
            let bare = path.components().count() == 1;
            if !bare && !path.exists() {
                looked.push(path.display().to_string());
                continue;
            }
            match Nvrtc::load(&path) {
                Ok(found) if found.version.0 <= major => return Ok(found),
                Ok(found) => looked.push(format!(
                    "{} (version {}.{} is above {major}, the driver's)",
                    path.display(),
                    found.version.0,
                    found.version.1
                )),
                Err(_) if bare => looked.push(format!("{} on the loader's path", path.display())),
                Err(why) => looked.push(format!("{} ({why})", path.display())),
            }
        }
        if search::variable("DITTOGRAD_NVRTC").is_none() {
            // Folders of packages are listed above only if they contain NVRTC.
            let packages = "nvidia/*/lib in the site-packages of $VIRTUAL_ENV, $PYTHONPATH, ~/.local, /usr, \
                            /usr/local and /opt/*/.venv";
            let remedy = "pip install nvidia-cuda-nvrtc, or set DITTOGRAD_NVRTC to its folder";
            looked.push(format!("{packages} ({remedy})"));
        }
        Err(Error::new("nvrtc", ErrorKind::Library { name: "NVRTC (libnvrtc)", looked }))
    }

    fn load(path: &Path) -> Result<Nvrtc, String> {
        let mut libraries = Vec::new();
        // NVRTC opens its builtins by bare name. Some packages set a run path for that; loading the file first makes it
        // work everywhere.
        if let Some(folder) = path.parent() {
            for builtins in entries(folder, "libnvrtc-builtins.so") {
                // SAFETY: a library of data tables beside NVRTC; its initialisers have no preconditions.
                libraries.extend(unsafe { Library::new(&builtins) });
            }
        }
        // SAFETY: the library is NVRTC by its name; its initialisers have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|why| why.to_string())?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type is that of the field it is stored in, the C declaration in nvrtc.h.
                *unsafe { library.get($name) }.map_err(|_| format!("has no {}", $name))?
            };
        }
        let version: unsafe extern "C" fn(*mut i32, *mut i32) -> i32 = symbol!("nvrtcVersion");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both out-pointers point to live locals.
        if unsafe { version(&mut major, &mut minor) } != 0 {
            return Err("nvrtcVersion failed".into());
        }
        Ok(Nvrtc {
            path: path.to_path_buf(),
            version: (major, minor),
            create: symbol!("nvrtcCreateProgram"),
            destroy: symbol!("nvrtcDestroyProgram"),
            compile: symbol!("nvrtcCompileProgram"),
            log_size: symbol!("nvrtcGetProgramLogSize"),
            log: symbol!("nvrtcGetProgramLog"),
            cubin_size: symbol!("nvrtcGetCUBINSize"),
            cubin: symbol!("nvrtcGetCUBIN"),
            error_string: symbol!("nvrtcGetErrorString"),
            _libraries: {
                libraries.push(library);
                libraries
            },
        })
    }

    /// Version, major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The file it was opened from; a bare name if the loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles `source` to a cubin for `arch` (`sm_90`). A rejected source gives
    /// [`ErrorKind::Compile`] with the log. May be called from several threads at a time.
    pub fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>> {
        let rejected =
            |log: String| Error::new("nvrtc", ErrorKind::Compile { module: name.to_string(), log });
        let text = |text: &str| CString::new(text).map_err(|_| rejected("the text holds a zero byte".into()));
        let check = |call: &str, code: i32| match code {
            0 => Ok(()),
            code => Err(rejected(format!("{call}: {}", self.message(code)))),
        };
        let source = text(source)?;
        let file = text(&format!("{name}.cu"))?;
        let mut options = vec![text(&format!("--gpu-architecture={arch}"))?];
        for option in OPTIONS {
            options.push(text(option)?);
        }
        // Without declarations of textures and of the run time library, which no kernel uses, a text is read faster.
        if self.version >= (12, 4) {
            options.push(text("-minimal")?);
        }
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut program = Owned { program: ptr::null_mut(), destroy: self.destroy };
        // SAFETY: the strings are zero-terminated and outlive the call, the out-pointer is a live local,
        // and no headers are given.
        check("nvrtcCreateProgram", unsafe {
            (self.create)(&mut program.program, source.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null())
        })?;
        // SAFETY: the program was just made and `options` holds that many zero-terminated strings.
        let code = unsafe { (self.compile)(program.program, options.len() as i32, options.as_ptr()) };
        if code != 0 {
            let log = self.fetch(program.program, self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_string();
            return Err(rejected(format!("{}\n{log}", self.message(code))));
        }
        self.fetch(program.program, self.cubin_size, self.cubin)
            .map_err(|code| rejected(format!("nvrtcGetCUBIN: {}", self.message(code))))
            .and_then(|cubin| {
                if cubin.is_empty() {
                    Err(rejected(format!("no cubin came out for {arch}")))
                } else {
                    Ok(cubin)
                }
            })
    }

    /// A byte string of a program, read by the pair of functions that give its size and its content.
    fn fetch(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> i32,
        read: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    ) -> Result<Vec<u8>, i32> {
        let mut bytes = 0;
        // SAFETY: the program is alive and the out-pointer points to a live local.
        match unsafe { size(program, &mut bytes) } {
            0 => {}
            code => return Err(code),
        }
        let mut out = vec![0u8; bytes];
        // SAFETY: the buffer has the size NVRTC just named.
        match unsafe { read(program, out.as_mut_ptr().cast()) } {
            0 => Ok(out),
            code => Err(code),
        }
    }

    fn message(&self, code: i32) -> String {
        // SAFETY: gives a static, zero-terminated string for any code.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program, destroyed when it goes out of scope.
struct Owned {
    program: Program,
    destroy: unsafe extern "C" fn(*mut Program) -> i32,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program is alive and not used again. A failure leaks it, nothing more.
            unsafe { (self.destroy)(&mut self.program) };
        }
    }
}

/// NVRTC, opened at the first compilation: with a warm kernel cache it is never needed. One per process and driver
/// version. A failure to open is retried, since a library can be installed meanwhile.
pub struct System {
    major: i32,
}

impl System {
    /// NVRTC for a driver of CUDA version `major`.
    pub fn new(major: i32) -> System {
        System { major }
    }

    fn nvrtc(&self) -> Result<Arc<Nvrtc>> {
        static OPENED: Mutex<Vec<(i32, Arc<Nvrtc>)>> = Mutex::new(Vec::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, nvrtc)) = opened.iter().find(|(major, _)| *major == self.major) {
            return Ok(nvrtc.clone());
        }
        let nvrtc = Arc::new(Nvrtc::open_up_to(self.major)?);
        opened.push((self.major, nvrtc.clone()));
        Ok(nvrtc)
    }
}

impl Compiler for System {
    fn version(&self) -> Result<(i32, i32)> {
        Ok(self.nvrtc()?.version())
    }

    fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>> {
        self.nvrtc()?.compile(name, source, arch)
    }
}

/// File names of NVRTC, latest version first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// NVRTC's names and places.
const NVRTC: Wanted = Wanted { names: &NAMES, variable: "DITTOGRAD_NVRTC", packages: "cu" };

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "extern \"C\" __global__ void axpy(float* y, const float* x, float a, unsigned n) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }";

    /// NVRTC if this machine has it; otherwise the test is skipped.
    fn nvrtc() -> Option<Nvrtc> {
        match Nvrtc::open() {
            Ok(nvrtc) => Some(nvrtc),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Library { .. }), "{error}");
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn compiles_for_two_architectures_from_several_threads() {
        let Some(nvrtc) = nvrtc() else { return };
        assert!(nvrtc.version().0 >= 12, "{:?}", nvrtc.version());
        std::thread::scope(|scope| {
            for arch in ["sm_80", "sm_90", "sm_80", "sm_90"] {
                let nvrtc = &nvrtc;
                scope.spawn(move || {
                    let cubin = nvrtc.compile("axpy", KERNEL, arch).expect("compiles");
                    assert_eq!(&cubin[..4], b"\x7fELF");
                    let again = nvrtc.compile("axpy", KERNEL, arch).expect("compiles");
                    assert_eq!(cubin, again, "the same source gives the same bytes");
                });
            }
        });
    }

    #[test]
    fn a_rejected_source_carries_the_log() {
        let Some(nvrtc) = nvrtc() else { return };
        let error = nvrtc.compile("bad", "__global__ void f() { nonsense; }", "sm_90").expect_err("rejected");
        match error.kind() {
            ErrorKind::Compile { module, log } => {
                assert_eq!(module, "bad");
                assert!(log.contains("bad.cu(1)") && log.contains("nonsense"), "{log}");
            }
            other => panic!("{other:?}"),
        }
        let error = nvrtc.compile("bad", KERNEL, "sm_1").expect_err("no such architecture");
        assert!(matches!(error.kind(), ErrorKind::Compile { .. }), "{error}");
        assert!(nvrtc.compile("zero", "\0", "sm_90").is_err());
    }

    #[test]
    fn the_search_covers_the_known_places() {
        let root = std::env::temp_dir().join(format!("dittograd-nvrtc-{}", std::process::id()));
        let lib = root.join("lib/python3.11/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).expect("a folder");
        std::fs::write(lib.join("libnvrtc.so.13"), b"").expect("a file");
        let base = root.clone();
        let var = move |name: &str| match name {
            "VIRTUAL_ENV" => Some(base.clone().into_os_string()),
            "CUDA_HOME" => Some("/cuda/home".into()),
            _ => None,
        };
        let found = NVRTC.candidates(&var);
        assert_eq!(found[0], Path::new("libnvrtc.so.13"));
        assert!(found.contains(&lib.join("libnvrtc.so.13")));
        assert!(found.contains(&"/cuda/home/lib64/libnvrtc.so.12".into()));
        assert!(found.contains(&"/usr/lib/x86_64-linux-gnu/libnvrtc.so".into()));
        let only = NVRTC.candidates(&|name| (name == "DITTOGRAD_NVRTC").then(|| "/given".into()));
        assert_eq!(only, NAMES.map(|name| Path::new("/given").join(name)));
        // A file that is no library is named with the reason.
        let why = Nvrtc::load(&lib.join("libnvrtc.so.13")).err().expect("not a library");
        assert!(!why.is_empty());
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
