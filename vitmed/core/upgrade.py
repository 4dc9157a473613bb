"""What the version before this one wrote: files of 0.2.0 as those of today, and what to use instead of what is gone.

Every reader of an older file calls a function here, dict in and today's dict out. A stored setting
that changes nothing is dropped; what needs a part that is gone, and every file of 0.1.0, is refused by a sentence that
names the version which has it. An entry of the tables stays for one version, then it goes.
"""

import copy
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vitmed.core.errors import UsageError

READER = "0.2.0"  # the last version that has what is listed here
PRETRAIN_FIRST = "vitmed pretrain DIR, then vitmed train DIR --weights RUN/encoder.pt"

COMMANDS: dict[str, str] = {  # `vitmed NAME` -> what to use instead
    "lr-find": "the plan sets the rate: vitmed plan DATA shows it, vitmed train --lr sets another",
    "push": "vitmed export RUN --to FOLDER, then hf upload OWNER/NAME FOLDER --private",
    "sweep": "vitmed tune DIR --grid model.heads=2,4,8 --seeds 0,1,2",
}
NODE = "dicom-port dicom-host ae allow watch to output spool modality body-part view"  # of a DICOM node
FLAGS: dict[str, str] = {  # "--flag", or "command --flag" where other commands have it -> what to use instead
    **{f"serve --{flag}": "let Orthanc ask vitmed serve: docs/orthanc.md" for flag in NODE.split()},
    "check --leakage-gap": "leave it out: splits are by patient",
    "compare --positive": "vitmed evaluate RUN --positive CLASS of each, then compare the folders that it writes",
    "bundle --wheels": "PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR before the command",
    "bundle --report": "copy report.html of the test yourself",
    "runs --html": "--json has the table, and report.html of a run its curves",
    "--augment-on": "leave it out",
    "runs --force": "leave it out: no page is written",
    "evaluate --unlike": "vitmed predict DIR --csv FILE writes the ood_score of each of its images",
    "--int8": "export without it and quantise the file with onnxruntime, see docs/export.md",
    **{f"{command} --resamples": "leave it out: patients are left out in turn" for command in ("compare", "stress")},
    "ensemble --way": "leave it out: every member counts alike",
    **{f"serve --{flag}": "let a proxy in front encrypt: docs/serving.md" for flag in ("tls-cert", "tls-key")},
    "export --form": "leave it out: a folder is timm's, which transformers reads too",
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
    "train.augment_on": (None, "leave it out"),
    **{f"mae.decoder_{part}": ([None], "leave it out") for part in ("width", "depth", "heads")},
    "mae.normalise_patches": ([True], "leave it out"),
}
# "section.field" -> {value that is gone: what to use instead}
VALUES: dict[str, dict[Any, str]] = {
    "augment.policy": {"views": "leave it out"},
    "train.monitor": {
        "median_error": "mae",
        **{f"{name}_weighted": name for name in ("auroc", "average_precision")},
        **{f"{name}_weighted": f"{name}_macro" for name in ("sensitivity", "specificity", "ppv", "npv", "f1")},
    },
}
NAMES: dict[str, dict[str, str]] = {  # "section.field" -> {name in its list that changes no stored model: what to use}
    "evaluate.calibration": {"vector": "temperature, or leave it out"},
    "evaluate.format": {"pdf": "print report.html from any browser; --format paper has the figures as PDF"},
    "train.track": {"tensorboard": "--track mlflow or --track wandb"},
}

GONE = (  # parts of a metrics.json of 0.2.0, each by the keys that lead to it
    "fixed_rates.specificity",
    "conformal.score",
    "one_against_rest",
    "co_occurrence",
    "finding_errors.pairs",
    "label_errors.pairs",
    "label_errors.rows",
    "member_disagreement",
    "out_of_distribution.unlike",
    "interval_levels",
    "patient_level.noisy_or",
    "patient_level.best_on_validation",
    *(f"patient_level.{way}.at_threshold" for way in ("mean", "max")),
    "out_of_distribution.quantiles",
    "conformal.sizes",
    *(f"per_patient.{name}" for name in ("heap", "spread", "enough")),
    "prevalence.curve",
    *(f"overall.{name}" for name in VALUES["train.monitor"]),
    "error_by_range.equalised_odds",
    *(f"{of}resamples" for of in ("", "error_by_range.", "patient_level.mean.", "patient_level.max.")),
    "calibration.another_class",
    "grades.rps",
    "intervals",
    *(f"calibration.{when}.ece_classwise{of}" for when in ("before", "after") for of in ("", "_if_right")),
)


class OldNameWarning(FutureWarning):
    """A file has a setting that is gone and that changed no result."""


def check_version(of_0_1: bool) -> None:
    if of_0_1:
        raise UsageError(f"vitmed 0.1.0 wrote it; vitmed {READER} reads it", "make it again with this version")


