//! Figures of studies as SVG for papers: charts of lines, points and bars, and heat maps.
//!
//! The types in this module describe a figure; the submodules draw it. [`layout`] places labels, [`ruler`] maps values
//! to places and chooses ticks, and [`marks`] draws series. [`heat_map`] and [`tiles`] draw matrices, and [`timeline`]
//! draws runs of a schedule. [`svg`] writes elements.
//!
//! The output depends only on the data. Values that are not finite are omitted, as are values of zero or less on a
//! logarithmic axis.

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
    /// Title above all panels. It may be empty.
    pub title: String,
    /// The panels, row by row.
    pub panels: Vec<Panel>,
    /// Number of panels per row. In a figure with one column, panels are wide.
    pub columns: usize,
}

/// One chart of a [`Figure`].
pub enum Panel {
    /// A chart of lines, points or bars.
    Chart(Chart),
    /// A matrix in colours.
    HeatMap(HeatMap),
    /// A matrix of kinds.
    Tiles(Tiles),
}

/// A chart of series with two axes.
pub struct Chart {
    /// Title above the chart. It may be empty.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series, each in its own colour.
    pub series: Vec<Series>,
    /// Dashed lines for comparison.
    pub guides: Vec<Guide>,
}

/// An axis of a [`Chart`]. It covers all points. Its ticks are chosen automatically.
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
    /// Creates an axis of numbers. `title` names the quantity and its unit.
    pub fn linear(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            scale: Scale::Linear,
            covers: Vec::new(),
        }
    }

    /// Creates a logarithmic axis of positive numbers.
    pub fn logarithmic(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            scale: Scale::Logarithmic,
            covers: Vec::new(),
        }
    }

    /// Creates an axis with a place for each label. Values are indices of labels.
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

    /// Returns the axis extended to cover at least `low` to `high`.
    #[must_use]
    pub fn covering(mut self, low: f64, high: f64) -> Self {
        self.covers = vec![low, high];
        self
    }
}

/// A series of points.
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Style of the points.
    pub mark: Mark,
    /// The points. A line connects them in this order.
    pub points: Vec<Point>,
}

/// Style of a [`Series`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A line with a marker at each point.
    LineWithMarkers,
    /// Markers without a line.
    Points,
    /// Bars over categories. Those of several series are next to each other.
    Bars,
    /// Bars over categories. Those of several series are stacked.
    StackedBars,
}

/// A point of a [`Series`].
#[derive(Clone, Copy)]
pub struct Point {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Half the length of the error bar, from `y - error` to `y + error`; zero for none.
    pub error: f64,
}

impl Series {
    /// Creates a series from pairs (x, y).
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

    /// Creates a series with one value for each category.
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

    /// Returns the series with error bars of plus and minus `errors`, one for each point.
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
    /// Position of the line.
    pub at: At,
}

/// Position of a [`Guide`].
#[derive(Clone, Copy)]
pub enum At {
    /// A vertical line at this x.
    X(f64),
    /// A horizontal line at this y.
    Y(f64),
}

/// A matrix in colours with a colour bar. Cells contain their value if they have room for it.
pub struct HeatMap {
    /// Title above the matrix. It may be empty.
    pub title: String,
    /// Title of the columns.
    pub x: String,
    /// Title of the rows.
    pub y: String,
    /// Labels of the columns, from left to right.
    pub columns: Vec<String>,
    /// Labels of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// One row of values for each row label. Cells of missing or non-finite values are grey.
    pub values: Vec<Vec<f64>>,
    /// Name of the values, with their unit.
    pub value: String,
}

/// A matrix in which each cell is of one kind, in the colour of this kind in the legend.
pub struct Tiles {
    /// Title above the matrix. It may be empty.
    pub title: String,
    /// Title of the columns.
    pub x: String,
    /// Title of the rows.
    pub y: String,
    /// Labels of the columns, from left to right.
    pub columns: Vec<String>,
    /// Labels of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// Names of the kinds.
    pub kinds: Vec<String>,
    /// One row of kinds for each row label, as indices of `kinds`. A cell without a kind is grey.
    pub cells: Vec<Vec<Option<usize>>>,
}

impl Figure {
    /// Returns the figure as an SVG document.
    pub fn svg(&self) -> String {
        draw::figure(self).document()
    }
}
