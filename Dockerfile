# vitmed in a container; how to build and run it: docs/container.md
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
# Where torch comes from. The default has no CUDA in it; empty is pip's own index, with CUDA, several GB more.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/vitmed
ENV PATH=/opt/vitmed/bin:$PATH
# Before the sources are copied, so that a change of the code does not download torch again. Floors, not pins: as
# pyproject.toml has them.
# hadolint ignore=DL3013
RUN pip install ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "torch>=2.10" "torchvision>=0.25"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY vitmed ./vitmed
COPY configs ./configs
COPY datasets ./datasets
# hadolint ignore=DL3013
RUN pip wheel --no-deps --wheel-dir /wheels . && pip install "$(ls /wheels/vitmed-*.whl)[dicom,weights]"

FROM build AS build-serve
# hadolint ignore=DL3013
RUN pip install "$(ls /wheels/vitmed-*.whl)[serve,export,pacs]"

FROM python:${PYTHON_VERSION}-slim AS base
LABEL org.opencontainers.image.title="vitmed" \
      org.opencontainers.image.description="Train Vision Transformers on medical images. Research use only." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin vitmed \
    && install --directory --owner vitmed --group vitmed /data /runs
# HOME, USER and MPLCONFIGDIR: libraries look for a home and a name that `--user 1234` does not have.
ENV PATH=/opt/vitmed/bin:$PATH \
    HOME=/tmp \
    USER=vitmed \
    MPLCONFIGDIR=/tmp/matplotlib \
    NO_ALBUMENTATIONS_UPDATE=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
VOLUME ["/data", "/runs"]
# Runs are written to runs/ of the working folder, which is /runs here.
WORKDIR /
ENTRYPOINT ["vitmed"]

# docker build --target serve -t vitmed:serve .
FROM base AS serve
COPY --from=build-serve /opt/vitmed /opt/vitmed
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
# Other machines need the key in VITMED_API_KEY.
CMD ["serve", "/runs/model", "--host", "0.0.0.0"]

# docker build -t vitmed .
FROM base AS vitmed
COPY --from=build /opt/vitmed /opt/vitmed
USER 10001:10001
CMD ["--help"]
