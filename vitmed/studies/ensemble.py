"""Folds or runs as one model: its members, their shares, and a decision policy for their mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitmed.core.errors import CheckpointError, DataError
from vitmed.core.load_config import build_config
from vitmed.core.messages import Silent, bar, listening, say, show, warn
from vitmed.core.run_folder import RunFolder
from vitmed.core.text import counted
from vitmed.data.samples import Splits
from vitmed.data.scan import hash_files
from vitmed.data.splits import held_out
from vitmed.decisions.evaluation_folder import validation_of
from vitmed.decisions.policy import choose_policy, notes_of
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.preprocessing import thumbnail
from vitmed.inference.checkpoint import Checkpoint, load_checkpoint
from vitmed.inference.ensemble import join_members, save_ensemble
from vitmed.inference.open_model import open_network
from vitmed.metrics.ensembles import aligned, averaged, out_of_fold
from vitmed.metrics.estimates import Estimate, value_text
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Extra
from vitmed.report.evaluate import facts
from vitmed.report.headline import Evaluation
from vitmed.report.write import About, Report
from vitmed.studies.folds import CrossValidation
from vitmed.training.run import resumed_settings

LEAST_RESAMPLES = 200


@dataclass(frozen=True)
class EnsembleResult:
    """The folder of an ensemble, the share of each folder that was joined, by name, and the evaluation on the images on
    which its policy was chosen."""

    folder: Path
    shares: dict[str, float]
    val: Evaluation


@dataclass(frozen=True)
class Candidate:
    """A run, or the folds of one configuration."""

    folder: RunFolder
    members: tuple[Checkpoint, ...]
    predictions: Predictions  # calibrated; of validation, or of images that the members that predict them never saw
    models: int  # how many of the members predict each of these images
    folds: bool

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name


def read_candidate(folder: RunFolder) -> Candidate:
    """Read what a folder offers. Raises CheckpointError where its runs are not finished."""
    if not folder.folds.is_file():
        saved = load_checkpoint(folder.path)
        if saved.policy is None:
            raise CheckpointError(f"{saved.path}: holds no decision policy", "name the best.pt of a finished run")
        predictions = validation_of(saved.path, saved.weights_hash, saved.config.data.positive)
        return Candidate(folder, (saved,), saved.policy.apply(predictions), 1, False)
    study = CrossValidation(folder)
    done, folds = len(study.done()), len(study.divided.places)
    if done < folds:
        problem = f"{folder.path}: {folds - done} of {counted(folds, 'fold')} are not finished"
        raise CheckpointError(problem, f"vitmed cross-validate --resume {folder.path}")
    tested = study.tested()
    tests = out_of_fold([fold.evaluated.predictions for fold in tested], study.divided.folds)
    return Candidate(folder, tuple(fold.saved for fold in tested), tests, study.divided.repeats, True)


def _choice(candidates: Sequence[Candidate], parts: Sequence[Any]) -> dict[str, Any]:
    """What the members are, in words, and the numbers of each candidate and of the mean."""
    kind = TARGETS[candidates[0].members[0].splits.target.kind]
    names = (kind.headline[0], kind.val_loss)
    resamples = max(LEAST_RESAMPLES, candidates[0].members[0].config.evaluate.resamples)
    several = len(candidates) > 1
    each = {candidate.name: part for candidate, part in zip(candidates, parts, strict=True)}
    rows = dict[str, dict[str, Any]]()
    for name, predictions in (each | ({"together": averaged(parts)} if several else {})).items():
        overall: dict[str, Estimate] = kind.numbers.evaluate(predictions, resamples).overall
        say(f"{name}: {', '.join(f'{kind.metrics[key].title} {value_text(overall[key])}' for key in names)}")
        rows[name] = {key: overall[key].to_dict() for key in names}
    folds = counted(len(candidates[0].members), "fold")
    words = f"the mean of {', '.join(each) if several else folds}"
    return {"words": words, "numbers": rows}


def _about_policy(first: Candidate, members: int) -> str:
    if not first.folds:
        return "The decision policy was chosen on the validation images, on which each run chose its best epoch."
    models = counted(first.models, "model")
    return (
        f"The decision policy was chosen on what {models} of {members} said of each image, those that had not seen it. "
        "The mean of all is steadier than that, so its probabilities may be less extreme than its calibration assumes."
    )


def _images(candidates: Sequence[Candidate], members: Sequence[Checkpoint]) -> tuple[Splits, dict[str, list[str]]]:
    first = members[0]
    images = {
        sample.path: (sample, digest)
        for member in members
        for name, samples in member.splits.samples.items()
        for sample, digest in zip(samples, member.hashes[name], strict=True)
    }
    if candidates[0].folds:
        val, root = list[str](), first.data_root("put the folder there again")
        config = build_config(resumed_settings(first.config, RunFolder(first.path.parent), root, {}))
        out = held_out(config.data, ordinal=config.evaluate.ordinal) if first.config.data.divided else ()
        digests = hash_files([str(root / sample.path) for sample in out])
        test = {sample.path: (sample, digest) for sample, digest in zip(out, digests, strict=True)}
        made = {"train": "all folds", "val": "none: each image was predicted by folds that never saw it"}
        made["test"] = "in no fold" if test else "none was held out; the folds tested each image"
        images |= test
    else:
        val = [sample.path for sample in first.splits.samples["val"]]
        test = {sample.path: images[sample.path] for sample in first.splits.samples["test"]}
        made = first.splits.made
    parts = {"val": val, "test": list(test)}
    parts["train"] = [path for path in images if path not in {*val, *test}]
    samples = {
        name: tuple(sorted((images[path][0] for path in parts[name]), key=lambda sample: (sample.label, sample.path)))
        for name in ("train", "val", "test")
    }
    hashes = {name: [images[sample.path][1] for sample in part] for name, part in samples.items()}
    return replace(first.splits, samples=samples, made=made), hashes


def _trained_on_test(members: Sequence[Checkpoint], splits: Splits, hashes: dict[str, list[str]]) -> list[str]:
    """A sentence for each member that was trained on an image of the test, or on a patient of it, unless its run was
    allowed to have patients in two splits."""
    leaks, owners = [], {sample.group for sample in splits.samples["test"]} - {None}
    for member in members:
        digests = {digest for name in ("train", "val") for digest in member.hashes[name]}
        groups = {sample.group for name in ("train", "val") for sample in member.splits.samples[name]}
        images = sum(digest in digests for digest in hashes["test"])
        patients = set() if member.config.data.allow_leakage else owners & groups
        if images or patients:
            what = counted(images, "image") if images else f"images of {counted(len(patients), splits.unit)}"
            leaks.append(f"{member.path}: was trained on {what} of the test of {members[0].path}")
    return leaks


def join(candidates: Sequence[Candidate], place: RunFolder, advise: bool) -> EnsembleResult:
    """Join candidates (of folds, or of runs with the same validation images) into one model with a policy of its own,
    and write it with its report into a new folder; with `advise`, say how to test it. Raises DataError for runs of
    which one was trained on an image or a patient of the test."""
    parts = aligned([candidate.predictions for candidate in candidates])
    chosen, share = _choice(candidates, parts), 1 / len(candidates)
    members = [member for candidate in candidates for member in candidate.members]
    each = [share / len(candidate.members) for candidate in candidates for _ in candidate.members]
    splits, hashes = _images(candidates, members)
    leaks = _trained_on_test(members, splits, hashes)
    if leaks and not candidates[0].folds:
        raise DataError(leaks[0], "join runs with the same splits")
    for leak in leaks:  # of a test that was held out of folds, after hours of training
        warn(leak)
    path = place.ensemble
    joined = join_members(path, members, each, splits, hashes, chosen)
    for_policy = replace(averaged(parts), positive=members[0].config.data.positive)
    config = members[0].config.evaluate
    policy = choose_policy(for_policy, config, None, joined.weights_hash)
    with listening(Silent()):
        network = open_network(joined, policy, "cpu", "fp32")
    outputs = network.outputs(lambda i: joined.preprocessing.drawn(), 1, lambda done, total: None)
    policy = policy.model_copy(update={"known_logits": tuple(outputs.logits[0].tolist())})
    joined = replace(joined, policy=policy)
    say(f"decision policy, chosen on {counted(policy.n, 'image')}: {policy.summary}")
    notes = [_about_policy(candidates[0], len(members)), *leaks, *notes_of(policy)]
    predictions, root = policy.apply(for_policy), members[0].splits.root
    with bar("drawing the report", unit="steps"):
        about = About(
            title=f"{counted(len(members), 'model')}, images that chose the policy",
            facts=facts(joined, "the images on which the policy was chosen", len(predictions), "stored predictions"),
            notes=notes,
            run=place.name,
            weights_hash=joined.weights_hash,
        )
        extra = Extra(policy=policy, read=lambda name: thumbnail(root / name, joined.preprocessing))
        metrics = Report.of(predictions, about, config, extra).write(place.path / "val")
    val = Evaluation(predictions, metrics, place.path / "val")
    save_ensemble(joined)  # last: without it the folder holds no ensemble
    if splits.samples["test"] and advise:
        say(f"to test it once: vitmed evaluate {place.path}")
    show(f"{place.path}: {chosen['words']}; vitmed predict IMAGE --checkpoint {place.path}")
    return EnsembleResult(place.path, {candidate.name: share for candidate in candidates}, val)
