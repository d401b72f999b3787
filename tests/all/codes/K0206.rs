use kiln::prelude::*;

#[derive(ExtensionType)]
struct Norm<T> {
    weight: T,
    bias: Option<T>,
}

fn main() -> kiln::Result<()> {
    let scaled = custom_op("scaled", |(x, norm): &(Tensor, Norm<Tensor>)| x * &norm.weight).names(["x", "norm"]);
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, [2, 3]);
        let weight = scope.input("weight", DType::F32, [3]);
        let bias = scope.on(Backend::Wgpu).input("bias", DType::F32, [3]);
        scaled.call((&x, &Norm { weight, bias: Some(bias) }))
    })?;
    Ok(())
}
