use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::nth(Backend::Cpu, 3)?;
    println!("{device}");
    Ok(())
}
