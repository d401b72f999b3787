//! Random words: Philox 4x32-10, bit for bit as `kiln_ir::philox` has it.

use super::Function;

pub(super) const TABLE: &[Function] = &[
    Function {
        name: "multiply_wide",
        calls: &[],
        text: "
fn multiply_wide(a: u32, b: u32) -> vec2<u32> {
    // Low and high word of the product, from products of 16-bit halves.
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
    return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u));
}
",
    },
    Function {
        name: "philox",
        calls: &["multiply_wide"],
        text: "
fn philox(key_low: u32, key_high: u32, stream: u32, index_low: u32, index_high: u32) -> u32 {
    // Element `index` of a draw is word `index % 4` of block `index / 4`.
    var key = vec2<u32>(key_low, key_high);
    var words = vec4<u32>((index_low >> 2u) | (index_high << 30u), index_high >> 2u, 0u, stream);
    for (var round = 0; round < 10; round++) {
        let a = multiply_wide(words.x, 0xd2511f53u);
        let b = multiply_wide(words.z, 0xcd9e8d57u);
        words = vec4<u32>(b.y ^ words.y ^ key.x, b.x, a.y ^ words.w ^ key.y, a.x);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return words[index_low & 3u];
}
",
    },
];
