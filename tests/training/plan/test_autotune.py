"""The autotuner: it takes what is clearly faster and computes the same, remembers it, and the run keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import BARE, TINY_SETS, draw_classes, recording
from tiny_config import tiny_config as config
from torch import Tensor, nn

from vitmed import VitmedError, train
from vitmed.core.config import Config
from vitmed.core.errors import UsageError
from vitmed.data.loading import Images
from vitmed.data.samples import Sample
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.models.hardware import compile_network, pick_precision, uncompiled
from vitmed.models.vit import ViT, use_attention
from vitmed.training.losses import Objective, objective_of
from vitmed.training.plan import autotune as tuning
from vitmed.training.plan.autotune import Engine, Race, Tuned, autotune, usual_engine

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with nothing else to do, and a cache of its own."""
    monkeypatch.setattr(tuning, "busy", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setenv("VITMED_CACHE", str(tmp_path / "cache"))


def objective() -> Objective:
    data = Images(Path(), [Sample("", label, None) for label in (0, 1)], Preprocessing(16, 3, "pad", "half"))
    return objective_of(data, 2, config(), pick_precision("fp32", CPU), CPU)


def tuned(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Engine], float], asked: Config | None = None,
    loss: Callable[[Engine], float] = lambda engine: 0.7, steps: int = 10**6,
) -> Tuned:  # fmt: skip
    """What is chosen on a machine where 50 images take `seconds`."""
    asked = asked or config()
    monkeypatch.setattr(Race, "_step", lambda race, engine: (seconds(engine) * len(race.images) / 50, loss(engine)))
    return autotune(ViT(asked.model, 2), objective(), asked, steps, torch.arange(2))


def only(name: str, value: Any, other: float = 1.0, this: float = 0.5) -> Callable[[Engine], float]:
    """Seconds of a machine on which engines with that setting take `this`."""
    return lambda engine: this if getattr(engine, name) == value else other


@pytest.mark.parametrize(
    "name, value", [("precision", "fp32"), ("attention", "fused"), ("threads", 2), ("threads", 1), ("compile", True)]
)
def test_what_is_clearly_faster_is_taken(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    monkeypatch.setattr(tuning, "pick_precision", lambda name, device: pick_precision("bf16", device))
    monkeypatch.setattr(tuning, "missing_compiler", lambda device: None)
    slower = {4: 1.0, 2: 0.8, 1: 0.5} if value == 1 else {4: 1.0, 2: 0.5, 1: 0.9}
    speed = (lambda engine: slower[engine.threads]) if name == "threads" else only(name, value)
    found = tuned(monkeypatch, speed)
    assert getattr(found.engine, name) == value
    usual = {"precision": "bf16", "attention": "explicit", "threads": 4, "compile": False}
    assert found.usual.model_dump() == usual and found.engine.model_dump() == usual | {name: value}
    assert found.rates == pytest.approx((100, 50)) and "100 images/s" in str(found) and ": 50)" in str(found)


def test_a_gain_within_the_noise_or_with_another_loss_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuning, "missing_compiler", lambda device: None)
    (tmp_path / "cache").write_text("a file")  # a cache that cannot be written is none
    found = tuned(monkeypatch, only("threads", 2, this=0.97))
    assert found.engine == found.usual
    wrong = tuned(monkeypatch, only("compile", True), loss=lambda engine: 0.6 if engine.compile else 0.7)
    assert not wrong.engine.compile
    assert tuned(monkeypatch, only("threads", 2)).engine.threads == 2


def test_what_is_set_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(train__precision="fp32", train__threads=4, train__compile=False, train__attention="explicit")
    assert not tuning.open_fields(asked) and not tuning.open_fields(config(train__autotune=False))
    asked = config(train__precision="fp32", train__threads=4, train__compile=False)
    found = tuned(monkeypatch, lambda engine: 0.1 if engine.precision == "bf16" or engine.compile else 1.0, asked)
    assert (found.engine.precision, found.engine.threads, found.engine.compile) == ("fp32", 4, False)


