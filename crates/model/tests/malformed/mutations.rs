//! Random damage to valid files, and random valid files.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use triad_model::adapter::Adapter;
use triad_model::gguf::{self, Metadata, Value};
use triad_model::safetensors::read_header;
use triad_model::tensor::{Format, TensorInfo};
use triad_model::testing::GgufBuilder;

/// One change of a file; positions are taken modulo the file's length.
#[derive(Clone, Debug)]
enum Damage {
    Byte(usize, u8),
    Number(usize, u64),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let number = prop_oneof![
        any::<u64>(),
        0u64..300,
        Just(u64::MAX),
        (0u32..64).prop_map(|bit| 1 << bit)
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(position, byte)| Damage::Byte(position, byte)),
        (any::<usize>(), number).prop_map(|(position, number)| Damage::Number(position, number)),
        (any::<usize>(), vec(any::<u8>(), 1..9))
            .prop_map(|(position, bytes)| Damage::Insert(position, bytes)),
        (any::<usize>(), 1usize..40)
            .prop_map(|(position, length)| Damage::Remove(position, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match damage {
        Damage::Byte(position, byte) => bytes[position % length] = *byte,
        Damage::Number(position, number) => {
            for (place, byte) in bytes[position % length..]
                .iter_mut()
                .zip(number.to_le_bytes())
            {
                *place = byte;
            }
        }
        Damage::Insert(position, inserted) => {
            let position = position % length;
            bytes.splice(position..position, inserted.iter().copied());
        }
        Damage::Remove(position, removed) => {
            let position = position % length;
            bytes.drain(position..length.min(position + removed));
        }
    }
}

/// Checks the guarantees of every reader for the tensors that it accepts.
fn check(tensors: &BTreeMap<String, TensorInfo>, length: usize) {
    for (name, info) in tensors {
        assert_eq!(name, &info.name);
        assert!(info.bytes.start <= info.bytes.end && info.bytes.end <= length);
        assert_eq!(
            info.format.bytes_for(info.elements()),
            Some(info.bytes.len())
        );
    }
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (i128::from(i64::MIN)..=i128::from(u64::MAX)).prop_map(Value::Integer),
        (-1e9f64..1e9).prop_map(Value::Float),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        vec(any::<i64>(), 0..5).prop_map(Value::Integers),
        vec(-1e9f32..1e9, 0..5).prop_map(Value::Floats),
        vec(any::<bool>(), 0..5).prop_map(Value::Bools),
        vec(any::<String>(), 0..5).prop_map(Value::Strings),
    ]
}

fn tensor() -> impl Strategy<Value = (Format, Vec<usize>)> {
    (
        prop::sample::select(Format::ALL.to_vec()),
        1usize..3,
        vec(1usize..4, 0..4),
    )
        .prop_map(|(format, blocks, outer)| {
            let columns = blocks * format.block_elements();
            (format, outer.into_iter().chain([columns]).collect())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_gguf_file_never_panics(damages in vec(damage(), 1..6)) {
        let mut bytes = crate::gguf::valid().build();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        if let Ok(file) = gguf::read(&bytes) {
            check(&file.tensors, bytes.len());
        }
    }

    #[test]
    fn a_damaged_safetensors_file_never_panics(damages in vec(damage(), 1..6)) {
        let mut bytes = crate::safetensors::valid();
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        if let Ok(tensors) = read_header(&bytes, 0) {
            check(&tensors, bytes.len());
        }
    }

    #[test]
    fn a_damaged_adapter_never_panics(damages in vec(damage(), 1..6), is_gguf: bool) {
        let (description, config) = crate::adapter::base();
        let mut bytes = if is_gguf { crate::adapter::gguf().build() } else { crate::adapter::weights() };
        damages.iter().for_each(|damage| apply(&mut bytes, damage));
        let read = match is_gguf {
            true => Adapter::from_gguf(&bytes, description),
            false => Adapter::from_peft(config, &bytes, description),
        };
        for low_rank in read.iter().flat_map(Adapter::blocks).flat_map(BTreeMap::values) {
            prop_assert!(low_rank.a.iter().chain(&*low_rank.b).all(|value| value.is_finite()));
            prop_assert_eq!((low_rank.a.len(), low_rank.b.len()), (32 * low_rank.rank, 16 * low_rank.rank));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_was_written_is_read(
        fields in prop::collection::btree_map("[a-z.]{1,20}", value(), 0..6),
        tensors in prop::collection::btree_map("[a-z.]{1,20}", tensor(), 0..6),
        alignment in prop::sample::select(vec![8usize, 32, 64, 4096]),
        fill in any::<u8>(),
    ) {
        let mut builder = GgufBuilder::new();
        builder.alignment = alignment;
        let mut metadata = Metadata::default();
        let stated = ("general.alignment".to_owned(), Value::Integer(alignment as i128));
        for (key, value) in fields.into_iter().filter(|(key, _)| key != "general.alignment").chain([stated]) {
            builder = builder.field(&key, value.clone());
            metadata.insert(key, value);
        }
        for (name, (format, shape)) in &tensors {
            let length = format.bytes_for(shape.iter().product()).unwrap();
            builder = builder.tensor(name, shape, *format, &vec![fill; length]);
        }
        let bytes = builder.build();
        let file = gguf::read(&bytes).unwrap();
        prop_assert_eq!(&file.metadata, &metadata);
        prop_assert_eq!(file.tensors.len(), tensors.len());
        check(&file.tensors, bytes.len());
        for (name, (format, shape)) in &tensors {
            let info = &file.tensors[name];
            prop_assert_eq!((info.format, &info.shape), (*format, shape));
            prop_assert!(bytes[info.bytes.clone()].iter().all(|&byte| byte == fill));
        }
    }
}
