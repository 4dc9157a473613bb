"""Which options of a command exclude each other: the errors, and the table of docs/configuration.md, come from here."""

from __future__ import annotations

from typing import Any, NamedTuple

from vitmed.core.errors import UsageError


class Exclusion(NamedTuple):
    """Options that a command refuses together, before it reads an image.

    Attributes:
        commands: their names, with spaces between.
        options: one of these ...
        beside: ... is not taken beside these options, or in this case.
        problem: the message; `{given}` is what the user gave.
        fix: what to do instead.
    """

    commands: str
    options: str
    beside: str
    problem: str
    fix: str


def excluded(key: str, **given: Any) -> UsageError:
    """The error of a row of `EXCLUSIONS`, to be raised; `given` fills the gaps of its message."""
    row = EXCLUSIONS[key]
    return UsageError(row.problem.format(**given), row.fix)


PARTS = "--output, --shard, --features"
SETTINGS = "DIR, --config, --name, --set, any setting"
EXCLUSIONS = {
    "resume and name": Exclusion(
        "train pretrain", "--resume", "--name", "--resume continues in the run's own folder", "leave --name out"
    ),
    "resume of folds": Exclusion(
        "train cross-validate",
        "--resume of folds",
        SETTINGS,
        "--resume uses the configuration of the folds",
        "give --resume alone",
    ),
    "resume of auto": Exclusion(
        "auto", "--resume", SETTINGS, "--resume uses the settings of the run", "give --resume alone"
    ),
    "resume of tune": Exclusion(
        "tune",
        "--resume",
        f"{SETTINGS}, --prune, --seeds, --space, --grid",
        "--resume uses the settings of the study",
        "with --resume, add only --trials, --time, --parallel and --devices",
    ),
    "no test": Exclusion(
        "train cross-validate",
        "--no-test",
        "--fail-under, --freeze, --folds",
        "--no-test leaves the test out, which {given} needs",
        "leave one of the two out",
    ),
    "parallel": Exclusion(
        "train",
        "--parallel",
        "one run, without --folds",
        "--parallel {given}: one run is not divided",
        "--folds 5, or --devices for one run",
    ),
    "choices of auto": Exclusion(
        "auto",
        "--folds, --sites, --freeze, --no-test",
        "always",
        "--folds, --sites, --freeze and --no-test: auto decides these",
        "leave them out",
    ),
    "choices of tune": Exclusion(
        "tune",
        "--folds, --freeze, --no-test",
        "always",
        "--folds, --freeze and --no-test do not go with tune",
        "leave them out",
    ),
    "grid": Exclusion(
        "tune",
        "--grid, --seeds",
        "--space, --trials, --prune; --seeds without --grid",
        "--seeds go with --grid, and --space, --trials and --prune do not",
        "leave some out",
    ),
    "gate of a ranking": Exclusion(
        "probe",
        "--fail-under",
        "several --weights",
        "--fail-under is about the test, which a ranking of weights does not read",
        "omit it",
    ),
    "table": Exclusion(
        "evaluate",
        "--data, --split, --allow-leakage, --unlike, --precision, --group-regex, --groups, --labels, --device",
        "a predictions.csv",
        "{given}: a predictions.csv is evaluated without model and images",
        "leave it out, or name the checkpoint instead of the table",
    ),
    "table or parts": Exclusion(
        "predict",
        "--csv, --plot",
        PARTS,
        "--csv and --plot do not go with --output, --shard and --features",
        "vitmed merge FOLDER",
    ),
    "classes of parts": Exclusion(
        "predict",
        "--top-k, --force",
        PARTS,
        "--top-k and --force do not go with --output, --shard and --features",
        "leave them out: a finished part is kept, and the parts hold every class",
    ),
    "folder of parts": Exclusion(
        "predict",
        "--shard, --features",
        "without --output",
        "--shard and --features write parts into a folder",
        "name it: --output FOLDER",
    ),
    "goal": Exclusion(
        "sample-size",
        "--half-width",
        "--lower-bound; one of them is needed",
        "expected one goal: --half-width or --lower-bound",
        "for example --half-width 0.05",
    ),
    "power": Exclusion(
        "sample-size",
        "--power",
        "--half-width",
        "--power needs --lower-bound",
        "omit --power: --half-width is the half width on average",
    ),
    "certificate": Exclusion("serve", "--tls-key", "without --tls-cert", "--tls-key goes with --tls-cert", "name both"),
    "key": Exclusion(
        "serve", "--no-key", "--api-key-file, VITMED_API_KEY", "there is a key, and --no-key", "leave one of them out"
    ),
    "no torch": Exclusion(
        "bundle",
        "--no-torch",
        "without --onnx, of a checkpoint",
        "--no-torch needs an exported model",
        "name one of this run: --onnx model.onnx",
    ),
}
