//! Kernels compared with the bodies of their ops.

use kiln::Code;
use kiln::prelude::*;

/// Doubles, by a kernel that multiplies by `factor` and leaves the last elements out.
fn doubled(factor: f32, unwritten: usize) -> CustomOp<Tensor, Tensor> {
    custom_op("doubled", |x: &Tensor| x * 2.0).cpu(move |x, y| {
        let (x, y) = (x.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
        let written = y.len() - unwritten;
        y[..written].iter_mut().zip(x).for_each(|(y, x)| *y = factor * x);
        Ok(())
    })
}

fn verified(op: CustomOp<Tensor, Tensor>, device: &Device, x: [f32; 3]) -> Result<Vec<f32>, Vec<Code>> {
    let f = jit(device, move |x: Tensor| op.call(x + 1.0).exp().log()).verify();
    let result = f.call(Array::new(device, x).unwrap()).map_err(|error| error.codes());
    result.map(|result| result.to_vec().unwrap())
}

#[test]
fn a_kernel_is_held_to_its_body_on_the_users_data() {
    for device in [Device::cpu(), Device::reference()] {
        assert!(verified(doubled(2.0, 0), &device, [1.0, 2.0, 3.0]).is_ok());
        assert_eq!(verified(doubled(2.5, 0), &device, [1.0, 2.0, 3.0]), Err(vec![Code::K0706]));
        // It happens to be right on zeros.
        assert!(verified(doubled(2.5, 0), &device, [-1.0, -1.0, -1.0]).is_ok());
        assert!(verified(doubled(2.5, 0).tolerance(0.3), &device, [1.0, 2.0, 3.0]).is_ok());
    }
}

#[test]
fn elements_that_a_kernel_leaves_unwritten_are_found_even_where_they_are_zero() {
    assert_eq!(verified(doubled(2.0, 1), &Device::cpu(), [1.0, 2.0, -1.0]), Err(vec![Code::K0706]));
}

#[test]
fn a_captured_program_is_verified_by_itself_and_tells_the_place() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| doubled(2.5, 0).call(scope.input("x", DType::F32, [2]).exp()))
        .unwrap();
    let x = Array::new(&Device::cpu(), [0.0f32, 0.0]).unwrap();
    let error = kiln::verify(&captured, &[x]).unwrap_err();
    insta::assert_snapshot!(error.diagnostics());
}

#[test]
fn a_kernel_inside_the_body_of_another_op_is_verified_as_well() {
    let outer = custom_op("outer", |x: &Tensor| doubled(2.5, 0).call(x) + 1.0);
    assert_eq!(verified(outer, &Device::cpu(), [1.0, 2.0, 3.0]), Err(vec![Code::K0706]));
}

#[test]
fn a_step_is_verified_before_its_state_is_touched() {
    let device = Device::cpu();
    let f = step(&device, |state: Tensor, (): ()| (doubled(2.5, 0).call(state), ())).verify();
    let mut state = Array::new(&device, [1.0f32]).unwrap();
    assert_eq!(f.call(&mut state, ()).unwrap_err().codes(), [Code::K0706]);
    assert_eq!(state.to_vec::<f32>().unwrap(), [1.0]);
}
