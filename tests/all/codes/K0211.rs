use kiln::prelude::*;

const TEXT: &str = "
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {}";

fn main() -> kiln::Result<()> {
    let double =
        opaque_op("double", |x: &TensorType| Ok(x.clone())).wgsl(|_, _| WgslKernel::new(TEXT, "main", [1, 1, 1]));
    CaptureDevice::new(Backend::Wgpu).capture_scope(|scope| double.call(scope.input("x", DType::F32, [64])))?;
    Ok(())
}
