//! The size closest to a picture's whose sides are multiples of a number and whose pixels are within limits, for
//! Qwen2-VL and LFM2-VL.

/// Multiples and limits of sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smart {
    /// Sides are multiples of it.
    pub(crate) factor: u32,
    /// Minimum and maximum number of pixels.
    pub(crate) pixels: (u64, u64),
    /// Minimum of a side before the limits are looked at: 0, or the factor.
    pub(crate) least: u32,
}

impl Smart {
    /// Returns width and height for a picture of `(width, height)`.
    pub(crate) fn size(&self, (width, height): (u32, u32)) -> (u32, u32) {
        let factor = f64::from(self.factor);
        let (width, height) = (f64::from(width), f64::from(height));
        let both = |side: &dyn Fn(f64) -> f64| {
            let side = |length| (side(length) as u32).saturating_mul(self.factor);
            (side(width), side(height))
        };
        let near = both(&|length| (length / factor).round_ties_even());
        let near = (near.0.max(self.least), near.1.max(self.least));
        let pixels = u64::from(near.0) * u64::from(near.1);
        let (fewest, most) = self.pixels;
        if pixels > most {
            let beta = (height * width / most as f64).sqrt();
            let size = both(&|length| (length / beta / factor).floor());
            return (size.0.max(self.factor), size.1.max(self.factor));
        }
        if pixels < fewest {
            let beta = (fewest as f64 / (height * width)).sqrt();
            return both(&|length| (length * beta / factor).ceil());
        }
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_qwen2_vl() {
        let smart = Smart {
            factor: 28,
            pixels: (56 * 56, 28 * 28 * 1280),
            least: 0,
        };
        assert_eq!(smart.size((1000, 500)), (1008, 504));
        assert_eq!(smart.size((10, 2000)), (28, 812));
        assert_eq!(smart.size((1, 1)), (56, 56));
        assert_eq!(smart.size((4000, 3000)), (1148, 840));
        // 42 and 70 are halfway between multiples: the even multiple is taken.
        assert_eq!(smart.size((70, 70)), (56, 56));
    }
}
