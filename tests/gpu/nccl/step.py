"""Training steps of a small transformer under DDP: prints `step SECONDS`, rank 0's median over timed steps."""
import os, statistics, time
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
torch.manual_seed(0)
layer = lambda: torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
model = torch.nn.Sequential(*(layer() for _ in range(12))).cuda().bfloat16()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)
times = []
for number in range(220):
    begin = time.perf_counter()
    model(data).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    if number >= 20:
        times.append(time.perf_counter() - begin)
if rank == 0:
    print(f"step {statistics.median(times):.9f}")
dist.destroy_process_group()
