use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let double = custom_op("double", |x: &Tensor| x * 2.0).cpu(|x, y| {
        let (x, y) = (x.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.5 * x);
        Ok(())
    });
    let f = jit(&device, |x: Tensor| double.call(x)).verify();
    f.call(Array::new(&device, [1.0f32, 2.0])?)?;
    Ok(())
}
