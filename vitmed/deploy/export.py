"""A network for other programs: the .onnx file, with its decisions, compared with its checkpoint before it is written;
and its weights for timm, which transformers reads too.

The way back from timm is `models.weights.layouts`. The folder is what `timm.create_model("local-dir:FOLDER",
pretrained=True)` reads, from timm 1.0.15: config.json and model.safetensors, with preprocessing and a card."""

import contextlib
import io
import logging
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitmed.core.base_models import Frozen
from vitmed.core.errors import DataError, GateError, UsageError
from vitmed.core.files import whole_file, whole_folder, write_json, write_text
from vitmed.core.messages import bar, say, warn
from vitmed.core.process import NO_WARNINGS, changed
from vitmed.core.text import counted, counted_doing, first_line, quoted
from vitmed.data.samples import Sample, labelled_by
from vitmed.imaging.decode import read_image
from vitmed.inference import onnx_model
from vitmed.inference.checkpoint import Checkpoint
from vitmed.inference.exported_graph import ExportedGraph
from vitmed.inference.open_model import open_network
from vitmed.inference.saved_model import Outputs, SavedModel, score_column
from vitmed.metrics.predictions_csv import ANSWER, OOD_SCORE, SET, YES
from vitmed.models.sizes import resolved
from vitmed.models.weights.catalogue import stops_sharing
from vitmed.models.weights.files import State
from vitmed.report.headline import known_evaluation
from vitmed.report.model_card import weights_card

OPSET = 20

MOST = 500  # validation images that are compared at most
MOST_MOVED = 1e-3  # of a probability
ON_BORDER = 1e-6  # log odds, costs or OOD score; so near a border, rounding flips sets and answers


class ExportGate(Frozen):
    """The exported network beside the checkpoint, on validation images."""

    images: int  # how many were compared
    flipped: int  # how many have another decision
    largest: float  # the largest difference of a calibrated probability; of a number in units of its spread
    resized: bool  # whether the file resizes the images, so they were compared in their own sizes

    @property
    def passed(self) -> bool:
        """Whether no decision differs, and no probability by more than `MOST_MOVED`."""
        return not self.flipped and self.largest <= MOST_MOVED

    @property
    def in_words(self) -> str:
        """What was found, as a clause."""
        flips = counted_doing(self.flipped, "decision", "differs", "differ") if self.flipped else "no decision differs"
        return f"on {counted(self.images, 'image')} of the run {flips}; the largest difference is {self.largest:.1g}"


def checkpoint_outputs(saved: SavedModel, root: Path) -> tuple[list[Sample], Outputs]:
    """At most `MOST` validation images of a run, evenly spread, and what the model gives for them, in a data folder, on
    the CPU in fp32. Raises DataError if one cannot be read."""
    known = saved.splits.samples["val"] or saved.splits.samples["train"]  # joined folds have no validation
    samples = [known[row] for row in np.linspace(0, len(known) - 1, min(len(known), MOST)).round().astype(np.int64)]
    with bar("comparing: checkpoint") as advance:
        network = open_network(saved, saved.policy, "cpu", "fp32")
        outputs = network.outputs(lambda i: saved.preprocessing.read(root / samples[i].path), len(samples), advance)
    if lost := [*outputs.problems.values()]:
        problem = f"{lost[0]}; {len(lost):,} of {counted(len(samples), 'image')} cannot be read"
        raise DataError(problem, "name the place of its images: --data DIR; or put these files back")
    return samples, outputs


def compare_export(
    saved: SavedModel, graph: ExportedGraph, session: Any, root: Path, chosen: list[Sample], outputs: Outputs
) -> ExportGate:
    """Compare an exported network with the `outputs` of its checkpoint for chosen validation images.

    The checkpoint resizes with Pillow and decides with numpy; the exported network, `session`, does all in its graph,
    where it may: images (B, H, W, C) uint8 -> the outputs of the graph."""
    assert saved.policy is not None
    how, exported = saved.preprocessing, list[list[np.ndarray]]()
    with bar("comparing: exported") as advance:
        for index, sample in enumerate(chosen):
            if graph.resize:
                whole = read_image(root / sample.path, how.channels, frame=how.frame, window=how.window)
                image = np.asarray(whole).reshape(whole.height, whole.width, how.channels)
            else:
                image = how.read(root / sample.path)
            exported.append(session.run(None, {onnx_model.IMAGES: image[None]}))
            advance(index + 1, len(chosen))
    theirs = dict(zip(graph.outputs, map(np.concatenate, zip(*exported, strict=True)), strict=True))
    undecided = labelled_by(saved.splits.target, saved.classes, chosen, outputs.logits, saved.config.data.positive)
    scores = score_column(theirs.get("ood_score"))
    known = {name: cells for name, cells in outputs.columns.items() if name == OOD_SCORE}  # graphs know no blank image
    exact = saved.policy.apply(replace(undecided, columns=known))  # from the checkpoint
    again = saved.policy.apply(replace(undecided, logits=theirs["logits"], columns=scores))  # its policy in numpy
    flipped = theirs["answered"] != np.array([cell == YES for cell in again.columns[ANSWER]])
    for name in {SET, ANSWER} & exact.columns.keys():
        flipped |= np.array(exact.columns[name]) != np.array(again.columns[name])
    if "in_set" in theirs:
        flipped |= np.any(theirs["in_set"] != again.members, axis=1)
    flipped &= (np.abs(saved.policy.borders(exact)) > ON_BORDER).all(axis=1)
    if "value" in theirs:
        moved = np.abs(exact.amounts[:, 0] - theirs["value"]).max(initial=0) / exact.target.spread
    else:
        flipped |= np.any((theirs["prediction"] != again.predicted).reshape(len(flipped), -1), axis=1)
        flipped |= np.any((exact.predicted != again.predicted).reshape(len(flipped), -1), axis=1)
        if exact.kind == "classes":
            flipped |= exact.likeliest != again.likeliest
        moved = np.abs(exact.probabilities - theirs["probabilities"]).max(initial=0)
    return ExportGate(images=len(chosen), flipped=int(flipped.sum()), largest=float(moved), resized=graph.resize)


