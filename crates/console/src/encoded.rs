//! Views of pictures that an encoder has computed on several processors: their failures, and their part of a timeline.

use triad_engine::Engine;
use triad_hetero::{EncodedView, Execution, HeteroEngine};
use triad_model::role::Role;
use triad_plan::processors::ProcessorId;
use triad_plan::schedule::Dag;
use triad_plan::timeline::{Event, Label, Timeline};

use crate::output;

/// The name of the lane of encoders.
pub(crate) const LANE: &str = "encoder";

/// Returns the views that `engine` has encoded since the latest call, if it is one on several processors.
pub fn take_views(engine: &Engine) -> Vec<EncodedView> {
    HeteroEngine::from_engine(engine).map_or_else(Vec::new, |engine| engine.take_encoded_views())
}

/// Prints which processors failed while they encoded views, and how many products no device has room for.
pub fn note_views(views: &[EncodedView]) {
    for failure in views.iter().flat_map(|view| &view.failures) {
        output::note(&format!("note: {}", failure.took_over()));
    }
    let without_room = views.iter().map(|view| view.without_room).max();
    if let Some(count) = without_room.filter(|count| *count > 0) {
        output::note(&format!(
            "note: {count} products of the encoder of pictures do not fit into the memory of a device and run on the CPU"
        ));
    }
}

/// The timeline of a prompt after the views that were encoded for it.
pub(crate) struct WithViews {
    pub(crate) timeline: Timeline,
    pub(crate) dag: Dag,
    pub(crate) labels: Vec<Label>,
}

impl WithViews {
    /// Adds `views` to the timeline of `execution`. Each view is a task of a processor after those of the execution, the lane
    /// of encoders; its products on devices are tasks of these. Tasks of the prompt wait for the last view. A label of a view
    /// counts views as chunks.
    pub(crate) fn new(execution: &Execution, views: &[EncodedView]) -> Self {
        let of_prompt = &execution.tasks.dag;
        let begins = views.iter().map(|view| view.start);
        let origin = begins.fold(execution.start, Ord::min);
        let lane = of_prompt.processors();
        let (mut nodes, mut events, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |processor: usize, (start, end): (_, std::time::Instant), label, before| {
            let seconds = |at: std::time::Instant| at.duration_since(origin).as_secs_f64();
            let (task, start, end) = (nodes.len(), seconds(start), seconds(end));
            nodes.push((processor, end - start, before));
            events.push(Event {
                task,
                processor: ProcessorId::new(processor),
                start,
                end,
            });
            labels.push(label);
            task
        };
        let mut latest = Vec::new();
        for (chunk, view) in views.iter().enumerate() {
            let label = |block, role: Option<Role>| Label {
                chunk,
                block,
                kind: match role {
                    Some(role) => format!("{LANE}: {}", role.name()).into(),
                    None => LANE.into(),
                },
            };
            for product in &view.products {
                let label = label(product.block, Some(product.role));
                let times = (product.start, product.end);
                add(product.processor.index(), times, label, Vec::new());
            }
            let task = add(lane, (view.start, view.end), label(0, None), latest.clone());
            latest = vec![task];
        }
        let first = nodes.len();
        for task in 0..of_prompt.len() {
            let before = of_prompt.predecessors(task).iter();
            let mut before: Vec<_> = before.map(|task| first + task).collect();
            if before.is_empty() {
                before.clone_from(&latest);
            }
            nodes.push((
                of_prompt.home(task).index(),
                of_prompt.seconds(task),
                before,
            ));
        }
        let offset = execution.start.duration_since(origin).as_secs_f64();
        let of_tasks = execution.timeline.events().iter().map(|event| Event {
            task: first + event.task,
            processor: event.processor,
            start: event.start + offset,
            end: event.end + offset,
        });
        events.extend(of_tasks);
        labels.extend(execution.tasks.labels(&execution.graph));
        Self {
            timeline: Timeline::new(events, lane + 1),
            dag: Dag::new(nodes),
            labels,
        }
    }
}
