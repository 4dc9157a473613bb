"""`vitmed serve --dicom-port` as a process of its own: killed while it sends, stopped, and asked for what cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from conftest import Answer, Trained
from dicom_network import archive, dicom_image, send, until
from highdicom.sr import ComprehensiveSR

RUN = Callable[..., Answer]


@contextmanager
def node(model: Path, *args: object, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A node in a new process, and its port."""
    command = [sys.executable, "-m", "vitmed", "serve", str(model), "--port", "0", "--dicom-port", "0", *map(str, args)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stderr=stream, stdout=stream)
    try:
        until(lambda: b"answers at" in log.read_bytes() or process.poll() is not None, 120)
        told = log.read_text()
        assert process.poll() is None, told
        yield process, int(told.partition("listens on 127.0.0.1:")[2].split()[0])
    finally:
        process.kill()
        process.wait()


def test_killed_while_it_sends_every_report_arrives_and_none_is_another_object(
    exported: Path, trained: Trained, tmp_path: Path
) -> None:
    pictures = sorted((trained.data / "test").rglob("*.png"))[:8]
    images = [dicom_image(tmp_path / f"{i}.dcm", picture) for i, picture in enumerate(pictures)]
    spool = tmp_path / "spool"
    with archive(delay=0.3) as store:
        how = ("--to", store.address, "--spool", spool)
        with node(exported, *how, log=tmp_path / "first.log") as (process, port):
            assert [answer.Status for answer in send(port, images)] == [0] * len(images)
            store.wait(2)
            os.kill(process.pid, signal.SIGKILL)  # the archive has one that it has not confirmed
            process.wait()
        left = len(list((spool / "unsent").glob("*.dcm")))
        assert 0 < left < len(images)
        store.delay = 0
        with node(exported, *how, log=tmp_path / "second.log") as (process, port):
            until(lambda: not list((spool / "unsent").glob("*.dcm")))
            address = (tmp_path / "second.log").read_text().partition("answers at ")[2].split()[0]
            files = [("images", (file.name, file.read_bytes())) for file in images]
            reply = httpx.post(f"{address}/v1/predict", files=files, trust_env=False).json()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    told = (tmp_path / "second.log").read_text()
    assert len(set(store.uids)) == len(images)
    reported = {
        tuple(
            sorted(round(float(one.value), 6) for one in group.get_measurements() if "Probability" in one.name.meaning)
        )
        for group in (ComprehensiveSR.from_dataset(one).content.get_image_measurement_groups()[0] for one in store.got)
    }
    assert reported == {
        tuple(sorted(round(one, 6) for one in image["probabilities"].values())) for image in reply["images"]
    }  # the same model answers over HTTP
    again = len(store.uids) - len(images)
    assert again <= 1 and told.count("may have been sent before") >= again
    assert f"{left} report" in told and "stopped" in told


def test_what_cannot_be_is_refused_in_a_sentence(vitmed: RUN, exported: Path, tmp_path: Path) -> None:
    spool = ("--spool", tmp_path / "spool")
    listen, out = ("--dicom-port", "0"), ("--output", tmp_path / "out")
    watched = exported.parent  # the spool would be beside the model
    for args, problem in (
        (listen, "one place for its reports"),
        (("--ae", "VITMED", *out), "needs a port, or a folder to watch"),
        ((*listen, "--to", "pacs", *spool), "expected HOST:PORT:AE"),
        ((*listen, "--to", "pacs:104:ARCHIVE", *out), "one place for its reports"),
        ((*listen, *out, "--dicom-host", "0.0.0.0"), "needs a list of who may call"),
        ((*listen, *out, "--ae", "A" * 17), "expected 1 to 16 characters"),
        ((*listen, *out, "--modality", " ,"), "--modality ' ,': names nothing"),  # as of a variable that is not set
        ((*listen, *out, "--allow", ""), "--allow '': names nothing"),
        ((*out, "--dicom-port", "70000"), "expected 0 to 65535"),
        ((*out, "--watch", tmp_path / "none"), "no such folder to watch"),
        ((*out, "--watch", tmp_path), "inside the folder that is watched"),
        ((*out, "--watch", watched), "dicom-spool: is inside the folder that is watched"),
        ((*listen, "--to", "https://pacs/dicom-web", *spool), "expected .../studies"),
        ((*listen, "--to", "ftp://pacs/studies", *spool), "expected .../studies"),
    ):
        answer = vitmed("serve", exported, "--port", "0", *args, "--quiet")
        assert answer.code == 2 and problem in answer.err, answer.err


def test_without_its_packages_the_node_names_the_command(
    vitmed: RUN, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitmed.commands.pacs import settings

    monkeypatch.setattr(settings, "NEEDED", ("pynetdicom", "no_such_package"))
    answer = vitmed("serve", exported, "--port", "0", "--dicom-port", "0", "--output", tmp_path / "out")
    assert answer.code == 2 and "no_such_package" in answer.err and "pip install 'vitmed[pacs]'" in answer.err
