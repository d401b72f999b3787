use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    device.set_memory_limit(1000);
    Array::zeros(&device, DType::F32, [1000])?;
    Ok(())
}
