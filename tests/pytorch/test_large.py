"""What is done to large models, on one process: which modules, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hpcdet.config import api as config
from hpcdet.errors import ConfigError
from hpcdet.pytorch.gradients import blocks, ddp, fsdp2, virtual_rank_state
from hpcdet.pytorch.gradients import buffers as _buffers
from hpcdet.pytorch.step import recompute, wrap
from hpcdet.store.config.placement import Fsdp2


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linear = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(torch.relu(self.linear(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 8)
        self.blocks = nn.ModuleList([nn.ModuleList([Block(), Block()]), Block(), nn.ReLU()])
        self.outlet = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x)
        for one in (*self.blocks[0], *self.blocks[1:]):
            x = one(x)
        result: torch.Tensor = self.outlet(x)
        return result


def test_units_are_found_by_place_class_and_size() -> None:
    model = Model()
    outer = [model.blocks[0][0], model.blocks[0][1], model.blocks[1]]  # type: ignore[index]
    assert blocks.layers(model) == outer
    assert set(fsdp2.find_units(model, Fsdp2(["Block"]))) == set(outer)
    by_size = fsdp2.find_units(model, Fsdp2(80))
    assert set(by_size) == set(outer)  # of 88 each; what is left is too small but for the whole
    nested = fsdp2.find_units(model, Fsdp2(["Block", "Linear"]))
    assert nested.index(outer[0].linear) < nested.index(outer[0])
    with pytest.raises(ConfigError, match="no module of class 'Blok'"):
        fsdp2.find_units(model, Fsdp2(["Blok"]))
    with pytest.raises(ConfigError, match="never called"):
        fsdp2.find_units(model, Fsdp2(["ModuleList"]))


def test_a_parameter_of_two_units_is_refused() -> None:
    model = Model()
    model.blocks[1].linear.weight = model.blocks[0][0].linear.weight  # type: ignore[index, union-attr]
    with pytest.raises(ConfigError, match=r"blocks\.0\.0\.linear\.weight and blocks\.1\.linear"):
        fsdp2._refuse_ties(model, blocks.layers(model))


@pytest.mark.parametrize("what", ["full", ["Model"]])
def test_what_is_computed_again_is_the_same(what: str | list[str]) -> None:
    """Gradients, running means and random numbers, with normalisation and dropout."""

    def train(again: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = Model()
        names = list(model.state_dict())
        if again:
            recompute.recompute(model, what)  # type: ignore[arg-type]
        model._apply(torch.clone)  # as a move to an accelerator: buffers are other tensors then
        for _ in range(2):
            model(torch.randn(5, 4)).square().sum().backward()
        assert list(model.state_dict()) == names
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        return [*gradients, *model.buffers(), torch.get_rng_state()]

    state = torch.get_rng_state()
    once, again = train(False), train(True)
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


class Caching(nn.Module):
    """As rotary embeddings do: a buffer that grows with the longest batch so far."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.empty(0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table.shape != x.shape:
            self.register_buffer("table", torch.arange(float(len(x))), persistent=False)
            self.register_buffer("first", torch.ones(1), persistent=False)
        self.seen += 1  # type: ignore[assignment, operator]
        return self.scale * self.table * x  # type: ignore[operator]


