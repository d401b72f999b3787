//! What a device can do at best, measured: the speed of the driver's own copy, and of multiplications and additions that touch no memory.

use std::time::Duration;

use kiln_ir::gpu::{Binding, Dispatch, GpuMemory};
use web_time::Instant;

use super::Gpu;
use super::pipeline::{Groups, Trust};
use crate::ceiling::{Ceilings, best};

/// Bytes of each side of the copy, beyond all caches; less where the device does not give so many.
const COPIED: [usize; 3] = [128 << 20, 32 << 20, 8 << 20];
/// What is measured takes at least so long at once, so that handing it over is a small part.
const LONG: Duration = Duration::from_millis(4);
const WORKGROUP: u32 = 64;
/// Multiplications and additions of one invocation.
const FLOPS: u64 = 2 * 16 * 256;

/// Sixteen sums that do not wait for each other. They go on for ever, so that none is known beforehand.
const TEXT: &str = "
@group(0) @binding(0) var<storage, read_write> sums: array<f32>;

@compute @workgroup_size(64)
fn products(@builtin(global_invocation_id) id: vec3<u32>) {
    let x = vec4<f32>(sums[0], sums[1], sums[2], sums[3]);
    var a = vec4<f32>(f32(id.x));
    var b = a + x;
    var c = b + x;
    var d = c + x;
    for (var i = 0; i < 256; i++) {
        a = fma(a, x, x);
        b = fma(b, x, x);
        c = fma(c, x, x);
        d = fma(d, x, x);
    }
    let all = a + b + c + d;
    // Never so, but no compiler knows.
    if all.x + all.y + all.z + all.w == 0.12345f {
        sums[id.x & 63u] = all.x;
    }
}
";

/// Those of a device; `None` where it gives no memory for the measurement.
pub(super) fn measured(gpu: &Gpu) -> Option<Ceilings> {
    Some(Ceilings { bytes_per_second: copy(gpu)?, flops_per_second: products(gpu)? })
}

/// Seconds of one of so many repetitions, which are found such that they take long enough, and how many those are.
fn seconds(gpu: &Gpu, most: u32, record: &dyn Fn(&mut wgpu::CommandEncoder, u32)) -> f64 {
    let run = |count| {
        let mut encoder = gpu.encoder("ceiling");
        record(&mut encoder, count);
        gpu.queue.submit([encoder.finish()]);
        gpu.wait();
    };
    run(1);
    let mut count = 1;
    loop {
        let begun = Instant::now();
        run(count);
        if begun.elapsed() >= LONG || count >= most {
            break;
        }
        count = (2 * count).min(most);
    }
    best(|| run(count)) / f64::from(count)
}

fn copy(gpu: &Gpu) -> Option<f64> {
    let (bytes, from, to) =
        COPIED.into_iter().find_map(|bytes| Some((bytes, gpu.make_buffer(bytes)?, gpu.make_buffer(bytes)?)))?;
    let seconds = seconds(gpu, 64, &|encoder, count| {
        for _ in 0..count {
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes as u64);
        }
    });
    Some(2.0 * bytes as f64 / seconds)
}

fn products(gpu: &Gpu) -> Option<f64> {
    let sums = gpu.make_buffer(4 * WORKGROUP as usize)?;
    let dispatch = Dispatch {
        source: TEXT.into(),
        entry: "products".into(),
        workgroups: [1, 1, 1],
        bindings: vec![Binding { memory: GpuMemory::Scratch(0), writable: true }],
    };
    let pipeline = gpu.pipelines.get(&gpu.device, &dispatch, Trust::Ours).ok()?;
    let group = Groups::default().get(&gpu.device, &pipeline, &[(&sums, 4 * u64::from(WORKGROUP))]);
    let seconds = seconds(gpu, gpu.target().workgroups, &|encoder, workgroups| {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline.compute);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(workgroups, 1, 1);
    });
    Some((FLOPS * u64::from(WORKGROUP)) as f64 / seconds)
}
