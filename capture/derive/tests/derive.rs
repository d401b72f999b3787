//! Derived trees: what a user writes, and what it gives.

// Derived code asks for the facade, which this crate cannot depend on.
extern crate kiln_ir as kiln;

use std::collections::BTreeMap;
use std::marker::PhantomData;

use kiln_derive::Tree;
use kiln_ir::tree::{Leaf, LeafOf, Mismatch, Structure, Tree, With};

#[derive(Clone, Debug, PartialEq)]
struct Tensor(u32);

#[derive(Clone, Debug, PartialEq)]
struct Array(u32);

kiln_ir::leaf!(Tensor, Array);

#[derive(Tree, Clone, Debug, PartialEq)]
struct Linear<T> {
    weight: T,
    bias: Option<T>,
}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Norm<T> {
    weight: T,
    eps: f32,
}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Mlp<T> {
    layers: Vec<Linear<T>>,
    norm: Norm<T>,
    out: Linear<T>,
}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Adam<M, T = LeafOf<M>> {
    m: M,
    v: M,
    step: T,
}

fn linear<T>(mut leaf: impl FnMut() -> T) -> Linear<T> {
    Linear { weight: leaf(), bias: Some(leaf()) }
}

fn mlp<T>(wrap: impl Fn(u32) -> T) -> Mlp<T> {
    let mut count = 0..;
    let mut leaf = || wrap(count.next().expect("there are enough numbers"));
    Mlp {
        layers: vec![linear(&mut leaf), linear(&mut leaf)],
        norm: Norm { weight: leaf(), eps: 0.5 },
        out: linear(&mut leaf),
    }
}

#[test]
fn leaves_and_names_follow_the_fields() {
    let names = [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
        "norm.weight",
        "out.weight",
        "out.bias",
    ];
    let model = mlp(Tensor);
    assert_eq!(model.names(), names);
    let numbers: Vec<u32> = model.leaves().iter().map(|leaf| leaf.0).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn leaves_rebuild_the_model_they_came_from() {
    let model = mlp(Tensor);
    assert_eq!(model.map_ref(Tensor::clone), model);
    assert_eq!(model.clone().map(|leaf| leaf), model);
    assert_eq!(model.with_leaves(model.clone().into_leaves()), Ok(model));
}

#[test]
fn tickets_become_data_and_data_tickets() {
    let data: Mlp<Array> = mlp(Tensor).map(|ticket| Array(ticket.0));
    assert_eq!(data, mlp(Array));
    let tickets: Mlp<Tensor> = data.map_ref(|data| Tensor(data.0));
    assert_eq!(tickets, mlp(Tensor));
}

#[test]
fn leaves_are_changed_in_place() {
    let mut model = mlp(Array);
    model.leaves_mut().into_iter().for_each(|leaf| leaf.0 += 10);
    assert_eq!(model, mlp(|number| Array(number + 10)));
}

#[test]
fn an_optimizer_holds_any_model_and_leaves_of_its_own() {
    let adam: Adam<Mlp<Tensor>> = Adam { m: mlp(Tensor), v: mlp(Tensor), step: Tensor(9) };
    let state = (mlp(Tensor), adam);
    let names = state.names();
    assert_eq!(names[0], "0.layers.0.weight");
    assert_eq!(names[7], "1.m.layers.0.weight");
    assert_eq!(names.last().map(String::as_str), Some("1.step"));

    let data: (Mlp<Array>, Adam<Mlp<Array>>) = state.map(|ticket| Array(ticket.0));
    assert_eq!(data.1.step, Array(9));
}

#[test]
fn generic_optimizers_return_the_model_they_were_given() {
    fn momentum<M: Tree<Tensor>>(adam: Adam<M, Tensor>, gradients: M) -> Result<Adam<M, Tensor>, Mismatch> {
        let m = adam.m.zip_map(gradients, |m, g| Tensor(m.0 + g.0))?;
        let data: With<M, Tensor, Array> = m.map(|ticket| Array(ticket.0));
        let m = data.map(|data| Tensor(data.0));
        Ok(Adam { m, ..adam })
    }
    let adam = Adam { m: mlp(Tensor), v: mlp(Tensor), step: Tensor(0) };
    let adam = momentum(adam, mlp(Tensor)).expect("the structures are equal");
    assert_eq!(adam.m, mlp(|number| Tensor(2 * number)));
}

#[test]
fn a_model_may_be_a_tuple() {
    let pair = || (Tensor(1), vec![Tensor(2)]);
    let adam: Adam<(Tensor, Vec<Tensor>)> = Adam { m: pair(), v: pair(), step: Tensor(0) };
    assert_eq!(adam.names(), ["m.0", "m.1.0", "v.0", "v.1.0", "step"]);
}

#[test]
fn fields_options_and_plain_data_are_the_structure() {
    let model = mlp(Tensor);
    let text = "Mlp { layers: [Linear { weight: *, bias: Some(*) }, \
                Linear { weight: *, bias: Some(*) }], \
                norm: Norm { weight: *, eps: 0.5 }, \
                out: Linear { weight: *, bias: Some(*) } }";
    assert_eq!(model.structure().to_string(), text);
    assert_eq!(model.structure(), mlp(Array).structure());

    let changed = |change: fn(&mut Mlp<Tensor>)| {
        let mut other = mlp(Tensor);
        change(&mut other);
        let mismatch = model.structure().matches(&other.structure());
        mismatch.expect_err("the structures differ").to_string()
    };
    assert_eq!(changed(|model| model.norm.eps = 0.25), "`norm.eps`: expected 0.5, found 0.25");
    assert_eq!(changed(|model| model.out.bias = None), "`out.bias`: expected `Some`, found `None`");
    assert_eq!(changed(|model| model.layers.truncate(1)), "`layers`: expected a list of 2, found a list of 1");
}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Residual<T>(Linear<T>, Box<Norm<T>>);

#[derive(Tree, Clone, Copy, Debug, PartialEq)]
struct Relu;

#[test]
fn fields_without_names_are_numbered() {
    let tree = Residual(linear(|| Tensor(0)), Box::new(Norm { weight: Tensor(1), eps: 1.0 }));
    assert_eq!(tree.names(), ["0.weight", "0.bias", "1.weight"]);
    let text = "Residual(Linear { weight: *, bias: Some(*) }, Norm { weight: *, eps: 1.0 })";
    assert_eq!(tree.structure().to_string(), text);
    assert_eq!((Tensor(0), Relu).structure().to_string(), "(*, Relu)");
}

/// A choice without tensors: plain data of the user's own.
#[derive(Tree, Clone, Copy, Debug, PartialEq)]
enum Activation {
    Relu,
    LeakyRelu { slope: f32 },
}

#[derive(Tree, Clone, Debug, PartialEq)]
enum Block<T> {
    Dense(Linear<T>),
    Gated { value: Linear<T>, gate: Option<T> },
    Nested(Box<Block<T>>, Activation),
    Identity,
}

#[test]
fn the_variant_taken_is_part_of_the_structure() {
    let gated = || Block::Gated { value: linear(|| Tensor(1)), gate: Some(Tensor(2)) };
    let blocks = vec![
        Block::Dense(linear(|| Tensor(0))),
        Block::Nested(Box::new(gated()), Activation::LeakyRelu { slope: 0.1 }),
        Block::Identity,
    ];
    let names = ["0.0.weight", "0.0.bias", "1.0.value.weight", "1.0.value.bias", "1.0.gate"];
    assert_eq!(blocks.names(), names);
    assert_eq!(blocks.map_ref(Tensor::clone), blocks);

    let with = |activation| Block::Nested(Box::new(gated()), activation).structure();
    let slope = |slope| with(Activation::LeakyRelu { slope });
    assert_ne!(slope(0.1), slope(0.2));
    assert_ne!(slope(0.1), with(Activation::Relu));
    assert_ne!(Block::<Tensor>::Identity.structure(), gated().structure());
}

/// Known to its owner only: no tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Padding {
    #[default]
    Same,
    Valid,
}

