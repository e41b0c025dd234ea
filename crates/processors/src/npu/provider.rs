//! The supported execution providers of ONNX Runtime, and their devices.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use ort::ep::{
    self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider, ExecutionProviderDispatch,
};
use ort::memory::DeviceType;

use super::graph::Formulation;
use super::rows::RowShapes;
use crate::error::Error;

/// An execution provider of ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// ONNX Runtime's own CPU kernels, used as an NPU that consists of cores.
    Cpu,
    /// Qualcomm's Hexagon NPUs.
    Qnn,
    /// Intel's NPUs, GPUs and CPUs.
    OpenVino,
    /// Apple's neural engine.
    CoreMl,
    /// AMD's NPUs.
    VitisAi,
    /// CPU kernels for phones.
    Xnnpack,
    /// Calls to a server. It accepts none of Triad's graphs. Every CPU build of ONNX Runtime has it, so that refusals
    /// can be tested everywhere.
    Azure,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// An NPU.
    Npu,
}

/// Qualcomm's option with the path of the library that compiles and runs graphs.
pub(super) const BACKEND_PATH: &str = "backend_path";
/// The options of Qualcomm's provider, except for those with which it runs no graph (`enable_htp_prepare_only`).
const QNN_OPTIONS: &[&str] = &[
    BACKEND_PATH,
    "backend_type",
    "device_id",
    "disable_file_mapped_weights",
    "dump_json_qnn_graph",
    "dump_qnn_ir_dlc",
    "dump_qnn_ir_dlc_dir",
    "enable_htp_fp16_clamp_overflow",
    "enable_htp_fp16_precision",
    "enable_htp_graph_splitting",
    "enable_htp_shared_memory_allocator",
    "enable_htp_spill_fill_buffer",
    "enable_vtcm_backup_buffer_sharing",
    "extended_udma",
    "htp_arch",
    "htp_bf16_enable",
    "htp_graph_finalization_optimization_mode",
    "htp_graph_splitting_num_prepare_threads",
    "htp_performance_mode",
    "htp_reused_io_limit_mb",
    "htp_share_resource_optimization",
    "json_qnn_graph_dir",
    "num_graph_prepare_threads",
    "offload_graph_io_quantization",
    "op_packages",
    "profiling_file_path",
    "profiling_level",
    "qnn_context_priority",
    "qnn_ir_backend_path",
    "qnn_saver_path",
    "rpc_control_latency",
    "skip_qnn_version_check",
    "soc_model",
    "vtcm_mb",
];

