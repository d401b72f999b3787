use kiln::ir::gpu::GpuTarget;
use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let captured = CaptureDevice::new(Backend::Wgpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        x.cast(DType::F64).exp()
    })?;
    kiln::passes::gpu::check(&captured.graph, &GpuTarget::WEBGPU)?;
    Ok(())
}
