use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let a = scope.input("a", DType::F32, [2, 3]);
        let b = scope.input("b", DType::F32, [2, 4]);
        concat(&[&a, &b], 0)
    })?;
    Ok(())
}
