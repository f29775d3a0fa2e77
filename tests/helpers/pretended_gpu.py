"""A pretended GPU: tensors that say `cuda:0`, compute on the CPU, and refuse what CUDA refuses.

Its memory is apart: a tensor of the GPU and one of the CPU do not meet in an operation (a CPU number of no dimension
may), and none turns into NumPy. Every wait of the host for the device is noted with its kind and its line in the
package: reading a number, a mask as an index, an operation whose result has an unknown size, a copy that blocks or
that does not come from pinned memory, and waiting for a stream. Random numbers are the CPU's, so a run must give the
CPU's bits.

What it cannot show: speed, memory, the order of streams, and the rounding of real kernels.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from time import perf_counter
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("cuda", 0)
READS = {"_local_scalar_dense", "item", "equal", "is_nonzero"}
"""Operations that answer with a number on the host."""
UNKNOWN_SIZE = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
"""Operations whose result is as large as the values say."""
CHECKED = {"_linalg_check_errors"}
"""Operations that look at an error code."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
FREE = {
    *(
        "detach",
        "view",
        "_unsafe_view",
        "as_strided",
        "slice",
        "select",
        "permute",
        "transpose",
        "t",
        "expand",
        "alias",
    ),
    *("unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "unfold", "_reshape_alias", "diagonal", "empty"),
    *("empty_strided", "empty_like", "new_empty", "new_empty_strided", "lift_fresh", "_local_scalar_dense"),
}
"""Operations that start no work on the device."""
_DATA = Tensor.data


class GpuTensor(Tensor):
    """A tensor of the pretended GPU. Its values are in `elem`, a tensor of the CPU."""

    elem: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elem.size(), strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype,
            layout=elem.layout, device="cpu", requires_grad=elem.requires_grad,
        )  # fmt: skip
        made.elem = elem
        return made

    @property
    def data(self) -> Tensor:
        return _DATA.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: GpuTensor) -> None:
        _DATA.__set__(self, value)  # type: ignore[attr-defined]
        self.elem = value.elem

    def get_device(self) -> int:
        return 0

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.elem.untyped_storage()

    def tolist(self) -> Any:
        _gpu().wait("tolist")
        return self.elem.tolist()

    def cpu(self, *args: Any) -> Tensor:
        return self.to("cpu")

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype, device=options.pop("device", DEVICE), **options)

    def to(self, *args: Any, **options: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            return self.to(args[0].device, args[0].dtype, *args[1:], **options)
        where = [word for word in (*args, options.pop("device", None)) if isinstance(word, str | torch.device)]
        rest = [word for word in args if not isinstance(word, str | torch.device)]
        if where and torch.device(where[0]).type == "cpu":
            if not options.pop("non_blocking", False):
                _gpu().wait("copy to the host")
            return self.elem.detach().clone().to(*rest, **options)
        options.pop("non_blocking", None)
        return Tensor.to(self, *rest, **options) if rest or options else self

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *args: Any) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"GpuTensor({self.elem})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _gpu().run(func, args, kwargs or {})


