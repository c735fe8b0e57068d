"""FSDP2: every process pages the state of its own shard.

    torchrun --standalone --nproc-per-node 2 examples/python/fsdp2.py
"""
import os

import spillway
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def start():
    """The device of this process: its GPU, or the CPU with gloo."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        return torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("gloo")
    return torch.device("cpu")


def main():
    device = start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh())
                                  for _ in range(4)]).to(device)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # Made from the sharded parameters, so after fully_shard, as any optimizer.
    optimizer = spillway.PagedAdamW8bit(model.parameters(), lr=3e-3, state_mem="25%")
    torch.manual_seed(dist.get_rank())
    for step in range(20):
        x = torch.randn(32, 256, device=device)
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 6 == 0:
            print(f"step {step:2}  loss {loss.item():.4f}")
    saved = get_optimizer_state_dict(model, optimizer)  # sharded, for torch.distributed.checkpoint
    if dist.get_rank() == 0:
        print(f"{len(saved['state'])} parameters have state")
        print(spillway.memory_summary())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
