//! The shape of a tree as a value: what a compiled step is looked up by, and how two trees differ.
//!
//! A structure is one row of parts, each followed by its children, so that building one costs a
//! single growing allocation and comparing two is comparing two rows. Names of leaves are not in it;
//! they are spelled out by walking the row when somebody asks.

use std::fmt::{self, Display, Formatter};

use super::plain::Plain;

/// The shape of a tree: its fields, lengths, options taken, and the values of its plain data.
///
/// `Display` writes a leaf as `*`. The methods that append parts are for those who implement
/// [`Tree`](super::Tree) by hand: a part that announces `n` children is followed by the descriptions
/// of those `n`.
///
/// ```
/// use kiln_ir::tree::{Structure, Tree};
/// # struct Ticket; kiln_ir::leaf!(Ticket);
/// let mut structure = Structure::default();
/// structure.record("Norm", 2);
/// structure.field("weight");
/// structure.leaf();
/// structure.field("eps");
/// structure.plain(0.5_f32);
///
/// assert_eq!(structure.to_string(), "Norm { weight: *, eps: 0.5 }");
/// assert_eq!(structure.names(), ["weight"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Structure {
    parts: Vec<Part>,
}

/// A leaf of a structure: its name, and how it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As in [`Structure::names`].
    pub path: String,
    /// How the tree holds it.
    pub held: Held,
}

/// How one of a tree's own parts (a field of a struct, an element of a tuple, or the tree itself) holds a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The part is the leaf.
    Plainly,
    /// The part is an option of the leaf.
    Optionally,
    /// The part is a list, and the leaf its element of this number.
    InList(usize),
    /// The part is a struct, a tuple or a map, alone or in a list or an option, with the leaf somewhere in it.
    InStruct,
}

impl Held {
    /// How a leaf is held that stands `inner` in what is held like this.
    fn or_in(self, inner: Held) -> Held {
        match (self, inner) {
            (Held::InStruct, _) | (_, Held::InStruct) => Held::InStruct,
            (Held::InList(index), _) => Held::InList(index),
            (Held::Plainly | Held::Optionally, inner) => inner,
        }
    }
}

/// One entry of the row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Leaf,
    Plain(Plain),
    /// Its children are each preceded by a `Field`.
    Record {
        name: &'static str,
        fields: usize,
    },
    TupleRecord {
        name: &'static str,
        fields: usize,
    },
    Tuple(usize),
    List(usize),
    /// Its children are each preceded by a `Key`.
    Map(usize),
    None,
    Some,
    Field(&'static str),
    Key(Box<str>),
}

impl Part {
    /// How many children follow.
    fn children(&self) -> usize {
        match self {
            Part::Record { fields, .. } | Part::TupleRecord { fields, .. } => *fields,
            Part::Tuple(len) | Part::List(len) | Part::Map(len) => *len,
            Part::Some => 1,
            Part::Leaf | Part::Plain(_) | Part::None | Part::Field(_) | Part::Key(_) => 0,
        }
    }

    /// Whether the children are told apart by their position.
    fn is_positional(&self) -> bool {
        matches!(self, Part::TupleRecord { .. } | Part::Tuple(_) | Part::List(_))
    }
}

impl Structure {
    /// Appends a leaf.
    pub fn leaf(&mut self) {
        self.parts.push(Part::Leaf);
    }

    /// Appends a value of plain data.
    pub fn plain(&mut self, value: impl Into<Plain>) {
        self.parts.push(Part::Plain(value.into()));
    }

    /// Appends a struct or an enum's variant; each of its fields follows as a
    /// [`field`](Structure::field) and a child.
    pub fn record(&mut self, name: &'static str, fields: usize) {
        self.parts.push(Part::Record { name, fields });
    }

    /// Appends the name of a field of the last [`record`](Structure::record); its child follows.
    pub fn field(&mut self, name: &'static str) {
        self.parts.push(Part::Field(name));
    }

    /// Appends a tuple struct or variant of so many children.
    pub fn tuple_record(&mut self, name: &'static str, fields: usize) {
        self.parts.push(Part::TupleRecord { name, fields });
    }

    /// Appends a tuple of so many children.
    pub fn tuple(&mut self, len: usize) {
        self.parts.push(Part::Tuple(len));
    }

    /// Appends a list of so many children.
    pub fn list(&mut self, len: usize) {
        self.parts.push(Part::List(len));
    }

    /// Appends a map; each of its entries follows as a [`key`](Structure::key) and a child.
    pub fn map(&mut self, len: usize) {
        self.parts.push(Part::Map(len));
    }

    /// Appends the key of an entry of the last [`map`](Structure::map); its child follows.
    pub fn key(&mut self, key: &str) {
        self.parts.push(Part::Key(key.into()));
    }