def test_short_runs_take_the_usual_engine_and_a_busy_machine_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuned(monkeypatch, only("threads", 2), steps=100)
    assert found.engine == found.usual and "too short" in str(found)
    found = tuned(monkeypatch, only("threads", 2), steps=10_000)  # the short run is not remembered
    assert found.engine.threads == 2
    monkeypatch.setattr(tuning, "busy", lambda: "other programs use 1.0 of 2 cores")
    found = tuned(monkeypatch, only("threads", 2), config(model__depth=2))
    assert found.engine.threads == 2 and "other programs use 1.0 of 2 cores" in str(found)
    monkeypatch.setattr(tuning, "busy", lambda: None)
    assert tuned(monkeypatch, only("threads", 4), config(model__depth=2)).engine.threads == 4


def test_a_time_limit_shortens_the_run_for_which_engines_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured, and above all nothing compiled, for the epochs that the time does not reach."""
    found = tuned(monkeypatch, only("compile", True), config(train__time=60.0), steps=10**6)
    assert not found.engine.compile


def test_without_memory_for_a_copy_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(engine: Engine) -> float:
        raise torch.OutOfMemoryError

    found = tuned(monkeypatch, full)
    assert found.engine == found.usual and "too little memory" in str(found)


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_what_is_compiled_is_the_batch_of_the_run_and_not_beside_others(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Another batch would be compiled once more. A run that is long only because others compute gains less than it
    costs, since the compiler takes as much longer."""
    monkeypatch.setattr(tuning, "missing_compiler", lambda device: None)
    sizes: list[int] = []

    def step(race: Race, engine: Engine) -> tuple[float, float]:
        race.computed, race.had = race.computed + share, race.had + 1
        sizes.extend([len(race.images)] * engine.compile)
        return (0.01 if engine.compile else 0.02) * len(race.images), 0.7

    monkeypatch.setattr(Race, "_step", step)
    asked = config(train__batch_size=32)
    steps = int(2 * tuning.COMPILES_FROM * 50 / 32)  # at 50 images/s twice as long as needed
    found = autotune(ViT(asked.model, 2), objective(), asked, steps, torch.arange(2))
    assert found.engine.compile == (share == 1) and set(sizes) == ({32} if share == 1 else set())


def test_without_a_compiler_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "nonesuch")
    monkeypatch.setenv("PATH", "")
    found = tuned(monkeypatch, only("compile", True))
    assert not found.engine.compile and "no C++ compiler (nonesuch) is installed" in str(found)


def test_the_answer_is_kept_for_the_same_network_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = tuned(monkeypatch, only("threads", 2))
    again = tuned(monkeypatch, only("threads", 1))
    assert (again.engine, again.rates) == (first.engine, first.rates) and "an earlier run" in str(again)
    assert tuned(monkeypatch, only("threads", 1), config(model__depth=2)) != first
    (file,) = (f for f in (tmp_path / "cache" / "autotune").iterdir() if "depth" not in f.name and first == _read(f))
    file.write_text("{torn")
    assert tuned(monkeypatch, lambda engine: 1.0).engine == first.usual


def _read(file: Path) -> Tuned:
    return Tuned.model_validate_json(file.read_text())


def test_measuring_changes_neither_the_network_nor_the_random_state() -> None:
    asked = config(model__stem="conv", model__drop_path=0.5, model__depth=2)
    network = ViT(asked.model, 2)
    before, drawn = {k: v.clone() for k, v in network.state_dict().items()}, torch.get_rng_state()
    found = autotune(network, objective(), asked, 10**5, torch.arange(2))
    assert found.rates is not None and min(found.rates) > 0
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_the_usual_engine_is_the_rule() -> None:
    assert usual_engine(config(train__precision="bf16"), CPU).attention == "explicit"
    assert usual_engine(config(train__precision="fp32"), CPU).attention == "fused"
    large = config(train__precision="bf16", model__image_size=400, model__patch_size=8)
    assert usual_engine(large, CPU).attention == "fused"


