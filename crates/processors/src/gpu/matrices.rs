//! Matrices that a subgroup multiplies: Vulkan's cooperative matrices and Metal's SIMD-group matrices. They are an
//! experimental feature of `wgpu`.

/// The cooperative matrices of an adapter, and the features with which a device must be requested to use them.
pub(super) struct Matrices {
    /// The experimental feature, or none.
    pub features: wgpu::Features,
    pub token: wgpu::ExperimentalFeatures,
    /// Sides of the supported square matrices (f16 inputs, f32 sums).
    pub sides: Vec<u32>,
}

impl Matrices {
    /// Returns the configuration of a device that does not use them.
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

    /// Returns the matrices that an adapter supports.
    pub fn supported_by(adapter: &wgpu::Adapter) -> Self {
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
        // SAFETY: `wgpu` and the driver may miscompile shaders that use this feature. Only a user who names these
        // shaders enables it, and they must pass the self-test before a model uses them.
        #[allow(unsafe_code)]
        let token = unsafe { wgpu::ExperimentalFeatures::enabled() };
        Self {
            features,
            token,
            sides,
        }
    }
}
