"""The options of the command line that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path | None, typer.Argument(help="Folder: <class>/ or {train,val,test}/<class>/; or FILE.npz.")]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="YAML file or the name of a recipe.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder that run folders are made in.")]
Name = Annotated[str | None, typer.Option(help="Name of the run folder.")]
Model = Annotated[str | None, typer.Option(help="vit_tiny, vit_small, vit_base, vit_large.")]
WeightsOf = Annotated[str | None, typer.Option(help="File or public name to start from; decides the network.")]
ImageSize = Annotated[int | None, typer.Option(help="Side of the input, px.")]
PatchSize = Annotated[int | None, typer.Option(help="Side of a patch, px.")]
Channels = Annotated[int | None, typer.Option(help="1 grey, 2 grey + alpha, 3 RGB, 4 RGB + alpha.")]
Normalize = Annotated[str | None, typer.Option(help="imagenet, half, or image (against stain and light).")]
Resize = Annotated[str | None, typer.Option(help="pad, squash or crop.")]
Window = Annotated[
    str | None, typer.Option(metavar="WINDOW", help="auto, percentiles, dicom, or LOW,HIGH, of deep images.")
]
Frame = Annotated[int | None, typer.Option(help="Which of several frames, from 0.")]
MaxTrain = Annotated[int | None, typer.Option(help="Train on a stratified sample of so many.")]
Cache = Annotated[bool | None, typer.Option("--cache/--no-cache", help="Keep decoded images for the next run.")]
CacheSize = Annotated[float | None, typer.Option(metavar="GB", help="Most that they may have together.")]
GroupRegex = Annotated[str | None, typer.Option(help="Finds the patient in a file's path.")]
Groups = Annotated[
    str | None, typer.Option(metavar="TABLE|names|dicom", help="Patients by a CSV table, file names or PatientID.")
]
Labels = Annotated[str | None, typer.Option(metavar="TABLE", help="CSV with columns path and label, for folders.")]
Folds = Annotated[int | None, typer.Option(help="Divide all images into so many folds; one is the test.")]
Fold = Annotated[int | None, typer.Option(help="Which fold is the test, from 1; train: default each in turn.")]
AllowLeakage = Annotated[
    bool | None, typer.Option("--allow-leakage", help="Go on where a patient is in two of the folder's splits.")
]
Positive = Annotated[str | None, typer.Option(help="Of two classes the finding.")]
Policy = Annotated[str | None, typer.Option("--policy", "--augment", help="Augmentation for the modality.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training images.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", "-b", help="Images per forward pass.")]
Rate = Annotated[float | None, typer.Option(help="Peak learning rate.")]
LayerDecay = Annotated[float | None, typer.Option(help="Learning rate factor per block.")]
FreezeBlocks = Annotated[int | None, typer.Option(help="Keep the embedding and the first N blocks.")]
Lora = Annotated[int | None, typer.Option(metavar="RANK", help="Train additions of this rank (LoRA).")]
OwnDevice = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")]
Fail = Annotated[list[str] | None, typer.Option("--fail-under", metavar="METRIC=VALUE", help="Exit code 6 if worse.")]
MapImages = Annotated[int | None, typer.Option(metavar="N", help="Judge maps of attention on N images; 0: no maps.")]
Resamples = Annotated[int | None, typer.Option(help="Bootstrap resamples behind the intervals.")]
Subgroup = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column of --labels whose values are judged one by one.")
]
Rater = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column of --labels with the class that a reader saw.")
]
Ordinal = Annotated[
    str | None, typer.Option(metavar="CLASS,CLASS,...", help="Classes that are grades, from the lowest.")
]
Format = Annotated[str | None, typer.Option("--format", help="html, md, json, pdf, or several with commas.")]
ShowNames = Annotated[
    bool | None, typer.Option("--show-names/--no-show-names", help="Call images by their paths in the report.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Offline = Annotated[bool, typer.Option("--offline", help="Open no connection; what is missing is told.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Any configuration field.")
]
Calibration = Annotated[str | None, typer.Option(help="Of the probabilities: temperature, vector or none.")]
Youden = Annotated[bool | None, typer.Option("--youden/--no-youden", help="Two classes: decide by Youden's index.")]
TargetSensitivity = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Two classes: decide so that validation reaches it.")
]
TargetSpecificity = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Two classes: decide so that validation reaches it.")
]
Cost = Annotated[
    str | None,
    typer.Option(
        metavar="MISSED:ALARM|MATRIX", help="What errors cost: 10:1, or [[0,10],[1,0]] with the truth as row."
    ),
]
Prevalence = Annotated[
    float | None, typer.Option(metavar="SHARE", help="How common the finding is where the model is to be used.")
]
Coverage = Annotated[float | None, typer.Option(metavar="SHARE", help="How often a set of classes holds the truth.")]
MaxRisk = Annotated[float | None, typer.Option(metavar="SHARE", help="Give no answer where more errors are likely.")]
