use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [32, 784]);
        let weight = scope.input("weight", DType::F32, [784, 10]);
        let bias = scope.on(Backend::Cuda).input("bias", DType::F32, [10]);
        linear(&x, &weight, Some(&bias))
    })?;
    Ok(())
}
