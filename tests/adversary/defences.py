"""Take out the defences of docs/threat-model.md one by one: the tests of each attack must fail.

``python -m tests.adversary.defences`` runs the tests of each without it, in processes of their own,
which take it out when they start (:mod:`.without`), as do all that the tests start.
``python -m tests.adversary.defences views`` takes out those that have the word in their name.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
Change = Callable[[Any], Any]
"""Returns what stands in the place of a function or value."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A defence that can be taken out.

    Parameters
    ----------
    attack : int
        Number in the threat model's table.
    changes : dict
        What is replaced, ``module:attribute`` under ``hedgerow``, and by what.
    tests : tuple of str
        Tests that must notice, ``file::name`` under ``tests/adversary``.
    """

    attack: int
    changes: dict[str, Change]
    tests: tuple[str, ...]

    def take_out(self) -> None:
        """Take the defence out of this process."""
        for where, change in self.changes.items():
            module, _, path = where.partition(":")
            *owners, name = path.split(".")
            owner = reduce(getattr, owners, importlib.import_module(f"hedgerow.{module}"))
            own = vars(owner)[name]
            setattr(owner, name, change(own))


def _always(value: Any) -> Change:
    return lambda own: lambda *args, **named: value


def _is(value: Any) -> Change:
    return lambda own: value


def _trusting(own: Any) -> Any:
    def narrow(search: Any, at: Any, counts: Any, n_rows: int) -> None:
        search.take(counts)

    return narrow


async def _nothing(*args: Any) -> None:
    pass


class _Believed:
    """A public key under which every signature holds."""

    def verify(self, *args: Any) -> None:
        pass


def _believed(own: Any) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    ec.EllipticCurvePublicKey.register(_Believed)
    return lambda certificate: _Believed()


def _always_ones(own: Any) -> Any:
    return lambda n: (1).to_bytes(8, "little") * (n // 8)


def _refusing_rows(own: Any) -> Any:
    def weigh(self: Any, pairs: Any, sample: Any) -> None:
        if (abs(pairs[sample.rows, 0::2]) > self.grad.bound).any():
            raise ValueError("gradients exceed the bound")
        own(self, pairs, sample)

    return weigh


def _misses_nothing(own: Any) -> Any:
    return lambda self, histograms, missing, n_silos: own(
        self, histograms, missing & False, n_silos
    )


def _any_class(own: Any) -> Any:
    return lambda self, link, allowances, may_send=(): own(self, link, allowances)


def _same_noise(own: Any) -> Any:
    return lambda self, context: own(self, bytes(32))


def _by_seed(own: Any) -> Any:
    return lambda vault, job, table: job.seed


def _rounded_columns(own: Any) -> Any:
    return lambda *columns: own(
        *(np.array([np.float32(column.sum())], np.float64) for column in columns)
    )


def _rounded_sums(own: Any) -> Any:
    return lambda *args: own(*args) >> 12 << 12


def _not_whole(own: Any) -> Any:
    return lambda values, scale: np.ldexp(values, scale.fraction_bits)


def _hardly_whole(own: Any) -> Any:
    return lambda values, bits, most: np.ldexp(values, bits)


def _rounded_counts(own: Any) -> Any:
    return lambda self, *args: own(self, *args) // 8 * 8


def _half_noise(own: Any) -> Any:
    return lambda counts, spending, **rest: own(
        counts, replace(spending, epsilon=2 * spending.epsilon), **rest
    )


def _small_variance(own: Any) -> Any:
    return property(lambda self: max(1, own.func(self) // 16))


def _unproven(own: Any) -> Any:
    def read(cls: Any, data: bytes, *, insecure_test_key: bool = False) -> Any:
        keys = importlib.import_module("hedgerow.crypto.ciphers.paillier_keys")
        end = len(keys.PUBLIC_MAGIC) + 2 + (keys.modulus_bits(data) + 7) // 8
        return cls.from_bytes(data[:end], insecure_test_key=insecure_test_key)

    return classmethod(read)


def _foreign(own: Any) -> Any:
    def load(self: Any, kind: Any, data: bytes) -> Any:
        from hedgerow.boosting.errors import OfferRejected

        try:
            return own(self, kind, data)
        except OfferRejected as error:
            raise RecursionError("as a decoder's own") from error

    return load


_PYTEST = ("-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider")
REMOVALS = {
    "views of sums": Removal(
        1,
        {"boosting.sums.silo:sum_view": _always(bytes(32))},
        ("test_views.py::test_with_views_the_sum_is_noise",),
    ),
    "noise of the question": Removal(
        2,
        {"crypto.vault.local_vault:LocalVault.derive_noise": _same_noise},
        (
            "test_privacy_budget.py::test_columns_in_another_order_at_each_attempt"
            "_have_other_noise_and_cost_again",
        ),
    ),
    "one schema a job": Removal(
        2,
        {
            "client_agent.attempt:Attempt._settled": lambda own: (
                lambda self, job, agreed, data: agreed
            )
        },
        ("test_agreed_schema.py::test_the_schema_of_a_job_never_changes_between_attempts",),
    ),
    "signatures of operators": Removal(
        3,
        {"services.identity.peers:public_key_of": _believed},
        (
            "test_signed_jobs.py::test_a_job_that_the_operator_did_not_sign"
            "_is_declined_before_any_row_is_read",
        ),
    ),
    "counts of the link": Removal(
        4,
        {"boosting.allowances:QuotaChannel._count": _always(None)},
        (
            "test_policy.py::test_another_round_is_refused_by_every_silo",
            "test_policy.py::test_another_level_is_refused_by_every_silo",
        ),
    ),
    "bins of the job": Removal(
        5,
        {"boosting.strategies.histogram.plan:HistogramPlan.check_bins": _always(None)},
        ("test_policy.py::test_more_bins_than_the_job_says_are_refused_by_every_silo",),
    ),
    "bounds of the search": Removal(
        5,
        {"boosting.strategies.histogram.opening:_SEARCHES": _is(1 << 30)},
        ("test_policy.py::test_counts_spent_on_one_column_find_few_values_and_none_to_the_bit",),
    ),
    "grid of the search": Removal(
        5,
        {
            "boosting.engine.bisection:_GRID": _is(0),
            "boosting.engine.bisection:_FINEST_GRID": _is(0),
        },
        ("test_policy.py::test_counts_spent_on_one_column_find_few_values_and_none_to_the_bit",),
    ),
    "totals of the search": Removal(
        5,
        {"boosting.strategies.histogram.opening:narrow": _trusting},
        ("test_policy.py::test_counts_of_no_table_are_refused_by_every_silo",),
    ),
    "classes of the policy": Removal(
        5,
        {"boosting.allowances:QuotaChannel.__init__": _any_class},
        ("test_policy.py::test_no_class_leaves_that_the_policy_forbids",),
    ),
    "checks of models": Removal(
        6,
        {"boosting.trees.loading:_check_trees": _always(None)},
        ("test_models.py::test_a_silo_that_enters_refuses_a_model_that_is_no_trees",),
    ),
    "checks of trees": Removal(
        6,
        {
            "boosting.trees.limits:validate_upload": _always(None),
            "boosting.strategies.fedxgbllr.uploads:validate_upload": _always(None),
        },
        (
            "test_models.py::test_a_silo_of_bagging_refuses_trees_that_are_none",
            "test_models.py::test_a_silo_of_fedxgbllr_refuses_trees_that_are_none",
        ),
    ),
    "account of the table": Removal(
        7,
        {"client_agent.accountant:_spent": _always(0)},
        (
            "test_privacy_budget.py::test_four_private_trees_in_a_row_do_not_get_four_budgets",
            "test_privacy_processes.py"
            "::test_jobs_in_a_row_are_declined_once_the_tables_budget_is_spent",
        ),
    ),
    "bounds of texts": Removal(
        8,
        {"services.wire.bounds:_check_text": _always(None)},
        ("test_doors.py::test_every_text_and_list_of_every_request_is_bounded",),
    ),
    "bounds of reasons": Removal(
        8,
        {
            "services.rpc.guard:check_request": _always(None),
            "coordinator.server.store:cut": lambda own: lambda text: text,
        },
        (
            "test_doors.py::test_a_silo_s_long_reason_ends_no_call_of_an_operator",
            "test_doors.py::test_texts_that_a_silo_may_not_send_are_refused_by_the_server",
        ),
    ),
    "control characters in reasons": Removal(
        8,
        {
            "services.wire.bounds:one_line": lambda own: lambda text: text,
            "coordinator.server.store:one_line": lambda own: lambda text: text,
            "services.rpc.jobs:spell_out": _always(None),
        },
        ("test_doors.py::test_a_silo_s_reason_forges_no_line_of_an_operator",),
    ),
    "memory of offers": Removal(
        9,
        {"services.rpc.exchange:held_bytes": lambda own: lambda message, n_bytes: n_bytes},
        ("test_memory.py::test_empty_values_count_as_what_they_hold",),
    ),
    "committed shares": Removal(
        10,
        {
            "boosting.sums.coordinator:CoordinatorSums._sound_shares": (
                lambda own: lambda self, number, present, silo, offer: offer
            )
        },
        ("test_shares.py::test_a_wrong_share_is_refused_and_the_sum_goes_on_without_it",),
    ),
    "sanity of totals": Removal(
        11,
        {"boosting.engine.grower:possible": _always(True)},
        ("test_totals.py::test_random_residues_end_the_job_with_the_round",),
    ),
    "node totals": Removal(
        20,
        {
            "boosting.strategies.histogram.parameters:Histogram.checks_totals": _is(
                property(lambda self: False)
            )
        },
        (
            "test_node_totals.py::test_made_up_totals_are_refused_by_every_silo",
            "test_interference.py::test_no_silo_takes_a_total_that_is_changed",
        ),
    ),
    "words of totals": Removal(
        20,
        {"crypto.masking.totals:TotalsCheck.holds": _always(True)},
        (
            "test_node_totals.py::test_made_up_totals_are_refused_by_every_silo",
            "test_node_totals.py::test_a_silo_whose_word_is_not_of_its_rows_ends_the_job",
            "test_numbers.py::test_made_up_totals_before_the_first_round_are_refused",
            "test_numbers.py::test_made_up_totals_before_the_first_round_are_refused"
            "[the sampling threshold]",
            "test_interference.py::test_no_silo_takes_a_total_that_is_changed",
        ),
    ),
    "rows between cut points": Removal(
        20,
        {
            "boosting.engine.bisection:_apart": lambda own: (
                lambda counts, total, least: list(range(len(counts)))
            )
        },
        ("test_numbers.py::test_cut_points_around_one_value_leave_no_bin_of_few_rows",),
    ),
    "words of largest numbers": Removal(
        20,
        {"crypto.masking.totals:ResiduesCheck.holds": _always(True)},
        (
            "test_numbers.py::test_a_made_up_leaf_shows_no_silo_s_label_in_clear",
            "test_numbers.py::test_made_up_totals_before_the_first_round_are_refused",
            "test_numbers.py::test_made_up_bounds_of_sums_are_refused_by_every_silo",
        ),
    ),
    "witnesses of trees": Removal(
        20,
        {"boosting.strategies.histogram.silo:_Silo._witness": _always(1)},
        ("test_node_totals.py::test_trees_that_no_silo_has_checked_end_the_job",),
    ),
    "weights of children": Removal(
        20,
        {"boosting.strategies.histogram.rows:too_light": _always(np.zeros(1, np.bool_))},
        ("test_node_totals.py::test_a_child_with_too_little_weight_is_refused_by_every_silo",),
    ),
    "models that were checked": Removal(
        20,
        {
            "boosting.strategies.histogram.stored:CheckedModel.checked_rounds": (
                lambda own: lambda self, digests, bare, sender: len(digests) - 1
            )
        },
        (
            "test_node_totals.py::test_a_silo_refuses_another_model_than_the_one_it_has_checked",
            "test_node_totals.py::test_trees_that_no_silo_has_checked_end_the_job",
        ),
    ),
    "deadline of handshakes": Removal(
        12,
        {
            "services.rpc.server:OPTIONS": lambda own: tuple(
                (name, 3_600_000 if name == "grpc.server_handshake_timeout_ms" else value)
                for name, value in own
            )
        },
        ("test_doors.py::test_a_connection_that_never_shakes_hands_is_shut_though_there_is_room",),
    ),
    "shares of addresses": Removal(
        12,
        {"services.rpc.doorman:ConnectionLimiter.look": _always(0)},
        ("test_doors.py::test_the_oldest_strangers_go_and_holders_of_certificates_stay",),
    ),
    "shares of addresses over HTTP": Removal(
        12,
        {"services.rpc.doorman:ConnectionLimiter.look": _always(0)},
        ("test_http_doors.py::test_idle_connections_keep_no_caller_out_of_scores",),
    ),
    "deadline of requests over HTTP": Removal(
        12,
        {"services.rpc.http:_Connection._within": _always(None)},
        ("test_http_doors.py::test_requests_that_never_end_are_ended",),
    ),
    "length of another party's list of ids": Removal(
        13,
        {"crypto.intersection.psi:PsiPolicy.check_other": _always(None)},
        ("test_vertical.py::test_a_million_guesses_find_no_id",),
    ),
    "share of the own ids that is common": Removal(
        13,
        {"crypto.intersection.psi:PsiPolicy.check_common": _always(None)},
        ("test_vertical.py::test_a_list_of_guesses_that_finds_most_ids_is_named",),
    ),
    "layout of gradients": Removal(
        13,
        {"boosting.strategies.secureboost.passive:check_layout": _always(None)},
        ("test_vertical.py::test_a_layout_that_the_job_does_not_have_is_refused",),
    ),
    "random bits above sums": Removal(
        13,
        {"crypto.ciphers.packing:PairLayout.spare_bits": _always(0)},
        (
            "test_vertical.py::test_powers_of_two_as_gradients_show_no_more_rows"
            "_than_a_pair_has_bits",
        ),
    ),
    "owners of jobs": Removal(
        14,
        {"services.rpc.jobs:JobServicer._own": _is(_nothing)},
        ("test_owned_jobs.py::test_a_job_is_its_operators_alone_and_an_admins",),
    ),
    "revocation": Removal(
        14,
        {
            "services.rpc.guard:AuthInterceptor._check_revoked": _always(None),
            "services.rpc.guard:AuthInterceptor._end_revoked": _always(None),
        },
        (
            "test_revocation.py::test_a_revoked_silo_is_refused_on_its_open_connection"
            "_and_its_open_call_ends",
        ),
    ),
    "proofs of moduli": Removal(
        14,
        {"crypto.ciphers.paillier_keys:PublicKey.from_certified": _unproven},
        ("test_vertical.py::test_a_modulus_without_a_proof_is_refused",),
    ),
    "random residues of places": Removal(
        18,
        {"boosting.sums.maximum:os.urandom": _always_ones},
        (
            "test_numbers.py::test_places_below_the_largest_tell_neither_whose_they_are"
            "_nor_how_many_have_them",
        ),
    ),
    "clipped gradients": Removal(
        18,
        {"boosting.engine.quantising:Quantiser.weigh": _refusing_rows},
        (
            "test_numbers.py::test_no_silo_refuses_bounds_that_its_rows_are_outside_of",
            "test_interference.py::test_bounds_that_rows_are_outside_of_do_not_ask_single_silos",
        ),
    ),
    "exact sums of scores": Removal(
        18,
        {"boosting.metric_sums:exact_parts": _rounded_columns},
        (
            "../boosting/test_metric_sums.py"
            "::test_totals_are_the_same_bits_however_rows_are_spread_and_near_the_metric",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[bagging]",
        ),
    ),
    "exact sums of covers": Removal(
        18,
        {"boosting.strategies.bagging.covers:_by_leaf": _rounded_sums},
        (
            "../federation/test_covers.py"
            "::test_sums_by_leaf_are_the_same_bits_however_rows_are_spread",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[bagging]",
        ),
    ),
    "exact sums of leaves": Removal(
        18,
        {"boosting.strategies.fedxgbllr.leaf_search:whole": _not_whole},
        (
            "../boosting/strategies/fedxgbllr/test_row_sums.py",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[llr-leaves]",
        ),
    ),
    "exact equations": Removal(
        18,
        {"boosting.strategies.fedxgbllr.tree_rates:_whole": _hardly_whole},
        (
            "../boosting/strategies/fedxgbllr/test_row_sums.py",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[llr-ridge]",
        ),
    ),
    "exact counts of hidden units": Removal(
        18,
        {"boosting.strategies.fedxgbllr.network:HeadCombiner.active": _rounded_counts},
        ("test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[llr-secure]",),
    ),
    "ways of dividing a table": Removal(
        21,
        {"client_agent.opened:new_binnings": _always([])},
        (
            "test_binnings.py::test_a_second_division_of_labels_is_declined_before_anything_is_counted",
            "test_binnings.py::test_ways_of_dividing_columns_are_counted_over_all_jobs_of_a_table",
            "test_binnings.py::test_cut_points_of_summaries_are_counted_as_they_are_told",
        ),
    ),
    "one model's errors": Removal(
        23,
        {"boosting.strategies.histogram.opening:SiloOpening._keep": _always(None)},
        (
            "test_binnings.py"
            "::test_errors_of_two_models_are_counted_neither_in_two_attempts_nor_in_two_like_jobs",
        ),
    ),
    "codes of missing values": Removal(
        22,
        {"client_agent.policy:Policy._may_be_missing": _always(True)},
        ("test_binnings.py::test_a_job_does_not_choose_whose_value_stands_for_missing_ones",),
    ),
    "losses of a job's own": Removal(
        28,
        {"client_agent.policy:Policy._may_have": _always(True)},
        ("test_binnings.py::test_a_loss_of_a_jobs_own_does_not_count_labels_unless_a_silo_agrees",),
    ),
    "flag of false derived bins": Removal(
        18,
        {"boosting.strategies.histogram.rings:BitWidths.overflow": _misses_nothing},
        ("test_rings.py::test_no_silo_refuses_a_reply_that_says_that_nothing_is_missing",),
    ),
    "secret draws": Removal(
        19,
        {"boosting.streams:own_draws": _by_seed},
        ("test_draws.py::test_totals_of_many_rounds_are_no_equations_in_rows",),
    ),
    "marks of formulas": Removal(
        14,
        {"boosting.tables.spreadsheet:_FORMULA": _is("^never$")},
        ("test_spreadsheet.py::test_a_class_name_that_is_a_formula_reaches_no_table",),
    ),
    "sums of scores": Removal(
        16,
        {
            f"boosting.strategies.bagging.{half}:masks_scores": _always(False)
            for half in ("silo", "coordinator", "forecast")
        },
        (
            "test_scores.py::test_no_score_of_one_silo_leaves_in_clear_by_default",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[bagging]",
        ),
    ),
    "scores unless said": Removal(
        16,
        {"client_agent.policy:UNLESS_SAID": _is(frozenset())},
        (
            "test_scores.py::test_two_silos_send_no_score_by_default"
            "_and_by_their_policys_word_four_digits",
            "test_scores.py::test_scores_of_own_test_rows_stay_in_the_silo_by_default",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[hist-secure]",
        ),
    ),
    "digits of scores": Removal(
        16,
        {"boosting.metrics:rounded": lambda own: lambda value: value},
        (
            "test_scores.py::test_scores_of_own_test_rows_leave_by_the_policys_word"
            "_in_four_digits_and_of_20_rows",
        ),
    ),
    "errors of decoders": Removal(
        14,
        {"services.wire:BoxCodec.load": _foreign},
        (
            "test_vertical_relay.py::test_malformed_content_in_a_sealed_box"
            "_is_refused_with_its_sender",
        ),
    ),
    "noise against silos": Removal(
        15,
        {
            "boosting.strategies.dp_tree.parameters:DPTree.honest_of": (
                lambda own: lambda self, n_silos: self.honest or n_silos
            )
        },
        (
            "test_dp_audit.py::test_what_silos_send_bears_out_its_epsilon",
            "test_interference.py::test_a_job_without_a_lie_tells_no_silos_apart[dp]",
        ),
    ),
    "size of the noise": Removal(
        15,
        {"boosting.sums.answers:noisy": _half_noise},
        ("test_dp_audit.py::test_what_silos_send_bears_out_its_epsilon",),
    ),
    "size of the noise of leaves": Removal(
        15,
        {"boosting.strategies.private_boost.mechanism:Mechanism.variance": _small_variance},
        ("test_dp_audit.py::test_a_whole_job_over_public_structures_bears_out_its_epsilon",),
    ),
    "noise of all parts": Removal(
        15,
        {"client_agent.policy:Policy.check_noise": _always(None)},
        (
            "test_privacy_processes.py"
            "::test_jobs_in_a_row_are_declined_once_the_tables_budget_is_spent",
        ),
    ),
    "groups of sums": Removal(
        17,
        {"boosting.sums.groups:OpenedSets.close_by": _always("")},
        (
            "test_groups.py::test_five_of_six_silos_a_day_later_are_declined",
            "test_interference.py::test_made_up_leaves_and_a_loss_tell_no_silo_s_sums[hist-six]",
        ),
    ),
    "silos without rows": Removal(
        24,
        {"boosting.sums.groups:OpenedSets._beside_few": _always(())},
        ("test_groups.py::test_a_silo_is_in_no_sum_whose_other_silos_have_hardly_any_rows",),
    ),
    "one silo's other rows": Removal(
        27,
        {"boosting.sums.groups:OpenedSets._changed_alone": _always(())},
        ("test_groups.py::test_sums_of_one_silo_s_other_rows_are_refused",),
    ),
    "budgets that hide no row": Removal(
        29,
        {"client_agent.seen_tables:counts_rows": _always(False)},
        ("test_changed_tables.py::test_a_budget_that_hides_no_row_exempts_no_job",),
    ),
    "companions of silos": Removal(
        17,
        {"boosting.sums.groups:OpenedSets.bind": _always(None)},
        (
            "../boosting/sums/test_groups.py"
            "::test_no_jobs_in_any_order_tell_fewer_than_three_silos_apart",
            "../boosting/sums/test_groups.py::test_disjoint_sets_of_three_jobs_tell_no_silo_apart",
        ),
    ),
    "least silos of a policy": Removal(
        17,
        {"boosting.sums.silo:SiloSums._check_set": _always(None)},
        (
            "test_groups.py::test_the_least_silos_of_a_policy_hold_in_every_sum",
            "test_interference.py::test_no_sum_is_over_fewer_silos_than_a_policy_asks_for",
        ),
    ),
}


def unnoticed(name: str, seconds: float = 300.0) -> list[str]:
    """Return the tests of a defence that pass without it; one that does not end has noticed."""
    path = [str(ROOT / "tests/adversary/without"), str(ROOT)]
    environment = {"HEDGEROW_TEST_WITHOUT": name, "PYTHONPATH": os.pathsep.join(path)}
    passed = []
    for test in REMOVALS[name].tests:
        try:
            done = subprocess.run(
                [sys.executable, *_PYTEST, f"tests/adversary/{test}"],
                cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
                timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            continue
        if done.returncode > 1:  # not a test that failed, nor a process that died
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
        if done.returncode == 0:
            passed.append(test)
    return passed


def main(words: list[str]) -> int:
    """Print a line for each defence; return how many have a test that does not notice."""
    missed = 0
    for name, removal in REMOVALS.items():
        if not words or any(word in name for word in words):
            left = unnoticed(name)
            missed += bool(left)
            print(f"{removal.attack:3}  {name:26}", *left or ["noticed"], flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
