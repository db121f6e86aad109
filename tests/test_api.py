"""The library in a notebook: reprs of a few lines, and help that names every argument."""

import inspect
import re
from itertools import chain
from pathlib import Path
from typing import get_args, get_type_hints

import click
import numpy as np
import pytest
from deterministic import drawn_from

import topk_secagg as ts
from topk_secagg import errors
from topk_secagg.brief import laid_out, shown
from topk_secagg.protocol.parameters import CONSTRUCTIONS, DEALINGS
from topk_secagg.rounds.arguments import SELECTIONS, SOURCES

FUNCTIONS = [name for name in ts.__all__ if inspect.isfunction(getattr(ts, name))]
MOST_LINES = 18
WIDEST = 120


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A round with forty users, so that lists are long, and its report."""
    folder = tmp_path_factory.mktemp("finished")
    files = []
    for n in range(40):
        files.append(folder / f"{n}.npz")
        values = np.random.default_rng(n).uniform(-1, 1, 300)
        np.savez(files[-1], **{f"layer{i}": part for i, part in enumerate(np.split(values, 30))})
    options = {"survivors": 30, "colluders": 2, "top_k": 10, "construction": "sketch"}
    report = ts.run(folder / "round", files, **options)
    return report.round, report


def test_reprs_are_a_few_lines(finished):
    space, report = finished
    gradients = [np.random.default_rng(n).uniform(-1, 1, 5000) for n in range(40)]
    result = ts.aggregate(gradients, survivors=30, colluders=2, top_k=10, residuals={})
    things = [
        space,
        space.session,
        space.session.parameters,
        report,
        report.masked[0],
        report.answered[0],
        report.decoded,
        report.started,
        result,
        result.costs,
        ts.plan(users=40, survivors=30, colluders=2, top_k=10, length=300),
        ts.audit(space),
        ts.status(space),
        ts.log(space),
        ts.inspect(space.session_path),
        ts.inspect(space.aggregate_path),
        ts.forget(space, 1),
    ]
    for thing in things:
        lines = repr(thing).splitlines()
        assert lines[0].startswith(type(thing).__name__)
        assert len(lines) <= MOST_LINES, repr(thing)
        assert max(map(len, lines)) <= WIDEST, repr(thing)


def test_a_repr_says_what_matters_and_not_what_was_sent(finished):
    space, report = finished
    assert space.session.fingerprint in repr(space)
    assert "N 40, U 30, T 2, D 28, K 10" in repr(space)
    assert "masked=[40 x MaskReport]" in repr(report)
    result = ts.aggregate([np.full(9, 0.123)] * 3, survivors=2, colluders=1, top_k=9, clip=1.0)
    assert "total=<float64 array (9,)>" in repr(result)
    assert "0.123" not in repr(result)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_residuals_go_into_the_next_round_as_they_are(kind):
    """They are in float64, so that nothing is lost, and the gradients need not be."""
    rng = np.random.default_rng(0)
    gradients = [
        {"w": rng.uniform(-1, 1, 40).astype(kind), "b": np.ones(2, kind)} for _ in range(4)
    ]
    options = {"survivors": 3, "colluders": 1, "top_k": 4}
    first = ts.aggregate(gradients, **options, residuals={})
    second = ts.aggregate(gradients, **options, residuals=first.residuals, clip=4.0)
    everything = sum(first.total["w"] + second.total["w"])
    kept = sum(sum(residual["w"]) for residual in second.residuals.values())
    wanted = 2 * sum(float(value) for gradient in gradients for value in gradient["w"])
    assert everything + kept == pytest.approx(wanted, abs=0.05 if kind == "float16" else 1e-4)


def test_a_folder_without_a_round_has_a_repr(tmp_path):
    assert repr(ts.Workspace(tmp_path / "none")) == laid_out(
        "Workspace", [repr(str(tmp_path / "none"))]
    )


def test_values_in_a_repr_are_short():
    assert shown(np.zeros((2, 3), np.float32)) == "<float32 array (2, 3)>"
    assert shown(list(range(1000))).endswith(", ... 1000 in all]")
    assert len(shown("x" * 1000)) < 100


def arguments_of(function):
    """The names of a function's arguments, with those of the options that it hands on."""
    names = []
    for name, one in inspect.signature(function).parameters.items():
        if one.kind == one.VAR_KEYWORD:
            (handed_on,) = get_args(get_type_hints(function)[name])
            names += get_type_hints(handed_on)
        else:
            names.append(name)
    return names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_names_every_argument(name):
    function = getattr(ts, name)
    names = arguments_of(function)
    described = re.findall(r"^(\w+): ", inspect.getdoc(function), re.MULTILINE)
    assert [one for one in names if one not in described] == []
    assert set(described) <= set(names)


