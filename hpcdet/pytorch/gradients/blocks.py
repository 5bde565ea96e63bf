"""Which modules of a model are taken as one: to be sharded together, or computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from hpcdet.errors import ConfigError

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def layers(model: nn.Module) -> list[nn.Module]:
    """The items, those with parameters, of the outermost lists of modules in a model."""
    return list(dict.fromkeys(_layers(model)))


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, _LISTS):
        for item in module.children():
            if isinstance(item, nn.ModuleList | nn.ModuleDict):  # cannot be called itself
                yield from _layers(item)
            elif any(True for _ in item.parameters()):
                yield item
        return
    for child in module.children():
        yield from _layers(child)


def of_classes(model: nn.Module, names: Sequence[str], where: str) -> list[nn.Module]:
    """The modules of classes with these names, inner ones first.

    Raises:
        ConfigError: there is none of one of the names, or it is a mere list.
    """
    found = {name: [one for one in model.modules() if type(one).__name__ == name] for name in names}
    for name, modules in found.items():
        if not modules:
            there = sorted({type(one).__name__ for one in model.modules()})
            raise ConfigError(
                f"the model has no module of class {name!r}",
                where=where,
                hint=f"it has: {', '.join(there)}",
            )
        if isinstance(modules[0], nn.ModuleList | nn.ModuleDict):
            raise ConfigError(
                f"a {name} is never called itself", where=where, hint="name the class of its items"
            )
    chosen = {id(one) for modules in found.values() for one in modules}
    return [one for one in _inner_first(model) if id(one) in chosen]


def of_size(model: nn.Module, least: int) -> list[nn.Module]:
    """The smallest modules with at least so many parameters that no smaller one has taken."""
    taken: set[int] = set()
    found = []
    for module in _inner_first(model):
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        free = [one for one in module.parameters() if id(one) not in taken]
        if sum(one.numel() for one in free) >= least:
            taken.update(id(one) for one in free)
            found.append(module)
    return found


def _inner_first(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each after those inside it."""
    return list(model.modules())[::-1]
