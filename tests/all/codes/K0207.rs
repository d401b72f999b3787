use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [2, 3]).quantize();
        let w = scope.on(Backend::Wgpu).input("w", DType::F32, [3, 4]).quantize();
        q_matmul(&x, &w)
    })?;
    Ok(())
}
