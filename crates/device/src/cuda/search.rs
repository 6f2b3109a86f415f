//! Where the libraries of NVIDIA may be: where the loader, a toolkit, a distribution or pip puts them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library to look for.
pub struct Wanted<'a> {
    /// Its file names, the best one first.
    pub names: &'a [&'a str],
    /// The environment variable that, if set, names its folder or file, the only place to look then.
    pub variable: &'a str,
    /// How the names of the Python packages below `nvidia/` begin that may hold it.
    pub packages: &'a str,
}

/// The value of an environment variable, if it is set and not empty.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

impl Wanted<'_> {
    /// Every file that it may be, in the order they are tried. A bare name is for the loader to find. `var` reads the
    /// environment.
    pub fn candidates(&self, var: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
        let in_folder = |folder: &Path| self.names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
        if let Some(given) = var(self.variable).map(PathBuf::from) {
            return if given.is_file() { vec![given] } else { in_folder(&given) };
        }
        let mut folders = Vec::new();
        for root in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| var(name)).map(PathBuf::from) {
            folders.extend([root.join("lib64"), root.join("targets/x86_64-linux/lib"), root.join("lib")]);
        }
        // The plain `cuda` sorts first: it is the one the administrator chose.
        for root in entries(Path::new("/usr/local"), "cuda") {
            folders.extend([root.join("lib64"), root.join("targets/x86_64-linux/lib")]);
        }
        folders.push("/usr/lib/x86_64-linux-gnu".into());

        let mut packages = Vec::new();
        if let Some(root) = var("VIRTUAL_ENV").map(PathBuf::from) {
            packages.extend(pythons(&root.join("lib"), "site-packages"));
        }
        if let Some(paths) = var("PYTHONPATH") {
            packages.extend(std::env::split_paths(&paths).filter(|path| path.is_absolute()));
        }
        if let Some(home) = var("HOME").map(PathBuf::from) {
            packages.extend(pythons(&home.join(".local/lib"), "site-packages"));
        }
        for lib in ["/usr/lib", "/usr/local/lib"] {
            for kind in ["site-packages", "dist-packages"] {
                packages.extend(pythons(Path::new(lib), kind));
            }
        }
        for root in entries(Path::new("/opt"), "") {
            packages.extend(pythons(&root.join(".venv/lib"), "site-packages"));
        }
        for package in packages {
            // Names like cu13, cu12 and cuda_nvrtc, the latest first; other packages do not hold it.
            let mut parts = entries(&package.join("nvidia"), self.packages);
            parts.sort_by(|a, b| b.cmp(a));
            let holds = |lib: &PathBuf| in_folder(lib).iter().any(|file| file.exists());
            folders.extend(parts.into_iter().map(|part| part.join("lib")).filter(holds));
        }
        // Remove duplicates: the environment often names the usual places.
        let mut out: Vec<PathBuf> = self.names.iter().map(PathBuf::from).collect();
        for path in folders.iter().flat_map(|folder| in_folder(folder)) {
            if !out.contains(&path) {
                out.push(path);
            }
        }
        out
    }
}

/// `python3*/<kind>` under `lib`.
fn pythons(lib: &Path, kind: &str) -> Vec<PathBuf> {
    let folders = entries(lib, "python3");
    folders.into_iter().map(|python| python.join(kind)).filter(|path| path.is_dir()).collect()
}

/// Entries of `folder` whose name starts with `prefix`, sorted by name. An unreadable folder counts as empty.
pub fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = listing
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}
