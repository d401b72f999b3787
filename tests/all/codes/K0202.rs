use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let a = scope.input("a", DType::F32, [2]);
        let b = scope.input("b", DType::F32, [2]);
        let c = scope.on(Backend::Cuda).input("c", DType::F32, [2]);
        concat(&[&a, &b, &c], 0)
    })?;
    Ok(())
}
