"""What the workloads in JAX have in common on a CPU and on a GPU."""
import jax
import jax.numpy as jnp

KEY = jax.random.PRNGKey(0)


def normal(index, shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.fold_in(KEY, index), shape, dtype)


def gelu_chain(x, a, b):
    return jax.nn.gelu(a * x + b) * jax.nn.sigmoid(b)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), labels[:, None], 1).mean()


def training(sizes, batch, precision=None):
    """A call of a step of Adam: the new state and the loss."""
    layers = [(normal(i, (a, b)) * 0.02, jnp.zeros(b)) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]
    zeros = jax.tree.map(jnp.zeros_like, layers)
    x, y = normal(9, (batch, sizes[0])), jnp.arange(batch) % 10

    def loss(layers, x, y):
        h = x
        for i, (w, b) in enumerate(layers):
            h = jnp.matmul(h, w, precision=precision) + b
            if i + 1 < len(layers):
                h = jax.nn.relu(h)
        return cross_entropy(h, y)

    def step(state, x, y, lr):
        layers, means, squares, count = state
        value, gradients = jax.value_and_grad(loss)(layers, x, y)
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, gradients)

        def update(w, m, v):
            return w - lr * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        return (jax.tree.map(update, layers, means, squares), means, squares, count), value

    step = jax.jit(step, donate_argnums=0)
    state = [(layers, zeros, jax.tree.map(jnp.zeros_like, layers), jnp.zeros(()))]

    def call():
        state[0], value = step(state[0], x, y, 1e-3)
        return state[0], value

    return call


def jitted(function, *arguments):
    function = jax.jit(function)
    return lambda: function(*arguments)
