//! Profiles: times beside the report's counts, traces, and a step whose state is left alone.

use std::time::Duration;

use kiln::prelude::*;
use kiln::{Bottleneck, Profile};

fn softmax_of_product() -> Profile {
    let device = Device::cpu();
    let f = jit(&device, |(x, w): (Tensor, Tensor)| x.matmul(&w).softmax(1)).named("layer");
    let array = |shape: [usize; 2]| Array::from_vec(&device, vec![0.5f32; shape[0] * shape[1]], shape).unwrap();
    f.profile((&array([64, 32]), &array([32, 16])), 7).unwrap()
}

#[test]
fn every_kernel_has_its_time_and_rates_that_follow_from_it() {
    let profile = softmax_of_product();
    assert_eq!((profile.runs, profile.kernels.len(), profile.spans.len()), (7, 2, 2));
    let ceilings = profile.ceilings.unwrap();
    for (time, kernel) in profile.kernels.iter().zip(&profile.report.kernels) {
        assert!(time.fastest <= time.median && time.median > Duration::ZERO);
        let seconds = time.median.as_secs_f64();
        assert_eq!(time.bytes_per_second, kernel.bytes() as f64 / seconds);
        assert_eq!(time.flops_per_second, kernel.flops as f64 / seconds);
        let moved = time.bytes_per_second / ceilings.bytes_per_second;
        let computed = time.flops_per_second / ceilings.flops_per_second;
        assert_eq!(time.of_ceiling, moved.max(computed));
        assert_eq!(time.bottleneck == Bottleneck::Compute, computed > moved);
    }
    assert!(profile.spans.iter().all(|span| span.begin <= span.end));
    assert!(profile.spans.windows(2).all(|pair| pair[0].end <= pair[1].begin), "launches run one after the other");
    let text = profile.to_string();
    assert!(text.starts_with("`layer`: ") && text.lines().count() == 5, "{text}");
    assert!(text.contains("matmul") && text.contains("row") && text.contains("tests/all/profile.rs"), "{text}");
}

#[test]
fn the_json_is_the_reports_with_a_time_for_each_kernel() {
    let profile = softmax_of_product();
    let read: serde_json::Value = serde_json::from_str(&profile.to_json()).unwrap();
    assert_eq!((&read["schema"], &read["profile"]["runs"]), (&"kiln-profile".into(), &7.into()));
    assert_eq!(read["totals"]["launches"], 2);
    for kernel in read["kernels"].as_array().unwrap() {
        assert!(kernel["time"]["median_seconds"].as_f64().unwrap() > 0.0, "{kernel}");
        assert!(["memory", "compute"].contains(&kernel["time"]["bottleneck"].as_str().unwrap()));
    }
}

#[test]
fn the_trace_has_a_slice_for_each_launch_on_a_named_thread() {
    let profile = softmax_of_product();
    let read: serde_json::Value = serde_json::from_str(&profile.to_trace()).unwrap();
    let events = read["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let names: Vec<&str> = of("M").iter().map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["kiln: layer", "kernels"]);
    let slices = of("X");
    assert_eq!(slices.len(), 2);
    for (slice, (kernel, span)) in slices.iter().zip(profile.report.kernels.iter().zip(&profile.spans)) {
        let name = slice["name"].as_str().unwrap();
        assert!(name.starts_with(kernel.form.name()) && name.contains("tests/all/profile.rs"), "{name}");
        assert_eq!(slice["args"]["read_bytes"], kernel.read);
        assert_eq!(slice["args"]["lines"].as_array().unwrap().len(), kernel.lines.len());
        let nanoseconds = (slice["dur"].as_f64().unwrap() * 1e3).round() as u128;
        assert_eq!(nanoseconds, (span.end - span.begin).as_nanos());
        assert_eq!((&slice["pid"], &slice["tid"]), (&of("M")[1]["pid"], &of("M")[1]["tid"]));
    }
    assert_eq!(of("C").len(), 2);
}

#[test]
fn a_profiled_step_updates_in_place_and_leaves_the_state_as_it_was() {
    let device = Device::cpu();
    let step = step(&device, |w: Tensor, by: Tensor| (&w + by, w.sum(..)));
    let mut w = Array::new(&device, [1.0f32; 8192]).unwrap();
    let handle = w.clone();
    let profile = step.profile(&w, 1.0, 3).unwrap();
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0; 8192]);
    assert!(profile.report.copied.is_empty(), "the copy of the state is updated in place");
    drop(handle);
    // A call after it is as one before.
    let sum = step.call(&mut w, 1.0).unwrap();
    assert_eq!((sum.item::<f32>().unwrap(), w.to_vec::<f32>().unwrap()[0]), (8192.0, 2.0));
    assert!(step.report().copied.is_empty());
}

#[test]
fn mistakes_in_arguments_are_those_of_a_call() {
    let step = step(&Device::cpu(), |w: Tensor, x: Tensor| (w + x, ()));
    let elsewhere = Array::new(&Device::reference(), [1.0f32]).unwrap();
    let w = Array::new(&Device::cpu(), [1.0f32]).unwrap();
    let error = step.profile(&w, &elsewhere, 3).unwrap_err();
    assert_eq!(error.into_diagnostics().iter().next().unwrap().code, kiln::Code::K0701);
}

#[test]
fn the_reference_interpreter_has_a_time_and_no_kernels() {
    let double = jit(&Device::reference(), |x: Tensor| x * 2.0);
    let profile = double.profile(1.5, 3).unwrap();
    assert!(profile.kernels.is_empty() && profile.ceilings.is_none() && profile.call > Duration::ZERO);
    serde_json::from_str::<serde_json::Value>(&profile.to_trace()).unwrap();
}
