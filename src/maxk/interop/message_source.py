"""What a ``message`` of PyG computes, read from its source.

A message is fused only where its text proves it, for every input and at any time: one that reads an
attribute, a global name or a shape can be another function in the next call.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Message:
    """A message that the fused aggregation computes.

    Attributes:
        features: name of the features, "x" for ``x_j``.
        weighted: the message multiplies by ``edge_weight``.
        optional: without weights it is the features alone.
    """

    features: str
    weighted: bool
    optional: bool


def message_of(cls: Any) -> Message | None:
    """What the messages of a layer's class are; None where that is not proven.

    Args:
        cls: a class with ``message`` and perhaps a declaration ``message_is``.
    """
    return _message_of(cls, cls.message)


@functools.lru_cache(maxsize=256)
def _message_of(cls: Any, function: Any) -> Message | None:
    # The function is part of the key, so that one put into the class later is read again.
    names = _parameters(function)
    if names is None:
        return None
    features, weighted = names
    declared = _declared(cls)
    if declared is not None:
        if ("edge_weight" in declared) != weighted:
            return None
        return Message(features[:-2], weighted, optional=False)
    body = _body(function)
    form = None if body is None else _form(body, features)
    if form is None:
        return None
    return Message(features[:-2], weighted=form != "x_j", optional=form == "optional")


def _parameters(function: Any) -> tuple[str, bool] | None:
    """(name of the features, whether weights are taken) of a plain method; None for others."""
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return None
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(p.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
        return None
    names = [p.name for p in parameters]
    features = [name for name in names if name.endswith("_j")]
    others = [name for name in names if name not in features]
    if len(features) != 1 or others not in ([], ["edge_weight"]):
        return None
    return features[0], bool(others)


def _declared(cls: type) -> str | None:
    """The declaration that holds for the message of a class: made where it is defined, or below."""
    for base in cls.__mro__:
        if (declared := vars(base).get("message_is")) is not None:
            return str(declared)
        if "message" in vars(base):
            return None
    return None


def _body(function: types.FunctionType) -> list[ast.stmt] | None:
    """Statements of a method; None where its text is not at hand or not what runs."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    # The file may have changed since it was imported.
    definition.returns = None
    for argument in definition.args.args:
        argument.annotation = None
    code = compile(tree, "<message>", "exec", dont_inherit=True)
    [made] = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    runs = function.__code__
    if (made.co_code, made.co_names, made.co_varnames) != (
        runs.co_code, runs.co_names, runs.co_varnames,
    ):  # fmt: skip
        return None
    body = definition.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    return body


def _form(body: list[ast.stmt], features: str) -> str | None:
    """Which message the statements return: "x_j", "weighted" or "optional"; None for others."""
    # An early return where there are no weights is the same as a conditional expression.
    if (
        len(body) == 2
        and isinstance(body[0], ast.If)
        and len(body[0].body) == 1
        and not body[0].orelse
    ):
        first, last = body[0].body[0], body[1]
        if not isinstance(first, ast.Return) or not isinstance(last, ast.Return):
            return None
        if first.value is None or last.value is None:
            return None
        return _expression(ast.IfExp(body[0].test, first.value, last.value), features)
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return None
    return _expression(body[0].value, features)


def _expression(value: ast.expr, features: str) -> str | None:
    if ast.unparse(value) == features:
        return "x_j"
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        sides = {ast.unparse(value.left), ast.unparse(value.right)}
        weight = sides - {features}
        return "weighted" if len(sides) == 2 and len(weight) == 1 and weight <= _COLUMNS else None
    if isinstance(value, ast.IfExp):
        without, product = value.body, value.orelse
        if ast.unparse(value.test) == "edge_weight is not None":
            without, product = product, without
        elif ast.unparse(value.test) != "edge_weight is None":
            return None
        forms = (_expression(without, features), _expression(product, features))
        return "optional" if forms == ("x_j", "weighted") else None
    return None


#: Texts of the weights [E] as a column [E, 1].
_COLUMNS = {
    "edge_weight.view(-1, 1)",
    "edge_weight.reshape(-1, 1)",
    "edge_weight.unsqueeze(-1)",
    "edge_weight.unsqueeze(1)",
    "edge_weight[:, None]",
    "edge_weight[..., None]",
}
