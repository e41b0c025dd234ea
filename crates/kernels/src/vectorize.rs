//! Plain loops in the widest registers that this processor has.

/// Runs `work` as compiled for the best instruction set of this processor: what is inlined into it, and only
/// that, is vectorized for it. Mark closures and the functions that they call `#[inline(always)]`, and write loops as
/// loops: the closure of a `map` or `fold` may stay outside, where a fused multiply-add is a call of a function.
#[inline(always)]
pub(crate) fn vectorize<R>(mut work: impl FnMut() -> R) -> R {
    vectorize_fused(
        #[inline(always)]
        |_| work(),
    )
}

/// [`vectorize`], where `work` is called with the way to multiply and add.
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

/// Whether the instruction set multiplies and adds in one instruction that rounds once. All those of `pulp` do but the
/// scalar one, where such a product would be a function call.
#[derive(Clone, Copy)]
pub(crate) struct Fused(bool);

impl Fused {
    /// Whether it does.
    pub(crate) fn rounds_once(self) -> bool {
        self.0
    }

    /// `a · b + c`.
    #[inline(always)]
    pub(crate) fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        if self.0 { a.mul_add(b, c) } else { a * b + c }
    }
}
