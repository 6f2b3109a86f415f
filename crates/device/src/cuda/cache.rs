//! Cubins on disk, so that only the first run of a kernel on a machine compiles it.
//!
//! A file is named by the BLAKE3 hash of everything the cubin is made from: format, options, architecture and source.
//! The version of NVRTC is not part of the name but of the header, so a warm cache needs no NVRTC at all. The header
//! also has a hash of name, version and payload: a file that is cut short, damaged or misnamed counts as absent and is
//! compiled again. Files appear by rename, so readers never see a half-written one. Nothing here is an error: a folder
//! that cannot be used means no cache.

use super::nvrtc::OPTIONS;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The first bytes of every file. The number changes with the layout.
const MAGIC: &[u8; 16] = b"dittograd-cubin1";
/// Magic, NVRTC version, payload length, hash.
const HEADER: usize = 16 + 8 + 8 + 32;

/// The name of a cubin: what it is made from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(blake3::Hash);

impl Key {
    /// The key of `source` compiled for `arch` with the fixed options.
    pub(super) fn new(source: &str, arch: &str) -> Key {
        let mut hasher = blake3::Hasher::new();
        // Each part follows its length, so that parts cannot run together.
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(MAGIC);
        part(OPTIONS.join(" ").as_bytes());
        part(arch.as_bytes());
        part(source.as_bytes());
        Key(hasher.finalize())
    }
}

/// A folder of cubins.
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The cache in `folder`, which is created when something is first stored.
    pub(super) fn new(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    /// The cubin under `key`, if an intact file holds one.
    pub(super) fn load(&self, key: Key) -> Option<Vec<u8>> {
        let mut file = fs::read(self.path(key)).ok()?;
        let header = file.get(..HEADER)?;
        let (magic, rest) = header.split_at(16);
        let (version, rest) = rest.split_at(8);
        let (length, check) = rest.split_at(8);
        let payload = &file[HEADER..];
        let intact = magic == MAGIC
            && length == (payload.len() as u64).to_le_bytes()
            && !payload.is_empty()
            && check == digest(key, version, payload).as_bytes();
        if !intact {
            return None;
        }
        file.drain(..HEADER);
        Some(file)
    }

    /// Stores a cubin. A failure is no error: the kernel is compiled again next time.
    pub(super) fn store(&self, key: Key, version: (i32, i32), cubin: &[u8]) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut numbers = [0u8; 8];
        numbers[..4].copy_from_slice(&version.0.to_le_bytes());
        numbers[4..].copy_from_slice(&version.1.to_le_bytes());
        let mut file = Vec::with_capacity(HEADER + cubin.len());
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&numbers);
        file.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
        file.extend_from_slice(digest(key, &numbers, cubin).as_bytes());
        file.extend_from_slice(cubin);

        if fs::create_dir_all(&self.folder).is_err() {
            return;
        }
        let unique = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let temporary = self.folder.join(format!(".{unique}.tmp"));
        if fs::write(&temporary, &file).and_then(|()| fs::rename(&temporary, self.path(key))).is_err() {
            // Nothing more can be done about a file that cannot be removed either.
            let _ = fs::remove_file(&temporary);
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{}.cubin", key.0.to_hex()))
    }
}

fn digest(key: Key, version: &[u8], payload: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(key.0.as_bytes()).update(version).update(payload);
    hasher.finalize()
}

/// The folder of this user: `DITTOGRAD_CACHE` (`off` for none), `XDG_CACHE_HOME/dittograd`,
/// `~/.cache/dittograd`, or a private folder among the temporary files.
pub fn folder() -> Option<PathBuf> {
    folder_from(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn folder_from(var: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(given) = var("DITTOGRAD_CACHE") {
        return (given != "off").then(|| PathBuf::from(given));
    }
    // Its specification says to ignore a relative XDG_CACHE_HOME.
    if let Some(base) = var("XDG_CACHE_HOME").map(PathBuf::from).filter(|base| base.is_absolute()) {
        return Some(base.join("dittograd"));
    }
    match var("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        Some(home) => Some(home.join(".cache/dittograd")),
        None => private(&std::env::temp_dir()),
    }
}

/// A folder that only this user can write to, under `base`, which others can write to. A cubin is code: one that
/// somebody else could have put there must not be loaded.
#[cfg(unix)]
fn private(base: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let user = fs::metadata("/proc/self").ok()?.uid();
    let folder = base.join(format!("dittograd-{user}"));
    // It may exist already; the checks below decide.
    let _ = fs::DirBuilder::new().mode(0o700).create(&folder);
    let found = fs::symlink_metadata(&folder).ok()?;
    (found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0).then_some(folder)
}

#[cfg(not(unix))]
fn private(base: &Path) -> Option<PathBuf> {
    Some(base.join("dittograd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("dittograd-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_stored_is_loaded_and_damage_is_noticed() {
        let folder = temporary("damage");
        let cache = Cache::new(folder.clone());
        let (key, other) = (Key::new("source", "sm_90"), Key::new("source", "sm_80"));
        assert!(key != other && key != Key::new("sourc", "esm_90"));
        assert_eq!(cache.load(key), None);
        cache.store(key, (13, 0), b"payload");
        assert_eq!(cache.load(key).as_deref(), Some(&b"payload"[..]));
        assert_eq!(cache.load(other), None);
        assert_eq!(fs::read_dir(&folder).expect("listed").count(), 1, "no temporary file stays");

        let good = fs::read(cache.path(key)).expect("read");
        for cut in 0..good.len() {
            fs::write(cache.path(key), &good[..cut]).expect("written");
            assert_eq!(cache.load(key), None, "cut to {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(cache.path(key), &bad).expect("written");
            assert_eq!(cache.load(key), None, "byte {at} changed");
        }
        fs::write(cache.path(key), [&good[..], b"x"].concat()).expect("written");
        assert_eq!(cache.load(key), None, "too long");
        // The file of another key.
        fs::write(cache.path(other), &good).expect("written");
        assert_eq!(cache.load(other), None);
        cache.store(key, (13, 0), b"payload");
        assert!(cache.load(key).is_some());
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn an_unusable_folder_is_no_error() {
        let folder = temporary("file");
        fs::write(&folder, b"in the way").expect("written");
        let cache = Cache::new(folder.join("below"));
        cache.store(Key::new("", ""), (0, 0), b"x");
        assert_eq!(cache.load(Key::new("", "")), None);
        fs::remove_file(&folder).expect("removed");
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let pick = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, OsString)> =
                pairs.iter().map(|&(name, value)| (name.to_string(), value.into())).collect();
            folder_from(&|name| pairs.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()))
        };
        assert_eq!(pick(&[("DITTOGRAD_CACHE", "/a"), ("HOME", "/h")]), Some("/a".into()));
        assert_eq!(pick(&[("DITTOGRAD_CACHE", "off"), ("HOME", "/h")]), None);
        assert_eq!(pick(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/dittograd".into()));
        assert_eq!(pick(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some("/h/.cache/dittograd".into()));
        let folder = pick(&[]).expect("a temporary folder");
        assert!(folder.starts_with(std::env::temp_dir()));
    }
}