trait Unit: Clone + std::fmt::Debug + Eq + std::hash::Hash + Send + Sync + 'static {}

impl Unit for Padding {}

#[derive(Tree, Clone, Debug, PartialEq)]
struct Conv<T, #[tree(static)] U: Unit, const RANK: usize>
where
    U: Default,
{
    kernels: [T; RANK],
    #[tree(static)]
    padding: Padding,
    extents: [usize; RANK],
    unit: PhantomData<U>,
    extra: BTreeMap<String, T>,
    r#type: T,
}

fn conv<T>(padding: Padding, wrap: impl Fn(u32) -> T) -> Conv<T, Padding, 2> {
    Conv {
        kernels: [wrap(0), wrap(1)],
        padding,
        extents: [3, 5],
        unit: PhantomData,
        extra: BTreeMap::from([("scale".to_owned(), wrap(2))]),
        r#type: wrap(3),
    }
}

#[test]
fn static_fields_and_parameters_stay_as_they_are() {
    let tree = conv(Padding::Valid, Tensor);
    assert_eq!(tree.names(), ["kernels.0", "kernels.1", "extra.scale", "type"]);
    let data: Conv<Array, Padding, 2> = tree.map_ref(|ticket| Array(ticket.0));
    assert_eq!(data, conv(Padding::Valid, Array));

    let same = conv(Padding::Same, Tensor).structure();
    assert_eq!(tree.structure(), conv(Padding::Valid, Tensor).structure());
    let mismatch = tree.structure().matches(&same);
    let mismatch = mismatch.expect_err("the paddings differ");
    assert_eq!(mismatch.to_string(), "`padding`: expected Valid, found Same");
}

#[test]
fn a_tree_without_parameters_is_a_tree_of_every_leaf() {
    fn describe<T: Leaf>() -> Structure {
        Tree::<T>::structure(&Activation::Relu)
    }
    assert_eq!(describe::<Tensor>(), describe::<Array>());
    assert_eq!(describe::<Tensor>().to_string(), "Activation::Relu");
}

#[test]
fn names_of_the_user_do_not_confuse_the_derive() {
    #[allow(dead_code, reason = "it stands in the way of derived code")]
    struct Ok;
    #[allow(dead_code, reason = "it stands in the way of derived code")]
    struct Result;
    #[derive(Tree)]
    struct Holder<L> {
        visit: L,
        map: Linear<L>,
    }
    let holder = Holder { visit: Tensor(0), map: linear(|| Tensor(1)) };
    assert_eq!(holder.names(), ["visit", "map.weight", "map.bias"]);
}

#[test]
fn the_module_is_found_where_the_attribute_says() {
    #[derive(Tree)]
    #[tree(crate = "kiln_ir")]
    struct Holder<T>(T);
    assert_eq!(Holder(Tensor(0)).names(), ["0"]);
}
