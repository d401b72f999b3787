use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let logits = scope.input("logits", DType::F32, [32, 10]);
        let labels = scope.input("labels", DType::I32, [31]);
        cross_entropy(&logits, &labels)
    })?;
    Ok(())
}