def checkpoint(content: Mapping[str, Any]) -> dict[str, Any]:
    """A best.pt, a last.pt, or the last.pt of pretraining. Raises UsageError: 0.1.0 wrote it, or it was made with a
    setting that is gone, or by pretraining that compared views."""
    check_version(str(content.get("versions", {}).get("vitmed")).startswith("0.1."))
    today = dict(content)
    today["data"] = {"fingerprints": {}, **today["data"]}
    today["config"] = settings(today["config"])
    if today.get("training") is not None:
        today["training"] = {"spent": 0.0, "share": 0.0, **today["training"]}
    stem = today["config"]["model"]["stem"] if today["format"] == "vitmed pretraining" else "patch"
    if stem in ("conv", "residual"):
        fix = "vitmed pretrain DIR without --stem; the encoder.pt of the old run still starts a training"
        raise UsageError(f"pretraining behind the stem {stem!r} is no longer there; vitmed {READER} has it", fix)
    return today


def settings(tree: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a trained network. Raises UsageError for a setting that is gone and mattered."""
    try:
        return without_gone(tree)
    except UsageError as error:
        raise UsageError(error.problem, f"train again without it, or use vitmed {READER}") from None


def check_policy(content: Mapping[str, Any]) -> None:
    """Raise UsageError for a decision policy with prediction sets by APS or RAPS."""
    findings = content.get("findings")
    for part in (content, *(findings.values() if isinstance(findings, Mapping) else ())):
        sets = part.get("prediction_sets") if isinstance(part, Mapping) else None
        score = sets.get("score", "lac") if isinstance(sets, Mapping) else "lac"
        if score != "lac":
            problem = f"prediction sets by evaluate.conformal = {score!r} are no longer there; vitmed {READER} has them"
            raise UsageError(problem, "train again without evaluate.conformal")


def reduced_precision(content: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A comparison of 16-bit floats with fp32; None for one that does not say how far they move the policy's borders,
    by which nothing is known now."""
    keeps = content is None or "deviations" in content or not (content["images"] and content.get("finite", True))
    return content if keeps else None


def policy_of_0_2(content: Mapping[str, Any]) -> dict[str, Any]:
    """A decision policy as 0.2.0 wrote it: the hashes of its ensembles are made of that."""
    written = copy.deepcopy(dict(content))
    for part in (written, *(written.get("findings") or {}).values()):
        part["asked"]["conformal"] = "lac"
        if part.get("prediction_sets") is not None:
            part["prediction_sets"]["score"] = "lac"
    return written


def results(content: Mapping[str, Any]) -> dict[str, Any]:
    """A metrics.json. Raises UsageError for one of 0.1.0, for prediction sets by APS or RAPS, and for settings that are
    gone."""
    today, report = dict(content), content.get("report")
    check_version("familiarity" in today or (isinstance(report, Mapping) and "judgement" in report))
    if "target" in today:
        today["target"] = target(today["target"])
    check_policy({"prediction_sets": today.get("conformal")})
    for gone in GONE:
        today = _without(today, gone.split("."))
    for column in today.get("subgroups") or ():
        for name in ("equalised_odds", "resamples"):
            today = _without(today, ["subgroups", column, name])
    if isinstance(today.get("readers"), list):
        today["readers"] = rows = [*today["readers"]]
        for k, row in enumerate(rows):  # a comparison of 0.2.0 has numbers without intervals
            if isinstance(row, Mapping) and "readers" in row and not isinstance(row.get("model"), Mapping):
                numbers = {name: {"value": value, "low": None, "high": None} for name, value in row["readers"].items()}
                rows[k] = {**row, "model": {"value": row.get("model"), "low": None, "high": None}, "readers": numbers}
    if isinstance(report := today.get("report"), Mapping):
        if isinstance(report.get("policy"), Mapping):
            check_policy(report["policy"])
        if isinstance(report.get("evaluate"), Mapping):
            today["report"] = {**report, **without_gone({"evaluate": report["evaluate"]})}
    return today


def _without(content: Any, keys: Sequence[str]) -> Any:
    """The content without what these keys lead to."""
    if not isinstance(content, Mapping) or keys[0] not in content:
        return content
    inner = {} if len(keys) == 1 else {keys[0]: _without(content[keys[0]], keys[1:])}
    return {name: part for name, part in content.items() if name != keys[0]} | inner


def target(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the labels are. Raises UsageError for a number of which absolute errors were learned."""
    if content.get("distribution") != "laplace":
        return dict(content)
    if content.get("kind") == "number":
        problem = f"a number of train.loss = 'laplace' is no longer there; vitmed {READER} has it"
        raise UsageError(problem, "train again without train.loss")
    return {name: value for name, value in content.items() if name != "distribution"}


def without_gone(tree: dict[str, Any], given: Collection[str] = ()) -> dict[str, Any]:
    """The sections of a configuration without settings that are gone. Raises UsageError for one that mattered.
    `given`: "section.field" of values that came from flags: there every name of `NAMES` is refused."""
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
            if isinstance(value, str) and value in VALUES[key]:
                raise UsageError(f"{key} = {value!r} is no longer there; vitmed {READER} has it", VALUES[key][value])
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


def gone(words: list[str], message: str) -> UsageError | None:
    """What to use instead of the command or flag that the parser did not know; None where it never existed."""
    for word in words:
        name = word.partition("=")[0]
        instead = FLAGS.get(name) or FLAGS.get(f"{words[0]} {name}") or COMMANDS.get(name)
        if instead is not None and name in message:
            what = name if name.startswith("-") else f"vitmed {name}"
            return UsageError(f"{what} is no longer there; vitmed {READER} has it", instead)
    return None
