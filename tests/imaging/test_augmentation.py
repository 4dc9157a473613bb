"""Random changes: safe for each modality, and a pure function of (run seed, epoch, image index)."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from vitmed.core.errors import UsageError
from vitmed.imaging.augmentation import POLICIES, VIEWS, Augmenter, Change, Changes, refuse_flips, safe_views

RANDOM = [name for name in POLICIES if name != "none"]
UPRIGHT = ["light", "medical", "chest_xray", "fundus", "ultrasound", "oct", "ct_mri"]
ANY_WAY_UP = ["blood_smear", "histology", "dermoscopy"]


def picture(size=32, channels=3, seed=0):
    """Smooth random image of middle brightness, (S, S, C) uint8."""
    coarse = np.random.default_rng(seed).integers(60, 200, (4, 4, channels), dtype=np.uint8)
    return coarse.repeat(size // 4, axis=0).repeat(size // 4, axis=1)


def marked(size=64):
    """Grey image with a bright square in its upper left quarter, (S, S, 3) uint8."""
    image = np.full((size, size, 3), 60, np.uint8)
    image[size // 5 : size // 3, size // 5 : size // 3] = 250
    return image


def marker(image):
    """(row, column) in 0..1 of the middle of the brightest pixels."""
    grey = image.astype(float).mean(axis=2)
    rows, columns = np.nonzero(grey > grey.max() - 40)
    return rows.mean() / len(grey), columns.mean() / len(grey)


class Augmented(Dataset):
    """Twelve equal images, so that all difference comes from the draws."""

    def __init__(self, policy, epoch, run_seed=3):
        self.augment, self.key, self.image = Augmenter(policy, 32, 3), (run_seed, epoch), picture()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        return torch.from_numpy(self.augment(self.image, (*self.key, index))), -1 if worker is None else worker.id


def draws(policy, epoch, workers, run_seed=3, context=None):
    """One pass of a real loader: twelve images as bytes, and the worker of each."""
    data = Augmented(policy, epoch, run_seed)
    context = context or ("fork" if workers else None)
    loader = DataLoader(data, batch_size=2, num_workers=workers, multiprocessing_context=context)
    images, by = zip(*loader, strict=True)
    return [image.numpy().tobytes() for image in torch.cat(images)], torch.cat(by).tolist()


@pytest.mark.parametrize("policy", [pytest.param("medical", marks=pytest.mark.slow), "blood_smear"])
def test_workers_differ_epochs_differ_and_the_same_seed_repeats(policy):
    first, by = draws(policy, epoch=0, workers=2)
    assert set(by) == {0, 1}
    of_worker = [{image for image, worker in zip(first, by, strict=True) if worker == w} for w in (0, 1)]
    assert len(of_worker[0] & of_worker[1]) <= 1  # where no transform is drawn, two images may be equal
    assert len(set(first)) >= 9
    assert draws(policy, epoch=0, workers=2)[0] == first
    assert draws(policy, epoch=0, workers=0)[0] == first
    other_epoch, other_run = draws(policy, epoch=1, workers=2)[0], draws(policy, epoch=0, workers=2, run_seed=4)[0]
    assert sum(a == b for a, b in zip(first, other_epoch, strict=True)) <= 2
    assert sum(a == b for a, b in zip(first, other_run, strict=True)) <= 2


@pytest.mark.slow
def test_spawned_workers_give_the_same_images():
    assert draws("medical", 0, workers=2, context="spawn")[0] == draws("medical", 0, workers=0)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_gives_the_same_bytes_whatever_was_drawn_before(policy):
    image, augment = picture(), Augmenter(policy, 32, 3)
    before = image.copy()
    wanted = [augment(image, (0, 0, i)).tobytes() for i in range(40)]
    for i in range(25):  # leave the generators, and any that a transform might keep, somewhere else
        augment(picture(seed=1), (9, 9, i))
    rng_state = np.random.get_state()[1].tobytes()
    assert [augment(image, (0, 0, i)).tobytes() for i in reversed(range(40))] == wanted[::-1]
    assert [Augmenter(policy, 32, 3)(image, (0, 0, i)).tobytes() for i in range(0, 40, 13)] == wanted[::13]
    assert [pickle.loads(pickle.dumps(augment))(image, (0, 0, i)).tobytes() for i in range(0, 40, 13)] == wanted[::13]
    assert np.random.get_state()[1].tobytes() == rng_state  # nobody touches numpy's global generator
    assert (image == before).all()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_takes_1_to_4_channels_and_keeps_the_shape(policy, channels):
    augment = Augmenter(policy, 32, channels)
    images = [picture(32, channels), np.zeros((32, 32, channels), np.uint8), np.full((32, 32, channels), 255, np.uint8)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [augment(images[i % 3], (0, 0, i)) for i in range(90)]
    assert all(r.shape == (32, 32, channels) and r.dtype == np.uint8 and r.flags.c_contiguous for r in results)
    if policy != "none":
        assert len({r.tobytes() for r in results[::3]}) > 12
        odd = {1: 28, 3: 225}.get(channels, 29)
        assert Augmenter(policy, odd, channels)(np.zeros((odd, odd, channels), np.uint8), (0, 0, 0)).shape[:2] == (
            odd,
            odd,
        )


@pytest.mark.parametrize("policy", UPRIGHT)
def test_modalities_with_an_up_side_stay_upright_and_mirror_only_where_the_table_says(policy):
    for flips in (True, False):
        augment = Augmenter(policy, 64, 3, flips=flips)
        places = [marker(augment(marked(), (0, 0, i))) for i in range(200)]
        assert max(row for row, _ in places) < 0.5
        assert (max(column for _, column in places) > 0.5) == (flips and POLICIES[policy].flips)


def symmetries_reached(policy, flips):
    """Which of the 8 symmetries (turns, mirrored) explain each draw best."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[12:52, 14:24], image[42:52, 14:44] = 150, 150  # the letter L: no symmetry of its own
    forms = {(k, m): standard(np.rot90(image[:, ::-1] if m else image, k)) for m in (False, True) for k in range(4)}
    augment = Augmenter(policy, 64, 3, flips)
    draws = np.stack([standard(augment(image, (0, 0, i))) for i in range(200)])
    fit = draws @ np.stack(list(forms.values())).T / image.size  # (200, 8) correlations
    # below 0.9 it is turned by another angle, which may look like anything
    return {list(forms)[row.argmax()] for row in fit if row.max() > 0.9}


