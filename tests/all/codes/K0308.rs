use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3, 4]);
        x.slice(1, 2..5)
    })?;
    Ok(())
}
