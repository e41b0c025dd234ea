//! Tests of a device that runs models whole, with our kernels: it has the logits of the CPU, whatever sessions do.

use std::collections::HashMap;
use std::sync::Mutex;

use half::f16;
use triad_kernels::attention::{Cache, PAGE};
use triad_kernels::{Matrix, Phase};
use triad_processors::model::{DeviceModel, DeviceWeight, ModelProgram, OutputRows, Outputs};
use triad_processors::{
    Capabilities, DeviceSubgraph, Error as DeviceError, ModelOptions, Multiplier, Program,
};

use triad_engine::KvFormat;
use triad_engine::forward::{Buffers, Chunk, Forward, ForwardContext, MatmulContext, Segment};
use triad_engine::kv::KvCache;
use triad_engine::linear::CpuBackend;
use triad_engine::quantization::{
    DecodeWeights, InputQuantization, OutputWeights, Quantization, WeightScales,
};
use triad_engine::testing::adapters::{ADAPTERS, adapted};
use triad_engine::testing::models::{CONTEXT, MODELS, VOCAB, tokens};
use triad_engine::testing::parts::{self, Caches};
use triad_engine::weights::Weight;

use super::*;

/// The rows that were run, by chunk and sequence. The device fails after `fails_after` chunks.
#[derive(Default)]
struct CostSample {
    rows: Mutex<Vec<usize>>,
    fails_after: Option<usize>,
}

struct WholeDevice {
    model: Arc<Model>,
    capabilities: Capabilities,
    seen: Arc<CostSample>,
}

struct WholeProgram {
    shared: Forward,
    memory: Caches,
    buffers: Buffers,
    sequences: HashMap<u64, (KvCache, usize)>,
    seen: Arc<CostSample>,
}

impl Device for WholeDevice {
    fn name(&self) -> &str {
        "test"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn prepare(
        &self,
        _subgraph: &DeviceSubgraph,
        _rows: usize,
    ) -> triad_processors::Result<Box<dyn Program>> {
        unreachable!("it runs the model whole")
    }

    fn prepare_model(
        &self,
        model: &DeviceModel,
        options: &ModelOptions,
        multiplier: Option<Multiplier>,
    ) -> triad_processors::Result<Box<dyn ModelProgram>> {
        assert!(multiplier.is_none());
        assert_eq!(model.blocks.len(), self.model.description().blocks.len());
        for (block, own) in model.blocks.iter().zip(&self.model.weights().blocks) {
            for (linear, layer) in &block.linears {
                let own = &own.linears[linear];
                let is_int8 = matches!(layer.weight, DeviceWeight::Int8(..));
                assert_eq!(is_int8, matches!(own.weight, Weight::Int8(_)), "{linear:?}");
                assert_eq!(
                    layer.decode_weight.is_some(),
                    own.decode_weight.is_some(),
                    "{linear:?}"
                );
            }
        }
        let description = self.model.description();
        Ok(Box::new(WholeProgram {
            shared: parts::forward(&self.model, CONTEXT),
            memory: Caches::new(&self.model, KvFormat::F16, 1 << 30),
            buffers: Buffers::new(description, options.rows, false),
            sequences: HashMap::new(),
            seen: Arc::clone(&self.seen),
        }))
    }
}

impl WholeProgram {
    fn pass(&self, phase: Phase) -> ForwardContext<'_> {
        self.shared.context(phase)
    }

    /// Returns the token whose embedding is `x`.
    fn token(&self, x: &[f32]) -> u32 {
        let mut embedding = vec![0.0; x.len()];
        let is_it = |token: &u32| {
            self.pass(Phase::Prefill).embed(*token, &mut embedding);
            embedding == x
        };
        (0..VOCAB as u32)
            .find(is_it)
            .expect("an embedding of a token")
    }
}

/// Returns the keys or values of a position, `[kv_heads, head_dim]`.
fn at(plane: Matrix, place: usize, [kv_heads, head_dim]: [usize; 2]) -> Vec<f16> {
    let Matrix::F16(values) = plane else {
        panic!("keys and values are in f16")
    };
    (0..kv_heads)
        .flat_map(|head| {
            values[(head * PAGE + place) * head_dim..][..head_dim]
                .iter()
                .copied()
        })
        .collect()
}

