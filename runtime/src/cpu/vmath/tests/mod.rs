//! Every function on every instruction set of the machine.

mod accuracy;
mod double;
mod special;
mod strips;
