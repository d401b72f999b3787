use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [32, 784]);
        let w = scope.input("w", DType::F32, [10, 784]);
        x.matmul(&w)
    })?;
    Ok(())
}
