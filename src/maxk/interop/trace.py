"""Hand-written models: their forward pass recorded by ``torch.fx``, activations replaced in it."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from maxk.interop.layers import check_no_hooks
from maxk.nn.functional import dense, dropout
from maxk.nn.maxk import MaxK

RELU_CALLS: set[Any] = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}
OTHER_CALLS: set[Any] = {
    F.elu, F.leaky_relu, F.gelu, F.silu, F.selu, F.celu, F.softplus, F.mish, F.hardswish, F.relu6,
    F.tanh, F.sigmoid, torch.tanh, torch.sigmoid, torch.selu, torch.celu, "tanh", "sigmoid",
}  # fmt: skip
OTHER_MODULES = (
    nn.ELU, nn.LeakyReLU, nn.PReLU, nn.GELU, nn.SiLU, nn.SELU, nn.CELU, nn.Softplus, nn.Mish,
    nn.Hardswish, nn.ReLU6, nn.Tanh, nn.Sigmoid,
)  # fmt: skip
DROPOUT_CALLS: set[Any] = {F.dropout, torch.dropout}
_MODE = "training_mode"
_ASK = object()  # stands where a forward pass asks whether it trains
IN_PLACE: set[Any] = {F.relu_, torch.relu_, "relu_"}


class Dropout(nn.Dropout):
    """Dropout of dense features, or of the k stored values of CBSR."""

    def forward(self, x: Any) -> Any:
        """Applies dropout while training."""
        return dropout(x, self.p, self.training)


class Mode(nn.Module):
    """Whether the model is training, where its forward pass asked for it."""

    def forward(self) -> bool:
        """True after ``train()``, False after ``eval()``."""
        return self.training


class _Tracer(fx.Tracer):
    """Follows a model down to the modules that are to stay whole.

    Args:
        whole: tells of a module whether it stays whole.
        defaults: leave optional arguments at their defaults, in place of standing for any value.
    """

    def __init__(
        self, whole: Callable[[nn.Module], bool] = lambda module: True, *, defaults: bool = False
    ) -> None:
        # A saved GraphModule makes its tracer anew, without arguments.
        super().__init__()
        self.whole, self.defaults = whole, defaults

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays one call."""
        return self.whole(m)

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> Any:
        """Stand-ins for the arguments of the model."""
        function, given = super().create_args_for_root(*args, **kwargs)
        if self.defaults:
            for i, value in enumerate(given):
                if isinstance(value, fx.Proxy) and value.node.args:
                    given[i] = value.node.args[0]
        return function, given


def record(model: nn.Module, whole: Callable[[nn.Module], bool]) -> fx.Graph:
    """The forward pass of a model, the same in ``train()`` and ``eval()`` up to what asks for it.

    A recording holds one path through the code, so a forward pass that would take another one is
    refused: it is recorded while training, in evaluation, and without its optional arguments.

    Args:
        model: left in ``train()``; gets a submodule where the forward pass asks for the mode.
        whole: tells of a module whether it stays one call.

    Raises:
        ValueError: the forward pass cannot be recorded, or branches.
    """
    kind = type(model).__name__
    _spell_out(model)
    with _watched(model, whole):
        try:
            training = _Tracer(whole, defaults=False).trace(model.train())
            evaluation = _Tracer(whole, defaults=False).trace(model.eval())
            bare = _Tracer(whole, defaults=True).trace(model.train())
        except _ClassAsked:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"the forward pass of {kind} cannot be recorded by torch.fx: {reason}; use "
                "maxk.nn's layers and MaxK(k, compressed=True) in it by hand"
            ) from error
    _compare(training, bare, kind, "without its optional arguments than with them")
    differing = _compare(training, evaluation, kind, "in eval() than in train()")
    for node, (args, kwargs) in differing.items():
        if not hasattr(model, _MODE):
            model.add_module(_MODE, Mode())
        with training.inserting_before(node):
            mode = training.call_module(_MODE)
        node.args = _put(args, mode)
        node.kwargs = _put(kwargs, mode)
    return training


def _spell_out(model: Any) -> None:
    """Gives the forward pass of PyG's ``Sequential``, ``*args`` by itself, its own names."""
    kind = type(model)
    if kind.__module__ != "torch_geometric.nn.sequential":
        return
    names = ", ".join(model.signature.param_dict)
    space = {"inner": kind.forward, "__name__": kind.__module__}
    exec(f"def forward(self, {names}): return inner(self, {names})", space)
    model.__class__ = type(kind.__name__, (kind,), {"forward": space["forward"]})


def _put(arguments: Any, mode: fx.Node) -> Any:
    return fx.node.map_aggregate(arguments, lambda x: mode if x is _ASK else x)