def onnx_program(graph: ExportedGraph, file: Path) -> tuple[Any, Any]:
    """The network as a model of the package onnx, and a session of onnxruntime that runs it. Raises as `write_onnx`.

    A container's user id may have no name, and then torch's compiler fails (tesseract-core #425), so it gets one here.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError(f"{file}: {onnx_model.NEEDED}", onnx_model.FIX) from None
    # Two images, since a dynamic batch needs at least two; neither square nor of the network's size.
    side = graph.how.image_size
    height, width = (side + 3, side + 5) if graph.resize else (side, side)
    example = torch.zeros(2, height, width, graph.how.channels, dtype=torch.uint8)
    sizes = {1: torch.export.Dim("height"), 2: torch.export.Dim("width")} if graph.resize else {}
    given = {"USER": "vitmed", "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "vitmed-inductor")}
    added = [name for name in given if name not in os.environ]
    os.environ.update({name: given[name] for name in added})
    try:
        silent = changed(logging.disable, logging.ERROR, logging.root.manager.disable)
        with silent, NO_WARNINGS, contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch"), **sizes},),
                input_names=[onnx_model.IMAGES],
                output_names=list(graph.outputs),
                opset_version=OPSET,
                verbose=False,
            )
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"torch cannot export this network ({first_line(error)})", "please report it") from error
    finally:
        for name in added:
            del os.environ[name]
    assert program is not None
    model = program.model_proto  # made anew each time
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, Path(folder) / "model.onnx")
        return model, onnx_model.open_session(Path(folder) / "model.onnx")


def write_onnx(saved: SavedModel, file: Path, root: Path) -> ExportGate:
    """Export a model as an .onnx file, compare it with its checkpoint on validation images of the data folder, and
    write it if it decides alike, else raise GateError. Raises UsageError: a package is missing, or torch cannot export
    the network."""
    graph = ExportedGraph(saved, resize=saved.preprocessing.channels in (1, 3)).eval()
    if not graph.resize:
        warn("an image with alpha must be made square before: the file takes squares only")
    chosen, outputs = checkpoint_outputs(saved, root)  # first: torch takes minutes for a large network
    say(f"exporting {saved.path}; torch needs about a quarter of a minute")
    model, session = onnx_program(graph, file)
    gate = compare_export(saved, graph, session, root, chosen, outputs)
    if not gate.passed:
        problem = f"{file}: not written, since the exported network differs from {saved.path}: {gate.in_words}"
        fix = f"no decision may differ, and no probability by more than {MOST_MOVED:g}; please report it"
        raise GateError(problem, fix)
    import onnx

    for node in model.graph.node:  # where in whose folders it was traced
        node.ClearField("metadata_props")
    props = {onnx_model.KEY: onnx_model.describe_export(saved, gate.to_dict()), onnx_model.DIGEST: onnx_model.UNSIGNED}
    onnx.helper.set_model_props(model, props)
    onnx.helper.set_model_props(model, props | {onnx_model.DIGEST: onnx_model.file_digest(model.SerializeToString())})
    with whole_file(file) as stream:
        stream.write(model.SerializeToString())
    return gate


# --- the weights for timm

CARD, CONFIG, WEIGHTS = "README.md", "config.json", "model.safetensors"


def lacks(fields: dict[str, Any]) -> str | None:
    """What of a network, the keyword arguments of `ViT`, timm cannot express; None for nothing."""
    gated, eps = fields["mlp"] == "swiglu", fields["norm_eps"]
    parts = {
        f"a stem of convolutions ({fields['stem']})": fields["stem"] != "patch",
        "rotary positions": fields["positions"] in ("rotary", "learned_rotary"),
        "a norm in its SwiGLU": fields["mlp"] == "swiglu_norm",
        f"the read-out {fields['pool']}": fields["pool"] in ("cls_mean", "coca"),
        f"an epsilon of {eps:g} in its layer norms": eps not in ((1e-6,) if gated else (1e-6, 1e-5)),
        "attention pooling of another width": fields["pool_width"] not in (None, fields["width"]),
        "attention pooling with SwiGLU": gated and fields["pool"] == "attention",
    }
    return next((part for part, there in parts.items() if there), None)


def architecture(fields: dict[str, Any]) -> str:
    """A model of timm with the parts that no argument in JSON names: SwiGLU and epsilon."""
    if fields["mlp"] == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if fields["norm_eps"] == 1e-5 else f"{fields['name']}_patch16_224"


def arguments(fields: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `timm.create_model`, beside the name of the architecture."""
    gated = fields["mlp"] == "swiglu"
    hidden = int(fields["width"] * fields["mlp_ratio"] + 1e-6) * (2 if gated else 1)  # of SwiGLU gate and value
    return {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "in_chans": fields["channels"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["heads"],
        "mlp_ratio": math.ceil(hidden / fields["width"] * 1e6) / 1e6,  # timm rounds their product down
        "global_pool": {"cls": "token", "mean": "avg", "attention": "map"}[fields["pool"]],
        "class_token": fields["class_token"],
        "reg_tokens": fields["registers"],
        "no_embed_class": fields["registers"] > 0,
        "init_values": 1e-5 if fields["layer_scale"] else None,
        "pre_norm": fields["norm_pre"],
        **({} if gated else {"act_layer": fields["mlp"]}),
    }


def renamed(fields: dict[str, Any], ours: State) -> State:
    """The tensors as timm has them: registers have no positions, and patches before a first norm no bias."""
    state = {name: tensor.contiguous() for name, tensor in ours.items()}
    if fields["norm_pre"]:
        places = state["pos_embed"].clone()
        places[:, int(fields["class_token"]) :] += state.pop("patch_embed.proj.bias")
        state["pos_embed"] = places
    if fields["registers"] and fields["class_token"]:
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:].contiguous()
    return state


