//! Which instruction set a strip runs on.
//!
//! An [`Isa`] can only be had by asking the machine, so holding one proves that its instructions may be executed here:
//! the one `unsafe` call into code compiled for AVX2 or AVX-512 rests on that. The choice is a plain value handed to
//! every strip function, which lets tests run each instruction set the machine has.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(pub(in crate::cpu) Level);

/// The instruction sets that strips are compiled for, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::cpu) enum Level {
    /// What every machine of the target has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// Eight f32 lanes and fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Sixteen f32 lanes and fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The widest instruction set of this machine; asked once, then cached.
    ///
    /// ```
    /// use kiln_runtime::cpu::vmath::Isa;
    /// assert_eq!(Isa::available().last(), Some(&Isa::best()));
    /// ```
    pub fn best() -> Isa {
        *Isa::available().last().expect("the baseline is always available")
    }

    /// Every instruction set of this machine, from narrow to wide; the first is what its target always has.
    pub fn available() -> &'static [Isa] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(detect)
    }

    /// The name used in reports: `baseline`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Isa> {
    let mut found = vec![Isa(Level::Baseline)];
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        found.push(Isa(Level::Avx2));
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            found.push(Isa(Level::Avx512));
        }
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<Isa> {
    vec![Isa(Level::Baseline)]
}
