"""Rounds after every stage for all fault tests, made when they are first asked for."""

import pytest
from fault_lab import RECIPES, scratch
from played import Stages


@pytest.fixture(scope="session")
def benches():
    with scratch() as folder:

        class Benches(dict[str, Stages]):
            def __missing__(self, name):
                return self.setdefault(name, Stages(RECIPES[name], folder / name))

        yield Benches()
