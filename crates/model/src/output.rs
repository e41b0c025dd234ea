//! Writing of files, which is done in one of two ways: a file is replaced when the new one is complete, or written
//! directly.
//!
//! A plain file is written under a random name in the same folder and gets its own name at the end
//! ([`OutputFile::finish`]), so a reader finds either the old content or the new one. Anything else (a device, a pipe,
//! a terminal, `/dev/stdout`) is opened and written, and never replaced.
//!
//! [`OutputFile::create`] is for a name that a user chose: it follows links and writes their target, as most programs
//! do. [`OutputFile::own`] is for a name that the program chose, as in its cache or in a package: it replaces whatever
//! has that name, and does not follow a link. [`open_own`] is for the few files that later runs continue.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, TempPath};

/// Prefix and suffix of the names of unfinished files.
const UNFINISHED: [&str; 2] = [".triad-", ".part"];
/// Maximum number of successive links, as in the system.
const MAX_LINKS: usize = 40;
/// Permissions of a new file, before the user's mask: for everyone, or for the user only.
const PUBLIC: u32 = 0o666;
const PRIVATE: u32 = 0o600;

/// The unfinished files of this process.
static PARTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn parts() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files of this process, which is about to end.
pub fn remove_unfinished() {
    for part in std::mem::take(&mut *parts()) {
        let _ = fs::remove_file(part);
    }
}

/// Returns whether a file has the name of an unfinished file.
pub fn is_unfinished(name: &str) -> bool {
    name.starts_with(UNFINISHED[0]) && name.ends_with(UNFINISHED[1])
}

/// A file that is being written. If it is dropped before it is [finished](Self::finish), it leaves no trace, unless it
/// is written directly.
#[derive(Debug)]
pub struct OutputFile(Sink);

#[derive(Debug)]
enum Sink {
    Replacing {
        part: Unfinished,
        file: File,
        target: PathBuf,
    },
    Through(File),
}

/// The path of an unfinished file, which is removed with this value.
#[derive(Debug)]
struct Unfinished(Option<TempPath>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            parts().remove(path.to_path_buf().as_path());
        }
    }
}

