"""`spillway bench step --json`: what it must show on the cpu device, for every state, store and budget."""
import json

import pytest

KEYS = {"device", "optim", "state", "paging", "params", "state_bytes", "page_bytes", "ring_bytes",
        "budget_bytes", "resident_bytes", "steps", "ms_median", "ms_min", "ms_max", "bytes_in",
        "bytes_out", "bytes_cleaned", "bound_bytes", "link_in_gbs", "link_out_gbs", "probe_gbs",
        "identical"}


def bench(spillway, *options):
    done = spillway("bench", "step", "--device", "cpu", "--json", "--steps", "3", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@pytest.mark.parametrize("percent", [0, 25, 50, 100])
@pytest.mark.parametrize("store", ["ram", "file"])
@pytest.mark.parametrize("state", ["32bit", "8bit"])
def test_moves_only_what_does_not_fit(spillway, tmp_path, state, store, percent):
    where = "ram" if store == "ram" else f"file:{tmp_path}/store"
    r = bench(spillway, "--paging", "copy", "--params", "3M", "--state", state, "--store", where,
              "--state-mem", f"{percent}%")
    assert KEYS <= set(r)
    assert r["identical"] is True
    assert abs(r["bytes_in"] + r["bytes_out"] - r["bound_bytes"]) <= 0.02 * r["bound_bytes"]
    budget = r["state_bytes"] * percent / 100
    assert abs(r["resident_bytes"] - budget) <= 2 * r["page_bytes"]
    assert r["page_bytes"] <= max(r["state_bytes"] / 64, 64 << 10)


@pytest.mark.parametrize("state", ["32bit", "8bit"])
@pytest.mark.parametrize("rule, moments", [("adam", 2), ("lion", 1), ("ademamix", 3)])
def test_every_rule_pages_the_moments_that_it_keeps(spillway, rule, moments, state):
    r = bench(spillway, "--paging", "copy", "--params", "3M", "--state", state, "--optim", rule,
              "--state-mem", "25%")
    assert r["optim"] == rule and r["identical"] is True
    needed = 3e6 * moments * (4 if state == "32bit" else 1 + 4 / 256)
    assert needed <= r["state_bytes"] <= 1.2 * needed
    assert abs(r["bytes_in"] + r["bytes_out"] - r["bound_bytes"]) <= 0.02 * r["bound_bytes"]


@pytest.mark.parametrize("threads", ["1", "2", "8"])
def test_has_the_bits_of_an_unpaged_run_at_any_thread_count(spillway, threads):
    r = bench(spillway, "--paging", "copy", "--params", "300K", "--state-mem", "25%", "--threads",
              threads)
    assert r["identical"] is True
