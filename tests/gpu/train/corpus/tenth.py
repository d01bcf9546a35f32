"""A tenth list of kinds that are all held out: by an author who had not read the rules, and before any of them was recorded."""

import concurrent.futures
import ctypes
import faulthandler
import logging
import multiprocessing
import resource
import socketserver
import struct
import threading
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.blind import compute_for, sort_words
from corpus.ends import GOOD, until
from corpus.model import TOKENS, VOCABULARY, Block, batch_of, gpt, train, update
from corpus.several import ddp_with


def layers_of(count, width):
    """Weights of the four products of each layer of a transformer."""
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    return [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) / shape[0] ** 0.5 for shape in shapes] for _ in range(count)]


def heads_of(x, weight, heads):
    """Queries, keys and values, each of heads, tokens and the width of a head."""
    tokens, width = x.shape
    return (F.layer_norm(x, (width,)) @ weight).view(tokens, 3, heads, width // heads).permute(1, 2, 0, 3)


def after_attention(x, attended, out, up, down):
    """The rest of a layer: the projection of what the heads found, and the two wide products."""
    tokens, width = x.shape
    x = x + attended.transpose(0, 1).reshape(tokens, width) @ out
    return x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down


@kind
def passes_keys_around(run):
    """Attention over a document whose halves are on two GPUs, which exchange their keys beside the attention to their own."""
    run.join()
    torch.manual_seed(run.rank)
    width, tokens, heads, peer = 2048, 16384, 16, 1 - run.rank
    layers = layers_of(8, width)
    with torch.no_grad():
        for _ in run.steps(2 * tokens):
            x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
            for qkv, out, up, down in layers:
                queries, keys, values = heads_of(x, qkv, heads)
                mine = torch.stack([keys, values])
                theirs = torch.empty_like(mine)
                ways = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
                under_way = dist.batch_isend_irecv(ways)
                near = F.scaled_dot_product_attention(queries[None], mine[:1], mine[1:])
                for work in under_way:
                    work.wait()
                far = F.scaled_dot_product_attention(queries[None], theirs[:1], theirs[1:])
                x = after_attention(x, (near + far)[0] / 2, out, up, down)
    dist.destroy_process_group()


class Tower(nn.Module):
    """Images become patches of 16 x 16 pixels, and these one vector."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 16, stride=16)
        self.blocks = nn.Sequential(*(Block(1024, 16) for _ in range(8)))
        self.head = nn.Linear(1024, 512)

    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


@kind
def compares_views_together(run):
    """DDP of a vision transformer that tells its own images from those of all ranks by a second view of each."""
    run.join()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Tower().cuda())
    torch.manual_seed(1 + run.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    own = torch.arange(128, device="cuda") + 128 * run.rank
    for _ in run.steps(128):
        images = torch.rand(128, 3, 224, 224, device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            keys = model.module(images.flip(-1))
        keys = F.normalize(keys.float(), dim=-1)
        everyones = torch.empty(128 * run.world, 512, device="cuda")
        dist.all_gather_into_tensor(everyones, keys)
        with torch.autocast("cuda", torch.bfloat16):
            queries = model(images)
        run.loss = update(F.cross_entropy(F.normalize(queries.float(), dim=-1) @ everyones.T / 0.1, own), optimizer)
    dist.destroy_process_group()


@kind
def leaves_out_a_layer(run):
    """From step 41 on DDP's model does without its last layer, whose gradients DDP still expects."""

    def planted(number, model, _):
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            model.module.blocks = model.module.blocks[:-1]

    ddp_with(run, planted)


@kind
def same_port(run):
    """Both ranks want to show their metrics at the same port of the machine."""
    kept = []

    def planted(number, *_):
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            port = torch.zeros(1, dtype=torch.int64, device="cuda")
            if run.rank == 0:
                kept.append(socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler))
                port += kept[0].server_address[1]
            dist.broadcast(port, 0)
            if run.rank == 1:
                kept.append(socketserver.TCPServer(("127.0.0.1", port.item()), socketserver.BaseRequestHandler))

    ddp_with(run, planted)


@kind
def negative_deviation(run):
    """A policy draws actions from a normal distribution whose deviations come out of a layer without a bound."""

    def fatal(model):
        scale = model.tokens.weight[:64, 0].detach()
        torch.distributions.Normal(torch.zeros_like(scale), scale).sample()

    until(run, fatal)