def test_help_of_the_parameters_names_every_argument():
    described = re.findall(r"^(\w+): ", inspect.getdoc(ts.Parameters.choose), re.MULTILINE)
    assert described == list(inspect.signature(ts.Parameters.choose).parameters)


# how a command prints, which is no business of its function
OF_THE_CALL = {"json", "quiet", "verbose", "help_all"}
# options that are called otherwise in Python
RENAMED = {"round_folder": "round", "from": "from_", "files": "file"}
# options that only the command has
ONLY_OPTIONS = {
    "offline": {"jobs"},  # for several users in one call
    "mask": {"jobs", "gradients"},
    "eliminate": {"jobs"},
    "run": {"more"},  # files after the first one that --gradients names
    "plan": {"plot"},
    "log": {"csv"},  # how it prints
}
# arguments that no option stands for
ONLY_ARGUMENTS = {
    "offline": {"progress"},
    "eliminate": {"progress"},
    "decode": {"progress"},
    "audit": {"progress", "program"},
    "status": {"waiting"},
    "run": {"progress", "started"},
    "plan": {"measure_in"},
}


def all_commands() -> dict[str, click.Command]:
    """Every command by its name; each is loaded when it is asked for."""
    from topk_secagg_cli.main import cli

    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    assert len(found) >= 14
    return found


def test_every_command_is_a_function_with_the_same_options():
    commands = all_commands()
    assert set(commands) <= set(FUNCTIONS)
    for name, command in commands.items():
        options = {str(option.name) for option in command.params} - OF_THE_CALL
        options = {RENAMED.get(option, option) for option in options}
        arguments = set(arguments_of(getattr(ts, name)))
        assert options - arguments == ONLY_OPTIONS.get(name, set()), name
        assert arguments - options == ONLY_ARGUMENTS.get(name, set()), name


def test_options_and_arguments_have_the_same_defaults():
    compared = set()
    for name, command in all_commands().items():
        parameters = inspect.signature(getattr(ts, name)).parameters
        for option in command.params:
            argument = parameters.get(str(option.name))
            if argument is not None and type(option.default) in (str, float) and option.default:
                assert option.default == argument.default, (name, option.name)
                compared.add((name, option.name))
    assert {("mask", "weight"), ("mask", "select"), ("offline", "randomness")} <= compared


def test_options_take_the_words_that_the_library_knows():
    """They are spelled twice: `--help` loads nothing of the library."""
    known = {
        "construction": CONSTRUCTIONS,
        "dealing": tuple(dict.fromkeys(chain.from_iterable(DEALINGS.values()))),
        "randomness": SOURCES,
        "select": SELECTIONS,
    }
    asked = {
        (option.name, tuple(sorted(option.type.choices)))
        for command in all_commands().values()
        for option in command.params
        if isinstance(option.type, click.Choice)
    }
    assert asked == {(name, tuple(sorted(words))) for name, words in known.items()}


def test_all_kinds_of_errors_and_all_reports_are_exported():
    kinds = {
        name
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, Exception)
    }
    assert kinds <= set(ts.__all__)
    for name in FUNCTIONS:
        if name != "run_round":
            returned = get_type_hints(getattr(ts, name))["return"]
            assert getattr(ts, returned.__name__) is returned, name


