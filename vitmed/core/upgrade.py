"""What earlier versions wrote: files of 0.1.0 and 0.2.0 as those of today, and what to use instead of what is gone.

Every reader of an older file calls a function here, dict in and today's dict out. A name of 0.1.0 is reported once, as
an `OldNameWarning`. A stored setting that changes nothing is dropped; what needs a part that is gone is refused by a
sentence that names the version which has it. An entry of the tables stays for one version, then it goes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vitmed.core.errors import UsageError

READER = "0.2.0"  # the last version that has what is listed here
PRETRAIN_FIRST = "vitmed pretrain DIR, then vitmed train DIR --weights RUN/encoder.pt"

COMMANDS: dict[str, str] = {  # `vitmed NAME` -> what to use instead
    "lr-find": "the plan sets the rate: vitmed plan DATA shows it, vitmed train --lr sets another",
    "sweep": "vitmed tune DIR --grid model.heads=2,4,8 --seeds 0,1,2",
}
NODE = "dicom-port dicom-host ae allow watch to output spool modality body-part view"  # of a DICOM node
FLAGS: dict[str, str] = {  # "--flag", or "command --flag" where other commands have it -> what to use instead
    **{f"serve --{flag}": "let Orthanc ask vitmed serve: docs/orthanc.md" for flag in NODE.split()},
    "check --leakage-gap": "leave it out: splits are by patient",
    "bundle --wheels": "PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR before the command",
    "bundle --report": "copy report.html of the test yourself",
    "runs --html": "--json has the table, and report.html of a run its curves",
    "runs --force": "leave it out: no page is written",
    "--int8": "export without it and quantise the file with onnxruntime, see docs/export.md",
    "--conformal": "leave it out: prediction sets order the classes by probability (LAC)",
    "--pretrain": PRETRAIN_FIRST,
    "--pretrain-epochs": "vitmed pretrain --epochs",
    "--pretrain-also": "vitmed pretrain --unlabelled",
    "--join": "--parallel N on one machine; on several, vitmed train --folds N --fold K as a Slurm array",
}
# "section.field" -> its values that change nothing, None for all; what to use instead of the others
SETTINGS: dict[str, tuple[list[Any] | None, str]] = {
    "data.cache_mb": (None, "leave it out"),
    "evaluate.conformal": (["lac"], "leave it out"),
    "model.head": (["auto", "linear"], "leave it out"),
    "train.loss": (["auto", "cross_entropy", "binary", "gaussian"], "leave it out"),
    "train.pretrain": ([False], PRETRAIN_FIRST),
    "train.pretrain_epochs": ([None], "vitmed pretrain --epochs"),
    "train.pretrain_also": ([None], "vitmed pretrain --unlabelled"),
}
# "section.field" or "command.keyword" -> {value that is gone: what to use instead}
VALUES: dict[str, dict[Any, str]] = {
    "augment.policy": {"views": "leave it out"},
    "ensemble.way": {"soup": "--way mean"},
    "train.monitor": {
        "median_error": "mae",
        **{f"{name}_weighted": name for name in ("auroc", "average_precision")},
        **{f"{name}_weighted": f"{name}_macro" for name in ("sensitivity", "specificity", "ppv", "npv", "f1")},
    },
}
NAMES: dict[str, dict[str, str]] = {  # "section.field" -> {name in its list that never changed a result: what to use}
    "evaluate.format": {"pdf": "print report.html from any browser; --format paper has the figures as PDF"},
    "train.track": {"tensorboard": "--track mlflow or --track wandb"},
}

# Names of 0.1.0 -> those of today
COLUMNS = {"unfamiliarity": "ood_score"}  # of predictions.csv
HOLDER = {"judgement": "policy"}  # key in best.pt, and in metrics.json under `report`
RESULTS = {"familiarity": "out_of_distribution"}  # keys of metrics.json
FLOW = {"judged": "evaluated"}  # keys of metrics.json under `flow`
OUT_OF_DISTRIBUTION = {  # and of that part of it
    "n_unfamiliar": "n_above",
    "error_rate_familiar": "error_rate_below",
    "error_rate_unfamiliar": "error_rate_above",
}
GONE = (  # parts of a metrics.json, each by the keys that lead to it
    "fixed_rates.specificity",
    "conformal.score",
    "one_against_rest",
    "co_occurrence",
    "finding_errors.pairs",
    "label_errors.pairs",
    "member_disagreement",
    "interval_levels",
    "patient_level.noisy_or",
    "patient_level.best_on_validation",
    "per_patient.heap",
    "prevalence.curve",
    *(f"overall.{name}" for name in VALUES["train.monitor"]),
    "error_by_range.equalised_odds",
    *(
        f"calibration.{when}.{name}"
        for when in ("before", "after")
        for name in ("ece_classwise", "ece_classwise_if_right")
    ),
)
POLICY = {  # keys of the decision policy
    "sets": "prediction_sets",
    "answers": "abstention",
    "familiarity": "ood_score",
    "unlike": "other_scores",
}


class OldNameWarning(FutureWarning):
    """A file uses a name of 0.1.0."""


def columns(names: Sequence[str]) -> list[str]:
    """The columns of a predictions.csv."""
    new = [COLUMNS.get(name.strip().lower(), name) for name in names]
    pairs = zip(names, new, strict=True)
    return [name if other in (name, *names) else _reported(name, other) for name, other in pairs]


def checkpoint(content: Mapping[str, Any]) -> dict[str, Any]:
    """A best.pt, a last.pt, or the last.pt of pretraining.

    Raises:
        UsageError: it was made with a setting that is gone, or by pretraining that compared views.
    """
    found = _renamed(content, HOLDER)
    found["data"] = {"fingerprints": {}, **found["data"]}
    found["config"] = settings(found["config"])
    if found.get("training") is not None:
        found["training"] = {"spent": 0.0, "share": 0.0, **found["training"]}
        found["training"]["history"] = records(found["training"]["history"])
    stem = found["config"]["model"]["stem"] if found["format"] == "vitmed pretraining" else "patch"
    if stem in ("conv", "residual"):
        problem = f"pretraining behind the stem {stem!r} is no longer there; vitmed {READER} has it"
        raise UsageError(
            problem, "vitmed pretrain DIR without --stem; the encoder.pt of the old run still starts a training"
        )
    return found


def settings(tree: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a trained network. Raises UsageError for a setting that is gone and mattered."""
    try:
        return without_gone(tree)
    except UsageError as error:
        raise UsageError(error.problem, f"train again without it, or use vitmed {READER}") from None