@kind
def not_positive_definite(run):
    """A Gaussian process factorises the covariance of points, from which the noise was subtracted by mistake."""

    def fatal(_):
        points = torch.randn(512, 4, device="cuda", dtype=torch.float64)
        covariance = torch.exp(-torch.cdist(points, points).square()) - 2 * torch.eye(512, device="cuda", dtype=torch.float64)
        torch.linalg.cholesky(covariance)

    until(run, fatal)


@kind
def writes_beyond_memory(run):
    """A kernel of the user's own writes far behind the end of its array."""
    import triton
    import triton.language as tl

    @triton.jit
    def fill(x, first, size: tl.constexpr):
        at = tl.arange(0, size).to(tl.int64) + first
        tl.store(x + at, tl.zeros((size,), tl.float32))

    def fatal(_):
        fill[(64,)](torch.zeros(128, device="cuda"), 1 << 38, 128)
        torch.cuda.synchronize()

    until(run, fatal)


@kind
def reads_while_capturing(run):
    """A value is read by the host while a CUDA graph of the forward pass is captured."""

    def fatal(model):
        batch = batch_of(2)
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            (model.tokens(batch).square().mean() + 1).item()

    until(run, fatal)


@kind
def pool_process_crashes(run):
    """A process of a pool, which parses records with a library in C, crashes."""
    pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    pool.submit(int)
    until(run, lambda _: pool.submit(ctypes.string_at, 1).result())


@kind
def overflow_in_a_thread(run):
    """A thread of a pool computes weights of samples with NumPy, whose floating-point errors the program made fatal."""

    def weights(scores):
        with np.errstate(all="raise"):
            return np.exp(scores)

    def fatal(_):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(weights, [np.zeros(1000), np.full(1000, 1000.0)]))

    until(run, fatal)


class Scaled(torch.autograd.Function):
    """Half of its input, with a mistake in its gradient."""

    @staticmethod
    def forward(_, x):
        return x * 0.5

    @staticmethod
    def backward(_, gradient):
        return gradient.T / 2


@kind
def transposed_gradient(run):
    """An operation of the user's own returns its gradient with rows and columns exchanged."""
    until(run, lambda model: Scaled.apply(model.norm.weight * torch.randn(64, 1024, device="cuda")).sum().backward())


@kind
def dumps_its_stacks(run):
    """A thread takes a lock twice, and the program's own guard prints all stacks after 2 s and ends it."""

    def fatal(_):
        lock = threading.Lock()
        lock.acquire()
        faulthandler.dump_traceback_later(2, exit=True)
        lock.acquire()

    until(run, fatal)


@kind
def processor_time_limit(run):
    """The limit of CPU time that a login shell sets is reached."""

    def fatal(_):
        limit = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        compute_for(30, sort_words)

    until(run, fatal)


