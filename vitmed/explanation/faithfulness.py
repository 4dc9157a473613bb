"""What an attention map is worth. Two questions for every method in `attention.METHODS`.

1. Do the marked patches carry the answer? Patches are removed (deletion) or added (insertion), the most marked first;
   the score is the area under the probability of the explained class, 0..1 (Petsiuk et al. 2018, arXiv 1806.07421,
   section 3.3; here in steps of patches, towards the mean colour of the images), of the explained finding, or of a
   number under `Learning.chances`: 0.5 at the mean of training. A good map has a low deletion and a
   high insertion score. `gain` = insertion - deletion; the expected gain of a random order is 0.
2. Does the map depend on the learned weights? The weights are made random, each tensor shuffled, and each map is
   compared with the original by Spearman's rank correlation (Adebayo et al. 2018, arXiv 1810.03292). A map that stays
   the same shows the image, not the learned weights.

Both compare a map with the model, not with a physician: a good map does not make the model right, and neither
question asks why the model decides as it does.
"""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from vitmed.core.base_models import Kind
from vitmed.core.messages import bar, say
from vitmed.core.text import counted
from vitmed.explanation.attention import METHODS, attention_maps, centre_shift, relevance
from vitmed.explanation.results import TITLES, Attention, MapCheck, Maps, cells, turns
from vitmed.imaging.preprocessing import Preprocessing
from vitmed.metrics.estimates import Estimate, estimate
from vitmed.metrics.predictions import Predictions, known_labels
from vitmed.models.hardware import FULL_FP32
from vitmed.models.vit import ViT
from vitmed.training.losses import LEARNING

SHOWN = 8  # images of an evaluation with drawn maps; half of them are errors if there are enough

STEPS = 8  # in which all patches are taken away
LEAST_GAIN = 0.1  # of probability: a smaller gain is of no use. Untrained networks reached 0.08
SAME = 0.5  # a rank correlation above this, with all weights random: the same map
FEW = 5  # the fewest images, or patients, for a verdict
SHUFFLED = 8  # images of the second question, which takes long
BATCH = 64
MOST = 32  # images; below, multiply-adds (see `affordable`) that a processor and a GPU compute in seconds
BUDGET = {"cpu": 6e11, "cuda": 2e14, "mps": 2e13}
BETTER = "better than a random order"
WEAK = "hardly better than a random order"
RANDOM = "no better than a random order"
UNSHOWN = "not shown to be better than a random order"
EVERYTHING = "everything"  # is random, in the second question
UNLEARNED = "does not depend on what was learned"


def check_maps(
    model: ViT,
    preprocessing: Preprocessing,
    images: np.ndarray,
    targets: np.ndarray,
    units: np.ndarray | None = None,
    kind: Kind = "classes",
) -> Attention:
    """Answer both questions about one class, finding or side of a number in each image; or say why that cannot be.

    Args:
        model: in evaluation mode.
        images: (B, S, S, C) uint8, from `Preprocessing.read`.
        targets: (B,) what to explain, such as the predicted class.
        units: (B,) int, the patient of each image: intervals are of patient means. None: every image counts by itself.
    """
    reason = None
    if len(images) < FEW:
        reason = f"{counted(len(images), 'image')}, too few to check a map"
    elif model.patches == 1:
        reason = "the image is one patch, so no patch can stand out"
    elif model.head.out_features == 1 and kind != "findings":
        reason = "the model has one class, so its answer never changes"
    result = Attention(
        n=len(images),
        n_shuffled=min(SHUFFLED, len(images)),
        patches=model.patches,
        steps=min(STEPS, model.patches),
        methods={},
        stages=[],
        random=None,
        reason=reason,
    )
    if reason is not None:
        return result
    x = preprocessing.normalise(torch.from_numpy(images).to(next(model.parameters()).device))
    maps = relevance(model, x, targets, kind)
    scores = _areas(model, x, targets, maps, kind, centre_shift(model))
    shaken, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for tensor in (parameter.data for parameter in shaken.parameters()):
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        tensor.copy_(tensor.flatten()[order].view_as(tensor))
    shuffled = relevance(shaken, x[:SHUFFLED], targets[:SHUFFLED], kind)
    units, methods = np.arange(len(images)) if units is None else units, dict[str, MapCheck]()
    for name in METHODS:
        deletion, insertion = scores[name].T  # (B,) each
        gain = mean_estimate(insertion - deletion, units)
        similarity = mean_estimate(rank_correlation(maps[name][:SHUFFLED], shuffled[name]), units[:SHUFFLED])
        word, text = verdict(gain, similarity)
        areas = {"deletion": mean_estimate(deletion, units), "insertion": mean_estimate(insertion, units), "gain": gain}
        methods[name] = MapCheck(
            title=TITLES[name], **areas, similarity={EVERYTHING: similarity}, verdict=word, text=text
        )
    ends = {name: float(scores[name].mean()) for name in ("whole", "blank")}
    random = mean_estimate(scores["random"].mean(axis=1), units)
    return result.model_copy(update={"methods": methods, "stages": [EVERYTHING], "random": random, **ends})


