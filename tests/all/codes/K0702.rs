use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let double = jit(&device, |x: Tensor| x * 2.0);
    let doubled = double.call(Array::new(&device, [1.0f32, 2.0])?)?;
    device.fail("the driver was reset");
    println!("{:?}", doubled.to_vec::<f32>()?);
    Ok(())
}
