"""A small transformer on random tokens with DDP or FSDP, whose number of FLOP is known.

torchrun --nproc-per-node=N train.py ddp|fsdp SECONDS

The first rank prints the figures computed by hand: parameters, tokens per second, FLOP per token by PaLM's convention
(6 N + 12 layers x width x sequence), and the model FLOP utilisation against DENSE_PEAK.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    import railgate
except ImportError:
    railgate = None

LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY, BATCH = 16, 2048, 16, 2048, 32768, 8
DENSE_PEAK = 989.4e12  # bf16 FLOP/s of an H200 SXM, NVIDIA's datasheet without sparsity


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, sequence, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, sequence, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def main():
    kind, seconds = sys.argv[1], float(sys.argv[2])
    rank, local, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Model().cuda()
    parameters = sum(p.numel() for p in model.parameters())
    if kind == "ddp":
        model = DistributedDataParallel(model, device_ids=[local])
    else:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if railgate is not None:
        railgate.model(
            params=parameters, layers=LAYERS, hidden=WIDTH, heads=HEADS, seq_len=SEQUENCE, dtype="bf16"
        )

    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), device="cuda")
    done, counted, since, end = 0, 0, None, time.time() + seconds
    stop = torch.zeros(1, device="cuda")
    while True:
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "ddp"):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if railgate is not None:
            railgate.step(tokens=BATCH * SEQUENCE)
        done += 1
        if done == 5:  # earlier steps are start-up
            since = time.perf_counter()
        elif since is not None:
            counted += 1
        stop.fill_(time.time() > end)
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
    took = time.perf_counter() - since
    dist.barrier()
    if rank == 0:
        speed = counted * BATCH * SEQUENCE * world / took
        per_token = 6 * parameters + 12 * LAYERS * WIDTH * SEQUENCE
        print(
            f"{kind}: {parameters} parameters, {done} steps, {took / counted:.4f} s a step, {speed:.0f} tokens/s, "
            f"{per_token} FLOP/token, {100 * speed * per_token / world / DENSE_PEAK:.2f} % MFU by hand"
        )
    dist.destroy_process_group()


main()
