"""Read and verify checkpoints of large language models, whatever layout they have.

    import shardkit

    with shardkit.open("global_step20") as ck:
        for name, array in ck.items():              # parameters, as NumPy arrays
            print(name, array.shape)
        weight = ck.tensor("lm_head.weight")        # a torch tensor
        moment = ck["lm_head.weight:exp_avg"]
    print(shardkit.verify("global_step20").sound)

A thin binding of libshardkit.so (shardkit.h) by ctypes; it needs no other package. With NumPy, tensors are arrays;
without it they are memoryviews of bytes. torch is needed for `Checkpoint.tensor` alone.
"""
from __future__ import annotations

import ctypes
import mmap
import operator
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

__all__ = ["open", "verify", "version", "Checkpoint", "TensorInfo", "Finding", "Verification", "Error", "NotFound"]


class Error(Exception):
    """A failure. Its text is the library's sentence; `code` is "system", "data", "usage" or "stopped"."""

    def __init__(self, text: str, code: str = "data", errno: int = 0):
        super().__init__(text)
        self.code = code
        self.errno = errno

    def __str__(self) -> str:
        return str(self.args[0])


class NotFound(Error, KeyError):
    """A checkpoint has no such tensor."""


# ---- the library ----

_ABI = 1


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("system", ctypes.c_int), ("text", ctypes.c_char * 1024)]


class _Finding(ctypes.Structure):
    _fields_ = [("severity", ctypes.c_int), ("code", ctypes.c_char_p), ("text", ctypes.c_char_p),
                ("file", ctypes.c_char_p), ("at", ctypes.c_uint64), ("parameter", ctypes.c_char_p)]


class _OpenOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("damaged", ctypes.c_int),
                ("replicas", ctypes.c_int), ("threads", ctypes.c_int)]


class _Info(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("layout", ctypes.c_char_p), ("iteration", ctypes.c_int64)]


class _Tensor(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("name", ctypes.c_char_p), ("state", ctypes.c_char_p),
                ("dtype", ctypes.c_char_p), ("item_size", ctypes.c_int), ("ndim", ctypes.c_int),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("elements", ctypes.c_int64), ("bytes", ctypes.c_uint64)]


class _Place(ctypes.Structure):
    _fields_ = [("path", ctypes.c_char_p), ("at", ctypes.c_uint64)]


class _VerifyOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("certificate", ctypes.c_char_p),
                ("strict", ctypes.c_int), ("allow_drift", ctypes.c_int), ("lenient", ctypes.c_int),
                ("threads", ctypes.c_int), ("memory", ctypes.c_uint64), ("stop", ctypes.POINTER(ctypes.c_int))]


class _Verification(ctypes.Structure):
    _fields_ = [("sound", ctypes.c_int), ("errors", ctypes.c_int), ("warnings", ctypes.c_int), ("n", ctypes.c_int),
                ("finding", ctypes.POINTER(_Finding)), ("layout", ctypes.c_char_p), ("files", ctypes.c_int),
                ("bytes", ctypes.c_uint64)]


_FUNCTIONS = {
    "sk_abi": (ctypes.c_int, []),
    "sk_version": (ctypes.c_char_p, []),
    "sk_open": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.POINTER(_OpenOptions), ctypes.POINTER(_Error)]),
    "sk_close": (None, [ctypes.c_void_p]),
    "sk_info": (ctypes.POINTER(_Info), [ctypes.c_void_p]),
    "sk_findings": (ctypes.POINTER(_Finding), [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]),
    "sk_count": (ctypes.c_int64, [ctypes.c_void_p]),
    "sk_tensor": (ctypes.POINTER(_Tensor), [ctypes.c_void_p, ctypes.c_int64]),
    "sk_find": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Error)]),
    "sk_read": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
                               ctypes.c_size_t, ctypes.POINTER(_Error)]),
    "sk_locate": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Place)]),
    "sk_place_descriptor": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Error)]),
    "sk_verify": (ctypes.POINTER(_Verification), [ctypes.c_char_p, ctypes.POINTER(_VerifyOptions),
                                                  ctypes.POINTER(_Error)]),
    "sk_verification_free": (None, [ctypes.POINTER(_Verification)]),
}
_library: Optional[ctypes.CDLL] = None
_library_lock = threading.Lock()


