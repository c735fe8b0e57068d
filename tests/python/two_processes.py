"""What test_distributed.py runs under torchrun: DDP and FSDP2 on two CPU processes, by gloo."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, \
    get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spillway


def net():
    """Rows that are whole blocks of 256, rows that are not, and a bias that one process has none of."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(512, 90), torch.nn.Tanh(), torch.nn.Linear(90, 70),
                               torch.nn.Tanh(), torch.nn.Linear(70, 1))


def train(model, optimizer, steps, seed, share):
    """Each process has half of the rows where `share`; returns the mean losses."""
    random = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 512, generator=random)
        if share:
            x = x.chunk(2)[dist.get_rank()]
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if share:
            dist.all_reduce(total)
            total /= 2
        losses.append(total.item())
    return losses


def whole(model):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def near(one, other):
    return max(abs(a - b) / abs(a) for a, b in zip(one, other)) < 1e-5


def sharded(mesh):
    model = net()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def test_ddp(name):
    alone, both = net(), DistributedDataParallel(net())
    make = getattr(spillway, name)
    expected = train(alone, make(alone.parameters(), lr=1e-2), 6, 0, False)
    assert near(expected, train(both, make(both.parameters(), lr=1e-2), 6, 0, True))


def test_fsdp2(name):
    """The same losses as one process (fp32 state, whose blocks do not depend on the shards)."""
    mesh = init_device_mesh("cpu", (2,))
    make = getattr(spillway, name)
    alone, model = net(), sharded(mesh)
    expected = train(alone, make(alone.parameters(), lr=1e-2), 6, 0, False)
    got = train(model, make(model.parameters(), lr=1e-2), 6, 0, True)
    assert near(expected, got) or name.endswith("8bit"), (expected, got)


def test_bits_follow_the_whole_size(name):
    model = sharded(init_device_mesh("cpu", (2,)))
    optimizer = getattr(spillway, name)(model.parameters(), min_8bit_size=90 * 512)
    train(model, optimizer, 1, 0, True)
    dtype = optimizer.state[model[0].weight]["state1"].dtype
    assert dtype == (torch.uint8 if name.endswith("8bit") else torch.float32)


def test_checkpoint(name, folder):
    """Out by torch.distributed.checkpoint and in again: goes on with the same bits."""
    mesh = init_device_mesh("cpu", (2,))
    make = getattr(spillway, name)
    model = sharded(mesh)
    optimizer = make(model.parameters(), lr=1e-2)
    train(model, optimizer, 4, 0, True)
    saved = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(saved, checkpoint_id=folder)
    expected = train(model, optimizer, 3, 5, True)
    other = sharded(mesh)
    fresh = make(other.parameters(), lr=1e-2)
    target = {"model": other.state_dict(), "optim": get_optimizer_state_dict(other, fresh)}
    dcp.load(target, checkpoint_id=folder)
    other.load_state_dict(target["model"])
    set_optimizer_state_dict(other, fresh, target["optim"])
    assert train(other, fresh, 3, 5, True) == expected
    assert all(torch.equal(a, b) for a, b in zip(whole(model), whole(other)))


def test_flattened(name):
    """With flatten_optimizer_state_dict, as torchtitan has it."""
    mesh, options = init_device_mesh("cpu", (2,)), StateDictOptions(flatten_optimizer_state_dict=True)
    make = getattr(spillway, name)
    model, other = sharded(mesh), sharded(mesh)
    optimizer, fresh = (make(one.parameters(), lr=1e-2) for one in (model, other))
    train(model, optimizer, 3, 0, True)
    optimizer.zero_grad()
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    other.load_state_dict(model.state_dict())
    get_optimizer_state_dict(other, fresh, options=options)  # makes room, as dcp.load wants it
    set_optimizer_state_dict(other, fresh, saved, options=options)
    assert train(model, optimizer, 2, 5, True) == train(other, fresh, 2, 5, True)


def main():
    dist.init_process_group("gloo")
    what, name, folder = sys.argv[1:]
    arguments = [name] if what != "checkpoint" else [name, folder]
    globals()["test_" + what](*arguments)
    dist.barrier()
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print("both processes passed")


main()
