//! Selects the kernels that multiply matrices: the best that this processor can run, or none better than a requested
//! instruction set. Plain loops (norms, activations, scalar products of floats) are always compiled for the best
//! instruction set.

use std::sync::LazyLock;

/// The environment variable that requests an instruction set by name: to compare the speed of instruction sets, or to
/// exclude one that may be faulty.
pub const VARIABLE: &str = "TRIAD_KERNELS";

/// A set of instructions that kernels are written for. Within an architecture, better ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// x86-64 with AVX-512 and the matrix unit AMX, for products of many rows in INT8 and bf16.
    Amx,
    /// x86-64 with AVX-512; kernels for INT8 and bf16 also need VNNI and BF16.
    Avx512,
    /// x86-64 with AVX2 and AVX-VNNI, with 256-bit dot products.
    AvxVnni,
    /// x86-64 with AVX2 and fused multiply-adds.
    Avx2,
    /// ARM with the Scalable Matrix Extension.
    Sme,
    /// ARM with 8-bit matrix products, and those of bf16 if it has them.
    I8mm,
    /// ARM with 8-bit dot products.
    Dotprod,
    /// Every 64-bit ARM.
    Neon,
    /// Plain Rust, on every processor.
    Reference,
}

impl Isa {
    /// All instruction sets.
    pub const ALL: [Self; 9] = [
        Self::Amx,
        Self::Avx512,
        Self::AvxVnni,
        Self::Avx2,
        Self::Sme,
        Self::I8mm,
        Self::Dotprod,
        Self::Neon,
        Self::Reference,
    ];

    /// Returns the name in [`VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512 => "avx512",
            Self::AvxVnni => "avxvnni",
            Self::Avx2 => "avx2",
            Self::Sme => "sme",
            Self::I8mm => "i8mm",
            Self::Dotprod => "dotprod",
            Self::Neon => "neon",
            Self::Reference => "reference",
        }
    }

    /// Returns whether this processor has these instructions.
    pub fn is_supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => crate::amx::Native::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Self::Sme => has_sme() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm => std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            Self::Reference => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Returns whether this processor has, in addition to [`Isa::Avx512`], VNNI (products of bytes and of 16-bit
    /// numbers that are added to 32-bit ones) and the further instructions that VNNI kernels need.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_vnni() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("popcnt")
    }

    /// Returns the instruction sets that this processor has, best first.
    pub fn supported() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_supported())
    }

    /// Returns the instruction set called `name`.
    ///
    /// # Errors
    /// If there is none, or this processor lacks its instructions; the error lists the possible names.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::supported()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = Self::supported().map(Self::name).collect();
                format!(
                    "{VARIABLE} is {name:?}, expected an instruction set that this processor has: {}",
                    names.join(", ")
                )
            })
    }
}

/// Returns whether this processor has the Scalable Matrix Extension and the system lets programs use it. The standard
/// library's detection of it is unstable.
#[cfg(all(
    target_arch = "aarch64",
    any(target_os = "linux", target_os = "android")
))]
fn has_sme() -> bool {
    /// Bits of `AT_HWCAP2`: the extension, and its outer products of bytes that are added to 32-bit sums.
    const SME: usize = 1 << 23;
    const SME_I8I32: usize = 1 << 26;
    let (_, capabilities) = rustix::param::linux_hwcap();
    capabilities & SME != 0 && capabilities & SME_I8I32 != 0
}

/// Does the same as on Linux; every implementation of the extension has outer products of bytes. Never run: no
/// developer has such a machine.
#[cfg(all(target_arch = "aarch64", target_os = "macos"))]
fn has_sme() -> bool {
    use std::ffi::{c_char, c_int, c_void};
    #[allow(unsafe_code)]
    unsafe extern "C" {
        fn sysctlbyname(
            name: *const c_char,
            old: *mut c_void,
            old_len: *mut usize,
            new: *mut c_void,
            new_len: usize,
        ) -> c_int;
    }
    let (mut found, mut len): (c_int, usize) = (0, size_of::<c_int>());
    // SAFETY: the system's function writes at most `len` bytes to `found`, and changes nothing without a new value.
    #[allow(unsafe_code)]
    let error = unsafe {
        let name = c"hw.optional.arm.FEAT_SME".as_ptr();
        sysctlbyname(
            name,
            (&raw mut found).cast(),
            &raw mut len,
            std::ptr::null_mut(),
            0,
        )
    };
    error == 0 && found != 0
}

/// Returns false: there is no detection for other systems.
#[cfg(all(
    target_arch = "aarch64",
    not(any(target_os = "linux", target_os = "android", target_os = "macos"))
))]
fn has_sme() -> bool {
    false
}

/// Returns the instruction set that [`VARIABLE`] requests; `None` if it is not set or empty.
///
/// # Errors
/// As for [`Isa::named`].
pub fn requested() -> Result<Option<Isa>, String> {
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    let name = name.to_string_lossy();
    if name.is_empty() {
        Ok(None)
    } else {
        Isa::named(&name).map(Some)
    }
}

/// Returns whether a kernel of `isa` may be used: it must not be better than the requested instruction set. An invalid
/// request is ignored here; programs report it by [`requested`].
pub(crate) fn may_be_used(isa: Isa) -> bool {
    static REQUESTED: LazyLock<Option<Isa>> = LazyLock::new(|| requested().unwrap_or_default());
    REQUESTED.is_none_or(|requested| isa >= requested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isa_is_found_by_its_name_and_others_are_errors_that_say_which_there_are() {
        for isa in Isa::supported() {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
        for wrong in ["sse9", "", "AVX2"] {
            let error = Isa::named(wrong).unwrap_err();
            assert!(
                error.contains(VARIABLE) && error.contains(wrong) && error.ends_with("reference"),
                "{error}"
            );
        }
        // No processor has both.
        assert!(!(Isa::Avx2.is_supported() && Isa::Neon.is_supported()));
    }

    #[test]
    fn an_isa_that_tests_are_run_for_is_one_that_this_processor_has() {
        // `.ci/aarch64` requests an instruction set; this test ensures that its tests do not run without it.
        assert_eq!(requested().err(), None);
    }
}
