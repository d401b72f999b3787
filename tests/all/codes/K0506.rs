use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cpu);
    device.strict();
    device.capture_scope(|scope| {
        let w = scope.input("w", DType::F32, [3]).require_grad();
        let x = scope.input("x", DType::F32, [3]);
        concat(&[&w, &x], 0)
    })?;
    Ok(())
}
