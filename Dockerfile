# vitmed in a container; how to build and run it: docs/container.md
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
# Where torch comes from. The default has no CUDA in it; empty is pip's own index, with CUDA, several GB more.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/vitmed
ENV PATH=/opt/vitmed/bin:$PATH
# Before the sources are copied, so that a change of the code does not download torch again. Floors, not pins: as
# pyproject.toml has them.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "torch>=2.10" "torchvision>=0.25"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY vitmed ./vitmed
COPY configs ./configs
COPY datasets ./datasets
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && wheel=$(ls /wheels/vitmed-*.whl) \
    && pip install --no-cache-dir "${wheel}[dicom,weights]"

FROM python:${PYTHON_VERSION}-slim
LABEL org.opencontainers.image.title="vitmed" \
      org.opencontainers.image.description="Train Vision Transformers on medical images. Research use only." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin vitmed \
    && install --directory --owner vitmed --group vitmed /data /runs
COPY --from=build /opt/vitmed /opt/vitmed
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
USER 10001:10001
ENTRYPOINT ["vitmed"]
CMD ["--help"]
