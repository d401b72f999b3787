use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let log = jit(&device, |x: Tensor| x.log() * 2.0).check_finite();
    println!("{:?}", log.call(&Array::new(&device, [1.0f32, 0.0])?)?);
    Ok(())
}