    /// Appends an option that holds nothing.
    pub fn none(&mut self) {
        self.parts.push(Part::None);
    }

    /// Appends an option that holds the child that follows.
    pub fn some(&mut self) {
        self.parts.push(Part::Some);
    }

    /// How many leaves a tree of this structure has.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// assert_eq!((Ticket, vec![Ticket, Ticket], 5_u32).structure().leaf_count(), 3);
    /// ```
    pub fn leaf_count(&self) -> usize {
        let leaves = self.parts.iter().filter(|part| **part == Part::Leaf);
        leaves.count()
    }

    /// The names of the leaves in order, as [`Tree::names`](super::Tree::names) gives them.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// assert_eq!((Ticket, Some([Ticket])).structure().names(), ["0", "1.0"]);
    /// ```
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.walk(&mut 0, &mut String::new(), &mut |at, path| {
            if self.parts[at] == Part::Leaf {
                names.push(path.to_owned());
            }
        });
        names
    }

    /// The leaves in order, each with how the tree holds it.
    ///
    /// ```
    /// use kiln_ir::tree::{Held, Tree};
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// let tree = (Ticket, Some(Ticket), vec![Ticket], Some((Ticket, 3)));
    /// let held: Vec<Held> = tree.structure().places().into_iter().map(|place| place.held).collect();
    /// assert_eq!(held, [Held::Plainly, Held::Optionally, Held::InList(0), Held::InStruct]);
    /// ```
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        self.place(&mut 0, &mut String::new(), None, &mut places);
        places
    }

    /// `held` is how the argument that is being walked holds its leaves so far; `None` while still at the root.
    fn place(&self, at: &mut usize, path: &mut String, held: Option<Held>, places: &mut Vec<Place>) {
        let Some(part) = self.parts.get(*at) else { return };
        *at += 1;
        if *part == Part::Leaf {
            places.push(Place { path: path.clone(), held: held.unwrap_or(Held::Plainly) });
        }
        for child in 0..part.children() {
            let length = path.len();
            match self.parts.get(*at) {
                _ if part.is_positional() => extend(path, &child.to_string()),
                Some(Part::Field(name)) => {
                    extend(path, name);
                    *at += 1;
                }
                Some(Part::Key(key)) => {
                    extend(path, key);
                    *at += 1;
                }
                Some(_) | None => {}
            }
            let inside = match part {
                Part::List(_) => Some(held.unwrap_or(Held::Plainly).or_in(Held::InList(child))),
                Part::Some => Some(held.unwrap_or(Held::Plainly).or_in(Held::Optionally)),
                // The root's own parts are the arguments.
                _ => Some(held.map_or(Held::Plainly, |held| held.or_in(Held::InStruct))),
            };
            self.place(at, path, inside, places);
            path.truncate(length);
        }
    }

    /// The values of plain data in order, each with the path to it.
    ///
    /// ```
    /// use kiln_ir::tree::{Plain, Tree};
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// assert_eq!((Ticket, 3_u32).structure().values(), [("1".to_owned(), Plain::Unsigned(3))]);
    /// ```
    pub fn values(&self) -> Vec<(String, Plain)> {
        let mut values = Vec::new();
        self.walk(&mut 0, &mut String::new(), &mut |at, path| {
            if let Part::Plain(value) = &self.parts[at] {
                values.push((path.to_owned(), value.clone()));
            }
        });
        values
    }

    /// Whether options, lists or maps decide which leaves there are.
    pub fn is_variable(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::List(_) | Part::Map(_) | Part::None | Part::Some))
    }

    /// Compares with the structure of another tree.
    ///
    /// # Errors
    ///
    /// The first place where `found` is not as expected here.
    ///
    /// ```
    /// use kiln_ir::tree::Tree;
    /// # struct Ticket; kiln_ir::leaf!(Ticket);
    /// let two = (Ticket, vec![Ticket, Ticket]).structure();
    /// let one = (Ticket, vec![Ticket]).structure();
    /// assert!(two.matches(&two).is_ok());
    ///
    /// let mismatch = two.matches(&one).unwrap_err();
    /// assert_eq!(mismatch.to_string(), "`1`: expected a list of 2, found a list of 1");
    /// ```
    pub fn matches(&self, found: &Structure) -> Result<(), Mismatch> {
        if self == found {
            return Ok(());
        }
        let pairs = self.parts.iter().zip(&found.parts);
        let at = pairs.take_while(|(here, there)| here == there).count();
        Err(Mismatch { path: self.path(at), expected: self.noun(at), found: found.noun(at) })
    }

    /// The path to the part at this place in the row.
    fn path(&self, wanted: usize) -> String {
        let mut found = String::new();
        self.walk(&mut 0, &mut String::new(), &mut |at, path| {
            if at == wanted {
                path.clone_into(&mut found);
            }
        });
        found
    }

    /// Hands every part from `at` to the end of its last child to `seen`, with the path to it.
    fn walk(&self, at: &mut usize, path: &mut String, seen: &mut dyn FnMut(usize, &str)) {
        let here = *at;
        let Some(part) = self.parts.get(here) else {
            return;
        };
        seen(here, path);
        *at += 1;
        for child in 0..part.children() {
            let length = path.len();
            match self.parts.get(*at) {
                _ if part.is_positional() => extend(path, &child.to_string()),
                Some(Part::Field(name)) => {
                    seen(*at, path);
                    extend(path, name);
                    *at += 1;
                }
                Some(Part::Key(key)) => {
                    seen(*at, path);
                    extend(path, key);
                    *at += 1;
                }
                Some(_) | None => {}
            }
            self.walk(at, path, seen);
            path.truncate(length);
        }
    }

    /// What stands at this place, in a sentence about a mismatch.
    fn noun(&self, at: usize) -> String {
        match self.parts.get(at) {
            Some(Part::Leaf) => "a leaf".into(),
            Some(Part::Plain(value)) => value.to_string(),
            Some(Part::Record { name, .. } | Part::TupleRecord { name, .. }) => format!("`{name}`"),
            Some(Part::Tuple(len)) => format!("a tuple of {len}"),
            Some(Part::List(len)) => format!("a list of {len}"),
            Some(Part::Map(len)) => format!("a map of {len}"),
            Some(Part::None) => "`None`".into(),
            Some(Part::Some) => "`Some`".into(),
            Some(Part::Field(name)) => format!("the field `{name}`"),
            Some(Part::Key(key)) => format!("the key {key:?}"),
            None => "nothing".into(),
        }
    }

    /// Writes the part at `at` with its children, and moves `at` past them.
    fn write(&self, at: &mut usize, out: &mut Formatter<'_>) -> fmt::Result {
        let Some(part) = self.parts.get(*at) else {
            return out.write_str("?");
        };
        *at += 1;
        match part {
            Part::Leaf => out.write_str("*"),
            Part::Plain(value) => value.fmt(out),
            Part::Record { name, fields: 0 } | Part::TupleRecord { name, fields: 0 } => out.write_str(name),
            Part::Record { name, fields } => {
                write!(out, "{name} {{ ")?;
                self.write_children(*fields, at, out)?;
                out.write_str(" }")
            }
            Part::TupleRecord { name, fields } => {
                write!(out, "{name}(")?;
                self.write_children(*fields, at, out)?;
                out.write_str(")")
            }
            Part::Tuple(len) => {
                out.write_str("(")?;
                self.write_children(*len, at, out)?;
                out.write_str(if *len == 1 { ",)" } else { ")" })
            }
            Part::List(len) => {
                out.write_str("[")?;
                self.write_children(*len, at, out)?;
                out.write_str("]")
            }
            Part::Map(len) => {
                out.write_str("{")?;
                self.write_children(*len, at, out)?;
                out.write_str("}")
            }
            Part::None => out.write_str("None"),
            Part::Some => {
                out.write_str("Some(")?;
                self.write(at, out)?;
                out.write_str(")")
            }
            Part::Field(name) => {
                write!(out, "{name}: ")?;
                self.write(at, out)
            }
            Part::Key(key) => {
                write!(out, "{key:?}: ")?;
                self.write(at, out)
            }
        }
    }

    fn write_children(&self, len: usize, at: &mut usize, out: &mut Formatter<'_>) -> fmt::Result {
        for child in 0..len {
            if child > 0 {
                out.write_str(", ")?;
            }
            self.write(at, out)?;
        }
        Ok(())
    }
}

impl Display for Structure {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.write(&mut 0, out)
    }
}

fn extend(path: &mut String, segment: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(segment);
}

/// Where a tree is not what another led to expect.
///
/// ```
/// use kiln_ir::tree::Mismatch;
///
/// let mismatch = Mismatch {
///     path: "hidden.bias".into(),
///     expected: "a leaf".into(),
///     found: "`None`".into(),
/// };
/// assert_eq!(mismatch.to_string(), "`hidden.bias`: expected a leaf, found `None`");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The name of the place; empty for the tree itself.
    pub path: String,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl Display for Mismatch {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Mismatch { path, expected, found } = self;
        if !path.is_empty() {
            write!(out, "`{path}`: ")?;
        }
        write!(out, "expected {expected}, found {found}")
    }
}

impl std::error::Error for Mismatch {}