impl ModelProgram for WholeProgram {
    fn length(&self, sequence: u64) -> usize {
        self.sequences
            .get(&sequence)
            .map_or(0, |(_, length)| *length)
    }

    fn truncate(&mut self, sequence: u64, length: usize) {
        match self.sequences.get_mut(&sequence) {
            Some((_, held)) if length > 0 => *held = length.min(*held),
            _ => drop(self.sequences.remove(&sequence)),
        }
    }

    fn fill(
        &mut self,
        sequence: u64,
        length: usize,
        blocks: &[&dyn Cache],
    ) -> triad_processors::Result<()> {
        let cache = self.memory.cache();
        parts::reserve(&cache, 0, length).unwrap();
        let wide = |values: Vec<f16>| values.into_iter().map(f16::to_f32).collect::<Vec<_>>();
        for (index, (block, described)) in blocks
            .iter()
            .zip(&self.shared.description().blocks)
            .enumerate()
        {
            let shape = [
                described.attention().unwrap().kv_heads,
                described.attention().unwrap().head_dim,
            ];
            for position in 0..length {
                let (page, place) = (position / PAGE, position % PAGE);
                let [keys, values] = [block.keys(page), block.values(page)]
                    .map(|plane| wide(at(plane, place, shape)));
                cache.block(index).write(&keys, &values, position);
            }
        }
        self.sequences.insert(sequence, (cache, length));
        Ok(())
    }

    fn forward(
        &mut self,
        x: &[f32],
        segments: &[(u64, usize)],
        wanted: &OutputRows,
        read: &mut dyn FnMut(Outputs),
    ) -> triad_processors::Result<()> {
        let hidden = self.shared.description().hidden;
        let tokens: Vec<_> = x.chunks_exact(hidden).map(|x| self.token(x)).collect();
        let mut tokens = &tokens[..];
        let mut residual = Vec::new();
        let mut places = Vec::new();
        for (number, rows) in segments {
            if self.seen.fails_after == Some(self.seen.rows.lock().unwrap().len()) {
                return Err(DeviceError::Run {
                    processor: "test".into(),
                    reason: "it was unplugged".into(),
                });
            }
            self.seen.rows.lock().unwrap().push(*rows);
            let (cache, position) = self
                .sequences
                .remove(number)
                .unwrap_or_else(|| (self.memory.cache(), 0));
            parts::reserve(&cache, position, position + rows).unwrap();
            let segment = Segment {
                cache: &cache,
                rows: 0..*rows,
                position,
                is_branch: false,
                states: &[],
                second: None,
                layout: triad_engine::forward::RowLayout::default(),
            };
            let pass = self.pass(wanted.phase);
            let mut kernels = CpuBackend(&pass.weights.blocks);
            let chunk = Chunk {
                segments: &[segment],
                buffers: &self.buffers,
            };
            let mut matmul = MatmulContext::new(&mut kernels);
            let tokens = tokens.split_off(..*rows).unwrap();
            pass.run(tokens, chunk, &mut matmul, &mut || Ok(()))
                .unwrap();
            residual.extend_from_slice(&self.buffers.residual(0..*rows, hidden));
            places.extend((position..position + rows).map(|position| (*number, position)));
            self.sequences.insert(*number, (cache, position + rows));
        }
        let mut values: Vec<_> = wanted
            .rows
            .iter()
            .flat_map(|row| residual[row * hidden..][..hidden].iter().copied())
            .collect();
        if wanted.logits {
            let mut logits = vec![0.0; wanted.rows.len() * VOCAB];
            let pass = self.pass(wanted.phase);
            pass.logits_of(
                &values,
                &mut vec![0.0; values.len()],
                wanted.phase,
                &mut logits,
            );
            values = logits;
        }
        let mut keys_and_values = Vec::new();
        for (index, described) in self.shared.description().blocks.iter().enumerate() {
            let shape = [
                described.attention().unwrap().kv_heads,
                described.attention().unwrap().head_dim,
            ];
            for is_value in [false, true] {
                for (number, position) in &places {
                    let block = self.sequences[number].0.block(index);
                    let page = position / PAGE;
                    let plane = if is_value {
                        block.values(page)
                    } else {
                        block.keys(page)
                    };
                    keys_and_values.extend(at(plane, position % PAGE, shape));
                }
            }
        }
        read(Outputs {
            values: &values,
            keys_and_values: &keys_and_values,
        });
        Ok(())
    }

