//! A cache of compiled shaders on disk, so that each GPU compiles each shader only once. It needs a driver that returns
//! compiled shaders.
//!
//! The folder has one file per GPU: a header, and the data that the driver returned. The header has the GPU, its
//! driver, Triad's version and a hash of everything. A driver need not validate the data that it is given. So a file
//! that is not as Triad wrote it is never passed to a driver.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};
use triad_model::files;
use triad_model::output::OutputFile;

use super::adapters::Adapter;

/// First bytes of a file. The number increases with every change of the format.
const MAGIC: &[u8] = b"triad shaders 1\n";
/// Bytes of a hash.
const HASH: usize = 32;
/// Larger files are rejected.
const MAX_BYTES: u64 = 256 << 20;

/// Compiled shaders of one GPU.
#[derive(Debug)]
pub(super) struct PipelineCache {
    /// The cache object that pipelines are created with.
    pub cache: wgpu::PipelineCache,
    path: PathBuf,
    key: String,
    /// Hash of the file's contents, and the last reason why the file can't be used.
    state: Mutex<(Option<[u8; HASH]>, Option<String>)>,
}

impl PipelineCache {
    /// Opens the cache in `folder` for the GPU `adapter`, whose device has [`wgpu::Features::PIPELINE_CACHE`]. If the
    /// file can't be used, shaders are compiled again, and [`note`](Self::note) returns the reason.
    pub fn open(device: &wgpu::Device, folder: &Path, adapter: &Adapter) -> Self {
        let path = folder.join(file_name(adapter));
        let key = key(adapter);
        let (data, note) = match read(&path, &key) {
            Ok(data) => (data, None),
            Err(reason) => (
                None,
                Some(format!(
                    "{}: {reason}: shaders are compiled again",
                    path.display()
                )),
            ),
        };
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("triad"),
            data: data.as_deref(),
            fallback: true,
        };
        // SAFETY: the data is what `PipelineCache::get_data` returned to this version of Triad for a GPU of this name
        // with this driver. The header has all three and a hash of them and the data. `read` returns nothing else.
        #[allow(unsafe_code)]
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        let hash = data.as_deref().map(|data| hash(&key, data));
        Self {
            cache,
            path,
            key,
            state: Mutex::new((hash, note)),
        }
    }

    /// Writes the compiled shaders, unless the file has them already. They are written to a temporary file and then
    /// moved.
    pub fn save(&self) {
        let Some(data) = self.cache.get_data() else {
            return;
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = hash(&self.key, &data);
        if state.0 == Some(hash) {
            return;
        }
        match write(&self.path, &self.key, &data) {
            Ok(()) => state.0 = Some(hash),
            Err(error) => {
                state.1 = Some(format!(
                    "{}: {error}: every process compiles shaders again",
                    self.path.display()
                ));
            }
        }
    }

    /// Returns why the file can't be read or written, if so.
    pub fn note(&self) -> Option<String> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .clone()
    }
}

/// Returns the file name of a GPU. It does not depend on the driver, so that a new driver's shaders replace the old
/// ones.
fn file_name(adapter: &Adapter) -> String {
    let digest = Sha256::digest(format!("{}\n{}", adapter.name, adapter.interface));
    let digits: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{digits}.shaders")
}

/// Returns the key of a file: GPU, driver and Triad's version.
fn key(adapter: &Adapter) -> String {
    let Adapter {
        name,
        interface,
        driver,
        ..
    } = adapter;
    [name, interface, driver, env!("CARGO_PKG_VERSION")].join("\n")
}

fn hash(key: &str, data: &[u8]) -> [u8; HASH] {
    let mut digest = Sha256::new();
    // The length separates the key from the data.
    digest.update((key.len() as u64).to_le_bytes());
    digest.update(key);
    digest.update(data);
    digest.finalize().into()
}

/// Returns the data of the file for `key`, or nothing if there is no file.
fn read(path: &Path, key: &str) -> Result<Option<Vec<u8>>, String> {
    let bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            return Err(format!(
                "it has {} bytes, expected at most {MAX_BYTES}",
                metadata.len()
            ));
        }
        Ok(_) => files::read(path, MAX_BYTES).map_err(|error| error.to_string())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let broken = "it is not as Triad wrote it";
    let rest = bytes.strip_prefix(MAGIC).ok_or(broken)?;
    let (stored, rest) = rest.split_at_checked(HASH).ok_or(broken)?;
    let (length, rest) = rest.split_at_checked(size_of::<u32>()).ok_or(broken)?;
    let length = u32::from_le_bytes(length.try_into().map_err(|_| broken)?) as usize;
    let (found, data) = rest.split_at_checked(length).ok_or(broken)?;
    let found = std::str::from_utf8(found).map_err(|_| broken)?;
    if hash(found, data) != *stored {
        return Err(broken.to_owned());
    }
    if found != key {
        return Err("it is of another driver or another version of Triad".to_owned());
    }
    Ok(Some(data.to_vec()))
}

fn write(path: &Path, key: &str, data: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = OutputFile::own(path)?;
    for part in [
        MAGIC,
        &hash(key, data),
        &(key.len() as u32).to_le_bytes(),
        key.as_bytes(),
        data,
    ] {
        file.write_all(part)?;
    }
    file.finish_early().map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::adapters::AdapterKind;
    use super::*;

    fn adapter(driver: &str) -> Adapter {
        Adapter {
            name: "GPU".to_owned(),
            kind: AdapterKind::Discrete,
            interface: "Vulkan".to_owned(),
            driver: driver.to_owned(),
        }
    }

    #[test]
    fn what_was_written_is_read_for_the_same_gpu_driver_and_version_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shaders").join(file_name(&adapter("1")));
        let [old, new] = ["1", "2"].map(|driver| key(&adapter(driver)));
        assert_eq!(read(&path, &old), Ok(None));
        write(&path, &old, b"compiled").unwrap();
        assert_eq!(read(&path, &old), Ok(Some(b"compiled".to_vec())));
        assert!(read(&path, &new).unwrap_err().contains("another driver"));
        assert_eq!(file_name(&adapter("1")), file_name(&adapter("2")));
        write(&path, &new, b"").unwrap();
        assert_eq!(read(&path, &new), Ok(Some(Vec::new())));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let (path, key) = (folder.path().join("shaders"), key(&adapter("1")));
        write(&path, &key, b"compiled").unwrap();
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            fs::write(&path, &bytes[..at]).unwrap();
            assert!(read(&path, &key).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(read(&path, &key).is_err(), "changed at {at}");
        }
        fs::write(&path, [&bytes[..], b"d"].concat()).unwrap();
        assert!(read(&path, &key).is_err());
        assert!(read(folder.path(), &key).is_err());
    }
}
