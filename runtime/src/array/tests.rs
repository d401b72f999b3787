use half::{bf16, f16};
use kiln_ir::{Backend, Code, DType};

use super::*;

fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.unwrap_err().first().code
}

fn round_trip<T: Element>(elements: &[T]) {
    let device = Device::cpu();
    let array = Array::new(&device, elements).unwrap();
    assert_eq!(array.dtype(), T::DTYPE);
    assert_eq!(array.to_vec::<T>().unwrap(), elements);
    let host = array.to_host().unwrap();
    assert_eq!(Array::new(&device, &host).unwrap().to_vec::<T>().unwrap(), elements);
    let nd = array.to_ndarray::<T>().unwrap();
    assert_eq!(Array::new(&device, nd.view()).unwrap().to_vec::<T>().unwrap(), elements);
}

#[test]
fn every_element_type_goes_in_and_out_unchanged() {
    round_trip(&[1.5f32, -0.0, f32::INFINITY]);
    round_trip(&[1e300f64, f64::MIN_POSITIVE]);
    round_trip(&[f16::from_f32(0.1), f16::MAX]);
    round_trip(&[bf16::from_f32(3.0)]);
    round_trip(&[i8::MIN, -1, 127]);
    round_trip(&[0u8, 255]);
    round_trip(&[i32::MIN, 7]);
    round_trip(&[u32::MAX]);
    round_trip(&[i64::MIN, i64::MAX]);
    round_trip(&[true, false, true]);
    round_trip::<f32>(&[]);
}

#[test]
fn ndarrays_of_any_layout_keep_their_logical_order() {
    let device = Device::cpu();
    let base = ndarray::Array::from_iter(0..24).into_shape_with_order((2, 3, 4)).unwrap();
    let view = base.slice(ndarray::s![.., ..;-1, 1..;2]);
    let array = Array::new(&device, view).unwrap();
    assert_eq!(array.shape().to_vec(), [2, 3, 2]);
    assert_eq!(array.to_vec::<i32>().unwrap(), [9, 11, 5, 7, 1, 3, 21, 23, 17, 19, 13, 15]);
    let transposed = Array::new(&device, base.t()).unwrap();
    assert_eq!(transposed.to_ndarray::<i32>().unwrap(), base.t().into_dyn());
}

#[test]
fn a_wrong_dtype_names_the_cast() {
    let array = Array::new(&Device::cpu(), [1.0f32]).unwrap();
    let error = array.to_vec::<i32>().unwrap_err();
    assert_eq!((error.first().code, error.first().message.as_str()), (Code::K0404, "Should be int, got float"));
    assert!(error.to_string().contains("cast where it is computed, with `.cast(DType::I32)`"), "{error}");
    assert_eq!(code(array.to_vec::<f64>()), Code::K0402);
    assert_eq!(code(array.to_vec::<bool>()), Code::K0403);
    assert_eq!(code(Array::new(&Device::cpu(), 1i32).unwrap().item::<f32>()), Code::K0401);
}

#[test]
fn a_wrong_number_of_elements_is_refused() {
    let device = Device::cpu();
    assert_eq!(code(Array::from_slice(&device, &[1.0f32, 2.0], [3])), Code::K0303);
    assert_eq!(code(Array::from_slice::<f32>(&device, &[], [1 << 40, 1 << 40])), Code::K0303);
    let array = Array::from_vec(&device, vec![1u8; 6], [2, 3]).unwrap();
    assert_eq!(code(array.item::<u8>()), Code::K0303);
    assert_eq!(code(array.reshape([4])), Code::K0303);
    assert_eq!(array.reshape([3, 2]).unwrap().shape().to_vec(), [3, 2]);
}

#[test]
fn clones_share_memory_and_copies_do_not() {
    let array = Array::ones(&Device::cpu(), DType::BF16, [3]).unwrap();
    assert!(array.shares_memory_with(&array.clone()));
    assert!(array.shares_memory_with(&array.to_device(&Device::cpu()).unwrap()));
    let elsewhere = array.to_device(&Device::reference()).unwrap();
    assert!(!array.shares_memory_with(&elsewhere));
    assert_eq!(elsewhere.ty().backend, Backend::NdArray);
    assert_eq!(elsewhere.to_vec::<bf16>().unwrap(), [bf16::ONE; 3]);
}

#[test]
fn filled_arrays_hold_the_number_everywhere() {
    let device = Device::cpu();
    let full = Array::full(&device, Literal::from_f64(DType::F16, 2.5), [2, 2]).unwrap();
    assert_eq!(full.to_vec::<f16>().unwrap(), [f16::from_f32(2.5); 4]);
    assert_eq!(Array::zeros(&device, DType::Bool, [2]).unwrap().to_vec::<bool>().unwrap(), [false, false]);
    assert_eq!(Array::ones(&device, DType::I64, Shape::scalar()).unwrap().item::<i64>().unwrap(), 1);
}

#[test]
fn what_does_not_fit_is_an_error_and_the_device_goes_on() {
    let device = Device::cpu();
    let error = Array::zeros(&device, DType::F32, [1 << 20, 1 << 18]).unwrap_err();
    assert_eq!(error.first().code, Code::K0704);
    assert!(error.to_string().contains("asked for 1099511627776 bytes"), "{error}");
    assert_eq!(code(Array::zeros(&device, DType::F64, [usize::MAX, usize::MAX])), Code::K0704);
    assert_eq!(code(Array::zeros(&device, DType::F64, [isize::MAX as usize])), Code::K0704);
    assert_eq!(Array::new(&device, [1.0f32]).unwrap().item::<f32>().unwrap(), 1.0);
}

#[test]
fn reading_a_placeholder_says_that_the_state_was_lost() {
    let lost = Array::placeholder(&Device::cpu()).unwrap();
    assert!(lost.is_lost() && lost.clone().is_lost());
    assert_eq!(code(lost.to_vec::<bool>()), Code::K0703);
    assert_eq!(code(lost.to_host()), Code::K0703);
    assert_eq!(code(lost.to_device(&Device::cpu())), Code::K0703);
}

#[test]
fn debug_shows_the_type_and_a_few_elements() {
    let device = Device::cpu();
    let show = |array: Array| format!("{array:?}");
    assert_eq!(show(Array::new(&device, 1.0f32).unwrap()), "f32[] @cpu [1.0]");
    assert_eq!(show(Array::new(&device, [true, false]).unwrap()), "bool[2] @cpu [true, false]");
    let many: Vec<i32> = (0..20).collect();
    assert_eq!(show(Array::new(&device, many).unwrap()), "i32[20] @cpu [0, 1, 2, 3, 4, 5, 6, 7, ..]");
    assert_eq!(show(Array::placeholder(&device).unwrap()), "<lost>");
}
