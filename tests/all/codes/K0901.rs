use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    let mut graph =
        CaptureDevice::new(Backend::Cpu).capture_scope(|scope| scope.input("x", DType::F32, [3]).exp())?.graph;
    graph.nodes[1].types[0] = TensorType::new(DType::F32, [4], Backend::Cpu);
    kiln::ir::verify(&graph)?;
    Ok(())
}
