//! Atomic file writes: a file is written under another name in the same folder, synced, and renamed into place.
//! Readers, and a crash or a full disk in the middle, find either the old file or the new one.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces or creates the file `path` with these bytes. On an error the old file is unchanged.
#[track_caller]
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| file.write_all(bytes))
}

/// Replaces or creates the file `path` with what `content` writes. On an error, also of `content`, the old file is
/// unchanged.
///
/// Links are followed. The permissions of a replaced file are kept, and a read-only file is not replaced. Temporary
/// files that a killed process left while writing the same file are removed. A device or pipe is written directly.
#[track_caller]
pub fn write_with(
    path: impl AsRef<Path>,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    place(path, content).map_err(|e| Error::file("write", path, e))
}

fn place(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let other = |why: &str| Err(io::Error::other(why.to_string()));
    let old = match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return other("is a folder, not a file"),
        Ok(meta) if !meta.is_file() => {
            let mut device = OpenOptions::new().write(true).open(path)?;
            return content(&mut device);
        }
        // A rename would ignore it.
        Ok(meta) if meta.permissions().readonly() => return other("is read-only"),
        Ok(meta) => Some(meta.permissions()),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let target = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => fs::canonicalize(path)?,
        _ => path.to_path_buf(),
    };
    let Some(name) = target.file_name() else { return other("is not the name of a file") };
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    clean(folder, name);
    let temporary = Temporary::new(folder, name)?;
    if let Some(permissions) = old {
        temporary.file.set_permissions(permissions)?;
    }
    let mut file = BufWriter::with_capacity(1 << 18, &temporary.file);
    content(&mut file)?;
    file.flush()?;
    drop(file);
    temporary.file.sync_all()?;
    temporary.rename(&target)?;
    sync_folder(folder)
}

/// Creates a folder and its missing parents, like [`std::fs::create_dir_all`], and syncs the name of each new one to
/// the disk, so that files [written](write()) into it are not lost with the folder.
#[track_caller]
pub fn create_dir_all(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    make_folders(path, &mut sync_folder).map_err(|e| Error::file("make folder", path, e))
}

/// `sync` is called with the parent of each new folder, the outermost first.
fn make_folders(path: &Path, sync: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    // If a file is in the way, the code below reports it.
    if !above.exists() {
        make_folders(above, sync)?;
    }
    match fs::create_dir(path) {
        // Another process was faster, and may not have synced it yet.
        Err(_) if path.is_dir() => {}
        made => made?,
    }
    sync(if above.as_os_str().is_empty() { Path::new(".") } else { above })
}

/// Syncs a new name to the disk, where folders can be opened for that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|f| f.sync_all()) {
        // Some file systems do not support this, and a folder that may be written but not listed cannot be opened.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        done => done,
    }
}

const END: &str = ".dittograd-tmp";

/// Longer names are shortened in temporary names, since file systems allow 255 bytes.
const MAX_PLAIN_NAME: usize = 200;

/// The prefix of temporary names for `name`.
fn beginning(name: &OsStr) -> OsString {
    let mut text = OsString::from(".");
    match name.len() > MAX_PLAIN_NAME {
        true => text.push(&blake3::hash(name.as_encoded_bytes()).to_hex()[..16]),
        false => text.push(name),
    }
    text.push(".");
    text
}

