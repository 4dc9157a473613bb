"""`vitmed serve` under load and under attack, asked by another process.

    python benchmarks/serving.py load path/to/work
    python benchmarks/serving.py hostile path/to/work --count 10000

`load`: a ViT-Tiny of 224 px behind `vitmed serve`, with and without batches, and behind a naive FastAPI around timm,
which decodes, computes and answers one image after another in fp32. All run at once, and the rounds take turns: 64
connections, each sending its next image when it has its answer. `vitmed serve` as it comes uses bf16 where the
processor is fast in it.

`hostile`: uploads that no honest program sends, with an honest one now and then. Every one must get a status of 4xx,
the honest ones their answer, and the memory of the server must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import random
import re
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

import vitmed

CONNECTIONS = 64
READABLE = "a PNG of 64 px with 40 MB of further data"  # its pixels can be read, and are answered
NAIVE = """
import io, sys
import timm, torch, uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image
from timm.data import create_transform, resolve_data_config
app, model = FastAPI(), timm.create_model("vit_tiny_patch16_224", num_classes=2).eval()
prepare = create_transform(**resolve_data_config({}, model=model))
@app.post("/v1/predict")
async def predict(images: UploadFile):
    with torch.inference_mode():
        found = model(prepare(Image.open(io.BytesIO(await images.read())).convert("RGB"))[None]).softmax(1)[0]
    return {"probabilities": found.tolist()}
uvicorn.run(app, port=int(sys.argv[1]), log_level="critical")
"""


def run_of(work: Path) -> Path:
    """A ViT-Tiny that has seen some drawn images, of classes that overlap in brightness as real ones do."""
    run = work / "runs" / "tiny"
    if not run.exists():
        rng = np.random.default_rng(0)
        for k, name in enumerate(("dark", "light")):
            folder = work / "images" / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(150):
                brightness = rng.normal(90 + 70 * k, 40)
                picture = np.clip(rng.normal(brightness, 30, (240, 320, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(picture).save(folder / f"P{i}.jpg")
        sets = ("train.epochs=4", "model.image_size=224", "train.batch_size=16", "model.stem=patch")
        command = [sys.executable, "-m", "vitmed", "train", str(work / "images"), "--model", "vit_tiny", "--no-report"]
        command += [part for one in sets for part in ("--set", one)]
        subprocess.run([*command, "--output", str(work / "runs"), "--name", "tiny"], check=True)
    return run


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start(command: list[str], port: int, path: str) -> subprocess.Popen[bytes]:
    """A server that answers at `path`."""
    server = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=30).status_code < 500:
                return server
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


async def ask(port: int, pictures: list[bytes], count: int, connections: int) -> tuple[float, list[float], int]:
    """Seconds of all, seconds of each, and how many got no 200."""
    times: list[float] = []
    bad, left = 0, iter(range(count))
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as client:

        async def one() -> None:
            nonlocal bad
            for i in left:
                began = time.perf_counter()
                form = {"images": ("x.jpg", pictures[i % len(pictures)])}
                try:
                    reply = await client.post(f"http://127.0.0.1:{port}/v1/predict", files=form)
                    bad += reply.status_code != 200
                except httpx.TransportError:
                    bad += 1
                times.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(connections)))
        return time.perf_counter() - began, times, bad


def load(work: Path, rounds: int, count: int) -> None:
    run = run_of(work)
    pictures = [file.read_bytes() for file in sorted((work / "images").rglob("*.jpg"))]
    exported = work / "model.onnx"
    if not exported.exists():
        subprocess.run([sys.executable, "-m", "vitmed", "export", str(run), "--to", str(exported)], check=True)
    fp32 = [str(run), "--precision", "fp32", "--port"]
    contenders = {
        "vitmed serve": (["-m", "vitmed", "serve", str(run), "--port"], "/health/ready"),
        "vitmed serve, fp32": (["-m", "vitmed", "serve", *fp32], "/health/ready"),
        "vitmed serve, fp32, --batch 1": (["-m", "vitmed", "serve", "--batch", "1", *fp32], "/health/ready"),
        "vitmed serve model.onnx": (["-m", "vitmed", "serve", str(exported), "--port"], "/health/ready"),
        "naive FastAPI around timm": (["-c", NAIVE], "/docs"),
    }
    servers, ports = [], {}
    for name, (command, path) in contenders.items():
        ports[name] = free_port()
        servers.append(start([*command, str(ports[name])], ports[name], path))
    try:
        found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        errors = Counter[str]()
        for turn in range(rounds + 1):
            for name, port in ports.items():
                for connections, asked in ((1, count // 8), (CONNECTIONS, count)):
                    seconds, times, bad = asyncio.run(ask(port, pictures, asked, connections))
                    errors[name] += bad
                    if turn:  # the first warms up
                        p50, p99 = np.quantile(times, [0.5, 0.99]) * 1000
                        found.setdefault((name, connections), []).append((asked / seconds, float(p50), float(p99)))
        print(f"{rounds} rounds of {count} images; images/s, p50 and p99 in ms: median (least to most)")
        for (name, connections), rows in found.items():
            cells = [f"{np.median(c):.0f} ({min(c):.0f} to {max(c):.0f})" for c in zip(*rows, strict=True)]
            print(f"{name:31} {connections:>3} connections  {'   '.join(cells)}   errors {errors[name]}")
    finally:
        for server in servers:
            server.terminate()


def png(width: int, height: int, data: bytes) -> bytes:
    """A PNG of 1-bit grey that claims a size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def form(content: bytes, name: str = "x.png", boundary: str = "b") -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode()


