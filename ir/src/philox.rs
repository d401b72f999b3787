//! Philox 4x32-10, the counter-based generator behind [`crate::Op::RandomBits`].
//!
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Element `i` of a draw from `key` in
//! `stream` is word `i % 4` of the block with counter `(i / 4 low, i / 4 high, 0, stream)`.

/// Ten rounds of Philox on one counter block.
///
/// ```
/// // The known answer for zero key and counter.
/// assert_eq!(kiln_ir::philox::block([0, 0], [0, 0, 0, 0]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
#[inline]
pub fn block(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let (mut key, mut words) = (key, counter);
    for _ in 0..10 {
        let a = u64::from(words[0]) * 0xD251_1F53;
        let b = u64::from(words[2]) * 0xCD9E_8D57;
        words = [(b >> 32) as u32 ^ words[1] ^ key[0], b as u32, (a >> 32) as u32 ^ words[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    words
}

/// Element `index` of the draw from `key` in `stream`.
#[inline]
pub fn element(key: [u32; 2], stream: u32, index: u64) -> u32 {
    let counter = index / 4;
    block(key, [counter as u32, (counter >> 32) as u32, 0, stream])[(index % 4) as usize]
}
