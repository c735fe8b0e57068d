"""Fixtures of the Python tests: where things were built, and models to work on."""
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks a hub for anything
sys.path.insert(0, os.path.join(ROOT, "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(scope="session")
def build_dir():
    folder = os.environ.get("SPW_BUILD", os.path.join(ROOT, "build"))
    if not os.path.exists(os.path.join(folder, "spillway")):
        pytest.exit(f"{folder} holds no build: run make first", returncode=1)
    return folder


@pytest.fixture(scope="session")
def tools_dir(build_dir):
    return os.path.join(build_dir, "tests", "tools")


@pytest.fixture(scope="session")
def spillway(build_dir):
    """Runs the command; returns the finished process with its text."""

    def run(*arguments, **options):
        return subprocess.run([os.path.join(build_dir, "spillway"), *map(str, arguments)],
                              capture_output=True, text=True, timeout=600, **options)

    return run


@pytest.fixture(scope="session")
def smollm2_dir(build_dir):
    """SmolLM2-135M-Instruct as a Hugging Face directory, made once a build folder."""
    folder = os.environ.get("SPW_SMOLLM2", os.path.join(build_dir, "smollm2"))
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "smollm2.py"), folder],
                              capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"NO SmolLM2, its tests are not run: {done.stderr.strip()[-300:]}")
    return folder
