//! The kernels of all number formats, and the table of those that this processor can run.
//!
//! A kernel multiplies matrices of one format with one set of instructions. Each format has a trait: [`Int8Kernel`] for
//! INT8 activations and weights, [`Int16Kernel`] for INT16 activations with weights in INT8 and INT4, [`PanelKernel`]
//! for f32, and [`Bf16Kernel`] and [`PairKernel`] for pairs of bf16 and of INT16. [`available`] has a row for each
//! permitted [`Isa`], best first, with a kernel for each format: that of the instruction set or, if it has none, of the
//! best instruction set below it. The last row is plain Rust, with which the others are compared in tests.
//!
//! To add a kernel, add a file next to those of its format, with a type whose `new` returns `None` if the processor
//! lacks its instructions, and an entry in [`compiled`]. It is [tested](self_test) at run time before it is used.
//! Operators use the kernels of [`best`]; tests run all rows by `Kernels::install`.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod choice;
pub(crate) mod int16;
pub(crate) mod int8;
pub(crate) mod panel;
mod self_test;

use std::sync::LazyLock;

pub use choice::{Choice, ProductKind, Rate, TimedKernel, choose_kernels, use_kernels};

use crate::isa::{self, Isa};
use int8::Int8Kernel;
use int16::Int16Kernel;
use panel::{Bf16Kernel, PairKernel, PanelKernel};

/// A kernel for each format.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// The best instruction set that these kernels may belong to.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests name it"))]
    pub isa: Isa,
    pub int8: &'static dyn Int8Kernel,
    pub int16: &'static dyn Int16Kernel,
    pub float: &'static dyn PanelKernel,
    /// `None` if the processor has no bf16 instructions.
    pub bf16: Option<&'static dyn Bf16Kernel>,
    /// Pairs of INT16; `None` if the processor has no instructions for them.
    pub pairs: Option<&'static dyn PairKernel>,
    /// Whether products that may be rounded use `pairs`. If not, they use `bf16` or, without it, `float`.
    pub rounds_to_pairs: bool,
}

impl Kernels {
    /// Returns the kernel for pairs of INT16, if products that may be rounded use it.
    pub fn rounded_pairs(&self) -> Option<&'static dyn PairKernel> {
        self.pairs.filter(|_| self.rounds_to_pairs)
    }
}

/// The kernels of one instruction set that this processor can run.
#[derive(Default)]
struct IsaKernels {
    int8: Option<&'static dyn Int8Kernel>,
    int16: Option<&'static dyn Int16Kernel>,
    float: Option<&'static dyn PanelKernel>,
    bf16: Option<&'static dyn Bf16Kernel>,
    pairs: Option<&'static dyn PairKernel>,
}

impl IsaKernels {
    /// Returns whether products are rounded to pairs of INT16, if this instruction set has kernels for it. Pairs are
    /// twice as fast as f32; bf16 takes precedence, since the conversion to it is cheaper.
    fn rounds_to_pairs(&self) -> Option<bool> {
        let has_any = self.bf16.is_some() || self.pairs.is_some() || self.float.is_some();
        has_any.then_some(self.bf16.is_none() && self.pairs.is_some())
    }
}

/// Converts a kernel to its format's trait object, if this processor can run it.
macro_rules! kernel {
    ($kernel:expr) => {
        $kernel.map(|kernel| &*Box::leak(Box::new(kernel)) as _)
    };
}

/// Returns all kernels that this processor can run, best instruction set first.
fn isas() -> Vec<(Isa, IsaKernels)> {
    let mut isas = compiled();
    isas.retain(|(isa, _)| isa.is_supported());
    isas
}

