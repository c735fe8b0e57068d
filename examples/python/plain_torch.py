"""A training loop of your own: one line differs from torch.optim.AdamW.

    python examples/python/plain_torch.py

The state rests in RAM; a quarter of it may stay on the device between steps. On a GPU the same
lines page between the GPU and RAM.
"""
import spillway
import torch


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(torch.nn.Embedding(512, 256), torch.nn.Flatten(),
                                torch.nn.Linear(4 * 256, 1024), torch.nn.GELU(),
                                torch.nn.Linear(1024, 512)).to(device)
    # Rows that a batch does not use have a gradient of zero: 32-bit state bears that better.
    spillway.keep_32bit(model[0])
    optimizer = spillway.PagedAdamW8bit(model.parameters(), lr=3e-3, weight_decay=0.01,
                                        state_mem="25%", max_norm=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=40)
    words = torch.arange(4, device=device)
    for step in range(40):
        start = torch.randint(0, 500, (64, 1), device=device)
        loss = torch.nn.functional.cross_entropy(model(start + words), start[:, 0] + 4)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 13 == 0:
            print(f"step {step:2}  loss {loss.item():.4f}")
    print(spillway.memory_summary())


if __name__ == "__main__":
    main()