def standard(image):
    values = image.ravel().astype(float)
    return (values - values.mean()) / (values.std() + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("flips", [True, False])
@pytest.mark.parametrize("policy", [name for name in RANDOM if name != "mae"])  # whose crops hide the symmetry
def test_the_safe_views_are_the_symmetries_that_a_policy_makes(policy, flips):
    assert symmetries_reached(policy, flips) == set(VIEWS[safe_views(policy, flips)])


@pytest.mark.parametrize("policy", [name for name in RANDOM if name != "histology"])
def test_brightness_changes_are_bounded(policy):
    augment, image = Augmenter(policy, 32, 3), np.full((32, 32, 3), 128, np.uint8)
    middle = [augment(image, (0, 0, i))[10:22, 10:22].mean() for i in range(200)]
    assert np.quantile(middle, 0.05) > 70 and np.quantile(middle, 0.95) < 190
    assert abs(np.mean(middle) - 128) < 6


def test_parasites_are_not_erased():
    augmenter = Augmenter("blood_smear", 32, 3)
    augmenter(picture(32, 3), (0,))
    kinds = {type(step).__name__ for step in augmenter._compose.transforms}
    assert len(kinds) == 6 and not kinds & {
        "CoarseDropout", "HEStain", "ToGray", "ChannelShuffle", "InvertImg", "Equalize",
    }  # fmt: skip


def test_the_changes_are_as_strong_as_they_say():
    """What albumentations is asked for, by the documents of `Changes`; at 50 px."""
    do, side = Changes(50, True, True), {"x": (-0.05, 0.05), "y": (-0.05, 0.05)}
    pad, crop = do.shift_and_scale()
    wanted = [
        (do.affine(10, 0.05, 0.1, p=0.7), {"p": 0.7, "rotate": (-10, 10), "translate_percent": side, "keep_ratio": True,
                                           "scale": {"x": (0.9, 1.1), "y": (0.9, 1.1)}, "border_mode": 0, "fill": 0}),
        (do.crop(0.3), {"size": (50, 50), "scale": (0.3, 1), "ratio": (0.9, 1.1), "interpolation": 1, "p": 1}),
        (do.crop(0.3, 0.9, (0.8, 1.2), 2), {"scale": (0.3, 0.9), "ratio": (0.8, 1.2), "interpolation": 2}),
        (do.brightness(0.15, p=0.4), {"brightness_limit": (-0.15, 0.15), "contrast_limit": (-0.15, 0.15), "p": 0.4}),
        (do.gamma(), {"gamma_limit": (80, 120), "p": 0.5}),
        (do.gamma(90, 110, p=0.3), {"gamma_limit": (90, 110), "p": 0.3}),
        (do.hue(p=0.3), {"hue_shift_limit": (-5, 5), "sat_shift_limit": (-15, 15), "val_shift_limit": (-10, 10),
                          "p": 0.3}),
        (do.stain(p=0.4), {"method": "random_preset", "intensity_scale_range": (0.8, 1.2),
                            "intensity_shift_range": (-0.1, 0.1), "p": 0.4}),
        (do.blur(p=0.1), {"p": 0.1}),
        (do.blur(p=0.1).transforms[0], {"blur_limit": (3, 5), "p": 0.5}),
        (do.blur(p=0.1).transforms[1], {"radius": (1, 3), "p": 0.5}),
        (do.speckle(), {"multiplier": (0.9, 1.1), "elementwise": True, "per_channel": False, "p": 0.3}),
        (do.noise(), {"std_range": (0.01, 0.03), "per_channel": False, "p": 0.2}),
        (do.noise(0.1, p=0.3, grey=False), {"std_range": (0.01, 0.1), "per_channel": True, "p": 0.3}),
        (Changes(50, True, False).noise(grey=False), {"per_channel": False}),
        (do.holes(p=0.2), {"num_holes_range": (1, 3), "hole_height_range": (0.05, 0.12),
                           "hole_width_range": (0.05, 0.12), "fill": 0, "p": 0.2}),
        (do.compression(70, p=0.2), {"quality_range": (70, 100), "p": 0.2}),
        (do.bending(p=0.2), {"alpha": 20, "sigma": 8, "border_mode": 0, "fill": 0, "p": 0.2}),
        (pad, {"padding": 5, "border_mode": 0, "fill": 0, "p": 1}),
        (crop, {"scale": pytest.approx((0.75**2, (55 / 60) ** 2)), "ratio": (1, 1), "interpolation": 1}),
        (do.symmetry(), {"p": 1}),
        (do.mirror(), {"p": 0.5}),
    ]  # fmt: skip
    for change, settings in wanted:
        assert {name: getattr(change, name) for name in settings} == settings, change
    assert [type(Changes(50, flips, True).symmetry()).__name__ for flips in (True, False)] == [
        "SquareSymmetry", "RandomRotate90",
    ]  # fmt: skip
    names = {change.name for policy in POLICIES.values() for change in policy.steps(flips=True, channels=3)}
    plain = {change.name for policy in POLICIES.values() for change in policy.steps(flips=False, channels=1)}
    assert names - plain == {"mirror", "hue", "stain"} and plain < names
    assert [Augmenter("light", 50, 3, *flips).flips for flips in ((), (True,), (False,))] == [True, True, False]


def test_none_returns_the_image_itself():
    image = picture()
    assert Augmenter("none", 32, 3)(image, (0, 0, 0)) is image


def test_import_and_policy_none_leave_albumentations_alone():
    code = (
        "import os, sys, numpy as np; before = dict(os.environ)\n"
        "from vitmed.imaging.augmentation import Augmenter\n"
        "Augmenter('none', 8, 3)(np.zeros((8, 8, 3), np.uint8), (0,)); Augmenter('medical', 8, 3)\n"
        "assert 'albumentations' not in sys.modules and 'cv2' not in sys.modules and dict(os.environ) == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_policy_lists_what_exists():
    with pytest.raises(UsageError, match="chest_xray") as caught:
        Augmenter("chest_xry", 32, 3)
    assert "did you mean 'chest_xray'" in str(caught.value)
    for part in ("xray", "XRay"):  # of a name
        with pytest.raises(UsageError, match="did you mean 'chest_xray'"):
            Augmenter(part, 32, 3)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("kidney-L", "kidney-R"),
        ("kidney_l", "kidney_r"),
        ("KidneyL", "KidneyR"),
        ("left kidney", "right kidney"),
        ("Kidney, left", "kidney right"),
        ("LeftLung", "RightLung"),
        ("leftlung", "rightlung"),
        ("L", "R"),
        ("OS", "OD"),
        ("eye-os-1", "eye-od-1"),
        ("OS left eye", "OD right eye"),
        ("situs_sinister", "situs_dexter"),
        ("Niere links", "Niere rechts"),
        ("linke Niere", "rechte Niere"),
        ("poumon gauche", "poumon droit"),
        ("mano izquierda", "mano derecha"),
    ],
)
def test_classes_that_differ_by_side_forbid_flips(left, right):
    with pytest.raises(UsageError) as caught:
        refuse_flips(["spleen", right, "liver", left], "blood_smear", flips=True)
    assert f"'{left}' and '{right}'" in caught.value.problem and "mirror" in caught.value.problem
    assert "--set augment.flips=false" in caught.value.fix and "chest_xray" in caught.value.fix
    refuse_flips([left, right], "blood_smear", flips=False)
    refuse_flips([left, right], "medical", flips=True)


