"""Damage files at random and count what vitmed does with them: nothing may crash, hang or pass as something else.

    python benchmarks/fuzz.py checkpoints --count 5000
    python benchmarks/fuzz.py weights --count 5000
    python benchmarks/fuzz.py configs --count 1000
    python benchmarks/fuzz.py tables --count 1000

Case i of a seed is always the same file. Each case is one mutated file and ends as one of `OUTCOMES`:

    refused     a VitmedError, as it should be
    same        accepted, with the result of the whole file: the damage hit nothing that counts
    other       accepted, with another result, where nothing in the file could reveal the change
    different   accepted, with another result, although the file holds checksums: a fault
    crashed     any other exception, or the process died: a fault
    hung        more than `LIMIT` seconds: a fault

To add a subject: a `Subject` with its whole files, `mutate` and `use`, and an entry in `SUBJECTS`.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import random
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitmed.core.base_models import CLASSES
from vitmed.core.config import DataConfig, ModelConfig, PretrainConfig
from vitmed.core.errors import VitmedError
from vitmed.core.load_config import load_config
from vitmed.data.label_kinds import LabelRequest
from vitmed.data.listing import labels_from_table
from vitmed.data.patients import groups_from_table
from vitmed.data.samples import Sample, Splits, labelled_by
from vitmed.decisions.out_of_distribution import fit_ood_score
from vitmed.decisions.policy import choose_policy
from vitmed.inference.checkpoint import (
    add_policy,
    load_checkpoint,
    load_pretraining,
    save_checkpoint,
    save_encoder,
    save_pretraining,
)
from vitmed.metrics.predictions import Predictions
from vitmed.models.hardware import Precision
from vitmed.models.mae import MAE
from vitmed.models.vit import ViT
from vitmed.models.weights.files import digests_of
from vitmed.models.weights.pretrained import config_for_weights, load_pretrained, read_weights
from vitmed.training.train_state import TrainState, new_state

LIMIT = 10  # seconds
CHUNK = 100  # cases that a process takes at a time
OUTCOMES = ("refused", "same", "other", "different", "crashed", "hung")
FAULTS = ("different", "crashed", "hung")
CPU = torch.device("cpu")
TINY = {"model.image_size": 16, "model.patch_size": 8, "model.width": 16, "model.depth": 1, "model.heads": 2}
SMALL_DECODER = 16, 1, 2  # width, depth and heads


class Mutant(NamedTuple):
    """A damaged file; `revealed` is whether a checksum in it shows the damage."""

    data: bytes
    revealed: bool


class Subject(NamedTuple):
    """What is damaged, and how it is used.

    Attributes:
        make: writes the whole files into a folder, and returns them.
        mutate: a random damage of one of them.
        use: reads it as the commands do; what it returns is compared with `==`.
    """

    make: Callable[[Path], list[Path]]
    mutate: Callable[[random.Random, Path], Mutant]
    use: Callable[[Path], Any]


# --- damage


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """One to three flips, cuts, swaps, insertions or overwritten runs."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        size = len(changed)
        at, length = rng.randrange(size + 1), rng.choice((1, 4, 64, 1000))
        kind = rng.randrange(6)
        if kind == 0 and size:
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = rng.randbytes(length)
        elif kind == 4:
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        else:
            other = rng.randrange(size + 1)
            one, two = changed[at : at + length], changed[other : other + length]
            if len(one) == len(two):
                changed[at : at + length], changed[other : other + length] = two, one
    return bytes(changed)


def nested(depth: int) -> list[Any]:
    """Lists inside each other."""
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


ODD: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 10**30, lambda: 1e9, lambda: float("nan"),
    lambda: float("-inf"), lambda: "", lambda: "\0", lambda: "../" * 50, lambda: "x" * 100_000, lambda: "\udce9",
    list, dict, lambda: (), lambda: [None], lambda: {"a": 1}, lambda: {1: {2: 3}}, lambda: nested(50),
    lambda: nested(500), lambda: torch.zeros(0), lambda: torch.zeros(3, 5), lambda: torch.tensor(float("nan")),
    lambda: torch.zeros(1).expand(10**6, 10**6), lambda: torch.zeros(3, dtype=torch.int8), lambda: bytearray(b"ab"),
)  # fmt: skip


