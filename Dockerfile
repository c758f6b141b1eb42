# CPU image: coldframe and coldframe-probe with everything that the `cpu` extra needs.
# PyPI's torch for Linux brings CUDA libraries; build with PIP_EXTRA_INDEX_URL set to PyTorch's CPU index for a small image.
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
WORKDIR /opt/coldframe
COPY . .
RUN pip install --no-cache-dir -c constraints.txt '.[cpu]'
RUN useradd --create-home coldframe
USER coldframe
WORKDIR /data
ENTRYPOINT ["coldframe"]
CMD ["--help"]
