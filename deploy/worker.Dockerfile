# The worker of examples/worker.py as a container: docker build -f deploy/worker.Dockerfile -t orders-worker .
# docker run --env PAIRBUS_PRIMARY --env PAIRBUS_SECONDARY --stop-timeout 90 orders-worker orders
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir /src && mkdir /app && cp /src/examples/worker.py /src/examples/namespaces.py /app/ && rm -rf /src \
    && useradd --system --create-home --shell /usr/sbin/nologin worker
USER worker
WORKDIR /app
ENV PYTHONUNBUFFERED=1
# Asks the worker's client over its control socket. An outage is no reason to start the worker again, and is not asked for.
HEALTHCHECK --interval=10s --timeout=12s --start-period=10s CMD ["pairbus", "client", "list"]
# The worker takes nothing more, waits for its handlers, and leaves nothing locked: give it their time.
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "worker.py"]
CMD ["orders"]
