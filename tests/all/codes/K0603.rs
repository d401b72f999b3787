use kiln::Options;
use kiln::passes::Limits;
use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = Device::cpu();
    let limits = Limits { buffer_bytes: 1 << 20, ..Limits::cpu() };
    let outer = jit(&device, |x: Tensor| x.unsqueeze(1) * &x).options(Options { limits, ..Options::default() });
    outer.call(Array::zeros(&device, DType::F32, [1000])?)?;
    Ok(())
}
