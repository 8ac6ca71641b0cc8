"""The tensor that stands for features which are compressed: `graph.ndata["feat"]` of an attached feature.

It knows its shape, dtype and device without a row. Four kinds of operations:

* metadata (`.shape`, `len`, `size()`, ...; METADATA below) and `torch.zeros_like` and its kind read nothing;
* an index (`x[ids]`, `x[3]`, `x[2:5, 0]`) and `index_select` of rows decode these rows;
* what writes in place is refused;
* any other operation runs on an ordinary tensor of all rows. The first one decodes it, and it is kept for as long as
  the FeatureTensor lives.

What operations return is the user's own: tensors, views, arrays and storages. It never shares memory with rows that
are kept, so writing to it changes neither the graph nor what is read from here later.

torch asks `__torch_function__` about all that Python code does with a tensor. C++ code that was handed the tensor
itself (TorchScript, torch.as_tensor) ends in `__torch_dispatch__`, which decodes, too. One assignment reaches neither:
`param.data = x` raises ("incompatible tensor type"); write `param.data.copy_(x)` or `param.data = x.clone()`.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

from ..store.row_index import split_index

METADATA = frozenset(
    "shape dtype device ndim layout names nbytes itemsize requires_grad is_leaf retains_grad grad grad_fn output_nr"
    " _version _base _backward_hooks is_cpu is_cuda is_meta is_mkldnn is_mps is_nested is_quantized is_sparse"
    " is_sparse_csr is_xla is_xpu"  # properties; now methods and functions
    " size stride dim ndimension numel nelement element_size storage_offset get_device is_contiguous is_floating_point"
    " is_complex is_signed is_conj is_neg is_inference has_names dim_order __len__ __hash__ __dir__".split()
)
_NO_STORAGE = {"is_pinned", "is_shared"}  # False, whatever the rows that are decoded later are
_LIKE = frozenset(
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new new_empty new_zeros new_ones"
    " new_full new_tensor new_empty_strided result_type is_same_size".split()
)
_IN_PLACE = frozenset(
    "__setitem__ __delitem__ __set__ __delete__ __iadd__ __isub__ __imul__ __imatmul__ __idiv__ __itruediv__"
    " __ifloordiv__ __imod__ __ipow__ __ilshift__ __irshift__ __iand__ __ior__ __ixor__".split()
)
_CASTS = {
    name: getattr(torch, name) for name in ("float", "double", "half", "bfloat16", "int", "long", "short", "bool")
}
# These hand out a tensor's memory: they get a copy at once. Of other operations, the results are looked at.
_GIVES_MEMORY = frozenset(
    "numpy __array__ __dlpack__ storage untyped_storage _typed_storage __reduce__ __reduce_ex__".split()
)
_GIVES_ADDRESS = frozenset("data_ptr const_data_ptr mutable_data_ptr __cuda_array_interface__".split())
_WITHOUT_MEMORY = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
_MOST_VALUES_PRINTED = 1000  # torch's own threshold


class KeptRows:
    """All rows of a feature, decoded, until somebody writes to them."""

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None
        self._version = 0

    def get(self) -> torch.Tensor | None:
        """The rows; None if there are none, or if a view that was handed out has been written to."""
        rows = self._rows
        return rows if rows is not None and rows._version == self._version else None

    def keep(self, rows: torch.Tensor) -> None:
        self._rows, self._version = rows, rows._version

    def forget(self) -> None:
        self._rows = None


class FeatureTensor(torch.Tensor):
    """A tensor [n, *row_shape] whose rows are decoded when they are asked for. Read only; see the module."""

    _gather: Callable[[torch.Tensor | None], torch.Tensor]
    _kept: KeptRows
    _shares: bool  # _kept, with others
    _device: torch.device
    _lent: torch.Tensor | None  # a copy for those who ask for an address

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        gather: Callable[[torch.Tensor | None], torch.Tensor],
        kept: KeptRows | None = None,
    ) -> FeatureTensor:
        """gather: ids [k] int64 in [0, n), None for all -> rows [k, *row_shape] of `dtype` on `device`, a new tensor.
        kept: where all rows stay once they have been decoded, for others to find; None: here."""
        device = torch.empty(0, device=device).device  # "cuda" is the current one
        # To C++ code a meta tensor with a device of its own, as torch's FakeTensor is. `param.data = x` asks neither
        # tensor: it would make the parameter share x's memory, which is not there. A meta tensor is refused.
        self: FeatureTensor = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=torch.device("meta"), dispatch_device=True
        )
        if hasattr(torch._C, "_set_throw_on_mutable_data_ptr"):
            # There is no memory behind it: C++ code that looks for some raises, instead of reading address 0.
            with torch._C.DisableTorchFunctionSubclass():
                torch._C._set_throw_on_mutable_data_ptr(self)
        self._gather, self._kept, self._shares = gather, kept or KeptRows(), kept is not None
        self._device, self._lent = device, None
        return self

    def all_rows(self) -> torch.Tensor:
        """All rows as an ordinary tensor, decoded at the first call. They are kept: not to be handed out."""
        rows = self._kept.get()
        if rows is None:
            rows = self._gather(None)
            self._kept.keep(rows)
        return rows

    def own_rows(self) -> torch.Tensor:
        """All rows as a tensor that the caller may keep and write to."""
        if self._kept.get() is None and not self._shares:
            return self._gather(None)  # one copy of all rows, not two
        return _copy_of(self.all_rows())

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, access = _name_of(func)
        x = args[0] if args and isinstance(args[0], FeatureTensor) else None
        if x is not None and _changes_nothing(x, name, access, args[1:], kwargs):
            return x
        if x is not None and name == "share_memory_":
            return x.own_rows().share_memory_()  # moves rows, and changes none
        if _holds_features(_written(name, access, args, kwargs)):
            raise RuntimeError(_refusal(name if access != "__set__" else f"setting .{name}"))
        if name in METADATA or (name == "type" and not args[1:] and not kwargs):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _NO_STORAGE:
            return False
        if name in _LIKE:
            return func(*_replace(args, _without_rows), **_replace_named(kwargs, _without_rows))
        if x is not None and x._kept.get() is None:
            rows = _read_some(x, name, args[1:], kwargs)
            if rows is not NotImplemented:
                return rows
        if name in _GIVES_MEMORY:
            return func(*_replace(args, FeatureTensor.own_rows), **_replace_named(kwargs, FeatureTensor.own_rows))
        if x is not None and name in _GIVES_ADDRESS:
            if x._lent is None:
                x._lent = x.own_rows()  # which lives as long as x does
            return func(x._lent, *args[1:], **kwargs)
        return _on_all_rows(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares one argument less
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0]._device
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and _holds_features(value):
                raise RuntimeError(_refusal(func._schema.name))
        return _on_all_rows(func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self.numel() <= _MOST_VALUES_PRINTED:
            return repr(self.all_rows())
        return (
            f"FeatureTensor({list(self.shape)}, dtype={self.dtype}, device={str(self.device)!r}): "
            "compressed; x[ids] decodes these rows"
        )

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec) if self.ndim else format(self.all_rows(), spec)


# What goes through a queue or a pipe is the rows, in shared memory, as for any tensor.
ForkingPickler.register(FeatureTensor, lambda x: reduce_tensor(x.own_rows()))


def _name_of(func: Any) -> tuple[str, str | None]:
    """The name of a function of torch; for the access to a property, its name and "__get__" or "__set__"."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        owner = func.__self__  # a descriptor written in C, or a property
        return getattr(owner, "__name__", None) or owner.fget.__name__, name
    return name.split(".")[0], None  # torch.ops.aten.mul_.Tensor is called "mul_.Tensor"


