//! Properties of every run: its time is that of its plan, and modes differ only in their choices.

use proptest::prelude::*;
use triad_model::family::shape;

use super::rendering::{Game, Submission};
use super::*;
use triad_plan::partition::Strategy;

fn phone() -> DeviceProfile {
    DeviceProfile::builtin("snapdragon-8gen3").unwrap()
}

fn prefill(model: &str, tokens: usize, mode: Mode, waiting: Waiting) -> Run {
    let (device, description) = (phone(), shape(model).unwrap());
    Hetero::new(&device, &description, waiting)
        .unwrap()
        .prefill(tokens, mode)
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn hetero_tensor_is_never_slower_than_hetero_layer_nor_that_than_the_gpu(tokens in 1usize..1100) {
        let seconds = |mode| prefill("internlm2-1.8b", tokens, mode, Waiting::Fast).seconds();
        let [gpu, layer, tensor] = [Mode::GpuOnly, Mode::HeteroLayer, Mode::HeteroTensor].map(seconds);
        prop_assert!(tensor <= layer * (1.0 + 1e-9) && layer <= gpu * (1.0 + 1e-9), "{tensor} {layer} {gpu}");
    }

    #[test]
    fn waiting_for_the_driver_is_slower_wherever_the_npu_takes_part(tokens in 33usize..1024) {
        let run = |waiting| prefill("internlm2-1.8b", tokens, Mode::HeteroTensor, waiting);
        let (fast, blocking) = (run(Waiting::Fast), run(Waiting::Blocking));
        prop_assert!(fast.seconds() < blocking.seconds());
        prop_assert_eq!(fast.choices, blocking.choices);
    }
}

#[test]
fn a_run_takes_what_its_subgraphs_and_the_choices_of_the_solver_take() {
    let (device, description) = (phone(), shape("llama-3.2-3b").unwrap());
    let run = Hetero::new(&device, &description, Waiting::Fast)
        .unwrap()
        .prefill(300, Mode::HeteroTensor)
        .unwrap();
    let w4a16 = device.w4a16.as_ref().unwrap();
    let of_role = |role: Role, rows: usize| {
        let choice = run
            .choices
            .iter()
            .find(|(of, choice)| *of == role && choice.shape.rows() == rows);
        choice.unwrap().1.best.seconds
    };
    let graph = Graph::with_splits(&description, 300, 300, |_| true);
    let subgraph = |subgraph: &Subgraph| match subgraph.role.format() {
        Format::Float => w4a16.gpu_float(subgraph, 300, subgraph.operations(300, 0) as f64, 0.0),
        Format::Int8 => of_role(subgraph.role, 300),
    };
    let expected = graph.subgraphs().iter().map(subgraph).sum::<f64>() + of_role(Role::Down, 1);
    assert!(
        (run.seconds() / expected - 1.0).abs() < 1e-9,
        "{} {expected}",
        run.seconds()
    );
    // Four matmuls of a layer, and the output matrix.
    assert_eq!(run.choices.len(), 5);
}

#[test]
fn each_mode_of_a_misaligned_prompt_computes_the_rows_that_it_stands_for() {
    let rows = |mode| {
        let run = prefill("internlm2-1.8b", 525, mode, Waiting::Fast);
        let pieces = &run.choices[0].1.best.partition.pieces;
        pieces.iter().map(|piece| piece.rows).collect::<Vec<_>>()
    };
    assert_eq!(rows(Mode::Padding), [1024]);
    assert_eq!(rows(Mode::Pipe), [512, 32]);
    assert_eq!(rows(Mode::OnlinePrepare), [525]);
    assert_eq!(rows(Mode::GpuOnly), [525]);
    let prepare = |mode| prefill("internlm2-1.8b", 525, mode, Waiting::Fast).prepare_seconds;
    assert!(prepare(Mode::OnlinePrepare) > 0.0 && prepare(Mode::Padding) == 0.0);
}

#[test]
fn in_decode_whole_products_stay_on_the_gpu() {
    let (device, description) = (phone(), shape("llama-3-8b").unwrap());
    let hetero = Hetero::new(&device, &description, Waiting::Fast).unwrap();
    let [gpu, layer] =
        [Mode::GpuOnly, Mode::HeteroLayer].map(|mode| hetero.decode(256, mode).unwrap());
    assert_eq!(gpu.seconds(), layer.seconds());
    assert!(
        layer
            .choices
            .iter()
            .all(|(_, choice)| choice.best.partition.strategy == Strategy::Alone)
    );
    // More tokens of context mean more keys and values to read.
    assert!(hetero.decode(1024, Mode::GpuOnly).unwrap().seconds() > gpu.seconds());
    assert!(
        gpu.bytes / gpu.seconds() <= 1e9 * device.w4a16.as_ref().unwrap().gpu.gigabytes_per_second
    );
}

#[test]
fn a_game_has_no_frame_while_the_queue_of_the_gpu_is_full_and_most_where_it_is_not() {
    let run = prefill("internlm2-1.8b", 256, Mode::HeteroLayer, Waiting::Fast);
    let none = Game {
        frames_per_second: 60.0,
        frame_seconds: 0.0,
    };
    let during = none.during(&run, Submission::OneByOne);
    assert!(
        (during.seconds / run.seconds() - 1.0).abs() < 1e-9 && during.frames_per_second > 55.0,
        "{during:?}"
    );
    let game = Game {
        frame_seconds: 5e-3,
        ..none
    };
    let slowed = game.during(&run, Submission::OneByOne);
    assert!(
        slowed.seconds > run.seconds() && slowed.seconds < 1.5 * run.seconds(),
        "{slowed:?}"
    );
    let long = prefill("llama-3-8b", 256, Mode::GpuOnly, Waiting::Fast);
    assert!(game.during(&long, Submission::AllAtOnce).frames_per_second < 1.0);
}

#[test]
fn what_can_not_be_simulated_is_an_error() {
    let description = shape("internlm2-1.8b").unwrap();
    let other = DeviceProfile::builtin("snapdragon-8gen2").unwrap();
    let error = Hetero::new(&other, &description, Waiting::Fast)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&other.name) && error.contains("[w4a16]"),
        "{error}"
    );
    let device = phone();
    let hetero = Hetero::new(&device, &description, Waiting::Fast).unwrap();
    assert!(hetero.prefill(0, Mode::HeteroTensor).is_err());
    assert!(
        hetero
            .prefill(4096, Mode::HeteroTensor)
            .unwrap_err()
            .to_string()
            .contains("at most 2047 rows")
    );
    assert!(hetero.prefill(1025, Mode::Padding).is_err());
}
