use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [32, 10]);
        let b = scope.on(Backend::Cuda).input("b", DType::F32, [10]);
        x + b
    })?;
    Ok(())
}