def test_a_model_may_make_its_buffers_anew() -> None:
    """While all begin with the same buckets, and from one virtual rank to the next."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Caching()
        ddp.Parallel(model, {})(torch.ones(3)).sum().backward()
        assert model.seen == 1 and model.scale.grad == 3
    finally:
        dist.destroy_process_group()
    model = Caching()
    buffers = virtual_rank_state.Buffers([model])
    for v in range(2):
        buffers.begin()
        model(torch.ones(3 + v))
        buffers.end(v)
    buffers._put(buffers._after)
    assert model.seen == 1 and len(model.table) == 4  # type: ignore[arg-type]


def test_caches_that_ranks_have_of_different_shapes_stay_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is sent beside them comes where it belongs, whoever has made one anew since."""
    first, second = [Caching()], [Caching()]
    kinds = {name: _buffers._kind(one) for name, one in _buffers.named(first).items()}
    told = {name: kind.encode() for name, kind in kinds.items()}
    peers = SimpleNamespace(allgather=lambda mine: [told, mine])
    assert _buffers.alike(second, peers).keys() == {"0.seen", "0.table"}  # type: ignore[arg-type]
    sent: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "broadcast", lambda message, src: sent.append(message.clone()))
    for lengths in ((0, 5), (3, 0), (3, 5), (5, 5)):
        sent.clear()
        for [model], length in zip((first, second), lengths, strict=True):
            model.table = torch.full((length,), 7.0)
            model.seen.fill_(length)  # type: ignore[operator]
        _buffers.from_first(first, kinds, first=True)
        with monkeypatch.context() as patch:
            patch.setattr(dist, "broadcast", lambda message, src: message.copy_(sent.pop(0)))
            _buffers.from_first(second, kinds, first=False)
        assert second[0].seen == lengths[0] and second[0].table.tolist() == [7.0] * lengths[1]  # type: ignore[operator]
    second[0](torch.ones(2))
    assert _buffers.alike(second, peers).keys() == {"0.seen"}  # type: ignore[arg-type]


def test_a_node_without_a_compiler_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"C\+\+ compiler"):
        wrap._compile([nn.Linear(1, 1)], {})
    wrap._compile([nn.Linear(1, 1)], {"backend": "aot_eager"})
    with pytest.raises(ConfigError, match="zip"):
        wrap._compile([nn.Linear(1, 1)], {"backend": "zip"})


def test_what_has_no_effect_is_said(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "entrypoint: m:T\nsearcher: {max_length: 5}\ndistributed: {fsdp2: {units: 9}}\n"
        "optimizations: {gradient_compression: bf16, compile: {dynamic: true}}\n"
    )
    said = "\n".join(map(str, config.load(file).warnings))
    assert "one slot sends no gradients" in said
    assert "has no effect with strategy ddp" in said
    assert "bits depend on which shapes" in said


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("distributed: {strategy: fsdp2}", "a trial has one"),
        (
            "distributed: {strategy: fsdp2}\nresources: {slots_per_trial: 2}\n"
            "optimizations: {gradient_compression: fp16}",
            "reduce_dtype",
        ),
        ("optimizations: {compile: {mod: default}}", "no option 'mod'"),
        ("optimizations: {compile: {fullgraph: y}}", "true or false, got 'y'"),
        (
            "optimizations: {compile: {dynamic: true}}\nreproducibility: {deterministic: true}",
            "which shapes an attempt has seen",
        ),
        (
            "optimizations: {gradient_compression: zip}",
            "'bf16' or 'powersgd' or true or false, got 'zip'",
        ),
        ("optimizations: {activation_checkpointing: ful}", "'full' or a list.*\n.*mean 'full'"),
        ("profiling: {begin_on_batch: 5, end_after_batch: 3}", "3, comes before the first, 5"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"entrypoint: m:T\nsearcher: {{max_length: 5}}\n{text}\n")
    with pytest.raises(ConfigError, match=match):
        config.load(file)


def test_both_sides_read_the_same_config(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "entrypoint: m:T\nsearcher: {max_length: 5}\nresources: {slots_per_trial: 2}\n"
        "distributed: {strategy: fsdp2, fsdp2: {units: [Block], param_dtype: bf16}}\n"
        "optimizations: {compile: {mode: max-autotune}, activation_checkpointing: [Block]}\n"
    )
    made = config.load(file).config
    assert made.distributed.fsdp2 == Fsdp2(["Block"], param_dtype="bf16")
    assert made.optimizations.compile == {"mode": "max-autotune"}
    assert made.optimizations.activation_checkpointing == ["Block"]
    file.write_text(
        "entrypoint: m:T\nsearcher: {max_length: 5}\noptimizations: {gradient_compression: true}\n"
    )
    assert config.load(file).config.optimizations.gradient_compression is True