/// Returns every instruction set of this architecture, with the kernels that this processor can run.
fn compiled() -> Vec<(Isa, IsaKernels)> {
    vec![
        #[cfg(target_arch = "x86_64")]
        (
            Isa::Amx,
            IsaKernels {
                int8: kernel!(int8::amx::Amx::new()),
                bf16: kernel!(panel::amx_bf16::AmxBf16::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "x86_64")]
        (
            Isa::Avx512,
            IsaKernels {
                int8: kernel!(int8::avx512_vnni::Avx512Vnni::new()),
                int16: kernel!(int16::avx512_vnni::Avx512Vnni::new()),
                float: kernel!(panel::avx512::Avx512::new()),
                bf16: kernel!(panel::avx512_bf16::Avx512Bf16::new()),
                pairs: kernel!(panel::avx512_pairs::Avx512Pairs::new()),
            },
        ),
        #[cfg(target_arch = "x86_64")]
        (
            Isa::AvxVnni,
            IsaKernels {
                int8: kernel!(int8::avx_vnni::AvxVnni::new()),
                int16: kernel!(int16::avx2::AvxVnni::new()),
                pairs: kernel!(panel::avx2_pairs::AvxVnniPairs::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "x86_64")]
        (
            Isa::Avx2,
            IsaKernels {
                int8: kernel!(int8::avx2::Avx2::new()),
                int16: kernel!(int16::avx2::Avx2::new()),
                float: kernel!(panel::avx2::Avx2::new()),
                pairs: kernel!(panel::avx2_pairs::Avx2Pairs::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "aarch64")]
        (
            Isa::Sme,
            IsaKernels {
                int8: kernel!(int8::sme::OuterProduct::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "aarch64")]
        (
            Isa::I8mm,
            IsaKernels {
                int8: kernel!(int8::i8mm::MatrixProduct::new()),
                bf16: kernel!(panel::neon_bf16::NeonBf16::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "aarch64")]
        (
            Isa::Dotprod,
            IsaKernels {
                int8: kernel!(int8::dotprod::DotProduct::new()),
                ..IsaKernels::default()
            },
        ),
        #[cfg(target_arch = "aarch64")]
        (
            Isa::Neon,
            IsaKernels {
                int8: kernel!(Some(int8::neon::Neon)),
                int16: kernel!(Some(int16::neon::Neon)),
                float: kernel!(Some(panel::neon::Neon)),
                ..IsaKernels::default()
            },
        ),
        (
            Isa::Reference,
            IsaKernels {
                int8: kernel!(Some(int8::reference::Reference)),
                int16: kernel!(Some(int16::reference::Reference)),
                float: kernel!(Some(panel::portable::Portable)),
                ..IsaKernels::default()
            },
        ),
    ]
}

/// A kernel that computes wrong results on this processor and is therefore not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedKernel {
    /// The name, as in [`KernelNames`].
    pub kernel: &'static str,
    /// The computed and the expected result.
    pub reason: String,
}

/// Returns a row for each of `isas`, best first, without kernels that a [`self_test`] refuses, and the refused kernels.
fn table(mut isas: Vec<(Isa, IsaKernels)>) -> (Vec<Kernels>, Vec<RefusedKernel>) {
    let mut refused = Vec::new();
    let mut refuse = |kernel, reason| refused.push(RefusedKernel { kernel, reason });
    for (_, kernels) in isas.iter_mut().filter(|(isa, _)| *isa != Isa::Reference) {
        macro_rules! refuse_wrong {
            ($($format:ident),*) => {$(
                if let Some(kernel) = kernels.$format && let Err(reason) = self_test::$format(kernel) {
                    refuse(kernel.name(), reason);
                    kernels.$format = None;
                }
            )*};
        }
        refuse_wrong!(int8, int16, float, bf16, pairs);
    }
    let row = |first: usize| {
        let below = &isas[first..];
        // Plain Rust, the last instruction set, has a kernel for each format except the optional bf16 and pairs of
        // INT16.
        Kernels {
            isa: below[0].0,
            int8: below
                .iter()
                .find_map(|(_, kernels)| kernels.int8)
                .expect("plain Rust"),
            int16: below
                .iter()
                .find_map(|(_, kernels)| kernels.int16)
                .expect("plain Rust"),
            float: below
                .iter()
                .find_map(|(_, kernels)| kernels.float)
                .expect("plain Rust"),
            bf16: below.iter().find_map(|(_, kernels)| kernels.bf16),
            pairs: below.iter().find_map(|(_, kernels)| kernels.pairs),
            rounds_to_pairs: below
                .iter()
                .find_map(|(_, kernels)| kernels.rounds_to_pairs())
                .expect("plain Rust"),
        }
    };
    ((0..isas.len()).map(row).collect(), refused)
}

/// Returns the table of this processor's permitted instruction sets, and the kernels that are refused.
fn checked() -> &'static (Vec<Kernels>, Vec<RefusedKernel>) {
    static CHECKED: LazyLock<(Vec<Kernels>, Vec<RefusedKernel>)> = LazyLock::new(|| {
        let mut isas = isas();
        isas.retain(|(isa, _)| isa::may_be_used(*isa));
        table(isas)
    });
    &CHECKED
}

/// Returns the table: a row for each instruction set that this processor has and that may be used, best first.
pub(crate) fn available() -> &'static [Kernels] {
    &checked().0
}

/// Returns the kernels that computed a small product wrongly on this processor and are therefore not used.
pub fn refused_kernels() -> &'static [RefusedKernel] {
    &checked().1
}

/// Returns the kernels that operators use: those that were chosen, else the first row of the table.
#[inline]
pub(crate) fn best() -> &'static Kernels {
    #[cfg(test)]
    if let Some(installed) = INSTALLED.get() {
        return installed;
    }
    choice::chosen().unwrap_or_else(|| &available()[0])
}

