//! Seals: a machine recognizes by them the files that it made itself.
//!
//! Runs create files from a package and store them next to it (compiled graphs, rows of shadows, measurements). These
//! files are not covered by a hash of the package, and a program that can write there could replace them together with
//! any hash that needs no secret. So they are sealed: with an HMAC-SHA256 by a secret that only this user's programs
//! can read, in a file of the cache folder that is created once. A file without a seal of this secret is created again.
//! If no secret can be stored, each process uses its own.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::OnceLock;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{cache_folder, output};

/// A seal, or a secret.
pub type Seal = [u8; BYTES];

/// Bytes of a seal, and of a secret.
const BYTES: usize = 32;
/// The file with the secret, in the cache folder.
const SECRET: &str = "machine.key";
/// Number of attempts to read the secret: another process may be creating it.
const TRIES: usize = 3;

/// Returns the seal of `parts`, in their order. A seal for one `purpose` is invalid for another.
pub fn seal(purpose: &str, parts: &[&[u8]]) -> Seal {
    mac(purpose, parts).finalize().into_bytes().into()
}

/// Returns whether `found` is the seal of `parts` for this purpose.
pub fn is_sealed(purpose: &str, parts: &[&[u8]], found: &[u8]) -> bool {
    mac(purpose, parts).verify_slice(found).is_ok()
}

/// Returns whether later processes recognize the seals of this one: otherwise sealed files need not be stored.
pub fn lasts() -> bool {
    secret().1
}

/// Returns the secret, and whether it is stored.
fn secret() -> &'static (Seal, bool) {
    static OF_THIS_MACHINE: OnceLock<(Seal, bool)> = OnceLock::new();
    OF_THIS_MACHINE.get_or_init(|| {
        let kept = cache_folder::folder()
            .map_err(io::Error::other)
            .and_then(|folder| kept(&folder));
        kept.map_or_else(|_| (random(), false), |secret| (secret, true))
    })
}

fn mac(purpose: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(&secret().0).expect("a secret of any length will do");
    for part in [purpose.as_bytes()].iter().chain(parts) {
        // Lengths delimit the parts.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

/// Returns the secret in `folder`, and creates it if there is none. A secret that others can read is replaced.
fn kept(folder: &Path) -> io::Result<Seal> {
    fs::create_dir_all(folder)?;
    let path = folder.join(SECRET);
    for _ in 0..TRIES {
        match read(&path) {
            Ok(Some(secret)) => return Ok(secret),
            Ok(None) => fs::remove_file(&path)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match output::write_new_private(&path, &random()) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Err(io::Error::other("the secret keeps changing"))
}

/// Reads the secret at `path`; `None` if it is no private secret of this user.
fn read(path: &Path) -> io::Result<Option<Seal>> {
    if !output::is_private(&fs::symlink_metadata(path)?) {
        return Ok(None);
    }
    let file = File::open(path)?;
    let mut secret = Vec::new();
    (&file).take(BYTES as u64 + 1).read_to_end(&mut secret)?;
    Ok(secret.try_into().ok().filter(|_| {
        file.metadata()
            .is_ok_and(|metadata| output::is_private(&metadata))
    }))
}

fn random() -> Seal {
    let mut secret = [0; BYTES];
    getrandom::fill(&mut secret).expect("the system has random numbers");
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_its_purpose_and_parts_alone() {
        let sealed = seal("graph", &[b"name", b"content"]);
        assert!(is_sealed("graph", &[b"name", b"content"], &sealed));
        for (purpose, parts) in [
            ("rows", [&b"name"[..], b"content"]),
            ("graph", [b"name", b"contend"]),
            ("graph", [b"namec", b"ontent"]),
            ("graph", [b"content", b"name"]),
        ] {
            assert!(!is_sealed(purpose, &parts, &sealed), "{purpose} {parts:?}");
        }
        assert!(
            !is_sealed("graph", &[b"name", b"content"], &sealed[..16]),
            "a part of a seal is none"
        );
    }

    #[test]
    fn the_secret_is_made_once_for_each_folder() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let secret = kept(&folders[0].path().join("cache")).unwrap();
        let again = [(); 4].map(|()| {
            std::thread::spawn({
                let folder = folders[0].path().join("cache");
                move || kept(&folder).unwrap()
            })
        });
        assert!(
            again
                .into_iter()
                .all(|again| again.join().unwrap() == secret)
        );
        assert_ne!(kept(folders[1].path()).unwrap(), secret);
        fs::write(folders[1].path().join(SECRET), "short").unwrap();
        assert_eq!(
            kept(folders[1].path()).unwrap(),
            kept(folders[1].path()).unwrap()
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_secret_that_others_can_read_or_that_is_a_link_is_made_again() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SECRET);
        let secret = kept(folder.path()).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let second = kept(folder.path()).unwrap();
        assert_ne!(second, secret);
        let known = folder.path().join("known");
        fs::rename(&path, &known).unwrap();
        symlink(&known, &path).unwrap();
        assert_ne!(kept(folder.path()).unwrap(), second);
        assert!(!path.is_symlink() && fs::read(known).unwrap() == second);
    }
}
