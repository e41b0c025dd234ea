//! Files of the cache that any process may write and that no process depends on.

use std::fs;
use std::path::Path;

use triad_model::output;

/// Maximum bytes of such a file: a longer one was not written by this program.
pub(crate) const MAX_BYTES: u64 = 16 << 20;

/// Replaces the file at `path` with this content, if possible. Two processes may write concurrently: each writes its
/// own file and renames it when it is complete.
pub(crate) fn write(path: &Path, content: &[u8]) {
    let folder = fs::create_dir_all(path.parent().unwrap_or(Path::new(".")));
    // An error is ignored: content that is not cached is computed again.
    let _ = folder.and_then(|()| output::write_own(path, content));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_none_is_left_half_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache").join("kernels.json");
        for content in ["one", "another"] {
            write(&path, content.as_bytes());
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        // A folder cannot be replaced by a file.
        let taken = folder.path().join("cache").join("folder.json");
        fs::create_dir_all(taken.join("inside")).unwrap();
        write(&taken, b"content");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }
}
