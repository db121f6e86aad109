"""Help: the options of a first round, or all; and options that are given twice."""

import re

import pytest
from played import call, must
from topk_secagg_cli.main import HOMES, cli

SIZES = ["top-k", "density", "rank", "whole"]  # one of them
REQUIRED = {
    "init": ["users", "survivors", "colluders", *SIZES, "like", "length"],
    "run": ["gradients", "survivors", "colluders", *SIZES],
    "plan": ["users", "survivors", "colluders", *SIZES, "like", "length"],
    "mask": ["user", "gradient", "gradients"],
    "offline": ["user"],
    "confirm": ["user"],
    "eliminate": ["user"],
    "forget": ["user"],
    "keygen": ["user", "secrets"],
}
COMMANDS = list(HOMES)


def shown(*args):
    """The options that a help shows, with what it says of each."""
    text = must(*args).out
    found = re.findall(r"^  (?:-\w, )?--([\w-]+)(.*(?:\n {10,}.*)*)", text, re.MULTILINE)
    return {option: " ".join(about.split()) for option, about in found}


def options_of(name):
    """The options of a command: each as it is typed, and the option itself."""
    command = cli.get_command(None, name)
    options = [one for one in command.params if one.param_type_name == "option"]
    return {max(option.opts, key=len): option for option in options}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_all_shows_every_option_and_help_those_of_a_first_round(name):
    first, everything = shown(name, "--help"), shown(name, "--help-all")
    assert {f"--{option}" for option in everything} == {*options_of(name), "--help"}
    assert first.items() <= everything.items()
    assert {"json", "quiet", "verbose", "help-all", "help"} <= set(first)
    assert not {"session", "series", "from", "identity", "again"} & set(first)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("how", ["--help", "--help-all"])
def test_help_marks_what_is_required_and_has_an_example(name, how):
    """Every option without which a command fails with its usage, with its alternative."""
    marked = [option for option, about in shown(name, how).items() if "[required" in about]
    assert sorted(marked) == sorted(REQUIRED.get(name, []))
    assert f"Example:\n    topk-secagg {name} " in must(name, how).out


def test_help_of_a_first_round_is_much_shorter():
    assert len(shown("run", "--help")) < len(shown("run", "--help-all")) / 2


def given(option):
    """An option with a value of its type, as words."""
    if option.is_flag:
        return [max(option.opts, key=len)]
    choices = getattr(option.type, "choices", ["3"])
    return [max(option.opts, key=len), choices[0]]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_given_twice_is_refused(refuses, name):
    for spelled, option in options_of(name).items():
        twice = [name, *given(option), *given(option)]
        if option.multiple:
            assert "twice" not in call(*twice).err
        elif spelled != "--help-all":  # which answers at once
            refuses(2, *twice, says=f"option '{spelled}' is given twice")


def test_a_short_name_counts_as_the_same_option(refuses):
    refuses(2, "status", "round", "-q", "--quiet", says="option '--quiet' is given twice")


@pytest.mark.parametrize(
    ("typed", "meant"), [("rnu", "run"), ("mak", "mask"), ("aduit", "audit"), ("frezee", "freeze")]
)
def test_a_command_with_a_slip_is_suggested(refuses, typed, meant):
    refuses(2, typed, says=f"hint: did you mean {meant}? see")
