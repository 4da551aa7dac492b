# An image with the package and all it needs, for GPUs (CUDA 13) or, with KIND=cpu, for machines without:
#
#   docker build -t brorl:gpu .
#   docker build -t brorl:cpu --build-arg KIND=cpu .
#   docker run --gpus all --ipc=host -v "$PWD/runs:/opt/nemo_brorl/runs" brorl:gpu brorl doctor
#
# docs/howto/cluster.md says how enroot, KubeRay and SkyPilot take it. The build compiles Transformer Engine: ten minutes of CPU time.
ARG KIND=gpu

FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 AS gpu
FROM ubuntu:24.04 AS cpu

FROM ${KIND}
ARG KIND
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1
# wget and a PATH for login shells are what KubeRay asks of an image, sudo what SkyPilot's scripts call. Without the
# libraries of InfiniBand in the last line NCCL talks TCP between nodes, and says nothing.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        bubblewrap ca-certificates g++ git make openssh-client python3 python3-dev python3-venv rsync sudo wget \
        ibverbs-providers libibverbs1 librdmacm1 \
    && rm -rf /var/lib/apt/lists/* \
    && echo 'export PATH=/opt/nemo_brorl/.venv/bin:$PATH' > /etc/profile.d/brorl.sh
WORKDIR /opt/nemo_brorl
COPY . .
RUN scripts/install.sh ${KIND}
ENV PATH=/opt/nemo_brorl/.venv/bin:$PATH
CMD ["brorl", "--help"]