/// Returns the rows that tests run: those of the table, one with an emulated matrix unit, and one of AVX-VNNI with
/// AVX-512's encoding of the instructions.
#[cfg(test)]
pub(crate) fn tested() -> impl Iterator<Item = &'static Kernels> {
    #[cfg(target_arch = "x86_64")]
    static EMULATED: LazyLock<Vec<Kernels>> = LazyLock::new(|| {
        let amx = || {
            let int8 = kernel!(int8::amx::Amx::emulated());
            let bf16 = kernel!(panel::amx_bf16::AmxBf16::emulated());
            Some(Kernels {
                isa: Isa::Amx,
                int8: int8?,
                bf16: Some(bf16?),
                rounds_to_pairs: false,
                ..*best()
            })
        };
        let avx_vnni = || {
            let (int8, int16) = (
                kernel!(int8::avx_vnni::Evex::new()),
                kernel!(int16::avx2::Evex::new()),
            );
            let pairs = kernel!(panel::avx2_pairs::EvexPairs::new());
            Some(Kernels {
                isa: Isa::AvxVnni,
                int8: int8?,
                int16: int16?,
                pairs: Some(pairs?),
                rounds_to_pairs: true,
                ..*best()
            })
        };
        amx().into_iter().chain(avx_vnni()).collect()
    });
    #[cfg(target_arch = "x86_64")]
    return available().iter().chain(EMULATED.iter());
    #[cfg(not(target_arch = "x86_64"))]
    return available().iter();
}

#[cfg(test)]
thread_local! {
    static INSTALLED: std::cell::Cell<Option<&'static Kernels>> = const { std::cell::Cell::new(None) };
}

#[cfg(test)]
impl Kernels {
    /// Runs `work`; operators that it calls on this thread use these kernels.
    pub(crate) fn install<R>(&'static self, work: impl FnOnce() -> R) -> R {
        /// Restores the kernels that were installed before, even after a panic.
        struct Restore(Option<&'static Kernels>);
        impl Drop for Restore {
            fn drop(&mut self) {
                INSTALLED.set(self.0);
            }
        }
        let _restore = Restore(INSTALLED.replace(Some(self)));
        work()
    }
}

/// The names of the kernels that this processor uses: the set of instructions and, where several are possible, the one
/// that multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNames {
    /// Products of INT8 activations and weights.
    pub int8: &'static str,
    /// Products of decode with weights in INT8 and INT4.
    pub int16: &'static str,
    /// Products of prefill in f32.
    pub f32: &'static str,
    /// Products of prefill that may be rounded: those with weights in INT8, INT4 and blocks, and those of attention.
    pub rounded: &'static str,
    /// The format to which these are rounded: `INT16` or `bf16`; `f32` if they are not rounded.
    pub rounded_to: &'static str,
}

/// Returns the names of the kernels that this processor uses.
pub fn kernel_names() -> KernelNames {
    let kernels = best();
    let (rounded, rounded_to) = match (kernels.rounded_pairs(), kernels.bf16) {
        (Some(kernel), _) => (kernel.name(), "INT16"),
        (None, Some(kernel)) => (kernel.name(), "bf16"),
        (None, None) => (kernels.float.name(), "f32"),
    };
    KernelNames {
        int8: kernels.int8.name(),
        int16: kernels.int16.name(),
        f32: kernels.float.name(),
        rounded,
        rounded_to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_isa_and_the_best_of_each_format_below_it() {
        let isas: Vec<_> = available().iter().map(|kernels| kernels.isa).collect();
        let may_be_used: Vec<_> = Isa::supported()
            .filter(|isa| isa::may_be_used(*isa))
            .collect();
        assert_eq!(isas, may_be_used);
        let last = available().last().expect("a row of plain Rust");
        assert_eq!(
            (last.int8.name(), last.int16.name(), last.float.name()),
            ("reference", "reference", "portable")
        );
        assert!(last.bf16.is_none() && last.pairs.is_none() && !last.rounds_to_pairs);
        for (above, below) in available().iter().zip(&available()[1..]) {
            // A format without a kernel of its own in an instruction set has that of the row below.
            let has_its_own = |name: &str| name.starts_with(above.isa.name());
            assert!(has_its_own(above.int8.name()) || above.int8.name() == below.int8.name());
            assert!(has_its_own(above.float.name()) || above.float.name() == below.float.name());
            let pairs = |row: &Kernels| row.pairs.map(PanelKernel::name);
            assert!(pairs(above).is_some_and(has_its_own) || pairs(above) == pairs(below));
        }
    }

    #[test]
    fn installed_kernels_are_used() {
        for kernels in available() {
            kernels.install(|| assert_eq!(kernel_names().int8, kernels.int8.name()));
        }
        assert_eq!(kernel_names().int8, available()[0].int8.name());
    }
}
