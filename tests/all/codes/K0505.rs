use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        value_and_grad(&x, |x| x.bitcast(DType::I32).bitcast(DType::F32).sum(..)).0
    })?;
    Ok(())
}
