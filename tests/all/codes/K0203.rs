use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let a = scope.input("a", DType::F32, [2]);
        let b = scope.input("b", DType::F32, [2]);
        let w = scope.on(Backend::Cuda).input("w", DType::F32, [2]).require_grad();
        concat(&[&a, &b, &w], 0)
    })?;
    Ok(())
}
