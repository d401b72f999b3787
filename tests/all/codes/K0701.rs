use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let double = jit(&Device::cpu(), |x: Tensor| x * 2.0);
    let elsewhere = Array::new(&Device::reference(), [1.0f32, 2.0])?;
    println!("{:?}", double.call(&elsewhere)?);
    Ok(())
}
