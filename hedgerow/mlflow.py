"""Runs at an MLflow tracking server; needs the extra ``mlflow``."""

from hedgerow.coordinator.operator.library.tracking import autolog, log_run

__all__ = ["autolog", "log_run"]