    fn logits(
        &mut self,
        x: &[f32],
        phase: Phase,
        read: &mut dyn FnMut(&[f32]),
    ) -> triad_processors::Result<()> {
        let pass = self.pass(phase);
        let mut logits = vec![0.0; x.len() / pass.description.hidden * VOCAB];
        pass.logits_of(x, &mut vec![0.0; x.len()], phase, &mut logits);
        read(&logits);
        Ok(())
    }
}

fn whole(
    model: &Arc<Model>,
    seen: &Arc<CostSample>,
    kv_format: KvFormat,
) -> crate::Result<HeteroEngine> {
    let capabilities = Capabilities {
        formats: Vec::new(),
        static_shapes: false,
        own_memory: true,
        window: None,
        feed_forwards: true,
        whole_models: true,
    };
    let device = WholeDevice {
        model: Arc::clone(model),
        capabilities,
        seen: Arc::clone(seen),
    };
    let gpu = ProcessorOptions {
        description: Processor::gpu("gpu"),
        threads: Threads::Count(1),
        device: Some(Arc::new(device)),
        multiplier: None,
    };
    let session = SessionOptions {
        context: CONTEXT,
        chunk: 64,
        kv_format,
    };
    let engine = EngineOptions {
        session,
        ..EngineOptions::default()
    };
    start(
        model,
        HeteroOptions {
            engine,
            processors: vec![gpu],
            ..HeteroOptions::default()
        },
    )
}

/// Returns all logits of several sessions, and how many rows have to be computed for them.
fn logits(engine: &Engine) -> Result<(Vec<f32>, usize)> {
    let cancel = Cancel::new();
    let (mut all, prompt) = (Vec::new(), tokens(300, 0));
    let mut first = engine.session();
    all.extend_from_slice(first.prefill(&prompt, &cancel, |_| {})?);
    all.extend_from_slice(first.decode(5, &cancel)?);
    all.extend_from_slice(first.decode_each(&[1, 2, 3], &cancel)?);
    first.share();
    let mut computed = 304;
    // Both continue from shared pages, which the device does not hold for the second one.
    let mut fork = first.fork();
    first.truncate(280);
    all.extend(first.prefill_all_logits(&tokens(70, 1), &cancel)?);
    all.extend_from_slice(fork.decode(7, &cancel)?);
    computed += 71;
    // Tokens of another session are found; they replace this session's tokens after the common beginning.
    let mut second = engine.session();
    all.extend_from_slice(second.prefill(&tokens(290, 2), &cancel, |_| {})?);
    let reused = second.reuse(&prompt);
    assert_eq!(reused, 256);
    all.extend_from_slice(second.prefill(&prompt[reused..], &cancel, |_| {})?);
    computed += 290 + 44;
    // A step of several sequences.
    Session::decode_together(
        [
            (&mut first, &[9][..]),
            (&mut fork, &[8, 7]),
            (&mut second, &[6]),
        ],
        &cancel,
    )?;
    computed += 4;
    for session in [&first, &fork, &second] {
        all.extend_from_slice(session.logits());
    }
    // More rows than a step of several sequences has.
    all.extend_from_slice(fork.decode_each(&tokens(70, 5), &cancel)?);
    computed += 70;
    // What the model's threads computed is copied to the device.
    second.truncate(20);
    second.observe(&tokens(30, 4), &cancel, &mut |_, _, _| {})?;
    all.extend_from_slice(second.decode(4, &cancel)?);
    Ok((all, computed + 1))
}