def verdict(gain: Estimate, similarity: Estimate) -> tuple[str, str]:
    """One of the five verdicts, and a sentence; `similarity` is to maps with all weights random."""
    value, low, high = gain.value, gain.low, gain.high
    assert value is not None and low is not None and high is not None and similarity.value is not None
    gained = f"{value:+.3f} ({low:+.3f} to {high:+.3f}), and a random order gives 0"
    if low <= 0 < LEAST_GAIN < high:
        return UNSHOWN, f"It is not shown to beat a random order: do not read anything into it. Gain {gained}."
    if low > 0 and value < LEAST_GAIN:
        less = f"less than {LEAST_GAIN}, which maps of untrained networks nearly reach"
        return WEAK, f"Its gain is {gained}: {less}. Do not read anything into it."
    if low <= 0:
        return RANDOM, f"It marks no better than chance: do not read anything into it. Gain {gained}."
    if similarity.value > SAME:
        return UNLEARNED, (
            f"It marks patches that matter for the answer (gain {gained}), but looks the same with random weights "
            f"(rank correlation {similarity.value:.2f}): it shows the image, not what was learned. "
            "Do not read anything into it."
        )
    return BETTER, f"The answer depends more on the patches that it marks than on others: gain {gained}."


def mean_estimate(values: np.ndarray, units: np.ndarray) -> Estimate:
    """The mean over units of the means of their values, both (B,), so that a patient with many images counts once; and
    Student's interval for it at 95 %; no interval of one unit."""
    number = np.unique(units, return_inverse=True)[1]
    values = np.bincount(number, values) / np.bincount(number)
    mean, n = float(values.mean()), len(values)
    half = stats.t.ppf(0.975, n - 1) * values.std(ddof=1) / n**0.5 if n > 1 else np.nan
    return estimate(mean, mean - half, mean + half, "t")


def affordable(model: ViT) -> int:
    """How many images `check_maps` can check in seconds on the device of the model, from its multiply-adds."""
    tokens, width = model.tokens, model.width
    block = 12 * tokens * width**2 + 2 * tokens**2 * width  # at the usual MLP
    passes = 2 + 2 * (min(STEPS, tokens) - 1) * (len(METHODS) + 1)  # 1: the random order
    budget = BUDGET.get(model.head.weight.device.type, BUDGET["cpu"])
    return int(min(MOST, budget / (passes * block * len(model.blocks))))