def mutate_tensor(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor: signs, shape, type or some numbers are changed."""
    floats = tensor.double()
    return rng.choice(
        [
            lambda: -tensor if tensor.dtype != torch.bool else ~tensor,
            lambda: tensor.half(),
            lambda: tensor.double(),
            lambda: tensor.reshape(-1),
            lambda: tensor[None],
            lambda: tensor.mT if tensor.ndim > 1 else tensor[:0],
            lambda: torch.cat([tensor.reshape(-1)] * 2),
            lambda: torch.where(torch.rand_like(floats) < 0.1, torch.nan, floats).to(tensor.dtype),
            lambda: (floats * 1e30).to(tensor.dtype),
            lambda: tensor.to_sparse(),
        ]
    )()


def mutate_tree(rng: random.Random, tree: Any) -> None:
    """Change one place of a tree of dicts and lists, in place."""
    place = tree
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = rng.choice(keys)
        inner = place[key]
        if not (isinstance(inner, dict | list) and len(inner)) or rng.random() < 0.15:
            break
        place = inner
    kind = rng.randrange(10)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[rng.choice((f"{key}_", 5, None, "x" * 1000))] = place.pop(key)
    elif kind == 2:
        place[key] = rng.choice((tree, place))
    elif isinstance(inner, torch.Tensor) and kind < 8:
        place[key] = mutate_tensor(rng, inner)
    elif isinstance(inner, str) and kind < 5:
        place[key] = inner[::-1] + "x"
    elif isinstance(inner, int | float) and kind < 5:
        place[key] = inner * rng.choice((-1, 2, 10**9, 0.5))
    else:
        place[key] = rng.choice(ODD)()


def mutate_torch(rng: random.Random, file: Path) -> Mutant:
    """Half of the mutants are damaged in bytes; in the others one value is changed, and the file saved again."""
    if rng.random() < 0.5:
        return Mutant(mutate_bytes(rng, file.read_bytes()), True)
    content = torch.load(file, weights_only=True)
    mutate_tree(rng, content)
    how = rng.choice(("stale", "stale", "forged", "old"))  # what becomes of the digests
    revealed = how == "stale" and isinstance(content, dict) and "digests" in content
    if isinstance(content, dict) and how != "stale":
        content.pop("digests", None)
        if how == "forged":
            try:
                content["digests"] = digests_of(content)
            except Exception:  # of a tree that contains itself, or is no checkpoint at all
                revealed = False
    stream = io.BytesIO()
    try:
        torch.save(content, stream)
    except RecursionError:
        return Mutant(mutate_bytes(rng, file.read_bytes()), True)
    return Mutant(stream.getvalue(), revealed)


def mutate_text(rng: random.Random, file: Path) -> Mutant:
    """Bytes, lines or words of a text file."""
    data = file.read_bytes()
    if rng.random() < 0.4:
        return Mutant(mutate_bytes(rng, data), False)
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    words = (
        b"1e999", b"-1", b"9" * 5000, b"nan", b".inf", b"2001-99-99", b"*a", b"&a [*a]", b"!!python/name:os.system",
        b"!!binary ===", b"!!set {1, 2}", b"[" * 100_000, b"{" * 3000, b"'", b'"', b"\xff", b"\0", b"x" * 200_000,
        b"<<: {a: b}", b"? [a, b]", b": : :", b",,,,,", b";", b"\t", b"\r", b"", b"\xef\xbb\xbf", b"=1+1",
    )  # fmt: skip
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(5), rng.randrange(len(lines))
        if kind == 0:
            lines.insert(at, rng.choice(lines))
        elif kind == 1:
            lines[at] = rng.choice(words)
        elif kind == 2:
            head, mark, _ = lines[at].partition(rng.choice((b":", b",")))
            lines[at] = head + mark + b" " + rng.choice(words)
        elif kind == 3:
            lines[at] = b"  " + lines[at] + rng.choice(words)
        else:
            del lines[at]
            lines = lines or [b""]
    return Mutant(b"\n".join(lines), False)


# --- subjects


def splits_of(folder: Path) -> Splits:
    """Membership of images that need not exist."""
    samples = {
        name: tuple(Sample(f"{name}/{'ab'[i % 2]}/{i}.png", i % 2, f"P{i}") for i in range(6))
        for name in ("train", "val", "test")
    }
    return Splits(folder / "data", ("a", "b"), samples, dict.fromkeys(samples, "drawn"))


def trained_state(model: torch.nn.Module, config: Any) -> TrainState:
    """A state after one step of the optimiser."""
    state = new_state(model, config, 2, CPU, Precision("fp32", torch.float32, "chosen"))
    squares = [parameter.square().sum() for parameter in model.parameters() if parameter.requires_grad]
    torch.stack(squares).sum().backward()
    state.optimiser.step()
    state.optimiser.zero_grad()
    return state


def training_config() -> Any:
    return load_config(None, {**TINY, "model.stem": "patch", "model.pool": "cls", "data.root": "data"})


def pretraining_config() -> Any:
    return load_config(None, {**TINY, "data.root": "data"}, kind=PretrainConfig)


def make_checkpoints(folder: Path) -> list[Path]:
    """best.pt with a policy, last.pt, and the last.pt and encoder.pt of a pretraining."""
    torch.manual_seed(0)
    splits, rng = splits_of(folder), np.random.default_rng(0)
    hashes = {name: [f"{i:064}" for i in range(6)] for name in splits.samples}
    config = training_config()
    model = ViT(config.model, 2)
    weights, training = dict(model.state_dict()), trained_state(model, config).state_dict()
    record = {"epoch": 1, "val_loss": 0.5}
    best, last, pretraining, encoder = (folder / name for name in ("best.pt", "last.pt", "mae.pt", "encoder.pt"))
    save_checkpoint(best, config, splits, hashes, weights=weights, record=record)
    save_checkpoint(last, config, splits, hashes, weights=weights, record=record, training=training)
    features, classes = rng.normal(size=(60, 16)), np.arange(60) % 2
    samples = tuple(Sample(f"{i}.png", int(i % 2), None) for i in range(60))
    logits = np.stack([-features[:, 0], features[:, 0] + classes], axis=1).astype(np.float32)
    validation = labelled_by(CLASSES, ("a", "b"), samples, logits, None)
    score = fit_ood_score(features, classes, features)
    add_policy(best, choose_policy(validation, config.evaluate, score, load_checkpoint(best).weights_hash))
    config = pretraining_config()
    mae = MAE(ViT(config.model, 1), config.mae.mask_ratio, *SMALL_DECODER)
    state = trained_state(mae, config).state_dict()
    save_pretraining(pretraining, config, splits, hashes, state)
    weights = {name: value for name, value in mae.encoder.state_dict().items() if not name.startswith("head")}
    save_encoder(encoder, config, hashes, weights, {"epoch": 1})
    return [best, last, pretraining, encoder]


def logits_of(model: ViT) -> list[list[float]]:
    side, channels = model_input(model)
    image = torch.linspace(-1, 1, channels * side * side).reshape(1, channels, side, side)
    with torch.inference_mode():
        return model.eval()(image).tolist()


def model_input(model: ViT) -> tuple[int, int]:
    """Side and channels of the images that a network with a patch stem reads."""
    kernel = model.state_dict()["patch_embed.proj.weight"]
    return round(model.patches**0.5) * kernel.shape[-1], kernel.shape[1]


def use_checkpoint(path: Path) -> Any:
    """What the commands take from a checkpoint: logits, decisions, splits; and the state to resume from."""
    kind = path.suffixes[0]
    if kind == ".encoder":
        return use_weights(path)
    if kind == ".mae":
        begun = load_pretraining(path)
        network = ViT(begun.config.model.model_copy(update={"pool": "cls"}), 1)
        mae = MAE(network, begun.config.mae.mask_ratio, *SMALL_DECODER)
        of_mae = resumed(path, mae, begun.config, begun.training)
        return str(begun.config), begun.hashes, begun.splits.samples, str(of_mae)
    saved = load_checkpoint(path)
    model = saved.model()
    samples = saved.splits.samples["test"]
    logits = np.array(logits_of(model) * len(samples), np.float32)
    found = labelled_by(CLASSES, saved.classes, samples, logits, saved.config.data.positive)
    if saved.policy is not None:
        features = np.linspace(-1, 1, len(samples) * 16).reshape(-1, 16)
        if saved.policy.ood_score is not None:
            scores = saved.policy.ood_score.score(features).tolist()
            found = Predictions(**{**vars(found), "columns": {"ood_score": tuple(map(str, scores))}})
        found = saved.policy.apply(found)
    state = None if saved.training is None else resumed(path, ViT(saved.config.model, 2), saved.config, saved.training)
    return (
        saved.classes, found.probabilities.tolist(), found.predicted.tolist(), found.columns, str(saved.config),
        saved.hashes, saved.splits.samples, saved.record, saved.weights_hash, str(state),
    )  # fmt: skip


def resumed(path: Path, model: torch.nn.Module, config: Any, training: dict[str, Any]) -> Any:
    """The state after `--resume`, with the errors that `Run.resume` turns into its own."""
    state = new_state(model, config, 2, CPU, Precision("fp32", torch.float32, "chosen"))
    try:
        state.load_state_dict(training)
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise VitmedError(f"{path}: {error}") from None
    trained_state(model, config)
    return state.state_dict()


def make_weights(folder: Path) -> list[Path]:
    """One state dict as .pth, .npz and .safetensors, the old format of torch, and an encoder."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = ViT(ModelConfig(image_size=16, patch_size=8, width=64, depth=1, heads=1), 3).state_dict()
    files = [folder / name for name in ("w.pth", "old.pth", "w.npz", "w.safetensors")]
    torch.save({"model": state, "epoch": 3, "args": ["x"]}, files[0])
    torch.save({"model": state}, files[1], _use_new_zipfile_serialization=False)
    np.savez(files[2], **{name: value.numpy() for name, value in state.items()})
    save_file(dict(state), files[3])
    return [*files, make_checkpoints(folder)[3]]


def mutate_weights(rng: random.Random, file: Path) -> Mutant:
    if file.suffix == ".pt":
        return mutate_torch(rng, file)
    if file.name == "w.pth" and rng.random() < 0.5:
        return mutate_torch(rng, file)._replace(revealed=False)
    zipped = file.suffix in (".npz", ".pth") and file.name != "old.pth"
    return Mutant(mutate_bytes(rng, file.read_bytes()), zipped)


def use_weights(path: Path) -> Any:
    """The network that starts from a weight file."""
    weights = read_weights(path)
    config = config_for_weights(ModelConfig(), weights)
    model = ViT(config, 2)
    torch.manual_seed(0)
    report = load_pretrained(model, weights)
    model.head.weight.data.fill_(0.1)
    model.head.bias.data.zero_()
    return logits_of(model), weights.seen, weights.normalize, report.loaded


def make_configs(folder: Path) -> list[Path]:
    whole, recipe = folder / "whole.yaml", folder / "recipe.yaml"
    whole.write_text(load_config(None, {**TINY, "data.root": "data"}).to_yaml())
    recipe.write_text(
        "data: {root: data, group_regex: 'C(\\d+)'}\n# few\ntrain:\n  lr: 1e-4\n  epochs: 3\nmodel:\n  width: 16\n"
    )
    return [whole, recipe]


def use_config(path: Path) -> Any:
    return str(load_config(path))


PATHS = [f"a/{i}.png" for i in range(8)]


def make_tables(folder: Path) -> list[Path]:
    labels, predicted = folder / "labels.csv", folder / "predictions.csv"
    rows = [f"a/{i}.png,{'ab'[i % 2]},P{i % 4},{('train', 'val', 'test')[i % 3]},{i}" for i in range(8)]
    labels.write_text("\n".join(["path,label,patient,split,age", *rows]) + "\n")
    samples = tuple(Sample(path, i % 2, f"P{i}") for i, path in enumerate(PATHS))
    logits = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    predicted.write_text(labelled_by(CLASSES, ("a", "b"), samples, logits, None).to_csv())
    return [labels, predicted]


def use_table(path: Path) -> Any:
    if ".labels" in path.suffixes:
        return str(labels_from_table(path, path.parent, PATHS, LabelRequest(DataConfig()))), groups_from_table(
            path, path.parent, PATHS
        )
    found = Predictions.from_csv(path)
    return found.classes, found.paths, found.probabilities.tolist(), found.predicted.tolist(), found.notes


SUBJECTS = {
    "checkpoints": Subject(make_checkpoints, mutate_torch, use_checkpoint),
    "weights": Subject(make_weights, mutate_weights, use_weights),
    "configs": Subject(make_configs, mutate_text, use_config),
    "tables": Subject(make_tables, mutate_text, use_table),
}


# --- the run


class Outcome(NamedTuple):
    case: int
    kind: str
    why: str


class Hung(BaseException):
    """Not an Exception, which the code under test may catch."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def place_of(folder: Path, source: Path) -> Path:
    """Where the mutant of a file lies: `mutant.<stem of the source><its suffix>`."""
    return folder / "mutants" / f"mutant.{source.stem}{source.suffix}"


def try_case(name: str, folder: Path, files: list[Path], wholes: dict[str, Any], seed: int, case: int) -> Outcome:
    """Damage one file, use it, and say what happened."""
    subject = SUBJECTS[name]
    rng = random.Random(f"{name} {seed} {case}")
    source = files[case % len(files)]
    mutant = subject.mutate(rng, source)
    path = place_of(folder, source)
    path.write_bytes(mutant.data)
    try:
        with time_limit(LIMIT):
            result = subject.use(path)
    except VitmedError as error:
        return Outcome(case, "refused", error.problem)
    except Hung:
        return Outcome(case, "hung", source.name)
    except Exception:
        return Outcome(case, "crashed", traceback.format_exc())
    if repr(result) == repr(wholes[source.name]):
        return Outcome(case, "same", source.name)
    return Outcome(case, "different" if mutant.revealed else "other", source.name)


def try_cases(name: str, cases: range, seed: int = 0) -> list[Outcome]:
    """Try some cases in this process, with files of its own."""
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place)
        (folder / "mutants").mkdir()
        files, wholes = SUBJECTS[name].make(folder), {}
        for file in files:
            whole = place_of(folder, file)
            whole.write_bytes(file.read_bytes())
            wholes[file.name] = SUBJECTS[name].use(whole)
        return [try_case(name, folder, files, wholes, seed, case) for case in cases]


def in_worker(name: str, cases: range, seed: int) -> list[Outcome]:
    """`try_cases` in a process that ends itself where it hangs in code that no signal interrupts."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT * (20 + len(cases)), exit=True)
    try:
        return try_cases(name, cases, seed)
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="print an example of every reason for a refusal")
    args = parser.parse_args()
    outcomes: list[Outcome] = []
    chunks = [range(start, min(start + CHUNK, args.count)) for start in range(0, args.count, CHUNK)]
    for at in range(0, len(chunks), args.workers):
        with ProcessPoolExecutor(args.workers) as pool:  # a new one each time, since a dead worker ends its pool
            part = chunks[at : at + args.workers]
            for cases, future in [(cases, pool.submit(in_worker, args.subject, cases, args.seed)) for cases in part]:
                try:
                    found = future.result()
                except BrokenProcessPool:
                    found = [Outcome(case, "crashed", "the process of these cases died") for case in cases]
                for outcome in found:
                    if outcome.kind in FAULTS:
                        print(f"case {outcome.case}: {outcome.kind}\n{outcome.why}", flush=True)
                outcomes += found
        count = Counter(outcome.kind for outcome in outcomes)
        tally = ", ".join(f"{count[kind]:,} {kind}" for kind in OUTCOMES)
        print(f"{args.subject}: {len(outcomes):,} tried; {tally}", flush=True)
    if args.verbose:
        reasons = Counter(o.why.partition(": ")[2][:150] for o in outcomes if o.kind == "refused")
        for why, number in reasons.most_common(60):
            print(f"{number:6} {why}")
    raise SystemExit(any(outcome.kind in FAULTS for outcome in outcomes))


if __name__ == "__main__":
    main()
