//! What a device copies through wgpu, Kiln aside: the measure of everything that only moves bytes.
//!
//! The driver's own copy between two buffers, and copies by WGSL that differ in how much of them an invocation has; the best is the measure. Bytes
//! are counted both ways.

use std::time::Instant;

const ROUNDS: usize = 7;
const CALLS: usize = 20;
/// Invocations of a workgroup.
const WORKGROUP: u64 = 256;

/// A device, and two buffers on it.
pub(crate) struct Copies {
    device: wgpu::Device,
    queue: wgpu::Queue,
    from: wgpu::Buffer,
    to: wgpu::Buffer,
    bytes: u64,
}

/// One way to copy.
pub(crate) struct Copied {
    /// Which.
    pub(crate) name: String,
    /// How long it takes.
    pub(crate) ms: f64,
}

impl Copies {
    /// On the adapter of this name, with buffers of so many bytes: a power of two, 2^16 at least. `None` where the adapter is not to be had.
    pub(crate) fn new(name: &str, bytes: u64) -> Option<Copies> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.flags = wgpu::InstanceFlags::empty();
        let adapters = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(wgpu::Backends::PRIMARY));
        let adapter = adapters.into_iter().find(|adapter| adapter.get_info().name == name)?;
        let opened = adapter.request_device(&wgpu::DeviceDescriptor {
            label: None,
            required_features: wgpu::Features::empty(),
            required_limits: adapter.limits(),
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        });
        let (device, queue) = pollster::block_on(opened).ok()?;
        let buffer = || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let (from, to) = (buffer(), buffer());
        let copies = Copies { device, queue, from, to, bytes };
        copies.fill();
        Some(copies)
    }

    /// All ways.
    pub(crate) fn measured(&self) -> Vec<Copied> {
        let by_driver = self.time(&|encoder| encoder.copy_buffer_to_buffer(&self.from, 0, &self.to, 0, self.bytes));
        let mut all = vec![Copied { name: "copy_buffer_to_buffer".to_owned(), ms: by_driver }];
        for quads in [1, 2, 4] {
            let kernel = Kernel::new(self, &copying(quads, self.bytes), self.bytes / 16 / WORKGROUP / quads);
            let name = format!("copy by WGSL, {quads} vec4");
            all.push(Copied { name, ms: self.time(&|encoder| kernel.record(encoder)) });
        }
        all
    }

    /// Numbers of which no two are alike: memory of one number moves faster on some devices.
    fn fill(&self) {
        let groups = self.bytes / 4 / WORKGROUP;
        let text = format!(
            "
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> copied: array<u32>;
{}    let word = source[at] + at * 747796405u + 2891336453u;
    copied[at] = ((word >> ((word >> 28u) + 4u)) ^ word) * 277803737u;
}}",
            head(groups, 1)
        );
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Kernel::new(self, &text, groups).record(&mut encoder);
        encoder.copy_buffer_to_buffer(&self.to, 0, &self.from, 0, self.bytes);
        self.queue.submit([encoder.finish()]);
    }

    /// Milliseconds a copy: the median of rounds of copies that are handed over together.
    fn time(&self, record: &dyn Fn(&mut wgpu::CommandEncoder)) -> f64 {
        let round = |_| {
            let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            (0..CALLS).for_each(|_| record(&mut encoder));
            let commands = encoder.finish();
            let begun = Instant::now();
            self.queue.submit([commands]);
            self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
            begun.elapsed().as_secs_f64() * 1e3 / CALLS as f64
        };
        let mut rounds: Vec<f64> = (0..=ROUNDS).map(round).skip(1).collect();
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    }
}

/// A copy of so many quads of numbers by each invocation, as far apart as a workgroup is wide.
fn copying(quads: u64, bytes: u64) -> String {
    let loads: String = (0..quads).map(|i| format!("    let r{i} = source[at + {}u];\n", WORKGROUP * i)).collect();
    let stores: String = (0..quads).map(|i| format!("    copied[at + {}u] = r{i};\n", WORKGROUP * i)).collect();
    format!(
        "
@group(0) @binding(0) var<storage, read> source: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> copied: array<vec4<f32>>;
{}{loads}{stores}}}",
        head(bytes / 16 / WORKGROUP / quads, quads)
    )
}

/// An entry point up to where `at` is the invocation's first element, of so many.
fn head(groups: u64, elements: u64) -> String {
    let [x, _] = spread(groups);
    format!(
        "@compute @workgroup_size({WORKGROUP})
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {{
    let at = (group.x + group.y * {x}u) * {}u + local;
",
        WORKGROUP * elements
    )
}

/// Workgroups, a power of two of them, along two axes.
fn spread(groups: u64) -> [u64; 2] {
    let x = groups.min(32_768);
    [x, groups / x]
}

struct Kernel {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
    groups: [u64; 2],
}

impl Kernel {
    fn new(copies: &Copies, text: &str, groups: u64) -> Kernel {
        let mut checks = wgpu::ShaderRuntimeChecks::checked();
        checks.bounds_checks = false;
        let descriptor = wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(text.into()) };
        // SAFETY: the texts of this file have as many invocations as elements, and no loops.
        let module = unsafe { copies.device.create_shader_module_trusted(descriptor, checks) };
        let pipeline = copies.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let group = copies.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: copies.from.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: copies.to.as_entire_binding() },
            ],
        });
        Kernel { pipeline, group, groups: spread(groups) }
    }

    fn record(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(self.groups[0] as u32, self.groups[1] as u32, 1);
    }
}
