# The image of every countersink process: worker (the default), scheduler, jobs, web, statsd, migrate, and the rest.

FROM python:3.11.11-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt ./
RUN python -m venv /build \
    && /build/bin/pip install --no-cache-dir -c constraints.txt hatchling \
    && python -m venv /opt/countersink
COPY pyproject.toml README.md LICENSE docker-compose.yml .env.example ./
COPY producers ./producers
COPY worker ./worker
COPY schedules ./schedules
COPY interfaces ./interfaces
COPY ops ./ops
RUN /build/bin/pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels . \
    && /opt/countersink/bin/pip install --no-cache-dir -c constraints.txt \
        "countersink[web] @ file://$(echo /wheels/countersink-*.whl)"

FROM python:3.11.11-slim-bookworm
RUN groupadd --system --gid 10001 countersink \
    && useradd --system --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin countersink
COPY --from=build /opt/countersink /opt/countersink
# nothing is written: the bytecode is compiled in the build, logs go to stderr
ENV PATH=/opt/countersink/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /
STOPSIGNAL SIGTERM
ENTRYPOINT ["countersink"]
CMD ["worker"]
