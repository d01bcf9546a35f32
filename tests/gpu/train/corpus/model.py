"""A small GPT on random tokens: 12 layers of width 1024 have 185 M parameters."""

import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, SEQUENCE, BATCH = 32768, 1024, 16
TOKENS = SEQUENCE * BATCH


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, sequence, width = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Model(nn.Module):
    def __init__(self, layers=12, width=1024, heads=16):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def gpt(**size):
    """A model on the GPU, and its optimizer."""
    torch.manual_seed(0)
    model = Model(**size).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def batch_of(rows=BATCH, sequence=SEQUENCE, device="cuda"):
    return torch.randint(VOCABULARY, (rows, sequence + 1), device=device)


def forward(model, batch, cache=True):
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=cache):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.float().view(-1, VOCABULARY), batch[:, 1:].reshape(-1))
    return loss, logits


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def train(model, optimizer, batch):
    return update(forward(model, batch)[0], optimizer)


def seconds_as_graph(work):
    """Seconds of `work` without the time in which the GPU waits for launches: replayed as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / 20
