"""Rounds at every stage, played once and copied, and what a refusal must be like."""

from dataclasses import replace

import pytest
from rounds import RECIPES, Round, Stages, assert_one_error, call, contents, leftovers

# more than (5+1)/2 users confirm
CONFIRMING = {"sealed": True, "confirm": True, "survivors": 4, "masking": (1, 2, 3, 4, 5), "answering": (1, 2, 3, 4)}
both = pytest.mark.parametrize("construction", ["permutation", "moments"])


@pytest.fixture(scope="session")
def stages(tmp_path_factory):
    """The stages of a round with this recipe; another name gives another session."""
    made = {}

    def get(recipe):
        if recipe not in made:
            made[recipe] = Stages(recipe, tmp_path_factory.mktemp(recipe.name))
        return made[recipe]

    return get


@pytest.fixture
def construction():
    """The paper's, unless a test is for both."""
    return "permutation"


@pytest.fixture
def round_at(stages, construction, tmp_path):
    """round_at("masked"): a copy of a round up to that stage. Changes to the recipe come by name."""

    def at(stage, folder="round", **changes):
        return stages(replace(RECIPES[construction], **changes)).copy(stage, tmp_path / folder)

    return at


@pytest.fixture
def new_round(construction, tmp_path):
    """new_round(spare=1): a round that is not even started."""

    def make(folder="round", **changes):
        recipe = replace(RECIPES[construction], **changes)
        return Round(recipe, tmp_path / folder, tmp_path / f"{folder}-inputs").prepare()

    return make


@pytest.fixture
def refuses(tmp_path):
    """refuses(65, "decode", folder): that exit code, one clear error, and nothing changed anywhere."""

    def check(code, *args):
        before = contents(tmp_path)
        result = call(*args)
        assert result.code == code, result
        assert_one_error(result)
        assert leftovers(tmp_path) == []
        assert contents(tmp_path) == before
        return result

    return check
