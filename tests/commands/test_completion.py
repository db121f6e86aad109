"""Shell completion: what the documents say to put into a shell's start file, asked as each shell
asks."""

import os
import shutil

import pytest
from played import SCRIPT, process

# how a shell passes on the words before the cursor, and the word at it
ASKING = {
    "bash": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "zsh": lambda words: {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)},
    "fish": lambda words: {"COMP_WORDS": " ".join(words[:-1]), "COMP_CWORD": words[-1]},
}
# in every shell the same function by another name: it fills in what is at the cursor
IN_BASH = """
eval "$(_TOPK_SECAGG_COMPLETE=bash_source topk-secagg)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_topk_secagg_completion topk-secagg "${COMP_WORDS[$COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
IN_FISH = """
_TOPK_SECAGG_COMPLETE=fish_source topk-secagg | source
complete --do-complete "$argv"
"""
IN_ZSH = """
autoload -U compinit && compinit -u
eval "$(_TOPK_SECAGG_COMPLETE=zsh_source topk-secagg)"
print -- $_comps[topk-secagg]
"""


def asked(shell, mode, **more):
    """What the program answers a shell."""
    environment = {**os.environ, "_TOPK_SECAGG_COMPLETE": f"{shell}_{mode}", **more}
    end = process([SCRIPT], env=environment)
    assert (end.returncode, end.stderr) == (0, ""), end
    return end.stdout


def in_shell(shell, script, *words):
    """What a real shell finds; the program is on its path."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"
    separator = ["--"] if shell == "fish" else [shell]
    end = process([shell, "-c", script, *separator, *words], env={**os.environ, "PATH": path})
    assert end.returncode == 0, end
    return end.stdout.split()


@pytest.mark.parametrize("shell", ASKING)
class TestEveryShell:
    def test_the_script_defines_a_completion_of_the_program(self, shell):
        script = asked(shell, "source")
        assert "_topk_secagg_completion" in script
        assert f"_TOPK_SECAGG_COMPLETE={shell}_complete" in script

    @pytest.mark.parametrize(
        ("typed", "offered", "others"),
        [
            ("fre", {"freeze"}, {"forget", "mask"}),
            ("mask round --grad", {"--gradient", "--gradients"}, {"--user"}),
            ("init round --construction s", {"sketch"}, {"permutation"}),
        ],
    )
    def test_commands_options_and_choices_are_offered(self, shell, typed, offered, others):
        words = ["topk-secagg", *typed.split()]
        said = asked(shell, "complete", **ASKING[shell](words))
        found = {word for line in said.splitlines() for word in line.replace("\t", ",").split(",")}
        assert offered <= found
        assert not others & found


def test_bash_offers_them():
    assert in_shell("bash", IN_BASH, "topk-secagg", "fre") == ["freeze"]
    assert in_shell("bash", IN_BASH, "topk-secagg", "mask", "round", "--gradie") == [
        "--gradient",
        "--gradients",
    ]


def test_zsh_knows_the_completion():
    assert in_shell("zsh", IN_ZSH) == ["_topk_secagg_completion"]


def test_fish_offers_them():
    assert "freeze" in in_shell("fish", IN_FISH, "topk-secagg fre")
