# The program on Debian, from the sources here. It runs the demo unless told otherwise:
#   docker build -t sluice .
#   docker run --rm -v "$PWD:/work" sluice            # report.html and results.json appear in the current folder
#   docker run --rm -it -v "$PWD:/work" sluice chat -m MODEL.gguf

FROM debian:12 AS build
RUN apt-get update -q && apt-get install -y -q --no-install-recommends make
COPY . /src
WORKDIR /src
RUN make deb

FROM debian:12-slim
COPY --from=build /src/build/demo/sluice_*.deb /tmp/
RUN apt-get update -q && apt-get install -y -q --no-install-recommends /tmp/sluice_*.deb \
    && rm -rf /tmp/sluice_*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["sluice"]
CMD ["demo"]
