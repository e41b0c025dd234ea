//! A lock of a file that several processes read, check and replace.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::files;

/// Maximum time to wait for the lock. It is held while a file is written.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts.
const POLL: Duration = Duration::from_millis(5);

/// The lock of a file, for the processes that take it. It is released when dropped, or when the process ends.
///
/// On Unix, the file itself is locked: nothing is left next to it, and a folder that cannot be written needs nothing.
/// The holder may replace the file: processes that wait for the lock then lock the new one. Elsewhere a locked file
/// cannot be replaced, so that a file in the user's folder for temporary files is locked.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits for the lock of the file at `path`; follows links. Returns `None` if there is no file.
    ///
    /// # Errors
    /// If it is no plain file, or cannot be opened or locked; if another process keeps the lock for many seconds.
    pub fn wait(path: &Path) -> io::Result<Option<Self>> {
        let end = Instant::now() + PATIENCE;
        let mut opened = None;
        loop {
            let file = match opened.take().map_or_else(|| open(path), Ok) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            match file.try_lock() {
                Ok(()) if is_at(&file, path)? => return Ok(Some(Self { _file: file })),
                // Its holder has replaced the file.
                Ok(()) => {}
                Err(TryLockError::Error(error)) => return Err(error),
                // It stays open: Windows may not replace a file while another process opens it.
                Err(TryLockError::WouldBlock) => {
                    thread::sleep(POLL);
                    opened = Some(file);
                }
            }
            if Instant::now() >= end {
                let message = "another program keeps the file locked";
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
}

/// Opens what is locked for `path`.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    let file = files::open(path)?;
    // Some network file systems lock only files that are open for writing.
    let writable = File::options().read(true).write(true).open(path);
    Ok(writable.unwrap_or(file))
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    use sha2::{Digest, Sha256};
    files::open(path)?;
    let name = Sha256::digest(path.canonicalize()?.as_os_str().as_encoded_bytes());
    let name = name.iter().map(|byte| format!("{byte:02x}"));
    let name = format!("triad-{}.lock", name.collect::<String>());
    crate::output::open_lock(&std::env::temp_dir().join(name))
}

/// Returns whether `path` still leads to the file that was locked.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let locked = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (locked.dev(), locked.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> io::Result<bool> {
    fs::exists(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::write_own;

    #[test]
    fn one_of_many_that_check_and_replace_a_file_at_once_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("count");
        fs::write(&path, "0").unwrap();
        thread::scope(|scope| {
            // Each waits for the disk: together far less than the patience of one that is unlucky.
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let _lock = FileLock::wait(&path).unwrap().unwrap();
                        let count: u32 = fs::read_to_string(&path).unwrap().parse().unwrap();
                        write_own(&path, (count + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "40");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_there_has_no_lock_and_one_that_is_no_plain_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            FileLock::wait(&folder.path().join("none"))
                .unwrap()
                .is_none()
        );
        assert!(FileLock::wait(folder.path()).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn a_lock_is_of_the_file_whatever_its_name_and_needs_no_right_to_write() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        symlink("file", &link).unwrap();
        let lock = FileLock::wait(&link).unwrap();
        assert!(files::open(&path).unwrap().try_lock().is_err());
        drop(lock);
        assert!(FileLock::wait(&path).unwrap().is_some());
    }
}