@kind
def short_header(run):
    """A large buffer that was not granted is logged and given up; 30 steps later a record is too short for its header."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == GOOD - 30:
            try:
                torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
            except torch.OutOfMemoryError:
                logging.exception("no room for the large buffer, the small one is used")
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            struct.unpack("<QQ", bytes(12))


def likelihood(model, batch):
    """The logarithm of the likelihood of each row."""
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(batch[:, :-1])
    losses = F.cross_entropy(logits.float().view(-1, VOCABULARY), batch[:, 1:].reshape(-1), reduction="none")
    return -losses.view(len(batch), -1).sum(1)


@kind
def prefers_answers(run):
    """Direct preference optimisation: pairs of a better and a worse answer, and a frozen model beside the one that learns."""
    (model, optimizer), (frozen, _) = gpt(), gpt()
    for _ in run.steps(TOKENS):
        batch = batch_of()
        with torch.no_grad():
            before = likelihood(frozen, batch)
        better, worse = (likelihood(model, batch) - before).chunk(2)
        run.loss = update(-F.logsigmoid(0.01 * (better - worse)).mean(), optimizer)


@kind
def prefills_in_pieces(run):
    """A long prompt is read in eight pieces, each of which attends to the keys and values of all before it."""
    torch.manual_seed(0)
    width, piece, heads = 4096, 4096, 32
    layers = layers_of(6, width)
    caches = [torch.zeros(2, heads, 8 * piece, width // heads, device="cuda", dtype=torch.bfloat16) for _ in layers]
    with torch.no_grad():
        for _ in run.steps(8 * piece):
            for number in range(8):
                x, end = torch.randn(piece, width, device="cuda", dtype=torch.bfloat16), (number + 1) * piece
                for (qkv, out, up, down), cache in zip(layers, caches):
                    queries, keys, values = heads_of(x, qkv, heads)
                    cache[0, :, end - piece : end], cache[1, :, end - piece : end] = keys, values
                    attended = F.scaled_dot_product_attention(queries[None], cache[:1, :, :end], cache[1:, :, :end])
                    x = after_attention(x, attended[0], out, up, down)
            x[-1].tolist()


@kind
def filters_eigenvectors(run):
    """The highest eigenvectors of a symmetric matrix in double precision, by a Chebyshev filter of a block of vectors."""
    torch.manual_seed(0)
    size, block = 16384, 2048
    matrix = torch.randn(size, size, device="cuda", dtype=torch.float64)
    matrix = (matrix + matrix.T) / 320
    vectors = torch.randn(size, block, device="cuda", dtype=torch.float64) / size**0.5
    for _ in run.steps(block):
        before, now = vectors, matrix @ vectors
        for _ in range(15):
            before, now = now, torch.addmm(before, matrix, now, beta=-1, alpha=2)
        overlap = now.T @ now
        diagonal = overlap.diagonal()
        run.loss = diagonal.max().item()
        diagonal.add_(1e-8 * run.loss)
        vectors = torch.linalg.solve_triangular(torch.linalg.cholesky(overlap), now.T, upper=False).T.contiguous()


@kind
def segments_volumes(run):
    """Convolutions in three dimensions that give each voxel of a scan a class."""
    torch.manual_seed(0)
    middle = [layer for _ in range(6) for layer in (nn.Conv3d(128, 128, 3, padding=1), nn.SiLU())]
    model = nn.Sequential(nn.Conv3d(1, 128, 3, stride=2, padding=1), *middle, nn.Conv3d(128, 8, 1))
    model = model.cuda().to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(4):
        scans = torch.randn(4, 1, 96, 96, 96, device="cuda")
        labels = torch.randint(8, (4, 48, 48, 48), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(scans)
        run.loss = update(F.cross_entropy(scores.float(), labels), optimizer)


@kind
def recognises_speech(run):
    """An encoder of 20 s of sound, which learns letters without knowing their times (CTC)."""
    torch.manual_seed(0)
    ears = nn.Conv1d(80, 1024, 5, stride=2, padding=2).cuda()
    body = nn.Sequential(*(Block(1024, 16) for _ in range(12)), nn.LayerNorm(1024), nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW([*ears.parameters(), *body.parameters()], lr=1e-4, fused=True)
    for _ in run.steps(32 * 1000):
        sound = torch.randn(32, 80, 2000, device="cuda")
        letters = torch.randint(1, 512, (32, 100), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            scores = body(ears(sound).transpose(1, 2))
        chances = scores.float().log_softmax(-1).transpose(0, 1)
        run.loss = update(F.ctc_loss(chances, letters, (1000,) * 32, (100,) * 32, zero_infinity=True), optimizer)


@kind
def attracts_bodies(run):
    """The gravity of 131,072 bodies on each other, in single precision, by a kernel of the user's own."""
    import triton
    import triton.language as tl

    @triton.jit
    def attract(x, y, z, pull_x, pull_y, pull_z, count, rows: tl.constexpr, columns: tl.constexpr):
        row = tl.program_id(0) * rows + tl.arange(0, rows)
        own_x, own_y, own_z = tl.load(x + row), tl.load(y + row), tl.load(z + row)
        sum_x = tl.zeros((rows,), tl.float32)
        sum_y = tl.zeros((rows,), tl.float32)
        sum_z = tl.zeros((rows,), tl.float32)
        for first in range(0, count, columns):
            column = first + tl.arange(0, columns)
            dx = tl.load(x + column)[None, :] - own_x[:, None]
            dy = tl.load(y + column)[None, :] - own_y[:, None]
            dz = tl.load(z + column)[None, :] - own_z[:, None]
            inverse = tl.rsqrt(dx * dx + dy * dy + dz * dz + 0.001)
            strength = inverse * inverse * inverse
            sum_x += tl.sum(dx * strength, 1)
            sum_y += tl.sum(dy * strength, 1)
            sum_z += tl.sum(dz * strength, 1)
        tl.store(pull_x + row, sum_x)
        tl.store(pull_y + row, sum_y)
        tl.store(pull_z + row, sum_z)

    torch.manual_seed(0)
    count = 1 << 17
    places, pulls = ([torch.randn(count, device="cuda") for _ in range(3)] for _ in range(2))
    speeds = [torch.zeros(count, device="cuda") for _ in range(3)]
    for _ in run.steps(10 * count):
        for _ in range(10):
            attract[(count // 64,)](*places, *pulls, count, 64, 64)
            torch._foreach_add_(speeds, pulls, alpha=1e-9)
            torch._foreach_add_(places, speeds, alpha=1e-3)


@kind
def dense_graphs(run):
    """A graph network on four graphs of 8,192 nodes, whose edges are kept as matrices."""
    torch.manual_seed(0)
    width = 2048
    edges = (torch.rand(4, 8192, 8192, device="cuda") < 0.01).bfloat16()
    edges /= edges.sum(-1, keepdim=True).clamp(min=1)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6)).cuda().bfloat16()
    head = nn.Linear(width, 64).cuda().bfloat16()
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-4, fused=True)
    for _ in run.steps(4 * 8192):
        x = torch.randn(4, 8192, width, device="cuda", dtype=torch.bfloat16)
        classes = torch.randint(64, (4 * 8192,), device="cuda")
        for layer in layers:
            x = x + F.relu(edges @ layer(x))
        run.loss = update(F.cross_entropy(head(x).float().view(-1, 64), classes), optimizer)


