"""DDP, FSDP2 and torch.distributed.checkpoint over the optimizers: two processes on this machine."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="NO torch, DDP and FSDP2 are not tested")

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "two_processes.py")


@pytest.mark.parametrize("name", ["PagedAdamW32bit", "PagedAdamW8bit"])
@pytest.mark.parametrize("what", ["ddp", "fsdp2", "bits_follow_the_whole_size", "checkpoint",
                                  "flattened"])
def test_two_processes(what, name, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         SCRIPT, what, name, str(tmp_path / "checkpoint")],
        capture_output=True, text=True, timeout=300, env=environment)
    assert "both processes passed" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
