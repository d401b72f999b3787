use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let w = scope.input("w", DType::F32, [3]).require_grad();
        Tensor::from_inner(w.exp())
    })?;
    Ok(())
}