impl OutputFile {
    /// Opens the output at `path`, which a user named: follows links, and keeps the permissions of an existing file.
    ///
    /// # Errors
    /// If the system does not let this user write there.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::named(path, PUBLIC)
    }

    /// Does the same as [`Self::create`], but only the owner can read a new file.
    ///
    /// # Errors
    /// As for [`Self::create`].
    pub fn create_private(path: &Path) -> io::Result<Self> {
        Self::named(path, PRIVATE)
    }

    /// Opens a file that replaces whatever is at `path`, except a folder.
    ///
    /// # Errors
    /// If the system does not let this user write there.
    pub fn own(path: &Path) -> io::Result<Self> {
        Self::replacing(path.to_owned(), PUBLIC)
    }

    /// Does the same as [`Self::own`], but only the owner can read the file.
    ///
    /// # Errors
    /// As for [`Self::own`].
    pub fn own_private(path: &Path) -> io::Result<Self> {
        Self::replacing(path.to_owned(), PRIVATE)
    }

    fn named(path: &Path, mode: u32) -> io::Result<Self> {
        if let Some(descriptor) = descriptor(path) {
            return Ok(Self(Sink::Through(descriptor?)));
        }
        // The file is opened first and checked afterwards: the system decides whether a link may be followed, and
        // nothing can change in between.
        match File::options().write(true).open(path) {
            Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => {
                Self::replacing(path.canonicalize()?, mode)
            }
            Ok(file) => Ok(Self(Sink::Through(file))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Self::replacing(followed(path)?, mode)
            }
            Err(error) => Err(error),
        }
    }

    fn replacing(target: PathBuf, mode: u32) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(UNFINISHED[0]).suffix(UNFINISHED[1]);
        // Opened by this closure, since errors of `tempfile_in` name the random path.
        let (file, part) = builder
            .make_in(folder(&target), |path| new_file(path, mode))?
            .into_parts();
        parts().insert(part.to_path_buf());
        let part = Unfinished(Some(part));
        keep_permissions(&target, &file)?;
        Ok(Self(Sink::Replacing { part, file, target }))
    }

    /// Returns the file to write to.
    pub fn file(&mut self) -> &mut File {
        match &mut self.0 {
            Sink::Replacing { file, .. } | Sink::Through(file) => file,
        }
    }

    /// Renames the file after all of it has been written to the disk.
    ///
    /// # Errors
    /// If the disk is full or fails, or a folder has the name: the previous file then remains.
    pub fn finish(mut self) -> io::Result<()> {
        if matches!(self.0, Sink::Replacing { .. }) {
            self.file().sync_all()?;
        }
        self.finish_early().map(drop)
    }

    /// Does the same as [`Self::finish`], but never replaces a file.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is a file with the name; as for [`Self::finish`].
    pub fn finish_new(mut self) -> io::Result<()> {
        self.file().flush()?;
        match self.0 {
            Sink::Through(_) => Ok(()),
            Sink::Replacing {
                mut part,
                file,
                target,
            } => {
                file.sync_all()?;
                let path = part.0.take().expect("the file is not finished");
                let unfinished = path.to_path_buf();
                let named = NamedTempFile::from_parts(file, path).persist_noclobber(target);
                parts().remove(&unfinished);
                named.map(drop).map_err(|failed| failed.error)
            }
        }
    }

    /// Does the same as [`Self::finish`] without waiting for the disk: after a power failure, the file may exist
    /// without its content.
    ///
    /// # Errors
    /// As for [`Self::finish`].
    pub fn finish_early(self) -> io::Result<File> {
        match self.0 {
            Sink::Through(mut file) => file.flush().map(|()| file),
            Sink::Replacing {
                mut part,
                file,
                target,
            } => {
                let path = part.0.take().expect("the file is not finished");
                let unfinished = path.to_path_buf();
                let named = NamedTempFile::from_parts(file, path).persist(target);
                parts().remove(&unfinished);
                named.map_err(|failed| failed.error)
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// Replaces whatever is at `path` by a file with this content, as [`OutputFile::own`] does.
///
/// # Errors
/// If it cannot be written; the previous file then remains.
pub fn write_own(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OutputFile::own(path)?;
    file.write_all(content)?;
    file.finish()
}

/// Creates a file at `path` with this content, which only its owner can read.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if there is one; if it cannot be written.
pub(crate) fn write_new_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut output = OutputFile::own_private(path)?;
    output.write_all(content)?;
    output.finish_new()
}

/// Opens the file at `path` for reading and writing; creates it if there is none. Anything other than a plain file of
/// this user with only this name, such as a link, is replaced by an empty file.
///
/// # Errors
/// If the file cannot be opened or created, or a folder has the name.
pub fn open_own(path: &Path) -> io::Result<File> {
    let is_there = fs::symlink_metadata(path);
    if is_there.as_ref().is_ok_and(is_own) {
        let mut options = File::options();
        options.read(true).write(true);
        let file = without_links(&mut options).open(path)?;
        if is_own(&file.metadata()?) {
            return Ok(file);
        }
    }
    match is_there {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        _ => fs::remove_file(path)?,
    }
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Opens the file at `path` to be locked; creates it if there is none. It may belong to another user, but must not be a
/// link.
///
/// # Errors
/// If it cannot be opened or created, or is a link.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).write(true).truncate(false);
    without_links(&mut options).open(path)
}

/// Returns whether the file with this metadata belongs to this user; true if the system does not report it.
#[cfg(unix)]
pub fn is_of_this_user(metadata: &fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(metadata) == rustix::process::geteuid().as_raw()
}

/// Returns whether the file with this metadata belongs to this user; true if the system does not report it.
#[cfg(not(unix))]
pub fn is_of_this_user(_: &fs::Metadata) -> bool {
    true
}

/// Returns whether this is a plain file of this user that has only one name.
#[cfg(unix)]
fn is_own(metadata: &fs::Metadata) -> bool {
    metadata.is_file()
        && std::os::unix::fs::MetadataExt::nlink(metadata) == 1
        && is_of_this_user(metadata)
}

#[cfg(not(unix))]
fn is_own(metadata: &fs::Metadata) -> bool {
    metadata.is_file()
}

/// Returns whether this is a plain file of this user that others cannot read.
#[cfg(unix)]
pub(crate) fn is_private(metadata: &fs::Metadata) -> bool {
    is_own(metadata)
        && std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 == 0
}

/// Returns whether this is a plain file.
#[cfg(not(unix))]
pub(crate) fn is_private(metadata: &fs::Metadata) -> bool {
    is_own(metadata)
}

/// Sets options that refuse a link, and do not wait for the reader of a pipe.
#[cfg(unix)]
fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
}

#[cfg(not(unix))]
fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// Creates a new file at `path` with the permissions of `mode` that the user's mask leaves; fails if a file exists.
#[cfg(unix)]
fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
}