def _candidates() -> list[str]:
    """Where the library may be: $SHARDKIT_LIBRARY alone if it is set, else next to this file, in a source tree where
    `make lib` ran, or where the system finds it."""
    here = os.path.dirname(os.path.abspath(__file__))
    name = f"libshardkit.so.{_ABI}"
    if os.environ.get("SHARDKIT_LIBRARY"):
        return [os.environ["SHARDKIT_LIBRARY"]]
    build = os.path.join(os.path.dirname(os.path.dirname(here)), "build", "release", name)
    return [path for path in (os.path.join(here, name), build) if os.path.exists(path)] + [name]


def _lib() -> ctypes.CDLL:
    """The library, which is loaded when it is first needed."""
    global _library
    with _library_lock:
        if _library is None:
            path = _candidates()[0]
            try:
                lib = ctypes.CDLL(path)
                for name, (result, arguments) in _FUNCTIONS.items():
                    function = getattr(lib, name)
                    function.restype, function.argtypes = result, arguments
            except (OSError, AttributeError) as e:
                raise ImportError(f"{path}: cannot be loaded as libshardkit ({e}); install it, run `make lib`, or set "
                                  "SHARDKIT_LIBRARY to its path") from e
            if lib.sk_abi() != _ABI:
                raise ImportError(f"{path}: has ABI {lib.sk_abi()}, expected {_ABI}; install the Python module and "
                                  "libshardkit of one release")
            _library = lib
    return _library


def _text(b: Optional[bytes]) -> Optional[str]:
    return None if b is None else os.fsdecode(b)


def _bytes(text: str | os.PathLike | None) -> Optional[bytes]:
    """A string for the library. Raises Error for one that it cannot receive."""
    if text is None:
        return None
    try:
        b = os.fsencode(text)
    except UnicodeEncodeError as e:
        raise Error(f"{text!r} cannot be encoded: {e.reason}", "usage") from e
    if b"\0" in b:
        raise Error(f"{text!r} contains a NUL character", "usage")
    return b


def _threads(n: int) -> int:
    """The number as the library checks it; C's int would drop the high bits of a large one."""
    return max(-1, min(operator.index(n), 1025))


def _failure(e: _Error, kind: type = Error) -> Error:
    return kind(_text(e.text), {1: "system", 2: "data", 3: "usage", 4: "stopped"}.get(e.code, "data"), e.system)


def version() -> str:
    """The release of the library, "0.1.0"."""
    return _text(_lib().sk_version())


# ---- findings and verify ----

class Finding(NamedTuple):
    """What the library reports about the files."""

    severity: str
    """"error", "warning" or "note"."""
    code: str
    """A word that stays, "crc" or "missing_file"."""
    text: str
    """The whole sentence, as ckpt-inspect prints it."""
    file: Optional[str]
    at: Optional[int]
    """Offset in the file."""
    parameter: Optional[str]


def _findings(pointer: Any, n: int) -> list[Finding]:
    return [Finding(("note", "warning", "error")[f.severity], _text(f.code), _text(f.text), _text(f.file),
                    None if f.at == 2**64 - 1 else f.at, _text(f.parameter)) for f in pointer[:n]]


@dataclass(frozen=True)
class Verification:
    """The result of `verify`. True in a condition if the checkpoint is sound."""

    sound: bool
    findings: list[Finding]
    layout: Optional[str]
    files: int
    nbytes: int

    def __bool__(self) -> bool:
        return self.sound

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        return [f for f in self.findings if f.severity == "warning"]


def verify(path: str | os.PathLike, *, strict: bool = False, allow_drift: bool = False, lenient: bool = False,
           model: Optional[str] = None, certificate: str | os.PathLike | None = None, threads: int = 0) -> Verification:
    """Read every byte of a checkpoint and check that it is complete, undamaged and plausible.

    The verdict and the findings are those of `ckpt-inspect verify`; the options are its options. Damage is a finding.
    Raises Error if the path cannot be read at all. Ctrl-C ends it.
    """
    lib, e, stop = _lib(), _Error(), ctypes.c_int(0)
    o = _VerifyOptions(ctypes.sizeof(_VerifyOptions), _bytes(model),
                       _bytes(certificate), bool(strict), bool(allow_drift), bool(lenient), _threads(threads), 0,
                       ctypes.pointer(stop))
    result: list[Any] = []
    name = _bytes(path)
    worker = threading.Thread(target=lambda: result.append(lib.sk_verify(name, ctypes.byref(o), ctypes.byref(e))))
    worker.start()
    try:
        while worker.is_alive():        # a join without a limit cannot be interrupted on every system
            worker.join(0.2)
    except BaseException:
        stop.value = 1
        worker.join()
        if result and result[0]:
            lib.sk_verification_free(result[0])
        raise
    if not result or not result[0]:
        raise _failure(e)
    try:
        v = result[0].contents
        return Verification(bool(v.sound), _findings(v.finding, v.n), _text(v.layout), v.files, v.bytes)
    finally:
        lib.sk_verification_free(result[0])


