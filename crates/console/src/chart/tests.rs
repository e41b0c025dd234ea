//! Tests of properties that hold for every figure.

use roxmltree::{Document, Node};

use super::*;

/// Returns the figures of the studies with similar data.
fn study_figures() -> Vec<(&'static str, Figure)> {
    let single = |panel| Figure {
        title: String::new(),
        panels: vec![panel],
        columns: 1,
    };
    let blocks = || (0..30).map(|block: usize| block.to_string());
    let wave = |block: usize, seed: usize| ((block * 7 + seed * 11) % 9) as f64;
    let kinds = ["q, k, v", "output", "gate, up", "down"];

    let outliers = Chart {
        title: "Outlier channels".into(),
        x: Axis::categories("block", blocks()),
        y: Axis::linear("channels beyond the clip threshold"),
        series: (0..4)
            .map(|kind| {
                Series::by_category(
                    kinds[kind],
                    Mark::StackedBars,
                    (0..30).map(|block| wave(block, kind)),
                )
            })
            .collect(),
        guides: Vec::new(),
    };
    let curve = |steepness: f64| {
        (1..=576).map(move |count| {
            let share = f64::from(count) / 576.0;
            (
                share * 100.0,
                100.0 * (1.0 - (-steepness * share).exp()) / (1.0 - (-steepness).exp()),
            )
        })
    };
    let skew = Chart {
        title: "A few channels give most of the outliers".into(),
        x: Axis::logarithmic("channels, the most frequent first (%)"),
        y: Axis::linear("outliers that they give (%)").covering(0.0, 100.0),
        series: kinds
            .iter()
            .zip([60.0, 25.0, 90.0, 12.0])
            .map(|(&kind, steep)| Series::new(kind, Mark::Line, curve(steep)))
            .collect(),
        guides: vec![
            Guide {
                name: "3 % of the channels".into(),
                at: At::X(3.0),
            },
            Guide {
                name: "80 %".into(),
                at: At::Y(80.0),
            },
        ],
    };
    let importance = Chart {
        title: "Importance of each layer's outliers".into(),
        x: Axis::linear("block"),
        y: Axis::logarithmic("largest outlier / clip threshold"),
        series: (0..4)
            .map(|kind| {
                let height = move |block: usize| {
                    1.5 + (wave(block, kind) / 3.0).exp()
                        * (1.0 + if block == 1 || block == 29 { 20.0 } else { 0.0 })
                };
                Series::new(
                    kinds[kind],
                    Mark::Points,
                    (0..30).map(move |block| (block as f64, height(block))),
                )
            })
            .collect(),
        guides: Vec::new(),
    };
    let rates = || (0..=10).map(|rate| f64::from(rate) * 10.0);
    let line = |name: &str, height: f64, drop: f64, error: f64| {
        Series::new(
            name,
            Mark::LineWithMarkers,
            rates().map(move |rate| (rate, height - drop * (rate / 100.0).powi(6))),
        )
        .with_errors(vec![error; 11])
    };
    let accuracy = Chart {
        title: "Accuracy".into(),
        x: Axis::linear("layers without shadow (%)"),
        y: Axis::linear("accuracy (%)"),
        series: vec![
            line("LAMBADA", 42.0, 18.0, 1.0),
            line("HellaSwag", 40.5, 9.0, 1.1),
            line("WinoGrande", 52.9, 2.0, 2.0),
        ],
        guides: vec![Guide {
            name: "float, average".into(),
            at: At::Y(45.1),
        }],
    };
    let perplexity = Chart {
        title: "Perplexity".into(),
        x: Axis::linear("layers without shadow (%)"),
        y: Axis::logarithmic("perplexity"),
        series: vec![line("WikiText-2", 22.4, -310.0, 0.0)],
        guides: vec![Guide {
            name: "float".into(),
            at: At::Y(22.1),
        }],
    };
    let domains = ["encyclopedia", "dialogue", "code", "Chinese", "screens"]
        .map(String::from)
        .to_vec();
    let hits = HeatMap {
        title: "Share of outliers in hot channels".into(),
        x: "run on".into(),
        y: "calibrated on".into(),
        columns: domains.clone(),
        rows: domains,
        values: (0..5usize)
            .map(|row| {
                (0..5)
                    .map(|column| {
                        if row == column {
                            99.2 - column as f64
                        } else {
                            93.0 - wave(row, column) * 3.7
                        }
                    })
                    .collect()
            })
            .collect(),
        value: "hit rate (%)".into(),
    };
    let thresholds = Chart {
        title: "Clip thresholds".into(),
        x: Axis::categories("", ["max-min", "percentile 99.9", "least squared error"]),
        y: Axis::linear("perplexity on WikiText-2"),
        series: vec![
            Series::by_category("weights per tensor", Mark::Bars, [31.2, 25.3, 24.1])
                .with_errors([0.6, 0.5, 0.5]),
            Series::by_category("weights per channel", Mark::Bars, [28.4, 23.6, 22.5])
                .with_errors([0.5, 0.4, 0.4]),
        ],
        guides: vec![Guide {
            name: "float".into(),
            at: At::Y(22.1),
        }],
    };
    let cuts = Tiles {
        title: "What is fastest".into(),
        x: "rows".into(),
        y: "product".into(),
        columns: (1..=32).map(|number| (32 * number).to_string()).collect(),
        rows: kinds.map(str::to_owned).into(),
        kinds: ["alone", "row-cutting", "hybrid-cutting"]
            .map(str::to_owned)
            .into(),
        cells: (0..4)
            .map(|row| {
                (0..32)
                    .map(|column| [Some(0), Some(2), None, Some(1)][(row + column) % 4])
                    .collect()
            })
            .collect(),
    };
    vec![
        ("cuts", single(Panel::Tiles(cuts))),
        ("outliers", single(Panel::Chart(outliers))),
        ("skew", single(Panel::Chart(skew))),
        ("importance", single(Panel::Chart(importance))),
        (
            "prune",
            Figure {
                title: "SmolLM2-135M with fewer and fewer shadows".into(),
                panels: vec![Panel::Chart(accuracy), Panel::Chart(perplexity)],
                columns: 2,
            },
        ),
        ("hot-channels", single(Panel::HeatMap(hits))),
        ("thresholds", single(Panel::Chart(thresholds))),
    ]
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

/// Returns the corners of a mark's shape.
fn corners(mark: Node<'_, '_>) -> Vec<(f64, f64)> {
    let pairs = |text: &str| {
        let numbers: Vec<f64> = text
            .split([' ', ',', 'M', 'L'])
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().unwrap())
            .collect();
        numbers.chunks(2).map(|pair| (pair[0], pair[1])).collect()
    };
    match mark.tag_name().name() {
        "circle" => vec![(number(mark, "cx"), number(mark, "cy"))],
        "rect" => {
            let (x, y) = (number(mark, "x"), number(mark, "y"));
            vec![
                (x, y),
                (x + number(mark, "width"), y + number(mark, "height")),
            ]
        }
        "path" => pairs(mark.attribute("d").unwrap()),
        "polygon" => {
            let corners: Vec<(f64, f64)> = pairs(mark.attribute("points").unwrap());
            let count = corners.len() as f64;
            // Only the centre of a marker must be inside.
            let sum = corners.iter().fold((0.0, 0.0), |sum, corner| {
                (sum.0 + corner.0, sum.1 + corner.1)
            });
            vec![(sum.0 / count, sum.1 / count)]
        }
        tag => panic!("{tag} is no mark"),
    }
}

