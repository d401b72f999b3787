use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let w = scope.input("w", DType::F32, [3]);
        let loss = w.square().sum(..);
        w.grad(&loss.backward())
    })?;
    Ok(())
}
