use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cpu);
    device.try_scope()?.zeros([3], DType::F32);
    Ok(())
}
