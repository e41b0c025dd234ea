//! A timeline: one lane per processor, tasks in the colour of their chunk, bubbles hatched.

use triad_plan::processors::ProcessorId;
use triad_plan::timeline::Record;

use super::Axis;
use super::layout::{self, Anchor, Area};
use super::ruler::Ruler;
use super::style;
use super::svg::{Element, Svg, line};

/// Size of the picture in pixels.
const WIDTH: f64 = 1100.0;
const PADDING: f64 = 12.0;
const LANE: f64 = 56.0;
const LANE_GAP: f64 = 14.0;
/// Minimum and maximum width of the processors' names and their totals. Longer names have a smaller font; names of more
/// than [`LONGEST_NAME`] characters are shortened.
const MIN_NAMES: f64 = 120.0;
const MAX_NAMES: f64 = 330.0;
const LONGEST_NAME: usize = 60;
/// Space between names and lanes.
const NAME_GAP: f64 = 12.0;
/// Width of bold letters, relative to normal ones.
const BOLD: f64 = 1.1;
/// With more chunks than this, the legend contains only the first and the last.
const MAX_NAMED: usize = 12;
/// Bubbles narrower than this number of pixels are omitted.
const NARROWEST_BUBBLE: f64 = 0.2;

/// Draws `record` as an SVG document.
pub fn svg(record: &Record) -> String {
    let lanes = record.timeline.processors();
    let legend_room = 2.0 * (style::TICK * style::LINE_HEIGHT + 7.0);
    let kinds = kinds(record);
    let lanes_height = lanes as f64 * (LANE + LANE_GAP);
    let title_room = style::FIGURE_TITLE * style::LINE_HEIGHT + 4.0;
    let axis_room = 18.0 + layout::title_room("time");
    let totals_room = kinds.len() as f64 * style::TICK * style::LINE_HEIGHT + 10.0;
    let height = 2.0 * PADDING + title_room + legend_room + lanes_height + axis_room + totals_room;
    let mut svg = Svg::new(WIDTH, height);
    svg.push(&hatching());
    let area = Area {
        left: PADDING,
        top: PADDING,
        right: WIDTH - PADDING,
        bottom: height - PADDING,
    };
    let area = layout::title(&mut svg, area, &record.heading(), style::FIGURE_TITLE);
    let area = legend(&mut svg, area, record.chunks());
    let shortened = |processor| layout::shortened(&record.processor(processor), LONGEST_NAME);
    let names: Vec<_> = record.timeline.processor_ids().map(shortened).collect();
    let widest = names
        .iter()
        .map(|name| BOLD * style::text_width(name, style::TITLE))
        .fold(0.0, f64::max);
    let names_room = (widest + NAME_GAP).clamp(MIN_NAMES, MAX_NAMES);
    let plot = Area {
        left: area.left + names_room,
        right: area.right - 20.0,
        bottom: area.top + lanes_height,
        ..area
    };
    let seconds = record.timeline.seconds();
    let (unit, scale) = if seconds < 2.0 {
        ("ms", 1e3)
    } else {
        ("s", 1.0)
    };
    let axis = Axis::linear("").covering(0.0, seconds * scale);
    let ruler = Ruler::new(&axis, [], 12);
    let across = |time: f64| plot.left + ruler.place(time * scale).unwrap_or(0.0) * plot.width();
    for tick in &ruler.ticks {
        let x = across(tick.value / scale);
        svg.push(&line(style::GRID, 0.8, [(x, plot.top), (x, plot.bottom)]));
        svg.push(&layout::text(
            &tick.label,
            (x, plot.bottom + 9.0),
            Anchor::Middle,
            style::TICK,
        ));
    }
    for (processor, name) in record.timeline.processor_ids().zip(&names) {
        let top = plot.top + processor.index() as f64 * (LANE + LANE_GAP);
        let size = layout::fitting_size(name, style::TITLE, (names_room - NAME_GAP) / BOLD);
        let name = layout::text(name, (area.left, top + LANE * 0.3), Anchor::Start, size);
        svg.push(&name.set("font-weight", "bold").set("class", "processor"));
        let bubbles = format!(
            "{:.1} % bubbles",
            100.0 * record.timeline.bubble_rate(processor)
        );
        svg.push(&layout::text(
            &bubbles,
            (area.left, top + LANE * 0.66),
            Anchor::Start,
            style::TICK,
        ));
        lane(&mut svg, record, processor, top, &across);
    }
    let below = Area {
        top: plot.bottom + 18.0,
        bottom: plot.bottom + axis_room,
        ..plot
    };
    layout::horizontal_title(
        &mut svg,
        below,
        plot,
        &format!("time ({unit}), {} in all", duration(seconds)),
    );
    totals(&mut svg, (area.left, below.bottom + 6.0), &kinds);
    svg.document()
}

