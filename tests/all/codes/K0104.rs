use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cpu);
    let mut inner = None;
    device.capture_scope(|scope| {
        inner = Some(device.capture_scope(|scope| scope.ones([3], DType::F32)));
        scope.zeros([3], DType::F32)
    })?;
    println!("{}", inner.expect("the scope has run")?.graph);
    Ok(())
}
