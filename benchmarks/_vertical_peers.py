"""SecretFlow's SGB on a vertical table: ``_vertical_peers.py FOLDER --scheme ou --rounds 10``.

Runs in the peer's environment, prints one line of JSON and imports nothing of this project. All
parties are in one process (SecretFlow's debug mode), which leaves out its network and its
processes: the figures are in its favour.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import time

import numpy as np
import pandas as pd
import secretflow as sf
import spu
from secretflow.data import FedNdarray, PartitionWay
from secretflow.device.driver import reveal
from secretflow.ml.boost.sgb_v import Sgb
from sklearn.metrics import roc_auc_score


def columns(path: str) -> np.ndarray:
    table = pd.read_csv(path)
    return table[[name for name in table.columns if "__" in name]].to_numpy(np.float64)


def labels(path: str) -> np.ndarray:
    return pd.read_csv(path)["label"].to_numpy().reshape(-1, 1)


def cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--scheme", choices=["ou", "zpaillier"], default="ou")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    folder = arguments.folder
    sf.init(["guest", "host"], address="local", debug_mode=True)
    parties = {name: sf.PYU(name) for name in ("guest", "host")}
    heu = sf.HEU(
        {
            "sk_keeper": {"party": "guest"},
            "evaluators": [{"party": "host"}],
            "mode": "PHEU",
            "he_parameters": {
                "schema": arguments.scheme,
                "key_pair": {"generate": {"bit_size": 2048}},
            },
            "encoding": {
                "cleartext_type": "DT_I32",
                "encoder": "IntegerEncoder",
                "encoder_args": {"scale": 1},
            },
        },
        spu.FieldType.FM128,
    )

    def table(prefix: str) -> FedNdarray:
        parts = {p: p(columns)(f"{folder}/{prefix}{name}.csv") for name, p in parties.items()}
        return FedNdarray(parts, PartitionWay.VERTICAL)

    guest = parties["guest"]
    y = FedNdarray({guest: guest(labels)(f"{folder}/guest.csv")}, PartitionWay.VERTICAL)
    parameters = {
        "num_boost_round": arguments.rounds,
        "max_depth": 5,
        "learning_rate": 0.3,
        "sketch_eps": 1 / 32,
        "objective": "logistic",
        "reg_lambda": 1.0,
        "gamma": 0.0,
    }
    rows = table("")
    began = time.perf_counter()
    model = Sgb(heu).train(parameters, rows, y)
    wall = time.perf_counter() - began
    scores = reveal(model.predict(table("test-"))).ravel()
    found = {
        "version": importlib.metadata.version("secretflow-lite"),
        "cpu": cpu(),
        "wall_tree": wall / arguments.rounds,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "auc": float(roc_auc_score(labels(f"{folder}/test-guest.csv").ravel(), scores)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