def policy(content: Mapping[str, Any]) -> dict[str, Any]:
    """The decision policy of a checkpoint or a metrics.json. Raises UsageError for prediction sets by APS or RAPS."""
    found = _renamed(content, POLICY)
    findings = found.get("findings")
    for part in (found, *(findings.values() if isinstance(findings, Mapping) else ())):
        _check_score(part.get("prediction_sets") if isinstance(part, Mapping) else None)
    return found


def reduced_precision(content: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A comparison of 16-bit floats with fp32; None for one that does not say how far they move the policy's borders,
    by which nothing is known now."""
    if content is None or "deviations" in content or not (content["images"] and content.get("finite", True)):
        return content
    return None


def policy_of_0_2(content: Mapping[str, Any]) -> dict[str, Any]:
    """A decision policy as 0.2.0 wrote it: the hashes of its ensembles are made of that."""
    found = copy.deepcopy(dict(content))
    for part in (found, *(found.get("findings") or {}).values()):
        part["asked"]["conformal"] = "lac"
        if part.get("prediction_sets") is not None:
            part["prediction_sets"]["score"] = "lac"
    return found


def results(content: Mapping[str, Any]) -> dict[str, Any]:
    """A metrics.json. Raises UsageError for prediction sets by APS or RAPS, and for settings that are gone."""
    found = _renamed(content, RESULTS)
    for key, names in (("report", HOLDER), ("flow", FLOW), ("out_of_distribution", OUT_OF_DISTRIBUTION)):
        if isinstance(found.get(key), Mapping):
            found[key] = _renamed(found[key], names)
    if "target" in found:
        found["target"] = target(found["target"])
    if isinstance(found.get("conformal"), Mapping):
        _check_score(found["conformal"])
    for gone in GONE:
        found = _without(found, gone.split("."))
    for column in found.get("subgroups") or ():
        found = _without(found, ["subgroups", column, "equalised_odds"])
    report = found.get("report")
    if isinstance(report, dict) and isinstance(report.get("policy"), Mapping):
        report["policy"] = policy(report["policy"])
    if isinstance(report, dict) and isinstance(report.get("evaluate"), Mapping):
        report["evaluate"] = without_gone({"evaluate": report["evaluate"]})["evaluate"]
    if isinstance(report, dict) and isinstance(report.get("facts"), Mapping):
        old, new = (f": {found.get('n', 0):,} {word}" for word in ("judged", "evaluated"))
        report["facts"] = {key: str(text).replace(old, new) for key, text in report["facts"].items()}
    return found


def _without(content: Any, keys: Sequence[str]) -> Any:
    """The content without what these keys lead to."""
    if not isinstance(content, Mapping) or keys[0] not in content:
        return content
    inner = {} if len(keys) == 1 else {keys[0]: _without(content[keys[0]], keys[1:])}
    return {name: part for name, part in content.items() if name != keys[0]} | inner


def flow(content: Mapping[str, Any]) -> dict[str, Any]:
    """The part `flow` of a metrics.json."""
    return _renamed(content, FLOW)


def has_calibrated_logits(content: Mapping[str, Any]) -> bool:
    """Whether the table beside a metrics.json, as it is in the file, holds calibrated logits, as 0.1.0 wrote them."""
    return "judgement" in content["report"]


def same_policy(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> bool:
    """Whether two policies are of the same weights, of which the results of 0.1.0 state no hash: by the score of
    unlike images, or else by the calibration."""
    if first is None or second is None:
        return first is second
    scored = first.get("ood_score") is not None and second.get("ood_score") is not None
    part, keys = ("ood_score", ("n", "scale")) if scored else ("calibration", ("method", "scale", "bias"))
    one, other = first.get(part), second.get(part)
    return one is not None and other is not None and all(one[key] == other[key] for key in keys)


def records(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The epochs in a metrics.jsonl; 0.1.0 wrote best.pt in every epoch that was the best so far."""
    old = [isinstance(line, dict) and "best" in line and "kept" not in line for line in lines]
    return [line | {"kept": line["best"]} if one else line for line, one in zip(lines, old, strict=True)]


def target(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the labels are. Raises UsageError for a number of which absolute errors were learned."""
    if content.get("distribution") != "laplace":
        return dict(content)
    if content.get("kind") == "number":
        problem = f"a number of train.loss = 'laplace' is no longer there; vitmed {READER} has it"
        raise UsageError(problem, "train again without train.loss")
    return {name: value for name, value in content.items() if name != "distribution"}


def why_not_resumed(version: str, balance: str) -> str | None:
    """Why a run that a version began with this balance cannot go on: in 0.1, the logits had no prevalence."""
    if balance not in ("loss", "sampler") or not version.startswith("0.1."):
        return None
    return (
        f"vitmed {version} began this run with --balance {balance}, which now trains other logits (at the prevalence "
        "of training), so the run cannot continue"
    )


def without_gone(tree: dict[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
    """The sections of a configuration without settings that are gone. Raises UsageError for one that mattered.

    Args:
        given: "section.field" of values that came from flags: there every name of `NAMES` is refused.
    """
    tree = copy.deepcopy(tree)
    for key in (*SETTINGS, *VALUES, *NAMES):
        section, _, field = key.partition(".")
        fields = tree.get(section)
        if not isinstance(fields, dict) or field not in fields:
            continue
        value = fields[field]
        if key in SETTINGS:
            harmless, instead = SETTINGS[key]
            if harmless is not None and value not in harmless:
                raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", instead)
            del fields[field]
        elif key in VALUES:
            check_value(key, value)
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            parts = [part.strip() for part in (value if isinstance(value, str) else ",".join(value)).split(",")]
            for name in [name for name in NAMES[key] if name in parts]:
                if key in given:
                    raise UsageError(f"--{field} {name} is no longer there; vitmed {READER} has it", NAMES[key][name])
                warnings.warn(f"{key} {name} is no longer there: {NAMES[key][name]}", OldNameWarning, stacklevel=2)
                parts.remove(name)
                fields[field] = ",".join(parts) if isinstance(value, str) else parts
            if not parts:
                del fields[field]
    return tree


def check_value(key: str, value: Any) -> None:
    """Raise UsageError for a value that is gone."""
    if isinstance(value, str | int | float | bool) and value in VALUES[key]:
        raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", VALUES[key][value])


def gone(words: list[str], message: str) -> UsageError | None:
    """What to use instead of the command or flag that the parser did not know; None where it never existed."""
    for word in words:
        name = word.partition("=")[0]
        instead = FLAGS.get(name) or FLAGS.get(f"{words[0]} {name}") or COMMANDS.get(name)
        if instead is not None and name in message:
            what = name if name.startswith("-") else f"vitmed {name}"
            return UsageError(f"{what} is no longer there; vitmed {READER} has it", instead)
    return None


def _check_score(sets: Any) -> None:
    score = sets.get("score", "lac") if isinstance(sets, Mapping) else "lac"
    if score != "lac":
        problem = f"prediction sets by evaluate.conformal = {score!r} are no longer there; vitmed {READER} has them"
        raise UsageError(problem, "train again without evaluate.conformal")


def _renamed(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same content under the names of today; a name of today wins over its old one."""
    old = [key for key in content if key in names and names[key] not in content]
    return {_reported(key, names[key]) if key in old else key: part for key, part in content.items()}


def _reported(old: str, new: str) -> str:
    """The new name; warns that a file uses that of 0.1.0, and Python shows each warning once."""
    warnings.warn(f"the name '{old}' of vitmed 0.1.0 is read as '{new}'", OldNameWarning, stacklevel=3)
    return new
