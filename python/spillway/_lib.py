"""The library, its structs, and three classes over its three nouns."""
import ctypes as c
import os

PAGING = {"auto": 0, "copy": 1, "mapped": 2, "unified": 3, "off": 4}
STATE = {"32bit": 0, "8bit": 1}
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
PARTS = {"m": 0, "v": 1, "absmax_m": 2, "absmax_v": 3}


class Error(RuntimeError):
    """What the library said; `code` is its SPW_E... number."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def _struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


_u32, _u64, _f64, _ptr, _i32 = c.c_uint32, c.c_uint64, c.c_double, c.c_void_p, c.c_int32
_DeviceConfig = _struct("_DeviceConfig", ("size", _u32), ("threads", _u32), ("mem", _u64))
_PagerConfig = _struct(
    "_PagerConfig", ("size", _u32), ("paging", c.c_int), ("store", c.c_char_p), ("state_mem", _u64),
    ("state_percent", _f64), ("occupancy", _f64), ("page_bytes", _u64), ("host_mem", _u64),
    ("ring_frames", _u32), ("io_depth", _u32), ("pinned_mem", _u64))
_Group = _struct("_Group", ("size", _u32), ("pad", _u32), ("lr_scale", _f64), ("beta1", _f64),
                 ("beta2", _f64), ("eps", _f64), ("weight_decay", _f64))
_OptimConfig = _struct("_OptimConfig", ("size", _u32), ("state", c.c_int),
                       ("min_8bit_elements", _u64), ("group", _Group))
_Param = _struct("_Param", ("name", c.c_char_p), ("data", _ptr), ("grad", _ptr), ("n", _u64),
                 ("type", c.c_int), ("grad_type", c.c_int), ("group", _u32), ("bits", _u32))
_Step = _struct("_Step", ("lr", _f64), ("max_norm", _f64), ("grad_scale", _f64), ("stream", _ptr),
                ("loss_scale", _ptr), ("found_inf", _ptr))
_Info = _struct("_Info", ("n_params", _u64), ("n_elements", _u64), ("steps", _u64),
                ("skipped", _u64), ("grad_norm", _f64))
_PagerStats = _struct(
    "_PagerStats", *[(name, _u64) for name in (
        "state_bytes", "page_bytes", "n_pages", "ring_bytes", "budget_bytes", "resident_bytes",
        "bytes_in", "bytes_out", "bytes_cleaned", "reclaims", "bytes_reclaimed", "host_bytes",
        "pinned_bytes", "steps")], ("paging", c.c_int), ("direct_io", _i32))


def _find(name, override):
    """Where a library lies: as the environment says, in the package (a wheel), or in build/ beside
    the sources. None if nowhere."""
    here = os.path.dirname(os.path.abspath(__file__))
    build = os.path.join(os.path.dirname(os.path.dirname(here)), "build", "src")
    paths = [os.environ.get(override), os.path.join(here, name), os.path.join(build, name)]
    return next((path for path in paths if path and os.path.exists(path)), None)


def _load():
    # By the name that the hook asks for: another name would load the library a second time.
    path = _find("libspillway.so.0", "SPILLWAY_LIB")
    if not path:
        raise ImportError("libspillway.so.0 is not beside the package: install the wheel, run `make`,"
                          " or let SPILLWAY_LIB name it")
    library = c.CDLL(path)
    library.spw_last_error.restype = c.c_char_p
    library.spw_version.restype = c.c_char_p
    library.spw_code_table.restype = c.POINTER(c.c_float)
    for name in ("spw_optim_add", "spw_optim_part_bytes"):
        getattr(library, name).restype = c.c_int64
    for name in ("spw_device_close", "spw_pager_destroy", "spw_optim_destroy"):
        getattr(library, name).restype = None
        getattr(library, name).argtypes = [_ptr]
    return library


def hook_path():
    """The file libspillway_hook.so, or None where the library was built without CUDA."""
    return _find("libspillway_hook.so", "SPILLWAY_HOOK")


def install_hook():
    """spw_hook_install: the sum of what was reached (see spillway.h); 0 without a hook library."""
    path = hook_path()
    if not path:
        return 0
    return c.CDLL(path).spw_hook_install()


_library = _load()


def _call(name, *arguments):
    result = getattr(_library, name)(*arguments)
    if result is not None and result < 0:
        raise Error(result, _library.spw_last_error().decode())
    return result


def _address(tensor):
    if tensor is None:
        return None
    _type_of(tensor)
    contiguous = tensor.is_contiguous() if hasattr(tensor, "is_contiguous") else \
        tensor.flags.c_contiguous
    if not contiguous:
        raise TypeError("a tensor that is not contiguous")
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.ctypes.data


def _type_of(tensor):
    """The spw_type of an array or tensor; TypeError for a dtype that has none."""
    dtype = str(tensor.dtype).rpartition(".")[2]
    if dtype not in TYPES:
        raise TypeError(f"a tensor of {tensor.dtype}: {', '.join(TYPES)} are known")
    return TYPES[dtype]


def _count(tensor):
    return tensor.numel() if hasattr(tensor, "numel") else tensor.size


class _Handle:
    """Owns one object of the library; close() or the end of `with` destroys it."""

    _destroy = None

    def __init__(self):
        self._handle = _ptr()

    def close(self):
        if self._handle:
            getattr(_library, self._destroy)(self._handle)
            self._handle = _ptr()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


class Device(_Handle):
    """The cpu device: `mem` bytes (0: the machine's), `threads` that compute (0: one a core)."""

    _destroy = "spw_device_close"

    def __init__(self, name="cpu", mem=0, threads=0):
        super().__init__()
        config = _DeviceConfig(c.sizeof(_DeviceConfig), threads, mem)
        _call("spw_device_open", name.encode(), c.byref(config), c.byref(self._handle))


class Pager(_Handle):
    """A pager on a device. Options are the fields of spw_pager_config; paging by its name."""

    _destroy = "spw_pager_destroy"

    def __init__(self, device, paging="auto", **options):
        super().__init__()
        config = _PagerConfig()
        _library.spw_pager_config_default(c.byref(config))
        config.paging = PAGING[paging]
        for name, value in options.items():
            if name not in dict(_PagerConfig._fields_):
                raise TypeError(f"{name} is not a field of spw_pager_config")
            setattr(config, name, value.encode() if isinstance(value, str) else value)
        _call("spw_pager_create", device._handle, c.byref(config), c.byref(self._handle))

    def malloc(self, size):
        """Device memory as an address; free() it."""
        pointer = _ptr()
        _call("spw_malloc", self._handle, _u64(size), c.byref(pointer))
        return pointer.value

    def free(self, address):
        _library.spw_free(self._handle, _ptr(address))

    def reclaim(self, size):
        """Gives at least so much resident state back, if there is; the bytes that were given."""
        freed = _u64()
        _call("spw_pager_reclaim", self._handle, _u64(size), c.byref(freed))
        return freed.value

    def reserve(self, size):
        """Keeps so many bytes beyond what is in use free for others; 0 takes the word back."""
        _call("spw_pager_reserve", self._handle, _u64(size))

    def stats(self):
        """The fields of spw_pager_stats as a dict."""
        stats = _PagerStats()
        _call("spw_pager_stats_get", self._handle, c.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_}


class Optim(_Handle):
    """AdamW whose state lives in a pager. Group options are the fields of spw_group."""

    _destroy = "spw_optim_destroy"

    def __init__(self, pager, state="8bit", min_8bit_elements=4096, **group):
        super().__init__()
        config = _OptimConfig()
        _library.spw_optim_config_default(c.byref(config))
        config.state = STATE[state]
        config.min_8bit_elements = min_8bit_elements
        _fill_group(config.group, group)
        _call("spw_optim_create", pager._handle, c.byref(config), c.byref(self._handle))

    def add_group(self, **options):
        return _call("spw_optim_add_group", self._handle, c.byref(_new_group(options)))

    def set_group(self, index, **options):
        _call("spw_optim_set_group", self._handle, _u32(index), c.byref(_new_group(options)))

    def set_param_group(self, index, group):
        """Puts a parameter into another group; its state stays."""
        _call("spw_optim_set_param_group", self._handle, _u64(index), _u32(group))

    def add(self, data, grad=None, name="", group=0, bits=0):
        """Registers a tensor; returns its index. `bits` of its state: 8, 32, or 0 by its size."""
        if grad is not None and _count(grad) != _count(data):
            raise TypeError(f"a gradient of {_count(grad)} elements for a tensor of {_count(data)}")
        param = _Param(name.encode(), _address(data), _address(grad), _count(data), _type_of(data),
                       _type_of(data if grad is None else grad), group, bits)
        return _call("spw_optim_add", self._handle, c.byref(param))

    def set_pointers(self, index, data, grad):
        _call("spw_optim_set_pointers", self._handle, _u64(index), _ptr(_address(data)),
              _ptr(_address(grad)))

    def add_at(self, address, n, dtype, group=0, bits=0, name=""):
        """Registers n elements of an spw_type at an address, without a gradient yet."""
        param = _Param(name.encode(), address or None, None, n, dtype, dtype, group, bits)
        return _call("spw_optim_add", self._handle, c.byref(param))

    def set_place_words(self, words):
        """All tensors at once: of each three integers, as spw_place lies in memory: its address,
        its gradient's, 0 for none, and the gradient's type."""
        array = (_u64 * len(words))(*words)
        _call("spw_optim_set_places", self._handle, array, _u64(len(words) // 3))

    def step(self, lr, max_norm=0.0, grad_scale=1.0, stream=None, loss_scale=None, found_inf=None):
        """One step; the last three are addresses: a CUstream, and two floats on the device."""
        step = _Step(lr, max_norm, grad_scale, stream, loss_scale, found_inf)
        _call("spw_optim_step", self._handle, c.byref(step))

    def save(self, path):
        """The whole state to a checkpoint, under a temporary name until it is whole."""
        _call("spw_optim_save", self._handle, os.fsencode(path))

    def load(self, path):
        """The whole state from a checkpoint; all of it is checked before anything is changed."""
        _call("spw_optim_load", self._handle, os.fsencode(path))

    def grad_norm(self):
        norm = _f64()
        _call("spw_optim_grad_norm", self._handle, c.byref(norm))
        return norm.value

    def info(self):
        info = _Info()
        _call("spw_optim_info_get", self._handle, c.byref(info))
        return {name: getattr(info, name) for name, _ in info._fields_}

    def part_bytes(self, index, part):
        """The size of a part of the state ("m", "v", "absmax_m", "absmax_v"); 0: it has none."""
        return _call("spw_optim_part_bytes", self._handle, _u64(index), PARTS[part])

    def read_part(self, index, part, address, size):
        """Copies a part to host memory."""
        _call("spw_optim_get_part", self._handle, _u64(index), PARTS[part], _ptr(address),
              _u64(size))

    def write_part(self, index, part, address, size):
        """Copies a part from host memory."""
        _call("spw_optim_set_part", self._handle, _u64(index), PARTS[part], _ptr(address),
              _u64(size))

    def get_part(self, index, part):
        """A part as bytes."""
        size = self.part_bytes(index, part)
        buffer = c.create_string_buffer(max(size, 1))
        self.read_part(index, part, c.addressof(buffer), size)
        return buffer.raw[:size]

    def set_part(self, index, part, data):
        _call("spw_optim_set_part", self._handle, _u64(index), PARTS[part], bytes(data),
              _u64(len(data)))

    def get_step(self, index):
        step = _u64()
        _call("spw_optim_get_step", self._handle, _u64(index), c.byref(step))
        return step.value

    def set_step(self, index, step):
        _call("spw_optim_set_step", self._handle, _u64(index), _u64(step))


def _new_group(options):
    group = _Group()
    _library.spw_group_default(c.byref(group))
    return _fill_group(group, options)


def _fill_group(group, options):
    for name, value in options.items():
        if name not in dict(_Group._fields_):
            raise TypeError(f"{name} is not a field of spw_group")
        setattr(group, name, value)
    return group


def version():
    """The library's version."""
    return _library.spw_version().decode()


def code_table(is_signed):
    """The 256 values of an 8-bit code, ascending, as a list of floats."""
    return list(_library.spw_code_table(int(is_signed))[:256])