def requests_of(good: bytes) -> dict[str, bytes]:
    """Kind -> the bytes of a request over HTTP."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(good)).save(stream, "PNG")
    picture = stream.getvalue()
    dice = random.Random(0)
    flipped = bytearray(picture)
    for _ in range(400):
        flipped[dice.randrange(60, len(flipped))] = dice.randrange(256)

    def post(body: bytes, kind: str = "multipart/form-data; boundary=b", length: int | None = None) -> bytes:
        head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body

    bomb = zlib.compress(bytes(40_000_000), 9)
    return {
        "bomb: a PNG of 60,000 x 60,000 px": post(form(png(60_000, 60_000, bomb))),
        READABLE: post(form(png(64, 64, bomb))),
        "truncated PNG": post(form(picture[: len(picture) // 2])),
        "truncated JPEG": post(form(good[: len(good) // 2])),
        "damaged PNG": post(form(bytes(flipped))),
        "DICOM without content": post(form(bytes(128) + b"DICM")),
        "DICOM of noise": post(form(bytes(128) + b"DICM" + dice.randbytes(2000))),
        "TIFF with a loop of directories": post(form(b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00")),
        "PDF": post(form(b"%PDF-1.7\n" + dice.randbytes(500))),
        "program": post(form(b"\x7fELF" + dice.randbytes(500))),
        "pickle": post(form(b"\x80\x04\x95cos\nsystem\n")),
        "SVG with a script": post(form(b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>")),
        "empty file": post(form(b"")),
        "empty form": post(b"--b--\r\n"),
        "form without an end": post(form(picture)[:-20]),
        "field of another name": post(form(picture).replace(b'name="images"', b'name="patient"')),
        "not a form": post(picture, "image/png"),
        "form without a boundary": post(form(picture), "multipart/form-data"),
        "100 files": post(form(b"x").replace(b"--b--\r\n", b"") * 100 + b"--b--\r\n"),
        "length of 10 GB": post(form(picture), length=10_000_000_000),
        "negative length": post(form(picture), length=-1),
        "name with a path": post(form(b"no image", "../../etc/passwd")),
    }


def exchange(port: int, request: bytes) -> int:
    """The status of the answer; 0 where the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        answer = b""
        try:
            one.sendall(request)
            while b"\r\n" not in answer and (part := one.recv(4096)):
                answer += part
        except OSError:
            pass
    match = re.match(rb"HTTP/1.1 (\d+)", answer)
    return int(match[1]) if match else 0


def slow(port: int, count: int, timeout: float) -> Counter[int]:
    """Connections that send one byte a second, all at once."""
    open_ = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]
    head = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
    for one in open_:
        one.sendall(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode())
    body = form(bytes(1000))
    for i in range(round(2 * timeout)):
        for one in open_:
            with contextlib.suppress(OSError):
                one.sendall(body[i : i + 1])
        time.sleep(1)
    found = Counter[int]()
    for one in open_:
        try:
            match = re.match(rb"HTTP/1.1 (\d+)", one.recv(4096))
        except OSError:
            match = None
        found[int(match[1]) if match else 0] += 1
        one.close()
    return found


def memory(pid: int) -> float:
    """Resident MB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def hostile(work: Path, count: int) -> None:
    run, port, timeout = run_of(work), free_port(), 3
    good = next((work / "images").rglob("*.jpg"))
    server = start(
        ["-m", "vitmed", "serve", str(run), "--timeout", str(timeout), "--port", str(port)], port, "/health/ready"
    )
    try:
        kinds = requests_of(good.read_bytes())
        honest = b"".join(
            [
                b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                b"Content-Type: multipart/form-data; boundary=b\r\n",
                f"Content-Length: {len(form(good.read_bytes()))}\r\n\r\n".encode(),
                form(good.read_bytes()),
            ]
        )
        found: dict[str, Counter[int]] = {kind: Counter() for kind in kinds}
        honestly, grown, began = Counter[int](), [], time.perf_counter()
        for i in range(count - 200):
            kind = list(kinds)[i % len(kinds)]
            found[kind][exchange(port, kinds[kind])] += 1
            if i % 100 == 0:
                honestly[exchange(port, honest)] += 1
            if i in (count // 10, count // 2) or i == count - 201:
                grown.append((i + 1, memory(server.pid)))
        found["slow: a byte a second, 200 at once"] = slow(port, 200, timeout)
        grown.append((count, memory(server.pid)))
        honestly[exchange(port, honest)] += 1
        for kind, statuses in found.items():
            print(f"{kind:48} {', '.join(f'{status}: {n:,}' for status, n in sorted(statuses.items()))}")
        hostile_ones = [statuses for kind, statuses in found.items() if kind != READABLE]
        bad = sum(n for statuses in hostile_ones for status, n in statuses.items() if not 400 <= status < 500)
        print(f"answered otherwise than with 4xx: {bad} of {sum(sum(s.values()) for s in hostile_ones):,}")
        print(f"honest requests in between: {dict(honestly)}")
        print("memory of the server: " + ", ".join(f"{mb:.0f} MB after {i:,}" for i, mb in grown))
        print(f"{time.perf_counter() - began:.0f} s, vitmed {vitmed.__version__}")
    finally:
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "hostile"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=None, help="images of a round (512), or hostile uploads (10,000)")
    asked = parser.parse_args()
    if asked.what == "load":
        load(asked.work, asked.rounds, asked.count or 512)
    else:
        hostile(asked.work, asked.count or 10_000)


if __name__ == "__main__":
    main()
