//! What holds for every tree, on the containers that Kiln ships.

use std::collections::{BTreeMap, HashSet};
use std::marker::PhantomData;

use proptest::prelude::*;

use crate::DType;

use super::{HasLeaf, Hole, LeafOf, Mismatch, Structure, Tree, With};

#[derive(Clone, Debug, PartialEq)]
struct Ticket(u32);

#[derive(Clone, Debug, PartialEq)]
struct Data(u32);

crate::leaf!(Ticket, Data);

type Deep = BTreeMap<String, (Vec<Option<Ticket>>, Box<[Ticket; 2]>, u8)>;

fn deep() -> impl Strategy<Value = Deep> {
    let ticket = || any::<u32>().prop_map(Ticket);
    let options = prop::collection::vec(prop::option::of(ticket()), 0..4);
    let entry = (options, [ticket(), ticket()], any::<u8>());
    let entry = entry.prop_map(|(options, pair, plain)| (options, Box::new(pair), plain));
    prop::collection::btree_map("[a-z]{1,3}", entry, 0..4)
}

proptest! {
    #[test]
    fn mapping_with_the_identity_changes_nothing(tree in deep()) {
        prop_assert_eq!(tree.map_ref(Ticket::clone), tree.clone());
        prop_assert_eq!(tree.clone().map(|leaf| leaf), tree);
    }

    #[test]
    fn the_leaves_of_a_tree_rebuild_it(tree in deep()) {
        let rebuilt = tree.with_leaves(tree.clone().into_leaves());
        prop_assert_eq!(rebuilt, Ok(tree));
    }

    #[test]
    fn every_way_to_the_leaves_has_the_same_order(tree in deep()) {
        let mut copy = tree.clone();
        let mut owned = tree.clone().into_leaves();
        prop_assert_eq!(tree.leaves(), owned.iter().collect::<Vec<_>>());
        prop_assert_eq!(copy.leaves_mut(), owned.iter_mut().collect::<Vec<_>>());
        prop_assert_eq!(tree.names().len(), owned.len());
        prop_assert_eq!(tree.structure().leaf_count(), owned.len());
    }

    #[test]
    fn the_structure_does_not_depend_on_the_leaves(tree in deep()) {
        prop_assert_eq!(tree.map_ref(|_| Hole).structure(), tree.structure());
    }

    #[test]
    fn unequal_structures_are_told_apart_in_words(one in deep(), other in deep()) {
        let (one, other) = (one.structure(), other.structure());
        prop_assert_eq!(one.matches(&other).is_ok(), one == other);
        prop_assert_eq!(one.to_string() == other.to_string(), one == other);
    }
}

#[test]
fn names_follow_the_order_of_the_leaves() {
    let tree = BTreeMap::from([
        ("b".to_owned(), vec![(Ticket(2), Some(Ticket(3)))]),
        ("a".to_owned(), vec![(Ticket(0), None), (Ticket(1), None)]),
    ]);
    assert_eq!(tree.names(), ["a.0.0", "a.1.0", "b.0.0", "b.0.1"]);
    assert_eq!(tree.into_leaves(), [0, 1, 2, 3].map(Ticket));
}

#[test]
fn boxes_and_options_leave_names_alone() {
    let tree = (Box::new(Ticket(0)), Some(Some(Ticket(1))));
    assert_eq!(tree.names(), ["0", "1"]);
    assert_eq!(tree.structure().to_string(), "(*, Some(Some(*)))");
}

#[test]
fn whatever_decides_a_capture_is_in_the_structure() {
    let x = || Ticket(0);
    let all = [
        Tree::<Ticket>::structure(&()),
        (x(),).structure(),
        (x(), None::<Ticket>).structure(),
        (x(), Some(x())).structure(),
        (x(), vec![x(), x()]).structure(),
        (x(), vec![x(), x(), x()]).structure(),
        (x(), 1_usize).structure(),
        (x(), 2_usize).structure(),
        (x(), 0.0_f32).structure(),
        (x(), -0.0_f32).structure(),
        (x(), f64::NAN).structure(),
        (x(), true).structure(),
        (x(), DType::F32).structure(),
        (x(), DType::F16).structure(),
        (x(), 'a').structure(),
        (x(), "mean").structure(),
        (x(), "sum".to_owned()).structure(),
        (x(), BTreeMap::from([("a".to_owned(), x())])).structure(),
        (x(), BTreeMap::from([("b".to_owned(), x())])).structure(),
    ];
    let distinct: HashSet<&Structure> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    let again = (x(), f64::NAN).structure();
    assert!(distinct.contains(&again), "a NaN finds its capture again");
}

