"""The pins of everybody who reads a round: a store that makes up a round with keys of its own is
refused."""

import re
import shutil

import pytest
from played import Round, call, contents, document, must

import topk_secagg as ts
from topk_secagg.errors import Refused

READERS = ("decode", "forget", "status", "audit")
PINS = ("TOPK_SECAGG_SESSION", "TOPK_SECAGG_RECIPIENTS")


def reader_of(r: Round, command: str) -> tuple[object, ...]:
    """A command that reads a finished round."""
    if command == "forget":
        return r.forget(1)
    return r.status() if command == "status" else (command, r.folder)


@pytest.fixture
def honest(round_at):
    """The round that everybody knows, finished but for decoding."""
    return round_at("answered", sealed=True, residual=True)


@pytest.fixture
def forged(round_at):
    """A round of the store alone: keys, gradients and answers of its own, all of it sound."""
    return round_at("answered", "forged", name="forged", sealed=True, residual=True)


def name_of(r: Round) -> str:
    return ts.Workspace(r.folder).session.id


class TestTheSession:
    @pytest.mark.parametrize("command", READERS)
    def test_another_session_than_the_pinned_one_is_refused(
        self, honest, refuses, monkeypatch, command
    ):
        name = name_of(honest)
        args = reader_of(honest, command)
        for pin in ("0" * 16, "f" * 64):
            said = refuses(77, *args, "--session", pin).err
            assert f"this is session {name[:16]}, not {pin[:16]}\n" in said
            assert "TOPK_SECAGG_SESSION holds for one round, and --series or TOPK" in said
        for pin in (name[:15], "", "x" * 16):
            assert "give at least 16" in refuses(2, *args, "--session", pin).err
        monkeypatch.setenv("TOPK_SECAGG_SESSION", "0" * 64)
        assert "this is session" in refuses(77, *args).err
        monkeypatch.setenv("TOPK_SECAGG_SESSION", name[:16].upper())
        assert f"session {name[:16]}" in must(*args).out

    @pytest.mark.parametrize("place", [15, 16, 20, 63])
    def test_a_wrong_digit_is_shown_wherever_it_is(self, honest, refuses, place):
        """Once both were cut off before it: "this is session X, not X"."""
        name = name_of(honest)
        wrong = name[:place] + ("0" if name[place] != "0" else "1") + name[place + 1 :]
        for pin in (wrong, wrong[: place + 1], wrong.upper()):
            said = refuses(77, "status", honest.folder, "--session", pin).err
            shown = place + 1
            assert f"this is session {name[:shown]}, not {wrong[:shown]}\n" in said

    def test_freeze_and_confirm_print_it_too(self, round_at):
        r = round_at("frozen", sealed=True)
        assert f"session {name_of(r)[:16]}" in must(*r.freeze()).out


class TestTheKeys:
    @pytest.mark.parametrize("command", READERS)
    def test_other_keys_than_the_pinned_ones_are_refused(
        self, honest, forged, refuses, monkeypatch, command
    ):
        args = reader_of(forged, command)
        mine = honest.recipients
        assert "other keys for user 1" in refuses(77, *args, "--recipients", mine).err
        monkeypatch.setenv("TOPK_SECAGG_RECIPIENTS", str(mine))
        assert "other keys for user 1" in refuses(77, *args).err
        must(*args, "--recipients", forged.recipients)  # the option wins
        must(*reader_of(honest, command))

    @pytest.mark.parametrize("command", READERS)
    def test_a_round_without_keys_is_refused(self, honest, round_at, refuses, command):
        plain = round_at("answered", "plain", residual=True)
        args = reader_of(plain, command)
        assert "no keys" in refuses(77, *args, "--recipients", honest.recipients).err

    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate"])
    def test_the_variable_holds_for_the_steps_of_users_too(
        self, honest, forged, refuses, monkeypatch, step
    ):
        monkeypatch.setenv("TOPK_SECAGG_RECIPIENTS", str(honest.recipients))
        assert "other keys for user 1" in refuses(77, *forged.step(step)).err
        must(*honest.step(step))

    def test_init_and_run_never_take_keys_from_the_variable_and_say_so(
        self, new_round, honest, monkeypatch
    ):
        monkeypatch.setenv("TOPK_SECAGG_RECIPIENTS", str(honest.recipients))
        warning = "TOPK_SECAGG_RECIPIENTS is set"
        plain = new_round("plain")
        for command in (plain.init(), new_round("all").run()):
            assert warning in must(*command).err, command
        assert document(plain.folder / "session.json")["recipients"] is None
        sealed = new_round("sealed", sealed=True)
        assert warning not in must(*sealed.init()).err
        keys = document(sealed.folder / "session.json")["recipients"]
        assert f"1 {keys[0]['age']} " in sealed.recipients.read_text()


