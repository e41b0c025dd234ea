//! `out = x · Wᵀ + bias` in INT8: checks the shapes and divides the output into tasks.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Int8Weight, QuantizedView};
use crate::kernel::best;
use crate::kernel::int8::Rectangle;
use crate::kernel::int8::shadow::ShadowColumns;
use crate::output::{OutputMut, SharedOutput};
use crate::pool;

/// Output columns of a kernel's widest tile.
const PANEL: usize = 64;
/// With at least so many rows per thread, each thread gets its own rows, and reads all weights for them.
const GROUP_ROWS: usize = 64;
/// Up to so many rows, reading the weights takes longer than multiplying.
const FEW_ROWS: usize = 16;
/// Tasks per thread with few rows, in case a thread gets less time on its core.
const STRETCHES: usize = 4;
/// Minimum number of products per task; waking a thread costs as much as about ten thousand.
const TASK_PRODUCTS: usize = 1 << 17;

/// Computes `out[rows, out_features] = scale(row) · scales[o] · Σ x · w + bias`, with the sums in i32.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul_int8(x: QuantizedView, weight: Int8Weight, bias: Option<&[f32]>, out: OutputMut) {
    matmul_int8_each(x, &mut [Int8Product::new(weight, bias, out)]);
}

/// One of several products of the same activations.
pub struct Int8Product<'a> {
    weight: Int8Weight<'a>,
    bias: Option<&'a [f32]>,
    out: SharedOutput<'a>,
    has_shadow: bool,
}

impl<'a> Int8Product<'a> {
    /// Creates a product with a bias `[out_features]`, for `out[rows, out_features]`.
    ///
    /// A product of a range of output channels ([`Int8Weight::columns`]) or of some rows
    /// ([`QuantizedRows::rows_view`](super::QuantizedRows::rows_view)) has the same bits as that part of the whole
    /// product.
    pub fn new(weight: Int8Weight<'a>, bias: Option<&'a [f32]>, out: OutputMut<'a>) -> Self {
        Self {
            weight,
            bias,
            out: out.into_shared(),
            has_shadow: false,
        }
    }

    /// Also adds what [`shadow`](super::shadow) adds, with the same bits, while outputs and weights are in a core's
    /// caches.
    pub fn with_shadow(self) -> Self {
        Self {
            has_shadow: true,
            ..self
        }
    }

    fn check(&self, x: QuantizedView) {
        self.weight.check();
        let (rows, out_features) = (x.rows(), self.weight.out_features);
        self.out.check(rows, out_features);
        assert_eq!(
            x.in_features(),
            self.weight.in_features,
            "expected as many features per activation row as the weight has"
        );
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), out_features, "bias is [{out_features}]");
        }
    }
}

/// Computes [`matmul_int8`] with several weights as one operator, so that threads synchronize once.
///
/// # Panics
/// If a slice's length contradicts the shapes.
pub fn matmul_int8_each(x: QuantizedView, products: &mut [Int8Product]) {
    products.iter().for_each(|product| product.check(x));
    let (products, kernel) = (&*products, best().int8);
    let widths: SmallVec<[_; 4]> = products
        .iter()
        .map(|product| product.weight.out_features)
        .collect();
    for_each_rectangle(x, &widths, |index, rows, columns| {
        let Int8Product {
            weight,
            bias,
            out,
            has_shadow,
        } = products[index];
        kernel.multiply(&Rectangle {
            x,
            rows: rows.clone(),
            weight,
            columns: columns.clone(),
            bias,
            out,
        });
        if has_shadow {
            kernel.shadow(&ShadowColumns {
                x,
                rows,
                weight,
                columns,
                out,
                add: true,
            });
        }
    });
}

/// Calls `compute` with rectangles that together cover the outputs of products of `x`, one for each of `out_features`.
/// The arguments are the index of the product, rows and columns. Columns start at multiples of [`Int8Weight::COLUMNS`].
pub(super) fn for_each_rectangle(
    x: QuantizedView,
    out_features: &[usize],
    compute: impl Fn(usize, Range<usize>, Range<usize>) + Sync,
) {
    let rows = x.rows();
    if rows == 0 {
        return;
    }
    // With many rows, each thread gets a group of rows, the same in all operators.
    let groups = if rows >= GROUP_ROWS * pool::threads() {
        pool::threads()
    } else {
        1
    };
    let group_rows = rows.div_ceil(groups);
    let task_rows = group_rows.min(best().int8.task_rows(x.in_features()));
    let down = group_rows.div_ceil(task_rows);
    let least_columns = PANEL * (TASK_PRODUCTS / (PANEL * x.in_features() * task_rows)).max(1);
    let task_columns = |out_features: usize| {
        // With few rows, memory limits the speed: tasks read long stretches of weights, which the processor and the
        // kernels prefetch.
        let stretch = out_features / (STRETCHES * pool::threads()) / PANEL * PANEL;
        if rows <= FEW_ROWS {
            least_columns.max(stretch)
        } else {
            least_columns
        }
    };
    // Columns per task and tasks per group of each product, computed once rather than for every task.
    let tasks = out_features.iter().map(|out_features| {
        let columns = task_columns(*out_features);
        (columns, down * out_features.div_ceil(columns))
    });
    let tasks: SmallVec<[_; 4]> = tasks.collect();
    let counts = (0..groups).flat_map(|_| tasks.iter().map(|(_, count)| *count));
    pool::for_each_of(&counts, |index, task| {
        let (group, index) = (index / tasks.len(), index % tasks.len());
        let (task_columns, _) = tasks[index];
        // Neighbouring tasks share weights that the thread's cache may still hold.
        let (row, column) = (
            group * group_rows + task % down * task_rows,
            task / down * task_columns,
        );
        let rows = row.min(rows)..(row + task_rows).min((group + 1) * group_rows).min(rows);
        // Group sizes are rounded up, so the last groups may have fewer rows or none.
        if !rows.is_empty() {
            compute(
                index,
                rows,
                column..(column + task_columns).min(out_features[index]),
            );
        }
    });
}
