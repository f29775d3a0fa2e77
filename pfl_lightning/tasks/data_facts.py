"""Facts about the data that fill parameters of a user's class by name, such as `num_classes`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pfl_lightning.foundation.errors import ConfigError

if TYPE_CHECKING:
    from pfl_lightning.data.federated import DataSpec

NAMES = ("spec", "num_classes", "in_channels", "in_chans", "input_shape", "in_features")
"""Parameter names filled in:

spec: the `DataSpec`. num_classes: the number of classes, or of numbers to predict. in_channels and in_chans: the
channels of images. input_shape: the shape of one sample. in_features: the number of values in one sample.
"""


def data_facts(spec: DataSpec) -> dict[str, Any]:
    """The value for each name that the data can fill."""
    facts: dict[str, Any] = {
        "spec": spec,
        "num_classes": spec.num_classes,
        "input_shape": tuple(spec.shape),
        "in_features": math.prod(spec.shape),
    }
    if len(spec.shape) > 1:
        facts |= {"in_channels": spec.shape[0], "in_chans": spec.shape[0]}
    return facts


def call_with_facts(make: Callable[..., Any], spec: DataSpec, key: str) -> Any:
    """Call a class or function, and fill its parameters that bear the name of a fact.

    Values that the user gave win. A function of one other parameter gets the `DataSpec`, as in `lambda spec: …`.

    Args:
        make: the class or function. It may be a `partial` with values of the user's.
        spec: the shape of the data.
        key: the setting that `make` comes from, for error messages.
    """
    target, given = unwrap(make)
    facts = data_facts(spec)
    parameters = inspect.signature(target).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    is_function = not inspect.isclass(target)
    if is_function and any(p.kind is p.VAR_KEYWORD for p in parameters) and not named & facts.keys():
        named |= {"num_classes"} | ({"in_chans"} if target.__module__.startswith("timm.") else set())
    filled = {name: facts[name] for name in NAMES if name in named and name in facts and name not in given}
    places = (p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    missing = [p.name for p in places if p.default is p.empty and p.name not in (*filled, *given)]
    if not filled and len(missing) == 1 and is_function:
        return make(spec)
    if missing:
        raise ConfigError(f"{key}.{missing[0]}: missing; give it a value, the data does not tell")
    return make(**filled)


def unwrap(make: Callable[..., Any]) -> tuple[Any, Mapping[str, Any]]:
    """The class or function inside `make`, and the values given already."""
    if not isinstance(make, partial):
        return make, {}
    # the parser of configs makes partial(helper, …, class, **values)
    inner = next((argument for argument in reversed(make.args) if inspect.isclass(argument)), make.func)
    target, given = unwrap(inner)
    return target, {**given, **make.keywords}