@pytest.mark.parametrize("pin", PINS)
@pytest.mark.parametrize("command", READERS)
@pytest.mark.rule(14)
class TestARoundThatTheStoreMadeUp:
    def pinned(self, honest, monkeypatch, pin):
        known = {
            "TOPK_SECAGG_SESSION": name_of(honest),
            "TOPK_SECAGG_RECIPIENTS": honest.recipients,
        }
        monkeypatch.setenv(pin, str(known[pin]))

    def put(self, forged, honest):
        """The store replaces everything in the folder."""
        shutil.rmtree(honest.folder)
        shutil.copytree(forged.folder, honest.folder)

    def test_it_is_refused_by_everybody_who_knows_session_or_keys(
        self, honest, forged, refuses, monkeypatch, pin, command
    ):
        self.pinned(honest, monkeypatch, pin)
        self.put(forged, honest)
        said = refuses(77, *reader_of(honest, command)).err
        assert "this is session" in said or "other keys for user 1" in said

    def test_without_the_check_it_is_taken_for_the_real_one(
        self, honest, forged, monkeypatch, pin, command
    ):
        """The twin."""
        self.pinned(honest, monkeypatch, pin)
        self.put(forged, honest)
        for module in ("topk_secagg.rounds.access", "topk_secagg.review.audit"):
            for check in ("check_session", "check_keys"):
                monkeypatch.setattr(f"{module}.{check}", lambda *_, **__: None)
        must(*reader_of(honest, command))
        if command == "decode":
            assert (honest.folder / "aggregate.h5").exists()


# variables that are set but empty: `export TOPK_SECAGG_SESSION=$(cat missing)` is all it takes
EMPTY = (*PINS, "TOPK_SECAGG_SERIES", "TOPK_SECAGG_SECRETS")


class TestAnEmptyPin:
    @pytest.mark.parametrize("name", EMPTY)
    @pytest.mark.parametrize("command", READERS)
    def test_it_does_not_admit_a_round_that_the_store_made_up(
        self, forged, refuses, monkeypatch, name, command
    ):
        monkeypatch.setenv(name, "")
        says = (f"{name} is set but empty", "hint: unset it, or set it to what --")
        user = ["--user", 1] * (command == "forget")
        refuses(2, command, forged.folder, *user, says=says)

    @pytest.mark.parametrize("name", [*EMPTY, "TOPK_SECAGG_IDENTITY"])
    @pytest.mark.parametrize("step", ["offline", "mask", "freeze", "eliminate"])
    def test_no_step_of_a_user_runs_with_one(self, round_at, refuses, monkeypatch, name, step):
        r = round_at("answered")
        monkeypatch.setenv(name, "")
        refuses(2, *r.step(step), says=f"{name} is set but empty")

    def test_one_for_a_single_command_is_refused_too(self, forged, refuses, monkeypatch):
        monkeypatch.setenv("TOPK_SECAGG_DECODE_SESSION", "")
        says = "TOPK_SECAGG_DECODE_SESSION is set but empty"
        refuses(2, *reader_of(forged, "decode"), says=says)
        monkeypatch.setenv("TOPK_SECAGG_SESSION", name_of(forged))
        refuses(2, *reader_of(forged, "decode"), says=says)
        must(*reader_of(forged, "status"))

    def test_a_pin_that_is_typed_holds_instead(self, honest, forged, refuses, monkeypatch):
        monkeypatch.setenv("TOPK_SECAGG_SESSION", "")
        pin = ("--session", name_of(honest))
        refuses(77, *reader_of(forged, "decode"), *pin, says="this is session")
        must(*reader_of(honest, "decode"), *pin)

    def test_without_the_check_a_made_up_round_is_decoded(self, forged, monkeypatch):
        """The twin."""
        monkeypatch.setenv("TOPK_SECAGG_SESSION", "")
        monkeypatch.setattr("topk_secagg_cli.commands._check_variables", lambda *_: None)
        must(*reader_of(forged, "decode"))
        assert (forged.folder / "aggregate.h5").exists()

    def test_init_and_run_do_not_use_the_variable_of_the_keys_and_say_so(
        self, new_round, refuses, monkeypatch
    ):
        monkeypatch.setenv("TOPK_SECAGG_RECIPIENTS", "")
        for command in (new_round("plain").init(), new_round("all").run()):
            assert "TOPK_SECAGG_RECIPIENTS is set" in must(*command).err, command
        monkeypatch.setenv("TOPK_SECAGG_INIT_RECIPIENTS", "")  # would have sealed the round
        says = "TOPK_SECAGG_INIT_RECIPIENTS is set but empty"
        refuses(2, *new_round("open").init(), says=says)

    def test_variables_of_other_options_may_be_empty(self, honest, monkeypatch):
        monkeypatch.setenv("TOPK_SECAGG_DECODE_STRICT", "")
        must(*reader_of(honest, "decode"))


