"""`make mutations`: its mutations fit the code and the tests, and its verdicts are right."""

from pathlib import Path

import pytest

from tests.mutations.copies import SourceCopy
from tests.mutations.mutation import Mutation, problems
from tests.mutations.repertoire import AREAS, FOLDER, repertoire
from tests.mutations.runs import Outcome, judge, run_mutated
from tests.support.processes import PROJECT, SOURCE_ROOTS

EXAMPLE = Mutation("one-for-two", "one.py", "ONE = 1", "ONE = 2", ("test_one.py::test_one",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text("ONE = 1\n")
    (tmp_path / "test_one.py").write_text("def test_one() -> None: ...\n")
    return tmp_path


def test_each_mutation_fits_the_code_and_names_tests_that_exist() -> None:
    """One that fits no more is to be changed with the code: its tests would show nothing."""
    assert problems(repertoire(), PROJECT) == []


def test_mutations_are_made_in_the_product_alone() -> None:
    assert {each.file.split("/")[0] for each in repertoire()} <= set(SOURCE_ROOTS)


def test_every_file_of_mutations_is_read() -> None:
    assert sorted(AREAS) == sorted(file.stem for file in FOLDER.glob("*.toml"))


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (Mutation("gone", "two.py", "1", "2", ("test_one.py",)), "there is no file two.py"),
        (Mutation("new", "one.py", "TWO", "2", ("test_one.py",)), "occurs 0 times"),
        (Mutation("twice", "one.py", " ", "", ("test_one.py",)), "occurs 2 times"),
        (Mutation("same", "one.py", "1", "1", ("test_one.py",)), "the new text is the old one"),
        (Mutation("file", "one.py", "1", "2", ("test_two.py",)), "there is no test test_two.py"),
        (Mutation("node", "one.py", "1", "2", ("test_one.py::test_on",)), "there is no test"),
        (Mutation("none", "one.py", "1", "2", ()), "no test is named"),
    ],
    ids=lambda value: value.name if isinstance(value, Mutation) else "",
)
def test_what_does_not_fit_is_said_by_name(tree: Path, mutation: Mutation, said: str) -> None:
    [problem] = problems((mutation,), tree)
    assert problem.startswith(f"{mutation.name}: ")
    assert said in problem


@pytest.mark.parametrize(
    ("status", "output", "fate", "detail"),
    [
        (1, "FAILED test_one.py::test_one - assert 1 == 2", "caught", "test_one.py::test_one"),
        (1, "___ ERROR at teardown of test_one ___\nERROR t.py::o - x", "caught", "t.py::o"),
        (1, "___ ERROR at setup of test_one ___\nERROR t.py::o - x", "not told", "t.py::o"),
        (1, "+++++ Timeout +++++", "timed out", "longer than it may"),
        (1, "FAILED t.py::o - Failed: Timeout (>120.0s)", "timed out", "t.py::o"),
        (0, "2 passed in 1.0s", "not caught", ""),
        (5, "no tests ran", "not told", "pytest ended with 5"),
        (None, "", "timed out", "no end within 3 s"),
    ],
)
def test_a_mutation_is_caught_by_a_test_that_fails_alone(
    status: int | None, output: str, fate: str, detail: str
) -> None:
    outcome = judge(EXAMPLE, status, output, 3.0)
    assert outcome.fate == fate
    assert detail in outcome.detail
    assert outcome.caught == (fate in ("caught", "timed out"))
    assert str(outcome).startswith("one-for-two: ")


def test_a_mutation_is_made_in_the_copy_and_taken_back(tree: Path) -> None:
    file = tree / "one.py"
    before = file.stat().st_mtime_ns
    with SourceCopy(tree).mutated(EXAMPLE):
        assert file.read_text() == "ONE = 2\n"
    assert file.read_text() == "ONE = 1\n"
    assert file.stat().st_mtime_ns == before


def test_each_mutation_is_run_alone_and_told_as_it_ends(tree: Path) -> None:
    (tree / "one.py").write_text("ONE = 1\nTWO = 2\n")
    (tree / "test_one.py").write_text("import one\n\n\ndef test_one():\n    assert one.ONE == 1\n")
    missed = Mutation("not-noticed", "one.py", "TWO = 2", "TWO = 3", EXAMPLE.tests)
    endless = Mutation("without-end", "one.py", "ONE = 1", "while True: pass", EXAMPLE.tests)
    told: list[Outcome] = []
    copies = [SourceCopy(tree)]
    outcomes = run_mutated(copies, [EXAMPLE, missed], told.append)
    outcomes += run_mutated(copies, [endless], told.append, time_out_s=1.0)
    assert outcomes == told
    assert [(each.mutation.name, each.fate) for each in outcomes] == [
        ("one-for-two", "caught"),
        ("not-noticed", "not caught"),
        ("without-end", "timed out"),
    ]
    assert (tree / "one.py").read_text() == "ONE = 1\nTWO = 2\n"
