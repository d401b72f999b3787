//! Matrix products of every dtype under every tile.

use super::*;
use crate::wgsl::tests::products::{TILES, WAYS, matmul, schedule};
use kiln_ir::DType;
use kiln_ir::gpu::{MatMulSpread, MatrixAxis};

#[test]
fn products_of_every_dtype_compile_under_every_tile() {
    for dtype in DType::ALL.into_iter().filter(|dtype| *dtype != DType::Bool) {
        for (tile, lies) in TILES.into_iter().zip(WAYS) {
            // A tile's operands are wider in shared memory than numbers of 64 bits leave room for.
            if dtype.size() == 8 && tile.registers[0] == 8 {
                continue;
            }
            let kernel = matmul(dtype, [70, 33, 17], lies);
            let schedule = schedule(&kernel, MatMulSpread::Tiles { tile }, 1, lies);
            let program = program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule));
            assert!(program.texts().all(|text| text.shared_bytes <= TARGET.workgroup_memory));
        }
    }
}

#[test]
fn thin_and_split_products_and_those_of_nothing_compile() {
    let thin = MatMulSpread::Thin { long: MatrixAxis::Rows, points: 8, lanes: 32 };
    for (extents, spread, splits) in
        [([300, 1, 64], thin, 1), ([64, 64, 512], MatMulSpread::Tiles { tile: TILES[1] }, 3)]
    {
        let kernel = matmul(DType::F32, extents, WAYS[0]);
        let schedule = schedule(&kernel, spread, splits, WAYS[0]);
        assert_eq!(program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule)).steps.len(), 1);
    }
    let kernel = matmul(DType::F32, [5, 7, 0], WAYS[0]);
    let schedule = schedule(&kernel, MatMulSpread::Tiles { tile: TILES[0] }, 1, WAYS[0]);
    program(&Kernel::MatMul(kernel), &Schedule::MatMul(schedule));
}
