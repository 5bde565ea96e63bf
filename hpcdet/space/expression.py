"""Arithmetic over hyperparameters: the expressions of ``derived`` and ``forbid``.

The text is parsed as Python and walked; nothing is executed. Allowed: numbers, strings,
``+ - * / // % **``, comparisons, ``in``, ``and or not``, ``a if c else b``, names of
hyperparameters (``optimizer.momentum``, ``layers[0].units``) and a few functions.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdet.space.errors import Path, SpaceError, dotted

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "float": float,
    "floor": math.floor,
    "int": int,
    "log": math.log,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}
_MOST_BITS = 4096  # of a whole number: a power tower must not eat the login node


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and exponent * base.bit_length() > _MOST_BITS:
        raise ValueError("the power is too large")
    return base**exponent


_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


class Inactive(Exception):
    """The expression names a hyperparameter that this sample does not have."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression.

    Attributes:
        at: key of the space that it is written at, for errors.
        names: paths of the hyperparameters it speaks of.
    """

    text: str
    at: Path
    tree: ast.expr
    names: frozenset[Path]

    @staticmethod
    def parse(text: Any, at: Path) -> Expression:
        """Parse an expression. Raises SpaceError for anything that is not arithmetic."""
        if not isinstance(text, str):
            raise SpaceError(at, f"{text!r} is not an expression", 'write it as text: "hidden * 2"')
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else str(error)
            raise SpaceError(at, f"cannot read the expression {text!r}: {why}") from error
        try:
            names = frozenset(_names(tree))
        except ValueError as error:
            raise SpaceError(at, f"{error} in the expression {text!r}") from error
        except RecursionError as error:
            raise SpaceError(at, "the expression is too long") from error
        return Expression(text, at, tree, names)

    def value(self, params: Mapping[str, Any]) -> Any:
        """Return the value for one sample.

        Raises:
            Inactive: a hyperparameter it speaks of is not in ``params``.
            SpaceError: the arithmetic fails (a division by zero, text plus a number).
        """
        try:
            result = _value(self.tree, params)
        except Inactive:
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            raise SpaceError(self.at, f"the expression {self.text!r} fails: {error}") from error
        if not _plain(result):
            what = f"the expression {self.text!r} gives {result!r}"
            raise SpaceError(self.at, what, "a value is a number, text, or a list of these")
        return result


def _plain(value: Any) -> bool:
    """True if a trial's record can hold it: no NaN, no complex number, no group."""
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, int | str)


def _path(node: ast.expr) -> Path | None:
    """Return the path of the hyperparameter in a name, attribute or subscript."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=inner, attr=name):
            above = _path(inner)
            return None if above is None else (*above, name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str() | int() as key)):
            above = _path(inner)
            return None if above is None else (*above, key)
    return None


def _names(node: ast.expr) -> Iterator[Path]:
    path = _path(node)
    if path is not None:
        yield path
        return
    for part in _parts(node):
        yield from _names(part)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of an allowed node. Raises ValueError for one that is not allowed."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return []
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in {*_ARITHMETIC, ast.Not}:
            return [operand]
        case ast.BoolOp(values=values):
            return values
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            return [left, *others]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return [test, body, orelse]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return items
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return args
    raise ValueError(f"{ast.unparse(node)!r} is not allowed")


def _value(node: ast.expr, params: Mapping[str, Any]) -> Any:
    path = _path(node)
    if path is not None:
        return look_up(params, path)
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_number(left, params), _number(right, params))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, params)
        case ast.UnaryOp(op=op, operand=operand):
            return _ARITHMETIC[type(op)](_number(operand, params))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, params) for value in values)
        case ast.BoolOp(values=values):
            return any(_value(value, params) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            terms = [_value(term, params) for term in (left, *others)]
            pairs = zip(terms, ops, terms[1:], strict=False)
            return all(_COMPARISONS[type(op)](one, other) for one, op, other in pairs)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, params) else orelse, params)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, params) for item in items]
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_value(arg, params) for arg in args))
    raise AssertionError(f"{ast.dump(node)} was let through by _parts")


def _number(node: ast.expr, params: Mapping[str, Any]) -> Any:
    value = _value(node, params)
    if not isinstance(value, int | float):
        raise TypeError(f"{ast.unparse(node)} is {value!r}, not a number")
    return value


def look_up(params: Any, path: Path) -> Any:
    """Return the value at a path of a sample. Raises Inactive if it has none."""
    for key in path:
        try:
            params = params[key]
        except (KeyError, IndexError, TypeError) as error:
            raise Inactive(dotted(path)) from error
    return params