#[cfg(not(unix))]
fn new_file(path: &Path, _: u32) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Gives `file` the permissions of the plain file at `target`, if there is one.
#[cfg(unix)]
fn keep_permissions(target: &Path, file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_file() => file.set_permissions(fs::Permissions::from_mode(
            metadata.permissions().mode() & 0o777,
        )),
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn keep_permissions(_: &Path, _: &File) -> io::Result<()> {
    Ok(())
}

/// Returns the folder of the file at `path`.
fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Returns the path at which a missing file is to be created: the end of the links.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = fs::read_link(&path) else {
            return Ok(path);
        };
        path = folder(&path).join(next);
    }
    Err(io::Error::other("too many successive links"))
}

/// Opens a file that this process already has open, if `path` names one (`/dev/stdout`, `/dev/fd/3`): such a file is
/// written at its current position, and not replaced. `None` if the path names something else.
#[cfg(unix)]
fn descriptor(path: &Path) -> Option<io::Result<File>> {
    use std::os::fd::AsFd;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let parent = folder(&path).canonicalize().ok()?;
        let is_own = ["/proc/self/fd", "/dev/fd"]
            .iter()
            .any(|own| fs::canonicalize(own).is_ok_and(|own| own == parent));
        if is_own {
            // The same open file, at the same position.
            return Some(match path.file_name()?.to_str()? {
                "1" => io::stdout()
                    .flush()
                    .and_then(|()| io::stdout().as_fd().try_clone_to_owned())
                    .map(File::from),
                "2" => io::stderr().as_fd().try_clone_to_owned().map(File::from),
                _ => File::options().append(true).open(&path),
            });
        }
        path = folder(&path).join(fs::read_link(&path).ok()?);
    }
    None
}