def test_every_function_of_the_library_takes_the_pins(honest, forged):
    pins = {"session": name_of(honest), "recipients": str(honest.recipients)}
    functions = {
        "decode": ts.decode,
        "status": ts.status,
        "audit": ts.audit,
        "forget": lambda folder, **pins: ts.forget(folder, 1, secrets=honest.secrets(1), **pins),
    }
    assert set(functions) == set(READERS)
    for function in functions.values():
        for name, value in pins.items():
            with pytest.raises(Refused):
                function(str(forged.folder), **{name: value})
        function(str(honest.folder), **pins)


class TestTheAuditor:
    def audited(self, r: Round, *more: object):
        page = r.folder.with_name("page.html")
        result = must("audit", r.folder, "--report", page, *more)
        return result, " ".join(re.sub(r"<[^>]*>", " ", page.read_text()).split())

    def test_the_page_shows_all_fingerprints_and_that_nothing_was_pinned(self, honest):
        result, text = self.audited(honest)
        session = ts.Workspace(honest.folder).session
        assert "neither the session nor the keys were pinned" in result.err
        assert "neither the session nor the keys were pinned" in text
        assert (
            f"fingerprint of the session {session.fingerprint} the session was NOT pinned" in text
        )
        assert "the users' keys were NOT pinned" in text.replace("&#x27;", "'")
        for key in session.recipients:
            assert f"user {key.user}: {key.fingerprint}" in text
        assert "the user in its name signed it" not in text

    @pytest.mark.parametrize(
        ("pin", "said"),
        [
            ("--session", "the session was pinned the users' keys were pinned with the session"),
            (
                "--series",
                "the session was NOT pinned, but its series was the users' keys were pinned with "
                "the series",
            ),
            ("--recipients", "the session was NOT pinned the users' keys were pinned F"),
        ],
    )
    def test_the_page_says_what_was_pinned(self, honest, pin, said):
        value = {
            "--session": name_of(honest),
            "--series": ts.Workspace(honest.folder).session.series_name,
            "--recipients": honest.recipients,
        }[pin]
        result, text = self.audited(honest, pin, value)
        assert "pinned" not in result.err
        assert "neither the session" not in text
        assert said in text.replace("&#x27;", "'")
        facts = must("audit", honest.folder, pin, value, "--json").json
        names = ("session", "series", "keys")
        assert [facts[f"{name}_pinned"] for name in names] == [
            pin == f"--{option}" for option in ("session", "series", "recipients")
        ]
        keys = ts.Workspace(honest.folder).session.recipients
        assert facts["fingerprints"] == {str(key.user): key.fingerprint for key in keys}

    def test_the_session_with_which_a_series_began_pins_no_keys(self, honest):
        """Anybody could have written it into a session with keys of their own."""
        result, text = self.audited(honest, "--series", name_of(honest))
        assert "neither the session nor the keys were pinned" in result.err
        assert "the users' keys were NOT pinned" in text.replace("&#x27;", "'")

    def test_a_round_without_keys_is_called_that(self, round_at):
        result, text = self.audited(round_at("decoded"))
        assert "Nothing in it is signed" in text
        assert "pinned" not in result.err

    def test_a_folder_of_secrets_within_that_of_the_round_belongs_there(self, honest):
        """Whether it is named or not; who else can read it fails."""
        folder = ("--secrets", honest.secrets(1))
        must("audit", honest.folder)
        must("audit", honest.folder, *folder)
        honest.identity(1).chmod(0o644)
        for how in ((), folder):
            failed = call("audit", honest.folder, *how)
            assert failed.code == 65
            assert "user-01.identity: mode 0644" in " ".join(failed.err.split())

    def test_a_session_that_is_not_sound_is_still_a_finding(self, honest):
        (honest.folder / "session.json").write_text("{}")
        before = contents(honest.folder)
        assert "failed the audit" in call("audit", honest.folder).err
        args = ("audit", honest.folder, "--recipients", honest.recipients)
        assert "failed the audit" in call(*args).err
        assert contents(honest.folder) == before
