use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let faulty = kiln::Options { fault: Some(0), ..Default::default() };
    let f = jit(&Device::cpu(), |x: Tensor| x.exp()).options(faulty).verify();
    f.call(Array::new(&Device::cpu(), [0.0f32, 1.0])?)?;
    Ok(())
}
