use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let device = CaptureDevice::new(Backend::Cuda);
    let captured = device.capture_scope(|scope| scope.input("x", DType::F32, [3]).exp())?;
    kiln::compile(&captured.graph, &Device::cpu())?;
    Ok(())
}
