//! The bytes that the files of a repository need on the disk.

use std::fs;
use std::path::Path;

use super::super::name::stays_inside;
use super::super::part::part_of;
use super::listing::Sibling;

/// Returns the shards that a list of files names, by the usual names: `model-00001-of-00002.safetensors`. The index, which
/// tells which they are, is fetched later.
pub(super) fn shards(siblings: &[Sibling]) -> Vec<Sibling> {
    let is_shard = |file: &&Sibling| {
        let name = file.name.strip_prefix("model-");
        let numbers = name.and_then(|name| name.strip_suffix(".safetensors")?.split_once("-of-"));
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        numbers.is_some_and(|(number, count)| is_number(number) && is_number(count))
    };
    siblings.iter().filter(is_shard).cloned().collect()
}

/// Returns the bytes that fetching `files` into `folder`, one after another, takes at most at one time. Files of unknown
/// sizes count nothing. A file of the stated length is there already, or is replaced in the end.
pub(super) fn needed(folder: &Path, files: &[Sibling]) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |data| data.len());
    // What the files so far have taken, and what they gave back when they were replaced.
    let (mut taken, mut given_back, mut most) = (0_u64, 0_u64, 0_u64);
    for file in files.iter().filter(|file| stays_inside(&file.name)) {
        let expected = file.expected();
        let path = folder.join(&file.name);
        let (Some(bytes), there) = (expected.bytes, length(&path)) else {
            continue;
        };
        if bytes == there {
            continue;
        }
        let begun = match expected.is_resumable() {
            true => length(&part_of(&path)),
            false => 0,
        };
        taken = taken.saturating_add(bytes.saturating_sub(begun));
        most = most.max(taken.saturating_sub(given_back));
        given_back = given_back.saturating_add(there);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::super::listing::Lfs;
    use super::*;

    fn file(name: &str, size: u64) -> Sibling {
        Sibling {
            name: name.into(),
            size: Some(size),
            blob: None,
            lfs: Some(Lfs {
                sha256: Some("00".into()),
                size: Some(size),
            }),
        }
    }

    #[test]
    fn what_is_there_or_begun_is_not_needed_again() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: usize| {
            fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        };
        let needed = |files: &[Sibling]| needed(folder.path(), files);
        let [a, b] = [file("a", 100), file("b", 70)];
        assert_eq!(needed(&[a.clone(), b.clone()]), 170);
        write("a.part", 40);
        assert_eq!(needed(&[a.clone(), b.clone()]), 130);
        write("b", 70);
        assert_eq!(needed(&[a.clone(), b.clone()]), 60);
        // The first one gives its older version back before the second one begins.
        write("a", 90);
        write("b", 1);
        assert_eq!(needed(&[a, b]), 60);
        let endless = [file("c", u64::MAX), file("d", u64::MAX), file("../e", 1)];
        assert_eq!(needed(&endless), u64::MAX);
    }

    #[test]
    fn shards_have_their_usual_names() {
        let names = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model-00001-of-00002.fp16.safetensors",
            "consolidated-00001-of-00002.safetensors",
            "model.safetensors",
            "sub/model-00001-of-00002.safetensors",
        ];
        let found = shards(&names.map(|name| file(name, 1)));
        assert!(
            found
                .iter()
                .map(|file| &*file.name)
                .eq(names[..2].iter().copied())
        );
    }
}
