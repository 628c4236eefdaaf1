"""One peer's rates: ``_crypto_peers.py WHO [--bits N] [--quick]``.

Runs in the peers' environment and prints the rows as one line of JSON; imports nothing of this
project. Rates are per second of CPU time of the whole process, so a peer's threads do not flatter
it. ``make peers`` installs what ``peers.txt`` lists.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Iterator

N_FEATURES, N_BINS = 8, 32
DISTRIBUTIONS = {
    "phe": "phe",
    "fate-utils": "fate_utils",
    "sf-heu-zpaillier": "sf-heu",
    "sf-heu-ou": "sf-heu",
    "sf-heu-elgamal": "sf-heu",
    "openmined-psi": "openmined-psi",
}


def rate(n: int, run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return n / statistics.median(times)


def phe_rates(bits: int, n: int, repeats: int) -> Iterator[tuple[str, float]]:
    import random

    import phe

    public, private = phe.generate_paillier_keypair(n_length=bits)
    values = list(range(1, n + 1))
    rows = [public.encrypt(v) for v in values]
    encrypting = rate(n, lambda: [public.encrypt(v) for v in values], repeats)
    yield "paillier_encrypt_key_holder", encrypting
    bins = [[random.randrange(N_BINS) for _ in range(N_FEATURES)] for _ in rows]

    def histogram() -> None:
        sums = [[public.encrypt(0, r_value=1) for _ in range(N_BINS)] for _ in range(N_FEATURES)]
        for _ in range(8):
            for row, places in zip(rows, bins, strict=True):
                for feature, place in enumerate(places):
                    sums[feature][place] = sums[feature][place] + row

    yield "paillier_histogram_adds", rate(8 * n * N_FEATURES, histogram, repeats)
    decrypting = rate(n, lambda: [private.decrypt(row) for row in rows], repeats)
    yield "paillier_decrypt", decrypting
    yield "paillier_decrypted_bins", decrypting


def fate_rates(bits: int, n: int, repeats: int) -> Iterator[tuple[str, float]]:
    import numpy as np
    from fate_utils import paillier

    private, public, coder = paillier.keygen(bits)
    encoded = coder.encode_f64_vec(np.linspace(-1, 1, n))
    rows = public.encrypt_encoded(encoded, True)
    encrypting = rate(n, lambda: public.encrypt_encoded(encoded, True), repeats)
    yield "paillier_encrypt_key_holder", encrypting
    rng = np.random.default_rng(0)
    places = (rng.integers(0, N_BINS, (n, N_FEATURES)) + N_BINS * np.arange(N_FEATURES)).tolist()

    def histogram() -> None:
        sums = paillier.CiphertextVector.zeros(N_BINS * N_FEATURES)
        for _ in range(8):
            sums.iupdate(rows, places, 1, public)

    yield "paillier_histogram_adds", rate(8 * n * N_FEATURES, histogram, repeats)
    decrypting = rate(n, lambda: private.decrypt_to_encoded(rows), repeats)
    yield "paillier_decrypt", decrypting
    yield "paillier_decrypted_bins", decrypting

    from fate_utils import psi

    party = psi.Curve25519()
    ids = [b"person-%09d" % i for i in range(100 * n)]
    yield "psi_elements", rate(len(ids), lambda: party.encrypt_vec(ids), repeats)


def openmined_rates(n: int, repeats: int) -> Iterator[tuple[str, float]]:
    import private_set_intersection.python as psi

    client = psi.client.CreateWithNewKey(True)
    ids = [f"person-{i:09d}" for i in range(100 * n)]
    yield "psi_elements", rate(len(ids), lambda: client.CreateRequest(ids), repeats)


def heu_elgamal_rates(n: int, repeats: int) -> Iterator[tuple[str, float]]:
    """Two ciphertexts a row, g and h; a pair counts once."""
    import heu.numpy as hnp
    import heu.phe as hphe
    import numpy as np

    kit = hnp.setup(hphe.SchemaType.ElGamal, 256)
    rng = np.random.default_rng(0)
    n_rows = 20 * n
    values = kit.array(rng.integers(0, 1 << 12, (n_rows, 2)))
    rows = kit.encryptor().encrypt(values)
    yield "elgamal_encrypt", rate(n_rows, lambda: kit.encryptor().encrypt(values), repeats)
    places = np.ascontiguousarray(rng.integers(0, N_BINS, (n_rows, N_FEATURES)), np.int8)
    chosen = np.ones(n_rows, np.int8)

    def histogram() -> object:
        return kit.evaluator().feature_wise_bucket_sum(rows, chosen, places, N_BINS, False)

    yield "elgamal_histogram_adds", rate(n_rows * N_FEATURES, histogram, repeats)
    sums = histogram()
    n_bins = N_BINS * N_FEATURES
    yield "elgamal_decrypt", rate(n_bins, lambda: kit.decryptor().decrypt(sums), repeats)


def heu_rates(schema: str, bits: int, n: int, repeats: int) -> Iterator[tuple[str, float]]:
    import heu.numpy as hnp
    import heu.phe as hphe
    import numpy as np

    kit = hnp.setup(getattr(hphe.SchemaType, schema), bits)
    encryptor, decryptor, evaluator = kit.encryptor(), kit.decryptor(), kit.evaluator()
    n_rows = 8 * n
    rng = np.random.default_rng(0)
    values = kit.array(rng.integers(-1000, 1000, (n_rows, 1)))
    rows = encryptor.encrypt(values)
    encrypting = rate(n_rows, lambda: encryptor.encrypt(values), repeats)
    yield "paillier_encrypt_key_holder", encrypting
    places = np.ascontiguousarray(rng.integers(0, N_BINS, (n_rows, N_FEATURES)), np.int8)
    chosen = np.ones(n_rows, np.int8)

    def histogram() -> None:
        evaluator.feature_wise_bucket_sum(rows, chosen, places, N_BINS, False)

    yield "paillier_histogram_adds", rate(n_rows * N_FEATURES, histogram, repeats)
    decrypting = rate(n_rows, lambda: decryptor.decrypt(rows), repeats)
    yield "paillier_decrypt", decrypting
    yield "paillier_decrypted_bins", decrypting


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=sorted(DISTRIBUTIONS))
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    version = importlib.metadata.version(DISTRIBUTIONS[arguments.who])
    n, repeats = (30, 1) if arguments.quick else (100, 3)
    if arguments.who == "phe":
        rates = phe_rates(arguments.bits, n, repeats)
    elif arguments.who == "fate-utils":
        rates = fate_rates(arguments.bits, n, repeats)
    elif arguments.who == "openmined-psi":
        rates = openmined_rates(n, repeats)
    elif arguments.who == "sf-heu-elgamal":
        rates = heu_elgamal_rates(n, repeats)
    else:
        schema = {"sf-heu-zpaillier": "ZPaillier", "sf-heu-ou": "OU"}[arguments.who]
        rates = heu_rates(schema, arguments.bits, n, repeats)
    rows = [
        {
            "metric": metric,
            "who": arguments.who,
            "value": round(value, 1),
            "unit": "1/s/core",
            "version": version,
        }
        for metric, value in rates
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
