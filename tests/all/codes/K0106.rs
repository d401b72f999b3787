use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let x = scope.input("x", DType::F32, []);
        &x * &x
    })?;
    kiln::ir::grad::append(&captured.graph, "out", &["w"])?;
    Ok(())
}
