use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let mut norm = None;
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let y = scope.input("x", DType::F32, [3]).exp();
        norm = Some(y.try_data());
        y
    })?;
    println!("{:?}", norm.transpose()?);
    Ok(())
}
