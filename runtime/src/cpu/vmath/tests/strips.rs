//! A lane's bits do not depend on where in a strip it lies, nor on how the strip is overwritten.

use crate::cpu::vmath::{BinaryMath, Isa, UnaryMath, binary_f32, binary_f32_in_place, unary_f32, unary_f32_in_place};

/// Numbers of all kinds, the lanes done one by one among them.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let kinds = |i: usize, x: f32| match i % 5 {
        0 => x,
        1 => x * 1e5,
        2 => x * 1e-30,
        3 => f32::from_bits((i as u32).wrapping_mul(0x9e37_79b9) ^ seed),
        _ => x.abs() + 1.0,
    };
    (0..count).map(|i| kinds(i, ((i as u32 ^ seed).wrapping_mul(2_654_435_761) as f32 / 1e9) - 2.1)).collect()
}

fn assert_same(expected: &[f32], got: &[f32], what: &str) {
    assert_eq!(expected.len(), got.len(), "{what}");
    for (i, (a, b)) in expected.iter().zip(got).enumerate() {
        assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{what}, lane {i}: {a:e} and {b:e}");
    }
}

#[test]
fn a_unary_lane_has_the_same_bits_at_any_place_of_a_strip_of_any_length() {
    let input = numbers(256, 1);
    for &isa in Isa::available() {
        for &op in UnaryMath::ALL {
            let mut whole = [0.0; 256];
            unary_f32(isa, op, &input, &mut whole);
            for length in 0..=67 {
                for start in [0, 1, 13, 64, 101] {
                    let mut part = vec![0.0; length];
                    unary_f32(isa, op, &input[start..start + length], &mut part);
                    let what = format!("{} on {isa}, {length} lanes from {start}", op.name());
                    assert_same(&whole[start..start + length], &part, &what);
                }
            }
        }
    }
}

#[test]
fn a_binary_lane_has_the_same_bits_at_any_place_of_a_strip_of_any_length() {
    let (left, right) = (numbers(256, 2), numbers(256, 3));
    for &isa in Isa::available() {
        for &op in BinaryMath::ALL {
            let mut whole = [0.0; 256];
            binary_f32(isa, op, &left, &right, &mut whole);
            for length in 0..=67 {
                for start in [0, 1, 13, 64, 101] {
                    let mut part = vec![0.0; length];
                    let lanes = start..start + length;
                    binary_f32(isa, op, &left[lanes.clone()], &right[lanes.clone()], &mut part);
                    let what = format!("{} on {isa}, {length} lanes from {start}", op.name());
                    assert_same(&whole[lanes], &part, &what);
                }
            }
        }
    }
}

#[test]
fn in_place_gives_the_same_bits() {
    for length in [0, 1, 64, 511, 512, 513, 1_500] {
        let (left, right) = (numbers(length, 4), numbers(length, 5));
        let mut expected = vec![0.0; length];
        for &isa in Isa::available() {
            for &op in UnaryMath::ALL {
                unary_f32(isa, op, &left, &mut expected);
                let mut values = left.clone();
                unary_f32_in_place(isa, op, &mut values);
                assert_same(&expected, &values, op.name());
            }
            for &op in BinaryMath::ALL {
                binary_f32(isa, op, &left, &right, &mut expected);
                let mut values = left.clone();
                binary_f32_in_place(isa, op, &mut values, &right);
                assert_same(&expected, &values, op.name());
            }
        }
    }
}

#[test]
#[should_panic(expected = "have the same lanes")]
fn strips_of_different_lengths_are_refused() {
    unary_f32(Isa::best(), UnaryMath::Exp, &[0.0; 3], &mut [0.0; 2]);
}

#[test]
fn the_first_instruction_set_is_the_baseline_and_the_last_the_best() {
    assert_eq!(Isa::available()[0].to_string(), "baseline");
    assert_eq!(Isa::available().last(), Some(&Isa::best()));
}