fn of_class<'a>(
    document: &'a Document<'_>,
    class: &'static str,
) -> impl Iterator<Item = Node<'a, 'a>> {
    document
        .descendants()
        .filter(move |node| node.attribute("class") == Some(class))
}

#[test]
fn every_point_is_inside_its_plot() {
    for (name, figure) in study_figures() {
        let svg = figure.svg();
        let document = Document::parse(&svg).unwrap();
        let plots: Vec<Vec<_>> = of_class(&document, "plot").map(corners).collect();
        assert_eq!(plots.len(), figure.panels.len(), "{name}");
        let mut marks = 0;
        for mark in of_class(&document, "mark") {
            marks += 1;
            let inside = |plot: &Vec<(f64, f64)>| {
                corners(mark).iter().all(|&(x, y)| {
                    (plot[0].0 - 1.0..=plot[1].0 + 1.0).contains(&x)
                        && (plot[0].1 - 1.0..=plot[1].1 + 1.0).contains(&y)
                })
            };
            assert!(plots.iter().any(inside), "{name}: {mark:?} is outside");
        }
        assert!(marks > 0, "{name}");
    }
}

/// Returns the horizontal texts of a figure: text, position, width and height.
fn level_texts(document: &Document<'_>) -> Vec<(String, f64, f64, f64)> {
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text") && !node.has_attribute("transform"));
    let place = |node: Node<'_, '_>| {
        let content = node.text().unwrap_or_default();
        let width = style::text_width(content, number(node, "font-size"));
        let share = match node.attribute("text-anchor") {
            Some("middle") => 0.5,
            Some("end") => 1.0,
            _ => 0.0,
        };
        (
            content.to_owned(),
            number(node, "x") - width * share,
            number(node, "y"),
            width,
        )
    };
    texts.map(place).collect()
}

#[test]
fn no_text_leaves_the_figure_or_touches_another() {
    let long =
        |index: usize| format!("a label that is much too long for its place, number {index}");
    let many = Chart {
        title: long(0).repeat(4),
        x: Axis::categories(long(1).repeat(4), (0..40).map(long)),
        y: Axis::linear(long(2).repeat(3)),
        series: (0..9)
            .map(|index| Series::by_category(long(index), Mark::Bars, [1e5, -3e5]))
            .collect(),
        guides: Vec::new(),
    };
    let map = HeatMap {
        title: long(0),
        x: long(1),
        y: long(2),
        columns: (0..7).map(long).collect(),
        rows: (0..7).map(long).collect(),
        values: vec![vec![-1.25e-7, 3.0]; 7],
        value: long(3),
    };
    let crowded = Figure {
        title: long(9),
        panels: vec![Panel::Chart(many), Panel::HeatMap(map)],
        columns: 2,
    };
    for (name, figure) in study_figures().into_iter().chain([("crowded", crowded)]) {
        let svg = figure.svg();
        let document = Document::parse(&svg).unwrap();
        let (right, bottom) = (
            number(document.root_element(), "width"),
            number(document.root_element(), "height"),
        );
        let texts = level_texts(&document);
        assert!(texts.len() > 5, "{name}");
        for (index, (text, x, y, width)) in texts.iter().enumerate() {
            assert!(
                *x >= 0.0 && x + width <= right && *y >= 8.0 && *y <= bottom,
                "{name}: {text} leaves the figure"
            );
            for (other, other_x, other_y, other_width) in &texts[..index] {
                let apart = (y - other_y).abs() >= 9.0
                    || x + width <= *other_x
                    || other_x + other_width <= *x;
                assert!(apart, "{name}: {text} touches {other}");
            }
        }
    }
}