@pytest.mark.parametrize(
    "classes",
    [
        ("all", "arr"),
        ("B-ALL", "B-ARR"),
        ("od", "oz"),
        ("food", "foos"),
        ("cell", "cerr"),
        ("liver-L", "kidney-R"),
        ("left kidney", "right lung"),
        ("left lung", "lung"),
        ("bright", "dark"),
        ("kidney-L1", "kidney-R2"),
        ("left-to-right shunt", "right-to-left shunt"),
        ("infected", "uninfected"),
        ("0", "1"),
    ],
)
def test_other_classes_do_not(classes):
    refuse_flips(classes, "blood_smear", flips=True)


@pytest.mark.parametrize("policy", RANDOM)
def test_a_grey_picture_stored_as_rgb_stays_grey(policy):
    """Whether a picture is grey is a matter of its pixels, not of its file: knees are RGB files of grey pixels."""
    grey, augment = picture(channels=1).repeat(3, axis=2), Augmenter(policy, 32, 3)
    changed = [augment(grey, (0, 0, i)) for i in range(40)]
    assert not any(np.ptp(image, axis=2).any() for image in changed)
    assert sum((image != grey).any() for image in changed) > 20


@pytest.mark.parametrize("channels", [2, 4])
@pytest.mark.parametrize("policy", RANDOM)
def test_alpha_moves_with_the_image_and_keeps_its_two_values(policy, channels):
    """An opaque picture with a margin that is not there: brightness, noise or holes would make it half transparent."""
    image, augment = picture(64, channels), Augmenter(policy, 64, channels)
    image[..., -1] = 255
    image[:16, :, -1] = 0
    plain = Augmenter(policy, 64, channels - 1)
    changed = [augment(image, (0, 0, i)) for i in range(40)]
    assert all(set(np.unique(made[..., -1])) <= {0, 255} for made in changed)
    assert len({made[..., -1].tobytes() for made in changed}) > 1
    for i, made in enumerate(changed[:10]):
        assert (made[..., :-1] == plain(image[..., :-1], (0, 0, i))).all()  # as without alpha