def test_both_attention_kernels_train_alike() -> None:
    network = ViT(config().model, 2)
    x, found = torch.randn(4, 3, 16, 16), []
    for kernel in ("fused", "explicit", "auto"):
        use_attention(network, kernel)
        network.zero_grad()
        network(x).square().sum().backward()
        found.append(network.blocks[0].attn.qkv.weight.grad.clone())  # type: ignore[union-attr,operator,index]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_a_run_keeps_what_was_chosen_and_goes_on_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 16)
    monkeypatch.setattr(tuning, "LEAST_STEPS", 0)
    chosen = Engine(precision="fp32", attention="explicit", threads=1, compile=False)
    monkeypatch.setattr(Race, "run", lambda race: Tuned(engine=chosen, usual=chosen))
    ui = recording()
    run = train(data, output=tmp_path, name="a", sets=TINY_SETS, **BARE).folder
    settings = yaml.safe_load((run / "config.yaml").read_text())["train"]
    assert {name: settings[name] for name in chosen.model_dump()} == chosen.model_dump()
    assert any("speed: fp32, explicit attention, 1 thread" in line for line in ui.said)
    monkeypatch.setattr(Race, "run", lambda race: pytest.fail("measured again"))
    train(resume=run, epochs=3)
    assert yaml.safe_load((run / "config.yaml").read_text())["train"]["attention"] == "explicit"


@pytest.mark.parametrize(
    "rates, reason",
    [
        pytest.param(None, pick_precision("auto", CPU).reason, marks=pytest.mark.slow),
        ((2.0, 1.0), "measured"),
    ],
)
def test_only_a_measured_precision_is_called_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rates: tuple[float, float] | None, reason: str
) -> None:
    data, settings = draw_classes(tmp_path / "data", 16), BARE | {"precision": "auto"}
    usual = usual_engine(config(), CPU)
    monkeypatch.setattr(Race, "run", lambda race: Tuned(engine=usual, usual=usual, rates=rates))
    run = train(data, output=tmp_path, name="a", sets=TINY_SETS, **settings).folder
    assert json.loads((run / "environment.json").read_text())["precision"] == f"{usual.precision}: {reason}"


def test_a_missing_compiler_ends_the_run_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 16)
    monkeypatch.setenv("CXX", "nonesuch")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no C\\+\\+ compiler"):
        train(data, output=tmp_path / "runs", sets=TINY_SETS, compile=True, **BARE)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_compiled_blocks_compute_the_same_with_the_same_masks() -> None:
    asked = config(model__depth=3, model__dropout=0.2, model__drop_path=0.3, model__stem="conv")
    network = ViT(asked.model, 2).train()
    x, y = torch.randn(8, 3, 16, 16), torch.arange(8) % 2

    def step(network: ViT) -> tuple[Tensor, Tensor]:
        network.zero_grad()
        torch.manual_seed(3)
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        gradient = network.blocks[0].mlp.fc1.weight.grad  # type: ignore[union-attr]
        return loss.detach(), gradient.clone()  # type: ignore[operator,return-value]

    plain = step(network)
    compile_network(network)
    for one, other in zip(plain, step(network), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    with uncompiled(True):
        assert torch.equal(step(network)[0], plain[0])
    assert set(network.state_dict()) == set(ViT(asked.model, 2).state_dict())


@pytest.mark.slow
def test_a_compiler_that_fails_loses_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "data", 16)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "false"))
    with pytest.raises(VitmedError, match="compiling the network failed") as caught:
        train(data, output=tmp_path, name="a", sets=TINY_SETS, compile=True, **BARE)
    assert "--no-compile" in str(caught.value.fix)
    assert train(resume=tmp_path / "a", compile=False).checkpoint is not None
    found = autotune(ViT(config().model, 2), objective(), config(), 10**8, torch.arange(2))
    assert not found.engine.compile and "the compiler failed" in str(found)
