use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        let y = scope.input("x", DType::F32, [3]);
        x + y
    })?;
    Ok(())
}
