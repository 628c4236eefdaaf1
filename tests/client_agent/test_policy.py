"""A silo's own rules: each is named when a job breaks it, and binds whatever the job says."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import Discloses, Silo
from hedgerow.boosting.job import WarmStart
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.work import Forecast
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.records import Records
from hedgerow.services.process.settings import SettingsInvalid, load
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

FEDGA = ["schema", "scores", "trees"]
SCHEMA = Schema((Feature("age"), Feature("wage")), "label", Task.BINARY, 2)


def job(text: str = 'strategy = "bagging"') -> JobParameters:
    return job_wire.decode(job_file.parse(text))


def check(policy: Policy, parameters: JobParameters | None = None, **facts: Any) -> None:
    parameters = parameters or job()
    forecast = facts.pop("forecast", None)
    around: dict[str, Any] = {
        "operator": "olga",
        "silos": ("a", "b", "c"),
        "columns": SCHEMA.names,
        "n_samples": 100,
        "forecast": forecast or Forecast(20, {"ExchangeTrees": (20, 6000, 9000)}, "trees"),
        "allowances": parameters.strategy.allowances(parameters.parameters, parameters, SCHEMA, 3),
    }
    policy.check(parameters, **(around | facts))


def test_features_are_held_to_the_tables_own_names() -> None:
    rules = Policy(features=("age", "wage"))
    check(rules, columns=("age", "wage", "wage"))
    with pytest.raises(PolicyDeclined, match="policy rule features: hiv may not be used"):
        check(rules, columns=("age", "hiv"))


def test_numbers_become_names_where_the_silo_allows_it_only() -> None:
    columns = {"columns": ("zip", "wage"), "named": ("zip",)}
    for rules in (Policy(categorical=("zip",)), Policy(categorical=("*",))):
        check(rules, **columns)
    for rules in (Policy(), Policy(categorical=("wage",))):
        with pytest.raises(PolicyDeclined, match="policy rule categorical: numbers of zip may not"):
            check(rules, **columns)


def test_a_column_of_very_many_categories_does_not_leave() -> None:
    check(Policy(), categories={"age": 0, "town": 100})
    check(Policy(max_categories=45_136), categories={"title": 45_136})
    with pytest.raises(PolicyDeclined, match="rule max_categories: title has over 100 categories"):
        check(Policy(), categories={"town": 3, "title": 45_136})


def test_without_rules_every_job_may_run() -> None:
    check(Policy())
    check(Policy(), silos=("a",), n_samples=0, operator="")


DP = 'strategy = "dp_tree"\n[dp_tree]\nepsilon = 2.0\ndepth = 5'
DELTA = """strategy = "private_boost"
[private_boost]
epsilon = 2.0
delta = 1e-4
[columns.ranges]
age = [0, 120]
wage = [0, 1000]
"""
EVERY = tuple(Discloses)
HISTOGRAM = 'strategy = "histogram"\n[histogram]\nsecure = false'


BLIND = 'strategy = "histogram"\n[histogram]\nblind_coordinator = true\n[booster]\nmax_depth = 4'
BINS = 'strategy = "histogram"\n[booster]\nmax_bin = {}'
DRAWN = """strategy = "histogram"
silos = [{}]
min_silos = 3
[histogram]
rounds = 5
silos_per_round = 3
"""
FIVE = DRAWN.format('"a", "b", "c", "d", "e"')
SIX = DRAWN.format('"a", "b", "c", "d", "e", "f"')
WEIGHT = 'strategy = "histogram"\n[booster]\nmin_child_weight = {}'
UNCOVERED = "require_dp: no finite epsilon covers all that the job tells"
LAYERS = "[secureboost]\nactive = 'a'\nmode = 'layered'\nhost_depth = 9\nguest_depth = 2"
LAYERED = f"strategy = 'secureboost'\n[booster]\nmax_depth = 3\n{LAYERS}"
PLAIN = """strategy = "secureboost"
[secureboost]
active = "a"
key_bits = 4096
encryption = "plain"
allow_insecure = true
"""


@pytest.mark.parametrize(
    ("rules", "text", "why"),
    [
        ({"strategies": ["histogram"]}, "", "strategies: bagging is not among histogram"),
        ({"operators": ["oscar"]}, "", "operators: olga is not among them"),
        (
            {"min_silos": 4},
            "",
            "min_silos: the job has 3 silos, at least 4; a job whose own min_silos is 4 waits for "
            "them",
        ),
        ({"min_rows": 101}, "", "min_rows: this silo has fewer than 101 rows"),
        ({"features": ["age"]}, "", "features: wage may not be used"),
        ({"max_depth": 5}, "", "max_depth: 6 is over 5"),
        ({"max_depth": 4}, DP, "max_depth: 5 is over 4"),
        ({"max_depth": 10}, LAYERED, "max_depth: 11 is over 10"),
        (
            {"max_depth": 11},
            LAYERED.replace("= 3", "= 0") + "\ncomplete_secure = 1",
            "max_depth: no limit is over 11",
        ),
        (
            {"max_depth": 3},
            'strategy = "fedga"\n[booster]\nmax_depth = 3\n[fedga]\nmax_depth = 10',
            "max_depth: 10 is over 3",
        ),
        ({"require_dp": True}, DP.replace("2.0", "inf"), UNCOVERED),
        ({"require_dp": True}, DP + '\nbinning = "quantile"', UNCOVERED),
        ({"require_dp": True}, DP + "\nsecure = false", UNCOVERED),
        (
            {"min_cell": 1},
            DP + '\nsecure = false\nbinning = "quantile"',
            "may_send: dp_tree sends counts in step 'cells-plain'",
        ),
        ({}, DP + '\nbinning = "quantile"', "min_cell: 1 is under 10"),
        ({}, DP.replace("2.0", "inf"), "min_cell: 1 is under 10"),
        ({}, DP.replace("2.0", "10.5"), "min_cell: 1 is under 10"),
        ({}, 'strategy = "private_boost"', "min_cell: 1 is under 10"),
        (
            {"min_leaf_rows": 5, "min_cell": 1},
            DP.replace("2.0", "10.5"),
            "min_leaf_rows: a leaf may have 1 rows, at least 5",
        ),
        (
            {},
            'strategy = "explore"',
            "may_send: explore sends counts in step 'release'",
        ),
        (
            {},
            PLAIN,
            "may_send: secureboost sends counts in step 'gradients'",
        ),
        (
            {"require_secure": True, "may_send": ["keys", "encrypted", "scores", "counts"]},
            PLAIN,
            "require_secure: secureboost sends counts in step 'gradients'",
        ),
        (
            {"may_send": ["keys", "schema", "scores"]},
            HISTOGRAM.replace("false", "true"),
            "may_send: histogram sends masked in step 'sum-single'",
        ),
        (
            {},
            HISTOGRAM.replace("secure = false", 'binning = "summary"'),
            "may_send: histogram sends quantiles in step 'cuts'",
        ),
        ({"require_secure": True}, "", "require_secure: bagging sends trees in step 'trees'"),
        (
            {"require_secure": True},
            'strategy = "fedxgbllr"\nmin_silos = 3\n[fedxgbllr]\nsecure = true',
            "require_secure: fedxgbllr sends trees in step 'trees'",
        ),
        (
            {"require_secure": True},
            'strategy = "fedga"',
            "require_secure: fedga sends trees in step 'proposals'",
        ),
        ({}, BINS.format(1025), "max_bin: 1025 is over 1024"),
        ({"max_bin": 64}, BINS.format(65), "max_bin: 65 is over 64"),
        (
            {"min_leaf_rows": 5},
            WEIGHT.format(1.0),
            "min_leaf_rows: a leaf may have 4 rows, at least 5",
        ),
        (
            {"min_leaf_rows": 2},
            WEIGHT.format(100.0) + '\n[columns]\nweight = "w"',
            "min_leaf_rows: a leaf may have 1 rows, at least 2",
        ),
        (
            {"min_leaf_rows": 5},
            WEIGHT.format(3.0) + "\n[columns]\nclass_weight = {a = 3.0, b = 0.1}",
            "min_leaf_rows: a leaf may have 4 rows, at least 5",
        ),
        (
            {"hide_bins": True},
            "strategy = 'histogram'\n[histogram]\nfilled_bins = true",
            "hide_bins: silos learn which bins are empty in all silos",
        ),
        (
            {"hide_bins": True},
            BLIND,
            "hide_bins: silos learn which bins are empty in all silos",
        ),
        ({"min_key_bits": 2048}, PLAIN, "min_key_bits: the job does not encrypt"),
        ({"max_rounds": 19}, "", "max_rounds: 20 is over 19"),
        ({"require_dp": True}, "", "require_dp: bagging gives no differential privacy"),
        ({"max_epsilon": 1.5}, DP, "max_epsilon: 2 is over 1.5"),
        ({"max_epsilon": 9, "max_epsilon_job": 1.5}, DP, "max_epsilon_job: 2 is over 1.5"),
        ({"max_epsilon": 0.9}, 'strategy = "fedga"', "max_epsilon: 1 is over 0.9"),
        ({"max_epsilon": 9}, DELTA, "max_delta: 0.0001 is over 1e-05, as where it is not set"),
        ({"max_epsilon_job": 9}, DELTA, "max_delta: 0.0001 is over 1e-05, as where it is not set"),
        ({"require_dp": True}, DELTA, "max_delta: 0.0001 is over 1e-05, as where it is not set"),
        ({"max_delta": 1e-6}, DELTA, "max_delta: 0.0001 is over 1e-06"),
        ({"max_bytes": 5999}, "", "max_bytes: about 6000 bytes would leave, at most 5999"),
        ({"peers": ["a", "b"]}, "", "peers: c is not among them"),
        (
            {},
            'strategy = "fedga"',
            "may_send: fedga sends scores in step 'depths'",
        ),
        (
            {},
            HISTOGRAM,
            "may_send: histogram sends scores in step 'sum-plain', counts in step 'counts-plain'",
        ),
    ],
)
def test_a_broken_rule_is_named(rules: dict[str, Any], text: str, why: str) -> None:
    parameters = job(text) if text else job()
    with pytest.raises(PolicyDeclined) as refusal:
        check(Policy(**rules), parameters)
    assert str(refusal.value).partition("; add ")[0] == f"policy rule {why}"


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"strategies": ["histogram", "bagging"]}, ""),
        ({"operators": ["oscar", "olga"]}, ""),
        ({"min_silos": 3}, ""),
        ({"min_rows": 100}, ""),
        ({"features": ["age", "wage", "height"]}, ""),
        ({"max_depth": 6}, ""),
        ({"max_depth": 11}, LAYERED),
        ({"max_depth": 3, "may_send": FEDGA}, "strategy = 'fedga'\n[fedga]\nmax_depth = 3"),
        ({"require_secure": True, "min_key_bits": 4096}, PLAIN.replace("plain", "elgamal")),
        ({"require_secure": True, "min_key_bits": 4096}, PLAIN.replace("plain", "paillier")),
        ({"max_rounds": 20}, ""),
        ({"require_dp": True, "max_epsilon": 2.0, "max_depth": 5}, DP),
        ({"max_epsilon": 0.1}, ""),
        ({"max_epsilon": 9, "max_epsilon_job": 2}, DP),
        ({"max_epsilon": 9, "max_delta": 1e-4}, DELTA),
        ({}, DELTA),
        ({"max_epsilon": 9}, DELTA.replace("1e-4", "1e-5")),
        ({"max_bytes": 6000}, ""),
        ({"peers": ["a", "b", "c", "d"]}, ""),
        ({"require_secure": True}, 'strategy = "histogram"'),
        ({"require_secure": True}, DP + "\nsecure = false"),
        ({"may_send": ["keys", "schema", "masked"]}, 'strategy = "histogram"'),
        ({"may_send": ["keys", "schema", "masked", "trees"]}, ""),
        ({"may_send": FEDGA}, 'strategy = "fedga"'),
        ({"may_send": ["keys", "schema", "scores", "counts"]}, HISTOGRAM),
        ({}, 'strategy = "bagging"\ntask = "regression"\n[bagging]\nvalidation = 0.2'),
        ({}, 'strategy = "fedxgbllr"'),
        ({}, 'strategy = "fedxgbllr"\ntask = "regression"'),
        ({}, 'strategy = "histogram"'),
        ({}, DP),
        ({}, PLAIN.replace("plain", "elgamal")),
        ({}, BINS.format(1024)),
        ({"max_bin": 65}, BINS.format(65)),
        ({"min_leaf_rows": 5}, WEIGHT.format(1.25)),
        ({"min_leaf_rows": 50}, DP),
        ({"hide_bins": True}, "strategy = 'histogram'"),
    ],
)
def test_a_job_at_the_limit_of_a_rule_may_run(rules: dict[str, Any], text: str) -> None:
    check(Policy(**rules), job(text) if text else job())


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("", "scores"),
        ('strategy = "bagging"\ntask = "regression"\n[bagging]\nevaluate = "none"', "sum-plain"),
        ('strategy = "fedxgbllr"', "scores"),
        (
            'strategy = "fedxgbllr"\ntask = "regression"\n[fedxgbllr]\ncombiner = "ridge"',
            "base-plain",
        ),
    ],
)
def test_two_silos_have_no_masks_so_that_their_scores_need_a_policy_that_names_them(
    text: str, step: str
) -> None:
    parameters = job(text) if text else job()
    given = parameters.strategy.allowances(parameters.parameters, parameters, SCHEMA, 2)
    facts: dict[str, Any] = {"silos": ("a", "b"), "allowances": given}
    check(Policy(may_send=tuple(Discloses)), parameters, **facts)
    with pytest.raises(PolicyDeclined, match=f"sends scores in step '{step}'; add 'scores'"):
        check(Policy(), parameters, **facts)


def test_a_job_goes_on_from_a_model_that_the_silo_has_kept_or_its_policy_allows() -> None:
    digest = hashlib.sha256(b"model").hexdigest()
    checked = {"run": (digest, "histogram")}
    told = WarmStart("run", digest, "0" * 64)
    asked = replace(job('strategy = "histogram"'), warm_start=told)

    def look(policy: Policy, asked: JobParameters) -> None:
        policy.check_start(asked, lambda run: checked.get(run, ("", "")))

    look(Policy(), asked)
    look(Policy(start_models="none"), replace(asked, warm_start=None))
    look(Policy(start_models="any"), replace(asked, warm_start=replace(told, run="other")))
    cases = [
        (Policy(start_models="none"), asked, "goes on from an earlier model"),
        (Policy(), replace(asked, warm_start=replace(told, run="other")), "not checked and kept"),
        (Policy(), replace(asked, warm_start=replace(told, model="0" * 64)), "not checked and"),
        (Policy(), replace(job(), warm_start=told), "was of histogram, not bagging"),
    ]
    structures = replace(job('strategy = "fedga"'), warm_start=replace(told, run="other"))
    look(Policy(), structures)
    cases.append((Policy(start_models="none"), structures, "goes on from an earlier model"))
    for policy, other, why in cases:
        with pytest.raises(PolicyDeclined, match=f"policy rule start_models: .*{why}"):
            look(policy, other)


def test_a_loss_of_a_jobs_own_needs_a_policy_that_allows_it() -> None:
    own = job('strategy = "histogram"\n[booster]\nloss = "(margin - label)**2"')
    check(Policy(custom_loss=True), own)
    with pytest.raises(PolicyDeclined, match="custom_loss: the job has a loss of its own"):
        check(Policy(), own)
    # Its hessians count no rows, so that a leaf may be a single one's.
    with pytest.raises(PolicyDeclined, match="min_leaf_rows: a leaf may have 1 rows"):
        check(Policy(custom_loss=True, min_leaf_rows=2), own)


def test_unbounded_depth_is_over_every_limit() -> None:
    deep = job('strategy = "bagging"\n[booster]\nmax_depth = 0\ngrow_policy = "lossguide"')
    with pytest.raises(PolicyDeclined, match="max_depth"):
        check(Policy(max_depth=30), deep)


def test_the_cohort_is_checked_again_when_the_silos_have_agreed() -> None:
    policy = Policy(min_silos=3, peers=("a", "b", "c"))
    policy.check_cohort(("a", "b", "c"))
    with pytest.raises(PolicyDeclined, match="min_silos"):
        policy.check_cohort(("a", "b"))
    with pytest.raises(PolicyDeclined, match="peers: mallory"):
        policy.check_cohort(("a", "b", "mallory"))


def test_what_is_drawn_for_a_round_is_held_to_the_rules(tmp_path: Path) -> None:
    few, many = job(FIVE), job(SIX)
    close = few.parameters.safeguards(few).close_sums
    records = Records(tmp_path / "opened", tmp_path / "turns", bytes(32))
    silos = tuple(map(Silo, few.silos))
    TableOpenings(records, "t", close).check(few, "job", silos)
    for most in (0, close - 1):
        with pytest.raises(PolicyDeclined, match=f"max_close_sums: .* sums over {close} sets"):
            TableOpenings(records, "t", most).check(few, "job", silos)
    check(Policy(min_silos=3), many, silos=many.silos)
    with pytest.raises(PolicyDeclined, match="min_silos: a round is over 3 silos, at least 4"):
        check(Policy(min_silos=4), many, silos=many.silos)


def test_noise_that_a_silo_of_the_job_can_undo_is_declined_unless_allowed() -> None:
    four = ("a", "b", "c", "d")
    for text in (DP, DP + "\nhonest = 3", DP.replace("2.0", "inf") + "\nhonest = 4", HISTOGRAM):
        check(Policy(may_send=EVERY, min_cell=1), job(text), silos=four)
    weak, why = job(DP + "\nhonest = 4"), "policy rule min_colluders: of 4 silos none may tell"
    with pytest.raises(PolicyDeclined, match=f"{why} .* at least 1; honest = 3 and min_silos = 4"):
        check(Policy(), weak, silos=four)
    check(Policy(min_colluders=0), weak, silos=four)
    two = Policy(min_colluders=2)
    with pytest.raises(PolicyDeclined, match="min_colluders: of 4 silos 1 may tell"):
        check(two, job(DP), silos=four)
    check(two, job("min_silos = 4\n" + DP + "\nhonest = 2"), silos=four)
    # Fewer silos may have agreed than the job was offered to.
    Policy().check_noise(job(DP + "\nhonest = 3"), 4)
    with pytest.raises(PolicyDeclined, match="min_colluders: of 3 silos none"):
        Policy().check_noise(job(DP + "\nhonest = 3"), 3)


def test_a_job_is_begun_as_often_as_the_policy_says() -> None:
    Policy(max_attempts=3).check_attempts(3)
    with pytest.raises(PolicyDeclined, match="max_attempts: this silo has begun the job 3 times"):
        Policy(max_attempts=3).check_attempts(4)


def test_keys_of_paillier_below_the_silos_least_are_declined() -> None:
    parameters = job('strategy = "secureboost"\n[secureboost]\nactive = "a"\nkey_bits = 2048')
    check(Policy(), parameters)
    with pytest.raises(PolicyDeclined, match="min_key_bits: 2048 is under 3072"):
        check(Policy(min_key_bits=3072), parameters)


AGENT = """
coordinator = "localhost:1"
identity = "id"
state = "state"
data = {{ path = "a.parquet" }}
[policy]
{rules}
"""


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("max_dept = 3", "unknown key policy.max_dept; did you mean max_depth?"),
        ("strategy = []", "unknown key policy.strategy; did you mean strategies?"),
        ("requires_dp = true", "unknown key policy.requires_dp; did you mean require_dp?"),
        (
            "xyz = 1",
            "unknown key policy.xyz; known keys: announce, announce_columns, approvers",
        ),
        ("max_depth = 0", "key policy.max_depth: Input should be greater than or equal to 1"),
        ("min_key_bits = 1024", "key policy.min_key_bits: Input should be greater than"),
        ('may_send = ["tree"]', "key policy.may_send"),
        ('strategies = ["baging"]', "strategy 'baging' is not known; did you mean bagging?"),
    ],
)
def test_a_wrong_rule_names_the_nearest(tmp_path: Path, rules: str, message: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(AGENT.format(rules=rules))
    with pytest.raises(SettingsInvalid) as refused:
        load(AgentSettings, path)
    assert message in str(refused.value)


def test_names_of_columns_are_told_where_the_policy_says_so_and_none_beside_its_features() -> None:
    columns = ("age", "wage", "line\nbreak", "sick")
    assert Policy().told(columns) == ()
    assert Policy(announce_columns=True).told(columns) == ("age", "wage", "sick")
    listed = Policy(announce_columns=True, features=("wage", "gone"))
    assert listed.told(columns) == ("wage",)


def test_rules_come_from_the_agents_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(AGENT.format(rules='strategies = ["histogram"]\nmin_silos = 5'))
    assert load(AgentSettings, path).policy == Policy(strategies=("histogram",), min_silos=5)


def test_a_policy_cannot_be_changed_while_it_is_used() -> None:
    policy = Policy(max_depth=3)
    with pytest.raises(ValueError, match="frozen"):
        policy.max_depth = 9
    check(policy, replace(job(), booster=replace(job().booster, max_depth=3)))
