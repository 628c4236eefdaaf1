"""Runs at an MLflow tracking server; needs the extra ``mlflow``."""

from hedgerow.coordinator.operator.library.tracking import log_run

__all__ = ["log_run"]