impl Provider {
    /// All providers.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Qnn,
        Self::OpenVino,
        Self::CoreMl,
        Self::VitisAi,
        Self::Xnnpack,
        Self::Azure,
    ];

    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Qnn => "qnn",
            Self::OpenVino => "openvino",
            Self::CoreMl => "coreml",
            Self::VitisAi => "vitisai",
            Self::Xnnpack => "xnnpack",
            Self::Azure => "azure",
        }
    }

    /// Returns the environment variable that names its own library, if there is one.
    pub fn library_variable(self) -> Option<&'static str> {
        (self == Self::Qnn).then_some("TRIAD_QNN")
    }

    /// Returns whether it may come as a library of its own. The others are a part of ONNX Runtime.
    pub(super) fn may_have_library(self) -> bool {
        !matches!(self, Self::Cpu | Self::Xnnpack | Self::Azure)
    }

    /// Returns whether its sessions must be built one after another: Qualcomm's provider refuses parts of a graph now
    /// and then if another thread builds a session.
    pub(super) fn builds_alone(self) -> bool {
        self == Self::Qnn
    }

    /// Returns its name in ONNX Runtime.
    pub(super) fn canonical(self) -> &'static str {
        match self {
            Self::Cpu => ep::CPU::NAME,
            Self::Qnn => ep::QNN::NAME,
            Self::OpenVino => ep::OpenVINO::NAME,
            Self::CoreMl => ep::CoreML::NAME,
            Self::VitisAi => ep::Vitis::NAME,
            Self::Xnnpack => ep::XNNPACK::NAME,
            Self::Azure => ep::Azure::NAME,
        }
    }

    /// Returns whether the loaded library was built with it.
    pub(super) fn is_built_in(self) -> ort::Result<bool> {
        match self {
            Self::Cpu => Ok(true),
            Self::Qnn => ep::QNN::is_available(),
            Self::OpenVino => ep::OpenVINO::is_available(),
            Self::CoreMl => ep::CoreML::is_available(),
            Self::VitisAi => ep::Vitis::is_available(),
            Self::Xnnpack => ep::XNNPACK::is_available(),
            Self::Azure => ep::Azure::is_available(),
        }
    }

    /// Returns the provider with `options` for a session; `None` for the CPU, which every session has.
    pub(super) fn dispatch(
        self,
        options: &[(String, String)],
    ) -> Option<ExecutionProviderDispatch> {
        fn with<P>(provider: P, options: &[(String, String)]) -> Option<ExecutionProviderDispatch>
        where
            P: ArbitrarilyConfigurableExecutionProvider + Into<ExecutionProviderDispatch>,
        {
            let configure = |provider: P, (key, value): &(String, String)| {
                provider.with_arbitrary_config(key, value)
            };
            Some(
                options
                    .iter()
                    .fold(provider, configure)
                    .into()
                    .error_on_failure(),
            )
        }
        match self {
            Self::Cpu => None,
            Self::Qnn => with(ep::QNN::default(), options),
            Self::OpenVino => with(ep::OpenVINO::default(), options),
            Self::CoreMl => with(ep::CoreML::default(), options),
            Self::VitisAi => with(ep::Vitis::default(), options),
            Self::Xnnpack => with(ep::XNNPACK::default(), options),
            Self::Azure => with(ep::Azure::default(), options),
        }
    }

    /// Returns the formulation that it computes in INT8.
    pub fn formulation(self) -> Formulation {
        match self {
            Self::Cpu => Formulation::Integer,
            Self::Qnn => Formulation::RoundedSums,
            _ => Formulation::QuantizeDequantize,
        }
    }

    /// Returns the rows' shapes that are built for it, if not otherwise chosen.
    pub(super) fn row_shapes(self) -> RowShapes {
        match self {
            // QNN reshapes other rows to flat ones.
            Self::Cpu | Self::Qnn => RowShapes::Flat,
            _ => RowShapes::Fastest,
        }
    }

    /// Returns the names of its options; `None` if the provider refuses others by itself.
    fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Cpu | Self::Azure => Some(&[]),
            Self::Qnn => Some(QNN_OPTIONS),
            Self::OpenVino | Self::CoreMl | Self::VitisAi | Self::Xnnpack => None,
        }
    }

    /// Checks that the provider has `options`. Some providers ignore options that they do not know.
    ///
    /// # Errors
    /// If there is no option of one of the names, or a name is given twice.
    pub(super) fn check(self, options: &[(String, String)]) -> Result<(), Error> {
        let refused = |option: &str, reason: String| {
            Err(Error::ProviderOption {
                provider: self.to_string(),
                option: option.to_owned(),
                reason,
            })
        };
        for (index, (option, _)) in options.iter().enumerate() {
            if options[..index].iter().any(|(other, _)| other == option) {
                return refused(option, "it is given twice".to_owned());
            }
            match self.options() {
                Some([]) => return refused(option, "the provider has no options".to_owned()),
                Some(names) if !names.contains(&option.as_str()) => {
                    return refused(option, format!("expected one of {}", names.join(", ")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Completes options for the provider of the given library. QNN needs the path of the library of its backend,
    /// which is in the same folder.
    pub(super) fn complete(self, options: &mut Vec<(String, String)>, library: &Path) {
        let is_given =
            |(name, _): &(String, String)| name == BACKEND_PATH || name == "backend_type";
        if self != Self::Qnn || options.iter().any(is_given) {
            return;
        }
        let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let backend = library.with_file_name(format!("{prefix}QnnHtp{suffix}"));
        if backend.exists() {
            options.push((
                BACKEND_PATH.to_owned(),
                backend.to_string_lossy().into_owned(),
            ));
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = String;

    /// # Errors
    /// The names that were expected.
    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|provider| provider.name() == name)
            .ok_or_else(|| format!("expected one of {}", names()))
    }
}

impl DeviceKind {
    /// Returns its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Npu => "npu",
        }
    }

    pub(super) fn from_provider(device: DeviceType) -> Option<Self> {
        match device {
            DeviceType::CPU => Some(Self::Cpu),
            DeviceType::GPU => Some(Self::Gpu),
            DeviceType::NPU => Some(Self::Npu),
            DeviceType::FPGA => None,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
