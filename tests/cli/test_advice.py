"""What an error advises can be done: the command at hand has the flag."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from vitmed.cli.commands import APPS

ROOT = Path(__file__).parents[2]
CONFIGURED = "train plan probe pretrain"  # the commands that read a configuration
LABELLED = f"{CONFIGURED} check evaluate stress"  # that read the labels or patients of a folder
# Commands -> the modules whose errors, with a flag in the fix, they raise; of `commands/<verb>.py` the verb does.
RAISED_BY = {
    "evaluate stress": "checks/evaluation_images",
    "predict": "cli/commands commands/predict_shard inference/open_model",
    "train pretrain predict evaluate explain stress": "cli/entry",
    "train cross-validate": "studies/folds",
    "cross-validate": "studies/study",
    "train cross-validate tune auto": "studies/cluster",
    "tune": "studies/search",
    "stress": "explanation/robustness",
    "probe": "studies/rank_weights",
    "serve": "deploy/http/limits deploy/http/app deploy/http/scores",
    "export": "deploy/export",
    "train probe pretrain evaluate stress": "core/files",
    "predict plan": "core/places",
    f"{CONFIGURED} predict evaluate explain stress": "models/hardware",
    CONFIGURED:
        "core/load_config core/run_folder data/label_kinds data/samples "
        "data/splits imaging/augmentation",
    LABELLED: "data/folders data/listing data/patients",
    "train plan probe": "models/weights/pretrained training/plan/make_plan",
    "pretrain": "models/mae training/pretraining",
    "demo": "data/synthetic",
    "train plan probe evaluate": "decisions/operating_points metrics/readers",
    "train predict evaluate explain stress": "imaging/decode imaging/preprocessing imaging/raw_image",
    "train pretrain":
        "training/loop training/out_of_memory training/run",
    f"{CONFIGURED} summary": "models/vit",
    "train": "training/processes training/early_stopping",
    "evaluate": "report/evaluate training/finetune",
    "predict evaluate": "inference/onnx_model",
    "train plan": "training/plan/time",
}  # fmt: skip
# Advice beside the point of one command: a function that only the others of its module call.
BY_FUNCTION = {
    "--batch-size": "train",
    "--compile": "train pretrain",
    "--unlabelled": "pretrain",
    "--name": "train probe pretrain",
    "--model": "train plan pretrain",
    "--allow-leakage": CONFIGURED,
    "--target": CONFIGURED,
    "--finding": CONFIGURED,
    "--ordinal": "train plan probe",
}
FOREIGN = {"--shm-size", "--help"}  # of docker, of every command
PLAIN_WORDS = {"runs"}  # commands whose name is a word of other sentences, and whose flags no fix names


def flags_of_commands() -> dict[str, set[str]]:
    found = {name: get_command(app) for name, app in APPS.items()}
    return {
        name: {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        for name, command in found.items()
    }


def fixes(tree: ast.AST) -> list[str]:
    """The source of the second argument of every error that is raised."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
    return [ast.unparse(call.args[1]) for call in calls if str(getattr(call.func, "id", "")).endswith("Error")]


def test_a_fix_names_only_flags_of_the_command_at_hand() -> None:
    has: dict[str, Any] = flags_of_commands()
    verbs = "|".join(sorted(has.keys() - PLAIN_WORDS, key=len, reverse=True))
    raised_by = {f"{module}.py": commands for commands, modules in RAISED_BY.items() for module in modules.split()}
    checked = 0
    for file in sorted((ROOT / "vitmed").glob("**/*.py")):
        module = file.relative_to(ROOT / "vitmed").as_posix()
        for fix in fixes(ast.parse(file.read_text(encoding="utf-8"))):
            for match in re.finditer(r"--[a-z][a-z-]+", fix):
                flag, before, checked = match[0], fix[: match.start()], checked + 1
                named = re.findall(rf"(?:vitmed |\b)({verbs})\b", before)
                verb = Path(module).stem.replace("_", "-")
                raised = named[-1:] or BY_FUNCTION.get(flag, raised_by.get(module, verb)).split()
                lacking = [name for name in raised if flag not in FOREIGN and flag not in has.get(name, ())]
                assert not lacking, f"{module}: {flag} in {fix!r} is no flag of {', '.join(lacking)}"
    assert checked > 100
