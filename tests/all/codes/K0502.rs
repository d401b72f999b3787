use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let w = scope.input("w", DType::F32, [3]);
        let steps = scope.input("steps", DType::I32, []);
        value_and_grad(&(w, steps), |(w, _)| w.sum(..)).0
    })?;
    Ok(())
}
