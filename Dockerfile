# An image that serves a model: docker build -t switchyard . , or with kernels of GPUs --build-arg CUDA=1
# docker run -p 8000:8000 -v "$PWD/FOLDER:/model:ro" switchyard    (GPUs: --gpus all, and device=cuda behind /model)
ARG CUDA=0

FROM debian:12 AS toolkit-0
RUN apt-get update && apt-get install -y --no-install-recommends git make && rm -rf /var/lib/apt/lists/*

FROM toolkit-0 AS toolkit-1
COPY --from=nvidia/cuda:13.0.1-devel-ubuntu22.04 /usr/local/cuda-13.0 /usr/local/cuda

FROM toolkit-${CUDA} AS build
ARG CUDA
WORKDIR /src
COPY . .
RUN apt-get update && scripts/install_dependencies.sh --deb
RUN if [ "$CUDA" = 1 ]; then \
      cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DSWITCHYARD_CUDA=ON \
        -DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc; \
    fi && make deb

FROM debian:12-slim
COPY --from=build /src/build/release/switchyard_*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/switchyard_*.deb \
    && rm -rf /tmp/switchyard_*.deb /var/lib/apt/lists/* && useradd --create-home switchyard
USER switchyard
WORKDIR /home/switchyard
EXPOSE 8000
# Bash opens the connection by itself, so that the image needs no other program for it.
HEALTHCHECK --start-period=10m CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["switchyard"]
CMD ["serve", "/model", "--host", "0.0.0.0"]
