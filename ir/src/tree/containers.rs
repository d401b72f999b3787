//! Trees made of trees: tuples, `Vec`, arrays, `Option`, `Box` and string-keyed ordered maps.
//!
//! All parts of one tree have the same leaf type. `Box` leaves no trace in a structure, and neither
//! it nor `Some` lengthens a leaf's name. Hash maps are no trees: their order changes between runs.

use std::collections::BTreeMap;

use super::{Family, HasLeaf, Leaf, Structure, Tree, With};

impl<F: Family> Family for Vec<F> {
    type Of<L: Leaf> = Vec<F::Of<L>>;
}

impl<M: HasLeaf> HasLeaf for Vec<M> {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for Vec<M> {
    type Family = Vec<M::Family>;

    fn describe(&self, structure: &mut Structure) {
        structure.list(self.len());
        self.iter().for_each(|tree| tree.describe(structure));
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.iter().for_each(|tree| tree.visit(visit));
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.iter_mut().for_each(|tree| tree.visit_mut(visit));
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        self.into_iter().map(|tree| tree.try_map(map)).collect()
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        self.iter().map(|tree| tree.try_map_ref(map)).collect()
    }
}

impl<F: Family, const N: usize> Family for [F; N] {
    type Of<L: Leaf> = [F::Of<L>; N];
}

impl<M: HasLeaf, const N: usize> HasLeaf for [M; N] {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>, const N: usize> Tree<L> for [M; N] {
    type Family = [M::Family; N];

    fn describe(&self, structure: &mut Structure) {
        structure.list(N);
        self.iter().for_each(|tree| tree.describe(structure));
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.iter().for_each(|tree| tree.visit(visit));
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.iter_mut().for_each(|tree| tree.visit_mut(visit));
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let trees: Result<Vec<_>, E> = self.into_iter().map(|tree| tree.try_map(map)).collect();
        Ok(array(trees?))
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let trees: Result<Vec<_>, E> = self.iter().map(|tree| tree.try_map_ref(map)).collect();
        Ok(array(trees?))
    }
}

fn array<M, const N: usize>(trees: Vec<M>) -> [M; N] {
    let trees: Result<[M; N], Vec<M>> = trees.try_into();
    trees.ok().expect("mapping an array keeps the number of its elements")
}

impl<F: Family> Family for Option<F> {
    type Of<L: Leaf> = Option<F::Of<L>>;
}

impl<M: HasLeaf> HasLeaf for Option<M> {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for Option<M> {
    type Family = Option<M::Family>;

    fn describe(&self, structure: &mut Structure) {
        match self {
            None => structure.none(),
            Some(tree) => {
                structure.some();
                tree.describe(structure);
            }
        }
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.iter().for_each(|tree| tree.visit(visit));
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.iter_mut().for_each(|tree| tree.visit_mut(visit));
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        self.map(|tree| tree.try_map(map)).transpose()
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        self.as_ref().map(|tree| tree.try_map_ref(map)).transpose()
    }
}

impl<F: Family> Family for Box<F> {
    type Of<L: Leaf> = Box<F::Of<L>>;
}

impl<M: HasLeaf> HasLeaf for Box<M> {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for Box<M> {
    type Family = Box<M::Family>;

    fn describe(&self, structure: &mut Structure) {
        M::describe(self, structure);
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        M::visit(self, visit);
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        M::visit_mut(self, visit);
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        M::try_map(*self, map).map(Box::new)
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        M::try_map_ref(self, map).map(Box::new)
    }
}

impl<F: Family> Family for BTreeMap<String, F> {
    type Of<L: Leaf> = BTreeMap<String, F::Of<L>>;
}

impl<M: HasLeaf> HasLeaf for BTreeMap<String, M> {
    type Leaf = M::Leaf;
}

impl<L: Leaf, M: Tree<L>> Tree<L> for BTreeMap<String, M> {
    type Family = BTreeMap<String, M::Family>;

    fn describe(&self, structure: &mut Structure) {
        structure.map(self.len());
        for (key, tree) in self {
            structure.key(key);
            tree.describe(structure);
        }
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a L)) {
        self.values().for_each(|tree| tree.visit(visit));
    }

    fn visit_mut<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut L)) {
        self.values_mut().for_each(|tree| tree.visit_mut(visit));
    }

    fn try_map<U: Leaf, E>(self, map: &mut dyn FnMut(L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let entries = self.into_iter();
        entries.map(|(key, tree)| Ok((key, tree.try_map(map)?))).collect()
    }

    fn try_map_ref<U: Leaf, E>(&self, map: &mut dyn FnMut(&L) -> Result<U, E>) -> Result<With<Self, L, U>, E> {
        let entries = self.iter();
        entries.map(|(key, tree)| Ok((key.clone(), tree.try_map_ref(map)?))).collect()
    }
}

/// Implements `Tree` for one arity of tuple.
macro_rules! tuple {
    ($len:literal: $($part:ident $index:tt),*) => {
        impl<$($part: Family),*> Family for ($($part,)*) {
            type Of<L: Leaf> = ($($part::Of<L>,)*);
        }

        impl<L: Leaf, $($part: Tree<L>),*> Tree<L> for ($($part,)*) {
            type Family = ($($part::Family,)*);

            fn describe(&self, structure: &mut Structure) {
                structure.tuple($len);
                $(self.$index.describe(structure);)*
            }

            fn visit<'a>(&'a self, _visit: &mut dyn FnMut(&'a L)) {
                $(self.$index.visit(_visit);)*
            }

            fn visit_mut<'a>(&'a mut self, _visit: &mut dyn FnMut(&'a mut L)) {
                $(self.$index.visit_mut(_visit);)*
            }

            fn try_map<U: Leaf, Error>(
                self,
                _map: &mut dyn FnMut(L) -> Result<U, Error>,
            ) -> Result<With<Self, L, U>, Error> {
                Ok(($(self.$index.try_map(_map)?,)*))
            }

            fn try_map_ref<U: Leaf, Error>(
                &self,
                _map: &mut dyn FnMut(&L) -> Result<U, Error>,
            ) -> Result<With<Self, L, U>, Error> {
                Ok(($(self.$index.try_map_ref(_map)?,)*))
            }
        }

        tuple!(@leaf $($part)*);
    };
    (@leaf) => {};
    (@leaf $first:ident $($part:ident)*) => {
        impl<$first: HasLeaf, $($part),*> HasLeaf for ($first, $($part,)*) {
            type Leaf = $first::Leaf;
        }
    };
}

tuple!(0:);
tuple!(1: A 0);
tuple!(2: A 0, B 1);
tuple!(3: A 0, B 1, C 2);
tuple!(4: A 0, B 1, C 2, D 3);
tuple!(5: A 0, B 1, C 2, D 3, E 4);
tuple!(6: A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(7: A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuple!(9: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuple!(10: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuple!(11: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuple!(12: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, M 11);
