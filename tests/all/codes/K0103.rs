use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cpu);
    device.capture_scope(|_| device.seed(7))?;
    Ok(())
}