#[test]
fn a_model_of_any_format_that_a_device_runs_whole_has_the_logits_of_the_cpu() {
    for (name, model) in &*MODELS {
        let cpu = Engine::new(model, &of_session(CONTEXT, 64)).unwrap();
        let (expected, computed) = logits(&cpu).unwrap();
        let seen = Arc::default();
        let (found, _) = logits(&whole(model, &seen, KvFormat::F16).unwrap()).unwrap();
        let largest = expected
            .iter()
            .fold(0.0f32, |largest, x| largest.max(x.abs()));
        assert_eq!(found.len(), expected.len(), "{name}");
        let differences = found
            .iter()
            .zip(&expected)
            .map(|(found, expected)| (found - expected).abs());
        let most = differences.fold(0.0, f32::max);
        assert!(most <= 1e-4 * largest, "{name}: off by {most} of {largest}");
        assert_eq!(
            seen.rows.lock().unwrap().iter().sum::<usize>(),
            computed,
            "{name}: every row once"
        );
    }
}

#[test]
fn a_device_that_fails_ends_the_request_with_its_reason() {
    let seen = Arc::new(CostSample {
        fails_after: Some(2),
        ..CostSample::default()
    });
    let engine = whole(&MODELS[0].1, &seen, KvFormat::F16).unwrap();
    let mut session = engine.session();
    let error = session
        .prefill(&tokens(200, 0), &Cancel::new(), |_| {})
        .unwrap_err();
    assert!(
        is_of_processors(&error) && error.to_string().contains("it was unplugged"),
        "{error}"
    );
    assert_eq!(
        session.tokens().len(),
        128,
        "what was computed before is there"
    );
}

#[test]
fn keys_and_values_of_another_format_than_devices_keep_are_refused() {
    let error = whole(&MODELS[0].1, &Arc::default(), KvFormat::Int8).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the format of keys and values is Int8, expected f16"),
        "{error}"
    );
}

#[test]
fn a_model_whose_scales_are_found_for_each_token_is_refused() {
    let (_, float) = &MODELS[0];
    let dynamic = [(); triad_engine::LinearInput::ALL.len()].map(|()| InputQuantization::Dynamic {
        outlier_threshold: 6.0,
    });
    let quantization = Quantization {
        weight_scales: WeightScales::Channel,
        decode_weights: DecodeWeights::Int8,
        output_weights: OutputWeights::Int8,
        blocks: vec![dynamic; float.description().blocks.len()],
    };
    let model = Arc::new(float.quantize(&quantization));
    let error = whole(&model, &Arc::default(), KvFormat::F16).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("dynamic, per token, expected static scales"),
        "{error}"
    );
}

#[test]
fn sessions_with_adapters_are_computed_by_the_cpu_concurrently_with_those_of_the_device() {
    let run = |engine: &Engine, index: usize| {
        let mut session = adapted(engine.session(), &ADAPTERS[index]);
        let mut all = session
            .prefill_all_logits(&tokens(150, index), &Cancel::new())
            .unwrap();
        for token in 0..5 {
            all.extend_from_slice(session.decode(token, &Cancel::new()).unwrap());
        }
        all
    };
    let cpu = Engine::new(&MODELS[0].1, &of_session(CONTEXT, 64)).unwrap();
    let seen = Arc::default();
    let whole = whole(&MODELS[0].1, &seen, KvFormat::F16).unwrap();
    let indexes = [0, 1, 0, 4];
    let together: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = indexes
            .iter()
            .map(|index| scope.spawn(|| run(&whole, *index)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for (index, together) in indexes.iter().zip(together) {
        let expected = run(&cpu, *index);
        let largest = expected
            .iter()
            .fold(0.0f32, |largest, x| largest.max(x.abs()));
        let most = together
            .iter()
            .zip(&expected)
            .fold(0.0f32, |most, (one, other)| most.max((one - other).abs()));
        assert!(
            most <= if *index == 0 { 1e-4 * largest } else { 0.0 },
            "{index}: off by {most} of {largest}"
        );
    }
    assert_eq!(
        seen.rows.lock().unwrap().iter().sum::<usize>(),
        2 * 155,
        "those without adapters alone"
    );
}
