# An S3 server for tests of the chart, with moto of constraints.txt.
FROM python:3.11-slim-bookworm
COPY constraints.txt .
RUN python -m venv /opt/moto && /opt/moto/bin/pip install --no-cache-dir --constraint constraints.txt 'moto[server]'
USER 10001
ENV PATH=/opt/moto/bin:/usr/local/bin:/usr/bin:/bin
CMD ["python", "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"]
