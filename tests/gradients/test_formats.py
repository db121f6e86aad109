"""The table of formats: what is read, written, said in help and said in hints follows from it."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from topk_secagg.errors import BadData, SecAggError, UsageError
from topk_secagg.gradients import formats
from topk_secagg.gradients.files import check_writable, read_gradient, write_gradient
from topk_secagg.gradients.formats import ELSEWHERE, FORMATS, any_of, suffixes_read
from topk_secagg.gradients.tensors import Gradient, Tensor

WRITTEN = [(one, suffix) for one in FORMATS for suffix in one.written]
ONES = Gradient([Tensor("w", "float32", np.ones((2, 3), np.float32))])


def test_no_suffix_belongs_to_two_formats():
    assert len(set(suffixes_read())) == len(suffixes_read())
    for one in FORMATS:
        assert set(one.written) <= set(one.suffixes)


@pytest.mark.parametrize(("one", "suffix"), WRITTEN, ids=lambda value: str(value)[:12])
def test_what_a_format_writes_it_reads(tmp_path, one, suffix):
    path = tmp_path / f"sum{suffix}"
    check_writable(path)
    with path.open("wb") as stream:
        write_gradient(stream, suffix, ONES)
    (tensor,) = read_gradient(path)
    assert tensor.array.reshape(-1).tolist() == [1.0] * 6
    again = io.BytesIO()
    write_gradient(again, suffix, ONES)
    assert again.getvalue() == path.read_bytes()


@pytest.mark.parametrize("suffix", suffixes_read())
@pytest.mark.parametrize("content", [b"", b"\x00", b"hello world", bytes(1000)])
def test_every_format_refuses_what_is_something_else_and_says_what_to_do(tmp_path, suffix, content):
    path = tmp_path / f"gradient{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"^\S+: ") as caught:
        read_gradient(path)
    assert caught.value.hint


@pytest.mark.parametrize("suffix", ELSEWHERE)
def test_a_format_that_is_not_read_says_what_to_save_instead(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.touch()
    with pytest.raises(UsageError, match=f"no reader for '{suffix}' files") as caught:
        read_gradient(path)
    assert "save" in caught.value.hint
    path.rename(path.with_suffix(".xyz"))
    with pytest.raises(UsageError) as caught:
        read_gradient(path.with_suffix(".xyz"))
    assert caught.value.hint == f"its name must end in {any_of(suffixes_read())}"


@pytest.fixture
def toy(monkeypatch):
    """A format as somebody would add it: a module, and an entry of the table."""
    module = ModuleType("topk_secagg.gradients.formats.toy")
    module.read = lambda path: Gradient([Tensor("toy", "float64", np.loadtxt(path, ndmin=1))])
    module.write = lambda stream, tensors: np.savetxt(stream, tensors[0].array)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    line = replace(FORMATS[0], module="toy", suffixes=(".toy",), written=(".toy",))
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, line))


def test_a_new_format_is_a_file_and_a_line(tmp_path, toy):
    from topk_secagg.rounds.user_files import gradient_files

    path = tmp_path / "user-01.toy"
    with path.open("wb") as stream:
        write_gradient(stream, ".toy", Gradient([Tensor("toy", "float64", np.array([1.5, -2.0]))]))
    assert read_gradient(path)[0].array.tolist() == [1.5, -2.0]
    check_writable(path)
    assert gradient_files([tmp_path]) == [path]
    for wrong in (read_gradient, check_writable):
        with pytest.raises(UsageError) as caught:
            wrong(tmp_path / "user.xyz")
        assert caught.value.hint.endswith("or .toy")


def test_twin_without_its_line_nobody_knows_the_format(tmp_path):
    path = tmp_path / "user-01.toy"
    path.write_text("1.5\n")
    with pytest.raises(SecAggError, match=r"no reader for '\.toy' files"):
        read_gradient(path)


def test_help_says_what_the_table_says():
    from topk_secagg_cli.main import cli

    shown = {}
    for name in ("mask", "decode"):
        command = cli.get_command(None, name)
        context = command.make_context(name, [], resilient_parsing=True)
        shown[name] = " ".join(command.get_help(context).split())
    assert any_of(suffixes_read()) in shown["mask"]
    assert any_of(formats.suffixes_written()) in shown["decode"]


def test_the_table_alone_loads_no_numpy():
    from played import python

    code = "import sys, topk_secagg.gradients.formats; print('numpy' in sys.modules)"
    assert python(code).stdout == "False\n"


def test_every_module_of_a_format_is_in_the_table():
    folder = Path(formats.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.name.startswith("torch_")}
    helpers = {"__init__", "malformed", "strict_json"}
    assert modules - helpers == {one.module for one in FORMATS}