# ---- types of elements ----

# Name in the files: the type in NumPy, the one in ml_dtypes that is used instead if that is installed, and the type in
# torch. Types that neither has are unsigned integers of the same size, with a last dimension for several per element.
_DTYPES = {
    "f64": ("<f8", None, "float64"), "f32": ("<f4", None, "float32"), "f16": ("<f2", None, "float16"),
    "bf16": ("<u2", "bfloat16", "bfloat16"), "i64": ("<i8", None, "int64"), "i32": ("<i4", None, "int32"),
    "i16": ("<i2", None, "int16"), "i8": ("|i1", None, "int8"), "u8": ("|u1", None, "uint8"),
    "bool": ("|b1", None, "bool"), "c64": ("<c8", None, "complex64"), "c128": ("<c16", None, "complex128"),
    "u16": ("<u2", None, "uint16"), "u32": ("<u4", None, "uint32"), "u64": ("<u8", None, "uint64"),
    "f8_e4m3": ("|u1", "float8_e4m3fn", "float8_e4m3fn"), "f8_e5m2": ("|u1", "float8_e5m2", "float8_e5m2"),
    "f8_e4m3fnuz": ("|u1", "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "f8_e5m2fnuz": ("|u1", "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "f8_e8m0": ("|u1", "float8_e8m0fnu", "float8_e8m0fnu"),
}


def _optional(module: str) -> Any:
    try:
        return __import__(module)
    except ImportError:
        return None


def _module(name: str, needed_for: str) -> Any:
    found = _optional(name)
    if found is None:
        raise ImportError(f"{needed_for} needs {name}, which is not installed")
    return found


# ---- a checkpoint ----

@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint, without its elements."""

    name: str
    """For a parameter, all states have the same name."""
    state: Optional[str]
    """Of a parameter: "bf16" (the weights, whatever their type), "fp32" (the masters), "exp_avg" or "exp_avg_sq"."""
    kind: str
    """"parameter", "buffer", "other" (a counter, a random state), or "stack" (rows are listed as parameters)."""
    dtype: str
    """As in safetensors: "f32", "bf16", "i64", "f8_e4m3"."""
    shape: tuple[int, ...]
    nbytes: int
    index: int
    """The tensor's number in the library."""


class Checkpoint(Mapping):
    """An open checkpoint: a mapping from names of parameters to NumPy arrays.

    Iteration yields the names of the parameters in the model's order. A key may be any name that `ckpt-inspect cat`
    accepts: that of a parameter, "NAME:STATE", the name of another tensor, or a name in the files. Without a state, it
    is the parameter's master, or if there is none, its first state.

    Arrays are read-only. If the bytes of a tensor lie whole in one file, its array maps that file, and nothing is
    read before it is used; mapped bytes are not compared with checksums (`verify` does that). Other tensors, such as
    those that ranks share, are put together by the library, which compares checksums. Arrays stay valid after close.
    """

    _handle: Optional[int] = None

    def __init__(self, path: str | os.PathLike, *, model: Optional[str] = None, damaged: bool = False,
                 replicas: str = "average", threads: int = 0):
        lib, e = _lib(), _Error()
        words = ("average", "first", "majority", "fail")
        if replicas not in words:
            raise Error(f"replicas is {replicas!r}, expected one of {', '.join(words)}", "usage")
        o = _OpenOptions(ctypes.sizeof(_OpenOptions), _bytes(model), bool(damaged), words.index(replicas),
                         _threads(threads))
        self._handle = lib.sk_open(_bytes(path), ctypes.byref(o), ctypes.byref(e))
        if not self._handle:
            raise _failure(e)
        self._maps: dict[str, Any] = {}
        info = lib.sk_info(self._handle).contents
        self.path: str = _text(info.path)
        """The folder or file that was opened, `latest` resolved."""
        self.layout: str = _text(info.layout)
        """"deepspeed", "zero", "dcp", "hf", ...; "file" for a single .pt or .h5 file."""
        self.iteration: Optional[int] = None if info.iteration < 0 else info.iteration
        n = ctypes.c_int()
        self.findings: list[Finding] = _findings(lib.sk_findings(self._handle, ctypes.byref(n)), n.value)
        """What was reported while the checkpoint was opened."""
        self.tensors: list[TensorInfo] = [self._info(i) for i in range(lib.sk_count(self._handle))]
        """Every tensor, also those that are not parameters."""
        self._states: dict[str, dict[str, int]] = {}
        for t in self.tensors:
            if t.kind == "parameter":
                self._states.setdefault(t.name, {}).setdefault(t.state, t.index)

    # -- life --

    def close(self) -> None:
        """Close the files. Arrays and tensors that were returned stay valid."""
        handle, self._handle = self._handle, None
        if handle:
            _lib().sk_close(handle)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        return f"<shardkit.Checkpoint {self.path!r}: {self.layout}, {len(self)} parameters>"

    def _open_handle(self) -> int:
        if not self._handle:
            raise Error(f"{self.path}: the checkpoint is closed", "usage")
        return self._handle

    # -- names --

    def _info(self, i: int) -> TensorInfo:
        t = _lib().sk_tensor(self._handle, i).contents
        return TensorInfo(_text(t.name), _text(t.state), ("parameter", "buffer", "other", "stack")[t.kind],
                          _text(t.dtype), tuple(t.shape[:t.ndim]), t.bytes, i)

    def info(self, name: str, state: Optional[str] = None) -> TensorInfo:
        """The type and shape of a tensor. Raises NotFound, which is a KeyError."""
        if state is not None and state in self._states.get(name, ()):
            return self.tensors[self._states[name][state]]
        try:
            os.fsencode(name)
        except UnicodeEncodeError as e:
            raise NotFound(f"{self.path}: no tensor {name!r}: no file can contain this name") from e
        e = _Error()
        i = _lib().sk_find(self._open_handle(), _bytes(name), _bytes(state), ctypes.byref(e))
        if i < 0:
            raise _failure(e, Error if e.code == 3 else NotFound)
        return self.tensors[i]

    def states(self, name: str) -> list[str]:
        """The states of a parameter that the checkpoint has: "bf16", "fp32", "exp_avg", "exp_avg_sq"."""
        if name not in self._states:
            raise NotFound(f"{self.path}: no parameter '{name}'")
        return [state for state in self._states[name] if state is not None]

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.info(name) is not None
        except Error:
            return False

    # -- elements --

    def read(self, name: str, state: Optional[str] = None, *, first: int = 0, count: Optional[int] = None) -> bytearray:
        """Read the bytes of elements [first, first + count) in row-major order; all by default. Checksums are compared
        if all are read."""
        t = self.info(name, state)
        return self._read(t, first, count)

    def _read(self, t: TensorInfo, first: int = 0, count: Optional[int] = None) -> bytearray:
        c = _lib().sk_tensor(self._open_handle(), t.index).contents
        first = operator.index(first)
        n, e = c.elements - first if count is None else operator.index(count), _Error()
        if first < 0 or n < 0 or first + n > c.elements:
            raise Error(f"{t.name} has {c.elements} elements; {n} from number {first} are not in it", "usage")
        buf = bytearray(n * c.item_size)
        into = (ctypes.c_char * len(buf)).from_buffer(buf) if buf else None
        if _lib().sk_read(self._open_handle(), t.index, first, n, into, len(buf), ctypes.byref(e)) < 0:
            raise _failure(e)
        return buf

    def location(self, name: str, state: Optional[str] = None) -> Optional[tuple[str, int]]:
        """The file and the offset where all bytes of a tensor lie one after the other; None if they do not."""
        return self._location(self.info(name, state))

    def _location(self, t: TensorInfo) -> Optional[tuple[str, int]]:
        place = _Place()
        if not _lib().sk_locate(self._open_handle(), t.index, ctypes.byref(place)):
            return None
        return _text(place.path), place.at

    def _map(self, t: TensorInfo) -> Optional[tuple[str, int, int]]:
        """Where a tensor that lies whole in a file can be mapped: the path, the offset, and a descriptor of the file
        that was opened, which the caller closes. None for any other tensor."""
        place, e = self._location(t), _Error()
        if place is None:
            return None
        fd = _lib().sk_place_descriptor(self._open_handle(), t.index, ctypes.byref(e))
        if fd < 0:
            raise _failure(e)
        return (*place, fd)

    def array(self, name: str, state: Optional[str] = None) -> Any:
        """A tensor as a NumPy array, which is read-only; without NumPy as a memoryview of its bytes.

        bf16 and 8-bit floats have the types of ml_dtypes if that is installed, else they are raw: uint16 and uint8. A
        packed type is uint8, with a last dimension if an element has several bytes.
        """
        return self._array(self.info(name, state))

    def _array(self, t: TensorInfo) -> Any:
        np = _optional("numpy")
        if np is None:
            return memoryview(self._read(t)).toreadonly()
        size = _lib().sk_tensor(self._open_handle(), t.index).contents.item_size
        raw, name, _ = _DTYPES.get(t.dtype, ("|u1", None, None))
        dtype, shape = np.dtype(raw), t.shape
        if dtype.itemsize != size:
            shape = (*shape, size // dtype.itemsize)
        if name and _optional("ml_dtypes"):
            dtype = np.dtype(getattr(_optional("ml_dtypes"), name, dtype))
        place = self._map(t)
        if place:
            path, at, fd = place
            with _open_file(fd, "rb", buffering=0) as f:
                if at % dtype.itemsize == 0:
                    if path not in self._maps:
                        self._maps[path] = np.memmap(f, np.uint8, "r")
                    return self._maps[path][at:at + t.nbytes].view(dtype).reshape(shape)
        array = np.frombuffer(self._read(t), np.uint8).view(dtype).reshape(shape)
        array.flags.writeable = False
        return array

    def __getitem__(self, name: str) -> Any:
        return self.array(name)

    def tensor(self, name: str, state: Optional[str] = None) -> Any:
        """A tensor as a torch tensor of the type that torch has for it, else as uint8 as `array` describes.

        It may be written to. Each call returns a tensor of its own: neither the file nor another tensor changes.
        """
        torch = _module("torch", "Checkpoint.tensor()")
        t = self.info(name, state)
        size = _lib().sk_tensor(self._open_handle(), t.index).contents.item_size
        dtype = getattr(torch, _DTYPES.get(t.dtype, (None, None, "uint8"))[2], torch.uint8)
        width = torch.empty(0, dtype=dtype).element_size()
        shape = t.shape if width == size else (*t.shape, size // width)
        if t.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        source, offset = self._private_map(t, size) or (self._read(t), 0)
        return torch.frombuffer(source, dtype=torch.uint8, count=t.nbytes, offset=offset).view(dtype).reshape(shape)

    def _private_map(self, t: TensorInfo, size: int) -> Optional[tuple[mmap.mmap, int]]:
        """A private writable mapping of the tensor's bytes, and their offset in it. None if the tensor does not lie
        whole in a file at a multiple of `size`, or if the system refuses the mapping."""
        place = self._map(t)
        if place is None:
            return None
        _, at, fd = place
        with _open_file(fd, "rb", buffering=0) as f:
            if at % size:
                return None
            begin = at - at % mmap.ALLOCATIONGRANULARITY
            try:
                return mmap.mmap(f.fileno(), at + t.nbytes - begin, access=mmap.ACCESS_COPY, offset=begin), at - begin
            except OSError:
                return None


_open_file = open


def open(path: str | os.PathLike, *, model: Optional[str] = None, damaged: bool = False, replicas: str = "average",
         threads: int = 0) -> Checkpoint:
    """Open a checkpoint: a folder of any layout, a folder whose file `latest` names one, a tar archive of one, a model
    folder, or a single .pt or .h5 file. Only tables are read.

    model     prefix of the model's names, if the checkpoint holds several models
    damaged   open what is readable; the rest is in `findings`. Otherwise the first error raises Error
    replicas  how copies of tensor ranks that differ become one tensor: average, first, majority or fail
    threads   for opening files; 0: 16
    """
    return Checkpoint(path, model=model, damaged=damaged, replicas=replicas, threads=threads)
