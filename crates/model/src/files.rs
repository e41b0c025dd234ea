//! Reading of plain files of bounded size, whole or from their start, without a read that could block a thread.
//!
//! This is not for input that users pipe into a command (`-f /dev/stdin`): commands read that themselves, within their
//! limits.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens the file at `path`; follows symbolic links.
///
/// # Errors
/// If it cannot be opened, or is no plain file: a device may never end, and a named pipe blocks until another program
/// closes it.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    // Opening a named pipe would wait for its other end, and opening some devices changes them.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        libc::O_NONBLOCK | libc::O_NOCTTY,
    );
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "expected a regular file",
        ))
    }
}

/// Returns whether there is anything at `path`: also a symbolic link that leads nowhere, which no file of a model should
/// be. To read it is then an error, where [`Path::exists`] would let its reader go on without it.
///
/// # Errors
/// If the system does not tell, such as in a folder that may not be searched.
pub fn is_there(path: &Path) -> io::Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(false),
            _ => Err(error),
        },
    }
}

/// Reads the file at `path`, of at most `most` bytes.
///
/// # Errors
/// As for [`open`]; if the file is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let too_long = || {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("expected at most {most} bytes"),
        )
    };
    if length > most {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Err(too_long())
    } else {
        Ok(bytes)
    }
}

/// Returns the bytes of a text without a byte order mark at their start, which some editors write. In UTF-8 it has no
/// meaning, and JSON's readers may ignore it (RFC 8259, section 8.1).
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Reads the text file at `path`, of at most `most` bytes.
///
/// # Errors
/// As for [`read`]; if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "expected UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_bounded_size_is_read_and_a_longer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "text");
        assert_eq!(
            read(&path, 3).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(
            read_text(&path, 4).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(
            open(folder.path()).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    #[cfg(unix)]
    fn a_link_that_leads_nowhere_is_there_and_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let [link, none] = ["link", "none"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(is_there(&link).unwrap());
        read(&link, 10).unwrap_err();
        assert!(!is_there(&none).unwrap());
        std::fs::write(&none, "").unwrap();
        assert!(
            !is_there(&none.join("file")).unwrap(),
            "a file has no files in it"
        );
    }

    #[test]
    #[cfg(unix)]
    fn devices_and_pipes_are_refused_by_any_name_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link, file) = (
            folder.path().join("pipe"),
            folder.path().join("link"),
            folder.path().join("file"),
        );
        let made = std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&*pipe, &*link, Path::new("/dev/zero"), &*socket] {
            read(path, 10).unwrap_err();
        }
        std::fs::write(&file, "text").unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 10).unwrap(), b"text");
    }
}
