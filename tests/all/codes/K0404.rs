use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        let i = scope.input("i", DType::F32, [2]);
        x.take(0, &i)
    })?;
    Ok(())
}
