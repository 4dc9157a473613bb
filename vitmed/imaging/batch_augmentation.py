"""The policies of `augmentation.py` for whole batches, on the device that trains.

Each change has the name, the arguments and the distribution of its counterpart in `Changes`, and takes (B, C, S, S)
float32 in 0..255 to the same. Values are rounded once, at the end, and not after every change.

Letters of the shapes: B images, C channels, S side.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitmed.imaging.augmentation import POLICIES, margin_and_area, stain_matrices


class BatchAugmenter:
    """As `augmentation.Augmenter`, for batches on their device; an image depends on nothing but itself and its seed.

    So a resumed run, and a run with another number of processes, see the same images.
    """

    def __init__(self, policy: str, size: int, channels: int, flips: bool = True, crop: float = 1.0):
        self.flips, self.changes = flips, POLICIES[policy].steps(flips, channels, crop)

    @torch.no_grad()
    def __call__(self, images: Tensor, seed: int, indices: Tensor) -> Tensor:
        """(B, S, S, C) uint8 -> the same, on the same device; nothing waits for the device.

        Args:
            seed: of the epoch, 63 bits.
            indices: (B,) int64, of the images, on the same device.
        """
        x, draw = images.permute(0, 3, 1, 2).float(), Draws(seed, indices)
        grey = (x == x[:, :1]).all(dim=(1, 2, 3), keepdim=True)  # (B, 1, 1, 1)
        for change in self.changes:
            turns = {} if self.flips or change.name != "symmetry" else {"flips": False}
            x = BATCH_CHANGES[change.name](x, draw, *change.values, **change.named, **turns)
        if x.shape[1] == 3:  # what is grey, whatever the file says, stays so
            x = torch.where(grey, x[:, :1], x)
        return x.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous() if self.changes else images


class Draws:
    """Random numbers for each image of a batch: SplitMix64 (Steele et al. 2014) of the seed, the index of the image,
    and how many numbers were drawn before. So they are the same on every device and in every batch."""

    def __init__(self, seed: int, indices: Tensor):
        self.keys, self.drawn = _mixed(indices * GOLDEN + seed), 0

    def uniform(self, low: float = 0.0, high: float = 1.0, *shape: int) -> Tensor:
        """(B, *shape) from `low` to below `high`."""
        count = math.prod(shape)
        counter = torch.arange(self.drawn, self.drawn + count, device=self.keys.device)
        self.drawn += count
        bits = _mixed(self.keys[:, None] + counter * GOLDEN) & (1 << 24) - 1  # (B, count)
        return (low + (high - low) * (bits.float() / (1 << 24))).reshape(len(bits), *shape)

    def chosen(self, p: float) -> Tensor:
        """(B, 1, 1, 1) bool, true with probability p."""
        return self.uniform(0, 1, 1, 1, 1) < p

    def normal(self, *shape: int) -> Tensor:
        """(B, *shape) of mean 0 and standard deviation 1 (Box and Muller 1958)."""
        radius = (-2 * torch.log1p(-self.uniform(0, 1, *shape))).sqrt_()
        return radius * torch.cos(self.uniform(0, 2 * math.pi, *shape))


def symmetry(x: Tensor, draw: Draws, flips: bool = True) -> Tensor:
    transposed, mirrored, upturned = (draw.chosen(0.5) for _ in range(3))
    if not flips:
        upturned = transposed ^ mirrored  # an even number of reflections is a turn
    x = torch.where(transposed, x.transpose(2, 3), x)
    x = torch.where(mirrored, x.flip(3), x)
    return torch.where(upturned, x.flip(2), x)


def mirror(x: Tensor, draw: Draws) -> Tensor:
    return torch.where(draw.chosen(0.5), x.flip(3), x)


def affine(x: Tensor, draw: Draws, rotate: float, shift: float, scale: float, p: float) -> Tensor:
    chosen, side = draw.chosen(p).flatten(), x.shape[-1]
    angle = torch.where(chosen, draw.uniform(-rotate, rotate), 0) * (math.pi / 180)
    size = torch.where(chosen, draw.uniform(1 - scale, 1 + scale), 1)
    moved = torch.where(chosen[:, None], draw.uniform(-shift * side, shift * side, 2).trunc(), 0)
    cos, sin, (right, down) = angle.cos() / size, angle.sin() / size, (moved * 2 / side).unbind(1)
    return warp(x, torch.stack([cos, -sin, sin * down - cos * right, sin, cos, -sin * right - cos * down]))


def crop(
    x: Tensor,
    draw: Draws,
    least: float,
    most: float = 1.0,
    ratio: tuple[float, float] = (0.9, 1.1),
    interpolation: int = 1,
    margin: int = 0,
) -> Tensor:
    """A part of the image with `margin` px of black around it, as albumentations' RandomResizedCrop."""
    S = x.shape[-1]
    side, (low, high) = S + 2 * margin, (math.log(value) for value in ratio)
    area, shape = draw.uniform(least * side**2, most * side**2, 10), draw.uniform(low, high, 10).exp()
    sides = torch.stack([(area * shape).sqrt(), (area / shape).sqrt()], dim=1).round()  # (B, 2, 10)
    fits = (sides <= side).all(dim=1)  # (B, 10); the first try that fits counts
    first = fits.int().argmax(dim=1)[:, None, None].expand(-1, 2, 1)
    part = torch.where(fits.any(dim=1)[:, None], sides.gather(2, first)[:, :, 0], side)  # (B, 2)
    start = (draw.uniform(0, 1, 2) * (side - part + 1)).floor() - margin
    (width, height), (right, down) = (part / S).unbind(1), ((2 * start + part) / S - 1).unbind(1)
    zero = torch.zeros_like(width)
    mode, outside = "bicubic" if interpolation == 2 else "bilinear", "zeros" if margin else "border"
    return warp(x, torch.stack([width, zero, right, zero, height, down]), mode, outside)