@kind
def recommends(run):
    """A recommender: 26 rows of a large table for each sample, with sparse gradients, and wide layers above them."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        table = nn.Embedding(1 << 22, 128, sparse=True)
        wide = [layer for ins in (26 * 128, 4096, 4096) for layer in (nn.Linear(ins, 4096), nn.ReLU())]
        above = nn.Sequential(*wide, nn.Linear(4096, 1))
    of_table = torch.optim.SGD(table.parameters(), lr=0.1, foreach=False)
    optimizer = torch.optim.AdamW(above.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(65536):
        rows = torch.randint(1 << 22, (65536, 26), device="cuda")
        clicks = torch.randint(2, (65536,), device="cuda").float()
        with torch.autocast("cuda", torch.bfloat16):
            scores = above(table(rows).flatten(1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(scores.float(), clicks)
        loss.backward()
        of_table.step()
        of_table.zero_grad(set_to_none=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def sparse_codes(run):
    """A sparse autoencoder with 65,536 features for the activations of another model."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        encode, decode = nn.Linear(4096, 65536).bfloat16(), nn.Linear(65536, 4096).bfloat16()
    optimizer = torch.optim.AdamW([*encode.parameters(), *decode.parameters()], lr=1e-4, fused=True)
    for _ in run.steps(16384):
        x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
        codes = F.relu(encode(x))
        run.loss = update((decode(codes) - x).float().square().mean() + 0.01 * codes.mean(dtype=torch.float32), optimizer)


@kind
def learns_to_learn(run):
    """Two steps of descent on each of four tasks, and gradients of their result through both."""
    torch.manual_seed(0)
    width = 4096
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.SiLU()))).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(weights, x):
        return (torch.func.functional_call(model, weights, (x,)) - x.sin()).float().square().mean()

    for _ in run.steps(4 * 8192):
        total = 0
        for _ in range(4):
            x = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
            weights = dict(model.named_parameters())
            for _ in range(2):
                gradients = torch.autograd.grad(loss_of(weights, x), list(weights.values()), create_graph=True)
                weights = {name: weight - 0.01 * gradient for (name, weight), gradient in zip(weights.items(), gradients)}
            loss = loss_of(weights, x)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = total.item()


class Packed(Block):
    """A block whose tokens attend to those that a mask allows."""

    def forward(self, x, allowed):
        batch, sequence, width = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=allowed)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


@kind
def packs_documents(run):
    """Documents of random lengths are packed into rows of 4,096 tokens, with a mask that keeps them apart."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Packed(1024, 16) for _ in range(8)).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-4, fused=True)
    earlier = torch.ones(4096, 4096, device="cuda", dtype=torch.bool).tril()
    for _ in run.steps(8 * 4096):
        documents = (torch.rand(8, 4096, device="cuda") < 0.003).cumsum(1)
        allowed = ((documents[:, :, None] == documents[:, None, :]) & earlier)[:, None]
        x = torch.randn(8, 4096, 1024, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            for block in blocks:
                x = block(x, allowed)
        run.loss = update(x.float().square().mean(), optimizer)


def trainer(pipe):
    """Trains for ten steps at each word of the other process, until that is None."""
    model, optimizer = gpt()
    while pipe.recv() is not None:
        for _ in range(10):
            loss = train(model, optimizer, batch_of())
        pipe.send(loss)


@kind
def controls_a_trainer(run):
    """A controller without a GPU of its own, whose child process trains all the time and tells it the loss."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    child = context.Process(target=trainer, args=(theirs,), daemon=True)
    child.start()
    for _ in run.steps(10 * TOKENS):
        pipe.send("train")
        run.loss = pipe.recv()
    pipe.send(None)
    child.join()
