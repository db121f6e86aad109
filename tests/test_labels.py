"""Labels of one key are distinct, whatever varies in them."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from topk_secagg import labels

sessions = st.text("0123456789abcdef", min_size=1, max_size=4)
users = st.integers(1, 1024)
blocks = st.lists(users, min_size=1, max_size=4, unique=True).map(sorted)
OF_A_USER = st.one_of(
    st.sampled_from([labels.MASK, labels.PLACE, labels.SHARING, labels.SELECT]).map(
        lambda x: (x, x)
    ),
    st.integers(0, 99).map(lambda n: (("noise", n), labels.noise(n))),
    sessions.map(lambda s: (("rounding", s), labels.rounding(s))),
    st.tuples(sessions, users, blocks).map(lambda g: (("key", str(g)), labels.key(*g))),
)
OF_A_BLOCK = st.one_of(
    st.just(("next", labels.NEXT)),
    st.tuples(users, blocks).map(lambda g: (("commitment", str(g)), labels.commitment(*g))),
    st.tuples(sessions, users, blocks, sessions).map(
        lambda g: (("symbols", str(g)), labels.symbols(*g).encode())
    ),
)


@given(st.lists(OF_A_USER, max_size=6) | st.lists(OF_A_BLOCK, max_size=6))
def test_what_differs_has_another_label(drawn):
    for (one, label), (other, other_label) in combinations(drawn, 2):
        assert (one == other) == (label == other_label)


@given(st.lists(st.tuples(users, users, st.text(max_size=3)), max_size=4, unique=True))
def test_columns_of_bases_have_their_own_stream(drawn):
    assert len({labels.basis(*each) for each in drawn}) == len(drawn)
