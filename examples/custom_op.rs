//! Ops that Kiln does not have, in a training step: one with a body, one with a kernel, one with a gradient of its own.

#![allow(clippy::print_stdout)]

use kiln::prelude::*;

/// With a body: it runs on every backend, fuses with its neighbours, and has a gradient.
fn swish(x: &Tensor, beta: &Tensor) -> Tensor {
    custom_op("swish", |(x, beta): &(Tensor, Tensor)| x * (x * beta).sigmoid()).names(["x", "beta"]).call((x, beta))
}

/// What `lookup` takes: its operands by name, and a number that decides how it is compiled.
#[derive(ExtensionType)]
struct Lookup<T> {
    table: T,
    rows: T,
    scale: f32,
}

/// With a kernel: a function on the CPU, a text for wgpu. The body says what both must compute.
pub(crate) fn lookup(table: &Tensor, rows: &Tensor, scale: f32) -> Tensor {
    let op = custom_op("lookup", |call: &Lookup<Tensor>| call.table.take(0, &call.rows) * call.scale)
        .untracked(["rows"])
        .cpu(|call, out| {
            let width = call.table.shape()[1];
            let (table, rows) = (call.table.as_slice::<f32>()?, call.rows.as_slice::<i32>()?);
            for (out, &row) in out.as_mut_slice::<f32>()?.chunks_exact_mut(width).zip(rows) {
                let row = row.clamp(0, (table.len() / width) as i32 - 1) as usize;
                out.iter_mut().zip(&table[row * width..]).for_each(|(out, x)| *out = x * call.scale);
            }
            Ok(())
        })
        .wgsl(|call, out| {
            let (width, count) = (call.table.shape[1], out.shape.num_elements());
            let last = call.table.shape[0] - 1;
            let text = format!(
                "@group(0) @binding(0) var<storage, read> table: array<f32>;
                 @group(0) @binding(1) var<storage, read> rows: array<i32>;
                 @group(0) @binding(2) var<storage, read_write> out: array<f32>;

                 @compute @workgroup_size(64)
                 fn lookup(@builtin(global_invocation_id) at: vec3<u32>) {{
                     if (at.x >= {count}u) {{ return; }}
                     let row = u32(clamp(rows[at.x / {width}u], 0, {last}));
                     out[at.x] = table[row * {width}u + at.x % {width}u] * {scale:?}f;
                 }}",
                scale = call.scale,
            );
            WgslKernel::new(text, "lookup", [count.div_ceil(64) as u32, 1, 1])
        });
    op.call(&Lookup { table: table.clone(), rows: rows.clone(), scale })
}

/// With a gradient: it rounds, and lets gradients pass as if it did not.
fn straight_through(x: &Tensor) -> Tensor {
    custom_op("straight_through", |x: &Tensor| x.round()).gradient(|_, _, dy| dy.clone()).call(x)
}

#[derive(Tree, Clone)]
struct Model<T> {
    table: T,
    beta: T,
    out: T,
}

impl Model<Tensor> {
    fn loss(&self, rows: &Tensor, wanted: &Tensor) -> Tensor {
        let hidden = swish(&lookup(&self.table, rows, 0.5), &self.beta);
        let coarse = straight_through(&(hidden * 16.0)) / 16.0;
        mse(&coarse.matmul(&self.out), wanted)
    }
}

/// Trains for some steps, and gives the loss of each.
pub(crate) fn train(device: &Device, steps: usize) -> kiln::Result<Vec<f32>> {
    let step = step(device, |model: Model<Tensor>, (rows, wanted): (Tensor, Tensor)| {
        let (loss, gradients) = value_and_grad(&model, |model| model.loss(&rows, &wanted));
        let next = model.zip_map(gradients, |weight, gradient| weight - gradient * 0.2);
        (next.expect("a model has the structure of its gradients"), loss)
    });
    let numbers = |seed: usize, count: usize| -> Vec<f32> {
        (0..count).map(|index| ((index * 7 + seed * 13) % 11) as f32 / 5.0 - 1.0).collect()
    };
    let mut model = Model {
        table: Array::from_vec(device, numbers(1, 20), [5, 4])?,
        beta: Array::new(device, 1.0f32)?,
        out: Array::from_vec(device, numbers(2, 4), [4, 1])?,
    };
    let rows = Array::new(device, [0i32, 1, 2, 3, 4, 2])?;
    let wanted = Array::new(device, [[0.5f32], [-0.5], [1.0], [0.0], [0.25], [1.0]])?;
    (0..steps).map(|_| Ok(step.call(&mut model, (&rows, &wanted))?.item()?)).collect()
}

fn main() -> kiln::Result<()> {
    for (index, loss) in train(&Device::cpu(), 50)?.iter().enumerate().step_by(7) {
        println!("step {index:2}: loss {loss:.5}");
    }
    Ok(())
}
