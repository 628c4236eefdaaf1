import ast
import dataclasses
import math
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor as Fd
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster, ColumnRules, DatePart
from hedgerow.boosting.ports import strategy_of
from hedgerow.boosting.strategies import NAMES
from hedgerow.client_agent.config import AgentSettings
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file

ROOT = Path(__file__).parents[3]

ADULT = """
name = "adult-bagging"
strategy = "bagging"
label = "label"
task = "binary"
seed = 7
min_silos = 3
metrics = ["auc", "logloss"]
[bagging]
rounds = 20
trees_per_round = 3
[booster]
objective = "binary:logistic"
eta = 0.1
max_depth = 6
lambda = 2
"""


def test_a_job_file_becomes_the_parameters_of_all_parties():
    job = job_wire.decode(job_file.parse(ADULT))
    assert (job.name, job.label, job.task, job.seed) == ("adult-bagging", "label", Task.BINARY, 7)
    assert (job.min_silos, job.metrics) == (3, ("auc", "logloss"))
    assert (job.parameters.rounds, job.parameters.trees_per_round) == (20, 3)
    assert job.booster == Booster(objective="binary:logistic", eta=0.1, max_depth=6, lambda_=2.0)
    assert (job.step_timeout_seconds, job.start_timeout_seconds) == (600.0, 120.0)


def test_what_a_file_leaves_out_takes_the_dataclasses_defaults():
    job = job_wire.decode(job_file.parse('strategy = "bagging"'))
    assert job.booster == Booster()
    assert job.parameters == type(job.parameters)()
    assert (job.name, job.label, job.min_silos) == ("bagging", "label", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('strategi = "bagging"', "unknown key strategi; did you mean strategy"),
        ("[bagging]\nround = 3", r"unknown key bagging\.round; did you mean rounds"),
        ("[booster]\nlearn_rate = 1", r"unknown key booster\.learn_rate; "),
        ("[booster]\nlamda = 1", "did you mean lambda"),
        ("[fedga]\nrounds = 1", "did you mean generations?"),
        ("[bagging]\nnum_rounds = 1", "did you mean rounds?"),
        ("[fedxgbllr]\nn_estimators = 1", "did you mean trees?"),
        ("[bagging]\neta = 1", r"did you mean eta in \[booster\]?"),
        ("learning_rate = 1", r"did you mean eta in \[booster\]?"),
        ("num_boost_round = 1", "did you mean rounds in the strategy's table?"),
        ('[booster]\neval_metric = "auc"', "did you mean metrics before all tables?"),
        ('sample_weight = "w"', r"did you mean weight in \[columns\]"),
        ("[booster]\nnum_class = 3", "did you mean classes before all tables?"),
        ('seed = "7"', "seed: expected a whole number that is not negative, received '7'"),
        ("seed = -1", "seed: expected a whole number that is not negative, received -1"),
        ("seed = 1.5", "seed: expected a whole number"),
        ("seed = true", "seed: expected a number, received True"),
        ("min_silos = 4294967296", r"min_silos: expected a number below 2\^32"),
        (
            'task = "binery"',
            "task: expected 'binary' or 'multiclass' or 'regression' or 'survival' or 'ranking', ",
        ),
        ('metrics = "auc"', "metrics: expected a list, received 'auc'"),
        ('metrics = ["auc", 1]', r"metrics\[1\]: expected a text, received 1"),
        ('label = ["a", 2]', r"more_labels\[0\]: expected a text, received 2"),
        ("bagging = 3", "bagging: expected a table, received 3"),
        ('[booster]\neta = "x"', r"booster\.eta: expected a number, received 'x'"),
        ("[histogram]\nsecure = 1", r"histogram\.secure: expected true or false, received 1"),
        ("seed = ", "not TOML"),
    ],
)
def test_mistakes_name_the_key_what_was_expected_and_what_came(text, message):
    with pytest.raises(InvalidJob, match=message):
        job_file.parse(text)


