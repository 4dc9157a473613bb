"""Local servers of the protocols of S3 and of Google Cloud Storage, with the images of a folder in their bucket `lab`.

`pip install 'moto[server]' s3fs gcsfs gcp-storage-emulator`
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from vitmed.core import remote


@contextmanager
def object_store(images: Path, cache: Path) -> Iterator[Any]:
    """A client of the server, which this process and those that it starts find by their environment; s3://lab/cells."""
    s3fs, moto = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    import boto3

    server = moto.ThreadedMotoServer(port=0)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("VITMED_CACHE", f"{cache}")
        patch.delenv("VITMED_OFFLINE", raising=False)
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()  # what an earlier server had
        client = boto3.client("s3")
        client.create_bucket(Bucket="lab")
        upload(client, images)
        try:
            yield client
        finally:
            server.stop()
            s3fs.S3FileSystem.clear_instance_cache()  # which keeps the host
            remote.copied.cache_clear()


def upload(client: Any, images: Path) -> None:
    for file in images.rglob("*.png"):
        client.upload_file(f"{file}", "lab", f"cells/{file.relative_to(images).as_posix()}")


@contextmanager
def google_store(images: Path, cache: Path) -> Iterator[Any]:
    """A file system of the server, found as in `object_store`; gs://lab/cells."""
    gcsfs, emulator = pytest.importorskip("gcsfs"), pytest.importorskip("gcp_storage_emulator.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="lab")
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        patch.setenv("VITMED_CACHE", f"{cache}")
        patch.delenv("VITMED_OFFLINE", raising=False)
        system = gcsfs.GCSFileSystem()
        for file in images.rglob("*.png"):
            system.pipe(f"lab/cells/{file.relative_to(images).as_posix()}", file.read_bytes())
        try:
            yield system
        finally:
            server.stop()
            gcsfs.GCSFileSystem.clear_instance_cache()  # which keeps the host
            remote.copied.cache_clear()
