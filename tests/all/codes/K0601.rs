use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Wgpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [3]);
        x.cast(DType::F64).exp()
    })?;
    Ok(())
}