@pytest.mark.parametrize("strategy", ["bagging", "histogram", "simfl", "secureboost"])
@pytest.mark.parametrize(
    "told", ["0.0", "1.0", "-0.5", "1.5", "nan", "inf", "1e-50", "0.99999999999"]
)
def test_a_base_score_that_the_loss_does_not_have_is_refused(strategy, told):
    """XGBoost clips some of them without a word, and fails on the others in a silo."""
    text = f'strategy = "{strategy}"\n[booster]\nbase_score = {told}\n'
    if strategy == "secureboost":
        text += '[secureboost]\nactive = "a"\n'
    with pytest.raises(InvalidJob, match="base_score: expected"):
        job_wire.decode(job_file.parse(text))
    job_wire.decode(job_file.parse(text.replace(told, "0.25", 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('strategy = "baging"', "strategy 'baging' is not known; did you mean bagging"),
        ('strategy = "xyzzy"', "known: bagging"),
        ("seed = 1", "strategy '' is not known"),
        ('strategy = "bagging"\n[fedga]\ngenerations = 1', r"the job has a table \[fedga\]"),
    ],
)
def test_an_unknown_strategy_or_another_ones_table_is_refused(text, message):
    with pytest.raises(InvalidJob, match=message):
        job_wire.decode(job_file.parse(text))


def test_two_strategies_tables_in_one_file_are_refused():
    with pytest.raises(InvalidJob, match=r"fedga: the job has a table \[bagging\] already"):
        job_file.parse('strategy = "fedga"\n[bagging]\nrounds = 1\n[fedga]\ngenerations = 1')


def test_a_missing_or_unreadable_file_is_told_by_its_path(tmp_path):
    with pytest.raises(InvalidJob, match="no such job file"):
        job_file.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidJob, match=r"bad\.toml: cannot be read"):
        job_file.load(tmp_path / "bad.toml")
    (tmp_path / "job.toml").write_text("sed = 1")
    with pytest.raises(InvalidJob, match=r"job\.toml: unknown key sed; did you mean seed"):
        job_file.load(tmp_path / "job.toml")


def test_bytes_that_are_no_job_are_refused():
    with pytest.raises(InvalidJob, match="not a JobSpec"):
        job_wire.decode(b"\xff\xff\xff")


def values(field):
    if field.cpp_type == Fd.CPPTYPE_ENUM:
        return st.sampled_from([v.number for v in field.enum_type.values if v.number])
    if field.cpp_type == Fd.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == Fd.CPPTYPE_STRING:
        return st.text(st.characters(codec="utf-8"), max_size=6)
    if field.cpp_type in (Fd.CPPTYPE_DOUBLE, Fd.CPPTYPE_FLOAT):
        return st.floats(allow_nan=False)
    low = 0 if field.cpp_type in (Fd.CPPTYPE_UINT32, Fd.CPPTYPE_UINT64) else -(2**31)
    wide = field.cpp_type in (Fd.CPPTYPE_INT64, Fd.CPPTYPE_UINT64)
    return st.integers(low, 2**64 - 1 if wide else 2**31 - 1)


@st.composite
def messages(draw, descriptor, depth=0):
    message = {}
    oneof = descriptor.oneofs_by_name.get("parameters")
    tables = [field.name for field in oneof.fields if field.name != "extension"] if oneof else []
    chosen = draw(st.sampled_from(tables)) if tables else ""
    for field in descriptor.fields:
        if field.name == "extension":  # of a package: tests/services/wire/test_extension.py
            continue
        if field.name in tables and field.name != chosen:
            continue
        if not draw(st.booleans()):
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            kind = messages(inner.message_type, depth + 1) if inner.message_type else values(inner)
            keys = values(field.message_type.fields_by_name["key"])
            message[field.name] = draw(st.dictionaries(keys, kind, max_size=3))
        elif field.is_repeated and field.message_type:
            inner = messages(field.message_type, depth + 1)
            message[field.name] = draw(st.lists(inner, max_size=3))
        elif field.is_repeated:
            message[field.name] = draw(st.lists(values(field), max_size=3))
        elif field.cpp_type == Fd.CPPTYPE_MESSAGE:
            message[field.name] = draw(messages(field.message_type, depth + 1))
        else:
            message[field.name] = draw(values(field))
    return message


@settings(max_examples=60, deadline=None)
@given(content=messages(job_pb2.JobSpec.DESCRIPTOR))
def test_a_job_written_as_a_file_is_the_same_job(content):
    spec = job_pb2.JobSpec(**content).SerializeToString(deterministic=True)
    assert job_file.parse(job_file.dump(spec)) == spec


def columns(text):
    return job_wire.decode(job_file.parse(f'strategy = "bagging"\n[columns]\n{text}')).columns


def test_rules_of_columns_are_tables_and_lists():
    rules = columns(
        'dates = {"admitted" = ["year", "days_since"]}\ndrop = ["name"]\n'
        'categorical = ["zip"]\nrename = {"Age (years)" = "age"}\npositive = "01"\n'
    )
    parts = (DatePart.YEAR, DatePart.DAYS_SINCE)
    assert rules == ColumnRules(
        (("admitted", parts),), ("name",), ("zip",), (("Age (years)", "age"),), "1"
    )
    assert rules.date_features("admitted") == ("admitted_year", "admitted_days_since")


