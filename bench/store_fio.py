"""The file store beside fio, in turns, on one folder: reads, writes, and both at once.

Usage: bench/store_fio.sh [--folder DIR] [--size 1024] [--repeats 5] (size in MiB)
Appends to bench/results/store.csv. Both sides use direct I/O, the same block size and the same
number of transfers in flight over a file that one untimed pass wrote just before; io_uring on both sides,
and threads (SPW_IO=threads) beside fio's psync with as many jobs. Goal G9: 0.90 of fio.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

import rows

MIB = 1 << 20
FIO_RW = {"read": "read", "write": "write", "mixed": "rw"}


def ours(args, folder, engine, block, depth, kind):
    environment = dict(os.environ, SPW_IO="threads" if engine == "threads" else "uring")
    command = [args.rate, f"{folder}/store", str(block), str(args.size * MIB // block), str(depth),
               kind]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    return result["gbs"], result["direct_io"]


def fio_command(args, path, engine, block, depth, kind):
    command = ["fio", "--name=peer", f"--filename={path}", f"--bs={block}", "--direct=1",
               f"--rw={FIO_RW[kind]}", "--output-format=json", "--group_reporting", "--thread"]
    if engine == "uring":
        return [*command, "--ioengine=io_uring", f"--iodepth={depth}", f"--size={args.size}M"]
    part = args.size // depth
    return [*command, "--ioengine=psync", f"--numjobs={depth}", f"--size={part}M",
            f"--offset_increment={part}M"]


def fio(args, path, engine, block, depth, kind):
    """A new file and one untimed pass of writes first, as store_rate does: where the disk is a
    virtual one, blocks that were written several times are read faster than new ones."""
    if os.path.exists(path):
        os.unlink(path)
    subprocess.run(fio_command(args, path, engine, block, depth, "write"), check=True,
                   capture_output=True)
    done = subprocess.run(fio_command(args, path, engine, block, depth, kind), check=True,
                          capture_output=True, text=True)
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
    return moved / (max(job["read"]["runtime"], job["write"]["runtime"]) * 1e6)


def compare(args, folder, engine, block, depth, kind):
    path = f"{folder}/fio"
    mine, peer, direct = [], [], 0
    for turn in range(2 * args.repeats):
        if turn % 4 in (0, 3):  # ours, fio, fio, ours: neither always follows the other
            gbs, direct = ours(args, folder, engine, block, depth, kind)
            mine.append(gbs)
        else:
            peer.append(fio(args, path, engine, block, depth, kind))
    spread = lambda values: f"{min(values):.3g} to {max(values):.3g}"
    name = {"uring": "fio io_uring", "threads": "fio psync"}[engine]
    return rows.row("store", f"file {engine} {kind} block {block // 1024} KiB depth {depth} "
                    f"size {args.size} MiB", statistics.median(mine), "GB/s", peer_name=name,
                    peer=statistics.median(peer), goal="G9>=0.90",
                    note=f"medians of {args.repeats} in turns; ours {spread(mine)}, "
                         f"fio {spread(peer)}; direct_io {direct}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", required=True)
    parser.add_argument("--folder", default=rows.ROOT)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows.append("store.csv", [
            compare(args, folder, engine, block, 4, kind)
            for engine, block in (("uring", MIB), ("uring", 4 * MIB), ("threads", 4 * MIB))
            for kind in ("write", "read", "mixed")
        ])


if __name__ == "__main__":
    main()
