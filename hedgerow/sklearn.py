"""Federated estimators for scikit-learn; needs the extra ``sklearn``."""

from hedgerow.coordinator.operator.library.estimators import FederatedClassifier, FederatedRegressor

__all__ = ["FederatedClassifier", "FederatedRegressor"]
