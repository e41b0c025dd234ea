//! Figures of studies as SVG: charts of lines, points and bars, and heat maps, fit for a paper.
//!
//! The types here say what is shown; the modules below draw it. [`layout`] finds room for labels, [`ruler`] turns
//! values into places and picks ticks, [`marks`] draws series, [`heat_map`] and [`tiles`] matrices, [`timeline`] runs of a schedule, and [`svg`] writes elements.
//! What is drawn depends on the data alone. Values that are no finite number, and values of zero or less on a
//! logarithmic axis, are left out.

mod draw;
mod heat_map;
mod layout;
mod marks;
mod plot;
mod ruler;
mod style;
mod svg;
#[cfg(test)]
mod tests;
mod tiles;
pub mod timeline;

/// One or more panels under a common title.
pub struct Figure {
    /// Title above all panels; may be empty.
    pub title: String,
    /// The panels, filling row after row.
    pub panels: Vec<Panel>,
    /// Panels beside each other. A figure with one column has wide panels.
    pub columns: usize,
}

/// One chart of a [`Figure`].
pub enum Panel {
    /// Lines, points or bars in a coordinate system.
    Chart(Chart),
    /// A matrix in colours.
    HeatMap(HeatMap),
    /// A matrix of kinds.
    Tiles(Tiles),
}

/// Series of points over two axes.
pub struct Chart {
    /// Title above the chart; may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn, each series in a colour of its own.
    pub series: Vec<Series>,
    /// Dashed lines to compare with.
    pub guides: Vec<Guide>,
}

/// One axis of a [`Chart`]. It covers all points; ticks are found by itself.
pub struct Axis {
    title: String,
    scale: Scale,
    covers: Vec<f64>,
}

enum Scale {
    Linear,
    Logarithmic,
    Categories(Vec<String>),
}

impl Axis {
    /// An axis of numbers. `title` names the quantity and its unit.
    pub fn linear(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            scale: Scale::Linear,
            covers: Vec::new(),
        }
    }

    /// An axis of positive numbers, equal factors at equal distances.
    pub fn logarithmic(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            scale: Scale::Logarithmic,
            covers: Vec::new(),
        }
    }

    /// An axis with a place for each label; values count them from zero.
    pub fn categories(
        title: impl Into<String>,
        labels: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let labels = labels.into_iter().map(Into::into).collect();
        Self {
            title: title.into(),
            scale: Scale::Categories(labels),
            covers: Vec::new(),
        }
    }

    /// The same axis, reaching at least from `low` to `high`.
    #[must_use]
    pub fn covering(mut self, low: f64, high: f64) -> Self {
        self.covers = vec![low, high];
        self
    }
}

/// Points that belong together.
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How the points are drawn.
    pub mark: Mark,
    /// The points; a line joins them in this order.
    pub points: Vec<Point>,
}

/// How a [`Series`] is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A line with a marker at every point.
    LineWithMarkers,
    /// Markers alone.
    Points,
    /// Bars over categories, those of several series beside each other.
    Bars,
    /// Bars over categories, those of several series upon each other.
    StackedBars,
}

/// One value of a [`Series`].
#[derive(Clone, Copy)]
pub struct Point {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Place on the vertical axis.
    pub y: f64,
    /// The error bar reaches from `y - error` to `y + error`; zero for none.
    pub error: f64,
}

impl Series {
    /// A series of pairs x, y.
    pub fn new(
        name: impl Into<String>,
        mark: Mark,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let points = points
            .into_iter()
            .map(|(x, y)| Point { x, y, error: 0.0 })
            .collect();
        Self {
            name: name.into(),
            mark,
            points,
        }
    }

    /// A series with one value for each category.
    pub fn by_category(
        name: impl Into<String>,
        mark: Mark,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        Self::new(
            name,
            mark,
            values
                .into_iter()
                .enumerate()
                .map(|(index, value)| (index as f64, value)),
        )
    }

    /// The same series with error bars of plus and minus `errors`, one for each point.
    #[must_use]
    pub fn with_errors(mut self, errors: impl IntoIterator<Item = f64>) -> Self {
        for (point, error) in self.points.iter_mut().zip(errors) {
            point.error = error;
        }
        self
    }
}

/// A dashed line across a [`Chart`].
pub struct Guide {
    /// Name in the legend.
    pub name: String,
    /// Where it is.
    pub at: At,
}

/// Place of a [`Guide`].
#[derive(Clone, Copy)]
pub enum At {
    /// A vertical line at this x.
    X(f64),
    /// A horizontal line at this y.
    Y(f64),
}

/// A matrix in colours, with a colour bar and the value in every cell that has room for it.
pub struct HeatMap {
    /// Title above the matrix; may be empty.
    pub title: String,
    /// What the columns are.
    pub x: String,
    /// What the rows are.
    pub y: String,
    /// Labels of the columns, from the left.
    pub columns: Vec<String>,
    /// Labels of the rows, from the top.
    pub rows: Vec<String>,
    /// One row of values for each row label. A value that is missing or not finite leaves its cell grey.
    pub values: Vec<Vec<f64>>,
    /// What the values are, with their unit.
    pub value: String,
}

/// A matrix each of whose cells is of one kind, in the colour that the legend has for it.
pub struct Tiles {
    /// Title above the matrix; may be empty.
    pub title: String,
    /// What the columns are.
    pub x: String,
    /// What the rows are.
    pub y: String,
    /// Labels of the columns, from the left.
    pub columns: Vec<String>,
    /// Labels of the rows, from the top.
    pub rows: Vec<String>,
    /// Names of the kinds.
    pub kinds: Vec<String>,
    /// One row of kinds for each row label, by their index. A cell without one is grey.
    pub cells: Vec<Vec<Option<usize>>>,
}

impl Figure {
    /// The figure as a whole SVG document.
    pub fn svg(&self) -> String {
        draw::figure(self).document()
    }
}