def test_weights_are_a_column_and_a_number_a_class():
    rules = columns('weight = "w"\nclass_weight = {"01" = 3, no = 0.5}')
    assert (rules.weight, rules.class_weight) == ("w", (("01", 3.0), ("no", 0.5)))
    assert (rules.heaviest, columns("class_weight = {no = 3}").heaviest) == (3 * 2.0**64, 3.0)


def test_a_number_may_stand_for_a_missing_value():
    assert [columns(text).missing for text in ("", "missing = 0", "missing = -999")] == [
        None, 0.0, -999.0,
    ]  # fmt: skip
    for wrong in ("nan", "inf", "1e39"):
        with pytest.raises(InvalidJob, match=r"\[columns\] missing: expected a finite number"):
            columns(f"missing = {wrong}")
    text = 'strategy = "secureboost"\n[secureboost]\nactive = "a"\n[columns]\nmissing = -999\n'
    with pytest.raises(InvalidJob, match=r"\[columns\] missing: parties score rows without"):
        job_wire.decode(job_file.parse(text))


@pytest.mark.parametrize("key", ['weight = "w"', "class_weight = {a = 2}"])
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("dp_tree", r"dp_tree draws its noise for rows that count one each"),
        ("simfl", r"simfl sends gradients of single rows, which would tell their weights"),
        ("secureboost", r"weight of \[secureboost\], or set scale_pos_weight of \[booster\]"),
    ],
)
def test_strategies_without_weights_refuse_them_by_name(strategy, said, key):
    needed = {"dp_tree": "epsilon = 1.0", "secureboost": 'active = "a"'}.get(strategy, "")
    text = f'strategy = "{strategy}"\n[{strategy}]\n{needed}\n[columns]\n{key}'
    with pytest.raises(InvalidJob, match=said):
        job_wire.decode(job_file.parse(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('strategy = "fedxgbllr"', "'leaves', 'ridge', 'logit_ridge' or 'mean' with weights"),
        (
            'strategy = "histogram"\ntask = "regression"\nbooster.objective = "lae"',
            "starts from the median of rows that all count the same: set base_score",
        ),
    ],
)
def test_what_cannot_count_rows_by_weight_is_refused(text, said):
    job = job_wire.decode(job_file.parse(text + '\ncolumns.weight = "w"'))
    with pytest.raises(InvalidJob, match=said):
        job.parameters.validate(job)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('dates = ["day"]', "columns.dates: expected a table, received"),
        ('dates = {day = ["yaer"]}', "columns.dates.day.0.: expected 'year' or 'month'"),
        ('dates = {day = "year"}', "columns.dates.day: expected a list"),
        ("dates = {day = []}", "'day' needs one part at least"),
        ('dates = {day = ["year", "year"]}', "none of them twice"),
        ("rename = {a = 3}", "columns.rename.a: expected a text"),
        ('rename = {a = "b", b = "c"}', "'a' is a column's new name|'b' is a column's new name"),
        ('rename = {_ssn = "age"}', "'_ssn' is never a feature"),
        ('rename = {age = "_id"}', "'_id' is never a feature"),
        ('rename = {label_other = "age"}', "'label_other' is never a feature"),
        ('rename = {label = "age"}', "'label' is never a feature"),
        ('rename = {a = "b"}\ndrop = ["a"]', "'a' is renamed: give 'b'"),
        ('drop = ["label"]', "'label' is no feature"),
        ('categorical = ["_ssn"]', "'_ssn' is no feature"),
        ('dates = {_born = ["year"]}', "'_born' is no feature"),
        ('drop = ["a"]\ncategorical = ["a"]', r"'a' is in \[columns\] drop already"),
        ('weight = "_w"', "weight: '_w' is the label, or kept out by its name"),
        ('weight = "label"', "weight: 'label' is the label"),
        ('weight = "w"\ndrop = ["w"]', r"weight: 'w' is in \[columns\] drop already"),
        ("class_weight = {a = 0}", "class_weight: 'a': expected a number between 2.-32 and"),
        ("class_weight = {a = -1.0}", "class_weight: 'a': expected a number between"),
        ("class_weight = {a = nan}", "class_weight: 'a': expected a number between"),
        ("class_weight = {a = inf}", "class_weight: 'a': expected a number between"),
        ('class_weight = {a = "2"}', "columns.class_weight.a: expected a number, received '2'"),
        ('class_weight = "balanced"', "class_weight: 'balanced' needs the number of rows"),
        ('class_weight = "other"', "columns.class_weight: expected a table, received 'other'"),
        ("drops = []", "unknown key columns.drops; did you mean drop"),
    ],
)
def test_rules_of_columns_that_contradict_each_other_are_refused(text, said):
    with pytest.raises(InvalidJob, match=said):
        columns(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('task = "multiclass"\n[columns]\npositive = "a"', "positive: expected a job with task"),
        (
            'task = "regression"\n[columns]\nclass_weight = {a = 2}',
            "class_weight: expected a job with classes, not a regression",
        ),
        ('features = ["w"]\n[columns]\nweight = "w"', "weight: 'w' is among the job's features"),
        ('features = ["a"]\n[columns]\ndrop = ["a"]', "'a' is among the job's features"),
        (
            'features = ["a"]\n[columns]\ndates = {a = ["year"]}',
            "features: 'a' becomes a_year: name those",
        ),
        ('label = "y"\n[columns]\nrename = {y = "z"}', "'y' is the label"),
        ('positive = "yes"', r"unknown key positive; did you mean positive in \[columns\]"),
    ],
)
def test_rules_of_columns_that_contradict_the_job_are_refused(text, said):
    with pytest.raises(InvalidJob, match=said):
        job_wire.decode(job_file.parse(f'strategy = "bagging"\n{text}'))


