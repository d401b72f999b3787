//! The report: text, JSON and page of one program, what its ledger says against the plan, and the macros that hold programs to numbers.

use std::panic::catch_unwind;

use kiln::graph_run::report_graph;
use kiln::optim::Adam;
use kiln::prelude::*;
use kiln::random::Random;
use kiln::{Report, nn::Linear};
use kiln_ir::kernel::Access;
use kiln_ir::plan::{Blocked, Plan};

use crate::seeded;

/// Two dense layers, a softmax between, and what is left of the second one.
const LAYERS: &str = r#"kiln 1
graph @layers(%x "x": f32[8, 16] @cpu, %w "w": f32[16, 4] @cpu, %v "v": f32[4, 2] @cpu) {
  %y = matmul %x, %w : f32[8, 4] @cpu
  %m = reduce.max [1] %y : f32[8, 1] @cpu
  %b = broadcast [8, 4] %m : f32[8, 4] @cpu
  %d = sub %y, %b : f32[8, 4] @cpu
  %e = exp %d : f32[8, 4] @cpu
  %s = reduce.sum [1] %e : f32[8, 1] @cpu
  %c = broadcast [8, 4] %s : f32[8, 4] @cpu
  %p = div %e, %c : f32[8, 4] @cpu
  %z = matmul %p, %v : f32[8, 2] @cpu
  %t = tanh %z : f32[8, 2] @cpu
  return %t "t", %p "p"
}
"#;

fn layers() -> Report {
    let mut report = report_graph(&kiln_ir::parse(LAYERS).unwrap(), None).unwrap().with_text("layers.kiln", LAYERS);
    report.compile_time = std::time::Duration::ZERO;
    report
}

#[test]
fn the_text_lists_kernels_and_the_reason_for_each_value_in_memory() {
    insta::assert_snapshot!(layers());
}

#[test]
fn the_json_has_the_keys_that_its_page_describes() {
    insta::assert_snapshot!(layers().to_json());
    let read: serde_json::Value = serde_json::from_str(&layers().to_json()).unwrap();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/report.md")).unwrap();
    let (_, schema) = page.split_once("## The JSON").unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let inner =
        [&read["totals"], &read["kernels"][0], &read["ledger"][0], &read["memory"]["buffers"][0], &read["cache"]];
    for key in inner.iter().flat_map(|value| keys(value)).chain(keys(&read)) {
        assert!(schema.contains(&format!("`{key}")), "docs/report.md says nothing of `{key}`");
    }
}

#[test]
fn every_reason_has_a_code_of_its_own_that_the_page_explains() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/report.md")).unwrap();
    for reason in Blocked::ALL {
        assert!(page.contains(&format!("| `{}` | {} |", reason.code(), reason.reason())), "{reason:?}");
        assert_eq!(Blocked::ALL.iter().filter(|other| other.code() == reason.code()).count(), 1);
    }
}

/// An MLP with Adam, captured and called once.
fn training_report() -> Report {
    type Model<T> = Vec<Linear<T>>;
    let device = Device::cpu();
    let mut random = Random::new(1);
    let mut layer = |from, to| Linear::new(&device, from, to, &mut random).unwrap();
    let model: Model<Array> = vec![layer(12, 16), layer(16, 10)];
    let adam = Adam::new(&model).unwrap();
    let mut state = (model, adam);
    let train =
        step(&device, |(model, adam): (Model<Tensor>, Adam<Model<Tensor>>), (x, y, lr): (Tensor, Tensor, Tensor)| {
            let (loss, gradients) =
                value_and_grad(&model, |model| cross_entropy(&model[1].forward(&model[0].forward(&x).relu()), &y));
            (adam.step(model, gradients, &lr), loss)
        });
    let x = Array::from_vec(&device, vec![0.25f32; 8 * 12], [8, 12]).unwrap();
    let y = Array::from_vec(&device, vec![3i32; 8], [8]).unwrap();
    train.call(&mut state, (&x, &y, 1e-3)).unwrap();
    train.report()
}

/// Tags of a page that are opened and closed in order.
fn is_well_formed(page: &str) -> Result<(), String> {
    const VOID: [&str; 2] = ["meta", "!doctype"];
    let (body, _) = page.split_once("<script>").ok_or("no script")?;
    let mut open = Vec::new();
    for part in body.split('<').skip(1) {
        let (tag, _) = part.split_once('>').ok_or("a tag without an end")?;
        let name: String = tag.chars().take_while(|c| !c.is_whitespace() && *c != '/' || *c == '!').collect();
        if let Some(closed) = tag.strip_prefix('/') {
            let last: Option<String> = open.pop();
            if last.as_deref() != Some(closed) {
                return Err(format!("</{closed}> closes {last:?}"));
            }
        } else if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
            open.push(name);
        }
    }
    if open == ["html", "body"] { Ok(()) } else { Err(format!("left open: {open:?}")) }
}

