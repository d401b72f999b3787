"""The training steps of benches/step.rs in JAX on the CPU: one JSON line each, median milliseconds and the first call in seconds.

    pip install jax && python benches/peers/steps_jax.py
"""
import json
import statistics
import time

import jax
import jax.numpy as jnp


def training(batch, sizes, repeats):
    key = jax.random.PRNGKey(0)
    layers = [
        (jax.random.normal(jax.random.fold_in(key, i), (a, b)) * 0.02, jnp.zeros(b))
        for i, (a, b) in enumerate(zip(sizes, sizes[1:]))
    ]
    zeros = jax.tree.map(jnp.zeros_like, layers)
    x = jax.random.uniform(key, (batch, sizes[0]))
    y = jnp.arange(batch) % 10

    def loss(layers):
        h = x
        for i, (w, b) in enumerate(layers):
            h = h @ w + b
            if i + 1 < len(layers):
                h = jax.nn.relu(h)
        return -jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1).mean()

    def step(state, lr):
        layers, means, squares, count = state
        value, gradients = jax.value_and_grad(loss)(layers)
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)

        def update(w, m, v):
            return w - lr * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return (jax.tree.map(update, layers, means, squares), means, squares, count), value

    step = jax.jit(step, donate_argnums=0)
    state = (layers, zeros, jax.tree.map(jnp.zeros_like, layers), jnp.zeros(()))
    begun = time.perf_counter()
    state, value = jax.block_until_ready(step(state, 1e-3))
    first = time.perf_counter() - begun
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        state, value = jax.block_until_ready(step(state, 1e-3))
        times.append((time.perf_counter() - begun) * 1e3)
    name = "-".join(map(str, sizes))
    print(json.dumps({"work": f"step/{name} batch {batch}", "system": f"jax {jax.__version__}",
                      "ms": round(statistics.median(times), 4), "first_s": round(first, 3)}), flush=True)


training(32, (64, 128, 10), 500)
training(128, (784, 512, 512, 10), 200)
