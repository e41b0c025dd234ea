//! Plain loops in the widest registers of this processor.

/// Runs `work`, compiled for the best instruction set of this processor. Only code that is inlined into it is
/// vectorized for that set. Mark closures and the functions that they call `#[inline(always)]`, and write loops as
/// loops: the closure of a `map` or `fold` may not be inlined, and a fused multiply-add in it is then a function call.
#[inline(always)]
pub(crate) fn vectorize<R>(mut work: impl FnMut() -> R) -> R {
    vectorize_fused(
        #[inline(always)]
        |_| work(),
    )
}

/// Does the same as [`vectorize`], and passes `work` the operation that multiplies and adds.
#[inline(always)]
pub(crate) fn vectorize_fused<R>(work: impl FnMut(Fused) -> R) -> R {
    // Called as `FnMut`: as `FnOnce`, a closure would be called through a shim that need not be inlined.
    struct Work<W>(W);

    impl<R, W: FnMut(Fused) -> R> pulp::WithSimd for Work<W> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) -> R {
            (self.0)(Fused(!S::IS_SCALAR))
        }
    }

    pulp::Arch::new().dispatch(Work(work))
}

/// Whether the instruction set multiplies and adds in one instruction that rounds once. All of `pulp`'s sets do, except
/// the scalar one, where such a product would be a function call.
#[derive(Clone, Copy)]
pub(crate) struct Fused(bool);

impl Fused {
    /// Returns whether the instruction set rounds once.
    pub(crate) fn rounds_once(self) -> bool {
        self.0
    }

    /// Computes `a · b + c`.
    #[inline(always)]
    pub(crate) fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        if self.0 { a.mul_add(b, c) } else { a * b + c }
    }
}