SMALL = {"survivors": 3, "colluders": 1, "top_k": 3}


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Four gradients in memory and in files of the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradients").mkdir()
    gradients = [np.random.default_rng(n).uniform(-1, 1, 12) for n in range(1, 5)]
    for n, gradient in enumerate(gradients, start=1):
        np.save(f"gradients/user-{n}.npy", gradient)
    return gradients


def test_a_whole_round_by_strings(saved):
    lines = [ts.keygen(n, "mine").line() for n in range(1, 5)]
    Path("keys.txt").write_text("\n".join(lines))
    options = {**SMALL, "top_k": 12}
    started = ts.init("r", users=4, length=12, recipients="keys.txt", confirm=True, **options)
    assert started.written
    assert not ts.init(
        "r", users=4, length=12, recipients="keys.txt", confirm=True, **options
    ).written
    pins = {"session": started.round.session.id, "recipients": "keys.txt", "secrets": "mine"}
    own = {n: {**pins, "identity": f"mine/user-{n:02}.identity"} for n in range(1, 5)}
    for n in own:
        ts.offline("r", n, **own[n])
    for n in own:
        ts.mask("r", n, f"gradients/user-{n}.npy", feedback=True, **own[n])
    assert ts.freeze("r", [1, 2, 3, 4], **own[1]).survivors == [1, 2, 3, 4]
    for n in own:
        ts.confirm("r", n, **own[n])
    assert ts.status("r", 1, wait=0, **own[1]).next.step == "eliminate"
    for n in (1, 2, 3):
        ts.eliminate("r", n, **own[n])
    report = ts.decode("r", "sum.npy", **pins)
    assert np.array_equal(report.total, np.load("sum.npy"))
    assert report.total == pytest.approx(sum(saved), abs=1e-6)
    mean = ts.decode("r", mean=True, **pins).total
    assert np.array_equal(mean, report.total / 4)
    audited = ts.audit("r", identity=own[1]["identity"], report="page.html", **pins)
    assert audited.failed == []
    assert Path("page.html").exists()
    assert ts.inspect("r/aggregate.h5").intact
    assert ts.forget("r", 1, **own[1]).erased
    assert not Path("r/secrets").exists()
    with pytest.raises(ts.Refused):
        ts.mask("r", 1, "gradients/user-2.npy", **own[1])


def test_next_rounds_start_like_another(saved):
    ts.run("first", "gradients", **SMALL)
    follower = ts.init("second", from_="first", clip_from_sum=2)
    other = ts.Workspace(Path("first")).session.parameters
    assert follower.round.session.parameters.top_k == other.top_k
    with pytest.raises(ts.UsageError, match="users comes from the other round"):
        ts.init("third", from_="first", users=5)
    assert ts.init("third", from_="first", top_k=3).round.session.parameters.top_k == 3
    with pytest.raises(ts.UsageError, match="none is given"):
        ts.init("third", users=4, length=12, clip_from_sum=2, **SMALL)


def test_run_starts_a_round_from_nothing_and_resumes_it(saved):
    started = []
    report = ts.run("r", "gradients", **SMALL, drop_elimination=[4], started=started.append)
    assert started == [report.started]
    assert report.started.written
    p = report.round.session.parameters
    assert (p.users, p.length) == (4, 12)
    assert report.round.session.clips == (max(abs(g).max() for g in saved),)
    assert report.decoded.answering == [1, 2, 3]
    assert np.count_nonzero(report.total) == report.decoded.nonzero
    again = ts.run("r", "gradients", **SMALL, drop_elimination=[4])
    assert not again.started.written
    assert np.array_equal(again.total, report.total)
    as_it_is = ts.run("r", [f"gradients/user-{n}.npy" for n in range(1, 5)], drop_elimination=[4])
    assert as_it_is.started is None
    assert np.array_equal(as_it_is.total, report.total)
    with pytest.raises(ts.Refused, match="top_k is 3 there and 4 here"):
        ts.run("r", "gradients", **{**SMALL, "top_k": 4})