#[cfg(not(unix))]
fn descriptor(_: &Path) -> Option<io::Result<File>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &str) -> io::Result<()> {
        let mut file = OutputFile::create(path)?;
        file.write_all(content.as_bytes())?;
        file.finish()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_once_it_is_whole_and_leaves_nothing_if_it_is_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figure.svg");
        write(&path, "old").unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let unfinished = names(folder.path());
        assert_eq!(
            unfinished.iter().filter(|name| is_unfinished(name)).count(),
            1,
            "{unfinished:?}"
        );
        drop(file);
        assert_eq!(names(folder.path()), ["figure.svg"]);
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(folder.path()), ["figure.svg"]);
        assert!(parts().iter().all(|part| !part.starts_with(folder.path())));
    }

    #[test]
    fn an_error_names_no_random_path() {
        let folder = tempfile::tempdir().unwrap();
        let error = OutputFile::create(&folder.path().join("none/figure.svg")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn a_folder_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        write(&taken, "content").unwrap_err();
        write_own(&taken, b"content").unwrap_err();
        assert_eq!(names(folder.path()), ["taken"]);
    }

    #[cfg(unix)]
    mod unix {
        use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
        use std::process::Command;

        use super::*;

        #[test]
        fn a_device_is_written_and_stays_a_device() {
            write(Path::new("/dev/null"), "content").unwrap();
            assert!(
                fs::metadata("/dev/null")
                    .unwrap()
                    .file_type()
                    .is_char_device()
            );
            // Also through a link.
            let folder = tempfile::tempdir().unwrap();
            let link = folder.path().join("null");
            symlink("/dev/null", &link).unwrap();
            write(&link, "content").unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
            let full = write(Path::new("/dev/full"), "content");
            assert!(!Path::new("/dev/full").exists() || full.is_err());
        }

        #[test]
        fn a_pipe_is_written_and_stays_a_pipe() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            assert!(
                Command::new("mkfifo")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            );
            let reader = std::thread::spawn({
                let path = path.clone();
                move || fs::read_to_string(path).unwrap()
            });
            write(&path, "content").unwrap();
            assert_eq!(reader.join().unwrap(), "content");
            assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
            assert_eq!(names(folder.path()), ["pipe"]);
        }

        #[test]
        fn an_open_file_is_written_where_it_ends_and_not_replaced() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("log");
            fs::write(&path, "first ").unwrap();
            let open = File::options().append(true).open(&path).unwrap();
            let number = std::os::fd::AsRawFd::as_raw_fd(&open);
            let before = fs::metadata(&path).unwrap().ino();
            write(Path::new(&format!("/dev/fd/{number}")), "second").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "first second");
            assert_eq!(fs::metadata(&path).unwrap().ino(), before);
            write(Path::new("/dev/stderr"), "").unwrap();
        }

        #[test]
        fn a_link_that_a_user_names_is_followed_and_stays() {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::create_dir(path("elsewhere")).unwrap();
            fs::write(path("elsewhere/file"), "old").unwrap();
            symlink("elsewhere/file", path("link")).unwrap();
            symlink("link", path("second")).unwrap();
            symlink("elsewhere/new", path("dangling")).unwrap();
            symlink("loop", path("loop")).unwrap();
            write(&path("second"), "new").unwrap();
            write(&path("dangling"), "made").unwrap();
            write(&path("loop"), "content").unwrap_err();
            assert_eq!(fs::read_to_string(path("elsewhere/file")).unwrap(), "new");
            assert_eq!(fs::read_to_string(path("elsewhere/new")).unwrap(), "made");
            assert!(
                ["link", "second", "dangling"]
                    .iter()
                    .all(|name| path(name).is_symlink())
            );
            assert_eq!(names(&path("elsewhere")), ["file", "new"]);
        }

        #[test]
        fn a_link_in_the_place_of_a_file_of_the_program_is_replaced_and_not_written_through() {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            fs::write(path("mine"), "mine").unwrap();
            symlink("mine", path("costs.json")).unwrap();
            symlink("mine", path("costs.json.part")).unwrap();
            write_own(&path("costs.json"), b"costs").unwrap();
            assert_eq!(fs::read_to_string(path("costs.json")).unwrap(), "costs");
            assert!(!path("costs.json").is_symlink());
            for (name, make) in [
                ("link", symlink as fn(_, _) -> _),
                ("hard", |from: PathBuf, to| fs::hard_link(from, to)),
            ] {
                make(path("mine"), path(name)).unwrap();
                open_own(&path(name)).unwrap().write_all(b"part").unwrap();
                assert_eq!(fs::read_to_string(path(name)).unwrap(), "part");
                assert_eq!(
                    open_own(&path(name)).unwrap().metadata().unwrap().len(),
                    4,
                    "a later run continues it"
                );
            }
            symlink("mine", path("lock")).unwrap();
            open_lock(&path("lock")).unwrap_err();
            assert_eq!(fs::read_to_string(path("mine")).unwrap(), "mine");
        }

        #[test]
        fn a_file_keeps_its_permissions_and_a_new_private_one_is_its_owners() {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
            fs::write(path("plain"), "").unwrap();
            fs::write(path("kept"), "").unwrap();
            fs::set_permissions(path("kept"), fs::Permissions::from_mode(0o640)).unwrap();
            for name in ["new", "kept"] {
                write(&path(name), "content").unwrap();
            }
            OutputFile::create_private(&path("private"))
                .unwrap()
                .finish()
                .unwrap();
            OutputFile::own_private(&path("key"))
                .unwrap()
                .finish()
                .unwrap();
            assert_eq!((mode("new"), mode("kept")), (mode("plain"), 0o640));
            assert_eq!((mode("private"), mode("key")), (0o600, 0o600));
        }
    }
}