def test_rules_of_columns_that_a_silo_does_not_know_are_refused():
    spec = job_pb2.JobSpec(strategy="bagging")
    spec.columns.dates["day"].parts.append(99)
    with pytest.raises(InvalidJob, match="part number 99 is not known"):
        job_wire.decode(spec.SerializeToString())
    spec = job_pb2.JobSpec(strategy="bagging")
    spec.columns.dates["day"].MergeFromString(b"\x0a\x01\x01\x48\x05")
    with pytest.raises(InvalidJob, match="does not know"):
        job_wire.decode_known(spec.SerializeToString())


def test_every_sign_of_a_name_survives_the_file():
    name = "".join(map(chr, range(0, 0x180))) + "\u2028\U0001f333\\u0041"
    spec = job_pb2.JobSpec(name=name).SerializeToString(deterministic=True)
    assert job_file.parse(job_file.dump(spec)) == spec


def test_numbers_that_are_not_finite_survive_the_file():
    spec = job_pb2.JobSpec(booster={"eta": math.inf, "gamma": math.nan})
    again = job_pb2.JobSpec.FromString(
        job_file.parse(job_file.dump(spec.SerializeToString(deterministic=True)))
    )
    assert again.booster.eta == math.inf
    assert math.isnan(again.booster.gamma)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategys_message_has_the_fields_of_its_dataclass(name):
    parameters = {
        field.name.rstrip("_") for field in dataclasses.fields(strategy_of(name).parameters)
    }
    message = job_pb2.JobSpec.DESCRIPTOR.fields_by_name[name].message_type
    assert {field.name for field in message.fields} == parameters


def test_the_booster_message_has_the_fields_of_its_dataclass():
    booster = {field.name.rstrip("_") for field in dataclasses.fields(Booster)}
    assert {field.name for field in job_pb2.Booster.DESCRIPTOR.fields} == booster


@pytest.mark.parametrize("table", ["", "bagging", "booster"])
def test_a_parameter_of_a_newer_version_is_not_ignored(table):
    spec = job_pb2.JobSpec.FromString(job_file.parse(ADULT))
    newer = getattr(spec, table) if table else spec
    newer.MergeFromString(b"\xa0\x38\x01")  # field 900
    with pytest.raises(InvalidJob, match=f"{table or 'the job'} has parameters that this version"):
        job_wire.decode_known(spec.SerializeToString(deterministic=True))


def test_a_key_outside_of_all_tables_is_named_without_one():
    spec = job_file.parse('group_size = 2\nstrategy = "bagging"')
    with pytest.raises(InvalidJob, match=r"^group_size: expected 3 to 1000000, received 2$"):
        job_wire.decode(spec)


def test_errors_name_tables_that_files_have():
    fields = job_pb2.JobSpec.DESCRIPTOR.fields
    tables = {field.name for field in fields if field.message_type is not None}
    tables |= {"search", *AgentSettings.model_fields, *CoordinatorSettings.model_fields}
    named = {}
    for room in ("boosting", "client_agent", "coordinator", "services"):
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                for table in _tables_named(node):
                    named.setdefault(table, []).append(f"{file.name}:{node.lineno}")
    assert {"booster", "histogram", "warm_start"} <= named.keys()
    assert not {table: named[table] for table in named.keys() - tables}


