"""Which objectives a job of each strategy may have, as its validation says."""

from __future__ import annotations

from hedgerow.boosting.errors import InvalidJob
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

STRATEGIES = (
    "histogram", "bagging", "secureboost", "fedxgbllr", "simfl", "fedga", "dp_tree",
    "private_boost",
)  # fmt: skip
OBJECTIVES = {
    "binary": ("binary:logistic", "binary:logitraw", "binary:hinge", "bce"),
    "multiclass": ("multi:softprob", "multi:softmax", "softmax"),
    "regression": (
        "reg:squarederror", "reg:logistic", "reg:pseudohubererror", "reg:squaredlogerror",
        "reg:gamma", "reg:tweedie", "count:poisson", "reg:absoluteerror", "reg:quantileerror",
        "lse", "lae", "huber", "fair", "log_cosh", "tweedie",
    ),
    "survival": ("survival:aft", "survival:cox"),
    "ranking": ("rank:ndcg", "rank:pairwise", "rank:map"),
}  # fmt: skip
_NEEDED = {
    "dp_tree": "[dp_tree]\nepsilon = 1.0",
    "private_boost": "[private_boost]\nepsilon = 1.0\ndelta = 1e-6",
    "secureboost": '[secureboost]\nactive = "a"',
}


def refusal(strategy: str, task: str, objective: str) -> str:
    """Return why a job is refused that is right but for its objective; nothing where it is not."""
    silos = 2 if strategy == "secureboost" else 3
    text = f'strategy = "{strategy}"\ntask = "{task}"\nmin_silos = {silos}\n'
    text += "classes = 3\n" if (strategy, task) == ("secureboost", "multiclass") else ""
    text += '[columns]\nevent = "e"\n' if task == "survival" else ""
    text += '[columns]\nqid = "q"\n' if task == "ranking" else ""
    if strategy == "private_boost":
        text += "[columns.ranges]\nx = [0.0, 1.0]\n"
        text += "label = [0.0, 9.0]\n" if task == "regression" else ""
    text += f'[booster]\nobjective = "{objective}"\n'
    if objective in ("reg:absoluteerror", "reg:quantileerror") and strategy == "histogram":
        text += "min_child_weight = 10.0\n"
    try:
        job = job_wire.decode(job_file.parse(text + _NEEDED.get(strategy, "")))
        job.parameters.validate(job)
    except InvalidJob as error:
        return str(error)
    return ""