#[test]
fn the_page_needs_nothing_beside_it_and_shows_every_kernel_and_edge() {
    for report in [layers(), training_report(), Report::default()] {
        let page = report.to_html();
        assert_eq!(is_well_formed(&page), Ok(()));
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for index in 0..report.launches() {
            assert!(page.contains(&format!(r#"id="kernel-{index}""#)), "kernel {index}");
        }
        let (_, ledger) = page.split_once(r#"id="ledger""#).unwrap();
        let (table, _) = ledger.split_once(r#"id="capture""#).unwrap();
        let rows = table.split_once("<tbody>").map_or(0, |(_, rows)| rows.matches("<tr>").count());
        assert_eq!(rows, report.ledger.len());
    }
}

#[test]
fn the_page_shows_the_source_lines_of_a_graph_from_a_text() {
    let page = layers().to_html();
    assert!(page.contains("%p = div %e, %c : f32[8, 4] @cpu") && page.contains("layers.kiln:10:3"));
}

/// What the ledger says of launches, held against the plan.
#[track_caller]
fn ledger_agrees_with(plan: &Plan) {
    let launches: Vec<_> = plan.launches().collect();
    let touches = |launch: usize, edge: &kiln_ir::plan::Edge, wanted: &dyn Fn(Access) -> bool| {
        let mut bound = launches[launch].buffers.iter().zip(launches[launch].kernel.buffers());
        // What is written over an operand has its elements, perhaps in another shape.
        let alike = |ty: &TensorType| (ty.dtype, ty.num_bytes()) == (edge.ty.dtype, edge.bytes());
        bound.any(|(id, buffer)| alike(&plan.buffers[id.0 as usize].ty) && wanted(buffer.access))
    };
    for edge in &plan.ledger {
        if let Some(maker) = edge.made_by {
            assert!(touches(maker, edge, &|access| access != Access::Read), "{edge:?}\n{plan}");
            assert!(edge.readers.iter().all(|reader| reader.launch > maker), "{edge:?}\n{plan}");
        }
        for reader in &edge.readers {
            // A scatter's target may have been made where its result will be.
            assert!(touches(reader.launch, edge, &|_| true), "{edge:?}\n{plan}");
            assert!(reader.loc.is_unknown() || launches[reader.launch].locs.contains(&reader.loc), "{edge:?}\n{plan}");
        }
        assert_eq!(edge.readers.is_empty(), edge.blocked == Blocked::Output, "{edge:?}\n{plan}");
    }
}

#[test]
fn both_ends_of_every_edge_are_launches_that_touch_the_value() {
    ledger_agrees_with(&kiln_passes::compile(&kiln_ir::parse(LAYERS).unwrap(), &kiln::Options::default()).unwrap());
}

proptest::proptest! {
    #![proptest_config(seeded(150))]

    #[test]
    fn the_ledger_of_random_graphs_agrees_with_their_plans(
        case in crate::random::cases(crate::random::Config { steps: 30, ..crate::random::Config::default() })
    ) {
        if let Ok(plan) = kiln_passes::compile(&case.graph, &kiln::Options::default()) {
            ledger_agrees_with(&plan);
            proptest::prop_assert_eq!(is_well_formed(&Report::of_plan(&plan).to_html()), Ok(()));
        }
    }
}

#[test]
fn an_executable_reports_as_a_function_does() {
    let graph = kiln_ir::parse(LAYERS).unwrap();
    let executable = kiln::compile(&graph, &Device::cpu()).unwrap();
    let report = kiln::Explain::report(&executable);
    assert_eq!((report.launches(), report.bytes()), (layers().launches(), layers().bytes()));
}

#[test]
fn counts_that_hold_pass() {
    let (report, training) = (layers(), training_report());
    kiln::assert_kernels!(report, == 3);
    kiln::assert_kernels!(report, <= 3);
    kiln::assert_kernels!(report, < 4);
    kiln::assert_bytes!(report, == report.bytes());
    kiln::assert_bytes!(&report, < report.bytes() + 1);
    kiln::assert_kernels!(training, <= 12);
}

/// What an assertion that fails says.
fn message(assertion: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let payload = catch_unwind(assertion).expect_err("the assertion fails");
    payload.downcast_ref::<String>().expect("its message is a text").clone()
}

#[test]
fn an_assertion_that_fails_shows_the_whole_ledger() {
    insta::assert_snapshot!(message(|| kiln::assert_kernels!(layers(), <= 2)));
}

#[test]
fn an_assertion_on_bytes_says_how_many_there_are() {
    let text = message(|| kiln::assert_bytes!(layers(), < 10));
    let expected = format!("`layers` takes {} bytes per call, and fewer than 10 are allowed\n\n", layers().bytes());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn an_assertion_on_what_was_not_compiled_fails_rather_than_count_nothing() {
    let text = message(|| kiln::assert_kernels!(jit(&Device::cpu(), |x: Tensor| x.exp()), <= 2));
    assert_eq!(
        text,
        "`jit` has no kernels to count: it was not called yet, or runs op by op on the reference interpreter"
    );
}
