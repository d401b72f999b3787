use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [32, 10]);
        let rows = scope.input("rows", DType::F32, [32]);
        x * rows
    })?;
    Ok(())
}
