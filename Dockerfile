# A peer in a container:
#   docker build -t ciuic-peer .
#   docker run -v ciuic:/var/lib/ciuic -p 4001:4001 -p 4002:4002 ciuic-peer start --name node-us --region us
# On a GPU machine give a base that brings CUDA and Python >= 3.11, and run with --gpus all:
#   docker build --build-arg BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime -t ciuic-peer:gpu .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# --system-site-packages: where the base brings its own torch, that one is used and none is installed beside it.
RUN python3 -m venv --system-site-packages /opt/ciuic
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY ciuic_p2p ciuic_p2p
COPY examples examples
RUN /opt/ciuic/bin/pip install --no-cache-dir -c constraints.txt .

FROM ${BASE}
COPY --from=build /opt/ciuic /opt/ciuic
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/ciuic ciuic
USER ciuic
VOLUME /var/lib/ciuic
ENV PATH=/opt/ciuic/bin:$PATH \
    CIUIC_HOME=/var/lib/ciuic \
    CIUIC_LISTEN=/ip4/0.0.0.0/tcp/4001 \
    CIUIC_HTTP=127.0.0.1:4080
# 4001 libp2p, 4002 sessions and lanes. The status API stays inside the container.
EXPOSE 4001 4002
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:4080/api/v1/status', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["ciuic-peer"]
CMD ["start"]
