//! What ops take and give: optional tensors, lists, structs, numbers, several results.

use kiln::prelude::*;

#[derive(ExtensionType, Clone)]
struct Affine<T> {
    weight: T,
    bias: Option<T>,
}

#[derive(ExtensionType, Clone)]
struct Call<T> {
    x: T,
    affine: Affine<T>,
    more: Vec<T>,
    factor: f32,
}

#[derive(ExtensionType)]
struct Extremes<T> {
    low: T,
    high: T,
}

fn joined() -> CustomOp<Call<Tensor>, Tensor> {
    custom_op("joined", |call: &Call<Tensor>| {
        let affine = &call.x * &call.affine.weight;
        let shifted = call.affine.bias.as_ref().map_or_else(|| affine.clone(), |bias| &affine + bias);
        call.more.iter().fold(shifted * call.factor, |sum, more| sum + more)
    })
    .cpu(|call, y| {
        let y = y.as_mut_slice::<f32>()?;
        let (x, weight) = (call.x.as_slice::<f32>()?, call.affine.weight.as_slice::<f32>()?);
        for (index, y) in y.iter_mut().enumerate() {
            let bias = match &call.affine.bias {
                Some(bias) => bias.as_slice::<f32>()?[index],
                None => 0.0,
            };
            *y = (x[index] * weight[index] + bias) * call.factor;
            for more in &call.more {
                *y += more.as_slice::<f32>()?[index];
            }
        }
        Ok(())
    })
}

fn extremes() -> CustomOp<Tensor, Extremes<Tensor>> {
    opaque_op("extremes", |x: &TensorType| {
        let one = x.with_shape([]);
        if x.shape.num_elements() == 0 {
            Err("it has no elements".to_owned())
        } else {
            Ok(Extremes { low: one.clone(), high: one })
        }
    })
    .cpu(|x, out| {
        let x = x.as_slice::<f32>()?;
        out.low.as_mut_slice::<f32>()?[0] = x.iter().copied().fold(f32::INFINITY, f32::min);
        out.high.as_mut_slice::<f32>()?[0] = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Ok(())
    })
    .gradient(|x, out, gradient| {
        let hit = |value: &Tensor, gradient: &Tensor| x.eq(value).select(gradient.broadcast_to(x.shape()), 0.0);
        hit(&out.low, &gradient.low) + hit(&out.high, &gradient.high)
    })
}

#[test]
fn structs_options_lists_and_numbers_reach_the_kernel() {
    for device in [Device::cpu(), Device::reference()] {
        let array = |values: [f32; 2]| Array::new(&device, values).unwrap();
        let f = jit(&device, |(x, weight, bias): (Tensor, Tensor, Tensor)| {
            let call = |bias: Option<Tensor>, more: Vec<Tensor>, factor: f32| {
                let affine = Affine { weight: weight.clone(), bias };
                joined().call(&Call { x: x.clone(), affine, more, factor })
            };
            (call(None, Vec::new(), 1.0), call(Some(bias.clone()), vec![x.clone(), bias], 2.0))
        })
        .verify();
        let (plain, full) = f.call((array([1.0, 2.0]), array([3.0, 4.0]), array([10.0, 20.0]))).unwrap();
        assert_eq!(plain.to_vec::<f32>().unwrap(), [3.0, 8.0]);
        assert_eq!(full.to_vec::<f32>().unwrap(), [37.0, 78.0]);
    }
}

#[test]
fn an_op_of_several_results_gives_each_to_its_readers() {
    for device in [Device::cpu(), Device::reference()] {
        let f = jit(&device, |x: Tensor| {
            let Extremes { low, high } = extremes().call(&x * 2.0);
            // Only the second result is read.
            let other = extremes().call(&x * 3.0).high;
            ((x - &low) / (&high - &low), low, other * 1.0)
        });
        let (scaled, low, other) = f.call(Array::new(&device, [1.0f32, 2.0, 3.0]).unwrap()).unwrap();
        assert_eq!(scaled.to_vec::<f32>().unwrap(), [-0.25, 0.0, 0.25]);
        assert_eq!((low.item::<f32>().unwrap(), other.item::<f32>().unwrap()), (2.0, 9.0));
    }
}

#[test]
fn a_gradient_of_one_of_several_results_has_zeros_for_the_others() {
    let f = jit(&Device::cpu(), |x: Tensor| grad(&x, |x| extremes().call(x).high * 5.0));
    let gradient = f.call(Array::new(&Device::cpu(), [1.0f32, 4.0, 2.0]).unwrap()).unwrap();
    assert_eq!(gradient.to_vec::<f32>().unwrap(), [0.0, 5.0, 0.0]);
}

#[test]
fn a_rule_may_call_ops_whose_rules_call_its_own() {
    fn sine(x: &Tensor) -> Tensor {
        let op = opaque_op("sine", |x: &TensorType| Ok(x.clone()));
        op.cpu(|x, y| super::each(x, y, f32::sin)).gradient(|x, _, dy| dy * cosine(x)).call(x)
    }
    fn cosine(x: &Tensor) -> Tensor {
        let op = opaque_op("cosine", |x: &TensorType| Ok(x.clone()));
        op.cpu(|x, y| super::each(x, y, f32::cos)).gradient(|x, _, dy| -(dy * sine(x))).call(x)
    }
    let f = jit(&Device::cpu(), |x: Tensor| grad(&x, |x| grad(x, |x| grad(x, |x| sine(x).sum(..)).sum(..)).sum(..)));
    let third = f.call(Array::new(&Device::cpu(), [0.0f32, 1.0]).unwrap()).unwrap().to_vec::<f32>().unwrap();
    assert!((third[0] + 1.0).abs() < 1e-6 && (third[1] + 1.0f32.cos()).abs() < 1e-6, "{third:?}");
}

#[test]
fn the_numbers_of_a_call_are_attributes_of_its_node() {
    let captured = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            let affine = Affine { weight: x.clone(), bias: None };
            joined().call(&Call { x: x.clone(), affine, more: vec![x.clone()], factor: 0.5 })
        })
        .unwrap();
    let text = captured.graph.to_string();
    insta::assert_snapshot!(text);
    assert_eq!(kiln::ir::parse(&text).unwrap(), captured.graph);
}

#[test]
fn operands_are_named_where_they_stand_in_tuples() {
    let op = custom_op("sum3", |(a, rest): &(Tensor, [Tensor; 2])| a + &rest[0] + &rest[1]).names(["a", "rest"]);
    let errors = CaptureDevice::new(Backend::Cpu)
        .capture_scope(|scope| {
            let x = scope.input("x", DType::F32, [2]);
            op.call((&x, [&x, &x.to(Backend::NdArray)]))
        })
        .unwrap_err();
    assert!(errors.first().notes.iter().any(|note| note.role == "rest.1"), "{errors}");
}

#[test]
fn an_op_without_operands_lives_where_its_scope_does() {
    let op = custom_op("ramp", |count: &i32| Scope::current().arange(*count as usize, DType::F32));
    let f = jit(&Device::cpu(), |x: Tensor| x + op.call(3));
    let y = f.call(Array::new(&Device::cpu(), [1.0f32; 3]).unwrap()).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}
