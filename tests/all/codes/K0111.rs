use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let mut data = None;
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let y = scope.input("x", DType::F32, [3]).exp();
        data = Some(y.try_into_data());
    })?;
    println!("{:?}", data.transpose()?);
    Ok(())
}