class _ClassAsked(ValueError):
    """A forward pass asks for the class of a stand-in."""


class _Differs(Exception):
    """Two recordings are not of one path."""


def _compare(
    graph: fx.Graph, other: fx.Graph, kind: str, when: str
) -> dict[fx.Node, tuple[Any, Any]]:
    """Arguments of the nodes that have True in one recording and False in the other, :data:`_ASK`.

    Raises:
        ValueError: the recordings differ otherwise.
    """
    defaults = {n.name: n.args[0] for n in graph.nodes if n.op == "placeholder" and n.args}
    asking = {}
    try:
        for a, b in zip(graph.nodes, other.nodes, strict=True):
            if a.op != b.op or a.target != b.target:
                raise _Differs
            merged = _merge((a.args, dict(a.kwargs)), (b.args, dict(b.kwargs)), defaults)
            if _asks(merged):
                asking[a] = merged
        if asking and "eval" not in when:
            raise _Differs
    except (_Differs, ValueError) as error:  # zip raises ValueError where one is longer
        raise ValueError(
            f"the forward pass of {kind} does other things {when}, and a recording holds one path; "
            "take the branch out of forward, or use maxk.nn's layers and MaxK(k, compressed=True)"
        ) from error
    return asking


def _merge(a: Any, b: Any, defaults: dict[str, Any]) -> Any:
    """An argument of two recordings, :data:`_ASK` where one has True and the other False.

    Raises:
        _Differs: it differs otherwise.
    """
    if isinstance(a, fx.Node):
        if isinstance(b, fx.Node) and a.name == b.name:
            return a
        if not isinstance(b, fx.Node) and a.name in defaults and defaults[a.name] is b:
            return a
    elif a is True and b is False:
        return _ASK
    elif isinstance(a, tuple | list) and isinstance(b, tuple | list) and len(a) == len(b):
        return type(a)(_merge(*pair, defaults) for pair in zip(a, b, strict=True))
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {key: _merge(a[key], b[key], defaults) for key in a}
    elif isinstance(a, slice) and isinstance(b, slice):
        _merge((a.start, a.stop, a.step), (b.start, b.stop, b.step), defaults)
        return a
    elif type(a) is type(b) and a == b:
        return a
    raise _Differs


def _asks(argument: Any) -> bool:
    if isinstance(argument, dict):
        argument = tuple(argument.values())
    if isinstance(argument, tuple | list):
        return any(_asks(part) for part in argument)
    return argument is _ASK


