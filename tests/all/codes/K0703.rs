use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let lost = Array::placeholder(&Device::cpu())?;
    println!("{:?}", lost.to_vec::<bool>()?);
    Ok(())
}
