use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let double = opaque_op("double", |x: &TensorType| Ok(x.clone())).cpu(|x, y| {
        let (x, y) = (x.as_slice::<f64>()?, y.as_mut_slice::<f64>()?);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    });
    let f = jit(&device, |x: Tensor| double.call(x));
    f.call(Array::new(&device, [1.0f32, 2.0])?)?;
    Ok(())
}