class PretendedGpu(TorchDispatchMode):
    """The device. Use it as a context: inside it `Fabric` and `torch.cuda` say that there is one.

    Attributes:
        waits: how often the host has waited, by kind and line.
        kernels: how often each operation was started.
    """

    active: PretendedGpu | None = None

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.kernels: Counter[str] = Counter()
        self.inside_gpu_call = False
        self._stack = ExitStack()

    def __enter__(self) -> PretendedGpu:
        PretendedGpu.active = self
        self._stack.enter_context(_patched(self))
        self._stack.enter_context(_Calls(self))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        PretendedGpu.active = None

    def wait(self, kind: str) -> None:
        """Note that the host waits."""
        self.waits[kind, _line()] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation where its tensors are, or refuse it."""
        leaves = tree_leaves((args, kwargs))
        here = [leaf for leaf in leaves if isinstance(leaf, GpuTensor)]
        there = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor)]
        name = func._schema.name.removeprefix("aten::")
        on_gpu = self._place(name, kwargs.get("device"), args, here, there)
        if not here and not on_gpu:
            return func(*args, **kwargs)
        self._check(name, args, kwargs, on_gpu, here, there)
        if name not in FREE:
            self.kernels[name] += 1
        inner = {
            key: torch.device("cpu") if key == "device" and value is not None else value
            for key, value in kwargs.items()
        }
        out = func(*tree_map(_elem, args), **tree_map(_elem, inner))
        if func._schema.is_mutable:
            return kwargs["out"] if "out" in kwargs else args[0] if func._schema.returns else None
        wrapped = tree_map(lambda leaf: GpuTensor(leaf) if on_gpu and isinstance(leaf, Tensor) else leaf, out)
        if any(returned.alias_info for returned in func._schema.returns):
            return return_and_correct_aliasing(func, args, kwargs, wrapped)
        return wrapped

    def _place(self, name: str, device: Any, args: Any, here: list[Any], there: list[Any]) -> bool:
        """Whether the result is on the GPU."""
        if name == "copy_":
            return isinstance(args[0], GpuTensor)
        if device is not None and not _is_cpu(device):
            return True
        if self.inside_gpu_call:  # C++ makes tensors inside operations on the device that it sees, which is the CPU
            return bool(here) or not there
        return bool(here) and device is None

    def _check(
        self, name: str, args: Any, kwargs: Mapping[str, Any], on_gpu: bool, here: list[Any], there: list[Any]
    ) -> None:
        """Note waits, and refuse to mix devices."""
        if name in ("_to_copy", "copy_"):
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if there or not on_gpu:
                pageable = any(not getattr(tensor, "pretends_to_be_pinned", False) for tensor in there)
                if blocking or pageable:
                    self.wait("copy to the device" if on_gpu else "copy to the host")
            return
        if name in READS | UNKNOWN_SIZE | CHECKED:
            self.wait(name)
        if name in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                fills = name != "index" and len(indices) == 1 and args[2].numel() == 1
                if not fills:  # a mask and one number become a fill
                    self.wait("index with a mask")
            if any(not isinstance(index, GpuTensor) for index in indices):
                self.wait("index from the host")
            there = [tensor for tensor in there if all(tensor is not index for index in indices)]
        if here and any(tensor.dim() for tensor in there):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu in {name}")


class _InThread(TorchDispatchMode):
    """The device in another thread, which inherits no mode."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.run(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """Knows during a call from Python whether one of its tensors is on the GPU."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is Tensor.to and len(args) > 1 and isinstance(args[1], GpuTensor)
        ):  # C++ would copy to the device that it sees
            return args[0].to(DEVICE, args[1].dtype, *args[2:], **(kwargs or {}))
        before, leaves = self._gpu.inside_gpu_call, tree_leaves((args, kwargs))
        asks_for_cpu = any(isinstance(leaf, str | torch.device) and _is_cpu(leaf) for leaf in leaves)
        self._gpu.inside_gpu_call = not asks_for_cpu and (before or any(map(_on_gpu, leaves)))
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._gpu.inside_gpu_call = before


def _gpu() -> PretendedGpu:
    assert PretendedGpu.active, "a tensor of the pretended GPU is used outside it"
    return PretendedGpu.active


def _elem(leaf: Any) -> Any:
    return leaf.elem if isinstance(leaf, GpuTensor) else leaf


def _on_gpu(leaf: Any) -> bool:
    while isinstance(leaf, Tensor) and is_functorch_wrapped_tensor(leaf):
        leaf = get_unwrapped(leaf)
    return isinstance(leaf, GpuTensor)


def _is_cpu(device: Any) -> bool:
    return str(device).startswith("cpu")


def _line() -> str:
    """The innermost line of the package."""
    frame: FrameType | None = sys._getframe(1)
    while frame:
        if "/pfl_lightning/" in frame.f_code.co_filename:
            return (
                f"{frame.f_code.co_filename.rpartition('/pfl_lightning/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
            )
        frame = frame.f_back
    return "elsewhere"


@contextmanager
def _patched(gpu: PretendedGpu) -> Iterator[None]:
    """Let Fabric and torch speak of a GPU."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            self.time = 0.0

        def record(self) -> None:
            self.time = perf_counter()

        def elapsed_time(self, end: Event) -> float:
            return 1000 * (end.time - self.time)

    class Stream:
        def synchronize(self) -> None:
            gpu.wait("stream")

    def to_device(fabric: Fabric, thing: Any) -> Any:
        return thing.to(DEVICE)

    def pinned(tensor: Tensor) -> Tensor:
        tensor.pretends_to_be_pinned = True  # type: ignore[attr-defined]
        return tensor

    def run_thread(thread: threading.Thread) -> None:
        with _Calls(gpu), _InThread(gpu):
            run(thread)

    empty, fork, run = torch.empty, torch.random.fork_rng, threading.Thread.run
    cuda: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "manual_seed": lambda seed: None,
        "Event": Event,
        "current_stream": lambda device=None: Stream(),
        "synchronize": lambda device=None: gpu.wait("device"),
        "mem_get_info": lambda device=None: (1 << 40, 1 << 40),
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
    }
    with ExitStack() as stack:
        for name, function in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, function))
        stack.enter_context(patch.object(Fabric, "device", property(lambda self: DEVICE)))
        stack.enter_context(patch.object(Fabric, "to_device", to_device))
        stack.enter_context(patch.object(threading.Thread, "run", run_thread))
        stack.enter_context(patch.object(torch.random, "fork_rng", lambda devices=(): fork([])))
        stack.enter_context(patch.object(Tensor, "pin_memory", lambda self, device=None: pinned(self.clone())))
        stack.enter_context(
            patch.object(
                torch,
                "empty",
                lambda *a, pin_memory=False, **k: pinned(empty(*a, **k)) if pin_memory else empty(*a, **k),
            )
        )
        overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            yield
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
            torch._C._set_only_lift_cpu_tensors(lift)