@pytest.mark.parametrize("construction", ["permutation", "sketch"])
@pytest.mark.parametrize("how", [{"randomness": "os"}, {"strip_prefix": "module."}])
def test_run_resumes_a_round_with_weights(saved, construction, how):
    weights = {1: 1.0, 2: 2.0, 3: 0.5, 4: 1.0}
    report = ts.run("r", "gradients", **SMALL, **how, construction=construction, weights=weights)
    assert report.round.session.parameters.max_weight == 2.0
    as_it_is = ts.run("r", "gradients", **how, weights=weights)
    assert as_it_is.started is None
    assert np.array_equal(as_it_is.total, report.total)


@pytest.mark.parametrize("form", [list, lambda all: dict(enumerate(all, start=1))])
def test_run_takes_gradients_in_memory(saved, form):
    with drawn_from(7):
        by_files = ts.run("files", "gradients", **SMALL)
    weights = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    with drawn_from(7):
        in_memory = ts.run("memory", form(saved), **SMALL, weights=weights)
    assert in_memory.files == {}
    assert np.array_equal(in_memory.total, by_files.total)
    for user in range(1, 5):
        one = by_files.round.masked_path(user).read_bytes()
        assert in_memory.round.masked_path(user).read_bytes() == one


def test_run_without_what_a_round_needs_says_so_and_leaves_nothing(saved):
    with pytest.raises(ts.UsageError, match="survivors is not given"):
        ts.run("r", "gradients", colluders=1, top_k=3)
    with pytest.raises(ts.UsageError, match="there is no option 'topk'"):
        ts.run("r", "gradients", survivors=3, colluders=1, topk=3)
    with pytest.raises(ts.UsageError, match="3 gradients for 4 users"):
        ts.run("r", saved[:3], users=4, **SMALL)
    with pytest.raises(ts.UsageError, match="there is no user 5 to drop out"):
        ts.run("r", saved, drop_masking=[5], **SMALL)
    with pytest.raises(ts.TooFewSurvivors):
        ts.run("r", saved, drop_masking=[3, 4], **SMALL)
    assert not Path("r/session.json").exists()


def test_a_number_of_a_user_that_is_a_text_is_shown_as_one(saved):
    """Once it was: there is no user 1, users are 1 to 3."""
    ts.init("r", users=3, length=3, **SMALL)
    with pytest.raises(ts.UsageError, match="there is no user '1' in this round"):
        ts.offline("r", "1")


def arrays(rng):
    return {"w": rng.uniform(-1, 1, (2, 4)).astype(np.float32), "b": rng.uniform(-1, 1, 3)}


@pytest.mark.parametrize("form", ["npy", "npz", "fortran", "big-endian", "list"])
@pytest.mark.parametrize("construction", ["permutation", "sketch"])
def test_mask_makes_the_same_x_of_arrays_and_of_files(tmp_path, form, construction):
    rng = np.random.default_rng(1)
    gradient = {
        "npy": lambda: rng.uniform(-1, 1, 12),
        "npz": lambda: arrays(rng),
        "fortran": lambda: np.asfortranarray(rng.uniform(-1, 1, (3, 4))),
        "big-endian": lambda: rng.uniform(-1, 1, 12).astype(">f4"),
        "list": lambda: rng.uniform(-1, 1, 12).tolist(),
    }[form]()
    file = tmp_path / ("g.npz" if form == "npz" else "g.npy")
    if form == "npz":
        np.savez(file, **gradient)
    else:
        np.save(file, gradient)
    options = {"users": 4, **SMALL, "construction": construction}
    reports = {}
    for name, given in {"file": str(file), "memory": gradient}.items():
        with drawn_from(7):
            space = ts.init(tmp_path / name, like=given, **options).round
            for n in range(1, 5):
                ts.offline(space, n)
            reports[name] = ts.mask(space, 1, given, feedback=True, weight=0.5)
    by_file = tmp_path / "file"
    by_memory = tmp_path / "memory"
    for path in ("session.json", "masked/user-01.h5", "secrets/user-01.residual.h5"):
        assert (by_file / path).read_bytes() == (by_memory / path).read_bytes(), path
    assert reports["file"].sha256 == reports["memory"].sha256
    assert reports["file"].kept_energy == reports["memory"].kept_energy
    # the same gradient again, in the other form, is the same X; another one is refused
    again = ts.mask(by_memory, 1, file, feedback=True, weight=0.5)
    assert again.sha256 == reports["file"].sha256
    other = (
        {name: -part for name, part in gradient.items()} if form == "npz" else -np.array(gradient)
    )
    with pytest.raises(ts.Refused, match="already masked another input"):
        ts.mask(by_memory, 1, other, feedback=True, weight=0.5)


