use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let i = scope.input("i", DType::I32, [3]);
        i.exp()
    })?;
    Ok(())
}
