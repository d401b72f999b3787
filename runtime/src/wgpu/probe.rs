//! What a device does where WGSL leaves it open, found out by letting it compute.
//!
//! `fma` may round once or twice. Devices whose `fma` was seen to round once, at thousands of places where it shows, get shorter quotients.

use kiln_ir::gpu::{Binding, Dispatch, GpuMemory, Support};

use super::pipeline::{Groups, Trust};
use super::{Gpu, storage};

/// How many products and sums are looked at.
const PLACES: u32 = 4096;

/// Two factors and what is added to their product, three numbers a place.
const TEXT: &str = "
@group(0) @binding(0) var<storage, read> terms: array<f32>;
@group(0) @binding(1) var<storage, read_write> rests: array<f32>;

@compute @workgroup_size(64)
fn products(@builtin(global_invocation_id) id: vec3<u32>) {
    let at = id.x * 3u;
    rests[id.x] = fma(terms[at], terms[at + 1u], terms[at + 2u]);
}
";

/// Whether `fma` rounds once.
pub(super) async fn fma(gpu: &Gpu) -> Support {
    let terms = terms();
    let binding = |number, writable| Binding { memory: GpuMemory::Scratch(number), writable };
    let dispatch = Dispatch {
        source: TEXT.into(),
        entry: "products".into(),
        workgroups: [PLACES / 64, 1, 1],
        bindings: vec![binding(0, false), binding(1, true)],
    };
    let Ok(pipeline) = gpu.pipelines.get(&gpu.device, &dispatch, Trust::Ours) else { return Support::Missing };
    let input: &[u8] = bytemuck::cast_slice(&terms);
    let mut rests = vec![0f32; PLACES as usize];
    let output_bytes = std::mem::size_of_val(&rests[..]);
    let (Some(from), Some(to)) = (gpu.make_buffer(input.len()), gpu.make_buffer(output_bytes)) else {
        return Support::Missing;
    };
    storage::write_words(&gpu.queue, &from, input);
    let bound = [(&from, input.len() as u64), (&to, output_bytes as u64)];
    let group = Groups::default().get(&gpu.device, &pipeline, &bound);
    let mut encoder = gpu.encoder("probe");
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline.compute);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(dispatch.workgroups[0], 1, 1);
    }
    gpu.queue.submit([encoder.finish()]);
    if gpu.copy_to_host(&to, bytemuck::cast_slice_mut(&mut rests)).await.is_err() {
        return Support::Missing;
    }
    let once = terms.chunks_exact(3).zip(&rests).all(|(of, rest)| of[0].mul_add(of[1], of[2]) == *rest);
    Support::of(once)
}

/// For each place two factors of many bits, and their product, rounded, with its sign turned: what is left is what the rounding took off.
fn terms() -> Vec<f32> {
    let mantissa = |word: u32| f32::from_bits(0x3f80_0001 | (word >> 9));
    let place = |place: u32| {
        let a = mantissa(place.wrapping_mul(0x9e37_79b9));
        let b = mantissa(place.wrapping_add(7).wrapping_mul(0x85eb_ca6b));
        [a, b, -(a * b)]
    };
    (0..PLACES).flat_map(place).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_product_that_is_rounded_first_leaves_nothing_and_one_that_is_not_does() {
        let shows = super::terms().chunks_exact(3).filter(|of| of[0].mul_add(of[1], of[2]) != 0.0).count();
        // Both factors are odd, so that the product has more bits than a float, unless they are short.
        assert!(shows > 4000, "{shows}");
    }
}
