//! How long each step of a run took on the device, by timestamps that it writes itself.

use std::time::Duration;

use kiln_ir::Diagnostic;

use super::Gpu;

/// Timestamps of one run: one pair for each step.
pub(crate) struct Timer {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    steps: u32,
}

impl Timer {
    /// For a run of so many steps; `None` where the device has no timestamps, or not so many.
    pub(crate) fn new(gpu: &Gpu, steps: usize) -> Option<Timer> {
        let count = u32::try_from(2 * steps).ok().filter(|&count| count > 0 && count <= wgpu::QUERY_SET_MAX_QUERIES)?;
        if !gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return None;
        }
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times"),
            ty: wgpu::QueryType::Timestamp,
            count,
        });
        let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size: u64::from(count) * 8,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Some(Timer { queries, resolved, steps: steps as u32 })
    }

    /// What the pass of a step is begun with.
    pub(crate) fn writes(&self, step: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * step as u32),
            end_of_pass_write_index: Some(2 * step as u32 + 1),
        }
    }

    /// To be recorded after the last step.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2 * self.steps, &self.resolved, 0);
    }

    /// When each step was done, from the start of the first one. K0702 where the device is at fault.
    pub(crate) fn read(&self, gpu: &Gpu) -> Result<Vec<Duration>, Diagnostic> {
        let mut words = vec![0u64; 2 * self.steps as usize];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        gpu.read_now(&self.resolved, bytes)?;
        let period = f64::from(gpu.queue.get_timestamp_period());
        let begun = words[0];
        let since = |end: u64| Duration::from_nanos((end.saturating_sub(begun) as f64 * period) as u64);
        // Steps may overlap; a step is done no earlier than those before it.
        let mut latest = 0;
        let ends = words.chunks_exact(2).map(|pair| {
            latest = latest.max(pair[1]);
            since(latest)
        });
        Ok(ends.collect())
    }
}
