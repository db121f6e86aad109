"""What `init` warns about, and a session that asks for more than a machine has."""

import resource
import subprocess
import sys

from rounds import must

from topk_secagg.steps import costs

_LIMIT = 3 << 30  # bytes of address space


def test_init_warns_if_one_honest_user_may_be_alone(tmp_path):
    options = ["--users", "4", "--colluders", "1", "--top-k", "2", "--length", "6", "--survivors"]
    assert "U = T + 1" in must("init", tmp_path / "a", *options, "2").err
    assert "U = T + 1" not in must("init", tmp_path / "b", *options, "3").err


def test_a_session_that_asks_for_more_memory_than_there_is_is_an_error_and_not_a_bug(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "free_bytes", lambda _: 1 << 80)
    options = ["--users", "3", "--survivors", "2", "--colluders", "1", "--top-k", "2", "--length", str(10**9)]
    must("init", tmp_path / "round", *options, "--construction", "permutation")
    call = [sys.executable, "-m", "topk_secagg_cli", "offline", str(tmp_path / "round"), "--user", "1"]
    ended = subprocess.run(
        call,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT)),
    )
    assert ended.returncode == 65, ended.stderr
    assert ended.stderr.startswith("topk-secagg: not enough memory\nhint: ")
    assert not list((tmp_path / "round").rglob("*.tmp"))