def described(saved: Checkpoint, fields: dict[str, Any]) -> dict[str, Any]:
    """The content of config.json; under `KEY` calibration, operating point and licence, nothing of single images."""
    how, outputs = saved.preprocessing, {"num_classes": len(saved.classes)}
    mean, std = (list(values) for values in how.constants(how.channels))
    pretrained = {
        "input_size": [how.channels, how.image_size, how.image_size],
        "fixed_input_size": True,
        "interpolation": how.interpolation,
        "crop_pct": 1.0,
        "crop_mode": {"pad": "border", "squash": "squash", "crop": "center"}[how.resize],
        "mean": mean,
        "std": std,
        **outputs,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    about = onnx_model.about_model(saved)
    about["policy"] = {key: value for key, value in about["policy"].items() if key not in ("ood_score", "other_scores")}
    network = {"architecture": architecture(fields), **outputs, "num_features": fields["width"]}
    network |= {"label_names": list(saved.classes), "model_args": arguments(fields), "pretrained_cfg": pretrained}
    if saved.splits.target.kind == "findings":  # else transformers makes them exclude one another
        network["problem_type"] = "multi_label_classification"
    return network | {onnx_model.KEY: about}


def write_weights(saved: Checkpoint, target: Path) -> None:
    """Write a model for timm to a new folder. Raises UsageError: timm lacks a part of the model; a package is missing;
    the folder cannot be written."""
    saved.chosen_policy()
    fields, licence = resolved(saved.config.model).model_dump(), saved.config.model.licence
    part = lacks(fields)
    if saved.splits.target.kind == "number":
        part = "a head that predicts a number"
    elif (views := saved.config.augment.views) != "one":
        part = f"several views of an image ({views})"
    elif saved.preprocessing.normalize == "image":
        part = "each image normalised by itself"
    if part:
        fix = f"vitmed export {quoted(saved.path)} --to model.onnx writes every model"
        fix += "; for timm: vitmed train --stem patch" * ("stem" in part)
        raise UsageError(f"{saved.path}: the model needs {part}, which vitmed cannot write for timm", fix)
    try:
        from safetensors.torch import save
    except ImportError:
        raise UsageError(f"{WEIGHTS}: needs one more package", "pip install 'vitmed[weights]'") from None
    with whole_folder(target) as folder:
        write_json(folder / CONFIG, described(saved, fields))
        state = renamed(fields, saved.model().state_dict())
        (folder / WEIGHTS).write_bytes(save(state, {"format": "pt"}))  # `save_file` gives a full disk another error
        test = known_evaluation(saved, "test")
        write_text(folder / CARD, weights_card(saved, target.name, None if test is None else test.metrics))
    if (why := stops_sharing(licence)) is not None:
        warn(f"the licence of the starting weights, {licence}, {why}: read it before you share the model")