@contextlib.contextmanager
def _watched(model: nn.Module, whole: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Refuses ``isinstance`` on the stand-ins of a recording, which are of no class they ask for.

    The name is looked up in the module where a forward pass is written before the builtin.
    """

    def isinstance_(value: object, kinds: Any) -> bool:
        if isinstance(value, fx.Proxy):
            raise _ClassAsked(
                f"the forward pass asks for the class of {value.node.name!r}, and a recording "
                "holds one path; take isinstance out of forward"
            )
        return builtins.isinstance(value, kinds)

    followed = {id(m): m for m in model.modules() if m is model or not whole(m)}
    forwards = [inspect.unwrap(type(m).forward) for m in followed.values()]
    spaces = {
        id(f.__globals__): f.__globals__
        for f in forwards
        if not (f.__module__ or "").startswith(("torch.", "torch_geometric."))
    }
    names = [space for space in spaces.values() if "isinstance" not in space]
    for space in names:
        space["isinstance"] = isinstance_
    try:
        yield
    finally:
        for space in names:
            del space["isinstance"]


class Rewriter:
    """Replaces activations before convolutions in one recording.

    Args:
        model: holds the modules; convolutions are ours already.
        graph: the recording, changed in place.
        convolutions: paths of the convolutions that take CBSR.
        k: entries to keep.
        force: replace other activations than ReLU too.
    """

    def __init__(
        self, model: nn.Module, graph: fx.Graph, convolutions: Collection[str], k: int, force: bool
    ) -> None:
        self.model, self.graph, self.k, self.force = model, graph, k, force
        self.calls = [n for n in graph.nodes if n.op == "call_module" and n.target in convolutions]
        self.sources: dict[fx.Node, tuple[int | None, str]] = {}
        self.activations: dict[fx.Node, int] = {}
        self.between: list[fx.Node] = []

    def rewrite(self) -> None:
        """Does it."""
        for call in self.calls:
            self._follow_back(call)
        compressed = {*self.activations, *self.between}
        for node in compressed:
            self._check_in_place(node)
            if (module := self._module(node)) is not None:
                check_no_hooks(module, str(node.target))
        for node in compressed:
            self._expand_for_others(node, compressed)
        for number, (node, k) in enumerate(self.activations.items()):
            self._replace_activation(node, f"maxk_{number}", k)
        for node in self.between:
            self._replace_dropout(node)
        self.graph.lint()

    def lonely_activations(self) -> list[fx.Node]:
        """Activations that stay, since no convolution comes directly behind them."""
        return [n for n in self.graph.nodes if self._activation(n) is not None]

    def _follow_back(self, call: fx.Node) -> None:
        """Finds activation and dropout in front of a convolution."""
        x = call.args[0] if call.args else call.kwargs.get("x")
        if isinstance(x, tuple | list) and x:
            x = x[0]
        chain = []
        while isinstance(x, fx.Node) and (self._is_dropout(x) or self._is_identity(x)):
            chain.append(x)
            x = self._input(x)
        what = self._activation(x) if isinstance(x, fx.Node) else None
        if what is None or not isinstance(x, fx.Node):
            self.sources[call] = (None, f"dense input from {_describe(x)}")
            return
        kind, own_k = what
        if kind not in ("ReLU", "MaxK") and not self.force:
            raise ValueError(
                f"the activation before {call.target} is {kind}, not ReLU; pass force=True to "
                f"replace it all the same, or skip=[{call.target!r}] to leave it"
            )
        k = self.k if own_k is None else own_k
        self.activations[x] = k
        self.between += [n for n in chain if n not in self.between]
        arrow = " -> dropout" if any(self._is_dropout(n) for n in chain) else ""
        self.sources[call] = (k, f"{kind} -> MaxK(k={k}){arrow} -> CBSR")

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.model.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _activation(self, node: fx.Node) -> tuple[str, int | None] | None:
        """(name, k of a MaxK) of an activation; None for all else."""
        module = self._module(node)
        if type(module) is nn.ReLU:
            return "ReLU", None
        if isinstance(module, MaxK):
            return None if module.compressed else ("MaxK", module.k)
        if isinstance(module, OTHER_MODULES):
            return type(module).__name__, None
        if node.op not in ("call_function", "call_method"):
            return None
        if node.target in RELU_CALLS:
            return "ReLU", None
        if node.target in OTHER_CALLS:
            return getattr(node.target, "__name__", str(node.target)), None
        return None

    def _is_dropout(self, node: fx.Node) -> bool:
        if node.op == "call_function":
            return node.target in DROPOUT_CALLS
        return isinstance(self._module(node), nn.Dropout)

    def _is_identity(self, node: fx.Node) -> bool:
        return isinstance(self._module(node), nn.Identity)

    def _input(self, node: fx.Node) -> Any:
        return node.args[0] if node.args else node.kwargs["input"]

    def _check_in_place(self, node: fx.Node) -> None:
        module = self._module(node)
        in_place = bool(getattr(module, "inplace", False))
        if node.op != "call_module":
            in_place = node.target in IN_PLACE or bool(node.kwargs.get("inplace", False))
        source = self._input(node)
        if in_place and isinstance(source, fx.Node) and len(source.users) > 1:
            raise ValueError(
                f"{node.name} changes its input in place, and others read that input; leave "
                "inplace out"
            )

    def _expand_for_others(self, node: fx.Node, compressed: set[fx.Node]) -> None:
        """Gives dense features to whoever is no convolution on our kernels."""
        others = [u for u in node.users if u not in compressed and u not in self.calls]
        if not others:
            return
        with self.graph.inserting_after(node):
            expanded = self.graph.call_function(dense, (node,))
        for user in others:
            user.replace_input_with(node, expanded)

    def _replace_activation(self, node: fx.Node, name: str, k: int) -> None:
        self.model.add_module(name, MaxK(k, compressed=True))
        with self.graph.inserting_before(node):
            new = self.graph.call_module(name, (self._input(node),))
        node.replace_all_uses_with(new)
        self.graph.erase_node(node)

    def _replace_dropout(self, node: fx.Node) -> None:
        module = self._module(node)
        if isinstance(module, nn.Dropout):
            self.model.set_submodule(str(node.target), Dropout(module.p).train(module.training))
        elif node.op == "call_function":
            given = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False))
            given |= node.kwargs
            training = given.get("training", given.get("train", True))
            node.target = dropout
            node.args = (given["input"], given.get("p", 0.5), training)
            node.kwargs = {}


def _describe(x: object) -> str:
    """Where a value comes from, in words."""
    if not isinstance(x, fx.Node):
        return "a constant"
    if x.op == "placeholder":
        return f"the argument {x.name!r}"
    if x.op == "call_function" and x.target is getattr:
        return f"{x.args[0]}.{x.args[1]}"
    if x.op == "call_function" and x.target is operator.add:
        return "a sum"
    return str(x.target if x.op in ("call_module", "call_method") else x.name)
