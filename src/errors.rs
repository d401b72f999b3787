//! The documented errors: each constant is a code, and its page says what it means, shows a program that fails with the text it ends with,
//! and the program mended. `kiln explain K0201` prints a page, [`explain`](crate::explain) returns it.
//!
//! ```
//! use kiln::prelude::*;
//! use kiln::errors;
//!
//! let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
//!     let x = scope.input("x", DType::F32, [3]);
//!     x.sum(7)
//! });
//! assert_eq!(captured.unwrap_err().codes(), [errors::K0304]);
//! ```

use kiln_ir::Code;

macro_rules! pages {
    ($($code:ident)*) => {
        $(
            #[doc = include_str!(concat!("../ir/errors/", stringify!($code), ".md"))]
            pub const $code: Code = Code::$code;
        )*

        // The compiler asks for the page of a new code here.
        const _: fn(Code) = |code| match code {
            $(Code::$code => (),)*
        };
    };
}

pages! {
    K0101 K0102 K0103 K0104 K0105 K0106 K0107 K0108 K0109 K0110 K0111
    K0201 K0202 K0203 K0204 K0205 K0206 K0207 K0208 K0209 K0210 K0211
    K0301 K0302 K0303 K0304 K0305 K0306 K0307 K0308 K0309 K0310 K0311 K0312
    K0401 K0402 K0403 K0404 K0405 K0406 K0407
    K0501 K0502 K0503 K0504 K0505 K0506 K0507 K0508 K0509
    K0601 K0603
    K0701 K0702 K0703 K0704 K0705 K0706 K0707 K0708
    K0801 K0802 K0803 K0804 K0805 K0806
    K0901
    K1001 K1002 K1003 K1004
}
