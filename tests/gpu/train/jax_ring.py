"""Every process of a JAX job adds its number to a common sum: python3 jax_ring.py, started by srun, one process per GPU."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
mine = jnp.arange(1 << 20, dtype=jnp.float32) + jax.process_index()
total = multihost_utils.process_allgather(mine).sum(axis=0)
count = jax.process_count()
right = bool((total == jnp.arange(1 << 20) * count + count * (count - 1) // 2).all())
print(f"process {jax.process_index()} has {jax.local_devices()}", flush=True)
if jax.process_index() == 0:
    print(f"sum over {count} processes is {'right' if right else 'WRONG'}", flush=True)
