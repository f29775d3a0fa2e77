"""Small errors in a Python source: operators swapped, comparisons flipped, constants changed, pieces dropped."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Replace = Callable[[ast.AST | None], None]
Edit = tuple[ast.AST, str, Callable[[], None]]
"""Where, what, and the function that makes it in the tree."""

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
COMPARISONS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
NAMES = {
    "min": "max",
    "max": "min",
    "argmin": "argmax",
    "argmax": "argmin",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "mean": "sum",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
UNWRAPPED = {"abs", "abs_", "square", "square_", "sqrt", "clamp", "clone", "log", "exp", "sign", "neg", "detach"}
"""Methods whose call is replaced by their object."""
OPTIONAL = {"train_epochs", "batches", "sum", "mean", "features", "norm"}
"""Functions whose last positional argument may be left out; without one of others Python itself complains."""
KEPT = ("device", "strict")
"""Arguments that change nothing on a CPU with correct lists."""


class Mutant(NamedTuple):
    """One error in one file."""

    file: str
    number: int
    """Of the edit in its file."""
    place: str
    """The function, with its class."""
    line: int
    offset: tuple[int, int]
    """The line counted from the function's first one, and the column."""
    what: str
    before: str
    after: str

    @property
    def key(self) -> str:
        """A name that survives changes elsewhere in the file."""
        return f"{self.file} {self.place} {self.offset} | {self.what} | {self.before} | {self.after}"


def count(source: str) -> int:
    """How many errors can be made in a source."""
    return sum(1 for _ in edits(ast.parse(source)))


def mutant(file: str, source: str, number: int) -> Mutant:
    """One of these errors."""
    tree = ast.parse(source)
    node, what, make = nth_edit(tree, number)
    above, statement = surroundings(tree, node)
    first = above[-1].lineno if above else 0
    line, column = getattr(node, "lineno", statement.lineno), getattr(node, "col_offset", 0)
    before = text(statement)
    make()
    after = text(statement if what != "statement dropped" else ast.Pass())
    place = ".".join(around.name for around in above)
    return Mutant(file, number, place, line, (line - first, column), what, before, after)


def mutated(source: str, number: int) -> str:
    """The source with one error."""
    tree = ast.parse(source)
    nth_edit(tree, number)[2]()
    return ast.unparse(ast.fix_missing_locations(tree))


def nth_edit(tree: ast.Module, number: int) -> Edit:
    return next(itertools.islice(edits(tree), number, None))


def edits(tree: ast.Module) -> Iterator[Edit]:
    for node, replace in places(tree):
        yield from edits_of(node, replace)


def places(node: ast.AST) -> Iterator[tuple[ast.AST, Replace]]:
    """The nodes that may change, with the function that puts another one in their place."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or untouched(node, child):
                continue

            def replace(new: ast.AST | None, name: str = name, value: object = value, index: int = index) -> None:
                if isinstance(value, list):
                    value[index : index + 1] = [] if new is None else [new]
                else:
                    setattr(node, name, new)

            yield child, replace
            yield from places(child)


def untouched(parent: ast.AST, node: ast.AST) -> bool:
    """Imports, texts, errors and settings: the help's test guards the defaults of settings."""
    if isinstance(parent, ast.ClassDef | ast.Module) and isinstance(node, ast.AnnAssign):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
        return True  # a check of settings: it is only dropped as a whole
    if isinstance(node, ast.keyword) and node.arg in KEPT:
        return True
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr)


def edits_of(node: ast.AST, replace: Replace) -> Iterator[Edit]:
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in OPERATORS:
            yield node, "operator", lambda: setattr(node, "op", OPERATORS[type(node.op)]())
        case ast.Compare(ops=[op]):
            for other in COMPARISONS.get(type(op), ()):
                yield node, "comparison", lambda other=other: setattr(node, "ops", [other()])  # type: ignore[misc]
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield node, "sign or negation dropped", lambda: replace(node.operand)
        case ast.Constant(value=bool()):
            yield node, "constant", lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int() | float()):
            yield node, "constant", lambda: setattr(node, "value", node.value * 2 or 1)  # type: ignore[operator]
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield node, "condition", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.With():
            for item in node.items:
                if item.optional_vars is None:
                    yield node, "context dropped", lambda item=item: drop_context(node, item)  # type: ignore[misc]
        case ast.Call():
            yield from edits_of_call(node, replace)
    if isinstance(node, ast.Expr | ast.AugAssign) or is_store(node):
        yield node, "statement dropped", lambda: replace(ast.Pass())


def edits_of_call(node: ast.Call, replace: Replace) -> Iterator[Edit]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    for word in node.keywords:
        if word.arg in KEPT:
            continue
        yield node, "argument dropped", lambda word=word: node.keywords.remove(word)  # type: ignore[misc]
        if word.arg in ("min", "max"):
            yield word, "min and max", lambda word=word: setattr(word, "arg", NAMES[word.arg])  # type: ignore[misc]
    if node.args and name in OPTIONAL:
        yield node, "argument dropped", lambda: setattr(node, "args", node.args[:-1])
    if name in NAMES:
        yield node, "name", lambda: setattr(node.func, "id" if isinstance(node.func, ast.Name) else "attr", NAMES[name])
    if name in UNWRAPPED and isinstance(node.func, ast.Attribute):
        yield node, "call dropped", lambda: replace(node.func.value)  # type: ignore[attr-defined]


def is_store(node: ast.AST) -> bool:
    """Whether a statement writes to an entry or an attribute; without it no name is missing."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)


def drop_context(node: ast.With, item: ast.withitem) -> None:
    if len(node.items) > 1:
        node.items.remove(item)
    else:
        item.context_expr = ast.Call(ast.Name("__import__('contextlib').nullcontext"), [], [])


def surroundings(tree: ast.Module, node: ast.AST) -> tuple[list[ast.FunctionDef | ast.ClassDef], ast.stmt]:
    """The class and functions around a node, and its statement."""

    def visit(here: ast.AST, above: list[Any], statement: Any) -> tuple[list[Any], Any] | None:
        statement = here if isinstance(here, ast.stmt) else statement
        if here is node:
            return above, statement
        inside = [*above, here] if isinstance(here, ast.FunctionDef | ast.ClassDef) else above
        found = (visit(child, inside, statement) for child in ast.iter_child_nodes(here))
        return next((one for one in found if one is not None), None)

    found = visit(tree, [], None)
    assert found is not None
    return found


def text(node: ast.AST) -> str:
    """The first line of a statement."""
    return ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]
