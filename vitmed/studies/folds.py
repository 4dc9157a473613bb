"""Folds: which there are, what each begins with, how they are trained, and one report of all their tests; and folds or
runs as one model, with a decision policy for their mean."""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from pydantic import BaseModel

import vitmed
from vitmed.core.config import Config, EvaluateConfig
from vitmed.core.downloads import is_offline
from vitmed.core.errors import CheckpointError, DataError, Interrupted, TimeTooShortError, UsageError
from vitmed.core.files import write_json
from vitmed.core.load_config import build_config, load_config
from vitmed.core.messages import bar, gathering, same_words, say, show, warn
from vitmed.core.places import data_folder
from vitmed.core.run_folder import PREDICTIONS, RunFolder
from vitmed.core.text import counted, duration_text, grouped, listed, quoted, round_up
from vitmed.data.image_cache import hash_files
from vitmed.data.samples import Sample, Splits
from vitmed.data.splits import TRAIN_ALONE, held_out, make_splits, site_names
from vitmed.decisions import evaluation_folder
from vitmed.decisions.evaluation_folder import Evaluated, Fold, Folds, folds_of_classes, numbered, spread_of
from vitmed.decisions.operating_points import asked_point, target_of_point
from vitmed.decisions.policy import FindingPolicy, choose_policy, notes_of
from vitmed.decisions.targets import TARGETS
from vitmed.imaging.preprocessing import thumbnail
from vitmed.inference.checkpoint import Checkpoint, load_checkpoint
from vitmed.inference.ensemble import join_members, load_ensemble, save_ensemble
from vitmed.inference.open_model import open_network
from vitmed.metrics.ensembles import aligned, averaged, out_of_fold
from vitmed.metrics.estimates import Estimate, learnt_nothing, value_text
from vitmed.metrics.kinds.classes import evaluate_predictions, metric_values
from vitmed.metrics.kinds.findings import in_means
from vitmed.metrics.predictions import Predictions
from vitmed.report.analyses import Extra
from vitmed.report.evaluate import facts
from vitmed.report.headline import Evaluation, report_evaluation
from vitmed.report.participant_flow import evaluated_images, flow_of, folds_flow
from vitmed.report.results import Origin, Results
from vitmed.report.write import Report, read_baselines
from vitmed.studies.cluster import HERE, Places
from vitmed.studies.comparison import short_names
from vitmed.studies.study import Job, Study, check_same_data, conduct, read_study, settings_of
from vitmed.training.plan.time import Clock
from vitmed.training.run import resumed_settings

AGAIN = "start again with vitmed cross-validate"
JOINING, TABLES = 12.0, 2.0  # s of --time for what joins the folds: reports on all and the ensemble, or tables


class Divided(BaseModel):
    """What folds.json holds."""

    folds: int  # of each repeat
    repeats: int = 1  # how often the images are divided
    window: Any  # of the configuration; each fold chooses its own from it
    sites: tuple[str, ...] = ()  # names of the folds, where each is a site
    data: str = ""  # the digest of the splits of the first fold; "" in files of 0.2.0

    @property
    def places(self) -> list[tuple[int, int]]:
        """(repeat, fold) of every run, from 1."""
        return list(itertools.product(range(1, self.repeats + 1), range(1, self.folds + 1)))


