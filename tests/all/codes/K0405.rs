use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let b = scope.input("b", DType::Bool, [3]);
        b.sum(..)
    })?;
    Ok(())
}
