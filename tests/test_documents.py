"""The documents: their examples run, and their links lead somewhere."""

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Secret
from topk_secagg.protocol.parameters import Parameters

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("experiments/*.md")])


def test_the_examples_of_the_python_api_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    assert len(blocks) > 5
    exec(compile("\n".join(blocks), "docs/api.md", "exec"), {})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_exist(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), target
    for target in re.findall(
        r"`((?:tests|fixtures|benchmarks|workflows)/[\w./]+)`", path.read_text()
    ):
        assert (ROOT / target).exists(), target


def test_the_map_of_the_paper_leads_to_code_that_exists():
    """`package/module.py: name`, or `Class.name`."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    named = re.findall(r"`(\w+)/(\w+)\.py: ([\w.]+)`", text)
    assert len(named) > 20
    for package, module, name in named:
        attrgetter(name)(import_module(f"topk_secagg.{package}.{module}"))
    counts = {"users": 5, "survivors": 3, "colluders": 1, "top_k": 2, "length": 4}
    moments = construction(Parameters.choose(**counts, construction="moments"))
    owners = {
        type(one).__name__: one for one in (moments, moments.p, Secret(None, None), Layout.flat(4))
    }
    owners["Permutation"] = owners["Construction"] = construction(Parameters.choose(**counts))
    members = re.findall(rf"`({'|'.join(owners)})\.(\w+)`", text)
    assert len(members) > 20
    for owner, name in members:
        assert hasattr(owners[owner], name), f"{owner}.{name}"
