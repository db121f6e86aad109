"""The documents: their examples run, and their links lead somewhere."""

import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from topk_secagg.gradients.layout import Layout
from topk_secagg.protocol.constructions import construction
from topk_secagg.protocol.messages import Secret
from topk_secagg.protocol.parameters import CONSTRUCTIONS, Parameters

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "docs/decisions", "experiments", "examples/flower")
DOCUMENTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.md"))


def test_the_examples_of_the_python_api_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    assert len(blocks) > 5
    exec(compile("\n".join(blocks), "docs/api.md", "exec"), {})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_that_exist(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), target
    for target in re.findall(
        r"`((?:tests|fixtures|benchmarks|workflows)/[\w./]+)`", path.read_text()
    ):
        assert (ROOT / target).exists(), target


def test_the_readme_works_in_every_clone_and_names_no_address_of_its_own():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    elsewhere = {target for target in targets if ":" in target}
    assert elsewhere == {"https://learn.microsoft.com/windows/wsl/install"}
    assert len(targets) > 20
    assert "[project.urls]" not in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_a_section_lead_to_one_that_exists(path):
    for file, section in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text()):
        target = path.parent / file if file else path
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
        assert section in anchors, (file, section)


def index_readme(*arguments):
    script = ROOT / "docs" / "index_readme.py"
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )


def test_for_a_package_index_all_links_are_absolute(tmp_path):
    """And they name files that exist, at the tag of the release."""
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    assert index_readme(tmp_path, "https://example.org/group/project/", "v1").returncode == 0
    before = (ROOT / "README.md").read_text()
    after = readme.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", after)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", before))
    base = "https://example.org/group/project"
    for target in targets:
        if not target.startswith(("https://learn.microsoft.com", "#")):
            kind, _, path = target.removeprefix(f"{base}/").partition("/v1/")
            assert kind == ("raw" if path.endswith((".svg", ".png")) else "blob")
            assert (ROOT / path.partition("#")[0]).exists(), target


def test_for_a_package_index_without_an_address_there_are_no_links_to_nowhere(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(
        "![a picture](x.svg)\n[words](docs/x.md#y), [kept](https://example.org), [h](#h)\n"
    )
    assert index_readme(tmp_path).returncode == 0
    assert readme.read_text() == "\nwords, [kept](https://example.org), [h](#h)\n"
    assert index_readme(tmp_path, "only an address").returncode != 0


def test_the_map_of_the_paper_leads_to_code_that_exists():
    """`package/module.py: name`, or `Class.name`."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    named = re.findall(r"`(\w+)/(\w+)\.py: ([\w.]+)`", text)
    assert len(named) > 20
    for package, module, name in named:
        attrgetter(name)(import_module(f"topk_secagg.{package}.{module}"))
    counts = {"users": 5, "survivors": 3, "colluders": 1, "top_k": 2, "length": 4}
    both = [construction(Parameters.choose(**counts, construction=name)) for name in CONSTRUCTIONS]
    owners = {
        type(one).__name__: one for one in (*both, both[0].p, Secret(None, None), Layout.flat(4))
    }
    owners["Construction"] = both[0]
    members = re.findall(rf"`({'|'.join(owners)})\.(\w+)`", text)
    assert len(members) > 20
    for owner, name in members:
        assert hasattr(owners[owner], name), f"{owner}.{name}"