/// Removes abandoned temporary files for `name`. Writers hold locks, which end with their process.
fn clean(folder: &Path, name: &OsStr) {
    let (begin, Ok(list)) = (beginning(name), fs::read_dir(folder)) else { return };
    for entry in list.flatten() {
        let file_name = entry.file_name();
        let bytes = file_name.as_encoded_bytes();
        let ours = bytes.starts_with(begin.as_encoded_bytes()) && bytes.ends_with(END.as_bytes());
        if !ours || !entry.file_type().is_ok_and(|t| t.is_file()) {
            continue;
        }
        let path = entry.path();
        // If it cannot be removed, it stays; it does no harm.
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// A temporary file, removed unless it is renamed into place.
struct Temporary {
    path: PathBuf,
    file: File,
    placed: bool,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Temporary {
    fn new(folder: &Path, name: &OsStr) -> io::Result<Temporary> {
        loop {
            let mut text = beginning(name);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            text.push(format!("{}-{number}{END}", std::process::id()));
            let path = folder.join(text);
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                // Left by a dead process with the same id, on a disk without locks.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            // Without locks, the file is just not cleaned up after a crash.
            let locked = file.lock().is_ok();
            let temporary = Temporary { path, file, placed: false };
            // Another process may have removed it before it was locked.
            if !locked || fs::symlink_metadata(&temporary.path).is_ok() {
                return Ok(temporary);
            }
        }
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing more can be done if it cannot be removed.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |e: io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
        let mut all: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
        all.sort();
        all
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a");
        write(&path, b"old").unwrap();
        let error = write_with(&path, |f| {
            f.write_all(&[1; 1 << 20])?;
            Err(io::Error::from(ErrorKind::StorageFull))
        })
        .unwrap_err();
        assert_eq!(error.to_string(), format!("write: {}: no storage space", path.display()));
        assert_eq!((fs::read(&path).unwrap(), names(here.path())), (b"old".to_vec(), vec!["a".to_string()]));
        write(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(here.path())), (b"new".to_vec(), vec!["a".to_string()]));
        // The folder goes away in the middle.
        let inner = here.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let gone = write_with(inner.join("b"), |f| {
            fs::remove_dir_all(&inner)?;
            f.write_all(b"x")
        });
        assert!(gone.unwrap_err().to_string().contains("b: No such file"));
        for (odd, want) in [("no/a", "No such file"), ("", "is a folder"), ("a/b", "Not a directory")] {
            let error = write(here.path().join(odd), b"x").unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert_eq!(names(here.path()), ["a"]);
    }

    #[test]
    fn the_folder_above_each_new_folder_is_synced() {
        let here = tempfile::tempdir().unwrap();
        let made = |path: &Path| {
            let mut synced = Vec::new();
            let outcome = make_folders(path, &mut |folder| {
                synced.push(folder.to_path_buf());
                sync_folder(folder)
            });
            (outcome.map_err(|e| e.kind()), synced)
        };
        let at = |name: &str| here.path().join(name);
        assert_eq!(made(&at("a/b/c")), (Ok(()), vec![at(""), at("a"), at("a/b")]));
        assert!(at("a/b/c").is_dir());
        assert_eq!(made(&at("a/b/c")), (Ok(()), vec![]), "nothing is new");
        assert_eq!(made(&at("a/b/d/")), (Ok(()), vec![at("a/b")]));
        fs::write(at("a/file"), b"").unwrap();
        for path in ["a/file", "a/file/b"] {
            assert!(made(&at(path)).0.is_err());
            let error = create_dir_all(at(path)).unwrap_err().to_string();
            assert!(error.starts_with("make folder: ") && error.contains("a/file"), "{error}");
        }
        // An error of the disk is told, not passed over.
        let full = |_: &Path| Err(io::Error::from(ErrorKind::StorageFull));
        assert!(make_folders(&at("e"), &mut full.clone()).is_err());
        create_dir_all(at("f/g")).unwrap();
        create_dir_all("").unwrap();
        assert!(at("f/g").is_dir());
    }

    #[test]
    fn a_panic_leaves_the_old_file_and_nothing_else() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a");
        write(&path, b"old").unwrap();
        let caught = std::panic::catch_unwind(|| write_with(&path, |_| panic!("in the middle")));
        assert!(caught.is_err());
        assert_eq!((fs::read(&path).unwrap(), names(here.path())), (b"old".to_vec(), vec!["a".to_string()]));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a");
        fs::write(here.path().join(format!(".a.1-0{END}")), b"half").unwrap();
        fs::write(here.path().join(format!(".b.1-0{END}")), b"another's").unwrap();
        let living = Temporary::new(here.path(), OsStr::new("a")).unwrap();
        write(&path, b"new").unwrap();
        assert!(living.path.exists());
        let left = names(here.path());
        assert_eq!((left.len(), &left[1..]), (3, &[format!(".b.1-0{END}"), "a".to_string()][..]));
        drop(living);
        assert_eq!(names(here.path()), left[1..]);
    }

    #[test]
    fn many_writers_of_one_file_leave_one_of_their_files() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a");
        std::thread::scope(|s| {
            for i in 0..4u8 {
                let path = &path;
                s.spawn(move || (0..25).for_each(|_| write(path, &[i; 5000]).unwrap()));
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 5000 && bytes.iter().all(|b| *b == bytes[0]));
        assert_eq!(names(here.path()), ["a"]);
    }

    #[test]
    fn names_may_be_as_long_as_the_file_system_allows() {
        let here = tempfile::tempdir().unwrap();
        for length in [1, MAX_PLAIN_NAME, MAX_PLAIN_NAME + 1, 255] {
            let name = "n".repeat(length);
            fs::write(
                here.path().join(beginning(OsStr::new(&name))).with_extension("1-0.dittograd-tmp"),
                b"",
            )
            .unwrap();
            write(here.path().join(&name), b"new").unwrap();
            assert_eq!(fs::read(here.path().join(&name)).unwrap(), b"new");
        }
        assert_eq!(names(here.path()).len(), 4, "what was left is removed");
        let error = write(here.path().join("n".repeat(256)), b"x").unwrap_err().to_string();
        assert!(error.contains("File name too long"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_permissions_and_devices() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let here = tempfile::tempdir().unwrap();
        let (path, link) = (here.path().join("a"), here.path().join("link"));
        write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("a", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(write(&path, b"newer").unwrap_err().to_string().ends_with("a: is read-only"));
        assert_eq!(fs::read(&path).unwrap(), b"new");
        symlink("nowhere", here.path().join("lost")).unwrap();
        assert!(
            write(here.path().join("lost"), b"x").unwrap_err().to_string().contains("lost: No such file")
        );
        write("/dev/null", b"gone").unwrap();
        if cfg!(target_os = "linux") {
            let full = write("/dev/full", b"x").unwrap_err().to_string();
            assert!(full.starts_with("write: /dev/full: No space left"), "{full}");
        }
    }

    #[test]
    fn a_file_whose_name_begins_as_another_does_is_another() {
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join(format!(".ab.1-0{END}")), b"of ab").unwrap();
        fs::write(here.path().join(".a.1-0"), b"no temporary file").unwrap();
        write(here.path().join("a"), b"new").unwrap();
        assert_eq!(names(here.path()), [".a.1-0".to_string(), format!(".ab.1-0{END}"), "a".to_string()]);
    }

    #[test]
    fn a_temporary_file_of_another_process_is_not_taken() {
        let here = tempfile::tempdir().unwrap();
        let next = NEXT.load(Ordering::Relaxed);
        for number in next..next + 50 {
            let name = format!(".a.{}-{number}{END}", std::process::id());
            fs::write(here.path().join(name), b"another's").unwrap();
        }
        let made = Temporary::new(here.path(), OsStr::new("a")).unwrap();
        assert_eq!(fs::read(&made.path).unwrap(), b"");
        drop(made);
        let read = |name: &String| fs::read(here.path().join(name)).unwrap();
        assert!(names(here.path()).iter().all(|name| read(name) == b"another's"));
    }

    /// A process of its own has a folder of its own to be in.
    #[test]
    fn a_bare_name_is_a_file_of_the_folder_one_is_in() {
        const INSIDE: &str = "DITTOGRAD_TEST_BARE_NAME";
        if std::env::var_os(INSIDE).is_some() {
            return write("bare", b"new").unwrap();
        }
        let here = tempfile::tempdir().unwrap();
        fs::write(here.path().join(format!(".bare.1-0{END}")), b"half").unwrap();
        let test = "io::atomic::tests::a_bare_name_is_a_file_of_the_folder_one_is_in";
        let inner = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(INSIDE, "1")
            .current_dir(here.path())
            .output()
            .unwrap();
        assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stdout));
        assert_eq!(fs::read(here.path().join("bare")).unwrap(), b"new");
        assert_eq!(names(here.path()), ["bare"], "what was left there is removed");
    }
}
