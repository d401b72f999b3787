//! The pages of the documented errors, as items that carry them: their Rust snippets run as documentation tests, so what is documented is
//! what is raised.

macro_rules! pages {
    ($($code:ident)*) => {$(
        #[doc = include_str!(concat!("../ir/errors/", stringify!($code), ".md"))]
        struct $code;
    )*};
}

pages! {
    K0101
    K0102
    K0103
    K0104
    K0105
    K0106
    K0107
    K0108
    K0109
    K0110
    K0111
    K0201
    K0202
    K0203
    K0204
    K0205
    K0208
    K0209
    K0210
    K0301
    K0302
    K0303
    K0304
    K0305
    K0306
    K0307
    K0308
    K0309
    K0310
    K0311
    K0312
    K0401
    K0402
    K0403
    K0404
    K0405
    K0406
    K0407
    K0501
    K0502
    K0503
    K0504
    K0505
    K0506
    K0507
    K0508
    K0601
    K0602
    K0603
    K0701
    K0702
    K0703
    K0704
    K0801
    K0802
    K0803
    K0804
    K0805
    K0806
    K0901
    K1001
    K1002
    K1003
    K1004
}