/// Draws the tasks of one processor, and the bubbles between them.
fn lane(
    svg: &mut Svg,
    record: &Record,
    processor: ProcessorId,
    top: f64,
    across: &impl Fn(f64) -> f64,
) {
    let rectangle = |start: f64, end: f64| {
        let (left, right) = (across(start), across(end));
        let size = [
            ("x", left),
            ("y", top),
            ("width", right - left),
            ("height", LANE),
        ];
        Element::new("rect").numbers(size)
    };
    let bubble = |svg: &mut Svg, start: f64, end: f64| {
        if across(end) - across(start) >= NARROWEST_BUBBLE {
            svg.push(
                &rectangle(start, end)
                    .set("class", "bubble")
                    .set("fill", "url(#bubble)"),
            );
        }
    };
    let mut free_since = 0.0;
    for event in record
        .timeline
        .events()
        .iter()
        .filter(|event| event.processor == processor)
    {
        bubble(svg, free_since, event.start);
        let label = record.label(event);
        let tip = format!(
            "chunk {}, block {}, {}: {} from {}",
            label.chunk,
            label.block,
            label.kind,
            duration(event.end - event.start),
            duration(event.start)
        );
        let colour = colour(label.chunk, record.chunks());
        svg.push(
            &rectangle(event.start, event.end)
                .set("class", "task")
                .set("fill", &colour)
                .tip(&tip),
        );
        free_since = event.end;
    }
    bubble(svg, free_since, record.timeline.seconds());
}

/// Returns the colour of a chunk: a distinct one, or a shade of one colour if there are too many chunks.
fn colour(chunk: usize, chunks: usize) -> String {
    if chunks <= style::SERIES_COLOURS {
        style::series_colour(chunk).into()
    } else {
        style::ramp(0.12 + 0.88 * chunk as f64 / (chunks - 1) as f64).0
    }
}

/// Returns the fill pattern of bubbles.
fn hatching() -> Element {
    let ground = Element::new("rect")
        .numbers([("width", 6.0), ("height", 6.0)])
        .set("fill", "#f7f7f7");
    let stripe = line("#9a9a9a", 1.2, [(0.0, 0.0), (0.0, 6.0)]);
    let size = [("width", 6.0), ("height", 6.0)];
    Element::new("pattern")
        .set("id", "bubble")
        .numbers(size)
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .child(&ground)
        .child(&stripe)
}

fn legend(svg: &mut Svg, area: Area, chunks: usize) -> Area {
    let shown: Vec<usize> = if chunks <= MAX_NAMED {
        (0..chunks).collect()
    } else {
        vec![0, chunks - 1]
    };
    let mut names: Vec<_> = shown.iter().map(|chunk| format!("chunk {chunk}")).collect();
    names.push("bubble".into());
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    layout::legend(
        svg,
        area,
        &names,
        |_| 10.0,
        |svg, index, (x, y)| {
            let fill = shown
                .get(index)
                .map_or_else(|| "url(#bubble)".into(), |chunk| colour(*chunk, chunks));
            let size = [
                ("x", x - 5.0),
                ("y", y - 5.0),
                ("width", 10.0),
                ("height", 10.0),
            ];
            svg.push(&Element::new("rect").numbers(size).set("fill", &fill));
        },
    )
}

/// Draws the total time of each kind of task, and its share of the critical path.
fn kinds(record: &Record) -> Vec<String> {
    let summary = record.summary();
    let of_kind = |kind: &triad_plan::timeline::Kind| {
        let critical = summary
            .critical_path
            .iter()
            .find(|other| other.kind == kind.kind);
        format!(
            "{}: {}, {:.0} % of all work, {:.0} % of the critical path",
            kind.kind,
            duration(kind.seconds),
            100.0 * kind.share,
            100.0 * critical.map_or(0.0, |kind| kind.share)
        )
    };
    summary.kinds.iter().map(of_kind).collect()
}