BAD_GRADIENTS = {
    "not finite": (np.array([np.nan] * 12), ts.BadData, "12 values that are not finite"),
    "another length": (np.zeros(11), ts.BadData, "has shape"),
    "no numbers": (np.array(["a"] * 12), ts.BadData, "array of type <U1"),
    "too many bits": (np.zeros(12, complex), ts.BadData, "array of type complex128"),
    "beyond the clip": (np.full(12, 2.0), ts.BadData, "beyond the clip"),
}


@pytest.mark.parametrize("case", BAD_GRADIENTS)
def test_mask_refuses_arrays_that_it_would_refuse_in_files(tmp_path, case):
    gradient, kind, words = BAD_GRADIENTS[case]
    space = ts.init(tmp_path / "r", users=4, length=12, **SMALL).round
    for n in range(1, 5):
        ts.offline(space, n)
    np.save(tmp_path / "g.npy", gradient)
    for given in (gradient, str(tmp_path / "g.npy")):
        with pytest.raises(kind, match=words):
            ts.mask(space, 1, given)
    assert not space.masked_path(1).exists()
    with pytest.raises(ts.UsageError, match="for gradient files"):
        ts.mask(space, 1, np.zeros(12), strip_prefix="module.")


def test_the_sum_has_the_form_of_the_gradients(tmp_path):
    rng = np.random.default_rng(2)
    mappings = [arrays(rng) for _ in range(4)]
    report = ts.run(tmp_path / "mapping", mappings, **{**SMALL, "top_k": 11})
    assert {name: part.shape for name, part in report.total.items()} == {"w": (2, 4), "b": (3,)}
    for name in ("w", "b"):
        total = sum(one[name].astype(float) for one in mappings)
        assert report.total[name] == pytest.approx(total, abs=1e-5)
    lists = [[one["w"], None, one["b"]] for one in mappings]
    total = ts.run(tmp_path / "list", lists, **{**SMALL, "top_k": 11}).total
    assert [None if part is None else part.shape for part in total] == [(2, 4), None, (3,)]


def test_paths_of_the_wrong_type_are_usage_errors(tmp_path):
    for call in (
        lambda: ts.offline(3, 1),
        lambda: ts.status(None),
        lambda: ts.init(tmp_path / "r", users=4, length=9, recipients=5, **SMALL),
        lambda: ts.inspect(1.5),
    ):
        with pytest.raises(ts.UsageError, match="not a path"):
            call()


def test_empty_paths_are_usage_errors_and_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ts.init("round", users=4, length=9, **SMALL)
    before = sorted(tmp_path.rglob("*"))
    for name, call in {
        "round": lambda: ts.init("", users=4, length=9, **SMALL),
        "recipients": lambda: ts.init("r", users=4, length=9, recipients="", **SMALL),
        "secrets": lambda: ts.offline("round", 1, secrets=""),
        "identity": lambda: ts.offline("round", 1, identity=b""),
        "output": lambda: ts.decode("round", output=""),
        "report": lambda: ts.audit("round", report=""),
        "file": lambda: ts.inspect(""),
    }.items():
        with pytest.raises(ts.UsageError, match=f"^{name} is an empty path"):
            call()
    assert sorted(tmp_path.rglob("*")) == before


def test_every_name_of_the_api_can_be_loaded_and_is_documented():
    for name in ts.__all__:
        assert getattr(ts, name).__doc__