def shift_and_scale(x: Tensor, draw: Draws) -> Tensor:
    margin, least, most = margin_and_area(x.shape[-1])
    return crop(x, draw, least, most, (1.0, 1.0), margin=margin)


def brightness(x: Tensor, draw: Draws, amount: float, p: float) -> Tensor:
    chosen, factor = draw.chosen(p), draw.uniform(1 - amount, 1 + amount, 1, 1, 1)
    added = draw.uniform(-255 * amount, 255 * amount, 1, 1, 1)
    return (x * torch.where(chosen, factor, 1) + torch.where(chosen, added, 0)).clamp_(0, 255)


def gamma(x: Tensor, draw: Draws, least: float = 80, most: float = 120, p: float = 0.5) -> Tensor:
    return (x / 255) ** torch.where(draw.chosen(p), draw.uniform(least / 100, most / 100, 1, 1, 1), 1) * 255


def hue(x: Tensor, draw: Draws, p: float) -> Tensor:
    chosen, (turn, grey, light) = draw.chosen(p), (draw.uniform(-v, v, 1, 1) for v in (5 / 30, 15, 10))
    most, least = x.amax(dim=1), x.amin(dim=1)  # (B, S, S)
    red, green, blue = x.unbind(1)
    spread = (most - least).clamp(min=1e-6)
    sixth = torch.where(
        most == red,
        (green - blue) / spread,
        torch.where(most == green, 2 + (blue - red) / spread, 4 + (red - green) / spread),
    )
    saturation = (255 * (most - least) / most.clamp(min=1e-6) + grey).clamp_(0, 255) / 255
    saturation = torch.where(most == least, 0, saturation)  # grey stays grey
    value = (most + light).clamp_(0, 255)
    steps = torch.stack([(n + sixth + turn) % 6 for n in (5.0, 3.0, 1.0)], dim=1)  # (B, 3, S, S)
    fall = torch.minimum(steps, 4 - steps).clamp_(0, 1)
    return torch.where(chosen, value[:, None] * (1 - saturation[:, None] * fall), x)


def stain(x: Tensor, draw: Draws, p: float) -> Tensor:
    of_stains = stain_matrices()  # (M, 2, 3)
    to_stains = np.linalg.pinv(of_stains)  # (M, 3, 2)
    chosen, scale, shift = draw.chosen(p), draw.uniform(0.8, 1.2, 2, 1, 1), draw.uniform(-0.1, 0.1, 2, 1, 1)
    kind = draw.uniform(0, len(of_stains)).long()
    red, green, blue = (x / 255).unbind(1)
    tissue = (red * 0.299 + green * 0.587 + blue * 0.114 < 0.85)[:, None]
    density = -(x / 255).clamp_(min=1e-6).log_()  # (B, 3, S, S)
    amounts = torch.einsum("bco,bcyx->boyx", _tensor(to_stains, x)[kind], density)  # (B, 2, S, S)
    amounts = torch.where(tissue, amounts * scale + shift, amounts)
    density = torch.einsum("boc,boyx->bcyx", _tensor(of_stains, x)[kind], amounts)
    return torch.where(chosen, ((-density).exp_() * 255).clamp_(0, 255), x)


