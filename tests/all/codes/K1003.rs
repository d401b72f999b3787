use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let layer = || Array::zeros(&device, DType::F32, [2, 2]);
    let (shallow, deep) = (vec![layer()?], vec![layer()?, layer()?]);
    let both = deep.zip_map(shallow, |deep, _| deep)?;
    println!("{}", both.len());
    Ok(())
}
