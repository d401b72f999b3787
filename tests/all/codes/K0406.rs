use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| scope.input("u", DType::U8, [3]) + 300)?;
    Ok(())
}
