use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [4]);
        let w = scope.input("w", DType::F32, [4]);
        x.dot(&w).matmul(&w)
    })?;
    Ok(())
}