#[test]
fn names_are_escaped() {
    let name = "<script> & \"quotes\" \u{1}";
    let chart = Chart {
        title: name.into(),
        x: Axis::categories(name, [name]),
        y: Axis::linear(name),
        series: vec![Series::by_category(name, Mark::Bars, [1.0])],
        guides: vec![Guide {
            name: name.into(),
            at: At::Y(0.5),
        }],
    };
    let svg = Figure {
        title: name.into(),
        panels: vec![Panel::Chart(chart)],
        columns: 1,
    }
    .svg();
    let document = Document::parse(&svg).unwrap();
    let shown = document
        .descendants()
        .filter(|node| node.text() == Some("<script> & \"quotes\" \u{fffd}"));
    assert_eq!(shown.filter(Node::is_element).count(), 7);
}

#[test]
fn values_without_a_place_are_left_out() {
    let odd = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e300,
        -1.0,
        0.0,
        1e-320,
        5.0,
        50.0,
    ];
    let marks = [
        Mark::Line,
        Mark::LineWithMarkers,
        Mark::Points,
        Mark::Bars,
        Mark::StackedBars,
    ];
    for (x, y) in [(false, false), (false, true), (true, false), (true, true)] {
        for mark in marks {
            let axis = |logarithmic| {
                if logarithmic {
                    Axis::logarithmic("")
                } else {
                    Axis::linear("")
                }
            };
            let pairs = odd.iter().flat_map(|&x| odd.map(|y| (x, y)));
            let series =
                vec![Series::new("", mark, pairs).with_errors(odd.iter().copied().cycle())];
            let guides = odd
                .map(|value| Guide {
                    name: String::new(),
                    at: At::Y(value),
                })
                .into();
            let chart = Chart {
                title: String::new(),
                x: axis(x),
                y: axis(y),
                series,
                guides,
            };
            let svg = Figure {
                title: String::new(),
                panels: vec![Panel::Chart(chart)],
                columns: 1,
            }
            .svg();
            assert!(Document::parse(&svg).is_ok());
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}

#[test]
fn nothing_to_show_is_an_empty_figure() {
    let axes = || {
        [
            Axis::linear(""),
            Axis::logarithmic(""),
            Axis::categories("", [""; 0]),
        ]
    };
    let charts = axes().into_iter().zip(axes()).map(|(x, y)| {
        Panel::Chart(Chart {
            title: String::new(),
            x,
            y,
            series: Vec::new(),
            guides: Vec::new(),
        })
    });
    let empty = || HeatMap {
        title: String::new(),
        x: String::new(),
        y: String::new(),
        columns: Vec::new(),
        rows: Vec::new(),
        values: Vec::new(),
        value: String::new(),
    };
    let unfilled = HeatMap {
        columns: vec!["a".into(), "b".into()],
        rows: vec!["c".into()],
        values: vec![vec![f64::NAN]],
        ..empty()
    };
    let tiles = Tiles {
        title: String::new(),
        x: String::new(),
        y: String::new(),
        columns: vec!["a".into()],
        rows: Vec::new(),
        kinds: Vec::new(),
        cells: Vec::new(),
    };
    let maps = [
        Panel::HeatMap(empty()),
        Panel::HeatMap(unfilled),
        Panel::Tiles(tiles),
    ];
    let panels = charts.chain(maps).collect();
    for figure in [
        Figure {
            title: String::new(),
            panels: Vec::new(),
            columns: 0,
        },
        Figure {
            title: String::new(),
            panels,
            columns: 9,
        },
    ] {
        let svg = figure.svg();
        assert!(Document::parse(&svg).is_ok());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

#[test]
fn stacked_bars_lie_upon_each_other() {
    let series = [3.0, 4.0, -2.0]
        .map(|value| Series::by_category("", Mark::StackedBars, [value]))
        .into();
    let chart = Chart {
        title: String::new(),
        x: Axis::categories("", ["a"]),
        y: Axis::linear(""),
        series,
        guides: Vec::new(),
    };
    let ends: Vec<_> = marks::bars(&chart)
        .iter()
        .map(|bar| (bar.from, bar.to))
        .collect();
    assert_eq!(ends, [(0.0, 3.0), (3.0, 7.0), (0.0, -2.0)]);
}
