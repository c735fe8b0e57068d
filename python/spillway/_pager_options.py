"""What an optimizer's keyword arguments mean as fields of spw_pager_config."""
import itertools
import numbers
import os
import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]iB|B|)\s*")
_WAYS = ("auto", "copy", "mapped", "unified", "off")
# The options that mean nothing with a way to move, and why.
_IDLE = {
    "off": (("state_mem", "occupancy", "store", "host_mem", "pinned_mem"),
            "all state stays on the device: use a Paged class, is_paged=True or paging=\"copy\""),
    "mapped": (("state_mem", "occupancy"), "no state stays on the device: use paging=\"copy\""),
    "unified": (("state_mem", "occupancy"), "what stays on the device is the driver's to say: use "
                "paging=\"copy\""),
}
_files = itertools.count()


def size(value, name):
    """Bytes: a whole number, or text such as "512MiB" or "1.5GiB"."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 0:
        return int(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise ValueError(f"{name}={value!r}: a number of bytes, or a size such as \"512MiB\" or "
                         "\"2GiB\"")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def _cap(value):
    """state_mem: bytes, a size, or a share of the state such as "25%"."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            percent = float(value.strip()[:-1])
        except ValueError:
            percent = -1
        if not 0 <= percent <= 100:
            raise ValueError(f"state_mem={value!r}: a percentage from 0% to 100%")
        return {"state_percent": percent}
    return {"state_mem": size(value, "state_mem")}


def _scratch(store):
    """A file store's path must not exist yet: each pager of each process gets its own name."""
    if store == "ram":
        return store
    if not isinstance(store, str) or not store.startswith("file:") or store == "file:":
        raise ValueError(f"store={store!r}: \"ram\", or \"file:PATH\"")
    return f"{store}.{os.getpid()}.{next(_files)}"


def count(value, name):
    """A whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name}={value!r}: a whole number of at least 0 is needed")
    return int(value)


def _share(value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= 1:
        raise ValueError(f"occupancy={value!r}: a number above 0 and at most 1, such as 0.9")
    return float(value)


def check(options):
    """ValueError names the option that is wrong, or that means nothing; otherwise nothing."""
    fields(options)
    names, why = _IDLE.get(options["paging"], ((), ""))
    for name in names:
        if options[name] is not None and options[name] != "ram":
            raise ValueError(f"{name}={options[name]!r} with paging=\"{options['paging']}\": {why}")


def fields(options):
    """The fields for a new pager. An option that is None keeps the library's default."""
    given = {name: value for name, value in options.items() if value is not None}
    result = {"paging": given.get("paging", "auto")}
    if result["paging"] not in _WAYS:
        raise ValueError(f"paging={result['paging']!r}: one of {', '.join(_WAYS)}")
    if "state_mem" in given:
        result.update(_cap(given["state_mem"]))
    if "occupancy" in given:
        result["occupancy"] = _share(given["occupancy"])
    if "store" in given:
        result["store"] = _scratch(given["store"])
    for name, field in (("page_size", "page_bytes"), ("host_mem", "host_mem"),
                        ("pinned_mem", "pinned_mem")):
        if name in given:
            result[field] = size(given[name], name)
    page = result.get("page_bytes", 1 << 16)
    if page & (page - 1) or not 1 << 16 <= page <= 1 << 24:
        raise ValueError(f"page_size={given['page_size']!r}: a power of two from 64KiB to 16MiB")
    return result
