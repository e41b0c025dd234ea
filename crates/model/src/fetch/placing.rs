//! Tells how the files of a model lie in the cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::name::{DEFAULT_MODEL, ModelName};
use crate::error::{Error, ErrorKind, Result};

/// The way in which the files of a name lie in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placing {
    /// They are in the cache under exactly this name, or not there.
    Own,
    /// The folder or file is there under another spelling, since the file system does not tell apart small and capital
    /// letters, or drops dots at the end.
    OtherSpelling,
    /// A folder or the file is a link, which the user has made: its files lie elsewhere.
    Linked,
    /// The name is a path.
    Path,
}

/// Tells how the files of `name` lie in `cache`. The folder of all repositories may be a link.
pub(super) fn find(cache: &Path, name: &ModelName) -> Result<Placing> {
    let (mut folder, names): (PathBuf, Vec<&str>) = match name {
        ModelName::Path(_) => return Ok(Placing::Path),
        ModelName::Default => (cache.to_owned(), vec![DEFAULT_MODEL]),
        ModelName::Hub(repository) => {
            let file = repository.file.as_deref().into_iter();
            let names = [&*repository.owner, &*repository.name].into_iter();
            let names = names.chain(file.flat_map(|file| file.split('/')));
            (cache.join("hf"), names.collect())
        }
    };
    for name in names {
        let unreadable =
            |error: io::Error| Error::new(ErrorKind::Io, error.to_string()).at(&folder);
        match fs::symlink_metadata(folder.join(name)) {
            Ok(data) if data.is_symlink() => return Ok(Placing::Linked),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => break,
            Err(error) => return Err(unreadable(error)),
        }
        let mut entries = fs::read_dir(&folder).map_err(unreadable)?;
        if !entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() == *name)) {
            return Ok(Placing::OtherSpelling);
        }
        folder.push(name);
    }
    Ok(Placing::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placing(cache: &Path, name: &str) -> Placing {
        find(cache, &ModelName::parse(name).unwrap()).unwrap()
    }

    #[test]
    fn files_of_the_cache_are_its_own_and_others_are_not() {
        let cache = tempfile::tempdir().unwrap();
        fs::create_dir_all(cache.path().join("hf/owner/name/sub")).unwrap();
        fs::write(cache.path().join("hf/owner/name/sub/a.gguf"), "a").unwrap();
        for name in [
            DEFAULT_MODEL,
            "hf:owner/name",
            "hf:owner/name:sub/a.gguf",
            "hf:owner/name:sub/b.gguf",
            "hf:owner/name:sub/a.gguf/b.gguf",
            "hf:other/name",
        ] {
            assert_eq!(placing(cache.path(), name), Placing::Own, "{name}");
        }
        assert_eq!(placing(cache.path(), "a.gguf"), Placing::Path);
        // Where the system tells letters apart, this is another repository.
        let is_there = cache.path().join("hf/Owner").exists();
        let other = placing(cache.path(), "hf:Owner/name");
        assert_eq!(other == Placing::OtherSpelling, is_there);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_of_the_user_is_noticed_at_each_step() {
        use std::os::unix::fs::symlink;
        let (cache, mine) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let here = cache.path();
        fs::create_dir_all(mine.path().join("name/sub")).unwrap();
        fs::write(mine.path().join("name/sub/a.gguf"), "a").unwrap();
        fs::create_dir_all(here.join("hf/o/n/sub")).unwrap();
        symlink(mine.path(), here.join("hf/linked")).unwrap();
        symlink(mine.path().join("name"), here.join("hf/o/linked")).unwrap();
        symlink(mine.path().join("name/sub"), here.join("hf/o/n/linked")).unwrap();
        symlink(
            mine.path().join("name/sub/a.gguf"),
            here.join("hf/o/n/sub/a.gguf"),
        )
        .unwrap();
        for name in [
            "hf:linked/name",
            "hf:o/linked",
            "hf:o/linked:sub/a.gguf",
            "hf:o/n:linked/a.gguf",
            "hf:o/n:sub/a.gguf",
        ] {
            assert_eq!(placing(here, name), Placing::Linked, "{name}");
        }
    }
}
