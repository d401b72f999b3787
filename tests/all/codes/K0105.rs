use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cpu);
    let mut kept = None;
    device.capture_scope(|scope| kept = Some(scope.zeros([3], DType::F32)))?;
    device.capture_scope(|scope| kept.map(|kept| scope.ones([3], DType::F32) + kept))?;
    Ok(())
}
