//! Plain kernels of pairs, with which others are compared.

use crate::kernel::panel::portable::Portable;
use crate::kernel::panel::{Panel, PanelKernel};

/// Pairs of bf16 in plain Rust.
pub(super) struct Pairs;

impl PanelKernel for Pairs {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply(&self, panel: &Panel) {
        let widen = |word: u32| {
            [
                f32::from_bits(word << 16),
                f32::from_bits(word & 0xffff_0000),
            ]
        };
        // Separates even and odd numbers, which doubles the products in f32.
        let apart = |words: &[u32]| {
            words
                .iter()
                .map(|word| widen(*word).map(f32::to_bits))
                .collect::<Vec<_>>()
        };
        let (left, right) = (apart(panel.left), apart(panel.right));
        for half in 0..2 {
            let of_half =
                |words: &[[u32; 2]]| words.iter().map(|pair| pair[half]).collect::<Vec<_>>();
            let (left, right) = (&of_half(&left)[..], &of_half(&right)[..]);
            Portable.multiply(&Panel {
                left,
                right,
                columns: panel.columns.clone(),
                add: panel.add || half == 1,
                ..*panel
            });
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        Portable.transpose(from, from_stride, to, to_stride);
    }
}

/// Pairs of INT16 in plain Rust.
pub(super) struct Integers;

impl PanelKernel for Integers {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn multiply(&self, panel: &Panel) {
        let halves = |word: u32| [i32::from(word as i16), i32::from((word >> 16) as i16)];
        for row in 0..panel.out.rows() {
            // SAFETY: no other slice of it exists.
            #[allow(unsafe_code)]
            let out = unsafe { panel.out.row(row, panel.columns.clone()) };
            for (column, out) in out.iter_mut().enumerate() {
                let mut sum = if panel.add { out.to_bits() as i32 } else { 0 };
                for step in 0..panel.steps {
                    let [a, b] = halves(panel.left[row * panel.left_stride + step]);
                    let [c, d] = halves(panel.right[step * panel.right_stride + column]);
                    sum += a * c + b * d;
                }
                *out = f32::from_bits(sum as u32);
            }
        }
    }

    fn transpose(&self, from: &[u32], from_stride: usize, to: &mut [u32], to_stride: usize) {
        Portable.transpose(from, from_stride, to, to_stride);
    }
}