fn totals(svg: &mut Svg, (x, y): (f64, f64), lines: &[String]) {
    for (index, content) in lines.iter().enumerate() {
        let y = y + (index as f64 + 0.5) * style::TICK * style::LINE_HEIGHT;
        svg.push(&layout::text(content, (x, y), Anchor::Start, style::TICK));
    }
}

/// Formats seconds.
fn duration(seconds: f64) -> String {
    match seconds {
        long if long >= 2.0 => format!("{long:.2} s"),
        short if short >= 1e-3 => format!("{:.1} ms", short * 1e3),
        tiny => format!("{:.0} µs", tiny * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;
    use triad_plan::schedule::{Dag, Policy};
    use triad_plan::simulate::simulate;
    use triad_plan::timeline::{Label, Source};

    use super::*;

    #[test]
    fn a_picture_has_each_task_and_each_bubble_in_its_lane() {
        for chunks in [2, 40] {
            let tasks = (0..chunks).flat_map(|chunk| {
                let first = 2 * chunk;
                [(0, 0.01, vec![]), (1, 0.02, vec![first])]
            });
            let dag = Dag::new(tasks);
            let timeline = simulate(&dag, Policy::Fifo, |task| dag.seconds(task));
            let labels: Vec<_> = (0..2 * chunks)
                .map(|task| Label {
                    chunk: task / 2,
                    block: 0,
                    kind: "<&>".into(),
                })
                .collect();
            let record = Record {
                title: "a & b",
                source: Source::Simulated,
                timeline: &timeline,
                dag: &dag,
                labels: &labels,
                processors: &["CPU", "NPU"],
            };
            let svg = svg(&record);
            let document = Document::parse(&svg).unwrap();
            let of_class = |class| {
                document
                    .descendants()
                    .filter(|node| node.attribute("class") == Some(class))
                    .collect::<Vec<_>>()
            };
            assert_eq!(of_class("task").len(), 2 * chunks);
            // The NPU waits for the first task. The CPU is idle after its last task.
            assert_eq!(of_class("bubble").len(), 2);
            let number = |node: &roxmltree::Node, name| {
                node.attribute(name).unwrap().parse::<f64>().unwrap()
            };
            for node in of_class("task").iter().chain(&of_class("bubble")) {
                assert!(
                    number(node, "x") >= MIN_NAMES
                        && number(node, "x") + number(node, "width") <= WIDTH
                );
            }
            assert!(svg.contains("a &amp; b (simulated)"));
        }
    }

    #[test]
    fn names_of_processors_end_before_their_bars() {
        let dag = Dag::new([(0, 0.01, vec![]), (1, 0.02, vec![])]);
        let timeline = simulate(&dag, Policy::Fifo, |task| dag.seconds(task));
        let labels: Vec<_> = (0..2)
            .map(|_| Label {
                chunk: 0,
                block: 0,
                kind: "attention".into(),
            })
            .collect();
        let cores = (0..40)
            .map(|core| core.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        for name in [
            "NPU".to_owned(),
            "INT8 kernels as NPU (core 3, 4, 5)".into(),
            format!("CPU (core {cores})"),
        ] {
            let processors = ["CPU", &name];
            let record = Record {
                title: "",
                source: Source::Measured,
                timeline: &timeline,
                dag: &dag,
                labels: &labels,
                processors: &processors,
            };
            let svg = svg(&record);
            let document = Document::parse(&svg).unwrap();
            let number =
                |node: roxmltree::Node, name| node.attribute(name).unwrap().parse::<f64>().unwrap();
            let of_class = |class| {
                document
                    .descendants()
                    .filter(move |node| node.attribute("class") == Some(class))
            };
            let bars = of_class("task")
                .chain(of_class("bubble"))
                .map(|node| number(node, "x"))
                .fold(f64::MAX, f64::min);
            let shown: Vec<_> = of_class("processor").collect();
            assert_eq!(shown.len(), 2);
            for node in shown {
                let width =
                    BOLD * style::text_width(node.text().unwrap(), number(node, "font-size"));
                assert!(
                    number(node, "x") + width < bars,
                    "{name}: {width} pixels before {bars}"
                );
            }
        }
    }
}