class SharedTime(NamedTuple):
    """Seconds for all folds, of which `parallel` train at the same time. Each gets an equal part of what is left after
    the time for joining them."""

    limit: float
    folds: int
    parallel: int = 1
    joining: float = JOINING
    clock: Clock | None = None  # of all folds; None: nothing is used yet

    @classmethod
    def of(cls, config: Config, parallel: int = 1, clock: Clock | None = None) -> Self | None:
        """Read the time of a configuration; None without a limit, or where it trains no folds or one of them."""
        data = config.data
        if config.train.time is None or not data.divided or data.fold is not None:
            return None
        folds = data.repeats * (data.folds or len(site_names(data, ordinal=config.evaluate.ordinal)))
        return cls(config.train.time, folds, parallel, JOINING if config.evaluate.report else TABLES, clock)

    @property
    def used(self) -> float:
        return 0.0 if self.clock is None else self.clock.seconds()

    def each(self, begun: int = 0) -> float:
        """Seconds of a fold, after `begun` others have begun."""
        rounds = -(-self.folds // self.parallel) - begun // self.parallel  # that are left, of `parallel` folds each
        seconds = max(1.0, (self.limit - self.joining - self.used) / rounds)
        if not begun:
            say(f"--time {duration_text(self.limit)}: {duration_text(seconds)} for each fold")
        return seconds

    def of_all(self, error: TimeTooShortError) -> TimeTooShortError:
        """Turn the error of one fold, whose part of the time is too short, into one about the time of all folds."""
        whole = round_up(self.used + -(-self.folds // self.parallel) * round_up(error.seconds) + self.joining)
        given = f"--time {duration_text(self.limit)} is too short for {counted(self.folds, 'fold')}"
        return TimeTooShortError(f"{given}: for each, {error.problem}", f"--time {duration_text(whole)}", whole)


class Tested(NamedTuple):
    """A fold, its best.pt, the table of its test, and what that says."""

    run: RunFolder
    saved: Checkpoint
    table: Path
    evaluated: Evaluated


class CrossValidation(Study[Evaluation]):
    """A run for each fold, and one evaluation of all their tests: each image by models that were not trained on it.
    `first` are the arguments of `train` for the first fold, None to resume; the other folds take its configuration.
    Raises CheckpointError where folds.json is damaged."""

    command = "cross-validate"
    time: SharedTime | None = None

    def __init__(self, folder: RunFolder, first: Mapping[str, Any] | None = None, places: Places = HERE) -> None:
        self.folder, self.first, self.places, self.offline = folder, first, places, is_offline(names=())
        self.divided = read_study(folder.folds, Divided, AGAIN)
        self.data = self.divided.data

    @classmethod
    def new(cls, config: Config, folder: Path, first: Mapping[str, Any], places: Places, clock: Clock) -> Self:
        """Make a folder for the folds, with -2, -3, ... where it is there. Raises DataError for a single site."""
        data = config.data
        splits = make_splits(data, ordinal=config.evaluate.ordinal)
        sites = site_names(data, ordinal=config.evaluate.ordinal) if data.sites is not None else []
        if sites:
            say(f"a fold for each {data.sites}: {'; '.join(sites)}")
        for note in (note for note in splits.notes if note.startswith(TRAIN_ALONE)):
            show(note)
        made = RunFolder.create(folder.parent, folder.name)
        content = {"folds": data.folds or len(sites), "window": data.window, "repeats": data.repeats, "sites": sites}
        write_json(made.folds, content | {"data": splits.digest})
        if (time := SharedTime.of(config, places.runs, clock)) is not None:
            first = {**first, "time": time.each()}
        study = cls(made, first, places)
        study.time = time
        return study

    @property
    def planned(self) -> Path | None:
        """The configuration of the first fold, which all take; None where it has not begun."""
        return next((place.config for place in self.job(1, 1).attempts(self.folder) if place.config.is_file()), None)

    @property
    def settings(self) -> Config:
        return load_config(self.planned) if self.planned else settings_of(self.first or {}, "train")

    def job(self, repeat: int, fold: int, **arguments: Any) -> Job:
        name = f"fold-{fold}" if repeat == 1 else f"repeat-{repeat}-fold-{fold}"
        title = f"fold {fold} of {self.divided.folds}" + (f" of repeat {repeat}" if self.divided.repeats > 1 else "")
        title += f": {self.divided.sites[fold - 1]}" if self.divided.sites else ""
        return Job(name, title, {**arguments, "fold": fold, "offline": self.offline})

    def begin(self) -> None:
        joined = RunFolder(self.folder.joined)
        if joined.ensemble.is_file() and not self.untested(joined):
            raise UsageError(f"{self.folder.path}: these folds are finished and evaluated", "start a new run")
        if self.first is None and self.planned is None:
            raise CheckpointError(f"{self.folder.path}: its first fold had not begun", AGAIN)
        if self.first is None:
            check_same_data(self.settings, self.data, self.folder)

    def interrupted(self) -> None:
        if self.planned is None:
            raise Interrupted("interrupted before its first fold had begun", AGAIN)

    def jobs(self) -> Iterator[Job | None]:
        """As `Study.jobs`: the others wait for the plan of the first."""
        window = self.divided.window  # chosen anew from the training images of each fold
        wide = "null" if window is None else json.dumps(window)
        for begun, (repeat, fold) in enumerate(self.divided.places):
            if self.first is not None and (repeat, fold) == (1, 1):
                yield self.job(1, 1, **self.first)
                continue
            while self.planned is None:
                yield None
            sets = [f"data.window={wide}", f"data.repeat={repeat}"]
            sets += [f"train.time={self.time.each(begun):.1f}"] if self.time else []
            yield self.job(repeat, fold, config=self.planned, sets=tuple(sets))

    def done(self) -> list[RunFolder]:
        return [run for place in self.divided.places if (run := self.job(*place).done(self.folder))]

    def tested(self) -> list[Tested]:
        """Read the evaluations of the tests of finished runs. Raises CheckpointError for a best.pt without one."""
        tested = []
        for run in self.done():
            saved = load_checkpoint(run.best)
            table = evaluation_folder.find_evaluation(run, "test", saved.weights_hash, saved.policy)
            if table is None:
                problem = f"{run.path}: has no evaluation of its best.pt on its test"
                raise CheckpointError(problem, f"vitmed evaluate {quoted(run.path)}")
            tested.append(Tested(run, saved, table, evaluation_folder.read_evaluation(table)))
        return tested

    def untested(self, joined: RunFolder) -> bool:
        """Whether there are images that no fold has seen, and the ensemble has no evaluation on them yet."""
        return bool(load_ensemble(joined.ensemble).splits.samples["test"]) and not joined.evaluations("test")

    def finish(self) -> Evaluation:
        folder, pooled = self.folder, self.folder.path / "test"
        if not (pooled / PREDICTIONS).is_file():  # else an earlier process ended before it joined the folds
            check_same_data(self.settings, self.data, self.folder)
            report_evaluation(_pool(folder, self.tested(), self.divided), {})
        if all(run.best.is_file() for run in self.done()):
            joined = RunFolder(folder.joined)
            if not joined.ensemble.is_file():
                with gathering() as kept:
                    vitmed.ensemble([folder.path])
                kept.warn_gravest("--verbose")
            if self.untested(joined):
                vitmed.evaluate(joined.path, report=self.settings.evaluate.report)
        evaluated = evaluation_folder.read_evaluation(pooled / PREDICTIONS)
        return Evaluation(evaluated.predictions, Results.read(evaluated.metrics), pooled)


def train_folds(study: CrossValidation) -> Evaluation:
    """Train the folds that are not done, evaluate all their tests, and join them into one model. Raises VitmedError."""
    try:
        return conduct(study)
    except TimeTooShortError as error:
        raise (study.time.of_all(error) if study.time else error) from None
    finally:
        if study.first and not any(path.is_dir() for path in study.folder.path.iterdir()):  # refused: nothing began
            shutil.rmtree(study.folder.path)


def _pool(folder: RunFolder, tested: Sequence[Tested], divided: Divided) -> Evaluation:
    runs, saved, tables, evaluated = zip(*tested, strict=True)
    predictions, results = [e.predictions for e in evaluated], [Results.read(e.metrics) for e in evaluated]
    root, config = saved[0].data_root("put the folder there again"), saved[0].config.evaluate
    once = slice(divided.folds)  # the first repeat, whose tests hold every image once
    pooled = replace(out_of_fold(predictions, divided.folds), positive=saved[0].config.data.positive)
    folds = _each(results, evaluated, pooled, config)
    baselines = [read_baselines(table.parent) for table in tables]
    shared = [key for key in baselines[0] if all(key in of_fold for of_fold in baselines)]
    notes, repeats = evaluation_folder.fold_notes(folds), divided.repeats
    if divided.sites:
        notes.append(f"Each fold is a site that its model never saw: {numbered(divided.sites, '; ')}.")
    elif repeats > 1:
        votes = pooled.decided is not None and pooled.kind != "number"
        vote = "Most of them decide; of a tie the mean, by their mean threshold or cost. " * votes
        notes.append(
            f"The images were divided {repeats} times: folds 1 to {divided.folds} are the first time, and so on. "
            f"Each image has predictions of {repeats} models that never saw it; the pooled numbers are those of "
            f"their mean, and so of a small ensemble. {vote}The numbers by fold are those of single models."
        )
    if pooled.kind == "findings":
        means = in_means(pooled)
        if fewer := [str(k) for k, test in enumerate(predictions, 1) if (means & ~in_means(test)).any()]:
            notes.append(
                f"The means over findings of fold{'s' if len(fewer) > 1 else ''} {', '.join(fewer)} leave out findings "
                "that the pooled means count, because too few patients of a fold have them. Compare the folds in the "
                "report of each finding."
            )
    if not learnt_nothing(TARGETS[results[0].target.kind].numbers.evaluate(pooled)):
        notes += by_name([learnt_nothing(r) for r in results])  # of single folds, which the pooled numbers hide
    notes += by_name([r.report.notes for r in results])
    data = build_config(resumed_settings(saved[0].config, runs[0], root, {})).data
    out = held_out(data, ordinal=config.ordinal) if data.divided else ()
    with bar("drawing the report", unit="steps"):
        often, about = f", {repeats} times," * (repeats > 1), _facts(results, once, pooled, folds)
        title = f"{divided.folds} folds{often} of {data_folder(root).resolve().name}"
        origin = Origin(title=title, facts=about, notes=notes, run=folder.name)
        extra = Extra(
            flow=folds_flow(saved[once], runs[once], pooled, out),
            folds=folds,
            baselines={key: out_of_fold([of_fold[key] for of_fold in baselines], divided.folds) for key in shared},
            read=lambda path: thumbnail(root / path, saved[0].preprocessing),
        )
        metrics = Report.of(pooled, origin, config, extra).write(folder.path / "test")
    kind = TARGETS[results[0].target.kind]
    for name in kind.headline[:2]:
        say(f"{kind.metrics[name].title} by fold: {spread_of(folds.each, name)}")
    return Evaluation(pooled, metrics, folder.path / "test")


def _each(results: Sequence[Results], evaluated: Sequence[Evaluated], pooled: Any, config: EvaluateConfig) -> Folds:
    """The numbers of each fold on its test, and its policy, for the pooled report."""
    policies, names = [e.policy for e in evaluated], by_fold_names(results[0].target.kind)
    if pooled.kind == "classes":
        return folds_of_classes(results, policies, names, metric_values(pooled)["auroc"], config)
    names += [name for name in ("coverage", "width") if all(name in r.overall for r in results)]
    each = [Fold(images=r.n, patients=r.n_groups, numbers={name: r.overall[name] for name in names}) for r in results]
    if pooled.kind == "number":
        return Folds(asked="default", target=None, costs=None, each=each)
    point, findings = asked_point(config, 2), {}
    for name in pooled.classes:
        numbers = [evaluate_predictions(cast(Any, e.predictions).of(name)) for e in evaluated]
        of_finding = [policy.findings[name] if isinstance(policy, FindingPolicy) else None for policy in policies]
        auroc = metric_values(pooled.of(name))["auroc"]
        findings[name] = folds_of_classes(numbers, of_finding, by_fold_names("classes"), auroc, config)
    return Folds(asked=point, target=target_of_point(config, point), costs=None, each=each, findings=findings)


def by_fold_names(kind: str) -> list[str]:
    """List the numbers that are reported for each fold, with mean and spread."""
    return [*TARGETS[kind].headline[:3], TARGETS[kind].val_loss]


def _facts(results: Sequence[Results], once: slice, pooled: Predictions, folds: Folds) -> dict[str, str]:
    """Data, model and training for the report, for all folds together or fold by fold; `once`: of the first repeat."""
    facts, first = [r.report.facts for r in results], results[once]
    often = "once" if len(first) == len(results) else f"{len(results) // len(first)} times"
    joined = {"Images": f"{len(pooled):,}, each evaluated {often}: " + numbered([f"{r.n:,}" for r in first])}
    joined["Patients"] = "unknown"
    if pooled.groups is not None:
        patients = numbered([f"{r.n_groups:,}" for r in first])
        joined["Patients"] = f"{len(set(pooled.groups)):,}, each in the test of one fold: {patients}"
    for key in facts[0]:
        if key not in ("Images", "Patients of the run", "Splits of the run"):  # which do not hold for all folds
            texts = [str(of_fold.get(key, "not known")) for of_fold in facts]
            heads, _, ends = zip(*(text.partition(", ") for text in texts), strict=True)
            shared = f", {ends[0]}" if len(set(ends)) == 1 and ends[0] else ""  # such as how each chose its epoch
            joined[key] = texts[0] if len(set(texts)) == 1 else numbered(heads if shared else texts, "; ") + shared
    kind = results[0].target.kind
    titles = {name: TARGETS[kind].metrics[name].title for name in by_fold_names(kind)}
    return joined | {f"{title} by fold": spread_of(folds.each, name) for name, title in titles.items()}


def by_name(notes: Sequence[Sequence[str]]) -> list[str]:
    """Join the notes of all folds in one list, each once: a common note as it is, the others with the numbers of their
    folds, or with their count where only the figures in them differ."""
    each = ((number, note) for number, of_fold in enumerate(notes, 1) for note in of_fold)
    texts = []
    for same in grouped((same_words(note), (number, note)) for number, note in each).values():
        numbers, first = list(dict.fromkeys(str(number) for number, _ in same)), same[0][1]
        if len({note for _, note in same}) > 1:
            texts.append(f"{len(numbers)} of {len(notes)} folds (figures of fold {numbers[0]}): {first}")
        else:
            which = f"fold{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
            texts.append(first if len(numbers) == len(notes) else f"{which}: {first}")
    return texts


# --- folds or runs as one model


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


def read_candidate(folder: RunFolder) -> Candidate:
    """Read what a folder offers. Raises CheckpointError where its runs are not finished."""
    if not folder.folds.is_file():
        saved = load_checkpoint(folder.path)
        if saved.policy is None:
            raise CheckpointError(f"{saved.path}: holds no decision policy", "name the best.pt of a finished run")
        predictions = evaluation_folder.validation_of(saved.path, saved.weights_hash, saved.config.data.positive)
        return Candidate(folder, (saved,), saved.policy.apply(predictions), 1, False)
    study = CrossValidation(folder)
    done, folds = len(study.done()), len(study.divided.places)
    if done < folds:
        problem = f"{folder.path}: {folds - done} of {counted(folds, 'fold')} are not finished"
        raise CheckpointError(problem, f"vitmed cross-validate --resume {quoted(folder.path)}")
    tested = study.tested()
    tests = out_of_fold([fold.evaluated.predictions for fold in tested], study.divided.folds)
    return Candidate(folder, tuple(fold.saved for fold in tested), tests, study.divided.repeats, True)


def _choice(candidates: Sequence[Candidate], shares: Mapping[str, float], parts: Sequence[Any]) -> dict[str, Any]:
    """The members in words, the numbers of each candidate and the mean, by its own policy; facts that differ."""
    kind = TARGETS[candidates[0].members[0].splits.target.kind]
    names = (kind.headline[0], kind.val_loss)
    of, rows = list(shares), dict[str, dict[str, Any]]()
    for name, predictions in zip([*of, *["together"] * (len(of) > 1)], parts, strict=True):
        overall: dict[str, Estimate] = kind.numbers.evaluate(predictions).overall
        say(f"{name}: {', '.join(f'{kind.metrics[key].title} {value_text(overall[key])}' for key in names)}")
        rows[name] = {key: overall[key].to_dict() for key in names}
    joined = ", ".join(of) if len(of) > 1 else counted(len(candidates[0].members), "fold")
    every = [facts(member, "", 0, "") for candidate in candidates for member in candidate.members]
    differ = ("Started from", "Preprocessing", "Augmentation", "Views", "Optimisation", "Versions")  # perhaps
    texts = {key: dict.fromkeys(of_member[key] for of_member in every) for key in differ}
    of_all = {key: "; ".join(each) for key, each in texts.items() if len(each) > 1}
    return {"words": f"the mean of {joined}", "numbers": rows, "facts": of_all}


def _images(candidates: Sequence[Candidate], members: Sequence[Checkpoint]) -> tuple[Splits, dict[str, list[str]]]:
    first, images = members[0], dict[str, tuple[Sample, str]]()
    for member in reversed(members):  # what the first run says of an image holds, as in its predictions
        for name, part in member.splits.samples.items():
            for sample, digest in zip(part, member.hashes[name], strict=True):
                if digest and images.get(sample.path, ("", ""))[1] not in ("", digest):
                    problem = f"{member.path}: its {sample.path} is another file than that of the other runs"
                    raise DataError(problem, "train all of them on the same files")
                cells = dict(zip(member.splits.columns, sample.columns, strict=True))
                ordered = tuple(cells.get(name, "") for name in first.splits.columns)
                images[sample.path] = sample._replace(columns=ordered), digest
    if candidates[0].folds:
        val, root = list[str](), first.data_root("put the folder there again")
        config = build_config(resumed_settings(first.config, RunFolder(first.path.parent), root, {}))
        out = held_out(config.data, ordinal=config.evaluate.ordinal) if first.config.data.divided else ()
        digests = hash_files([str(root / sample.path) for sample in out])
        test = {sample.path: (sample, digest) for sample, digest in zip(out, digests, strict=True)}
        made = {"train": "all folds", "val": "none: each image was predicted by folds that never saw it"}
        made["test"] = "in no fold" if test else "--hold-out kept none; the folds tested each image"
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
    tested, known = {sample.path for sample in splits.samples["test"]}, [splits, *(member.splits for member in members)]
    leaks, owners = [], {s.group for of in known for part in of.samples.values() for s in part if s.path in tested}
    for member in members:
        digests = {digest for name in ("train", "val") for digest in member.hashes[name]}
        groups = {sample.group for name in ("train", "val") for sample in member.splits.samples[name]}
        images = sum(digest in digests for digest in hashes["test"])
        patients = set() if member.config.data.allow_leakage else (owners & groups) - {None}
        if images or patients:
            what = counted(images, "image") if images else f"images of {counted(len(patients), member.splits.unit)}"
            leaks.append(f"{member.path}: was trained on {what} of the test of {members[0].path}")
    return leaks


def join(candidates: Sequence[Candidate], place: RunFolder, advise: bool) -> EnsembleResult:
    """Join candidates (of folds, or of runs with the same validation images) into one model with a policy of its own,
    and write it with its report into a new folder; with `advise`, say how to test it. Raises DataError for runs of
    which one was trained on an image or a patient of the test."""
    parts = aligned([candidate.predictions for candidate in candidates])
    share, paths = 1 / len(candidates), [candidate.folder.path.resolve() for candidate in candidates]
    shares = dict.fromkeys(short_names([path.parts for path in paths]), share)
    members = [member for candidate in candidates for member in candidate.members]
    each = [share / len(candidate.members) for candidate in candidates for _ in candidate.members]
    splits, hashes = _images(candidates, members)
    leaks = _trained_on_test(members, splits, hashes)
    if leaks and not candidates[0].folds:
        raise DataError(leaks[0], "join runs with the same splits")
    for leak in leaks:  # of a test that was held out of folds, after hours of training
        warn(leak)
    joined = join_members(place.ensemble, members, each, splits, hashes, {})
    for_policy = replace(averaged(parts), positive=members[0].config.data.positive)
    config = members[0].config.evaluate
    differing = [f"evaluate.{k}" for k, value in config if any(getattr(m.config.evaluate, k) != value for m in members)]
    differing += ["data.positive"] * any(m.config.data.positive != for_policy.positive for m in members)
    if differing:
        warn(f"the runs differ in {listed(differing)}: the ensemble takes the settings of {next(iter(shares))}")
    policy = choose_policy(for_policy, config, None, joined.weights_hash)
    predictions = policy.apply(for_policy)
    chosen = _choice(candidates, shares, [*parts, predictions] if len(parts) > 1 else parts)
    outputs = open_network(joined, policy, "cpu", "fp32").outputs(lambda i: joined.preprocessing.drawn(), 1)
    policy = policy.model_copy(update={"known_logits": tuple(outputs.logits[0].tolist())})
    joined = replace(joined, policy=policy, chosen=chosen)
    say(f"decision policy, chosen on {counted(policy.n, 'image')}: {policy.summary}")
    about_policy = "This is the val split, which was used to make the model, so its numbers are optimistic."
    first, flow, once = candidates[0], flow_of(splits, hashes), members[:0]
    if first.folds:
        once, said = members[: len(first.members) // first.models], sum(each.models for each in candidates)
        flow = folds_flow(once, [RunFolder(one.path.parent) for one in once], predictions, splits.samples["test"])
        about_policy = (
            "These images chose the decision policy, which was used to make the model, so numbers that depend on it "
            f"are optimistic. It was chosen on what {counted(said, 'model')} of {len(members)} said of each "
            "image, those that had not seen it. The mean of all is steadier than that, so its probabilities may be "
            "less extreme than its calibration assumes."
        )
        if config.target_sensitivity or config.target_specificity:
            asked = "sensitivity" if config.target_sensitivity else "specificity"
            about_policy += f" The {asked} that was asked for is that of single models; the mean of all may have"
            about_policy += f" another {asked}, often a higher one at the cost of the other: test it (--hold-out)."
    notes = [about_policy, *leaks, *notes_of(policy)]
    root, how = members[0].splits.root, joined.preprocessing
    title = f"{counted(len(members), 'model')}, images that chose the policy"
    about = facts(joined, "the images on which the policy was chosen", len(predictions), "stored predictions")
    with bar("drawing the report", unit="steps"):
        origin = Origin(title=title, facts=about, notes=notes, run=place.name)
        flow = flow.model_copy(update={"evaluated": evaluated_images(predictions, "val", folds=len(once) or None)})
        extra = Extra(flow, joined.weights_hash, policy=policy, read=lambda name: thumbnail(root / name, how))
        metrics = Report.of(predictions, origin, config, extra).write(place.path / "val")
    save_ensemble(joined)  # last: without it the folder holds no ensemble
    if splits.samples["test"] and advise:
        say(f"to test it once: vitmed evaluate {quoted(place.path)}")
    show(f"{place.path}: {chosen['words']}; vitmed predict IMAGE --checkpoint {quoted(place.path)}")
    return EnsembleResult(place.path, shares, Evaluation(predictions, metrics, place.path / "val"))