def in_words(step: Change) -> str:
    """A change with its arguments."""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in step.values]
    return f"{step.name}({', '.join(texts + [f'{key}={value}' for key, value in step.named.items()])})"


STRENGTHS = {
    "none": "",
    "light": "mirror() shift_and_scale()",
    "medical": "affine(10, 0.05, 0.1, p=0.7) brightness(0.1, p=0.5) blur(p=0.2) noise(0.1, p=0.25, grey=False)",
    "blood_smear": (
        "symmetry() affine(180, 0.05, 0.1, p=0.5) brightness(0.15, p=0.5) hue(p=0.5) blur(p=0.1) compression(70, p=0.2)"
    ),
    "histology": "crop(0.7) symmetry() stain(p=0.5) brightness(0.1, p=0.3) blur(p=0.15) compression(60, p=0.2)",
    "dermoscopy": "crop(0.6) symmetry() affine(180, 0, 0, p=0.5) brightness(0.15, p=0.5) hue(p=0.3) holes(p=0.2)",
    "chest_xray": "affine(7, 0.04, 0.07, p=0.7) gamma() brightness(0.1, p=0.5) noise()",
    "fundus": "mirror() affine(15, 0.04, 0.07, p=0.7) gamma() brightness(0.1, p=0.5)",
    "ultrasound": "mirror() affine(10, 0.05, 0.05, p=0.7) gamma() speckle()",
    "oct": "mirror() affine(8, 0.05, 0, p=0.7) gamma() speckle()",
    "ct_mri": "affine(10, 0.04, 0.1, p=0.7) bending(p=0.2) gamma(90, 110, p=0.3) noise()",
    "mae": f"crop(0.2, 1, ratio=({3 / 4}, {4 / 3}), interpolation=2) mirror()",
}


def test_how_strong_every_policy_is():
    """Measured results are of these strengths: a change of one is a change of the method."""
    assert {name: " ".join(map(in_words, policy.changes)) for name, policy in POLICIES.items()} == STRENGTHS
    mirroring = {name for name, text in STRENGTHS.items() if "mirror" in text or "symmetry" in text or "shift" in text}
    assert {name for name, policy in POLICIES.items() if policy.flips} == mirroring
    assert {name for name, policy in POLICIES.items() if policy.turns} == {
        name for name, text in STRENGTHS.items() if "symmetry" in text
    }
