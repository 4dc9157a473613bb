"""A local server of the S3 protocol with the images of a folder in its bucket `lab`.

`pip install 'moto[server]' s3fs`
"""

from __future__ import annotations

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
