//! Heads that predict one more token: they are found with all their tensors, or left out with the reason.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use triad_model::checkpoint::Checkpoint;
use triad_model::description::ModelDescription;
use triad_model::family::from_hugging_face;
use triad_model::tensor::TensorInfo;
use triad_model::tensor_map::TensorMap;

fn golden(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");
    PathBuf::from(folder).join(name)
}

fn without_head(description: &ModelDescription) -> ModelDescription {
    ModelDescription {
        mtp: None,
        ..description.clone()
    }
}

#[test]
fn a_head_is_found_in_both_formats_and_its_model_is_the_same() {
    for (name, base) in [
        ("mtp/qwen3_5", "families/qwen3_5"),
        ("mtp/qwen3_5.gguf", "families/qwen3_5.gguf"),
        ("mtp/qwen3_5_moe", "families/qwen3_5_moe"),
    ] {
        let with = Checkpoint::open(golden(name)).unwrap();
        let without = Checkpoint::open(golden(base)).unwrap();
        let (description, map) = (with.description(), with.tensor_map());
        assert_eq!(&without_head(description), without.description(), "{name}");
        assert_eq!(without.description().mtp, None, "{name}");
        let head = description.mtp_model().expect(name);
        assert_eq!(head.blocks[0], description.blocks[3], "{name}");
        assert!(map.mtp.is_some(), "{name}");
        assert_eq!(map.mtp_refused, None, "{name}");
        assert!(map.more_tokens.is_empty(), "{name}");
        let sizes = |checkpoint: &Checkpoint| -> usize {
            let elements = checkpoint.tensors().values().map(TensorInfo::elements);
            elements.sum()
        };
        let more = sizes(&with) - sizes(&without);
        assert_eq!(description.mtp_parameters(), more, "{name}");
    }
}

type Tensors = BTreeMap<String, TensorInfo>;

/// Describes the checkpoint after a change of its tensors.
fn changed(change: impl Fn(&mut Tensors)) -> (ModelDescription, TensorMap) {
    let folder = golden("mtp/qwen3_5");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut tensors = checkpoint.tensors().clone();
    change(&mut tensors);
    from_hugging_face(&config, (&tensors, &|_| false), &|_, _| true).unwrap()
}

#[test]
fn a_head_with_a_tensor_that_is_missing_left_over_or_of_another_shape_is_left_out_by_name() {
    let (description, map) = changed(|_| ());
    assert!(description.mtp.is_some() && map.mtp.is_some());
    let names = changed(|tensors| drop(tensors.remove("mtp.fc.weight"))).1;
    let names = names.more_tokens;
    assert_eq!(names.len(), 14);
    for name in names.iter().chain([&"mtp.fc.weight".to_owned()]) {
        let missing = changed(|tensors| drop(tensors.remove(name)));
        let longer = changed(|tensors| tensors.get_mut(name).unwrap().shape[0] += 1);
        for (description, map) in [missing, longer] {
            assert!(description.mtp.is_none() && map.mtp.is_none(), "{name}");
            let reason = map.mtp_refused.expect(name);
            assert!(reason.contains(&format!("`{name}`")), "{reason}");
            assert!(!map.more_tokens.is_empty(), "{name}");
        }
    }
    let (description, map) = changed(|tensors| {
        let other = TensorInfo {
            name: "mtp.layers.1.input_layernorm.weight".into(),
            ..tensors["mtp.layers.0.input_layernorm.weight"].clone()
        };
        tensors.insert(other.name.clone(), other);
    });
    assert!(description.mtp.is_none());
    let reason = map.mtp_refused.unwrap();
    assert!(
        reason.contains("mtp.layers.1.input_layernorm.weight"),
        "{reason}"
    );
}

#[test]
fn a_head_of_another_family_is_left_out_by_name() {
    let checkpoint = Checkpoint::open(golden("mtp/qwen3_5")).unwrap();
    let mut tensors = checkpoint.tensors().clone();
    tensors.retain(|name, _| name.starts_with("mtp."));
    let other = golden("families/qwen3");
    let qwen3 = Checkpoint::open(&other).unwrap();
    tensors.extend(qwen3.tensors().clone());
    let config = std::fs::read(other.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let (description, map) =
        from_hugging_face(&config, (&tensors, &|_| false), &|_, _| true).unwrap();
    assert!(description.mtp.is_none());
    let reason = map.mtp_refused.unwrap();
    assert!(reason.contains("family qwen3"), "{reason}");
}

#[test]
fn an_impossible_head_of_a_package_is_refused() {
    let checkpoint = Checkpoint::open(golden("mtp/qwen3_5")).unwrap();
    let mut description = checkpoint.description().clone();
    description.check().unwrap();
    let net = description.blocks[0].clone();
    description.mtp.as_mut().unwrap().block = net;
    let error = description.check().unwrap_err().to_string();
    assert!(error.contains("no attention to earlier tokens"), "{error}");
}

#[test]
fn experts_next_to_a_dense_feed_forward_are_found_in_a_head() {
    let checkpoint = Checkpoint::open(golden("mtp/qwen3_5_moe")).unwrap();
    let mut description = checkpoint.description().clone();
    assert!(!description.has_expert_branches());
    let head = description.mtp.as_mut().unwrap();
    let experts = head.block.feed_forward.experts.as_mut().unwrap();
    experts.branch = true;
    assert!(description.has_expert_branches());
}
