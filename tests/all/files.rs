//! Arrays and trees in files: what is written comes back, and what does not fit is named.

use std::path::PathBuf;

use half::{bf16, f16};
use kiln::files::{load, read_npy, save, write_npy};
use kiln::nn::Linear;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;
use kiln::{Code, Element};

use crate::jit::devices;
use crate::under_test::device;

/// A file of this test alone, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("kiln-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_training_state_comes_back_whole_and_goes_on_the_same() {
    for device in devices() {
        let scratch = Scratch::new(&format!("state-{device}.safetensors"));
        let train = step(&device, |(layer, adam): (Linear<Tensor>, Adam<Linear<Tensor>>), x: Tensor| {
            let (loss, gradients) = value_and_grad(&layer, |layer| layer.forward(&x).square().mean(..));
            (adam.step(layer, gradients, 0.01), loss)
        });
        let fresh = |seed| {
            let layer = Linear::new(&device, 3, 2, &mut Random::new(seed)).unwrap();
            let adam = Adam::new(&layer).unwrap();
            (layer, adam)
        };
        let x = Array::ones(&device, DType::F32, [4, 3]).unwrap();
        let mut state = fresh(1);
        (0..3).for_each(|_| drop(train.call(&mut state, &x).unwrap()));
        save(&scratch.0, &state).unwrap();
        let mut loaded = load(&scratch.0, &fresh(2)).unwrap();
        for _ in 0..3 {
            let (a, b) = (train.call(&mut state, &x).unwrap(), train.call(&mut loaded, &x).unwrap());
            assert_eq!(a.item::<f32>().unwrap().to_bits(), b.item::<f32>().unwrap().to_bits());
        }
    }
}

fn round_trip<T: Element>(elements: &[T]) {
    let device = device();
    let array = Array::from_slice(&device, elements, [elements.len(), 1]).unwrap();
    let scratch = Scratch::new(&format!("{}.safetensors", T::DTYPE));
    save(&scratch.0, &array).unwrap();
    let like = Array::zeros(&device, T::DTYPE, [elements.len(), 1]).unwrap();
    assert_eq!(load(&scratch.0, &like).unwrap().to_vec::<T>().unwrap(), elements);
    let scratch = Scratch::new(&format!("{}.npy", T::DTYPE));
    write_npy(&scratch.0, &array.to_host().unwrap()).unwrap();
    assert_eq!(read_npy(&scratch.0).unwrap(), array.to_host().unwrap());
}

#[test]
fn every_element_type_is_kept() {
    round_trip(&[1.5f32, -0.0, f32::INFINITY]);
    round_trip(&[1e300f64]);
    round_trip(&[f16::from_f32(0.1), f16::MAX]);
    round_trip(&[bf16::from_f32(-3.0)]);
    round_trip(&[i8::MIN, 127]);
    round_trip(&[255u8]);
    round_trip(&[i32::MIN]);
    round_trip(&[u32::MAX]);
    round_trip(&[i64::MIN, i64::MAX]);
    round_trip(&[true, false]);
    round_trip::<f32>(&[]);
}

#[test]
fn a_checkpoint_of_another_tree_names_every_difference() {
    let device = device();
    let scratch = Scratch::new("other.safetensors");
    let zeros = |extent: usize| Array::zeros(&device, DType::F32, [extent]).unwrap();
    save(&scratch.0, &vec![zeros(2), zeros(3)]).unwrap();
    let error = load(&scratch.0, &vec![zeros(2), zeros(4), zeros(1)]).unwrap_err();
    assert_eq!(error.codes(), [Code::K1003, Code::K1003]);
    let text = error.to_string();
    assert!(text.contains("`1` is F32[3], expected f32[4]") && text.contains("`2` is missing"), "{text}");
    let error = load(&scratch.0, &vec![zeros(2)]).unwrap_err();
    assert!(error.to_string().contains("`1` belongs to no leaf"), "{error}");
}

#[test]
fn missing_and_foreign_files_are_told_apart() {
    let array = Array::zeros(&device(), DType::F32, [1]).unwrap();
    let scratch = Scratch::new("foreign.safetensors");
    assert_eq!(load(&scratch.0, &array).unwrap_err().codes(), [Code::K1001]);
    std::fs::write(&scratch.0, "not a tensor in sight").unwrap();
    assert_eq!(load(&scratch.0, &array).unwrap_err().codes(), [Code::K1002]);
    let nowhere = scratch.0.join("missing/folder.safetensors");
    let error = save(&nowhere, &array).unwrap_err();
    assert_eq!(error.codes(), [Code::K1001]);
    assert!(error.to_string().contains("folder.safetensors"), "{error}");
}