def sample(labels: np.ndarray, groups: Sequence[str] | None, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Which images to check, at most `count`, drawn at random: patients in turn, and classes in turn, so that a rare
    class is included; with the (B,) unit of each for `check_maps`, and how they were drawn, in words."""
    order = np.random.default_rng([0, 2]).permutation(len(labels))
    order = order[np.argsort(turns(labels[order]), kind="stable")]
    if groups is None:
        return order[:count], np.arange(len(order[:count])), "drawn at random; intervals by image, patients unknown"
    patients = np.unique([name or f"\0{i}" for i, name in enumerate(groups)], return_inverse=True)[1]
    rows = order[np.argsort(turns(patients[order]), kind="stable")][:count]
    held = len(np.unique(patients[rows]))
    if held < FEW:
        return rows, np.arange(len(rows)), f"of {counted(held, 'patient')}; intervals by image, which are too narrow"
    return rows, patients[rows], f"of {counted(held, 'patient')}; intervals by patient"


def _areas(
    model: ViT, x: Tensor, targets: np.ndarray, maps: dict[str, np.ndarray], kind: Kind = "classes", shift: float = 0.0
) -> dict[str, np.ndarray]:
    """Areas under deletion and insertion: method or "random" -> (B, 2); whole, blank -> (B,).

    A patch is removed with the pixels nearest to its centre, which `shift` moves.
    """
    near = cells(x.shape[-1], math.isqrt(next(iter(maps.values())).shape[1]), shift)
    names, count, rng = [*maps, "random"], len(x), np.random.default_rng([0, 1])
    blank = x.mean(dim=(0, 2, 3), keepdim=True)  # (1, C, 1, 1): the mean colour, after normalisation
    marked = np.stack([*maps.values(), np.zeros_like(next(iter(maps.values())))], axis=1)  # (B, M, L)
    areas, ends = np.empty((count, len(names), 2)), np.empty((count, 2))
    with bar("checking attention maps") as advance:
        for i in range(count):
            orders = np.lexsort((rng.random(marked[i].shape), -marked[i]))  # (M, L); chance orders what is marked alike
            kept = np.concatenate([mask for order in orders for mask in curves(order)])  # (2 x M x (T + 1), L)
            different, back = np.unique(kept, axis=0, return_inverse=True)  # all share the whole and the empty image
            chance_of = _probabilities(model, x[i], blank[0], different, near, kind)[:, int(targets[i])]
            curve = chance_of[back.ravel()].reshape(len(names), 2, -1)  # (M, 2, T + 1)
            areas[i] = np.trapezoid(curve, dx=1 / (curve.shape[-1] - 1), axis=-1)
            ends[i] = curve[0, 0, 0], curve[0, 0, -1]
            advance(i + 1, count)
    return {name: areas[:, j] for j, name in enumerate(names)} | {"whole": ends[:, 0], "blank": ends[:, 1]}


def curves(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which patches are kept at each step of deletion and of insertion, two (T + 1, L), in their `order` (L,)."""
    patches, place = len(order), np.argsort(order)
    steps = min(STEPS, patches)
    gone = np.round(np.arange(steps + 1) * patches / steps)[:, None]  # (T + 1, 1)
    return place >= gone, place < gone


@FULL_FP32
@torch.inference_mode()
def _probabilities(model: ViT, x: Tensor, blank: Tensor, kept: np.ndarray, near: np.ndarray, kind: Kind) -> np.ndarray:
    """(M, K) the probability of each answer when only the patches `kept` (M, L) of x (C, S, S) are left."""
    grids = kept.reshape(len(kept), 1, near[-1] + 1, -1)  # (M, 1, h, w)
    learning, chances = LEARNING[kind], []
    for start in range(0, len(kept), BATCH):
        mask = torch.from_numpy(grids[start : start + BATCH][..., near[:, None], near]).to(x.device)  # (m, 1, S, S)
        logits = learning.answers(model(torch.where(mask, x, blank)))
        chances.append(learning.chances(logits).double().cpu().numpy())
    return np.concatenate(chances)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation of each row of a (B, L) with the same row of b: (B,); 0 where a row is constant."""
    pairs = zip(a, b, strict=True)
    return np.array([stats.spearmanr(x, y).statistic if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0 for x, y in pairs])


def check_attention(
    model: ViT, how: Preprocessing, read: Callable[[int], np.ndarray], predictions: Predictions, images: int | None
) -> tuple[Attention | None, Maps | None]:
    """The checks of the attention maps for an evaluation, and the maps of some images for its figure. `read` gives the
    (S, S, C) uint8 of a row; it checks `images` of them (None: as many as take some seconds; 0: no checks, no maps)."""
    if images == 0 or not len(predictions):
        return None, None
    shown = images_to_draw(predictions)
    pictures = np.stack([read(int(i)) for i in shown])
    kind, explained = predictions.kind, predictions.explained
    maps = attention_maps(model, how, pictures, explained[shown], shown, kind)
    count = affordable(model) if images is None else images
    if images is None and count < FEW <= len(predictions):
        slow = "it would take minutes on this machine; --map-images 8 does it"
        none = check_maps(model, how, pictures[:0], explained[:0], kind=kind)
        return none.model_copy(update={"reason": slow, "drawn": ""}), maps
    strata = known_labels(predictions) if kind == "classes" else explained
    rows, units, drawn = sample(strata, predictions.groups, count)
    pictures = np.stack([read(int(i)) for i in rows])
    checked = check_maps(model, how, pictures, explained[rows], units, kind)
    verdicts = "; ".join(f"{part.title}: {part.verdict}" for part in checked.methods.values())
    say(f"test of the attention maps: {verdicts or f'not checked: {checked.reason}'}")
    return checked.model_copy(update={"drawn": drawn}), maps


def images_to_draw(predictions: Predictions) -> np.ndarray:
    """Rows of up to `SHOWN` images: the most confident errors, then others drawn with a fixed seed."""
    errors = predictions.mistakes()
    others = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(predictions)), errors))
    most = max(SHOWN // 2, SHOWN - len(others))
    return np.concatenate([errors[:most], others])[:SHOWN]