def blur(x: Tensor, draw: Draws, p: float) -> Tensor:
    B, C, S, _ = x.shape
    chosen, gauss = draw.chosen(p), draw.chosen(0.5)
    wide, sigma = draw.chosen(2 / 3), draw.uniform(0.5, 3, 1)
    place = torch.arange(-4.0, 5.0, device=x.device, dtype=x.dtype)
    reach = torch.where(wide.view(B, 1), 2, 1)
    line = torch.where(place.abs() <= reach, torch.exp(-0.5 * (place / sigma) ** 2), 0)  # (B, 9)
    line = line / line.sum(dim=1, keepdim=True)
    disk = _tensor(DISKS, x)[draw.uniform(0, 3).long()]  # (B, 9, 9)
    soft = torch.exp(-0.5 * (place[3:6] / draw.uniform(0.1, 0.5, 1)) ** 2)
    soft = soft / soft.sum(dim=1, keepdim=True)  # (B, 3)
    disk = F.conv2d(disk[None], (soft[:, :, None] * soft[:, None, :])[:, None], padding=1, groups=B)[0]
    kernel = torch.where(gauss[:, 0], line[:, :, None] * line[:, None, :], disk)
    padded = F.pad(x, (4, 4, 4, 4), mode="reflect").reshape(1, B * C, S + 8, S + 8)
    blurred = F.conv2d(padded, kernel.repeat_interleave(C, 0)[:, None], groups=B * C).view(B, C, S, S)
    return torch.where(chosen, blurred.clamp_(0, 255), x)


def speckle(x: Tensor, draw: Draws) -> Tensor:
    return (x * torch.where(draw.chosen(0.3), draw.uniform(0.9, 1.1, 1, *x.shape[2:]), 1)).clamp_(0, 255)


def noise(x: Tensor, draw: Draws, most: float = 0.03, p: float = 0.2, grey: bool = True) -> Tensor:
    amount = torch.where(draw.chosen(p), draw.uniform(0.01, most, 1, 1, 1) * 255, 0)
    return (x + amount * draw.normal(3 if x.shape[1] == 3 and not grey else 1, *x.shape[2:])).clamp_(0, 255)


def holes(x: Tensor, draw: Draws, p: float) -> Tensor:
    S = x.shape[-1]
    count = torch.where(draw.chosen(p)[:, 0], 1 + draw.uniform(0, 3, 1, 1).floor(), 0)  # (B, 1, 1)
    sides = (draw.uniform(0.05, 0.12, 3, 2) * S).floor()  # (B, 3, 2)
    start = (draw.uniform(0, 1, 3, 2) * (S - sides + 1)).floor()
    place = torch.arange(S, device=x.device)
    inside = (place >= start[..., None]) & (place < (start + sides)[..., None])  # (B, 3, 2, S)
    inside &= (torch.arange(3, device=x.device)[:, None] < count)[..., None]
    hole = (inside[:, :, 0, :, None] & inside[:, :, 1, None, :]).any(dim=1, keepdim=True)  # (B, 1, S, S)
    return torch.where(hole, 0, x)


def compression(x: Tensor, draw: Draws, least: int, p: float) -> Tensor:
    return torch.where(draw.chosen(p), jpeg(x, draw.uniform(least, 101, 1, 1, 1, 1).floor()), x)


def bending(x: Tensor, draw: Draws, p: float) -> Tensor:
    chosen, field = draw.chosen(p), draw.normal(2, *x.shape[2:])
    field = field / field.abs().amax(dim=(1, 2, 3), keepdim=True)
    kernel = _tensor(BELL, x).expand(2, 1, 1, -1)
    field = F.conv2d(F.pad(field, (32, 32, 32, 32), mode="replicate"), kernel, groups=2)
    field = F.conv2d(field, kernel.transpose(2, 3), groups=2)  # (B, 2, S, S)
    moved = torch.where(chosen, field * (20 * 2 / x.shape[-1]), 0).permute(0, 2, 3, 1)
    return F.grid_sample(x, _grid(x) + moved, "bilinear", "zeros", align_corners=False).clamp_(0, 255)


