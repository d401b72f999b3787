//! The native CPU backend: kernels interpreted in strips.
//!
//! A kernel is prepared once: axes are merged and ordered, every register gets a strip of scratch memory, every instruction a loop over
//! lanes that was compiled for this element type and this machine. A run then only walks tiles and calls loops; it allocates nothing of
//! tensor size, and a small kernel stays on the calling thread.
//!
//! - `prepared.rs`: the way in; `loops.rs`: map, reduce and row kernels; `horizontal.rs`: several of them at once; `matmul.rs`, `attention/`, `scan.rs`, `scatter.rs`: the other forms;
//!   `product.rs`: products on one thread
//! - `space.rs`: the axes of a kernel, merged; `tiling.rs`: which of them a tile covers; `reuse.rs`: what is kept along a row;
//!   `ahead.rs`: what the next tile reads
//! - `program.rs`: a block as steps over strips; `compile.rs`: how a block becomes one, `fused/`: many instructions as machine code,
//!   `pairs.rs`: two at a time where there is none; `scratch.rs`: the memory of strips, per thread;
//!   `crew.rs`: pieces of work on all threads
//! - `lanes/`: the loops; `vmath/`: the transcendental functions
//!
//! What holds: results depend on the kernel and its inputs alone, never on the number of threads; every address is checked before the
//! first run (affine ones) or held inside its buffer when used (guarded and computed ones).

mod ahead;
mod attention;
mod compile;
mod crew;
mod fused;
mod horizontal;
mod lanes;
mod loops;
mod matmul;
mod pairs;
mod prepared;
mod product;
mod program;
mod quantized;
mod reuse;
mod scan;
mod scatter;
mod scratch;
mod space;
#[cfg(test)]
mod tests;
mod tiling;
pub mod vmath;

pub(crate) use prepared::Prepared;
pub(crate) use program::RawBuffer;
