"""Federated estimators for scikit-learn; needs the extra ``sklearn``."""

from hedgerow.coordinator.operator.library.estimators import FederatedClassifier, FederatedRegressor
from hedgerow.coordinator.operator.library.ranker import FederatedRanker
from hedgerow.coordinator.operator.library.survival import FederatedSurvival

__all__ = ["FederatedClassifier", "FederatedRanker", "FederatedRegressor", "FederatedSurvival"]
