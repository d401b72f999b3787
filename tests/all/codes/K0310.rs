use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let n = 1 << 31;
        let (a, b) = (scope.input("a", DType::F32, [n, 1]), scope.input("b", DType::F32, [1, n]));
        a + b
    })?;
    Ok(())
}