def warp(x: Tensor, maps: Tensor, mode: str = "bilinear", outside: str = "zeros") -> Tensor:
    """(B, C, S, S), each image through its own affine map, from a place in the result to its place in the image.

    Args:
        x: values in 0..255.
        maps: (6, B) xx, xy, x0, yx, yy, y0: column = xx column + xy row + x0, row = yx column + yy row + y0, where the
            image reaches from -1 to 1.
        mode, outside: of `grid_sample`.
    """
    column, row = _grid(x).unbind(-1)  # not by F.affine_grid, whose matrix product may be of low precision
    xx, xy, x0, yx, yy, y0 = maps[:, :, None, None]
    places = torch.stack([xx * column + xy * row + x0, yx * column + yy * row + y0], dim=-1)
    return F.grid_sample(x, places, mode, outside, align_corners=False).clamp_(0, 255)


def jpeg(x: Tensor, quality: Tensor) -> Tensor:
    """(B, C, S, S) as it looks after JPEG compression: three channels with half the colour resolution, others as grey.

    Args:
        x: values in 0..255.
        quality: (B, 1, 1, 1, 1) in 50..100 (ITU-T T.81, annex K; scaled as the IJG library does).
    """
    S, C = x.shape[-1], x.shape[1]
    padded = F.pad(x, (0, -S % 16, 0, -S % 16), mode="replicate")
    if C != 3:
        return _quantised(padded, quality, LUMINANCE)[..., :S, :S].clamp_(0, 255)
    red, green, blue = padded.unbind(1)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    colour = F.avg_pool2d(torch.stack([(blue - light) / 1.772, (red - light) / 1.402], dim=1) + 128, 2)
    light = _quantised(light[:, None], quality, LUMINANCE)[:, 0]
    colour = F.interpolate(_quantised(colour, quality, CHROMINANCE), scale_factor=2, mode="bilinear") - 128
    blue, red = light + 1.772 * colour[:, 0], light + 1.402 * colour[:, 1]
    green = (light - 0.299 * red - 0.114 * blue) / 0.587
    return torch.stack([red, green, blue], dim=1)[..., :S, :S].clamp_(0, 255)


def _quantised(x: Tensor, quality: Tensor, table: np.ndarray) -> Tensor:
    """(B, C, H, W), multiples of 8: its cosine coefficients in blocks of 8 x 8, rounded to steps of the table."""
    B, C, H, W = x.shape
    steps = (_tensor(table, x).view(8, 1, 8) * (200 - 2 * quality) + 50) / 100
    steps = steps.floor_().clamp_(1, 255)[:, :, None]  # (B, 1, 1, 8, 1, 8)
    wave = _tensor(COSINES, x)
    blocks = (x - 128).view(B, C, H // 8, 8, W // 8, 8)
    coefficients = torch.einsum("uy,bchywx,vx->bchuwv", wave, blocks, wave)
    coefficients = (coefficients / steps).round_() * steps
    return torch.einsum("uy,bchuwv,vx->bchywx", wave, coefficients, wave).reshape(B, C, H, W).add_(128).clamp_(0, 255)


def _grid(x: Tensor) -> Tensor:
    """(1, S, S, 2): column and row of every pixel, where the image reaches from -1 to 1."""
    line = (2 * torch.arange(x.shape[-1], device=x.device, dtype=x.dtype) + 1) / x.shape[-1] - 1
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1)[None]


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    """float32 on the device of `like`, without waiting for the device."""
    made = torch.from_numpy(values.astype(np.float32))
    return (made.pin_memory() if like.is_cuda else made).to(like.device, non_blocking=True)


def _mixed(bits: Tensor) -> Tensor:
    """int64 -> int64: each bit of the result depends on all bits; the finaliser of SplitMix64."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    return bits ^ (bits >> 31 & (1 << 33) - 1)


GOLDEN = -0x61C8864680B583EB  # 2^64 divided by the golden ratio, as int64
DISKS = np.stack([np.hypot(*np.mgrid[-4:5, -4:5]) <= radius for radius in (1, 2, 3)]).astype(float)
DISKS /= DISKS.sum(axis=(1, 2), keepdims=True)  # (3, 9, 9)
BELL = np.exp(-0.5 * (np.arange(-32, 33) / 8) ** 2)
BELL /= BELL.sum()
COSINES = np.cos(np.pi / 16 * np.outer(np.arange(8), 2 * np.arange(8) + 1)) / np.where(np.arange(8), 2, 8**0.5)[:, None]
# fmt: off
LUMINANCE = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])
CHROMINANCE = np.full((8, 8), 99)
CHROMINANCE[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]
# fmt: on

BATCH_CHANGES: dict[str, Callable[..., Tensor]] = {
    change.__name__: change
    for change in (
        *(symmetry, mirror, affine, crop, shift_and_scale, brightness, gamma, hue, stain, blur, speckle, noise, holes),
        *(compression, bending),
    )
}
