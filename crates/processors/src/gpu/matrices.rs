//! Matrices that subgroups multiply: cooperative matrices of Vulkan, SIMD-group matrices of Metal, which are an experiment of
//! `wgpu`.

/// What an adapter has of them, and what a device that uses them is asked for with.
pub(super) struct Matrices {
    /// None, or the experimental one.
    pub features: wgpu::Features,
    pub token: wgpu::ExperimentalFeatures,
    /// Sides of squares of numbers in f16, with sums in f32.
    pub sides: Vec<u32>,
}

impl Matrices {
    /// Of a device that is opened without them.
    pub fn none() -> Self {
        let (features, token) = (
            wgpu::Features::empty(),
            wgpu::ExperimentalFeatures::disabled(),
        );
        Self {
            features,
            token,
            sides: Vec::new(),
        }
    }

    /// Those that an adapter has.
    pub fn of(adapter: &wgpu::Adapter) -> Self {
        use wgpu::CooperativeScalarType::{F16, F32};
        let features = adapter.features() & wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        if features.is_empty() {
            return Self::none();
        }
        let all = adapter.cooperative_matrix_properties().into_iter();
        let squares = all.filter(|one| one.m_size == one.n_size && one.n_size == one.k_size);
        let sides = squares
            .filter(|one| (one.ab_type, one.cr_type) == (F16, F32))
            .map(|one| one.k_size)
            .collect();
        // SAFETY: what `wgpu` and the driver make of shaders that use them may be wrong. Whoever named these shaders has asked
        // for it, and they are proven before a model uses them.
        #[allow(unsafe_code)]
        let token = unsafe { wgpu::ExperimentalFeatures::enabled() };
        Self {
            features,
            token,
            sides,
        }
    }
}
