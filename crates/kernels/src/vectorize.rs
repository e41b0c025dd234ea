//! Plain loops in the widest registers that this processor has.

/// Runs `work` as compiled for the best instruction set of this processor: what is inlined into it, and only
/// that, is vectorized for it. Mark closures and the functions that they call `#[inline(always)]`.
#[inline(always)]
pub(crate) fn vectorize<R>(work: impl FnMut() -> R) -> R {
    // Called as `FnMut`: as `FnOnce`, a closure would sit behind a shim that nothing obliges to be inlined.
    struct Work<W>(W);

    impl<R, W: FnMut() -> R> pulp::WithSimd for Work<W> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(mut self, _: S) -> R {
            (self.0)()
        }
    }

    pulp::Arch::new().dispatch(Work(work))
}
