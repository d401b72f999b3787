use kiln::prelude::*;

fn main() -> kiln::Result<()> {
    CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
        let w = scope.input("w", DType::F32, [3]);
        let mut kept = None;
        let gradient = grad(&w, |w| {
            let hidden = w.exp();
            kept = Some(hidden.clone());
            hidden.square().sum(..)
        });
        gradient * kept.unwrap()
    })?;
    Ok(())
}