def _tables_named(node):
    """Return the tables that an error's text, or a call that checks a range, names."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("within", "one_of"):
        first = node.args[0]
        return [first.value] if isinstance(first, ast.Constant) and first.value else []
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.findall(r"(?:^|[ ,;(])\[([a-z_]+)\](?=[ :,;.])", node.value)
    return []


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("num_clients_per_round", r"use silos_per_round in \[bagging\]"),
        ("num_trees", "use rounds in the strategy's table; of .fedxgbllr., trees"),
        ("boosting_strategy", r"use mode in \[secureboost\]"),
        ("normalized_lr", r"use lr_mode = .rows. in \[bagging\]"),
        ("pool_size", "use silos, a list of names"),
        ("num-local-round", "did you mean trees_per_round"),
        ("num_local_round", "did you mean trees_per_round"),
        ("goss_subsample", "use sampling = .goss., top_rate and other_rate in .secureboost."),
        ("pop_size", r"use population in \[fedga\]"),
        ("leaf_node_ratio", r"use leaf_share in \[fedga\]"),
        ("server_optimiser", r"of \[fedxgbllr\], removed"),
        ("zero_as_missing", r"use missing = 0 in \[columns\]"),
        ("min_sample_split", r"there is none; use min_leaf in \[secureboost\]"),
        ("validation_freqs", "every round is scored; use validation and early_stopping_rounds"),
    ],
)
@pytest.mark.parametrize("table", ["", "[bagging]\n", "[booster]\n"])
def test_names_of_the_sources_say_what_to_use_here(key: str, says: str, table: str) -> None:
    with pytest.raises(InvalidJob, match=f"unknown key .*{key}; .*{says}"):
        job_file.parse(f'strategy = "bagging"\n{table}{key} = 1\n')


def test_what_the_hints_name_is_there() -> None:
    for said in job_file._ELSEWHERE_CALLED.values():
        tables = re.findall(r"\[(\w+)\]", said)
        keys = {key for table in ("", "bagging", *tables) for key in job_file.keys(table)}
        said = re.sub(r"\[\w+\]|\"\w+\"", "", said)
        used = re.findall(r"\b(\w+_\w+|mode|silos|sampling|population|rounds)\b", said)
        assert used or "none" in said
        assert set(used) <= keys


def test_monotone_constraints_by_name_are_lists_of_features() -> None:
    spec = job_file.parse(
        'strategy = "bagging"\n[booster]\nincreasing = ["a"]\n'
        "monotone_constraints = {b = 1, c = -1, d = 0}"
    )
    booster = job_wire.decode(spec).booster
    assert (booster.increasing, booster.decreasing) == (("a", "b"), ("c",))
    assert booster.monotone_constraints == ()
    assert job_file.parse(job_file.dump(spec)) == spec
    for keys, says in (
        ("monotone_constraints = {b = 2}", "monotone_constraints.b: expected -1, 0 or 1, received"),
        ('monotone_constraints = {b = "up"}', "monotone_constraints.b: expected -1, 0 or 1"),
        ("monotone_constraints = {b = true}", "monotone_constraints.b: expected -1, 0 or 1"),
        ('increasing = ["b"]\ndecreasing = ["b"]', "'b' is there twice"),
        ('monotone_constraints = {b = 1}\nincreasing = ["b"]', "'b' is there twice"),
        ('monotone_constraints = [1]\nincreasing = ["b"]', "expected none beside increasing"),
    ):
        with pytest.raises(InvalidJob, match=says):
            job_wire.decode(job_file.parse(f'strategy = "bagging"\n[booster]\n{keys}'))


def test_interaction_constraints_are_groups_of_names() -> None:
    spec = job_file.parse(
        'strategy = "histogram"\n[booster]\ninteraction_constraints = [["a", "b"], ["c"]]'
    )
    assert job_wire.decode(spec).booster.interaction_constraints == (("a", "b"), ("c",))
    assert job_file.parse(job_file.dump(spec)) == spec
    for groups in ('[["a", "a"]]', '[["a"], []]'):
        text = f'strategy = "histogram"\n[booster]\ninteraction_constraints = {groups}'
        with pytest.raises(InvalidJob, match=r"interaction_constraints\[[01]\]: expected features"):
            job_wire.decode(job_file.parse(text))
