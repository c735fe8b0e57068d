"""Python runs this at its start in every process below spillway-run, by PYTHONPATH.

It runs the sitecustomize that it hides, then lets Spillway wait for transformers. It must not break
any interpreter: one without torch, one without Spillway, one of another version.
"""
import os
import sys


def _load(name, spec):
    import importlib.util
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _chain(here):
    from importlib.machinery import PathFinder
    # Two installations of Spillway, one spillway-run within the other, must not chain in a circle.
    ours = sys.__dict__.setdefault("_spillway_sites", set())
    ours.add(here)
    path = [folder for folder in sys.path if os.path.abspath(folder) not in ours]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        _load("sitecustomize", spec)


def _patch(here):
    import importlib.util
    try:
        if importlib.util.find_spec("spillway") is None:
            # spillway-run is installed elsewhere, as with pipx. It needs nothing that lies beside
            # it, so it is loaded alone: its neighbours stay out of this interpreter.
            folder = os.path.dirname(here)
            _load("spillway", importlib.util.spec_from_file_location(
                "spillway", os.path.join(folder, "__init__.py"),
                submodule_search_locations=[folder]))
        import spillway.trainers
        spillway.trainers.patch()
    except Exception as error:
        sys.modules.pop("spillway", None)
        sys.stderr.write("spillway-run: %s: not patched: %s\n" % (sys.executable, error))


_here = os.path.dirname(os.path.abspath(__file__))
try:
    _chain(_here)
finally:
    _patch(_here)
