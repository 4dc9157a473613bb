"""The data trees that the accuracy benchmarks train on, laid out with links: no image is copied or changed.

    python benchmarks/trees.py DATA_FOLDER OUTPUT_FOLDER

unpacks what is packed in DATA_FOLDER (mnist, cifar10, malaria_gray50) into OUTPUT_FOLDER and makes
`gray50-by-patient/{train,test}/{Parasitized,Uninfected}/`: the first fold of
StratifiedGroupKFold(5, shuffle=True, random_state=0), 40 of the 200 patients for the test. `folds.py` makes the others.
"""

import csv
import sys
import tarfile
from pathlib import Path

from sklearn.model_selection import StratifiedGroupKFold

# The patient of an NIH malaria cell is the number after the first C of the file name.
PATIENT = r"(?:^|/)C(\d+)[^/]*$"


def unpack(data: Path, output: Path, name: str) -> Path:
    """Unpack `name`.tar.gz once; returns its folder."""
    folder = output / name
    if not folder.is_dir():
        part = output / f"{name}.part"  # a kill while unpacking must not leave a folder that looks complete
        with tarfile.open(data / f"{name}.tar.gz") as archive:
            archive.extractall(part, filter="data")
        (part / name).rename(folder)
        part.rmdir()
    return folder


def gray50_by_patient(data: Path, output: Path, fold: int = 0) -> Path:
    """A patient-grouped fold (0 to 4) as links: a fifth of the patients is the test."""
    tree = output / ("gray50-by-patient" if fold == 0 else f"gray50-fold{fold}")
    if tree.is_dir():
        return tree
    source = unpack(data, output, "malaria_gray50")
    with (data / "malaria_gray50_patients.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    paths = [row["path"] for row in rows]
    labels = [Path(path).parent.name for path in paths]
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    train, test = list(folds.split(paths, labels, [row["patient"] for row in rows]))[fold]
    for name, indices in (("train", train), ("test", test)):
        for i in indices:
            where = tree / name / labels[i]
            where.mkdir(parents=True, exist_ok=True)
            (where / Path(paths[i]).name).symlink_to((source / paths[i]).resolve())
    return tree


if __name__ == "__main__":
    data, output = Path(sys.argv[1]), Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    for name in ("mnist", "cifar10"):
        print(unpack(data, output, name))
    print(gray50_by_patient(data, output))
