//! The documented error codes, one variant a code.

use std::fmt;

macro_rules! codes {
    ($($code:ident $summary:literal)*) => {
        /// A documented error. Each has a page, printed by [`Code::explain`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $summary] $code,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            /// The code as printed: `K0201`.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$code => stringify!($code),)* }
            }

            /// One line that says what the code is about; `{}` stands for names filled in where it is raised.
            pub const fn summary(self) -> &'static str {
                match self { $(Code::$code => $summary,)* }
            }

            /// The page of this code: what it means, a failing snippet, the mended snippet.
            pub const fn explain(self) -> &'static str {
                match self { $(Code::$code => include_str!(concat!("../../errors/", stringify!($code), ".md")),)* }
            }
        }
    };
}

codes! {
    K0101 "capture tensor operations must run inside CaptureDevice::capture_scope"
    K0102 "capture tensor {} has no initialized value"
    K0103 "seeding is not supported during graph capture"
    K0104 "a capture scope is already active on this device"
    K0105 "capture scope is already complete"
    K0106 "unknown graph {} tensor {}"
    K0107 "duplicate graph {} tensor {}"
    K0108 "graph reads undeclared input tensor {}"
    K0109 "graph input tensor {} is produced within the graph"
    K0110 "graph output tensor {} does not survive the graph"
    K0111 "Cannot move a tensor from a capture device"
    K0201 "The provided tensors are not on the same backend. Got backends {} and {}."
    K0202 "Tensor is on the wrong backend (expected {})."
    K0203 "Autodiff float tensor is on the wrong backend (expected {})."
    K0204 "input tensor `{}` is on the wrong backend"
    K0205 "optional tensor `{}` is on the wrong backend"
    K0206 "backend extension input is on the wrong backend"
    K0207 "q_matmul inputs are on different backends"
    K0208 "unsupported dispatch backend"
    K0209 "Backend not supported for custom op `{}`"
    K0210 "dispatched operation received no tensor input to select a backend from"
    K0211 "kernel of custom op `{}` does not fit its declaration"
    K0301 "matrix product extents differ"
    K0302 "shapes do not broadcast"
    K0303 "reshape changes the number of elements"
    K0304 "axis out of range"
    K0305 "extents differ outside the concatenated axis"
    K0306 "reduction of an empty axis has no value"
    K0307 "axes are not a permutation"
    K0308 "slice out of range"
    K0309 "wrong rank"
    K0310 "tensor too large"
    K0311 "index out of range"
    K0312 "shapes do not fit"
    K0401 "Should be float, got int"
    K0402 "dtypes differ"
    K0403 "Should be bool, got float"
    K0404 "Should be int, got float"
    K0405 "Should be a number, got bool"
    K0406 "literal does not fit its dtype"
    K0407 "bitcast between dtypes of different width"
    K0501 "Autodiff not supported for custom op `{}`"
    K0502 "only float tensors may use an autodiff primitive"
    K0503 "Requires autodiff tensor."
    K0504 "Autodiff should not wrap an autodiff tensor."
    K0505 "Can't differentiate {}."
    K0506 "Expected autodiff-wrapped float tensor for backend {}."
    K0507 "Node should have a step registered, did you forget to call `Tensor::require_grad` on the tensor where you need gradients?"
    K0508 "an autodiff float primitive must have an enabled autodiff context"
    K0509 "autodiff float input reached concrete dispatch"
    K0601 "dtype not supported by this backend"
    K0603 "device limit exceeded"
    K0701 "argument does not fit the signature"
    K0702 "device fault"
    K0703 "state was lost in a device fault"
    K0704 "out of memory"
    K0705 "custom op `{}` failed"
    K0706 "kernel of custom op `{}` differs from its body"
    K0707 "kernel {} of `{}` differs from the reference"
    K0708 "no such device"
    K0801 "IR text: syntax"
    K0802 "IR text: unknown name"
    K0803 "IR text: wrong number of operands or results"
    K0804 "IR text: declared type differs from the inferred one"
    K0805 "IR text: version not supported"
    K0806 "IR text: constant data missing or different"
    K0901 "internal: a pass broke a rule of the IR"
    K1001 "file cannot be read or written"
    K1002 "file holds something else"
    K1003 "trees differ in structure"
    K1004 "a value that is not finite"
}

impl Code {
    /// What the codes of this one's family are about. A family is the codes that begin alike: `K02`.
    ///
    /// ```
    /// assert_eq!(kiln_ir::Code::K0201.family(), "backends");
    /// ```
    pub fn family(self) -> &'static str {
        match &self.name()[1..3] {
            "01" => "captures and graphs",
            "02" => "backends",
            "03" => "shapes",
            "04" => "dtypes",
            "05" => "gradients",
            "06" => "what a backend or device supports",
            "07" => "running",
            "08" => "the text form",
            "09" => "mistakes of Kiln's own",
            _ => "data and files",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Code {
    type Err = ();

    fn from_str(text: &str) -> Result<Code, ()> {
        Code::ALL.iter().copied().find(|code| code.name().eq_ignore_ascii_case(text)).ok_or(())
    }
}
