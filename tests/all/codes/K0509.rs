use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let masked = custom_op("masked", |(x, mask): &(Tensor, Tensor)| x * mask).names(["x", "mask"]).untracked(["mask"]);
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        value_and_grad(&x, |x| masked.call((x, x)).sum(..))
    })?;
    Ok(())
}