#[test]
fn a_tree_without_leaves_stands_beside_one_with_leaves() {
    let state = (vec![Ticket(1)], (), [3_usize, 4], PhantomData::<Ticket>);
    assert_eq!(state.leaves(), [&Ticket(1)]);
    assert_eq!(state.structure().to_string(), "([*], (), [3, 4], ())");
    let data = state.map(|ticket| Data(ticket.0));
    assert_eq!(data, (vec![Data(1)], (), [3, 4], PhantomData));
}

#[test]
fn generic_code_knows_that_mapping_back_restores_the_type() {
    fn there_and_back<M: Tree<Ticket>>(tree: M) -> M {
        let data: With<M, Ticket, Data> = tree.map(|ticket| Data(ticket.0));
        data.map(|data| Ticket(data.0 + 1))
    }
    fn descend<M: Tree<Data>>(model: M, gradients: M) -> Result<M, Mismatch> {
        model.zip_map(gradients, |weight, gradient| Data(weight.0 - gradient.0))
    }
    assert_eq!(there_and_back((Ticket(1), ())), (Ticket(2), ()));
    assert_eq!(descend([Data(5)], [Data(2)]), Ok([Data(3)]));
}

#[test]
fn an_error_ends_a_map_at_its_leaf() {
    let mut seen = 0;
    let result = vec![Ticket(0), Ticket(1), Ticket(2)].try_map(&mut |ticket| {
        seen += 1;
        if ticket.0 == 1 { Err("one") } else { Ok(ticket) }
    });
    assert_eq!((result, seen), (Err("one"), 2));
}

#[test]
fn a_mismatch_names_the_first_difference() {
    let expected = (vec![(Ticket(0), Some(Ticket(1)))], 5_u32);
    let none = (vec![(Ticket(0), None::<Ticket>)], 5_u32);
    let error = expected.zip_map_ref(&none, |a, _| a.clone());
    let error = error.expect_err("one has a bias and the other has none");
    assert_eq!(error.path, "0.0.1");
    assert_eq!(error.to_string(), "`0.0.1`: expected `Some`, found `None`");

    let plain = (vec![(Ticket(0), Some(Ticket(1)))], 6_u32);
    let error = expected.zip_map(plain, |a, _| a);
    let error = error.expect_err("plain data counts");
    assert_eq!(error.to_string(), "`1`: expected 5, found 6");
}

#[test]
fn a_wrong_number_of_leaves_is_an_error() {
    let tree = (Ticket(0), [Ticket(1), Ticket(2)]);
    let few = tree.with_leaves([Data(0), Data(1)]);
    let few = few.expect_err("a leaf is missing");
    assert_eq!(few.to_string(), "`1.1`: expected a leaf, found the end of the leaves");
    let many = tree.with_leaves([0, 1, 2, 3].map(Data));
    let many = many.expect_err("a leaf is left over");
    assert_eq!(many.to_string(), "expected 3 leaves, found more");
}

#[test]
fn a_keyed_tree_names_the_key_that_differs() {
    let map = |key: &str| BTreeMap::from([(key.to_owned(), Ticket(0))]).structure();
    let mismatch = map("weight").matches(&map("bias"));
    let mismatch = mismatch.expect_err("the keys differ");
    assert_eq!(mismatch.to_string(), r#"expected the key "weight", found the key "bias""#);
}

#[test]
fn the_leaf_type_is_that_of_the_first_part() {
    fn leaf_name<M: HasLeaf>(_: &M) -> &'static str {
        std::any::type_name::<LeafOf<M>>()
    }
    let tree = (vec![Some(Box::new([Data(0)]))], (), 3_u32);
    assert!(leaf_name(&tree).ends_with("Data"));
}

#[test]
fn the_longest_tuple_is_a_tree() {
    let t = || Ticket(0);
    let tree = (t(), t(), t(), t(), t(), t(), t(), t(), t(), t(), t(), Ticket(11));
    assert_eq!(tree.names().last().map(String::as_str), Some("11"));
    assert_eq!(tree.leaves().last(), Some(&&Ticket(11)));
}