def _changes_nothing(x: torch.Tensor, name: str, access: str | None, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether torch would return x itself, or its twin, from this call: a cast to the dtype that it has, say."""
    if name == "requires_grad_" or (name == "requires_grad" and access == "__set__"):
        return (*args, *kwargs.values()) == (False,)
    if name == "data":
        return access == "__get__"
    if name in ("detach", "detach_"):
        return True
    if name in ("to", "type"):
        wanted = (*args, *kwargs.values())
        return len(wanted) == 1 and _is_kind_of(x, wanted[0])
    if name == "cpu":
        return x.device.type == "cpu"
    return name in _CASTS and not args and not kwargs and x.dtype == _CASTS[name]


def _is_kind_of(x: torch.Tensor, wanted: Any) -> bool:
    """wanted: a dtype or a device."""
    if isinstance(wanted, torch.dtype):
        return x.dtype == wanted
    if isinstance(wanted, str) and wanted.startswith("torch."):  # "torch.FloatTensor"
        return x.type() == wanted
    if not isinstance(wanted, (torch.device, str)):
        return False
    device = torch.device(wanted)
    return x.device == device or (device.type == "cpu" and x.device.type == "cpu")


def _written(name: str, access: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call writes to, as far as names tell; () for nothing."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name in _IN_PLACE or access in _IN_PLACE or kwargs.get("inplace"):
        return args[0] if args else next(iter(kwargs.values()), ())
    return ()


def _refusal(what: str) -> str:
    return (
        f"{what}: want a tensor that can be written to, got compressed features, which can only be read. Change rows "
        "with store.update(ids, rows) (ibp_gnn.detach returns the store), or make the feature an ordinary one: "
        "g.ndata[key] = g.ndata[key].clone()"
    )


def _read_some(x: FeatureTensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call that needs some of x's rows, or needs them for itself alone; NotImplemented for others."""
    if name == "clone" and not args and not kwargs:
        return x.own_rows()
    if name == "__getitem__":
        split = split_index(args[0], len(x))
        if split is None:
            return NotImplemented
        ids, local = split
        rows = x._gather(ids.reshape(-1))
        return rows[local] if local else rows.view(*ids.shape, *rows.shape[1:])
    if name == "index_select":
        named = dict(zip(("dim", "index"), args, strict=False)) | kwargs
        out = named.pop("out", None)
        if named.keys() != {"dim", "index"} or named["dim"] not in (0, -x.ndim) or named["index"].ndim != 1:
            return NotImplemented
        if named["index"].dtype not in (torch.int32, torch.int64):
            return NotImplemented
        if len(named["index"]) and int(named["index"].min()) < 0:
            raise IndexError(f"index_select: want ids in [0, {len(x)}), got {int(named['index'].min())}")
        split = split_index(named["index"], len(x))
        assert split is not None
        rows = x._gather(split[0])
        return rows if out is None else _into(out, rows)
    return NotImplemented


def _into(out: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if out.shape != rows.shape or out.dtype != rows.dtype:
        return torch.index_select(rows, 0, torch.arange(len(rows), device=rows.device), out=out)
    return out.copy_(rows)


def _on_all_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call func with all rows in the place of every FeatureTensor."""
    used: list[tuple[FeatureTensor, torch.Tensor, int]] = []

    def rows_of(x: FeatureTensor) -> torch.Tensor:
        rows = x.all_rows()
        used.append((x, rows, rows._version))
        return rows

    result = func(*_replace(args, rows_of), **_replace_named(kwargs, rows_of))
    for x, rows, version in used:
        if rows._version != version:  # its name did not say that it writes (F.embedding with max_norm)
            x._kept.forget()
            raise RuntimeError(_refusal(_name_of(func)[0]))
    if all(_is_apart(result, rows) for _, rows, _ in used):
        return result
    if type(result) is torch.Tensor and result.numel() <= min(rows.numel() for _, rows, _ in used):
        if not any(result is given for given in (*args, *kwargs.values())):
            return _copy_of(result)
    # Several views, one of expanded rows, or a tensor of the caller's that shows rows now: make it of copied rows.
    copies = {id(x): _copy_of(rows) for x, rows, _ in used}
    return func(*_replace(args, lambda x: copies[id(x)]), **_replace_named(kwargs, lambda x: copies[id(x)]))


def _copy_of(rows: torch.Tensor) -> torch.Tensor:
    if rows.dtype == torch.bool:  # clone() makes 0 or 1 of any byte
        return rows.view(torch.uint8).clone().view(torch.bool)
    return rows.clone()


def _is_apart(result: Any, rows: torch.Tensor) -> bool:
    """Whether result certainly shares no memory with rows."""
    if type(result) in (torch.Tensor, torch.nn.Parameter):
        try:
            return result.untyped_storage()._cdata != rows.untyped_storage()._cdata
        except RuntimeError:  # a sparse tensor, or one of functorch's
            return False
    if isinstance(result, (list, tuple)):
        return all(_is_apart(part, rows) for part in result)
    return isinstance(result, (*_WITHOUT_MEMORY, FeatureTensor))


def _replace(value: Any, function: Callable[[FeatureTensor], Any]) -> Any:
    """value with every FeatureTensor in it, also in lists and tuples, replaced by function's result."""
    if isinstance(value, FeatureTensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(_replace(part, function) for part in value)
    return value


def _replace_named(values: dict[str, Any], function: Callable[[FeatureTensor], Any]) -> dict[str, Any]:
    return {name: _replace(value, function) for name, value in values.items()}


def _holds_features(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(_holds_features(part) for part in value)
    return isinstance(value, FeatureTensor)


def _without_rows(x: FeatureTensor) -> torch.Tensor:
    """A tensor of x's shape, dtype and device that takes no memory."""
    return torch.empty(1, dtype=x.dtype, device=x.device).expand(x.shape)
