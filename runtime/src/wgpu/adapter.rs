//! Which GPUs there are, which of them is taken, and what it offers.

use std::fmt;

use kiln_ir::gpu::{GpuTarget, Support};
use kiln_ir::{Code, Diagnostic};

/// Which GPU to open, and how much of it to use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WgpuOptions {
    /// Which one, among those that [`Adapter::all`] lists, from 0.
    pub ordinal: usize,
    /// Which limits and features kernels may use.
    pub limits: WgpuLimits,
    /// Whether a device that is open with the same options will do.
    pub opening: WgpuOpening,
}

/// Whether opening a device may give one that is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WgpuOpening {
    /// What is open with the same options is given again, so that all arrays of a process meet in its kernels.
    #[default]
    Shared,
    /// A device of one's own, with its own queue and memory: what others hand over or wait for does not hold it up. Its arrays meet those of
    /// no other opening.
    Own,
}

/// Which limits and features of a device kernels may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WgpuLimits {
    /// All that the device offers.
    #[default]
    Device,
    /// Only what every WebGPU device offers ([`GpuTarget::WEBGPU`]): what a page in a browser can count on.
    WebGpu,
}

/// A GPU (or a driver that computes on the CPU) as the system describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// What it is: `discrete GPU`, `integrated GPU`, `virtual GPU`, `CPU`, or `other`.
    pub kind: &'static str,
    /// Through which interface it is reached: `vulkan`, `metal`, ...
    pub interface: &'static str,
    /// The driver, with its version.
    pub driver: String,
    /// A name for files that hold what the driver has compiled, where it gives that away.
    pub(super) cache_key: Option<String>,
}

impl Adapter {
    /// All adapters that can be opened, in the order of their ordinals: GPUs of their own first, then integrated ones, then drivers that compute
    /// on the CPU. Empty in a browser, where only the one that the browser chooses can be had.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn all() -> Vec<Adapter> {
        pollster::block_on(found(&instance())).iter().map(described).collect()
    }

    fn of(info: &wgpu::AdapterInfo) -> Adapter {
        let kind = match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete GPU",
            wgpu::DeviceType::IntegratedGpu => "integrated GPU",
            wgpu::DeviceType::VirtualGpu => "virtual GPU",
            wgpu::DeviceType::Cpu => "CPU",
            wgpu::DeviceType::Other => "other",
        };
        let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_owned();
        let cache_key = wgpu::util::pipeline_cache_key(info);
        Adapter { name: info.name.clone(), kind, interface: info.backend.to_str(), driver, cache_key }
    }
}

/// `NVIDIA H200 (discrete GPU, vulkan)`.
impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.kind, self.interface)
    }
}

/// A device that was opened.
pub(super) struct Opened {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) adapter: Adapter,
    pub(super) target: GpuTarget,
}

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    // Kernels are checked where they are made; a driver's own layers would check every call once more.
    descriptor.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(descriptor)
}

fn described(adapter: &wgpu::Adapter) -> Adapter {
    Adapter::of(&adapter.get_info())
}

/// All adapters that can compute, the best first.
#[cfg(not(target_arch = "wasm32"))]
async fn found(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let mut adapters = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    let computes = |adapter: &wgpu::Adapter| {
        adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
    };
    adapters.retain(computes);
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}

/// In a browser there is the adapter that the browser gives.
#[cfg(target_arch = "wasm32")]
async fn found(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let options = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..wgpu::RequestAdapterOptions::default()
    };
    instance.request_adapter(&options).await.into_iter().collect()
}

/// Opens the adapter that the options name. K0708 where there is none, K0702 where it does not open.
pub(super) async fn open(options: &WgpuOptions) -> Result<Opened, Diagnostic> {
    let adapters = found(&instance()).await;
    let Some(adapter) = adapters.get(options.ordinal) else {
        let names: Vec<String> = adapters.iter().map(|adapter| described(adapter).to_string()).collect();
        return Err(crate::device::missing("wgpu", options.ordinal, &names));
    };
    let offered = offered(adapter, options.limits);
    let opened = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("kiln"),
        required_features: offered.features,
        required_limits: offered.limits,
        experimental_features: wgpu::ExperimentalFeatures::disabled(),
        memory_hints: wgpu::MemoryHints::Performance,
        trace: wgpu::Trace::Off,
    });
    let (device, queue) = opened.await.map_err(|error| {
        Diagnostic::new(Code::K0702, format!("device fault: {} does not open: {error}", described(adapter)))
    })?;
    Ok(Opened { device, queue, adapter: described(adapter), target: offered.target })
}

/// What is asked of an adapter, and what kernels may then use.
struct Offered {
    features: wgpu::Features,
    limits: wgpu::Limits,
    target: GpuTarget,
}

fn offered(adapter: &wgpu::Adapter, limits: WgpuLimits) -> Offered {
    let (has, info) = (adapter.features(), adapter.get_info());
    // These change nothing of what is computed.
    let neutral = has & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE);
    match limits {
        WgpuLimits::WebGpu => {
            Offered { features: neutral, limits: wgpu::Limits::defaults(), target: GpuTarget::WEBGPU }
        }
        WgpuLimits::Device => {
            use wgpu::Features;
            let wanted = Features::SHADER_F16 | Features::SHADER_F64 | Features::SHADER_INT64 | Features::SUBGROUP;
            let features = neutral | has & wanted;
            let limits = adapter.limits();
            let support = |feature| Support::of(features.contains(feature));
            // An invocation of a subgroup that is not whole would be missed.
            let subgroup = (features.contains(Features::SUBGROUP) && info.subgroup_min_size >= 4)
                .then_some((info.subgroup_min_size, info.subgroup_max_size));
            let target = GpuTarget {
                f16: support(Features::SHADER_F16),
                f64: support(Features::SHADER_F64),
                i64: support(Features::SHADER_INT64),
                // A probe finds that out.
                fma: Support::Missing,
                subgroup,
                bindings: limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group),
                binding_bytes: limits.max_storage_buffer_binding_size,
                buffer_bytes: limits.max_buffer_size,
                workgroup_size: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
                workgroup_memory: limits.max_compute_workgroup_storage_size,
                workgroups: limits.max_compute_workgroups_per_dimension,
                widest: GpuTarget::WEBGPU.widest,
            };
            Offered { features, limits, target }
        }
    }
}
