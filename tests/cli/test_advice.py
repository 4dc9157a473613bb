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
# Module -> the commands that raise its errors with a flag in the fix; of `commands/<verb>.py` the verb.
RAISED_BY = {
    "checks/evaluation_images.py": "evaluate stress",
    "cli/commands.py": "predict",
    "cli/entry.py": "train pretrain predict evaluate explain stress",
    "commands/folds.py": "train cross-validate",
    "commands/executors.py": "cross-validate",
    "training/search_space.py": "tune",
    "commands/rank_weights.py": "probe",
    "commands/serving/limits.py": "serve",
    "commands/serving/listening.py": "serve",
    "commands/serving/scores.py": "serve",
    "commands/export_weights.py": "export push",
    "core/files.py": "train probe pretrain evaluate stress",
    "core/outputs.py": "predict plan",
    "core/hardware.py": f"{CONFIGURED} predict evaluate explain stress",
    "core/load_config.py": CONFIGURED,
    "core/run_folder.py": CONFIGURED,
    "data/finding_labels.py": CONFIGURED,
    "data/folders.py": LABELLED,
    "data/grades.py": "train plan probe",
    "data/label_kinds.py": CONFIGURED,
    "data/quantities.py": CONFIGURED,
    "data/samples.py": CONFIGURED,
    "data/targets.py": CONFIGURED,
    "data/label_tables.py": CONFIGURED,
    "data/listing.py": LABELLED,
    "data/parts.py": CONFIGURED,
    "data/patients.py": LABELLED,
    "data/pretraining_splits.py": "pretrain",
    "data/rare_findings.py": CONFIGURED,
    "data/splits.py": CONFIGURED,
    "data/synthetic.py": "demo",
    "decisions/operating_points.py": "train plan probe evaluate",
    "imaging/augmentation.py": CONFIGURED,
    "imaging/exact_views.py": CONFIGURED,
    "imaging/decode.py": "train predict evaluate explain stress",
    "imaging/preprocessing.py": "train predict evaluate explain stress",
    "imaging/raw_image.py": "train predict evaluate explain stress",
    "metrics/reader_comparison.py": "train plan probe evaluate",
    "models/block_kernels.py": "train pretrain",
    "models/check_network.py": f"{CONFIGURED} summary",
    "models/mae.py": "pretrain",
    "models/pretrained.py": "train plan probe",
    "models/vit.py": f"{CONFIGURED} summary",
    "commands/predict_shard.py": "predict",
    "core/ranks.py": "train",
    "report/rebuild.py": "evaluate",
    "training/epoch_records.py": "train",
    "training/gradients.py": "train pretrain",
    "training/fit_policy.py": "evaluate",
    "training/launch.py": "train",
    "training/loop.py": "train pretrain",
    "training/onnx_model.py": "predict evaluate",
    "training/prepare.py": "train plan probe",
    "training/progress.py": "train pretrain",
    "training/pretraining.py": "pretrain",
    "training/run_setup.py": "train pretrain",
    "training/time_plan.py": "train plan",
    "training/training_run.py": "train pretrain",
}
# Advice beside the point of one command: a function that only the others of its module call.
BY_FUNCTION = {
    "--unlabelled": "pretrain",
    "--name": "train probe pretrain",
    "--model": "train plan pretrain",
    "--allow-leakage": CONFIGURED,
    "--target": CONFIGURED,
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
    for file in sorted((ROOT / "vitmed").glob("**/*.py")):
        module = file.relative_to(ROOT / "vitmed").as_posix()
        for fix in fixes(ast.parse(file.read_text(encoding="utf-8"))):
            for match in re.finditer(r"--[a-z][a-z-]+", fix):
                flag, before = match[0], fix[: match.start()]
                names = sorted(has.keys() - PLAIN_WORDS, key=len, reverse=True)
                named = re.findall(r"(?:vitmed |\b)(" + "|".join(names) + r")\b", before)
                verb = Path(module).stem.replace("_", "-")
                raised = named[-1:] or BY_FUNCTION.get(flag, RAISED_BY.get(module, verb)).split()
                lacking = [name for name in raised if flag not in FOREIGN and flag not in has.get(name, ())]
                assert not lacking, f"{module}: {flag} in {fix!r} is no flag of {', '.join(lacking)}"
